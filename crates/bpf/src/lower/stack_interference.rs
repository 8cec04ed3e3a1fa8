//! Which stack objects hold something at the same time: others may have the same place.
//!
//! An object lives from the first access on a way to the last. Accesses are loads, stores and calls that get
//! an address in it; helpers keep no address. An object whose address goes anywhere else lives all the time.

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use millstream_ir::{AluOp, Block, Cfg, Function, Inst, Op, Slot, Value};
use rustc_hash::FxHashMap;

/// A set of objects as bits.
type SlotSet = Vec<u64>;

/// Stack objects that are live at the same time.
pub(super) struct SlotInterference {
    meets: SecondaryMap<Slot, SlotSet>,
}

impl SlotInterference {
    pub(super) fn new(func: &Function, cfg: &Cfg) -> SlotInterference {
        let accesses = SlotAccesses::new(func);
        let mut lifetimes = SlotInterference { meets: SecondaryMap::with_default(none(&func.slots)) };
        for slot in func.slots.keys() {
            // Everybody has an entry, so that those who live all the time find them.
            insert(&mut lifetimes.meets[slot], slot);
        }
        let (touched, wanted) = accesses.flow(func, cfg);
        for &block in &cfg.rpo {
            lifetimes.block(func, &accesses, block, touched[block].clone(), &wanted[block]);
        }
        for slot in func.slots.keys().filter(|s| has(&accesses.escaped, *s)) {
            for other in func.slots.keys() {
                lifetimes.meet(slot, other);
            }
        }
        lifetimes
    }

    /// Returns true if both hold something at the same time.
    pub(super) fn interferes(&self, a: Slot, b: Slot) -> bool {
        has(&self.meets[a], b)
    }

    fn meet(&mut self, a: Slot, b: Slot) {
        insert(&mut self.meets[a], b);
        insert(&mut self.meets[b], a);
    }

    /// Records the objects that are live together at each access of a block: those accessed on a path that
    /// leads through it.
    fn block(
        &mut self,
        func: &Function,
        accesses: &SlotAccesses,
        block: Block,
        mut touched: SlotSet,
        wanted_at_end: &[u64],
    ) {
        let insts: Vec<Inst> =
            func.blocks[block].insts.iter().copied().filter(|i| accesses.of.contains_key(i)).collect();
        let mut after = vec![wanted_at_end.to_vec()];
        for inst in insts.iter().skip(1).rev() {
            let mut wanted = after.last().cloned().unwrap_or_default();
            accesses.of[inst].iter().for_each(|s| insert(&mut wanted, *s));
            after.push(wanted);
        }
        for (inst, wanted) in insts.iter().zip(after.iter().rev()) {
            let here = &accesses.of[inst];
            let live = |slot: Slot| here.contains(&slot) || has(&touched, slot) && has(wanted, slot);
            let live: Vec<Slot> = func.slots.keys().filter(|s| live(*s)).collect();
            for (n, &a) in live.iter().enumerate() {
                live[n + 1..].iter().for_each(|&b| self.meet(a, b));
            }
            here.iter().for_each(|s| insert(&mut touched, *s));
        }
    }
}

/// Which instructions access which objects.
struct SlotAccesses {
    of: FxHashMap<Inst, Vec<Slot>>,
    /// Objects whose addresses go where they are not followed.
    escaped: SlotSet,
}

impl SlotAccesses {
    fn new(func: &Function) -> SlotAccesses {
        let mut found = SlotAccesses { of: FxHashMap::default(), escaped: none(&func.slots) };
        let addresses = addresses(func);
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            for (n, arg) in data.args.iter().enumerate() {
                let Some(&slot) = addresses.get(arg) else { continue };
                match &data.op {
                    Op::Helper { .. } => found.of.entry(inst).or_default().push(slot),
                    op if n == 0 && op.is_access() => found.of.entry(inst).or_default().push(slot),
                    op if n == 0 && is_move(op) => {}
                    _ => insert(&mut found.escaped, slot),
                }
            }
            let passed = data.targets.iter().flat_map(|t| &t.args).filter_map(|v| addresses.get(v));
            passed.for_each(|slot| insert(&mut found.escaped, *slot));
        }
        found
    }

    /// Objects that may have been accessed before each block, and those that may be accessed after it.
    fn flow(
        &self,
        func: &Function,
        cfg: &Cfg,
    ) -> (SecondaryMap<Block, SlotSet>, SecondaryMap<Block, SlotSet>) {
        let empty = none(&func.slots);
        let mut own: SecondaryMap<Block, SlotSet> = SecondaryMap::with_default(empty.clone());
        for (block, inst) in func.insts_in_order() {
            self.of.get(&inst).into_iter().flatten().for_each(|s| insert(&mut own[block], *s));
        }
        let mut touched = SecondaryMap::with_default(empty.clone());
        let mut wanted = SecondaryMap::with_default(empty);
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &cfg.rpo {
                for target in func.targets(block) {
                    changed |= add(&mut touched, target.block, [block], &own);
                }
            }
            for &block in cfg.rpo.iter().rev() {
                changed |= add(&mut wanted, block, func.targets(block).iter().map(|t| t.block), &own);
            }
        }
        (touched, wanted)
    }
}

