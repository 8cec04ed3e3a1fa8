//! Bounds that the verifier must see.
//!
//! The lowering knows that an index is inside of a stack, or that a cursor is inside of the packet, from
//! facts that the verifier has forgotten: they went through memory, or concern a sum. So:
//!
//! - a loop that copies a number of bytes that is not known gets a mask on that number ([`bound_loops`]);
//! - an offset into the packet's memory that is not known gets a mask ([`bound_offsets`]), and several of them get
//!   one mask for their sum: the memory has room for one mask behind what is used;
//! - a comparison of a loop's counter has the counter on the right ([`compare_counters`]);
//! - an offset into the packet gets a mask, and a load that no check covers gets one ([`check_packet`]).
//!
//! The masks keep all values that can occur.

use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, DomTree, Function, Inst, Op, Prov, Type, Value, ValueDef, Width,
};
use rustc_hash::FxHashMap;

/// Mask of offsets into a packet: the verifier wants less than 65,536 with the size of the access.
const PACKET_MASK: i64 = 0x7fff;

/// Result of a function of the pipeline that met the end of the packet where the lowering excludes it.
pub(crate) const OUTSIDE: i64 = 1;

/// Masks the bounds of loops that count bytes, and the lengths that are given to functions. `most` bytes are
/// the largest object.
pub(crate) fn bound_loops(func: &mut Function, most: u32) {
    let mask = i64::from(most.next_power_of_two().saturating_mul(2) - 1);
    for block in func.layout.clone() {
        let Some(term) = func.terminator(block) else { continue };
        let data = &func.insts[term];
        let is_loop = matches!(data.op, Op::Branch { cond: Cond::Lt, .. })
            && matches!(func.defs[data.args[0]], ValueDef::Param(head, _) if head == block);
        if is_loop && func.as_const(data.args[1]).is_none() {
            mask_argument(func, (block, term), 1, mask);
        }
        for inst in func.blocks[block].insts.clone() {
            let data = &func.insts[inst];
            let is_call = matches!(data.op, Op::Call { .. }) && data.args.len() > 1;
            if is_call && func.as_const(data.args[1]).is_none() {
                mask_argument(func, (block, inst), 1, mask);
            }
        }
    }
}

/// Masks an argument of an instruction; returns the masked value.
fn mask_argument(
    func: &mut Function,
    (block, inst): (Block, Inst),
    argument: usize,
    mask: i64,
) -> Option<Value> {
    let at = func.blocks[block].insts.iter().position(|i| *i == inst)?;
    let (value, line) = (func.insts[inst].args[argument], func.insts[inst].loc);
    let mut cursor = func.at(block, at);
    cursor.loc = line;
    let mask = cursor.iconst(mask);
    let masked = cursor.value(Op::Alu { op: AluOp::And, width: Width::W64 }, [value, mask], Type::I64);
    func.insts[inst].args[argument] = masked;
    Some(masked)
}

/// Puts the counter of a loop on the right of its comparison with a bound that is not known. The counter is a constant
/// for the verifier, and Linux 6.1 decides comparisons by a constant on that side only.
pub(crate) fn compare_counters(func: &mut Function) {
    for block in func.layout.clone() {
        let Some(term) = func.terminator(block) else { continue };
        let data = &func.insts[term];
        let Op::Branch { cond, width } = data.op else { continue };
        if is_counter(func, data.args[0]) && func.as_const(data.args[1]).is_none() {
            let data = &mut func.insts[term];
            data.args.swap(0, 1);
            data.op = Op::Branch { cond: cond.swapped(), width };
        }
    }
}

/// Tells if a value is a block's parameter, or a constant away from one.
fn is_counter(func: &Function, value: Value) -> bool {
    match func.defs[value] {
        ValueDef::Param(block, _) => block != func.entry(),
        ValueDef::Inst(_) => {
            let (base, _) = decomposed(func, value);
            base != value && matches!(func.defs[base], ValueDef::Param(block, _) if block != func.entry())
        }
    }
}

/// Memory that a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PointerRoot {
    State,
    Packet,
    Other,
}

