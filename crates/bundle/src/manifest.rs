//! The OCI manifest of a bundle: the config blob and the layers, by digest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::contents::BundleContents;
use crate::{BlobDigest, Bundle, BundleError, LARGEST_BLOB, LARGEST_DOCUMENT};

/// Media type of a manifest.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of the list of parts, by which a bundle is known.
const CONFIG_TYPE: &str = "application/vnd.millstream.bundle.config.v1+json";
/// Media type of the artifact.
const ARTIFACT_TYPE: &str = "application/vnd.millstream.bundle.v1";
/// Media type of a part whose role the list says.
const PART_TYPE: &str = "application/vnd.millstream.bundle.part.v1";
/// Annotation of the manifest with the signature.
const SIGNATURE: &str = "org.millstream.bundle.signature";
/// Longest signature, in bytes.
const LONGEST_SIGNATURE: usize = 1024;

/// A reference to a blob.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub(crate) media_type: String,
    /// Digest of the blob.
    pub digest: BlobDigest,
    /// Number of its bytes.
    pub size: u64,
}

impl Descriptor {
    pub(crate) fn of(media_type: &str, bytes: &[u8]) -> Descriptor {
        let (digest, size) = (BlobDigest::of(bytes), bytes.len() as u64);
        Descriptor { media_type: media_type.to_owned(), digest, size }
    }
}

/// Something that has blobs: a folder, a tar file, a registry. Nothing that it gives is trusted.
pub trait BlobSource {
    /// The bytes of a blob; of these at most one more than the descriptor says are used.
    ///
    /// # Errors
    /// If it has no such blob, or cannot be read.
    fn blob(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>, BundleError>;
}

/// The manifest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    artifact_type: String,
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Bundle {
    /// The blobs of the artifact but for its manifest: the config, then each layer once.
    pub fn blobs(&self) -> Vec<(Descriptor, &[u8])> {
        let mut blobs = vec![(Descriptor::of(CONFIG_TYPE, &self.config), self.config.as_slice())];
        let mut seen = BTreeSet::new();
        for part in self.parts().iter().filter(|part| seen.insert(part.digest)) {
            let data = self.data(part);
            blobs.push((Descriptor::of(PART_TYPE, data), data));
        }
        blobs
    }

    /// The bytes of the manifest: the same for the same bundle.
    ///
    /// # Errors
    /// None that a bundle in memory can have.
    pub fn manifest(&self) -> Result<Vec<u8>, BundleError> {
        let mut blobs = self.blobs().into_iter().map(|(descriptor, _)| descriptor);
        let config = blobs.next().ok_or_else(|| BundleError::Missing("the list of parts".to_owned()))?;
        let annotations = self.signature().map(|tag| (SIGNATURE.to_owned(), tag.to_owned()));
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: ARTIFACT_TYPE.to_owned(),
            config,
            layers: blobs.collect(),
            annotations: annotations.into_iter().collect(),
        };
        serde_json::to_vec(&manifest).map_err(BundleError::Document)
    }

    /// Reads the bundle of a manifest. Blobs that the manifest does not name are not read.
    ///
    /// # Errors
    /// If it is no bundle, damaged, incomplete or too large.
    pub fn from_manifest(manifest: &[u8], source: &mut dyn BlobSource) -> Result<Bundle, BundleError> {
        if manifest.len() as u64 > LARGEST_DOCUMENT {
            return Err(BundleError::TooLarge("the manifest".to_owned()));
        }
        let manifest: Manifest = serde_json::from_slice(manifest).map_err(BundleError::Document)?;
        if manifest.config.media_type != CONFIG_TYPE {
            return Err(BundleError::OtherArtifact(format!("its type is {}", manifest.config.media_type)));
        }
        let config = checked(source, &manifest.config, LARGEST_DOCUMENT)?;
        let contents = BundleContents::parse(&config)?;
        let is_layer = |digest, size| manifest.layers.iter().any(|l| l.digest == digest && l.size == size);
        let mut blobs = BTreeMap::new();
        for part in &contents.parts {
            if !is_layer(part.digest, part.size) {
                return Err(BundleError::Inconsistent(format!("{} is no layer", part.digest)));
            }
            if let std::collections::btree_map::Entry::Vacant(vacant) = blobs.entry(part.digest) {
                let wanted =
                    Descriptor { media_type: PART_TYPE.to_owned(), digest: part.digest, size: part.size };
                vacant.insert(checked(source, &wanted, LARGEST_BLOB)?);
            }
        }
        let signature = manifest.annotations.get(SIGNATURE).cloned();
        let signature = signature.filter(|tag| tag.len() <= LONGEST_SIGNATURE);
        Ok(Bundle { contents, config, blobs, signature })
    }
}

/// A blob whose length and digest are those of its descriptor.
pub(crate) fn checked(
    source: &mut dyn BlobSource,
    wanted: &Descriptor,
    largest: u64,
) -> Result<Vec<u8>, BundleError> {
    if wanted.size > largest {
        return Err(BundleError::TooLarge(wanted.digest.to_string()));
    }
    let bytes = source.blob(wanted)?;
    if bytes.len() as u64 != wanted.size {
        return Err(BundleError::Length { digest: wanted.digest, size: wanted.size });
    }
    if BlobDigest::of(&bytes) != wanted.digest {
        return Err(BundleError::Damaged(wanted.digest));
    }
    Ok(bytes)
}
