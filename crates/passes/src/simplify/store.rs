//! A store of learnt rules as text: a header with version and checksum, then one rule a line with its origin,
//! its proof and the number of times it was applied on a corpus.
//!
//! ```text
//! ; millstream rules, format 1, for bpf v4, made 2026-11-21 ; checksum fnv1a-64 0123456789abcdef (sub.w
//! (or.w x y) (and.w x y)) => (xor.w x y)   if (int x) (int y)   ; enumerated, proven by z3 in 0.01 s, fires
//! 3
//! ```
//!
//! The checksum is over all lines after it. It tells a damaged file, not a wrong rule: the worth of a rule is
//! its proof, and whoever brings a store of their own has that proven anew (`millstream-rules`).

use std::fmt;

use millstream_text_store::{StoreError, StoreFormat};

use super::parse::parse_rule;
use super::rule::RewriteRule;

/// Stores of rules of terms.
const TERMS: StoreFormat = StoreFormat { title: "; millstream rules, format ", format: 1 };

/// Origin of a rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RuleOrigin {
    /// Its left side was one of an enumeration.
    Enumerated,
    /// Its left side stood in a program.
    Harvested,
}

impl fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleOrigin::Enumerated => "enumerated",
            RuleOrigin::Harvested => "harvested",
        })
    }
}

/// A rule of a store.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredRule {
    /// The rule.
    pub rule: RewriteRule,
    /// Origin of the rule.
    pub origin: RuleOrigin,
    /// Prover: a solver with its version, or `form` for the normal form of terms.
    pub prover: String,
    /// Time of the proof, in seconds.
    pub seconds: f64,
    /// Number of times it was applied on the corpus that was looked at last.
    pub fires: u64,
}

/// A store.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RuleStore {
    /// The instruction set that costs were compared for.
    pub isa: String,
    /// The day on which it was made, as year-month-day.
    pub made: String,
    /// Its rules, in the order in which they are tried.
    pub entries: Vec<StoredRule>,
}

impl RuleStore {
    /// Returns true if a text says that it is such a store.
    pub fn is_store_text(text: &str) -> bool {
        text.starts_with(TERMS.title)
    }

    /// Reads a store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn parse(name: &str, text: &str) -> Result<RuleStore, StoreError> {
        let (title, rest) = TERMS.read_verified(name, text)?;
        RuleStore::read(name, title, rest, 3)
    }

    /// Reads a store whatever its checksum says, to prove it and write it anew.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn parse_unverified(name: &str, text: &str) -> Result<RuleStore, StoreError> {
        let (title, body) = TERMS.read_unverified(name, text)?;
        RuleStore::read(name, title, body, 2)
    }

    fn read(name: &str, title: &str, text: &str, first: usize) -> Result<RuleStore, StoreError> {
        let field = |prefix: &str| {
            let field = title.split(',').find_map(|f| f.trim().strip_prefix(prefix));
            field.unwrap_or_default().trim().to_owned()
        };
        let mut store = RuleStore { isa: field("for "), made: field("made "), entries: Vec::new() };
        for (at, line) in text.lines().enumerate() {
            let (rule, about) = line.split_once(';').unwrap_or((line, ""));
            if !rule.trim().is_empty() {
                let line = first + at;
                let fail = |message| StoreError::Rule { name: name.into(), line, message };
                let rule = parse_rule(rule).map_err(fail)?;
                let rule = RewriteRule { name: format!("{name}:{line}"), learnt: true, ..rule };
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
        TERMS.with_checksum(&format!(", for {}, made {}", self.isa, self.made), &body)
    }

    /// Its rules, in order.
    pub fn rules(&self) -> Vec<RewriteRule> {
        self.entries.iter().map(|e| e.rule.clone()).collect()
    }
}

/// Parses the fields behind a rule; a missing field counts as nothing.
fn entry(rule: RewriteRule, about: &str) -> StoredRule {
    let fields: Vec<&str> = about.split(',').map(str::trim).collect();
    let proof = fields.iter().find_map(|f| f.strip_prefix("proven by ")).unwrap_or_default();
    let (prover, seconds) = proof.rsplit_once(" in ").unwrap_or((proof, ""));
    let seconds = seconds.trim_end_matches('s').trim().parse().unwrap_or(0.0);
    let fires = fields.iter().find_map(|f| f.strip_prefix("fires ")?.parse().ok()).unwrap_or(0);
    let origin = if fields.contains(&"harvested") { RuleOrigin::Harvested } else { RuleOrigin::Enumerated };
    StoredRule { rule, origin, prover: prover.to_owned(), seconds, fires }
}

#[cfg(test)]
mod tests {
    use millstream_text_store::StoreError;

    use super::{RuleOrigin, RuleStore, StoredRule};
    use crate::simplify::parse::parse_rule;

    fn store() -> RuleStore {
        let rule = |line: usize, text: &str| crate::rules::RewriteRule {
            name: format!("s:{line}"),
            learnt: true,
            ..parse_rule(text).unwrap()
        };
        let entry = |line, text, origin, fires| StoredRule {
            rule: rule(line, text),
            origin,
            prover: "z3 5.4".into(),
            seconds: 0.25,
            fires,
        };
        RuleStore {
            isa: "bpf v4".into(),
            made: "2026-11-21".into(),
            entries: vec![
                entry(
                    3,
                    "(sub.w (or.w x y) (and.w x y)) => (xor.w x y)   if (int x) (int y)",
                    RuleOrigin::Enumerated,
                    3,
                ),
                entry(
                    4,
                    "(and.64 (lshr.64 x #a) #b) => (lshr.64 x {a})   if (lt a 64) (zeros x b)",
                    RuleOrigin::Harvested,
                    0,
                ),
            ],
        }
    }

    #[test]
    fn a_store_is_read_as_it_was_written() {
        assert_eq!(RuleStore::parse("s", &store().text()).unwrap(), store());
    }

    #[test]
    fn a_store_that_was_changed_or_cut_is_refused() {
        let text = store().text();
        for damaged in [
            text.replace("xor.w", "and.w"),
            text[..text.len() - 30].to_owned(),
            text.replace("fires 3", "fires 4"),
        ] {
            let error = RuleStore::parse("s", &damaged).unwrap_err();
            assert!(matches!(error, StoreError::Checksum { .. }), "{error}");
        }
        assert_eq!(
            RuleStore::parse_unverified("s", &text.replace("fires 3", "fires 4")).unwrap().entries[0].fires,
            4
        );
    }

    #[test]
    fn what_is_no_store_or_of_another_format_is_refused() {
        let text = store().text();
        let version = RuleStore::parse("s", &text.replace("format 1", "format 2")).unwrap_err();
        assert!(matches!(version, StoreError::Version { .. }), "{version}");
        assert!(matches!(RuleStore::parse("s", "").unwrap_err(), StoreError::Header { .. }));
        assert!(matches!(RuleStore::parse("s", "\u{7f}ELF").unwrap_err(), StoreError::Header { .. }));
    }
}
