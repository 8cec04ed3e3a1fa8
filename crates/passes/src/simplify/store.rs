//! A store of learnt rules as text: a header with version and checksum, then one rule a line with its origin, its proof and
//! how often it was applied on a corpus.
//!
//! ```text
//! ; millstream rules, format 1, for bpf v4, made 2026-11-21
//! ; checksum fnv1a-64 0123456789abcdef
//! (sub.w (or.w x y) (and.w x y)) => (xor.w x y)   if (int x) (int y)   ; enumerated, proven by z3 in 0.01 s, fires 3
//! ```
//!
//! The checksum is over all lines after it. It tells a damaged file, not a wrong rule: what a rule is worth is what can
//! be proven of it, and whoever brings a store of their own has that proven anew (`millstream-rules`).

use std::fmt;

use super::parse::parse_rule;
use super::rule::Rule;

/// Stores of rules of terms.
const TERMS: Seal = Seal { title: "; millstream rules, format ", format: 1 };
/// What the second line begins with.
const CHECKSUM: &str = "; checksum fnv1a-64 ";

/// Where a rule was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// Its left side was one of an enumeration.
    Enumerated,
    /// Its left side stood in a program.
    Harvested,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Enumerated => "enumerated",
            Origin::Harvested => "harvested",
        })
    }
}

/// A rule of a store.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The rule.
    pub rule: Rule,
    /// Where it was found.
    pub origin: Origin,
    /// Who proved it: a solver with its version, or `form` for the normal form of terms.
    pub prover: String,
    /// How long that took, in seconds.
    pub seconds: f64,
    /// How often it was applied on the corpus that was looked at last.
    pub fires: u64,
}

/// A store.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Store {
    /// The instruction set that costs were compared for.
    pub isa: String,
    /// The day on which it was made, as year-month-day.
    pub made: String,
    /// Its rules, in the order in which they are tried.
    pub entries: Vec<Entry>,
}

/// Why a store cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It does not begin as a store does.
    #[error("{name}: no such store (its first line should begin with `{title}`)")]
    Header {
        /// The store.
        name: String,
        /// What its first line should begin with.
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
        "{name}: damaged: the checksum is {found} and should be {expected}; get the file again, or, if it was changed by \
         hand, prove and write it anew with `millstream rules seal`"
    )]
    Checksum {
        /// The store.
        name: String,
        /// The checksum of what is there.
        found: String,
        /// What it says of itself.
        expected: String,
    },
    /// A line is no rule.
    #[error("{name}:{line}: {message}")]
    Rule {
        /// The store.
        name: String,
        /// The line.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
}

/// Fowler, Noll and Vo's hash, variant 1a, of 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// What stores of one kind have around their rules: a title with the format, and a checksum.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    /// What the first line begins with, up to the number of the format.
    pub title: &'static str,
    /// The format that is read and written.
    pub format: u32,
}

impl Seal {
    /// What stands behind the format in the first line, and all behind the checksum, which must be right; that begins in line 3.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn opened<'t>(self, name: &str, text: &'t str) -> Result<(&'t str, &'t str), StoreError> {
        let (fields, body) = self.titled(name, text)?;
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
    pub fn titled<'t>(self, name: &str, text: &'t str) -> Result<(&'t str, &'t str), StoreError> {
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
    pub fn sealed(self, fields: &str, body: &str) -> String {
        format!("{}{}{fields}\n{CHECKSUM}{:016x}\n{body}", self.title, self.format, fnv1a(body.as_bytes()))
    }
}

