//! Longest prefixes as intervals.

use std::collections::BTreeSet;

use millstream_ir::Block;
use rustc_hash::FxHashMap;

use super::decision_tree::DecisionInterval;
use super::lookup_plan::LookupEntry;

/// The intervals of a word in host order in which one prefix is the longest to match; `default` where none
/// does. Keys are those of the map: a length in bits, and 4 or 8 bytes in network order.
pub(super) fn intervals<'p>(
    entries: impl Iterator<Item = (&'p LookupEntry, Block)>,
    default: Block,
) -> Vec<DecisionInterval> {
    let mut by_length: Vec<FxHashMap<u64, (Block, u64)>> = Vec::new();
    let mut starts = BTreeSet::from([0]);
    let mut width = 32;
    for (entry, target) in entries {
        let Some((length, address, bits)) = prefix(&entry.key) else { continue };
        width = bits;
        let mask = mask(length, bits);
        let first = address & mask;
        if by_length.len() <= length as usize {
            by_length.resize(length as usize + 1, FxHashMap::default());
        }
        by_length[length as usize].insert(first, (target, entry.heat));
        starts.insert(first);
        let last = first | (!mask & all(bits));
        starts.extend(last.checked_add(1).filter(|next| *next <= all(bits)));
    }
    let mut found: Vec<DecisionInterval> = Vec::with_capacity(starts.len());
    for start in starts {
        let longest = by_length
            .iter()
            .enumerate()
            .rev()
            .find_map(|(length, prefixes)| prefixes.get(&(start & mask(length as u32, width))).copied());
        let (target, heat) = longest.unwrap_or((default, 0));
        match found.last_mut() {
            Some(last) if last.target == target => last.heat = last.heat.saturating_add(heat),
            _ => found.push(DecisionInterval { start, heat, target }),
        }
    }
    found
}

fn prefix(key: &[u8]) -> Option<(u32, u64, u32)> {
    let (length, data) = key.split_at_checked(4)?;
    let length = u32::from_ne_bytes(length.try_into().ok()?);
    let bits = 8 * data.len() as u32;
    let address = data.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    (matches!(bits, 32 | 64) && length <= bits).then_some((length, address, bits))
}

/// All bits of a word.
const fn all(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

fn mask(length: u32, bits: u32) -> u64 {
    all(bits).checked_shl(bits - length).unwrap_or(0) & all(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(length: u32, address: [u8; 4]) -> LookupEntry {
        let mut key = length.to_ne_bytes().to_vec();
        key.extend(address);
        LookupEntry { key, value: Some(vec![]), heat: 1 }
    }

    #[test]
    fn every_address_meets_its_longest_prefix() {
        let block = Block::from_u32;
        let table = [
            (entry(0, [0; 4]), block(1)),
            (entry(8, [10, 0, 0, 0]), block(2)),
            (entry(32, [10, 0, 0, 255]), block(3)),
            (entry(1, [128, 0, 0, 0]), block(4)),
            (entry(32, [255; 4]), block(5)),
        ];
        let found = intervals(table.iter().map(|(e, b)| (e, *b)), block(0));
        let at = |address: u32| {
            let n = found.partition_point(|i| i.start <= u64::from(address)) - 1;
            found[n].target
        };
        let expect = [
            (0, 1),
            (0x09ff_ffff, 1),
            (0x0a00_0000, 2),
            (0x0a00_00ff, 3),
            (0x0a00_0100, 2),
            (0x0b00_0000, 1),
            (0x8000_0000, 4),
            (0xffff_fffe, 4),
            (0xffff_ffff, 5),
        ];
        for (address, target) in expect {
            assert_eq!(at(address), block(target), "{address:#x}");
        }
    }

    #[test]
    fn without_a_default_route_the_gaps_lead_to_the_default() {
        let block = Block::from_u32;
        let table = [(entry(8, [10, 0, 0, 0]), block(2))];
        let found = intervals(table.iter().map(|(e, b)| (e, *b)), block(0));
        let targets: Vec<Block> = found.iter().map(|i| i.target).collect();
        assert_eq!(targets, [block(0), block(2), block(0)]);
    }
}
