//! Which values are live across a call: these want a register that survives it, all others one that does not.

use cranelift_entity::{EntityRef, SecondaryMap};
use millstream_ir::{Block, Cfg, Function, Op, Value};

/// A set of values as bits.
#[derive(Clone, Default, PartialEq, Eq)]
struct ValueSet(Vec<u64>);

impl ValueSet {
    fn new(len: usize) -> ValueSet {
        ValueSet(vec![0; len.div_ceil(64)])
    }

    fn insert(&mut self, v: Value) {
        self.0[v.index() / 64] |= 1 << (v.index() % 64);
    }

    fn remove(&mut self, v: Value) {
        self.0[v.index() / 64] &= !(1 << (v.index() % 64));
    }

    /// Adds all of `other`; whether that changed anything.
    fn union(&mut self, other: &ValueSet) -> bool {
        let mut changed = false;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            changed |= *b & !*a != 0;
            *a |= b;
        }
        changed
    }
}

/// Values that are live across a call.
pub(super) struct LiveAcrossCalls(ValueSet);

impl LiveAcrossCalls {
    pub(super) fn new(func: &Function, cfg: &Cfg) -> LiveAcrossCalls {
        let mut live_in: SecondaryMap<Block, ValueSet> =
            SecondaryMap::with_default(ValueSet::new(func.defs.len()));
        let mut crossing = ValueSet::new(func.defs.len());
        loop {
            let mut changed = false;
            for &block in cfg.rpo.iter().rev() {
                let live = through(func, block, &live_in, &mut crossing);
                changed |= live_in[block].union(&live);
            }
            if !changed {
                return LiveAcrossCalls(crossing);
            }
        }
    }

    pub(super) fn contains(&self, v: Value) -> bool {
        self.0.0[v.index() / 64] & 1 << (v.index() % 64) != 0
    }
}

/// Values live on entry of a block; adds those live across its calls to `crossing`.
fn through(
    func: &Function,
    block: Block,
    live_in: &SecondaryMap<Block, ValueSet>,
    crossing: &mut ValueSet,
) -> ValueSet {
    let mut live = ValueSet::new(func.defs.len());
    for target in func.targets(block) {
        live.union(&live_in[target.block]);
        for &p in &func.blocks[target.block].params {
            live.remove(p);
        }
    }
    for &inst in func.blocks[block].insts.iter().rev() {
        let data = &func.insts[inst];
        if let Some(v) = data.result.expand() {
            live.remove(v);
        }
        if is_call(&data.op) {
            crossing.union(&live);
        }
        func.for_each_use(inst, |v| live.insert(v));
    }
    live
}

/// Returns true if `r1` to `r5` are clobbered by the operation.
pub(super) fn is_call(op: &Op) -> bool {
    matches!(
        op,
        Op::Helper { .. } | Op::Kfunc { .. } | Op::Call { .. } | Op::CallIndirect {} | Op::LegacyLoad { .. }
    )
}