/// Roots of the values of a function that are pointers.
struct PointerRoots {
    state: Value,
    data: Option<Value>,
    known: FxHashMap<Value, Option<PointerRoot>>,
}

impl PointerRoots {
    fn new(func: &Function) -> Option<PointerRoots> {
        let params = &func.blocks[func.entry()].params;
        Some(PointerRoots {
            state: *params.first()?,
            data: params.get(1).copied(),
            known: FxHashMap::default(),
        })
    }

    fn root(&mut self, func: &Function, value: Value) -> Option<PointerRoot> {
        if value == self.state {
            return Some(PointerRoot::State);
        }
        if Some(value) == self.data {
            return Some(PointerRoot::Packet);
        }
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        // A pointer that leads round a loop is that of the other way into the loop.
        self.known.insert(value, None);
        let root = match func.defs[value] {
            ValueDef::Param(block, index) => self.parameter_root(func, block, usize::from(index)),
            ValueDef::Inst(inst) => match &func.insts[inst].op {
                Op::Alu { op: AluOp::Add, .. } => {
                    let args = func.insts[inst].args.clone();
                    args.iter().find_map(|arg| self.root(func, *arg))
                }
                _ => match func.types[value] {
                    Type::Ptr(Prov::PacketEnd) => None,
                    Type::Ptr(_) => Some(PointerRoot::Other),
                    _ => None,
                },
            },
        };
        self.known.insert(value, root);
        root
    }

    fn parameter_root(&mut self, func: &Function, block: Block, index: usize) -> Option<PointerRoot> {
        for from in func.layout.clone() {
            let targets = func.targets(from).iter().filter(|target| target.block == block);
            for argument in targets.filter_map(|target| target.args.get(index)) {
                if let Some(root) = self.root(func, *argument) {
                    return Some(root);
                }
            }
        }
        None
    }
}

/// Parts of an address in the packet's memory.
#[derive(Default)]
struct MemoryAddress {
    /// Offsets that are not known, without masks.
    offsets: Vec<Value>,
    /// Bytes of the known ones.
    bytes: i64,
}

impl MemoryAddress {
    /// Parts of a sum that begins at the memory; `masks` has the values without their masks. `None` if the address
    /// goes through a block's parameter.
    fn of(
        func: &Function,
        roots: &mut PointerRoots,
        masks: &FxHashMap<Value, Value>,
        mut value: Value,
    ) -> Option<MemoryAddress> {
        let mut parts = MemoryAddress::default();
        while value != roots.state {
            let data = &func.insts[func.def_inst(value)?];
            let pointer =
                data.args.iter().position(|arg| roots.root(func, *arg) == Some(PointerRoot::State))?;
            let offset = *data.args.get(1 - pointer)?;
            match func.as_const(offset) {
                Some(bytes) => parts.bytes = parts.bytes.wrapping_add(bytes),
                None => parts.offsets.push(masks.get(&offset).copied().unwrap_or(offset)),
            }
            value = data.args[pointer];
        }
        Some(parts)
    }

    /// Makes a sum of the memory, the known bytes, and all offsets under one mask.
    fn join(
        self,
        func: &mut Function,
        (block, inst): (Block, Inst),
        (state, offset): (Value, usize),
        mask: i64,
    ) {
        let Some(at) = func.blocks[block].insts.iter().position(|i| *i == inst) else { return };
        let (ty, line) = (func.types[state], func.insts[inst].loc);
        let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
        let mut sum = func.insts[inst].args[offset];
        let mut cursor = func.at(block, at);
        cursor.loc = line;
        for part in self.offsets {
            sum = cursor.value(add.clone(), [sum, part], Type::I64);
        }
        let mask = cursor.iconst(mask);
        let masked = cursor.value(Op::Alu { op: AluOp::And, width: Width::W64 }, [sum, mask], Type::I64);
        let bytes = cursor.iconst(self.bytes);
        let base = cursor.value(add, [state, bytes], ty);
        (func.insts[inst].args[offset], func.insts[inst].args[1 - offset]) = (masked, base);
    }
}

