//! Template of each table, and the reason for it.

use serde::{Deserialize, Serialize};

use millstream_native_runtime::index::HashTemplate;
use millstream_native_runtime::lpm::LpmTemplate;
use millstream_native_runtime::lpm::template_choice::PrefixStats;

/// The template of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableTemplate {
    /// The table's name.
    pub table: String,
    /// The template's name for pinning.
    pub template: String,
    /// Reason for the choice.
    pub why: String,
}

/// Pinned templates and known properties of tables, by name.
#[derive(Clone, Copy)]
pub(crate) struct TableHints<'k> {
    /// Pinned templates of hash tables and tries.
    pub(crate) tables: &'k [(String, HashTemplate)],
    pub(crate) tries: &'k [(String, LpmTemplate)],
    /// Prefixes that tries will hold.
    pub(crate) prefixes: &'k [(String, PrefixStats)],
    /// Numbers of hash tables that most keys are missing in.
    pub(crate) absent: &'k [usize],
}

/// Entry of a list for a name.
pub(crate) fn find_by_name<'s, T>(all: &'s [(String, T)], name: &str) -> Option<&'s T> {
    all.iter().find(|(known, _)| *known == name).map(|(_, said)| said)
}

/// Reason for a pinned template.
pub(crate) const PINNED: &str = "pinned";

impl TableHints<'_> {
    /// The template of a hash table, by its number, name, entries when full, and bytes of a key.
    pub(crate) fn table(
        &self,
        at: usize,
        name: &str,
        (entries, key_size): (u32, u32),
    ) -> (HashTemplate, String) {
        match find_by_name(self.tables, name) {
            Some(template) => (*template, PINNED.to_owned()),
            None if self.absent.contains(&at) => {
                let template = match HashTemplate::fits(key_size) {
                    true => HashTemplate::CuckooKeys,
                    false => HashTemplate::Cuckoo,
                };
                (template, format!("{entries} entries, and few of the keys that are looked up"))
            }
            None => HashTemplate::fitting(entries, key_size),
        }
    }

    /// The template of a trie, by its name, and entries when full.
    pub(crate) fn trie(&self, name: &str, entries: u32) -> (LpmTemplate, String) {
        match (find_by_name(self.tries, name), find_by_name(self.prefixes, name)) {
            (Some(trie), _) => (*trie, PINNED.to_owned()),
            (None, Some(prefixes)) => LpmTemplate::fitting(prefixes, entries),
            (None, None) if entries <= LpmTemplate::AT_ONCE => {
                (LpmTemplate::List, format!("up to {entries} prefixes, compared at once"))
            }
            (None, None) => (LpmTemplate::default(), format!("up to {entries} prefixes, not known yet")),
        }
    }
}
