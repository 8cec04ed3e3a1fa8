//! The way to look-ups in large tables, as a function of its own that fetches what the look-ups will read.
//!
//! A batch's packets are independent until a program's state joins them; waiting for memory once a packet is what makes large
//! tables slow. Instead of cutting the program in two at the look-up (loop fission) and keeping what is live between the parts, the
//! part in front is repeated: [`slice()`] copies a program, leaves out all that others could see, and keeps what leads to
//! look-ups in the maps that are asked for. Run for a packet some places ahead, it computes the key, and code fetches the
//! cache lines of the look-up (`emit::maps::ahead`) while other packets are worked on.
//!
//! Invariant: a slice writes nothing but its own stack and, in the packet's descriptor, how far it has come (which nobody believes), and reads nothing that the program would not read. What it computes may be out of date
//! (the packet in front may change the table, or the slice may have left out a store): then it fetches the wrong line, which costs time
//! and changes nothing. So no dependence through state forbids it, the order of packets stays, and nothing needs to be annotated.
//!
//! Loops are left after one turn, so that a slice always ends.
//!
//! Whether it pays is a matter of the packets: few flows keep even a large table's lines in the cache. So there are two loops over a batch,
//! with slices and without, and [`Judge`] times both now and then.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, BlockCall, Cfg, Function, Inst, Map, Op, Prov, Type};

const LOOKUP: i32 = 1;

/// Decides which of two loops runs a batch, by their times.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    /// Batches until the next trial begins; 0 during one.
    rest: u32,
    /// Of the trial at hand: picoseconds a packet of each loop, by turns.
    times: [Vec<u64>; 2],
    ahead: bool,
}

/// Batches between trials, and those of each loop in one.
const BETWEEN: u32 = 4096;
const TRIED: usize = 15;
/// Batches of fewer packets say little.
const LEAST: usize = 8;

impl Judge {
    /// Whether the next batch goes through the loop that fetches ahead.
    pub(crate) fn choose(&mut self) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return self.ahead;
        }
        self.times[0].len() > self.times[1].len()
    }

    /// Whether the batch that was chosen for is to be timed.
    pub(crate) fn tries(&self) -> bool {
        self.rest == 0
    }

    /// Notes the time of a batch. A trial's verdict is by medians, and for fetching only where that is faster by a thirtieth.
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

/// What becomes of an operation in a slice.
enum Part {
    Kept,
    /// Nobody in the slice needs it.
    LeftOut,
    /// The slice ends in front of it.
    End,
}

/// How a map is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Its look-ups are to be fetched for.
    Fetched,
    /// Its look-ups leave no trace, and may be made.
    Made,
    /// Neither.
    Left,
}

/// The way to look-ups of maps that are [`Use::Fetched`]; `None` if the program has none that can be reached so.
pub(crate) fn slice(func: &Function, uses: &dyn Fn(Map) -> Use) -> Option<Function> {
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
        let fetches = |&inst: &Inst| looked_up(&func, inst).is_some_and(|map| uses(map) == Use::Fetched);
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

/// Leaves out of a block what a slice must not do, and ends it where it cannot go on.
fn cut(func: &mut Function, block: Block, uses: &dyn Fn(Map) -> Use) {
    let mut kept = Vec::new();
    let mut ends = false;
    for &inst in &func.blocks[block].insts {
        match part(func, inst, uses) {
            Part::Kept => kept.push(inst),
            Part::LeftOut => {}
            Part::End => {
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

/// Sends edges that go back to the exit.
fn forward_only(func: &mut Function, block: Block, exit: Block, number: &SecondaryMap<Block, usize>) {
    let Some(last) = func.terminator(block) else { return };
    for target in &mut func.insts[last].targets {
        if target.block != exit && number[target.block] <= number[block] {
            *target = BlockCall::new(exit);
        }
    }
}

/// Blocks from which one of those given can be reached.
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
        Op::Helper { id: LOOKUP } => match func.def_op(*data.args.first()?)? {
            Op::MapAddr { map } => Some(*map),
            _ => None,
        },
        _ => None,
    }
}

fn part(func: &Function, inst: Inst, uses: &dyn Fn(Map) -> Use) -> Part {
    let data = &func.insts[inst];
    if let Some(map) = looked_up(func, inst) {
        return if uses(map) == Use::Left { Part::End } else { Part::Kept };
    }
    let own = data.args.first().is_some_and(|&base| func.types[base] == Type::Ptr(Prov::Stack));
    let effects = data.op.effects();
    match data.op {
        Op::MayGoto {} => Part::End,
        _ if data.op.is_terminator() || effects.is_removable() => Part::Kept,
        Op::Store { .. } | Op::StoreRelease { .. } | Op::Atomic { .. } => {
            if own {
                Part::Kept
            } else {
                Part::LeftOut
            }
        }
        Op::LoadAcquire { .. } => Part::Kept,
        Op::AtomicFetch { .. } | Op::CmpXchg { .. } if own => Part::Kept,
        Op::SetBounds {} => Part::LeftOut,
        _ => Part::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_ir::{Cond, Linkage, MemFlags, Size, Width};

    /// A program that counts in the packet, looks up, and counts again where it finds; goes back where it does not.
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
        let layout = [millstream_ir::Piece { offset: 0, size: Size::W }].into_iter().collect();
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
        let mut judge = Judge::default();
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
            // A hundredth is not worth it, four are.
            let expected = if fast && slow == 103 { BETWEEN as usize } else { 0 };
            assert_eq!(chosen, expected, "{fast} {slow}");
        }
        judge.note(true, Duration::from_nanos(1), LEAST - 1);
        assert!(judge.times.iter().all(Vec::is_empty), "small batches say nothing");
    }

    #[test]
    fn slices_lead_to_look_ups_write_nothing_and_end() {
        let func = program();
        let slice = slice(&func, &|_| Use::Fetched).expect("there is a look-up");
        let ops: Vec<&Op> = slice.insts_in_order().map(|(_, inst)| &slice.insts[inst].op).collect();
        assert_eq!(ops.iter().filter(|op| matches!(op, Op::MapLookup { .. })).count(), 1);
        assert!(!ops.iter().any(|op| matches!(op, Op::Store { .. })), "{ops:?}");
        let order = Cfg::new(&slice).rpo;
        for (at, &block) in order.iter().enumerate() {
            for target in slice.targets(block) {
                assert!(order[at + 1..].contains(&target.block), "an edge goes back");
            }
        }
        assert!(super::slice(&func, &|_| Use::Made).is_none());
        assert!(super::slice(&func, &|_| Use::Left).is_none());
    }
}