/// Masks the offsets into the packet's memory and into the packet that are not known.
pub(crate) fn bound_offsets(func: &mut Function, memory_mask: u32) {
    let Some(mut roots) = PointerRoots::new(func) else { return };
    let mut masks = FxHashMap::default();
    for block in func.layout.clone() {
        for inst in func.blocks[block].insts.clone() {
            let Op::Alu { op: AluOp::Add, .. } = func.insts[inst].op else { continue };
            let Some(root) = func.result(inst).and_then(|result| roots.root(func, result)) else { continue };
            let args = func.insts[inst].args.clone();
            let offset = args.iter().position(|arg| roots.root(func, *arg).is_none());
            let Some(offset) = offset else { continue };
            if func.as_const(args[offset]).is_some() {
                continue;
            }
            match root {
                PointerRoot::State => {
                    let mask = i64::from(memory_mask);
                    match MemoryAddress::of(func, &mut roots, &masks, args[1 - offset]) {
                        Some(parts) if !parts.offsets.is_empty() => {
                            parts.join(func, (block, inst), (roots.state, offset), mask);
                        }
                        _ => {
                            let masked = mask_argument(func, (block, inst), offset, mask);
                            masks.extend(masked.map(|masked| (masked, args[offset])));
                        }
                    }
                }
                PointerRoot::Packet => {
                    mask_argument(func, (block, inst), offset, PACKET_MASK);
                }
                PointerRoot::Other => {}
            }
        }
    }
}

/// A pointer as another one and a constant.
fn decomposed(func: &Function, value: Value) -> (Value, i64) {
    let (mut base, mut offset) = (value, 0i64);
    while let Some(inst) = func.def_inst(base) {
        let data = &func.insts[inst];
        let Op::Alu { op: AluOp::Add, width: Width::W64 } = data.op else { break };
        match (func.as_const(data.args[0]), func.as_const(data.args[1])) {
            (None, Some(bytes)) => (base, offset) = (data.args[0], offset.wrapping_add(bytes)),
            (Some(bytes), None) => (base, offset) = (data.args[1], offset.wrapping_add(bytes)),
            _ => break,
        }
    }
    (base, offset)
}

/// Bytes behind a base that are in the packet, where a branch goes to a block.
fn checked_bytes(func: &Function, from: Block, to: Block, end: Value) -> Option<(Value, i64)> {
    let term = func.terminator(from)?;
    let data = &func.insts[term];
    let Op::Branch { cond, width: Width::W64 } = data.op else { return None };
    let [yes, no] = &data.targets[..] else { return None };
    if yes.block == no.block {
        return None;
    }
    let holds = yes.block == to;
    let (a, b) = (data.args[0], data.args[1]);
    let pointer = match (cond, holds) {
        (Cond::Le, true) | (Cond::Gt, false) if b == end => a,
        (Cond::Ge, true) | (Cond::Lt, false) if a == end => b,
        _ => return None,
    };
    Some(decomposed(func, pointer))
}

/// A load that no branch covers: its place in the block, and the bytes behind a base that it needs.
type OpenLoad = (usize, Value, i64);

/// Puts a check in front of each load from the packet that no dominating branch covers.
pub(crate) fn check_packet(func: &mut Function) {
    let params = func.blocks[func.entry()].params.clone();
    let [_, data, end] = params[..] else { return };
    let Some(mut roots) = PointerRoots::new(func) else { return };
    let cfg = Cfg::new(func);
    let tree = DomTree::new(func, &cfg);
    let mut open: Vec<(Block, Vec<OpenLoad>)> = Vec::new();
    for &block in &cfg.rpo {
        let mut covered = None;
        let mut loads = Vec::new();
        for (at, inst) in func.blocks[block].insts.iter().enumerate() {
            let Op::Load { size, offset, .. } = func.insts[*inst].op else { continue };
            let base = func.insts[*inst].args[0];
            if base != data && roots.root(func, base) != Some(PointerRoot::Packet) {
                continue;
            }
            let (core, bytes) = decomposed(func, base);
            let last = bytes + i64::from(offset) + i64::from(size.bytes());
            let covered = covered.get_or_insert_with(|| covered_ranges(func, (&cfg, &tree), block, end));
            if !covered.iter().any(|(known, most)| *known == core && *most >= last) {
                covered.push((core, last));
                loads.push((at, core, last));
            }
        }
        open.push((block, loads));
    }
    let mut outside = None;
    for (block, loads) in open {
        for load in loads.into_iter().rev() {
            let outside = *outside.get_or_insert_with(|| leaving_block(func));
            split_with_check(func, block, load, (end, outside));
        }
    }
}

