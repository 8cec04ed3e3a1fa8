//! Tuple-space search: entries with masks and priorities in hash maps (Srinivasan, Suri and Varghese, "Packet
//! Classification using Tuple Space Search", SIGCOMM 1999).
//!
//! A table has an array of the masks that its entries use, the one with the greatest priority first, and a
//! hash map from the number of a mask and the masked key to the entry. The search goes through the masks, and
//! stops at the first one whose entries cannot win any more. The control plane keeps both ([`crate::executor`]).

use millstream_ir::{AluOp, Cond, Map, Prov, Size, Type, Value};

use crate::writer::CodeWriter;

/// Most masks of a table.
pub(crate) const MOST_MASKS: u32 = 64;
/// Offset in an element of the array of the greatest rank of the mask's entries (64 bits); 0 behind the last
/// mask. A rank is the priority, and below it the age: the greatest one wins.
pub(crate) const MASK_PRIORITY: u32 = 0;
/// Offset in an element of the array of the mask's number (32 bits), which its entries have in their keys.
pub(crate) const MASK_NUMBER: u32 = 8;
/// Offset in an element of the array of the mask, padded to words.
pub(crate) const MASK_BYTES: u32 = 16;
/// Bytes of an entry's key in front of the masked key: the number of the mask (64 bits).
pub(crate) const ENTRY_PREFIX: u32 = 8;

/// Maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TupleMaps {
    /// Array of masks.
    pub(crate) masks: Map,
    /// Hash map of entries. A value is that of the table's entry, and its rank (64 bits).
    pub(crate) entries: Map,
    /// Offset of the rank in a value.
    pub(crate) priority: u32,
}

/// Emits a search, and gives the address of the best entry's value, or null.
pub(crate) fn search(
    writer: &mut CodeWriter<'_>,
    maps: TupleMaps,
    key_size: u32,
    write_key: impl FnOnce(&mut CodeWriter<'_>, Value),
) -> Value {
    let words = key_size.div_ceil(8);
    let key = writer.stack(8 * words);
    if !key_size.is_multiple_of(8) {
        // The bytes behind the key are compared, too.
        let padding = writer.constant(0);
        writer.store(key, 8 * (words as i32 - 1), Size::Dw, padding);
    }
    write_key(writer, key);
    let masked = writer.stack(ENTRY_PREFIX + 8 * words);
    let best_type = Type::Ptr(Prov::MapValueOrNull(maps.entries));
    let (head, body, behind) = (writer.new_block(), writer.new_block(), writer.new_block());
    let number = writer.func.add_param(head, Type::I64);
    let best = writer.func.add_param(head, best_type);
    let best_priority = writer.func.add_param(head, Type::I64);
    let result = writer.func.add_param(behind, best_type);
    let zero = writer.constant(0);
    writer.jump(head, &[zero, zero, zero]);
    writer.enter(head);
    let most = writer.constant(u64::from(MOST_MASKS));
    let done = writer.new_block();
    writer.branch(Cond::Lt, (number, most), body, done);
    writer.enter(done);
    writer.jump(behind, &[best]);
    writer.enter(body);
    let mask = writer.lookup_word(maps.masks, number);
    writer.require(Cond::Ne, mask, 0, done);
    let greatest = writer.load(mask, MASK_PRIORITY as i32, Size::Dw);
    let better = writer.new_block();
    // Also at the end: the priority there is 0.
    writer.branch(Cond::Gt, (greatest, best_priority), better, done);
    writer.enter(better);
    let id = writer.load(mask, MASK_NUMBER as i32, Size::W);
    writer.store(masked, 0, Size::Dw, id);
    for word in 0..words {
        let at = 8 * word as i32;
        let (part, bits) =
            (writer.load(key, at, Size::Dw), writer.load(mask, MASK_BYTES as i32 + at, Size::Dw));
        let part = writer.alu(AluOp::And, part, bits);
        writer.store(masked, ENTRY_PREFIX as i32 + at, Size::Dw, part);
    }
    let entry = writer.lookup(maps.entries, masked);
    let next = writer.alu_with(AluOp::Add, number, 1);
    let (hit, miss, wins) = (writer.new_block(), writer.new_block(), writer.new_block());
    let null = writer.constant(0);
    writer.branch(Cond::Ne, (entry, null), hit, miss);
    writer.enter(miss);
    writer.jump(head, &[next, best, best_priority]);
    writer.enter(hit);
    let priority = writer.load(entry, maps.priority as i32, Size::Dw);
    writer.branch(Cond::Gt, (priority, best_priority), wins, miss);
    writer.enter(wins);
    writer.jump(head, &[next, entry, priority]);
    writer.enter(behind);
    result
}
