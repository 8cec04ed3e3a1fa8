//! `dse`: removes stores to the stack that nothing reads, and stores to the packet that are overwritten
//! unread.
//!
//! Bytes of private stack objects are tracked backwards, one bit each: a byte is live if some path reads it
//! before it is overwritten or the function ends. A helper reads the bytes that its row says, no others, and
//! overwrites those that it is known to fill in any case. Some also count as readers of what they write, for
//! older verifiers want that written before.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, Cfg, Function, Inst, Op, Slot, Value, op_group};
use millstream_isa::generation::VerifierGeneration;
use millstream_isa::helpers::Helper;

use super::address::RootedAddress;
use super::alias::{AliasClasses, MemoryAccess, StackPointee};
use super::footprint::helper_span;
use crate::manager::{FuncPass, PassContext};

const NAME: &str = "dse";

/// The pass.
pub(crate) struct Dse;

impl FuncPass for Dse {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "remove stores that nothing reads"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let classes = AliasClasses::new(func, &cx.info);
        let stack = dead_stack_stores(func, &classes, cx);
        let packet = overwritten_packet_stores(func, &classes, cx);
        stack | packet
    }
}

/// One bit a byte.
#[derive(Clone, PartialEq, Eq, Default)]
struct ByteSet(Vec<u64>);

impl ByteSet {
    fn empty(bytes: usize) -> ByteSet {
        ByteSet(vec![0; bytes.div_ceil(64)])
    }

    fn set(&mut self, range: std::ops::Range<usize>) {
        range.for_each(|i| self.0[i / 64] |= 1 << (i % 64));
    }

    fn clear(&mut self, range: std::ops::Range<usize>) {
        range.for_each(|i| self.0[i / 64] &= !(1 << (i % 64)));
    }

    fn any(&self, range: std::ops::Range<usize>) -> bool {
        range.into_iter().any(|i| self.0[i / 64] >> (i % 64) & 1 != 0)
    }

    /// Adds all of `other`; `true` if that was news.
    fn unite(&mut self, other: &ByteSet) -> bool {
        let mut changed = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            changed |= *mine | theirs != *mine;
            *mine |= theirs;
        }
        changed
    }
}

/// Effect of an instruction on the liveness of stack bytes, looking backwards.
#[derive(Clone)]
enum LivenessEffect {
    Write(std::ops::Range<usize>),
    Read(std::ops::Range<usize>),
}

struct StackByteMap<'a> {
    classes: &'a AliasClasses,
    // First bit of each private object.
    base: SecondaryMap<Slot, Option<usize>>,
    bytes: usize,
}

