//! Table entries as rules over words.
//!
//! A key is a row of words, one a [`TableMatch`](millstream_ir::Op::TableMatch) argument. A rule demands
//! something of each word on its own; an entry whose ranges are wider than a word becomes several rules with
//! one result.

use millstream_ir::{FieldDecl, FieldMatch, TableDecl};

/// More rules than this are not worth code: programs are limited to a million instructions.
const MAX_RULES: usize = 1 << 14;

/// Test that a rule applies to a word. Bits above the word's width are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableTest {
    /// Nothing.
    Any,
    /// Between two bounds, inclusive.
    Interval(u64, u64),
    /// These bits of the value, under a mask that is no prefix.
    Masked(u64, u64),
}

/// Facts about a word: bounds, and some of its bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WordFacts {
    pub lo: u64,
    pub hi: u64,
    pub bits: u64,
    pub values: u64,
    /// All bits that the word has.
    pub width: u64,
}

impl WordFacts {
    /// Nothing but the width.
    pub(super) fn of_width(width: u64) -> WordFacts {
        WordFacts { lo: 0, hi: width, bits: 0, values: 0, width }
    }
}

impl TableTest {
    /// Equality under a mask; an interval where that is one.
    pub(super) fn masked(value: u64, mask: u64, width: u64) -> TableTest {
        let (value, mask) = (value & mask, mask & width);
        let free = width & !mask;
        if mask == 0 {
            TableTest::Any
        } else if free & free.wrapping_add(1) == 0 {
            TableTest::Interval(value, value | free)
        } else {
            TableTest::Masked(value, mask)
        }
    }

    /// The test that remains, given these facts; `None` if it fails.
    pub(super) fn given(self, known: &WordFacts) -> Option<TableTest> {
        match self {
            TableTest::Any => Some(TableTest::Any),
            TableTest::Interval(lo, hi) => {
                let conflict = lo == hi && (lo ^ known.values) & known.bits != 0;
                let (lo, hi) = (lo.max(known.lo), hi.min(known.hi));
                if lo > hi || conflict {
                    None
                } else if (lo, hi) == (known.lo, known.hi) {
                    Some(TableTest::Any)
                } else {
                    Some(TableTest::Interval(lo, hi))
                }
            }
            TableTest::Masked(value, mask) => {
                let conflict = (value ^ known.values) & mask & known.bits != 0;
                (!conflict).then(|| TableTest::masked(value, mask & !known.bits, known.width))
            }
        }
    }
}

/// A demand on each word, and the entry that it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableRule {
    /// One a word.
    pub tests: Vec<TableTest>,
    /// Result of the match.
    pub result: i64,
}

/// All bits of each word of the key, as masks.
pub fn table_widths(table: &TableDecl) -> Vec<u64> {
    table.fields.iter().flat_map(field_widths).collect()
}

fn field_widths(field: &FieldDecl) -> Vec<u64> {
    let mut widths = vec![u64::MAX; field.words()];
    if let Some(top) = widths.first_mut() {
        *top >>= 64 * field.words() as u32 - field.bits;
    }
    widths
}

/// The table's entries as rules, highest priority first; `None` if there are too many.
pub fn table_rules(table: &TableDecl) -> Option<Vec<TableRule>> {
    let mut rules = Vec::new();
    for (at, entry) in table.entries.iter().enumerate() {
        let mut rows = vec![Vec::new()];
        for (m, field) in entry.iter().zip(&table.fields) {
            let alternatives = field_rows(m, field);
            if rules.len() + rows.len() * alternatives.len() > MAX_RULES {
                return None;
            }
            rows = rows
                .iter()
                .flat_map(|row| alternatives.iter().map(move |more| [row.as_slice(), more].concat()))
                .collect();
        }
        let result = i64::from(table.result(at));
        rules.extend(rows.into_iter().map(|tests| TableRule { tests, result }));
    }
    Some(rules)
}

/// Rows of tests for a field; its words must meet one of them.
fn field_rows(m: &FieldMatch, field: &FieldDecl) -> Vec<Vec<TableTest>> {
    let widths = field_widths(field);
    let masked = |value: &[u64], mask: &[u64]| {
        vec![
            widths
                .iter()
                .zip(value.iter().zip(mask))
                .map(|(&w, (&v, &m))| TableTest::masked(v, m, w))
                .collect(),
        ]
    };
    match m {
        FieldMatch::Exact(value) => masked(value, &widths),
        FieldMatch::Ternary(value, mask) => masked(value, mask),
        FieldMatch::Prefix(value, bits) => masked(value, &prefix_mask(field, *bits)),
        FieldMatch::Range(from, to) => between(from, to, &widths),
    }
}

fn prefix_mask(field: &FieldDecl, bits: u32) -> Vec<u64> {
    let mut free = field.bits.saturating_sub(bits);
    let mut mask = vec![u64::MAX; field.words()];
    for word in mask.iter_mut().rev() {
        let here = free.min(64);
        free -= here;
        *word = u64::MAX.checked_shl(here).unwrap_or(0);
    }
    mask
}

fn any(words: usize) -> Vec<TableTest> {
    vec![TableTest::Any; words]
}

fn prepend(test: TableTest, rows: Vec<Vec<TableTest>>) -> impl Iterator<Item = Vec<TableTest>> {
    rows.into_iter().map(move |row| [&[test], row.as_slice()].concat())
}

/// `from <= words <= to`, words most significant first.
fn between(from: &[u64], to: &[u64], widths: &[u64]) -> Vec<Vec<TableTest>> {
    let (Some((&lo, from)), Some((&hi, to)), Some((&width, rest))) =
        (from.split_first(), to.split_first(), widths.split_first())
    else {
        return vec![Vec::new()];
    };
    if lo == hi {
        return prepend(TableTest::Interval(lo, lo), between(from, to, rest)).collect();
    }
    let whole_lo = from.iter().all(|&w| w == 0);
    let whole_hi = to.iter().zip(rest).all(|(w, width)| w == width);
    let mut rows = Vec::new();
    // `lo < hi`, so neither bound of what lies between them overflows.
    let (first, last) = (lo + u64::from(!whole_lo), hi - u64::from(!whole_hi));
    if first <= last {
        let middle =
            if (first, last) == (0, width) { TableTest::Any } else { TableTest::Interval(first, last) };
        rows.extend(prepend(middle, vec![any(rest.len())]));
    }
    if !whole_lo {
        rows.extend(prepend(TableTest::Interval(lo, lo), between(from, rest, rest)));
    }
    if !whole_hi {
        rows.extend(prepend(TableTest::Interval(hi, hi), between(&vec![0; rest.len()], to, rest)));
    }
    rows
}
