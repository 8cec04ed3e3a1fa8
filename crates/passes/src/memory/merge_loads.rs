//! `merge-loads`: a word assembled from narrow loads of adjacent bytes becomes one load, with a byte swap
//! where the bytes stand in network order.
//!
//! Invariant: the wide load stands where the last of the narrow ones stood, in the same block, and reads
//! exactly the bytes that they read; nothing in between may have written them.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, Function, Inst, Op, Size, SwapKind, Type, Value, Width};
use millstream_isa::ByteOrder;

use super::access_widening::{is_aligned, is_plain_memory, may_write};
use super::alias::{AliasClasses, MemoryAccess};
use crate::manager::{FuncPass, PassContext};
use crate::rewrite::ValueSubst;

const NAME: &str = "merge-loads";

/// The pass.
pub(crate) struct MergeLoads;

impl FuncPass for MergeLoads {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "turn words assembled from narrow loads into wide loads"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let roots = roots(func);
        if roots.is_empty() {
            return false;
        }
        let classes = AliasClasses::new(func, &cx.info);
        let mut place: SecondaryMap<Inst, Option<Block>> = SecondaryMap::with_capacity(func.insts.len());
        for (block, inst) in func.insts_in_order() {
            place[inst] = Some(block);
        }
        let target = cx.target();
        let byte_order = !target.keep_verifier_facts || target.kernels.all(|g| g.knowledge().byte_order);
        let mut subst = ValueSubst::default();
        for value in roots {
            let Some(word) = LoadedWord::of(func, &classes, value, cx) else { continue };
            if word.is_stable(func, &classes, &place) && cx.fuel(NAME) {
                let new = word.load(func, &place, byte_order);
                subst.insert(value, new);
            }
        }
        subst.apply(func)
    }
}

/// Disjunctions that are not part of a greater one.
fn roots(func: &Function) -> Vec<Value> {
    let mut part: SecondaryMap<Value, bool> = SecondaryMap::new();
    let mut found = Vec::new();
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        if let Op::Alu { op: AluOp::Or, .. } = data.op {
            data.args.iter().for_each(|&a| part[a] = true);
            found.extend(data.result.expand());
        }
    }
    found.retain(|&v| !part[v]);
    found
}

/// One byte of a word.
#[derive(Clone, Copy)]
struct LoadedByte {
    load: Inst,
    /// Index of the byte in the load.
    index: u32,
}

/// A word and the bytes that make it, least significant first.
struct LoadedWord {
    bytes: Vec<LoadedByte>,
    /// Bits below the lowest byte.
    shift: u32,
    /// The least significant byte has the lowest address.
    ascending: bool,
    /// The bytes do not stand in the target's order.
    reversed: bool,
    access: MemoryAccess,
}

const MOST_LEAVES: u32 = 8;

struct ByteCollector<'a> {
    func: &'a Function,
    order: ByteOrder,
    bytes: [Option<LoadedByte>; 8],
    leaves: u32,
}

impl ByteCollector<'_> {
    /// Follows a value that is shifted left by `shift` and cut above `limit` bits. `None` if it is no
    /// assembled word.
    fn collect(&mut self, value: Value, shift: u32, limit: u32) -> Option<()> {
        let inst = self.func.def_inst(value)?;
        let data = &self.func.insts[inst];
        match data.op {
            Op::Alu { op: AluOp::Or, width } => {
                let limit = limit.min(shift + width_bits(width));
                self.collect(data.args[0], shift, limit)?;
                self.collect(data.args[1], shift, limit)
            }
            Op::Alu { op: AluOp::Lsh, width } => {
                let by = self.func.as_const(data.args[1]).filter(|c| (0..64).contains(c))?;
                self.collect(data.args[0], shift + by as u32, limit.min(shift + width_bits(width)))
            }
            Op::Zext {} => self.collect(data.args[0], shift, limit.min(shift + 32)),
            Op::Load { size, sext: false, flags, .. } if !flags.volatile && flags.core.is_none() => {
                self.leaf(inst, size, shift, limit)
            }
            _ => None,
        }
    }

    fn leaf(&mut self, load: Inst, size: Size, shift: u32, limit: u32) -> Option<()> {
        self.leaves += 1;
        let fits = shift.is_multiple_of(8) && shift + size.bits() <= limit && self.leaves <= MOST_LEAVES;
        fits.then_some(())?;
        for index in 0..size.bytes() {
            let place = &mut self.bytes[(shift + self.order.shift(size.bytes(), index, 1)) as usize / 8];
            if place.replace(LoadedByte { load, index }).is_some() {
                return None;
            }
        }
        Some(())
    }
}

