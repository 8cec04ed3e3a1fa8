//! Bundles: an object, its optimized forms and their proofs as one OCI artifact.
//!
//! A [`Bundle`] is a list of parts with their bytes. The list is the config blob of the artifact; each part is a
//! layer. A bundle is read from and written to an OCI image layout, which is a folder or a tar file
//! (<https://github.com/opencontainers/image-spec>, `image-layout.md` and `manifest.md`), or from and to a registry.
//!
//! Architecture Invariant: a bundle is hostile. Sizes are bounded before memory is taken, the digest of each blob
//! is compared with its bytes, and names in a bundle never become paths. A bundle proves nothing: a form
//! is proven again ([`FormProver`]), or taken on trust where the reader says so and a signature holds.

mod choice;
mod contents;
mod digest;
mod error;
mod forms;
mod layout;
mod manifest;
mod reference;
mod registry;
mod signature;

use std::collections::BTreeMap;

pub use choice::{BundlePolicy, ChosenForm, is_bundle};
pub use contents::{BundlePart, PartRole};
pub use digest::BlobDigest;
pub use error::BundleError;
pub use forms::{FormProver, FormReport, FormVerdict, ProgramProof};
pub use manifest::{BlobSource, Descriptor};
pub use reference::{ReferenceError, RegistryReference};
pub use registry::RegistryAccess;
pub use signature::SignatureState;

use contents::BundleContents;
use millstream_isa::generation::VerifierGeneration;
use millstream_prove::StoreKey;

/// Largest blob, in bytes; that of a file that commands read.
pub const LARGEST_BLOB: u64 = 128 << 20;
/// Largest bundle, in bytes.
pub const LARGEST_BUNDLE: u64 = 512 << 20;
/// Largest JSON document of a bundle, in bytes.
pub const LARGEST_DOCUMENT: u64 = 1 << 20;
/// Largest number of parts.
const MOST_PARTS: usize = 256;
/// Begins the text that a signature covers, so that it is valid for no other purpose.
const PURPOSE: &str = "millstream bundle 1";

/// A bundle in memory. Its bytes agree with its digests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bundle {
    contents: BundleContents,
    /// The bytes of `contents`, whose digest is signed.
    config: Vec<u8>,
    /// The bytes of the parts.
    blobs: BTreeMap<BlobDigest, Vec<u8>>,
    signature: Option<String>,
}

impl Bundle {
    /// A bundle of parts in the given order, without a signature. `software` names the program that packs it.
    ///
    /// # Errors
    /// If there are too many parts, or they are too large.
    pub fn new(
        software: &str,
        parts: impl IntoIterator<Item = (PartRole, String, Vec<u8>)>,
    ) -> Result<Bundle, BundleError> {
        let (mut rows, mut blobs) = (Vec::new(), BTreeMap::new());
        for (role, name, data) in parts {
            let digest = BlobDigest::of(&data);
            rows.push(BundlePart { role, name, digest, size: data.len() as u64 });
            blobs.insert(digest, data);
        }
        let contents = BundleContents::new(software, rows);
        contents.check()?;
        let config = serde_json::to_vec(&contents).map_err(BundleError::Document)?;
        Ok(Bundle { contents, config, blobs, signature: None })
    }

    /// The program that packed the bundle, in its own words.
    pub fn software(&self) -> &str {
        &self.contents.software
    }

    /// The parts, in the order of packing.
    pub fn parts(&self) -> &[BundlePart] {
        &self.contents.parts
    }

    /// The bytes of a part of this bundle; none for a part of another.
    pub fn data(&self, part: &BundlePart) -> &[u8] {
        self.blobs.get(&part.digest).map_or(&[], Vec::as_slice)
    }

    /// The only part of its kind: the original object.
    pub fn original(&self) -> Option<&BundlePart> {
        self.parts().iter().find(|part| part.role == PartRole::Original)
    }

    /// The text that a signature covers: the digest of the list of parts, and so every byte of them.
    pub fn signed_text(&self) -> String {
        format!("{PURPOSE} {}", BlobDigest::of(&self.config))
    }

    /// The signature, unchecked.
    pub fn signature(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    /// The same bundle with a signature of [`Bundle::signed_text`].
    #[must_use]
    pub fn with_signature(self, signature: String) -> Bundle {
        Bundle { signature: Some(signature), ..self }
    }

    /// The bundle with a signature by a key.
    #[must_use]
    pub fn signed(self, key: &StoreKey) -> Bundle {
        let signature = signature::signature(&self, key);
        self.with_signature(signature)
    }

    /// The optimized form for the kernels of a generation.
    pub fn form(&self, generation: VerifierGeneration) -> Option<&BundlePart> {
        let is_form = |part: &&BundlePart| match &part.role {
            PartRole::Optimized { kernel } => kernel.parse() == Ok(generation),
            _ => false,
        };
        self.parts().iter().find(is_form)
    }
}
