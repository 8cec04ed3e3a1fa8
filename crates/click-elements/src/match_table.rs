//! Many rules as match tables.
//!
//! Rules are expanded into alternatives, each of which demands values of words of the packet. These become
//! entries of a table; the first one that matches decides the packet's fate. The back end chooses the search
//! method. Rules with too many alternatives stay control flow, and divide the others into tables before and
//! behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use millstream_ir::{Block, FieldDecl, FieldMatch, MatchKind, TableDecl, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::build::ElementBuilder;
use millstream_click::packet::PacketValues;

/// Fewer rules are control flow.
const FEW: usize = 17;
/// Alternatives of a rule, at most.
const MOST_ALTERNATIVES: usize = 256;
/// Entries of a table, at most.
const MOST_ENTRIES: usize = 1 << 14;

/// Demand on the value of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WordConstraint {
    /// A value under a mask, without bits outside of it.
    Masked(u64, u64),
    /// Two bounds, inclusive.
    Between(u64, u64),
}

/// A word of the key.
pub(super) trait TableWord: Copy + Ord {
    fn bits(self) -> u32;
    fn name(self) -> String;
}

/// Condition of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum MatchFormula<W> {
    Constant(bool),
    Demand(W, WordConstraint),
    All(Vec<MatchFormula<W>>),
    Any(Vec<MatchFormula<W>>),
}

/// Demands of one entry, for each word that it names, in order: a value under a mask, and bounds.
type MatchEntry<W> = BTreeMap<W, ConstraintPair>;
/// Of a word: value and mask, bounds.
type ConstraintPair = (Option<(u64, u64)>, Option<(u64, u64)>);

/// Rules one behind the other.
pub(super) enum RuleSegment<W> {
    /// To be tested one by one.
    Linear(Range<usize>),
    /// In a table.
    Table(MatchRules<W>),
}

/// Rules of a table: entries and their results.
pub(super) struct MatchRules<W> {
    entries: Vec<(MatchEntry<W>, u32)>,
}

/// The values that compare with one so, as numbers under `all`, which is a row of ones.
pub(super) fn compared(cond: Cond, value: u64, all: u64) -> Option<Vec<WordConstraint>> {
    let from = |from: u64| (from <= all).then_some(WordConstraint::Between(from, all));
    let to = |to: Option<u64>| to.map(|to| WordConstraint::Between(0, to.min(all)));
    Some(match cond {
        Cond::Eq => equal(value, all),
        Cond::Ne => different(value, all, all),
        Cond::Lt => to(value.checked_sub(1)).into_iter().collect(),
        Cond::Le => to(Some(value)).into_iter().collect(),
        Cond::Gt => value.checked_add(1).and_then(from).into_iter().collect(),
        Cond::Ge => from(value).into_iter().collect(),
        _ => return None,
    })
}

/// The values that are this one under a mask.
pub(super) fn equal(value: u64, mask: u64) -> Vec<WordConstraint> {
    if value & !mask == 0 { vec![WordConstraint::Masked(value, mask)] } else { Vec::new() }
}

/// The values that are another one under a mask, of a word that has the bits `all`.
pub(super) fn different(value: u64, mask: u64, all: u64) -> Vec<WordConstraint> {
    if value & !mask != 0 {
        return vec![WordConstraint::Between(0, all)];
    }
    let free = all & !mask;
    if free & (free + 1) == 0 {
        let below = value.checked_sub(1).map(|last| WordConstraint::Between(0, last));
        let above = Some((value | free) + 1)
            .filter(|first| *first <= all)
            .map(|first| WordConstraint::Between(first, all));
        return below.into_iter().chain(above).collect();
    }
    let bit = |bit: u32| (mask >> bit & 1 == 1).then(|| WordConstraint::Masked(!value & 1 << bit, 1 << bit));
    (0..64).filter_map(bit).collect()
}

impl WordConstraint {
    /// Returns true if zero is among the values.
    pub(super) fn takes_zero(self) -> bool {
        matches!(self, WordConstraint::Masked(0, _) | WordConstraint::Between(0, _))
    }
}

impl<W: TableWord> MatchFormula<W> {
    /// One of several demands of a word.
    pub(super) fn one_of(word: W, demands: Vec<WordConstraint>) -> MatchFormula<W> {
        MatchFormula::Any(demands.into_iter().map(|demand| MatchFormula::Demand(word, demand)).collect())
    }

