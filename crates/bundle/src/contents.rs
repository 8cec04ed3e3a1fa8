//! The list of a bundle's parts, which is the config blob of the artifact.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{BlobDigest, BundleError, LARGEST_BLOB, LARGEST_BUNDLE, MOST_PARTS};

/// Version of the list.
const SCHEMA: u32 = 1;
/// Longest text in a list, in bytes.
const LONGEST_TEXT: usize = 255;

/// Use of a part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum PartRole {
    /// The object that the others were made of.
    Original,
    /// The object as it was optimized for the kernels of one generation.
    Optimized {
        /// The generation, `6.1`.
        kernel: String,
    },
    /// The verdicts on an optimized object when it was packed, as JSON.
    Proof {
        /// The generation of the optimized object.
        kernel: String,
    },
    /// A store of rules, in order of use.
    Rules,
    /// A cost table.
    Costs,
    /// A plan of the tuner.
    Plan,
    /// A profile of lookups, for the first variant of a session.
    Profile,
}

impl PartRole {
    /// The name of the role, as in the list.
    pub fn name(&self) -> &'static str {
        match self {
            PartRole::Original => "original",
            PartRole::Optimized { .. } => "optimized",
            PartRole::Proof { .. } => "proof",
            PartRole::Rules => "rules",
            PartRole::Costs => "costs",
            PartRole::Plan => "plan",
            PartRole::Profile => "profile",
        }
    }

    /// The generation of kernels that the part is about, if it is about one.
    pub fn kernel(&self) -> Option<&str> {
        match self {
            PartRole::Optimized { kernel } | PartRole::Proof { kernel } => Some(kernel),
            _ => None,
        }
    }
}

/// One part of a bundle.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BundlePart {
    /// Use of the part.
    #[serde(flatten)]
    pub role: PartRole,
    /// Name of the file that it was; it may hold any character.
    pub name: String,
    /// Digest of its bytes.
    pub digest: BlobDigest,
    /// Number of its bytes.
    pub size: u64,
}

/// The list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct BundleContents {
    schema: u32,
    pub(crate) software: String,
    pub(crate) parts: Vec<BundlePart>,
}

impl BundleContents {
    pub(crate) fn new(software: &str, parts: Vec<BundlePart>) -> BundleContents {
        BundleContents { schema: SCHEMA, software: software.to_owned(), parts }
    }

    /// The list in a config blob.
    pub(crate) fn parse(bytes: &[u8]) -> Result<BundleContents, BundleError> {
        let contents: BundleContents = serde_json::from_slice(bytes).map_err(BundleError::Document)?;
        contents.check().map(|()| contents)
    }

    /// Checks sizes and that no role is taken twice.
    pub(crate) fn check(&self) -> Result<(), BundleError> {
        let wrong = |why: String| Err(BundleError::Inconsistent(why));
        if self.schema != SCHEMA {
            return wrong(format!("the list has version {}, known is {SCHEMA}", self.schema));
        }
        if self.parts.len() > MOST_PARTS {
            return wrong(format!("there are more than {MOST_PARTS}"));
        }
        let texts = self.parts.iter().flat_map(|p| [p.name.as_str(), p.role.kernel().unwrap_or("-")]);
        if texts.chain([self.software.as_str()]).any(|text| text.is_empty() || text.len() > LONGEST_TEXT) {
            return wrong("a name is empty or too long".to_owned());
        }
        let mut taken = BTreeSet::new();
        for part in self.parts.iter().filter(|part| part.role != PartRole::Rules) {
            if !taken.insert((part.role.name(), part.role.kernel())) {
                return wrong(format!("two have the role {}", part.role.name()));
            }
        }
        if !taken.contains(&("original", None)) {
            return wrong("there is no original".to_owned());
        }
        if let Some(part) = self.parts.iter().find(|part| part.size > LARGEST_BLOB) {
            return Err(BundleError::TooLarge(part.digest.to_string()));
        }
        let total = self.parts.iter().map(|part| part.size).sum::<u64>();
        if total > LARGEST_BUNDLE { Err(BundleError::TooLarge("the bundle".to_owned())) } else { Ok(()) }
    }
}
