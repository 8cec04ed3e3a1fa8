//! The path to look-ups in large tables, as a function of its own that fetches what the look-ups will read.
//!
//! The packets of a batch are independent until a program's state joins them; waiting for memory once per
//! packet is what makes large tables slow. Instead of cutting the program in two at the look-up (loop
//! fission) and keeping the live values between the parts, the first part is run twice: [`slice()`] copies a
//! program, removes all visible side effects, and keeps what leads to look-ups in the requested maps. Run for
//! a packet some places ahead, the slice computes the key, and code fetches the cache lines of the look-up
//! (`emit::maps::ahead`) while other packets are processed.
//!
//! Invariant: a slice writes nothing but its own stack and, in the packet's descriptor, its progress (which
//! nobody trusts), and reads nothing that the program would not read. Its results may be out of date (the
//! packet in front may change the table, or the slice may lack a store): then it fetches the wrong line,
//! which costs time and changes nothing. So no dependence through state forbids it, the order of packets
//! stays, and nothing needs to be annotated.
//!
//! A slice leaves each loop after one iteration, so it always ends.
//!
//! The benefit depends on the packets: few flows keep even a large table's lines in the cache. So there are
//! two loops over a batch, with slices and without, and [`PrefetchTuner`] times both now and then.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, BlockCall, Cfg, Function, Inst, Map, Op, Prov, Type};
use millstream_isa::helpers::id;

/// Decides which of two loops runs a batch, by their measured times.
#[derive(Debug, Default)]
pub(crate) struct PrefetchTuner {
    /// Batches until the next trial begins; 0 during one.
    rest: u32,
    /// Current trial: picoseconds per packet of each loop, alternately.
    times: [Vec<u64>; 2],
    ahead: bool,
}

/// Batches between trials, and batches of each loop in one trial.
const BETWEEN: u32 = 4096;
const TRIED: usize = 15;
/// Batches of fewer packets are too noisy to be timed.
const LEAST: usize = 8;

impl PrefetchTuner {
    /// Returns true if the next batch goes through the loop that fetches ahead.
    pub(crate) fn choose(&mut self) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return self.ahead;
        }
        self.times[0].len() > self.times[1].len()
    }

    /// Returns true if the batch that was last chosen for must be timed.
    pub(crate) fn tries(&self) -> bool {
        self.rest == 0
    }

    /// Records the time of a batch. A trial compares medians; fetching wins only if it is faster by a
    /// thirtieth.
    pub(crate) fn note(&mut self, ahead: bool, took: std::time::Duration, packets: usize) {
        if packets < LEAST {
            return;
        }
        self.times[usize::from(ahead)].push(took.as_nanos() as u64 * 1000 / packets as u64);
        if self.times.iter().all(|times| times.len() == TRIED) {
            let [plain, ahead] = self.times.each_mut().map(|times| {
                times.sort_unstable();
                times[TRIED / 2]
            });
            self.ahead = ahead + plain / 30 < plain;
            self.times.iter_mut().for_each(Vec::clear);
            self.rest = BETWEEN;
        }
    }
}

/// Treatment of an operation in a slice.
enum SliceAction {
    Kept,
    /// Not needed in the slice.
    LeftOut,
    /// The slice ends in front of it.
    End,
}

/// Treatment of a map's look-ups in a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupHandling {
    /// Look-ups are fetched for.
    Fetched,
    /// Look-ups leave no trace, and may be executed.
    Made,
    /// Neither.
    Left,
}

/// The path to look-ups in maps that are [`LookupHandling::Fetched`]; `None` if no such look-up is reachable.
pub(crate) fn slice(func: &Function, uses: &dyn Fn(Map) -> LookupHandling) -> Option<Function> {
    let mut func = func.clone();
    let order = Cfg::new(&func).rpo;
    let exit = func.add_block();
    leave(&mut func, exit);
    let mut number = SecondaryMap::with_default(0);
    for (at, &block) in order.iter().enumerate() {
        number[block] = at;
    }
    let mut fetching = Vec::new();
    for &block in &order {
        cut(&mut func, block, uses);
        forward_only(&mut func, block, exit, &number);
        let fetches =
            |&inst: &Inst| looked_up(&func, inst).is_some_and(|map| uses(map) == LookupHandling::Fetched);
        if func.blocks[block].insts.iter().any(fetches) {
            fetching.push(block);
        }
    }
    let leads = leading_to(&func, fetching);
    if !leads[func.entry()] {
        return None;
    }
    for &block in order.iter().filter(|b| !leads[**b]) {
        func.blocks[block].insts.clear();
        leave(&mut func, block);
    }
    Some(func)
}

fn leave(func: &mut Function, block: Block) {
    let mut at = func.at_end(block);
    let nothing = at.iconst(0);
    at.effect(Op::Return {}, [nothing], []);
}

/// Removes from a block what a slice must not do, and ends the slice where it cannot continue.
fn cut(func: &mut Function, block: Block, uses: &dyn Fn(Map) -> LookupHandling) {
    let mut kept = Vec::new();
    let mut ends = false;
    for &inst in &func.blocks[block].insts {
        match part(func, inst, uses) {
            SliceAction::Kept => kept.push(inst),
            SliceAction::LeftOut => {}
            SliceAction::End => {
                ends = true;
                break;
            }
        }
    }
    func.blocks[block].insts = kept;
    if ends {
        leave(func, block);
    }
}

/// Redirects back edges to the exit.
fn forward_only(func: &mut Function, block: Block, exit: Block, number: &SecondaryMap<Block, usize>) {
    let Some(last) = func.terminator(block) else { return };
    for target in &mut func.insts[last].targets {
        if target.block != exit && number[target.block] <= number[block] {
            *target = BlockCall::new(exit);
        }
    }
}

