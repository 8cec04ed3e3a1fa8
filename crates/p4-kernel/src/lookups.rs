//! Look-ups of maps as helper calls: the key is written to memory, without gaps.

use millstream_ir::{AluOp, Block, Function, KeyLayout, Map, Module, Op, Size, Value};
use rustc_hash::FxHashMap;

use crate::tuple_search::{TupleMaps, search};
use crate::writer::CodeWriter;

/// Replaces the look-ups of a function. Tables of `tuples` are searched mask by mask.
pub(crate) fn expand_lookups(module: &Module, func: &mut Function, tuples: &FxHashMap<Map, TupleMaps>) {
    for block in func.layout.clone() {
        let mut block = block;
        let mut from = 0;
        while let Some(&inst) = func.blocks[block].insts.get(from) {
            from += 1;
            let Op::MapLookup { map, ref key } = func.insts[inst].op else { continue };
            let key = key.clone();
            (block, from) = (expand(module, func, (block, from - 1), (map, &key), tuples), 0);
        }
    }
}

/// Replaces a look-up, and gives the block with what follows.
fn expand(
    module: &Module,
    func: &mut Function,
    (block, at): (Block, usize),
    (map, key): (Map, &KeyLayout),
    tuples: &FxHashMap<Map, TupleMaps>,
) -> Block {
    let inst = func.blocks[block].insts[at];
    let (args, line) = (func.insts[inst].args.clone(), func.insts[inst].loc);
    let behind = func.split_block_at(block, at);
    let position = func.layout.iter().position(|b| *b == block).map_or(func.layout.len(), |at| at + 1);
    let before = func.layout.len();
    let mut writer = CodeWriter::new(func, block);
    writer.line = line;
    let size = module.maps[map].key_size;
    let found = match tuples.get(&map) {
        Some(tuple) => {
            search(&mut writer, *tuple, size, |writer, at| write_key(writer, at, size, (key, &args)))
        }
        None => {
            let at = writer.stack(size.next_multiple_of(8));
            write_key(&mut writer, at, size, (key, &args));
            writer.lookup(map, at)
        }
    };
    writer.jump(behind, &[found]);
    let added = func.layout.split_off(before);
    func.layout.splice(position..position, added.into_iter().chain([behind]));
    behind
}

/// Writes a key of `size` bytes: zeros, where the pieces leave gaps, and the pieces.
fn write_key(writer: &mut CodeWriter<'_>, at: Value, size: u32, (key, values): (&KeyLayout, &[Value])) {
    let covered: u32 = key.iter().map(|piece| piece.size.bytes()).sum();
    if covered < size {
        let zero = writer.constant(0);
        for word in 0..size.div_ceil(8) {
            writer.store(at, 8 * word as i32, Size::Dw, zero);
        }
    }
    for (piece, value) in key.iter().zip(values) {
        store_aligned(writer, at, u32::from(piece.offset), (piece.size.bytes(), *value));
    }
}

/// Stores the lowest bytes of a value in aligned parts: the verifier wants that on the stack.
fn store_aligned(writer: &mut CodeWriter<'_>, at: Value, offset: u32, (bytes, value): (u32, Value)) {
    let mut done = 0;
    while done < bytes {
        let place = offset + done;
        let fits = |size: &Size| place.is_multiple_of(size.bytes()) && size.bytes() <= bytes - done;
        let size = [Size::Dw, Size::W, Size::H].into_iter().find(fits).unwrap_or(Size::B);
        let part = match done {
            0 => value,
            _ => writer.alu_with(AluOp::Rsh, value, u64::from(8 * done)),
        };
        writer.store(at, place as i32, size, part);
        done += size.bytes();
    }
}
