//! An answer as a line of text: a checksum, a tag, and the text that both cover: format, version, question,
//! answer, milliseconds, values, solver.
//!
//! The checksum detects a damaged line. The tag, if there is one, identifies the author of the line.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{CachedAnswer, CachedVerdict, QueryDigest, StoreKey};

/// Number of the format.
const FORMAT: &str = "2";
/// Version of the prover that asks: a later one may encode a question differently, or know that an earlier
/// one was wrong.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Purpose in front of the line, which the tag covers, too.
const PURPOSE: &str = "millstream answer\n";
/// Tag of an unsigned line.
const UNSIGNED: &str = "-";
/// Most values in an answer.
const MOST_VALUES: usize = 1 << 16;

/// Keys that lines may be signed with.
#[derive(Clone, Debug, Default)]
pub(super) struct SigningKeys {
    /// The user's own.
    pub(super) user: Option<StoreKey>,
    /// The team's.
    pub(super) team: Option<StoreKey>,
    /// True if answers signed by the team may replace a proof.
    pub(super) trust: bool,
}

/// Author of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordSigner {
    /// A process with the user's own key, of this version.
    User,
    /// A process with the team's key, of this version.
    Team,
    /// Anybody.
    Unknown,
}

/// A line that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CacheRecord {
    pub(super) key: QueryDigest,
    pub(super) entry: CachedAnswer,
    pub(super) signer: RecordSigner,
}

/// Reason why a line is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordError {
    /// It is truncated or changed.
    Damaged,
    /// It is whole, in another format: made by an older version, or by a later one.
    OtherFormat,
}

impl CacheRecord {
    /// The line of an answer, signed if there is a key; [`None`] if the answer is too long.
    pub(super) fn text(key: &QueryDigest, entry: &CachedAnswer, signer: Option<&StoreKey>) -> Option<String> {
        let (word, values) = match &entry.said {
            CachedVerdict::Valid => ("valid", "-".to_owned()),
            CachedVerdict::Refuted(values) if values.len() <= MOST_VALUES => {
                let shown: Vec<String> = values.iter().map(|(at, v)| format!("{at:x}={v:x}")).collect();
                ("refuted", if shown.is_empty() { "-".to_owned() } else { shown.join(",") })
            }
            CachedVerdict::Refuted(_) => return None,
        };
        let solver = entry.solver.replace(|c: char| c.is_control(), " ");
        let rest = format!("{FORMAT} {VERSION} {key} {word} {} {values} {solver}", entry.time.as_millis());
        let tag = signer.map_or_else(|| UNSIGNED.to_owned(), |k| k.tag(&format!("{PURPOSE}{rest}")));
        let summed = format!("{tag} {rest}");
        Some(format!("{} {summed}", checksum(&summed)))
    }

    /// Reads a line.
    pub(super) fn parse(line: &str, keys: &SigningKeys) -> Result<CacheRecord, RecordError> {
        let whole = line.trim_end_matches('\n').split_once(' ').filter(|(sum, text)| *sum == checksum(text));
        let (_, summed) = whole.ok_or(RecordError::Damaged)?;
        // The first format had no tag.
        let (tag, rest) = summed.split_once(' ').ok_or(RecordError::Damaged)?;
        if rest.split(' ').next() != Some(FORMAT) {
            return Err(RecordError::OtherFormat);
        }
        CacheRecord::read(tag, rest, keys).ok_or(RecordError::Damaged)
    }

    /// Reads the text that the tag covers.
    fn read(tag: &str, rest: &str, keys: &SigningKeys) -> Option<CacheRecord> {
        let mut words = rest.splitn(7, ' ').skip(1);
        let version = words.next()?;
        let key: QueryDigest = words.next()?.parse().ok()?;
        let word = words.next()?;
        let time = Duration::from_millis(words.next()?.parse().ok()?);
        let values = words.next()?;
        let solver = words.next()?.to_owned();
        let value = |v: &str| {
            let (at, value) = v.split_once('=')?;
            Some((u32::from_str_radix(at, 16).ok()?, u64::from_str_radix(value, 16).ok()?))
        };
        let said = match (word, values) {
            ("valid", "-") => CachedVerdict::Valid,
            ("refuted", "-") => CachedVerdict::Refuted(Vec::new()),
            ("refuted", list) => CachedVerdict::Refuted(list.split(',').map(value).collect::<Option<_>>()?),
            _ => return None,
        };
        let signed = format!("{PURPOSE}{rest}");
        let by = |key: &Option<StoreKey>| {
            version == VERSION && key.as_ref().is_some_and(|k| k.signed(tag, &signed))
        };
        let signer = match () {
            () if by(&keys.user) => RecordSigner::User,
            () if by(&keys.team) => RecordSigner::Team,
            () => RecordSigner::Unknown,
        };
        Some(CacheRecord { key, entry: CachedAnswer { said, solver, time }, signer })
    }
}

/// Half a SHA-256.
pub(super) fn checksum(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..16])
}
