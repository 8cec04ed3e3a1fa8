//! Numbers whose exact values count: found by walking a path backwards (`mark_chain_precision`).

use std::rc::Rc;

use millstream_isa::{Insn, Operand, Reg};

use super::code::{SCRATCH, WalkedFunction, written};
use super::frame::{StackSlot, VerifierFrame};
use super::rules::WalkRules;

/// Most nested frames of calls.
pub(super) const FRAMES: usize = 8;

/// A step on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryStep {
    pub(super) frame: u8,
    pub(super) func: u32,
    pub(super) line: u32,
    /// Frame and slot that a spilled value was written to or read from.
    pub(super) slot: Option<(u8, u8)>,
    /// Registers that a branch refined together.
    pub(super) linked: u16,
    /// The step enters a function or leaves one.
    pub(super) crossing: FrameCrossing,
}

/// Change of frame by a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameCrossing {
    None,
    /// A call: the next step is in a new frame.
    Enter,
    /// A return to the frame below.
    Leave,
}

/// Registers and slots, by frame, whose exact numbers count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PrecisionNeeds {
    regs: [u16; FRAMES],
    slots: [u64; FRAMES],
    /// All numbers of earlier states count (`mark_all_scalars_precise`).
    pub(super) all: bool,
}

impl PrecisionNeeds {
    pub(super) fn registers(frame: usize, regs: u16) -> PrecisionNeeds {
        let mut needs = PrecisionNeeds::default();
        if let Some(own) = needs.regs.get_mut(frame) {
            *own = regs;
        }
        needs
    }

    /// The same and a slot of a frame.
    pub(super) fn and_slot(mut self, slot: Option<(u8, u8)>) -> PrecisionNeeds {
        if let Some((frame, slot)) = slot
            && let Some(own) = self.slots.get_mut(usize::from(frame))
        {
            *own |= 1 << slot;
        }
        self
    }

    /// The precise numbers of a kept state.
    pub(super) fn of(frames: &[VerifierFrame]) -> PrecisionNeeds {
        let mut needs = PrecisionNeeds::default();
        for (n, frame) in frames.iter().enumerate().take(FRAMES) {
            let precise = (0..10usize).filter(|r| frame.regs[*r].precise);
            needs.regs[n] = precise.fold(0, |bits, r| bits | 1 << r);
            for (s, slot) in frame.stack.iter().enumerate() {
                if matches!(slot, StackSlot::Spill(reg, ..) if reg.precise) {
                    needs.slots[n] |= 1 << s;
                }
            }
        }
        needs
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == PrecisionNeeds::default()
    }

    /// The needs before a step.
    pub(super) fn before(&mut self, rules: &WalkRules, step: &HistoryStep, function: &WalkedFunction) {
        let frame = usize::from(step.frame).min(FRAMES - 1);
        if !rules.follows_needs && step.crossing != FrameCrossing::None {
            self.all = true;
            return;
        }
        match step.crossing {
            FrameCrossing::Leave => {
                // Backwards, the callee begins with its result.
                let caller = frame.saturating_sub(1);
                self.regs[frame] = self.regs[caller] & 1;
                self.regs[caller] &= !1;
            }
            FrameCrossing::Enter => {
                let callee = (frame + 1).min(FRAMES - 1);
                self.regs[frame] |= self.regs[callee] & 0b11_1110;
                self.regs[callee] = 0;
                self.slots[callee] = 0;
            }
            FrameCrossing::None => {
                if let Some(line) = function.lines.get(step.line as usize) {
                    self.before_insn(rules, frame, line.insn, step);
                }
            }
        }
    }

    fn take(&mut self, frame: usize, r: Reg) -> bool {
        let bit = 1u16 << r.index();
        let had = self.regs[frame] & bit != 0;
        self.regs[frame] &= !bit;
        had
    }

    fn want(&mut self, frame: usize, r: Reg) {
        if r != Reg::R10 {
            self.regs[frame] |= 1 << r.index();
        }
    }

    fn before_insn(&mut self, rules: &WalkRules, frame: usize, insn: Insn, step: &HistoryStep) {
        let followed = |base: Reg| rules.follows_needs || base == Reg::R10;
        match insn {
            Insn::Alu { dst, src, .. } => {
                if let Operand::Reg(r) = src
                    && self.regs[frame] >> dst.index() & 1 == 1
                {
                    self.want(frame, r);
                }
            }
            Insn::Mov { dst, src, .. } => {
                if self.take(frame, dst)
                    && let Operand::Reg(r) = src
                {
                    self.want(frame, r);
                }
            }
            Insn::MovSx { dst, src, .. } | Insn::AddrSpaceCast { dst, src, .. } => {
                if self.take(frame, dst) {
                    self.want(frame, src);
                }
            }
            Insn::Neg { .. } | Insn::Swap { .. } => {}
            Insn::Load { dst, src, .. } => {
                if self.take(frame, dst)
                    && followed(src)
                    && let Some((at, slot)) = step.slot
                {
                    self.slots[usize::from(at).min(FRAMES - 1)] |= 1 << slot;
                }
            }
            Insn::Store { dst, src, .. } => {
                if let Some((at, slot)) = step.slot.filter(|_| followed(dst)) {
                    let slots = &mut self.slots[usize::from(at).min(FRAMES - 1)];
                    if *slots >> slot & 1 == 1 {
                        *slots &= !(1 << slot);
                        if let Operand::Reg(r) = src {
                            self.want(frame, r);
                        }
                    }
                }
            }
            Insn::Branch { dst, src, .. } => {
                let both = 1 << dst.index() | if let Operand::Reg(r) = src { 1 << r.index() } else { 0 };
                if matches!(src, Operand::Reg(_)) && self.regs[frame] & both != 0 {
                    self.regs[frame] |= both;
                }
                if self.regs[frame] & step.linked != 0 {
                    self.regs[frame] |= step.linked;
                }
            }
            Insn::Call(_) | Insn::LegacyLoad { .. } => {
                SCRATCH.iter().for_each(|r| _ = self.take(frame, *r));
            }
            insn => {
                if let Some(dst) = written(insn) {
                    self.take(frame, dst);
                }
            }
        }
    }

    /// Marks a kept state; what is precise there already, or no number, is not looked for any further.
    pub(super) fn mark(&mut self, frames: &mut [VerifierFrame]) {
        for n in 0..FRAMES {
            let Some(frame) = frames.get_mut(n) else {
                (self.regs[n], self.slots[n]) = (0, 0);
                continue;
            };
            let (regs, slots) = (self.regs[n], self.slots[n]);
            for r in (0..10usize).filter(|r| regs >> r & 1 == 1) {
                let reg = &mut frame.regs[r];
                if reg.precise || !reg.is_number() {
                    self.regs[n] &= !(1 << r);
                } else {
                    reg.precise = true;
                }
            }
            for s in (0..64usize).filter(|s| slots >> s & 1 == 1) {
                let is_open = |slot: &StackSlot| match slot {
                    StackSlot::Spill(reg, ..) => reg.is_number() && !reg.precise,
                    StackSlot::Bytes(_) => false,
                };
                if !frame.stack.get(s).is_some_and(is_open) {
                    self.slots[n] &= !(1 << s);
                } else if let Some(StackSlot::Spill(reg, ..)) = Rc::make_mut(&mut frame.stack).get_mut(s) {
                    reg.precise = true;
                }
            }
        }
    }
}
