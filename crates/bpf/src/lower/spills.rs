//! Spill slots after allocation: a slot whose value a register still holds is not loaded again, and a slot
//! that nobody loads is not stored. The allocator stores a spilled value once for each of its definitions,
//! also where the next one follows at once.
//!
//! Only the allocator's own moves touch spill slots, which share no bytes with objects: each access is a
//! whole slot, by the frame pointer. To the verifier a register is equal to the slot that it was stored to or
//! loaded from, and a check of one is a check of the other.

use millstream_isa::{Insn, Operand, Reg, Size, Width};

use super::code::{EmittedBlock, EmittedInsn, successors};
use super::register_sets::effect;

/// A set of spill slots.
type SpillSlotSet = u64;

/// The slots that each register holds the content of.
type RegisterContents = [SpillSlotSet; 10];

/// Repairs the accesses to the spill slots that lie at these displacements.
pub(super) fn eliminate_redundant_spills(blocks: &mut [EmittedBlock], spills: &[i32]) {
    // A frame has room for no more than 64 slots.
    if spills.is_empty() || spills.len() > SpillSlotSet::BITS as usize {
        return;
    }
    let slot = |off: i16| spills.iter().position(|&s| s == i32::from(off)).map_or(0, |n| 1 << n);
    reuse(blocks, &slot);
    drop_dead(blocks, &slot);
}

/// Effect of an instruction on spill slots.
enum SpillAccess {
    None,
    Load(Reg, SpillSlotSet),
    Store(Reg, SpillSlotSet),
}

fn access(e: &EmittedInsn, slot: &impl Fn(i16) -> SpillSlotSet) -> SpillAccess {
    let found = match e.insn {
        Insn::Load { size: Size::Dw, dst, src: Reg::R10, off, .. } => SpillAccess::Load(dst, slot(off)),
        Insn::Store { size: Size::Dw, dst: Reg::R10, off, src: Operand::Reg(src) } => {
            SpillAccess::Store(src, slot(off))
        }
        _ => SpillAccess::None,
    };
    match found {
        SpillAccess::Load(_, 0) | SpillAccess::Store(_, 0) => SpillAccess::None,
        found => found,
    }
}

/// Updates the slots that registers hold across an instruction.
fn step(held: &mut RegisterContents, e: &EmittedInsn, slot: &impl Fn(i16) -> SpillSlotSet) {
    match (access(e, slot), e.insn) {
        (SpillAccess::Load(dst, slots), _) => held[dst.index()] = slots,
        (SpillAccess::Store(src, slots), _) => {
            held.iter_mut().for_each(|h| *h &= !slots);
            held[src.index()] |= slots;
        }
        (SpillAccess::None, Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) })
            if src != Reg::R10 =>
        {
            held[dst.index()] = held[src.index()];
        }
        (SpillAccess::None, _) => {
            let (_, writes) = effect(e);
            for (_, held) in held.iter_mut().enumerate().filter(|(r, _)| writes & (1 << r) != 0) {
                *held = 0;
            }
        }
    }
}

/// Slots that registers hold on entry of each block, on every path to it.
fn held_in(blocks: &[EmittedBlock], slot: &impl Fn(i16) -> SpillSlotSet) -> Vec<Option<RegisterContents>> {
    let mut held: Vec<Option<RegisterContents>> = vec![None; blocks.len()];
    held[0] = Some([0; 10]);
    let mut work = vec![0];
    while let Some(b) = work.pop() {
        let Some(mut now) = held[b] else { continue };
        blocks[b].body.iter().for_each(|e| step(&mut now, e, slot));
        for s in successors(blocks[b].term) {
            let met = match held[s] {
                None => now,
                Some(old) => std::array::from_fn(|r| old[r] & now[r]),
            };
            if held[s] != Some(met) {
                held[s] = Some(met);
                work.push(s);
            }
        }
    }
    held
}

/// Loads of slots that a register holds become moves, or nothing; stores of values that are there already
/// become nothing.
fn reuse(blocks: &mut [EmittedBlock], slot: &impl Fn(i16) -> SpillSlotSet) {
    let held = held_in(blocks, slot);
    for (block, held) in blocks.iter_mut().zip(held) {
        let Some(mut now) = held else { continue };
        block.body.retain_mut(|e| {
            let before = now;
            step(&mut now, e, slot);
            match access(e, slot) {
                SpillAccess::Load(dst, slots) => {
                    let holder = (0..10u8).find(|&r| before[usize::from(r)] & slots != 0).and_then(Reg::new);
                    let Some(src) = holder else { return true };
                    let there = before[dst.index()] & slots != 0;
                    let src = if there { dst } else { src };
                    now[dst.index()] = before[src.index()];
                    e.insn = Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) };
                    !there
                }
                SpillAccess::Store(src, slots) => {
                    let there = before[src.index()] & slots != 0;
                    if there {
                        now = before;
                    }
                    !there
                }
                SpillAccess::None => true,
            }
        });
    }
}

