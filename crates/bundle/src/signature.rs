//! Signatures of bundles with a team's key: an HMAC-SHA256 of the digest of the list of parts.

use millstream_prove::StoreKey;
use serde::Serialize;

use crate::Bundle;

/// Begins the text of a signature.
const ALGORITHM: &str = "hmac-sha256:";

/// State of a bundle's signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SignatureState {
    /// The bundle has none.
    Unsigned,
    /// It has one, and no key was given.
    Unchecked,
    /// It was made with the given key.
    Valid,
    /// It was not made with the given key, or of another bundle.
    Invalid,
}

impl SignatureState {
    /// Checks the signature of a bundle with a key, if there is one.
    pub fn of(bundle: &Bundle, key: Option<&StoreKey>) -> SignatureState {
        let Some(signature) = bundle.signature() else { return SignatureState::Unsigned };
        let Some(key) = key else { return SignatureState::Unchecked };
        let tag = signature.strip_prefix(ALGORITHM);
        match tag.is_some_and(|tag| key.signed(tag, &bundle.signed_text())) {
            true => SignatureState::Valid,
            false => SignatureState::Invalid,
        }
    }

    /// The state in words.
    pub fn words(self) -> &'static str {
        match self {
            SignatureState::Unsigned => "none",
            SignatureState::Unchecked => "there, not checked: no --store-key was given",
            SignatureState::Valid => "valid",
            SignatureState::Invalid => "invalid: of another key or another bundle",
        }
    }
}

/// A signature of a bundle by a key.
pub(crate) fn signature(bundle: &Bundle, key: &StoreKey) -> String {
    format!("{ALGORITHM}{}", key.tag(&bundle.signed_text()))
}