/// Blocks from which one of the given blocks is reachable.
fn leading_to(func: &Function, blocks: Vec<Block>) -> SecondaryMap<Block, bool> {
    let cfg = Cfg::new(func);
    let mut from: SecondaryMap<Block, Vec<Block>> = SecondaryMap::new();
    for &block in &cfg.rpo {
        for target in func.targets(block) {
            from[target.block].push(block);
        }
    }
    let mut leads = SecondaryMap::with_default(false);
    let mut open = blocks;
    while let Some(block) = open.pop() {
        if !std::mem::replace(&mut leads[block], true) {
            open.extend(&from[block]);
        }
    }
    leads
}

/// The map that an instruction looks up in.
fn looked_up(func: &Function, inst: Inst) -> Option<Map> {
    let data = &func.insts[inst];
    match data.op {
        Op::MapLookup { map, .. } => Some(map),
        Op::Helper { id: id::MAP_LOOKUP_ELEM } => match func.def_op(*data.args.first()?)? {
            Op::MapAddr { map } => Some(*map),
            _ => None,
        },
        _ => None,
    }
}

fn part(func: &Function, inst: Inst, uses: &dyn Fn(Map) -> LookupHandling) -> SliceAction {
    let data = &func.insts[inst];
    if let Some(map) = looked_up(func, inst) {
        return if uses(map) == LookupHandling::Left { SliceAction::End } else { SliceAction::Kept };
    }
    let own = data.args.first().is_some_and(|&base| func.types[base] == Type::Ptr(Prov::Stack));
    let effects = data.op.effects();
    match data.op {
        Op::MayGoto {} => SliceAction::End,
        _ if data.op.is_terminator() || effects.is_removable() => SliceAction::Kept,
        Op::Store { .. } | Op::StoreRelease { .. } | Op::Atomic { .. } => {
            if own {
                SliceAction::Kept
            } else {
                SliceAction::LeftOut
            }
        }
        Op::LoadAcquire { .. } => SliceAction::Kept,
        Op::AtomicFetch { .. } | Op::CmpXchg { .. } if own => SliceAction::Kept,
        Op::SetBounds {} => SliceAction::LeftOut,
        _ => SliceAction::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_ir::{Cond, Linkage, MemFlags, Size, Width};

    /// A program that counts in the packet, looks up, and counts again on a hit; loops back on a miss.
    fn program() -> Function {
        let mut func = Function::new("p", Linkage::Program { prog_type: 6 });
        let [entry, again, found] = [(); 3].map(|()| func.add_block());
        let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
        let map = Map::from_u32(0);
        let flags = MemFlags::default();
        let mut at = func.at_end(entry);
        let packet = at.value(
            Op::Load { size: Size::W, sext: false, offset: 0, flags },
            [ctx],
            Type::Ptr(Prov::Packet),
        );
        at.effect(Op::Jump {}, [], [BlockCall::new(again)]);
        let mut at = func.at_end(again);
        let key = at.value(Op::Load { size: Size::W, sext: false, offset: 4, flags }, [packet], Type::I64);
        at.effect(Op::Store { size: Size::W, offset: 8, flags }, [packet, key], []);
        let layout = [millstream_ir::KeyPiece { offset: 0, size: Size::W }].into_iter().collect();
        let value = at.value(Op::MapLookup { map, key: layout }, [key], Type::Ptr(Prov::MapValueOrNull(map)));
        let null = at.iconst(0);
        let branch = Op::Branch { cond: Cond::Eq, width: Width::W64 };
        at.effect(branch, [value, null], [BlockCall::new(again), BlockCall::new(found)]);
        let mut at = func.at_end(found);
        at.effect(Op::Store { size: Size::W, offset: 0, flags }, [packet, null], []);
        at.effect(Op::Return {}, [null], []);
        func
    }

    #[test]
    fn the_faster_loop_is_chosen_and_chosen_again_when_that_changes() {
        use std::time::Duration;
        let mut judge = PrefetchTuner::default();
        for (fast, slow) in [(true, 100), (false, 100), (true, 103)] {
            let mut chosen = 0;
            for _ in 0..2 * TRIED + BETWEEN as usize {
                let tries = judge.tries();
                let ahead = judge.choose();
                if tries {
                    let ns = if ahead == fast { 64 * 99 } else { 64 * slow };
                    judge.note(ahead, Duration::from_nanos(ns), 64);
                } else {
                    chosen += usize::from(ahead);
                }
            }
            // One percent is not worth it, four percent are.
            let expected = if fast && slow == 103 { BETWEEN as usize } else { 0 };
            assert_eq!(chosen, expected, "{fast} {slow}");
        }
        judge.note(true, Duration::from_nanos(1), LEAST - 1);
        assert!(judge.times.iter().all(Vec::is_empty), "small batches say nothing");
    }

    #[test]
    fn slices_lead_to_look_ups_write_nothing_and_end() {
        let func = program();
        let slice = slice(&func, &|_| LookupHandling::Fetched).expect("there is a look-up");
        let ops: Vec<&Op> = slice.insts_in_order().map(|(_, inst)| &slice.insts[inst].op).collect();
        assert_eq!(ops.iter().filter(|op| matches!(op, Op::MapLookup { .. })).count(), 1);
        assert!(!ops.iter().any(|op| matches!(op, Op::Store { .. })), "{ops:?}");
        let order = Cfg::new(&slice).rpo;
        for (at, &block) in order.iter().enumerate() {
            for target in slice.targets(block) {
                assert!(order[at + 1..].contains(&target.block), "an edge goes back");
            }
        }
        assert!(super::slice(&func, &|_| LookupHandling::Made).is_none());
        assert!(super::slice(&func, &|_| LookupHandling::Left).is_none());
    }
}
