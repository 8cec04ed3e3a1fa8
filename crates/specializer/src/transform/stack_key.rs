//! Keys that lie on the stack and could not be made values: compilers let several keys share their memory, or
//! hand the memory to functions too.
//!
//! Such a key is read back right before the lookup, in the pieces in which it was written. What was certainly
//! written to a piece last is known as a value, and need not be read.

use millstream_ir::{
    AluOp, Block, Cfg, DomTree, Function, Inst, KeyLayout, KeyPiece, Op, Prov, Size, Slot, Type, Value, Width,
};
use millstream_isa::helpers::{Helper, HelperEffects};
use rustc_hash::FxHashSet;

/// Blocks before the lookup in which its key is looked for: on every way to it, and between two of these.
const BLOCKS: usize = 8;
const BETWEEN: usize = 32;

/// A piece of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoredPiece {
    pub(super) piece: KeyPiece,
    /// The value written there, truncated to the piece; `None` if it must be read.
    pub(super) value: Option<Value>,
}

/// The layout of such pieces.
pub(super) fn layout(pieces: &[StoredPiece]) -> KeyLayout {
    pieces.iter().map(|s| s.piece).collect()
}

/// The key of this size that the instruction finds on the stack behind its second argument, in ascending
/// pieces.
pub(super) fn on_stack(
    func: &Function,
    (cfg, dom): (&Cfg, &DomTree),
    block: Block,
    inst: Inst,
    size: u32,
) -> Option<Vec<StoredPiece>> {
    let (slot, start) = stack_address(func, *func.insts[inst].args.get(1)?)?;
    let mut scan =
        StackKeyScan { slot, start, covered: vec![false; size as usize], found: Vec::new(), certain: true };
    let (mut block, mut end) = (block, func.blocks[block].insts.iter().position(|&i| i == inst)?);
    for _ in 0..BLOCKS {
        for &before in func.blocks[block].insts[..end].iter().rev() {
            scan.see(func, before);
        }
        let before = match (&cfg.preds[block][..], dom.idom(block)) {
            (&[only], _) => only,
            (_, Some(before)) if scan.is_left_alone(func, cfg, before, block) => before,
            _ => break,
        };
        (block, end) = (before, func.blocks[before].insts.len());
    }
    scan.rest(func.slots[slot].align);
    scan.found.sort_unstable_by_key(|s| s.piece.offset);
    Some(scan.found)
}

struct StackKeyScan {
    slot: Slot,
    /// Offset of the key in its object.
    start: i64,
    covered: Vec<bool>,
    found: Vec<StoredPiece>,
    /// True if nothing so far, going backwards, may have written parts of the key that are not found yet.
    certain: bool,
}

impl StackKeyScan {
    fn see(&mut self, func: &Function, inst: Inst) {
        let data = &func.insts[inst];
        let Op::Store { size, offset, .. } = data.op else {
            self.certain &= !may_write_stack(&data.op);
            return;
        };
        match stack_address(func, data.args[0]) {
            Some((slot, at)) if slot == self.slot => self.stored(at + i64::from(offset), size, data.args[1]),
            Some(_) => {}
            None => {
                let elsewhere = [Prov::Packet, Prov::PacketMeta, Prov::Ctx];
                let known = match func.types[data.args[0]] {
                    Type::Ptr(Prov::MapValue(_)) => true,
                    Type::Ptr(prov) => elsewhere.contains(&prov),
                    _ => false,
                };
                self.certain &= known;
            }
        }
    }

    /// Returns true if nothing on any path from the end of one block to the start of another may write the
    /// key.
    fn is_left_alone(&self, func: &Function, cfg: &Cfg, from: Block, to: Block) -> bool {
        let (mut seen, mut work) = (FxHashSet::default(), cfg.preds[to].clone());
        while let Some(block) = work.pop() {
            if block == from || !seen.insert(block) {
                continue;
            }
            let writes = |inst: &Inst| match func.insts[*inst].op {
                Op::Store { .. } => {
                    let mut one = StackKeyScan {
                        found: Vec::new(),
                        covered: self.covered.clone(),
                        certain: true,
                        ..*self
                    };
                    one.covered.fill(false);
                    one.see(func, *inst);
                    !one.found.is_empty() || !one.certain
                }
                ref op => may_write_stack(op),
            };
            if seen.len() > BETWEEN || func.blocks[block].insts.iter().any(writes) {
                return false;
            }
            work.extend(&cfg.preds[block]);
        }
        true
    }

    fn stored(&mut self, at: i64, size: Size, value: Value) {
        let bytes = i64::from(size.bytes());
        let Ok(offset) = u16::try_from(at - self.start) else {
            // A piece that reaches into the key from below is read.
            self.certain &= at + bytes <= self.start;
            return;
        };
        let range = usize::from(offset)..usize::from(offset) + size.bytes() as usize;
        match self.covered.get_mut(range) {
            Some(covered) if !covered.contains(&true) => {
                covered.fill(true);
                let value = self.certain.then_some(value);
                self.found.push(StoredPiece { piece: KeyPiece { offset, size }, value });
            }
            // It reaches beyond the key, or a piece of it was written again: the rest of it is read.
            _ => self.certain &= usize::from(offset) >= self.covered.len(),
        }
    }