fn width_bits(width: Width) -> u32 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

impl LoadedWord {
    fn of(func: &Function, classes: &AliasClasses, value: Value, cx: &PassContext<'_>) -> Option<LoadedWord> {
        let order = cx.target().byte_order;
        let mut collector = ByteCollector { func, order, bytes: [None; 8], leaves: 0 };
        collector.collect(value, 0, 64)?;
        let low = collector.bytes.iter().position(Option::is_some)?;
        let bytes: Vec<LoadedByte> = collector.bytes[low..].iter().map_while(|b| *b).collect();
        let found = collector.bytes.iter().flatten().count();
        let size = Size::from_bytes(bytes.len() as u32).filter(|_| found == bytes.len())?;
        if collector.leaves < 2 {
            return None;
        }
        let at = |b: &LoadedByte| classes.plain_access(func, b.load).map(|a| a.addr.plus(i64::from(b.index)));
        let first = at(&bytes[0])?;
        let follow =
            |step: i64| bytes.iter().enumerate().all(|(i, b)| at(b) == Some(first.plus(step * i as i64)));
        let ascending = match (follow(1), follow(-1)) {
            (true, _) => true,
            (_, true) => false,
            _ => return None,
        };
        let reversed = ascending != (order == ByteOrder::Little);
        let lowest = if ascending { &bytes[0] } else { bytes.last()? };
        let narrow = classes.plain_access(func, lowest.load)?;
        let access = MemoryAccess { size, ..narrow };
        let plain = is_plain_memory(func, classes, func.insts[lowest.load].args[0], cx);
        (plain && is_aligned(func, &access, size.bytes(), cx)).then_some(())?;
        Some(LoadedWord { bytes, shift: 8 * low as u32, ascending, reversed, access })
    }

    /// Returns true if all narrow loads stand in one block and nothing writes the bytes between the first and
    /// the last.
    fn is_stable(
        &self,
        func: &Function,
        classes: &AliasClasses,
        place: &SecondaryMap<Inst, Option<Block>>,
    ) -> bool {
        let Some(block) = place[self.bytes[0].load] else { return false };
        if self.bytes.iter().any(|b| place[b.load] != Some(block)) {
            return false;
        }
        let (first, last) = self.range(func, block);
        let between = &func.blocks[block].insts[first..last];
        between.iter().all(|&i| !may_write(func, classes, i, &self.access))
    }

    /// Positions of the first and the last of the loads.
    fn range(&self, func: &Function, block: Block) -> (usize, usize) {
        let is_mine = |inst: &Inst| self.bytes.iter().any(|b| b.load == *inst);
        let insts = &func.blocks[block].insts;
        let first = insts.iter().position(is_mine).unwrap_or(0);
        let last = insts.iter().rposition(is_mine).unwrap_or(0);
        (first, last)
    }

    /// Makes the wide load. A verifier that does not follow byte order operations sees a mask behind one.
    fn load(
        &self,
        func: &mut Function,
        place: &SecondaryMap<Inst, Option<Block>>,
        byte_order: bool,
    ) -> Value {
        let lowest = if self.ascending { self.bytes[0] } else { self.bytes[self.bytes.len() - 1] };
        let block = place[lowest.load].expect("stability was checked, so the loads stand in a block");
        let (_, last) = self.range(func, block);
        let data = func.insts[lowest.load].clone();
        let Op::Load { offset, flags, .. } = data.op else { unreachable!("a byte of a word is loaded") };
        let (size, bits) = (self.access.size, self.access.size.bits());
        let mut at = func.at(block, last + 1);
        at.loc = data.loc;
        let op = Op::Load { size, sext: false, offset, flags };
        let mut value = at.value(op, [data.args[0]], Type::int(bits));
        if self.reversed {
            let known = if byte_order { Type::int(bits) } else { Type::I64 };
            value = at.value(Op::Swap { kind: SwapKind::ToBe, bits: bits as u8 }, [value], known);
            value = match self.access.size {
                _ if byte_order => value,
                Size::W => at.value(Op::Zext {}, [value], Type::I32),
                Size::H => {
                    let mask = at.iconst(0xffff);
                    at.value(Op::Alu { op: AluOp::And, width: Width::W64 }, [value, mask], Type::I16)
                }
                Size::B | Size::Dw => value,
            };
        }
        if self.shift > 0 {
            let by = at.iconst(i64::from(self.shift));
            let op = Op::Alu { op: AluOp::Lsh, width: Width::W64 };
            value = at.value(op, [value, by], Type::I64);
        }
        value
    }
}
