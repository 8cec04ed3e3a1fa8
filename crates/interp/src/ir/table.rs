//! Match tables.

use millstream_ir::{FieldDecl, FieldMatch, TableDecl};

/// Index of the first entry that a key matches. The key holds the words of each field, fields in order, words
/// most significant first; bits beyond a field's width are ignored.
pub fn match_table(table: &TableDecl, key: &[u64]) -> Option<usize> {
    let fields = split(table, key);
    table.entries.iter().position(|entry| {
        entry.iter().zip(&table.fields).zip(&fields).all(|((m, decl), words)| field_matches(m, decl, words))
    })
}

/// The words of each field, cut to its width.
fn split(table: &TableDecl, key: &[u64]) -> Vec<Vec<u64>> {
    let mut rest = key;
    let mut fields = Vec::with_capacity(table.fields.len());
    for field in &table.fields {
        let (words, tail) = rest.split_at(field.words().min(rest.len()));
        rest = tail;
        let mut words = words.to_vec();
        if let Some(top) = words.first_mut() {
            *top &= u64::MAX >> (64 * field.words() as u32 - field.bits);
        }
        fields.push(words);
    }
    fields
}

fn field_matches(m: &FieldMatch, decl: &FieldDecl, words: &[u64]) -> bool {
    match m {
        FieldMatch::Exact(value) => words == value,
        // Words compare as numbers do, most significant first.
        FieldMatch::Range(from, to) => from.as_slice() <= words && words <= to.as_slice(),
        FieldMatch::Ternary(value, mask) => {
            words.iter().zip(value).zip(mask).all(|((w, v), m)| (w ^ v) & m == 0)
        }
        FieldMatch::Prefix(value, len) => prefix_matches(value, *len, decl, words),
    }
}

/// The leading `len` bits of the field's width are equal.
fn prefix_matches(value: &[u64], len: u32, decl: &FieldDecl, words: &[u64]) -> bool {
    let mut free = decl.bits.saturating_sub(len);
    for (w, v) in words.iter().zip(value).rev() {
        let here = free.min(64);
        free -= here;
        let mask = u64::MAX.checked_shl(here).unwrap_or(0);
        if (w ^ v) & mask != 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use millstream_ir::MatchKind;

    use super::*;

    fn table(bits: u32, kind: MatchKind, entries: Vec<FieldMatch>) -> TableDecl {
        TableDecl {
            name: "t".into(),
            fields: vec![FieldDecl { name: "f".into(), bits, kind }],
            entries: entries.into_iter().map(|m| vec![m]).collect(),
            results: Vec::new(),
        }
    }

    #[test]
    fn prefixes_end_within_any_word() {
        let entries = [128, 68, 64, 60, 0].map(|len| FieldMatch::Prefix(vec![0x2001, 0xf << 60], len));
        let t = table(128, MatchKind::Prefix, entries.to_vec());
        for (key, expect) in [
            ([0x2001, 0xf << 60], 0),
            ([0x2001, 0xf << 60 | 1], 1),
            ([0x2001, 0x7 << 60], 2),
            ([0x200e, 0], 3),
            ([0x3001, 0], 4),
        ] {
            assert_eq!(match_table(&t, &key), Some(expect), "{key:x?}");
        }
    }

    #[test]
    fn narrow_fields_ignore_the_bits_above() {
        let t = table(9, MatchKind::Prefix, vec![FieldMatch::Prefix(vec![0b1_0000_0000], 1)]);
        assert_eq!(match_table(&t, &[0b11_1111_1111]), Some(0));
        assert_eq!(match_table(&t, &[0b10_1111_1111]), None);
    }

    #[test]
    fn ranges_span_words() {
        let t = table(100, MatchKind::Range, vec![FieldMatch::Range(vec![1, 5], vec![2, 3])]);
        for (key, expect) in [([1, 4], false), ([1, 5], true), ([2, 3], true), ([2, 4], false)] {
            assert_eq!(match_table(&t, &key).is_some(), expect, "{key:?}");
        }
    }

    #[test]
    fn the_first_of_several_entries_counts() {
        let any = FieldMatch::Ternary(vec![0], vec![0]);
        let some = FieldMatch::Ternary(vec![0x10], vec![0xf0]);
        let t = table(8, MatchKind::Ternary, vec![some, any]);
        assert_eq!(match_table(&t, &[0x1f]), Some(0));
        assert_eq!(match_table(&t, &[0x2f]), Some(1));
    }
}