    /// Reads the bytes that no store was seen to write, in aligned pieces.
    fn rest(&mut self, align: u32) {
        let mut at = 0;
        while at < self.covered.len() {
            let fits = |size: &Size| {
                let bytes = size.bytes() as usize;
                let free = self.covered.get(at..at + bytes).is_some_and(|c| !c.contains(&true));
                free && size.bytes() <= align && (self.start + at as i64) % i64::from(size.bytes()) == 0
            };
            let size = Size::ALL.into_iter().rev().find(fits);
            if let Some(size) = size {
                self.found.push(StoredPiece { piece: KeyPiece { offset: at as u16, size }, value: None });
                self.covered[at..at + size.bytes() as usize].fill(true);
            }
            at += 1;
        }
    }
}

/// Returns true if an operation other than a store may write the stack.
fn may_write_stack(op: &Op) -> bool {
    match op {
        Op::MapLookup { .. } | Op::MapUpdate { .. } | Op::MapDelete { .. } => false,
        Op::Helper { id } => {
            let quiet = |h: &Helper| !h.writes_memory() && !h.effects.intersects(HelperEffects::CALLBACK);
            !Helper::get(*id).is_some_and(quiet)
        }
        op => op.effects().writes,
    }
}

/// The stack object that a pointer points into, and the offset.
pub(super) fn stack_address(func: &Function, mut pointer: Value) -> Option<(Slot, i64)> {
    let mut by = 0i64;
    loop {
        let inst = func.def_inst(pointer)?;
        let data = &func.insts[inst];
        match data.op {
            Op::StackAddr { slot, offset } => return Some((slot, by + i64::from(offset))),
            Op::Alu { op: AluOp::Add, width: Width::W64 } => {
                by = by.checked_add(func.as_const(data.args[1])?)?;
                pointer = data.args[0];
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_ir::text::parse_function;

    /// The pieces of a key of 8 bytes at the start of the object, as offset, bytes, and whether it is known.
    fn pieces(before: &str) -> Vec<(u16, u32, bool)> {
        let text = format!(
            "fn \"f\" static {{
  ss0 size=16 align=8
  ss1 size=8 align=8
block0(v0: any):
  v1: ptr(stack) = stack_addr.ss0.0
  v2: ptr(stack) = stack_addr.ss1.0
  v3: i64 = const.4
  v4: ptr(stack) = alu.add.w64 v1, v3
  {}
  v8: ptr(map0) = map_addr.map0
  v9: ptr(value?:map0) = helper.1 v8, v1
  return v9
}}
",
            before.replace("; ", "\n  ")
        );
        let func = parse_function(&text).unwrap_or_else(|e| panic!("{e:?}: {text}"));
        let (block, inst) =
            func.insts_in_order().find(|(_, i)| matches!(func.insts[*i].op, Op::Helper { id: 1 })).unwrap();
        let cfg = Cfg::new(&func);
        let dom = DomTree::new(&func, &cfg);
        let found = on_stack(&func, (&cfg, &dom), block, inst, 8).unwrap();
        found.iter().map(|s| (s.piece.offset, s.piece.size.bytes(), s.value.is_some())).collect()
    }

    #[test]
    fn pieces_are_those_that_were_written_last() {
        assert_eq!(pieces("store.dw.0.plain v1, v0"), [(0, 8, true)]);
        assert_eq!(
            pieces(
                "store.dw.0.plain v1, v3; store.w.0.plain v1, v0; store.h.4.plain v1, v0; store.h.2.plain v4, v3"
            ),
            [(0, 4, true), (4, 2, true), (6, 2, true)]
        );
        assert_eq!(pieces("store.w.0.plain v4, v0"), [(0, 4, false), (4, 4, true)]);
        // Other objects, and what lies behind the key.
        assert_eq!(
            pieces("store.dw.0.plain v1, v0; store.dw.8.plain v1, v0; store.dw.0.plain v2, v0"),
            [(0, 8, true)]
        );
    }

    /// After paths meet, the key is the one from before they parted, if none of them has written it.
    #[test]
    fn a_key_may_have_been_written_before_ways_parted() {
        let parted = |on_one: &str| {
            let before = "store.dw.0.plain v1, v0; br.eq.w64 v0, v3, block1, block2; block1:; {}; \
                jump block3; block2:; jump block3; block3:";
            pieces(&before.replace("{}", on_one).replace("; block", "\nblock"))
        };
        assert_eq!(parted("store.w.8.plain v1, v3"), [(0, 8, true)]);
        assert_eq!(parted("store.w.4.plain v1, v3"), [(0, 8, false)]);
        assert_eq!(parted("v7: any = helper.26 v0, v3, v2, v3"), [(0, 8, false)]);
    }

    #[test]
    fn what_may_have_been_written_unseen_is_read() {
        // A piece of the older one was written again; the rest of it is read, and what is older still is not
        // believed.
        assert_eq!(
            pieces(
                "store.w.4.plain v1, v0; store.w.0.plain v1, v0; store.dw.0.plain v1, v0; store.w.0.plain v1, v3"
            ),
            [(0, 4, true), (4, 4, false)]
        );
        // Reaches beyond the key, from within.
        assert_eq!(
            pieces("store.w.4.plain v1, v0; store.dw.4.plain v1, v0; store.w.0.plain v1, v3"),
            [(0, 4, true), (4, 4, false)]
        );
        // Through a pointer of which nothing is known, and by a call that writes memory.
        assert_eq!(pieces("store.dw.0.plain v1, v3; store.w.0.plain v0, v3"), [(0, 8, false)]);
        assert_eq!(pieces("store.dw.0.plain v1, v3; v7: any = helper.26 v0, v3, v2, v3"), [(0, 8, false)]);
        assert_eq!(pieces("store.dw.0.plain v1, v3; v7: any = helper.5"), [(0, 8, true)]);
    }
}