fn leaving_block(func: &mut Function) -> Block {
    let block = func.add_block();
    let value = func.at_end(block).iconst(OUTSIDE);
    func.at_end(block).effect(Op::Return {}, [value], []);
    block
}

/// Ranges that dominating branches have checked.
fn covered_ranges(
    func: &Function,
    (cfg, tree): (&Cfg, &DomTree),
    block: Block,
    end: Value,
) -> Vec<(Value, i64)> {
    let mut ranges = Vec::new();
    let mut at = block;
    while let Some(above) = tree.idom(at) {
        if let [from] = cfg.preds[at][..] {
            ranges.extend(checked_bytes(func, from, at, end));
        }
        at = above;
    }
    ranges
}

/// Splits a block in front of an instruction by a check: the bytes up to `last` behind `core` are in the packet.
fn split_with_check(
    func: &mut Function,
    block: Block,
    (at, core, last): OpenLoad,
    (end, outside): (Value, Block),
) {
    let rest = func.blocks[block].insts.split_off(at);
    let line = rest.first().map_or(u32::MAX, |inst| func.insts[*inst].loc);
    let behind = func.blocks.push(Default::default());
    func.blocks[behind].insts = rest;
    let position = func.layout.iter().position(|b| *b == block).map_or(func.layout.len(), |at| at + 1);
    func.layout.insert(position, behind);
    let ty = func.types[core];
    let mut cursor = func.at_end(block);
    cursor.loc = line;
    let bytes = cursor.iconst(last);
    let pointer = cursor.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, [core, bytes], ty);
    let op = Op::Branch { cond: Cond::Le, width: Width::W64 };
    cursor.effect(op, [pointer, end], [BlockCall::new(behind), BlockCall::new(outside)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_ir::{Linkage, MemFlags, Size};

    /// The memory has room for one mask behind what is used. Linux 6.12 adds up the largest values of two.
    #[test]
    fn several_unknown_offsets_into_the_memory_get_one_mask() {
        let mut func = Function::new("p", Linkage::Static);
        let entry = func.add_block();
        let state = func.add_param(entry, Type::Ptr(Prov::Ctx));
        let [_, _, a, b] = [(); 4].map(|()| func.add_param(entry, Type::I64));
        let add = || Op::Alu { op: AluOp::Add, width: Width::W64 };
        let mut at = func.at_end(entry);
        let eight = at.iconst(8);
        let base = at.value(add(), [state, eight], Type::Ptr(Prov::Ctx));
        let first = at.value(add(), [base, a], Type::Ptr(Prov::Ctx));
        let both = at.value(add(), [first, b], Type::Ptr(Prov::Ctx));
        at.effect(Op::Store { size: Size::B, offset: 0, flags: MemFlags::default() }, [both, b], []);
        at.effect(Op::Return {}, [eight], []);
        bound_offsets(&mut func, 511);

        let mut roots = PointerRoots::new(&func).unwrap();
        let parts = MemoryAddress::of(&func, &mut roots, &FxHashMap::default(), both).unwrap();
        let [offset] = parts.offsets[..] else { panic!("{:?}", parts.offsets) };
        assert_eq!(parts.bytes, 8);
        let masked = &func.insts[func.def_inst(offset).unwrap()];
        assert!(matches!(masked.op, Op::Alu { op: AluOp::And, .. }));
        let sum = &func.insts[func.def_inst(masked.args[0]).unwrap()];
        assert_eq!((&sum.args[..], func.as_const(masked.args[1])), (&[b, a][..], Some(511)));
    }
}