/// Stores to slots that nobody loads before the next store.
fn drop_dead(blocks: &mut [EmittedBlock], slot: &impl Fn(i16) -> SpillSlotSet) {
    let before = |mut live: SpillSlotSet, e: &EmittedInsn| {
        match access(e, slot) {
            SpillAccess::Load(_, slots) => live |= slots,
            SpillAccess::Store(_, slots) => live &= !slots,
            SpillAccess::None => {}
        }
        live
    };
    let behind = |blocks: &[EmittedBlock], live: &[SpillSlotSet], b: usize| {
        successors(blocks[b].term).fold(0, |all, s| all | live[s])
    };
    let mut live: Vec<SpillSlotSet> = vec![0; blocks.len()];
    loop {
        let mut changed = false;
        for b in (0..blocks.len()).rev() {
            let now = blocks[b].body.iter().rev().fold(behind(blocks, &live, b), before);
            changed |= live[b] != now;
            live[b] = now;
        }
        if !changed {
            break;
        }
    }
    for b in 0..blocks.len() {
        let mut now = behind(blocks, &live, b);
        let mut keep = vec![true; blocks[b].body.len()];
        for (e, keep) in blocks[b].body.iter().zip(&mut keep).rev() {
            *keep = !matches!(access(e, slot), SpillAccess::Store(_, slots) if slots & now == 0);
            now = before(now, e);
        }
        let mut it = keep.iter();
        blocks[b].body.retain(|_| *it.next().unwrap_or(&true));
    }
}

#[cfg(test)]
mod tests {
    use millstream_ir::Cond;
    use millstream_isa::asm::assemble;

    use super::super::code::{SrcOperand, Terminator};
    use super::*;

    fn block(text: &str, term: Terminator) -> EmittedBlock {
        let body = assemble(text).expect("it assembles");
        let emitted = |insn| EmittedInsn { insn, sym: None, core: None, loc: 0, args: 0b10, undef: false };
        EmittedBlock { body: body.into_iter().map(emitted).collect(), term, loc: 0 }
    }

    /// The code that remains of blocks whose spill slots are at -8 and -16.
    fn tidied(mut blocks: Vec<EmittedBlock>) -> Vec<Vec<String>> {
        eliminate_redundant_spills(&mut blocks, &[-8, -16]);
        blocks.iter().map(|b| b.body.iter().map(|e| e.insn.to_string()).collect()).collect()
    }

    fn straight(text: &str) -> Vec<String> {
        tidied(vec![block(text, Terminator::Return)]).remove(0)
    }

    #[test]
    fn what_the_next_store_overwrites_is_not_stored() {
        let left = straight(
            "*(u64 *)(r10 -8) = r1\nr1 += 20\n*(u64 *)(r10 -8) = r1\nr1 *= 3\n\
             call bpf_ktime_get_ns#5\nr0 = *(u64 *)(r10 -8)",
        );
        assert_eq!(left[0], "r1 += 20");
        assert_eq!(left.len(), 5);
    }

    #[test]
    fn what_a_register_holds_is_not_loaded() {
        let left = straight(
            "r6 = *(u64 *)(r10 -8)\nr2 = *(u64 *)(r10 -8)\nr6 = *(u64 *)(r10 -8)\n*(u64 *)(r10 -8) = r2",
        );
        assert_eq!(left, ["r6 = *(u64 *)(r10 -8)", "r2 = r6"]);
    }

    #[test]
    fn what_was_changed_or_clobbered_is_loaded() {
        let text = "r1 = *(u64 *)(r10 -8)\nr6 = *(u64 *)(r10 -16)\ncall bpf_ktime_get_ns#5\nw6 += 1\n\
            r1 = *(u64 *)(r10 -8)\nr2 = *(u64 *)(r10 -16)";
        assert_eq!(straight(text).len(), 6);
        // A part of a slot, or a word that is no slot, is none of it.
        let text =
            "r1 = *(u64 *)(r10 -24)\nr1 = *(u64 *)(r10 -24)\nr1 = *(u32 *)(r10 -32)\nr1 = *(u32 *)(r10 -32)";
        assert_eq!(straight(text).len(), 4);
    }

    #[test]
    fn a_register_holds_what_it_does_on_all_ways() {
        let branch = Terminator::Branch {
            cond: Cond::Eq,
            width: Width::W64,
            dst: Reg::R7,
            src: SrcOperand::Imm(0),
            taken: 1,
            fall: 2,
        };
        let blocks = |other: &str| {
            vec![
                block("*(u64 *)(r10 -8) = r6", branch),
                block("r1 = r6", Terminator::Jump(3)),
                block(other, Terminator::Jump(3)),
                block("r1 = *(u64 *)(r10 -8)\nr2 = *(u64 *)(r10 -8)", Terminator::Return),
            ]
        };
        let left = tidied(blocks("r1 = *(u64 *)(r10 -8)\nr6 = 0"));
        assert_eq!(
            (left[0].len(), &left[2][0][..], &left[3][..]),
            (0, "r1 = r6", &["r2 = r1".to_owned()][..])
        );
        let left = tidied(blocks("r1 = 1\nr6 = 0"));
        assert_eq!(left[3], ["r1 = *(u64 *)(r10 -8)", "r2 = r1"]);
        assert_eq!(left[0].len(), 1, "it is read");
    }

    #[test]
    fn a_loop_keeps_what_it_reads_later() {
        let left = tidied(vec![
            block("*(u64 *)(r10 -8) = r6", Terminator::Jump(1)),
            block(
                "r1 = *(u64 *)(r10 -8)\nr6 = r1\nr6 += 1\n*(u64 *)(r10 -8) = r6\nr6 = 0",
                Terminator::Jump(1),
            ),
        ]);
        assert_eq!((left[0].len(), left[1].len()), (1, 5));
    }
}
