//! Keys that lie on the stack, in the pieces that they were stored in.
//!
//! Hash and comparison take a key in words of 64 bits. A load that spans several stores still in flight has
//! to wait until these, and all stores before them, have left the processor's store buffer: in the middle of
//! a packet, while little of the next one is started. LLVM promotes such stores to values if a stack object
//! is used for the key alone. It leaves in memory an object that a called function may see, or that shares
//! its slot with something else that is visible. So a key is copied from there in the pieces in which it was
//! stored: each load depends on one store, and words are assembled in registers.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Function, Op, Slot, Value, Width};

/// Bytes of a word that keys are hashed and compared by.
const WORD: i64 = 8;

/// Offsets in the stack objects of a function at which stores begin and end.
#[derive(Debug)]
pub(super) struct StoreBoundaries(SecondaryMap<Slot, BTreeSet<i64>>);

impl StoreBoundaries {
    pub(super) fn new(func: &Function) -> StoreBoundaries {
        let mut seams = SecondaryMap::<Slot, BTreeSet<i64>>::new();
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            if let Op::Store { size, offset, .. } = data.op
                && let Some((slot, at)) = place(func, data.args[0])
            {
                let start = at + i64::from(offset);
                seams[slot].extend([start, start + i64::from(size.bytes())]);
            }
        }
        StoreBoundaries(seams)
    }

    /// The pieces of `len` bytes at an address: offset and size (1, 2, 4 or 8) of each, in order, none across
    /// two words; `None` if the address is not a known place of the stack.
    pub(super) fn pieces(&self, func: &Function, address: Value, len: u32) -> Option<Vec<(i64, i64)>> {
        let (slot, base) = place(func, address)?;
        let end = i64::from(len);
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < end {
            let word = (at / WORD + 1) * WORD;
            let next = self.0[slot].range(base + at + 1..).next().map_or(end, |seam| seam - base);
            let most = next.min(word).min(end) - at;
            let size = [8, 4, 2, 1].into_iter().find(|size| *size <= most).unwrap_or(1);
            pieces.push((at, size));
            at += size;
        }
        Some(pieces)
    }
}

/// Stack object and offset of an address.
fn place(func: &Function, mut address: Value) -> Option<(Slot, i64)> {
    let mut beyond = 0i64;
    loop {
        let data = &func.insts[func.def_inst(address)?];
        match data.op {
            Op::StackAddr { slot, offset } => return Some((slot, beyond + i64::from(offset))),
            Op::Alu { op: AluOp::Add, width: Width::W64 } => {
                let (a, b) = (data.args[0], data.args[1]);
                let (base, more) = match (func.as_const(a), func.as_const(b)) {
                    (_, Some(more)) => (a, more),
                    (Some(more), _) => (b, more),
                    _ => return None,
                };
                (address, beyond) = (base, beyond.checked_add(more)?);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_ir::{Linkage, MemFlags, Prov, Size, Type};

    #[test]
    fn keys_are_read_in_the_pieces_that_they_were_stored_in() {
        let mut func = Function::new("p", Linkage::Program { prog_type: 6 });
        let entry = func.add_block();
        let slot = func.slots.push(millstream_ir::SlotData { size: 32, align: 8, fixed: None });
        let mut at = func.at_end(entry);
        let base = at.value(Op::StackAddr { slot, offset: 4 }, [], Type::Ptr(Prov::Stack));
        let four = at.iconst(4);
        let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
        let key = at.value(add, [base, four], Type::Ptr(Prov::Stack));
        for (size, offset) in [(Size::W, 0), (Size::H, 4), (Size::B, 6), (Size::B, 7), (Size::Dw, 8)] {
            at.effect(Op::Store { size, offset, flags: MemFlags::default() }, [key, four], []);
        }
        at.effect(Op::Return {}, [four], []);
        let seams = StoreBoundaries::new(&func);
        let pieces = |address, len| seams.pieces(&func, address, len);
        assert_eq!(pieces(key, 20), Some(vec![(0, 4), (4, 2), (6, 1), (7, 1), (8, 8), (16, 4)]));
        assert_eq!(pieces(key, 7), Some(vec![(0, 4), (4, 2), (6, 1)]));
        assert_eq!(pieces(base, 12), Some(vec![(0, 4), (4, 4), (8, 2), (10, 1), (11, 1)]));
        assert_eq!(pieces(four, 8), None, "it is no address");
    }
}
