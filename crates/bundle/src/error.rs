//! Errors of reading and writing bundles.

use std::io;

use crate::BlobDigest;

/// Reason why something is no usable bundle, or why a bundle could not be written.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A system call failed.
    #[error("{place}: {source}")]
    Io {
        /// The file.
        place: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A JSON document of a bundle is not in its form.
    #[error("a document of the bundle has another form: {0}")]
    Document(serde_json::Error),
    /// The OCI artifact is something else.
    #[error("it is no bundle: {0}")]
    OtherArtifact(String),
    /// A blob is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A blob has other bytes than its digest says.
    #[error("{0} has other bytes than its digest says")]
    Damaged(BlobDigest),
    /// A blob has another length than its descriptor says.
    #[error("{digest} has another length than {size} bytes")]
    Length {
        /// The blob.
        digest: BlobDigest,
        /// The length that its descriptor says.
        size: u64,
    },
    /// The bundle or a part of it is too large.
    #[error("{0} is too large: a blob has at most 128 MiB, a bundle 512 MiB")]
    TooLarge(String),
    /// The list of parts contradicts itself or the layers.
    #[error("the parts of the bundle do not fit together: {0}")]
    Inconsistent(String),
    /// A registry cannot be reached, or does not answer in time.
    #[error("{url}: {source}")]
    Unreachable {
        /// The request.
        url: String,
        /// Reason of the client.
        source: Box<ureq::Error>,
    },
    /// A registry refuses a request, or its answer is none of the protocol.
    #[error("{url}: {reason}")]
    Registry {
        /// The request.
        url: String,
        /// The status, or the fault of the answer.
        reason: String,
    },
    /// The original object cannot be read.
    #[error("the original object of the bundle: {0}")]
    Object(#[from] millstream_object::ObjectError),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] millstream_prove::StoreKeyError),
    /// A key is given, and the bundle is not signed with it.
    #[error("the signature of the bundle: {}", .0.words())]
    Signature(crate::SignatureState),
}
