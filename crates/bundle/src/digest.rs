//! Digests of blobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// SHA-256 of a blob. Its text form is `sha256:` and 64 hexadecimal digits, as OCI writes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlobDigest([u8; 32]);

impl BlobDigest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> BlobDigest {
        BlobDigest(Sha256::digest(bytes).into())
    }

    /// The digits alone, which are the name of a file in an OCI image layout.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

/// A text that is no digest by SHA-256.
#[derive(Debug, thiserror::Error)]
#[error("it is not sha256: and 64 lower-case hexadecimal digits")]
pub struct DigestError;

impl FromStr for BlobDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<BlobDigest, DigestError> {
        let digits = text.strip_prefix("sha256:").ok_or(DigestError)?;
        // One digest has one text.
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(DigestError);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| DigestError)?;
        Ok(BlobDigest(bytes))
    }
}

impl Serialize for BlobDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlobDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BlobDigest, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
