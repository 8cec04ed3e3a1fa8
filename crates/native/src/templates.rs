//! Template of each table, and the reason for it.

use serde::{Deserialize, Serialize};

use crate::classifier::Classifier;
use crate::runtime::index::Template;
use crate::runtime::lpm::Trie;
use crate::runtime::lpm::fitting::Prefixes;

/// The template of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chosen {
    /// The table's name.
    pub table: String,
    /// The template's name for pinning.
    pub template: String,
    /// Reason for the choice.
    pub why: String,
}

/// Pinned templates and known properties of tables, by name.
#[derive(Clone, Copy)]
pub(crate) struct Known<'k> {
    /// Pinned templates of hash tables and tries.
    pub(crate) tables: &'k [(String, Template)],
    pub(crate) tries: &'k [(String, Trie)],
    /// Prefixes that tries will hold.
    pub(crate) prefixes: &'k [(String, Prefixes)],
    /// Numbers of hash tables that most keys are missing in.
    pub(crate) absent: &'k [usize],
}

/// Entry of a list for a name.
pub(crate) fn said<'s, T>(all: &'s [(String, T)], name: &str) -> Option<&'s T> {
    all.iter().find(|(known, _)| *known == name).map(|(_, said)| said)
}

/// Reason for a pinned template.
pub(crate) const PINNED: &str = "pinned";

impl Known<'_> {
    /// The template of a hash table, by its number, name, entries when full, and bytes of a key.
    pub(crate) fn table(&self, at: usize, name: &str, (entries, key_size): (u32, u32)) -> (Template, String) {
        match said(self.tables, name) {
            Some(template) => (*template, PINNED.to_owned()),
            None if self.absent.contains(&at) => {
                let template = match Template::fits(key_size) {
                    true => Template::CuckooKeys,
                    false => Template::Cuckoo,
                };
                (template, format!("{entries} entries, and few of the keys that are looked up"))
            }
            None => Template::fitting(entries, key_size),
        }
    }

    /// The template of a trie, by its name, and entries when full.
    pub(crate) fn trie(&self, name: &str, entries: u32) -> (Trie, String) {
        match (said(self.tries, name), said(self.prefixes, name)) {
            (Some(trie), _) => (*trie, PINNED.to_owned()),
            (None, Some(prefixes)) => Trie::fitting(prefixes, entries),
            (None, None) if entries <= Trie::AT_ONCE => {
                (Trie::List, format!("up to {entries} prefixes, compared at once"))
            }
            (None, None) => (Trie::default(), format!("up to {entries} prefixes, not known yet")),
        }
    }
}

impl Template {
    /// All templates.
    pub const ALL: [Template; 9] = [
        Template::Open,
        Template::RobinHood,
        Template::Cuckoo,
        Template::OpenKeys,
        Template::RobinHoodKeys,
        Template::CuckooKeys,
        Template::OpenSlots,
        Template::RobinHoodSlots,
        Template::CuckooSlots,
    ];

    /// Its name for pinning.
    pub const fn name(self) -> &'static str {
        match self {
            Template::Open => "open",
            Template::RobinHood => "robin-hood",
            Template::Cuckoo => "cuckoo",
            Template::OpenKeys => "open-keys",
            Template::RobinHoodKeys => "robin-hood-keys",
            Template::CuckooKeys => "cuckoo-keys",
            Template::OpenSlots => "open-slots",
            Template::RobinHoodSlots => "robin-hood-slots",
            Template::CuckooSlots => "cuckoo-slots",
        }
    }
}

impl Trie {
    /// Its name for pinning.
    pub const fn name(self) -> &'static str {
        match self {
            Trie::Multibit => "multibit",
            Trie::Packed => "packed",
            Trie::Lengths => "lengths",
            Trie::List => "list",
        }
    }
}

impl Classifier {
    /// Its name for pinning.
    pub const fn name(self) -> &'static str {
        match self {
            Classifier::Linear => "linear",
            Classifier::Tree => "tree",
            Classifier::Cuts => "cuts",
            Classifier::Tuples => "tuples",
        }
    }
}