impl<'a> StackByteMap<'a> {
    fn new(func: &Function, classes: &'a AliasClasses) -> StackByteMap<'a> {
        let mut frame = StackByteMap { classes, base: SecondaryMap::new(), bytes: 0 };
        for slot in func.slots.keys().filter(|&s| func.slots[s].size > 0 && !classes.is_escaped(s)) {
            frame.base[slot] = Some(frame.bytes);
            frame.bytes += func.slots[slot].size as usize;
        }
        frame
    }

    /// Bits of `[lo, hi)` of an object, as far as they lie within it.
    fn range(&self, func: &Function, slot: Slot, lo: i64, hi: i64) -> std::ops::Range<usize> {
        let Some(base) = self.base[slot] else { return 0..0 };
        let size = i64::from(func.slots[slot].size);
        let (lo, hi) = (lo.clamp(0, size) as usize, hi.clamp(0, size) as usize);
        base + lo..base + hi.max(lo)
    }

    fn access_range(&self, func: &Function, access: &MemoryAccess) -> Option<std::ops::Range<usize>> {
        let slot = access.addr.slot()?;
        let end = access.addr.offset.saturating_add(i64::from(access.size.bytes()));
        Some(self.range(func, slot, access.addr.offset, end))
    }

    /// Everything that an address may point to.
    fn read_all(&self, func: &Function, value: Value, out: &mut Vec<LivenessEffect>) {
        match self.classes.pointee(value) {
            StackPointee::Elsewhere => {}
            StackPointee::One(slot) => out.push(LivenessEffect::Read(self.range(func, slot, 0, i64::MAX))),
            StackPointee::Any => out.push(LivenessEffect::Read(0..self.bytes)),
        }
    }

    /// Bytes that an instruction reads and writes, last first.
    fn steps(&self, func: &Function, inst: Inst, cx: &PassContext<'_>, out: &mut Vec<LivenessEffect>) {
        let data = &func.insts[inst];
        match data.op {
            Op::Store { .. } => {
                let access = self.classes.plain_access(func, inst);
                out.extend(access.and_then(|a| self.access_range(func, &a)).map(LivenessEffect::Write));
            }
            Op::Load { .. }
            | Op::Atomic { .. }
            | Op::AtomicFetch { .. }
            | Op::CmpXchg { .. }
            | Op::LoadAcquire { .. } => {
                let access = self.classes.access(func, inst);
                match access.and_then(|a| self.access_range(func, &a)) {
                    Some(range) => out.push(LivenessEffect::Read(range)),
                    None => self.read_all(func, data.args[0], out),
                }
            }
            Op::Helper { id } => self.helper_accesses(func, inst, id, cx, out),
            // Objects whose address other operations take are not private.
            Op::StoreRelease { .. } | Op::Kfunc { .. } | Op::Call { .. } | Op::CallIndirect {} => {}
            op_group!(constant) | op_group!(arithmetic) | op_group!(table) => {}
            op_group!(packet) | op_group!(terminator) => {}
        }
    }

    /// The bytes of an object that a helper surely overwrites through an argument that it only writes.
    fn filled(
        &self,
        func: &Function,
        inst: Inst,
        id: i32,
        index: usize,
        addr: RootedAddress,
        cx: &PassContext<'_>,
    ) -> Option<std::ops::Range<usize>> {
        let slot = addr.slot().filter(|_| Helper::get(id).is_some_and(Helper::fills_memory))?;
        // Without a constant size nothing is sure.
        func.as_const(*func.insts[inst].args.get(index + 1)?)?;
        let span = helper_span(cx.info.maps, func, inst, id, index);
        Some(self.range(func, slot, addr.offset.saturating_add(span.lo), addr.offset.saturating_add(span.hi)))
    }

    fn helper_accesses(
        &self,
        func: &Function,
        inst: Inst,
        id: i32,
        cx: &PassContext<'_>,
        out: &mut Vec<LivenessEffect>,
    ) {
        let helper = Helper::get(id);
        let row = helper.map_or(&[][..], |h| h.args);
        let target = cx.target();
        let written =
            target.keep_verifier_facts && !target.kernels.all(VerifierGeneration::reads_unwritten_stack);
        let wanted = written && helper.is_some_and(Helper::wants_written_memory);
        let only_writes =
            |index: usize| !wanted && row.get(index).is_some_and(|k| k.writes_memory() && !k.reads_memory());
        let args = || func.insts[inst].args.iter().map(|&a| self.classes.addresses.of(a)).enumerate();
        // It reads before it writes.
        for (index, addr) in args().filter(|&(i, _)| only_writes(i)) {
            out.extend(self.filled(func, inst, id, index, addr, cx).map(LivenessEffect::Write));
        }
        for (index, addr) in args().filter(|&(i, _)| !only_writes(i)) {
            match addr.slot() {
                Some(slot) => {
                    let span = helper_span(cx.info.maps, func, inst, id, index);
                    let (lo, hi) = (addr.offset.saturating_add(span.lo), addr.offset.saturating_add(span.hi));
                    out.push(LivenessEffect::Read(self.range(func, slot, lo, hi)));
                }
                None => self.read_all(func, func.insts[inst].args[index], out),
            }
        }
    }
}

fn dead_stack_stores(func: &mut Function, classes: &AliasClasses, cx: &mut PassContext<'_>) -> bool {
    let frame = StackByteMap::new(func, classes);
    if frame.bytes == 0 {
        return false;
    }
    let cfg = Cfg::new(func);
    let live_out = liveness(func, &cfg, &frame, cx);
    let mut changed = false;
    let mut steps = Vec::new();
    for &block in &cfg.rpo {
        let mut live = live_out[block].clone();
        let mut kept = Vec::with_capacity(func.blocks[block].insts.len());
        for &inst in func.blocks[block].insts.iter().rev() {
            steps.clear();
            frame.steps(func, inst, cx, &mut steps);
            let stores = matches!(func.insts[inst].op, Op::Store { .. });
            let unread = |r: &std::ops::Range<usize>| !r.is_empty() && !live.any(r.clone());
            let dead = stores && matches!(&steps[..], [LivenessEffect::Write(r)] if unread(r));
            if dead && cx.fuel(NAME) {
                changed = true;
                continue;
            }
            apply(&mut live, &steps);
            kept.push(inst);
        }
        kept.reverse();
        func.blocks[block].insts = kept;
    }
    changed
}

fn apply(live: &mut ByteSet, steps: &[LivenessEffect]) {
    for step in steps {
        match step {
            LivenessEffect::Write(range) => live.clear(range.clone()),
            LivenessEffect::Read(range) => live.set(range.clone()),
        }
    }
}

fn liveness(
    func: &Function,
    cfg: &Cfg,
    frame: &StackByteMap<'_>,
    cx: &PassContext<'_>,
) -> SecondaryMap<Block, ByteSet> {
    let mut steps: SecondaryMap<Block, Vec<LivenessEffect>> = SecondaryMap::new();
    for &block in &cfg.rpo {
        for &inst in func.blocks[block].insts.iter().rev() {
            frame.steps(func, inst, cx, &mut steps[block]);
        }
    }
    let empty = ByteSet::empty(frame.bytes);
    let mut live_in: SecondaryMap<Block, ByteSet> = SecondaryMap::with_default(empty.clone());
    let mut live_out: SecondaryMap<Block, ByteSet> = SecondaryMap::with_default(empty);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in cfg.rpo.iter().rev() {
            let mut live = live_out[block].clone();
            for target in func.targets(block) {
                live.unite(&live_in[target.block]);
            }
            live_out[block] = live.clone();
            apply(&mut live, &steps[block]);
            changed |= live_in[block].unite(&live);
        }
    }
    live_out
}

/// Removes packet stores that a later store in the same block overwrites, with no read and no call in
/// between.
fn overwritten_packet_stores(func: &mut Function, classes: &AliasClasses, cx: &mut PassContext<'_>) -> bool {
    let mut changed = false;
    for i in 0..func.layout.len() {
        let block = func.layout[i];
        let mut later: Vec<MemoryAccess> = Vec::new();
        let mut kept = Vec::with_capacity(func.blocks[block].insts.len());
        for &inst in func.blocks[block].insts.iter().rev() {
            let access = classes.plain_access(func, inst);
            match (&func.insts[inst].op, access) {
                (Op::Store { .. }, Some(access)) if access.class == AliasClasses::PACKET => {
                    if later.iter().any(|l| l.covers(&access)) && cx.fuel(NAME) {
                        changed = true;
                        continue;
                    }
                    later.push(access);
                }
                (Op::Store { .. }, _) => {}
                (Op::Load { .. }, Some(a))
                    if a.class != AliasClasses::PACKET && a.class != AliasClasses::OTHER => {}
                (op, _) if op.effects().is_pure() => {}
                _ => later.clear(),
            }
            kept.push(inst);
        }
        kept.reverse();
        func.blocks[block].insts = kept;
    }
    changed
}