/// Adds what these blocks have, and access themselves, to what one has; whether that is more.
fn add(
    sets: &mut SecondaryMap<Block, SlotSet>,
    to: Block,
    from: impl IntoIterator<Item = Block>,
    own: &SecondaryMap<Block, SlotSet>,
) -> bool {
    let mut changed = false;
    for from in from {
        let more: SlotSet = sets[from].iter().zip(&own[from]).map(|(a, b)| a | b).collect();
        for (word, more) in sets[to].iter_mut().zip(more) {
            changed |= more & !*word != 0;
            *word |= more;
        }
    }
    changed
}

/// Values that are addresses in objects, however they were moved.
fn addresses(func: &Function) -> FxHashMap<Value, Slot> {
    let mut found = FxHashMap::default();
    loop {
        let before = found.len();
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            let slot = match &data.op {
                Op::StackAddr { slot, .. } => Some(*slot),
                op if is_move(op) => data.args.first().and_then(|v| found.get(v)).copied(),
                _ => None,
            };
            if let (Some(slot), Some(value)) = (slot, data.result.expand()) {
                found.insert(value, slot);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn is_move(op: &Op) -> bool {
    matches!(op, Op::Alu { op: AluOp::Add | AluOp::Sub, .. })
}

fn none<T>(slots: &PrimaryMap<Slot, T>) -> SlotSet {
    vec![0; slots.len().div_ceil(64)]
}

fn insert(set: &mut [u64], slot: Slot) {
    set[slot.index() / 64] |= 1 << (slot.index() % 64);
}

fn has(set: &[u64], slot: Slot) -> bool {
    set.get(slot.index() / 64).is_some_and(|word| word & 1 << (slot.index() % 64) != 0)
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;

    use crate::lower::{LowerError, LoweredFunction, lower};

    /// Two objects that together do not fit, accessed by these instructions.
    fn lowered(insts: &str) -> Result<LoweredFunction, LowerError> {
        let text = format!(
            "fn0 \"f\" static {{\n  ss0 size=304 align=8\n  ss1 size=304 align=8\nblock0(v0: any):\n  \
             v1: ptr(stack) = stack_addr.ss0.0\n  v2: ptr(stack) = stack_addr.ss1.0\n{insts}\n}}\n"
        );
        let module = parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        lower(module.funcs.values().next().unwrap())
    }

    #[test]
    fn who_never_lives_together_shares_a_place() {
        let one_by_one = lowered(
            "  store.dw.0.plain v1, v0\n  v3: i64 = load.dw.u.0.plain v1\n  store.dw.8.plain v2, v3\n  \
             v4: i64 = load.dw.u.8.plain v2\n  return v4",
        );
        assert_eq!(one_by_one.unwrap().stack, 304);
        let together = lowered(
            "  store.dw.0.plain v1, v0\n  store.dw.8.plain v2, v0\n  v3: i64 = load.dw.u.0.plain v1\n  \
             v4: i64 = load.dw.u.8.plain v2\n  v5: i64 = alu.add.w64 v3, v4\n  return v5",
        );
        assert!(matches!(together, Err(LowerError::Stack { bytes: 608, .. })), "{together:?}");
    }

    #[test]
    fn whose_address_goes_elsewhere_lives_all_the_time() {
        let escaped = lowered(
            "  store.dw.0.plain v1, v0\n  store.dw.0.plain v0, v1\n  store.dw.8.plain v2, v0\n  \
             v4: i64 = load.dw.u.8.plain v2\n  return v4",
        );
        assert!(matches!(escaped, Err(LowerError::Stack { bytes: 608, .. })), "{escaped:?}");
    }

    #[test]
    fn what_is_alive_in_a_loop_is_alive_all_through_it() {
        let looped = lowered(
            "  jump block1\nblock1:\n  store.dw.0.plain v1, v0\n  v3: i64 = load.dw.u.8.plain v2\n  \
             store.dw.8.plain v2, v0\n  v4: i64 = load.dw.u.0.plain v1\n  \
             br.eq.w64 v3, v4, block1, block2\nblock2:\n  return v4",
        );
        assert!(matches!(looped, Err(LowerError::Stack { bytes: 608, .. })), "{looped:?}");
    }
}