impl Store {
    /// Whether a text says that it is such a store.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(TERMS.title)
    }

    /// Reads a store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn parse(name: &str, text: &str) -> Result<Store, StoreError> {
        let (title, rest) = TERMS.opened(name, text)?;
        Store::read(name, title, rest, 3)
    }

    /// Reads a store whatever its checksum says, to prove it and write it anew.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn parse_unsealed(name: &str, text: &str) -> Result<Store, StoreError> {
        let (title, body) = TERMS.titled(name, text)?;
        Store::read(name, title, body, 2)
    }

    fn read(name: &str, title: &str, text: &str, first: usize) -> Result<Store, StoreError> {
        let field = |prefix: &str| {
            let field = title.split(',').find_map(|f| f.trim().strip_prefix(prefix));
            field.unwrap_or_default().trim().to_owned()
        };
        let mut store = Store { isa: field("for "), made: field("made "), entries: Vec::new() };
        for (at, line) in text.lines().enumerate() {
            let (rule, about) = line.split_once(';').unwrap_or((line, ""));
            if !rule.trim().is_empty() {
                let line = first + at;
                let fail = |message| StoreError::Rule { name: name.into(), line, message };
                let rule = parse_rule(rule).map_err(fail)?;
                let rule = Rule { name: format!("{name}:{line}"), learnt: true, ..rule };
                store.entries.push(entry(rule, about));
            }
        }
        Ok(store)
    }

    /// The store as text.
    pub fn text(&self) -> String {
        use fmt::Write as _;
        let mut body = String::new();
        for e in &self.entries {
            let _ = writeln!(
                body,
                "{}   ; {}, proven by {} in {:.3} s, fires {}",
                e.rule, e.origin, e.prover, e.seconds, e.fires
            );
        }
        TERMS.sealed(&format!(", for {}, made {}", self.isa, self.made), &body)
    }

    /// Its rules, in order.
    pub fn rules(&self) -> Vec<Rule> {
        self.entries.iter().map(|e| e.rule.clone()).collect()
    }
}

/// What stands behind a rule; what is missing there counts as nothing.
fn entry(rule: Rule, about: &str) -> Entry {
    let fields: Vec<&str> = about.split(',').map(str::trim).collect();
    let proof = fields.iter().find_map(|f| f.strip_prefix("proven by ")).unwrap_or_default();
    let (prover, seconds) = proof.rsplit_once(" in ").unwrap_or((proof, ""));
    let seconds = seconds.trim_end_matches('s').trim().parse().unwrap_or(0.0);
    let fires = fields.iter().find_map(|f| f.strip_prefix("fires ")?.parse().ok()).unwrap_or(0);
    let origin = if fields.contains(&"harvested") { Origin::Harvested } else { Origin::Enumerated };
    Entry { rule, origin, prover: prover.to_owned(), seconds, fires }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Origin, Store, StoreError};
    use crate::simplify::parse::parse_rule;

    fn store() -> Store {
        let rule = |line: usize, text: &str| crate::rules::Rule {
            name: format!("s:{line}"),
            learnt: true,
            ..parse_rule(text).unwrap()
        };
        let entry = |line, text, origin, fires| Entry {
            rule: rule(line, text),
            origin,
            prover: "z3 5.4".into(),
            seconds: 0.25,
            fires,
        };
        Store {
            isa: "bpf v4".into(),
            made: "2026-11-21".into(),
            entries: vec![
                entry(
                    3,
                    "(sub.w (or.w x y) (and.w x y)) => (xor.w x y)   if (int x) (int y)",
                    Origin::Enumerated,
                    3,
                ),
                entry(
                    4,
                    "(and.64 (lshr.64 x #a) #b) => (lshr.64 x {a})   if (lt a 64) (zeros x b)",
                    Origin::Harvested,
                    0,
                ),
            ],
        }
    }

    #[test]
    fn a_store_is_read_as_it_was_written() {
        assert_eq!(Store::parse("s", &store().text()).unwrap(), store());
    }

    #[test]
    fn a_store_that_was_changed_or_cut_is_refused() {
        let text = store().text();
        for damaged in [
            text.replace("xor.w", "and.w"),
            text[..text.len() - 30].to_owned(),
            text.replace("fires 3", "fires 4"),
        ] {
            let error = Store::parse("s", &damaged).unwrap_err();
            assert!(matches!(error, StoreError::Checksum { .. }), "{error}");
        }
        assert_eq!(
            Store::parse_unsealed("s", &text.replace("fires 3", "fires 4")).unwrap().entries[0].fires,
            4
        );
    }

    #[test]
    fn what_is_no_store_or_of_another_format_is_refused() {
        let text = store().text();
        let version = Store::parse("s", &text.replace("format 1", "format 2")).unwrap_err();
        assert!(matches!(version, StoreError::Version { .. }), "{version}");
        assert!(matches!(Store::parse("s", "").unwrap_err(), StoreError::Header { .. }));
        assert!(matches!(Store::parse("s", "\u{7f}ELF").unwrap_err(), StoreError::Header { .. }));
    }
}
