//! Places of bundles in registries: `REGISTRY/NAME:TAG`, or `REGISTRY/NAME@sha256:DIGITS`.

use std::fmt;
use std::str::FromStr;

use crate::BlobDigest;

/// A place in a registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegistryReference {
    /// Host, with the port if it names one.
    pub(crate) host: String,
    /// Name of the repository.
    pub(crate) name: String,
    pub(crate) version: ReferenceVersion,
}

/// One of the manifests of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReferenceVersion {
    Tag(String),
    Digest(BlobDigest),
}

impl fmt::Display for ReferenceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReferenceVersion::Tag(tag) => f.write_str(tag),
            ReferenceVersion::Digest(digest) => digest.fmt(f),
        }
    }
}

/// A text that is no place in a registry.
#[derive(Debug, thiserror::Error)]
#[error("it is not REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGITS, with a name in lower case")]
pub struct ReferenceError;

impl FromStr for RegistryReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<RegistryReference, ReferenceError> {
        let (host, rest) = text.split_once('/').ok_or(ReferenceError)?;
        let (name, version) = match rest.split_once('@') {
            Some((name, digest)) => {
                (name, ReferenceVersion::Digest(digest.parse().map_err(|_| ReferenceError)?))
            }
            None => {
                let (name, tag) = rest.rsplit_once(':').ok_or(ReferenceError)?;
                (name, ReferenceVersion::Tag(tag.to_owned()))
            }
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let is_tag = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_word = |word: &str| word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let tag = match &version {
            ReferenceVersion::Tag(tag) => tag.as_str(),
            ReferenceVersion::Digest(_) => "digest",
        };
        let is_right = !host.is_empty()
            && host.chars().all(is_host)
            && name.len() <= 255
            && name.split('/').all(|part| is_word(part) && part.chars().all(is_name))
            && is_word(tag)
            && tag.len() <= 128
            && tag.chars().all(is_tag);
        let (host, name) = (host.to_owned(), name.to_owned());
        if is_right { Ok(RegistryReference { host, name, version }) } else { Err(ReferenceError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_no_path_and_no_other_address() {
        for right in ["ghcr.io/team/router:1.0", "127.0.0.1:5000/a/b-c:v_1", "[::1]:5000/a:b"] {
            let reference: RegistryReference = right.parse().unwrap();
            assert_eq!(format!("{}/{}:{}", reference.host, reference.name, reference.version), right);
        }
        let digest = format!("h/n@{}", BlobDigest::of(b""));
        assert!(digest.parse::<RegistryReference>().is_ok());
        for wrong in
            ["", "a", "a/b", "a/../b:c", "a/B:c", "a/b:../c", "a/b:c?d", "u@h/b:c", "a/b@sha256:0", "/b:c"]
        {
            assert!(wrong.parse::<RegistryReference>().is_err(), "{wrong}");
        }
    }
}
