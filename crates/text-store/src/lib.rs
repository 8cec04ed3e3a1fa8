//! Frame around the rules of a store, of whatever kind these are: a first line with the format, a second one
//! with a checksum over all that follows. The checksum tells a damaged file, not a wrong rule.
//!
//! Architecture Invariant: no I/O; the text comes from the caller.

/// Prefix of the second line.
const CHECKSUM: &str = "; checksum fnv1a-64 ";

/// Why a store cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It does not begin as a store does.
    #[error("{name}: not a store of this kind (its first line should begin with `{title}`)")]
    Header {
        /// The store.
        name: String,
        /// Expected prefix of its first line.
        title: String,
    },
    /// It is of a format that this version does not know.
    #[error("{name}: format {found} is not known here (this version reads format {reads})")]
    Version {
        /// The store.
        name: String,
        /// Its format.
        found: String,
        /// The format that is read.
        reads: u32,
    },
    /// It was changed or cut after it was written.
    #[error(
        "{name}: damaged: the checksum is {found} and should be {expected}; get the file again, \
         or, if it was changed by hand, prove and write it anew with `millstream rules seal`"
    )]
    Checksum {
        /// The store.
        name: String,
        /// Checksum of the contents.
        found: String,
        /// Checksum that the store states.
        expected: String,
    },
    /// A line is no rule.
    #[error("{name}:{line}: {message}")]
    Rule {
        /// The store.
        name: String,
        /// The line.
        line: usize,
        /// Description of the error.
        message: String,
    },
}

/// Fowler, Noll and Vo's hash, variant 1a, of 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Title with the format, and checksum, of stores of one kind.
#[derive(Clone, Copy, Debug)]
pub struct StoreFormat {
    /// Prefix of the first line, up to the number of the format.
    pub title: &'static str,
    /// The format that is read and written.
    pub format: u32,
}

impl StoreFormat {
    /// The rest of the first line behind the format, and all text behind the checksum, from line 3 on. The
    /// checksum must be right.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read_verified<'t>(self, name: &str, text: &'t str) -> Result<(&'t str, &'t str), StoreError> {
        let (fields, body) = self.read_unverified(name, text)?;
        let (checksum, rest) = body.split_once('\n').unwrap_or((body, ""));
        let expected = checksum.strip_prefix(CHECKSUM).unwrap_or_default().trim();
        let found = format!("{:016x}", fnv1a(rest.as_bytes()));
        if found != expected {
            return Err(StoreError::Checksum { name: name.into(), found, expected: expected.into() });
        }
        Ok((fields, rest))
    }

    /// The same, whatever the checksum says, which is among the rest; that begins in line 2.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read_unverified<'t>(self, name: &str, text: &'t str) -> Result<(&'t str, &'t str), StoreError> {
        let (first, body) = text.split_once('\n').unwrap_or((text, ""));
        let fields = first
            .strip_prefix(self.title)
            .ok_or_else(|| StoreError::Header { name: name.into(), title: self.title.into() })?;
        let format = fields.split(',').next().unwrap_or_default().trim();
        if format != self.format.to_string() {
            return Err(StoreError::Version { name: name.into(), found: format.into(), reads: self.format });
        }
        Ok((fields, body))
    }

    /// A store with this behind the format, and these rules.
    pub fn with_checksum(self, fields: &str, body: &str) -> String {
        format!("{}{}{fields}\n{CHECKSUM}{:016x}\n{body}", self.title, self.format, fnv1a(body.as_bytes()))
    }
}
