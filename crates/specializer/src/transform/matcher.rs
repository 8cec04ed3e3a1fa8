//! Meaning of the entries of a plan at one lookup: the words of its key that are compared, and with which
//! constants.

use millstream_ir::{Block, KeyLayout, KeyPiece, MapDecl, Size};
use millstream_isa::MapType;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::decision_tree::{DecisionCase, DecisionInterval, KeyWord};
use super::eval::{AbstractValue, read};
use super::lookup_plan::LookupEntry;

/// Keys with one value.
pub(super) struct KeyGroup<'p> {
    pub(super) value: Option<&'p [u8]>,
    pub(super) entries: Vec<&'p LookupEntry>,
    pub(super) heat: u64,
}

/// The pieces of the address in a key of a longest-prefix map of 4 bytes, where the lookup is for all its
/// bits.
pub(super) fn full_length(
    decl: &MapDecl,
    layout: &KeyLayout,
    args: &[AbstractValue],
) -> Option<SmallVec<[(KeyPiece, AbstractValue); 4]>> {
    let all_bits = matches!(args.first(), Some(AbstractValue::Const(32))) && address_pieces(layout).is_some();
    let values = args.iter().all(|a| matches!(a, AbstractValue::Val(_) | AbstractValue::Const(_)));
    let pieces = || layout.iter().copied().zip(args.iter().copied()).skip(1).collect();
    (decl.kind == MapType::LPM_TRIE.0 && all_bits && values).then(pieces)
}

/// The pieces behind the length in a key of 8 bytes, if the length is one of its own and nothing is missing.
pub(crate) fn address_pieces(layout: &KeyLayout) -> Option<&[KeyPiece]> {
    let (length, address) = layout.split_first()?;
    let whole = address.iter().try_fold(4, |at, p| (u32::from(p.offset) == at).then(|| at + p.size.bytes()));
    (length.offset == 0 && length.size == Size::W && whole == Some(8)).then_some(address)
}

/// Runs of indices with one target each, and the gaps between them.
pub(super) fn indices(rows: &[DecisionCase], default: Block) -> Vec<DecisionInterval> {
    let mut all: Vec<DecisionInterval> = Vec::new();
    let mut push = |start: u64, heat: u64, target: Block| match all.last_mut() {
        Some(last) if last.target == target => last.heat += heat,
        _ => all.push(DecisionInterval { start, heat, target }),
    };
    let mut next = 0;
    for row in rows {
        if row.key[0] > next {
            push(next, 0, default);
        }
        push(row.key[0], row.heat, row.target);
        next = row.key[0] + 1;
    }
    push(next, 0, default);
    all
}

/// Ways to tell keys apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MatchMethod {
    /// Key by key.
    Exact,
    /// By runs of consecutive keys: an array's.
    Indices,
    /// By the intervals that longest prefixes make.
    Prefixes,
}

/// Comparisons of a lookup's key: method, words and entries.
pub(super) struct KeyMatcher<'p> {
    pub(super) how: MatchMethod,
    /// Pieces of the key that are not constant here.
    pub(super) pieces: SmallVec<[KeyPiece; 4]>,
    pub(super) words: SmallVec<[KeyWord; 4]>,
    /// Entries that the constant pieces do not rule out.
    pub(super) entries: Vec<&'p LookupEntry>,
}

impl<'p> KeyMatcher<'p> {
    pub(super) fn new(
        decl: &MapDecl,
        layout: &KeyLayout,
        args: &[AbstractValue],
        whole: bool,
        entries: &'p [LookupEntry],
        most: usize,
    ) -> Option<Self> {
        if layout.iter().map(|p| p.size.bytes()).sum::<u32>() != decl.key_size {
            return None;
        }
        let mut matcher = KeyMatcher {
            how: MatchMethod::Exact,
            pieces: SmallVec::new(),
            words: SmallVec::new(),
            entries: Vec::new(),
        };
        let mut constants: SmallVec<[(KeyPiece, u64); 4]> = SmallVec::new();
        for (piece, abs) in layout.iter().zip(args) {
            match abs {
                AbstractValue::Const(c) => {
                    constants.push((*piece, *c as u64 & (u64::MAX >> (64 - piece.size.bits()))))
                }
                AbstractValue::Val(v) => {
                    matcher.pieces.push(*piece);
                    matcher.words.push((*v, piece.size));
                }
                _ => return None,
            }
        }
        if whole && decl.kind == MapType::LPM_TRIE.0 {
            return matcher.prefixes(decl.key_size, &constants, entries, most);
        }
        let possible = |e: &&LookupEntry| {
            let part = |p: &KeyPiece| read(&e.key, u32::from(p.offset), p.size, false).map(|v| v as u64);
            constants.iter().all(|(p, c)| part(p) == Some(*c))
        };
        matcher.entries = entries.iter().filter(possible).collect();
        if matcher.entries.len() > most {
            if whole {
                return None;
            }
            matcher.entries.sort_by_key(|e| std::cmp::Reverse(e.heat));
            matcher.entries.truncate(most);
        }
        if whole && matcher.words.len() == 1 && matcher.words[0].1 == Size::W && decl.kind == MapType::ARRAY.0
        {
            matcher.how = MatchMethod::Indices;
        }
        Some(matcher)
    }

    /// A longest-prefix map with a key of one word, looked up with all its bits.
    fn prefixes(
        mut self,
        key_size: u32,
        constants: &[(KeyPiece, u64)],
        entries: &'p [LookupEntry],
        most: usize,
    ) -> Option<Self> {
        let data_bits = u64::from(key_size.checked_sub(4)?) * 8;
        let [(length, bits)] = constants else { return None };
        let full = length.offset == 0 && length.size == Size::W && *bits == data_bits;
        let one_word = self.words.len() == 1 && matches!(self.words[0].1, Size::W | Size::Dw);
        if !full || !one_word || 2 * entries.len() > most {
            return None;
        }
        self.how = MatchMethod::Prefixes;
        self.entries = entries.iter().collect();
        Some(self)
    }
}

/// Entries by value, the hottest group first.
pub(super) fn groups<'p>(entries: &[&'p LookupEntry]) -> Vec<KeyGroup<'p>> {
    let mut groups: Vec<KeyGroup<'p>> = Vec::new();
    let mut index: FxHashMap<Option<&'p [u8]>, usize> = FxHashMap::default();
    for &entry in entries {
        let value = entry.value.as_deref();
        let at = *index.entry(value).or_insert_with(|| {
            groups.push(KeyGroup { value, entries: Vec::new(), heat: 0 });
            groups.len() - 1
        });
        groups[at].entries.push(entry);
        groups[at].heat = groups[at].heat.saturating_add(entry.heat);
    }
    groups.sort_by_key(|g| std::cmp::Reverse(g.heat));
    groups
}