    /// Its alternatives; `None` if there are too many.
    fn alternatives(&self) -> Option<Vec<MatchEntry<W>>> {
        match self {
            MatchFormula::Constant(true) => Some(vec![MatchEntry::new()]),
            MatchFormula::Constant(false) => Some(Vec::new()),
            MatchFormula::Demand(word, demand) => {
                let (masked, between) = match *demand {
                    WordConstraint::Masked(value, mask) => (Some((value, mask)), None),
                    WordConstraint::Between(from, to) => (None, Some((from, to))),
                };
                Some(vec![MatchEntry::from([(*word, (masked, between))])])
            }
            MatchFormula::Any(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    all.extend(part.alternatives()?);
                    if all.len() > MOST_ALTERNATIVES {
                        return None;
                    }
                }
                Some(all)
            }
            MatchFormula::All(parts) => {
                let mut all = vec![MatchEntry::new()];
                for part in parts {
                    let more = part.alternatives()?;
                    if all.len() * more.len() > MOST_ALTERNATIVES {
                        return None;
                    }
                    all = all.iter().flat_map(|a| more.iter().filter_map(|b| both(a, b))).collect();
                }
                Some(all)
            }
        }
    }
}

/// The conjunction of two entries; `None` if no packet matches both.
fn both<W: TableWord>(a: &MatchEntry<W>, b: &MatchEntry<W>) -> Option<MatchEntry<W>> {
    let mut all = a.clone();
    for (word, (masked, between)) in b {
        let known = all.entry(*word).or_default();
        known.0 = match (known.0, *masked) {
            (Some((v, m)), Some((w, n))) if (v ^ w) & m & n == 0 => Some((v | w, m | n)),
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        known.1 = match (known.1, *between) {
            (Some((from, to)), Some((least, most))) => {
                Some((from.max(least), to.min(most))).filter(|(from, to)| from <= to)
            }
            (one, other) => one.or(other),
        };
        if between.is_some() && known.1.is_none() {
            return None;
        }
    }
    Some(all)
}

/// Divides rules into those of tables and others. Each rule has a condition, `None` if it cannot be a
/// formula, and a result.
pub(super) fn parts<W: TableWord>(rules: &[(Option<MatchFormula<W>>, u32)]) -> Vec<RuleSegment<W>> {
    let mut parts = Vec::new();
    let (mut start, mut entries) = (0, Vec::new());
    let mut close = |range: Range<usize>, entries: &mut Vec<(MatchEntry<W>, u32)>| {
        let entries = std::mem::take(entries);
        if range.len() >= FEW {
            parts.push(RuleSegment::Table(MatchRules { entries }));
        } else if !range.is_empty() {
            parts.push(RuleSegment::Linear(range));
        }
    };
    for (at, (formula, result)) in rules.iter().enumerate() {
        let found = formula.as_ref().and_then(MatchFormula::alternatives);
        if found.as_ref().is_none_or(|found| entries.len() + found.len() > MOST_ENTRIES) {
            close(start..at, &mut entries);
            start = at;
        }
        match found {
            Some(found) => entries.extend(found.into_iter().map(|entry| (entry, *result))),
            None => {
                close(at..at + 1, &mut entries);
                start = at + 1;
            }
        }
    }
    close(start..rules.len(), &mut entries);
    parts
}

/// An interval that is all values with a prefix, as value and mask.
fn prefix(from: u64, to: u64, all: u64) -> Option<(u64, u64)> {
    let free = from ^ to;
    (free & free.wrapping_add(1) == 0 && from & free == 0).then_some((from, all & !free))
}

fn all_bits(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

impl<W: TableWord> MatchRules<W> {
    /// The words that something is demanded of.
    pub(super) fn words(&self) -> BTreeSet<W> {
        self.entries.iter().flat_map(|(entry, _)| entry.keys().copied()).collect()
    }

    /// The table, and the words of its key.
    fn table(&self, name: String) -> (TableDecl, Vec<W>) {
        let demands = |word: W| self.entries.iter().filter_map(move |(entry, _)| entry.get(&word));
        let mut columns: Vec<(W, bool)> = Vec::new();
        for word in self.words() {
            let all = all_bits(word.bits());
            let ranged =
                demands(word).any(|(_, between)| between.is_some_and(|(a, b)| prefix(a, b, all).is_none()));
            let as_range = |(_, mask): (u64, u64)| {
                let free = all & !mask;
                ranged && free & free.wrapping_add(1) == 0
            };
            let masked = demands(word).any(|(masked, _)| masked.is_some_and(|m| !as_range(m)));
            if masked || !ranged {
                columns.push((word, false));
            }
            if ranged {
                columns.push((word, true));
            }
        }
        let field = |&(word, ranged): &(W, bool)| FieldDecl {
            name: word.name(),
            bits: word.bits(),
            kind: if ranged { MatchKind::Range } else { MatchKind::Ternary },
        };
        let ranges: BTreeSet<W> =
            columns.iter().filter(|(_, ranged)| *ranged).map(|(word, _)| *word).collect();
        let mut table = TableDecl {
            name,
            fields: columns.iter().map(field).collect(),
            entries: Vec::new(),
            results: Vec::new(),
        };
        for (entry, result) in &self.entries {
            let row = columns.iter().map(|&(word, ranged)| {
                let all = all_bits(word.bits());
                demanded(entry.get(&word).copied().unwrap_or_default(), all, ranges.contains(&word), ranged)
            });
            // One that asks for the impossible is left out.
            if let Some(row) = row.collect::<Option<Vec<FieldMatch>>>() {
                table.entries.push(row);
                table.results.push(*result);
            }
        }
        (table, columns.into_iter().map(|(word, _)| word).collect())
    }

    /// Goes on with the result of the first rule that a packet matches, and behind all that if it matches
    /// none. `words` are the values of those of the key, and `act` ends the block.
    pub(super) fn choose<A: Copy>(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        words: &BTreeMap<W, Value>,
        actions: &[A],
        act: impl Fn(&mut ElementBuilder<'_, '_>, A),
    ) {
        let name = code.table_name();
        let (table, key) = self.table(name);
        let given: BTreeSet<u32> = table.results.iter().copied().collect();
        let key: Vec<Value> = key.iter().map(|word| words[word]).collect();
        let result = code.match_table(table, &key);
        for number in given {
            let (here, next) = (code.block(), code.block());
            let wanted = code.int(i64::from(number));
            code.branch(Cond::Eq, result, wanted, here, next);
            code.switch_to_block(here);
            act(code, actions[number as usize]);
            code.switch_to_block(next);
        }
    }
}

/// Demand of an entry in a column, for the range column or the other one of a word, which may have both;
/// `None` if no value matches.
fn demanded(
    (masked, between): ConstraintPair,
    all: u64,
    has_range: bool,
    ranged: bool,
) -> Option<FieldMatch> {
    let interval = masked.and_then(|(value, mask)| {
        let free = all & !mask;
        (has_range && free & free.wrapping_add(1) == 0).then_some((value, value | free))
    });
    if ranged {
        let (from, to) = between.unwrap_or((0, all));
        let (least, most) = interval.unwrap_or((0, all));
        let (from, to) = (from.max(least), to.min(most));
        return (from <= to).then(|| FieldMatch::Range(vec![from], vec![to]));
    }
    let own = masked.filter(|_| interval.is_none());
    let other = between.filter(|_| !has_range).and_then(|(from, to)| prefix(from, to, all));
    let (value, mask) = match (own, other) {
        (Some((v, m)), Some((w, n))) if (v ^ w) & m & n == 0 => (v | w, m | n),
        (Some(_), Some(_)) => return None,
        (one, other) => one.or(other).unwrap_or((0, 0)),
    };
    Some(FieldMatch::Ternary(vec![value], vec![mask]))
}

/// Bytes from which words are read that may lie behind a packet's end.
#[derive(Clone, Copy)]
pub(super) struct ReadWindow {
    pub(super) base: Value,
    pub(super) packet: PacketValues,
    /// A word that is not there as a whole is zero; otherwise only the missing bytes are.
    pub(super) whole: bool,
}

impl ReadWindow {
    /// Reads words, by offset and bytes, then a flag for each of some numbers of bytes: 1 if there are as
    /// many. `nothing` may give the block to go to if no byte exists.
    pub(super) fn read(
        self,
        code: &mut ElementBuilder<'_, '_>,
        words: &[(u32, u32)],
        needs: &[u32],
        nothing: impl FnOnce(&mut ElementBuilder<'_, '_>) -> Option<Block>,
    ) -> Vec<Value> {
        let (all, few, on) = (code.block(), code.block(), code.block());
        let params = (0..words.len() + needs.len()).map(|_| code.number_param(on)).collect();
        let (zero, one) = (code.int(0), code.int(1));
        let none = nothing(code);
        let longest = words.iter().map(|(offset, bytes)| offset + bytes).chain(needs.iter().copied()).max();
        let beyond = code.at(self.base, i64::from(longest.unwrap_or(0)));
        code.branch(Cond::Le, beyond, self.packet.end, all, few);
        code.switch_to_block(all);
        let mut values: Vec<Value> =
            words.iter().map(|&(offset, bytes)| code.number(bytes, self.base, offset as i32)).collect();
        values.resize(words.len() + needs.len(), one);
        code.jump(on, &values);
        code.switch_to_block(few);
        let mut values = Vec::new();
        for &(offset, bytes) in words {
            values.push(if self.whole {
                self.guarded(code, offset, bytes)
            } else {
                let mut word = zero;
                for at in 0..bytes {
                    let byte = self.guarded(code, offset + at, 1);
                    let before = code.with(AluOp::Lsh, word, 8);
                    word = code.alu(AluOp::Or, before, byte);
                }
                word
            });
        }
        for &need in needs {
            let beyond = code.at(self.base, i64::from(need));
            let there = code.compare(Cond::Le, beyond, self.packet.end);
            values.push(code.select(there, one, zero));
        }
        code.jump(on, &values);
        if let Some(none) = none {
            code.switch_to_block(none);
            code.jump(on, &vec![zero; words.len() + needs.len()]);
        }
        code.switch_to_block(on);
        params
    }

    /// Bytes if they are there, else zero.
    fn guarded(self, code: &mut ElementBuilder<'_, '_>, offset: u32, bytes: u32) -> Value {
        let beyond = code.at(self.base, i64::from(offset + bytes));
        let zero = code.int(0);
        code.when(Cond::Le, beyond, self.packet.end, &[zero], |code| {
            vec![code.number(bytes, self.base, offset as i32)]
        })[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TableWord for u8 {
        fn bits(self) -> u32 {
            8
        }

        fn name(self) -> String {
            format!("byte {self}")
        }
    }

    fn holds(demand: WordConstraint, value: u64) -> bool {
        match demand {
            WordConstraint::Masked(v, mask) => value & mask == v,
            WordConstraint::Between(from, to) => from <= value && value <= to,
        }
    }

    #[test]
    fn demands_are_what_they_stand_for() {
        for value in [0, 1, 6, 7, 8, 0x55, 0xfe, 0xff, 0x100] {
            for number in 0..=255 {
                let any = |all: &[WordConstraint]| all.iter().any(|demand| holds(*demand, number));
                let conditions = [
                    (Cond::Eq, number == value),
                    (Cond::Ne, number != value),
                    (Cond::Lt, number < value),
                    (Cond::Le, number <= value),
                    (Cond::Gt, number > value),
                    (Cond::Ge, number >= value),
                ];
                for (cond, expected) in conditions {
                    let found = compared(cond, value, 0xff).expect("a form");
                    assert_eq!(any(&found), expected, "{number} {cond:?} {value}: {found:?}");
                }
                for mask in [0, 1, 7, 0x55, 0xf0, 0xff] {
                    assert_eq!(any(&equal(value, mask)), number & mask == value, "{number}&{mask} {value}");
                    assert_eq!(
                        any(&different(value, mask, 0xff)),
                        number & mask != value,
                        "{number}&{mask} {value}"
                    );
                }
            }
        }
    }

    #[test]
    fn rules_without_a_form_divide_the_others() {
        let demand = || (Some(MatchFormula::Demand(0u8, WordConstraint::Masked(1, 3))), 0);
        let mut rules: Vec<_> = (0..40).map(|_| demand()).collect();
        rules[18].0 = None;
        rules[35].0 = None;
        let shown = |part: &RuleSegment<u8>| match part {
            RuleSegment::Linear(range) => format!("{range:?}"),
            RuleSegment::Table(rules) => format!("{} entries", rules.entries.len()),
        };
        let all: Vec<String> = parts(&rules).iter().map(shown).collect();
        assert_eq!(all, ["18 entries", "18..19", "19..35", "35..36", "36..40"]);
    }

    #[test]
    fn a_word_is_compared_in_one_way_where_that_is_possible() {
        let port = |demand| MatchFormula::Demand(0u8, demand);
        let rules = [
            port(WordConstraint::Masked(80, 0xff)),
            port(WordConstraint::Between(100, 200)),
            MatchFormula::All(vec![
                port(WordConstraint::Masked(0x10, 0xf0)),
                port(WordConstraint::Between(0x18, 0x40)),
            ]),
            MatchFormula::All(vec![
                port(WordConstraint::Masked(0x10, 0xf0)),
                port(WordConstraint::Between(0x28, 0x40)),
            ]),
        ];
        let entries =
            rules.iter().flat_map(|rule| rule.alternatives().expect("few")).map(|entry| (entry, 3)).collect();
        let (table, key) = MatchRules { entries }.table("t".into());
        assert_eq!(key, [0]);
        assert_eq!(table.fields[0].kind, MatchKind::Range);
        let range = |from, to| vec![FieldMatch::Range(vec![from], vec![to])];
        assert_eq!(table.entries, [range(80, 80), range(100, 200), range(0x18, 0x1f)]);
        assert_eq!(table.results, [3, 3, 3]);
    }
}
