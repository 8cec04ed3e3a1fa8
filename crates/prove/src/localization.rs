//! Finds the place in a program that made a difference: the last instruction that changed the observable that
//! differs.
//!
//! A run is stopped after each number of instructions, from its end backward, until the observable does not
//! yet have its final value. The next instruction is the place.

use std::time::{Duration, Instant};

use millstream_isa::{Callee, Insn, Operand, Reg};
use millstream_object::{FuncId, Object};

use crate::replay::{ObservableKind, ReplayHarness, ReplayInput};

/// Most steps back.
const MOST: u64 = 1 << 14;
/// Time limit for the search.
const PATIENCE: Duration = Duration::from_millis(500);

/// An instruction, and the source line that it comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InsnLocation {
    /// The program's slot, its functions one after the other.
    pub slot: usize,
    /// The line, if the object says it.
    pub line: Option<SourceLineText>,
}

/// A source line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLineText {
    /// The file.
    pub file: String,
    /// Number of the line, from 1.
    pub number: u32,
    /// Its text.
    pub text: String,
}

impl std::fmt::Display for InsnLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "instruction {}", self.slot)?;
        match &self.line {
            Some(l) => write!(f, ", {}:{}: {}", l.file, l.number, l.text.trim()),
            None => Ok(()),
        }
    }
}

/// The slot that gave an observable of one run its final value: the instruction that wrote it, or, if the
/// result is a constant, the last branch, which chose it.
pub(crate) fn slot(
    stage: &ReplayHarness<'_>,
    which: usize,
    scene: &ReplayInput,
    observable: &ObservableKind,
) -> Option<usize> {
    let deadline = Instant::now() + PATIENCE;
    let end = stage.stop(which, scene, u64::MAX)?;
    let last = end.executed;
    let mut after = end;
    // The result is the last value of r0, so the search goes back to the instruction that set it.
    let (mut constant, mut branch) = (None, None);
    for executed in (last.saturating_sub(MOST)..last).rev() {
        if Instant::now() >= deadline {
            return constant;
        }
        let before = stage.stop(which, scene, executed)?;
        let slot = before.slot?;
        if *observable == ObservableKind::Result {
            match stage.insn(which, slot) {
                Some(Insn::Branch { .. }) if constant.is_some() => return Some(slot),
                Some(Insn::Branch { .. }) => branch = branch.or(Some(slot)),
                Some(insn) if constant.is_none() && sets_result(&insn) => {
                    if !matches!(insn, Insn::Mov { src: Operand::Imm(_), .. }) {
                        return Some(slot);
                    }
                    if branch.is_some() {
                        return branch;
                    }
                    constant = Some(slot);
                }
                _ => {}
            }
        } else if !observable.same(&before.outcome, &after.outcome) {
            return Some(slot);
        }
        after = before;
    }
    constant
}

/// Returns true if an instruction writes `r0`.
fn sets_result(insn: &Insn) -> bool {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Mov { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadAcquire { dst, .. } => dst == Reg::R0,
        // A function of the program sets its result itself.
        Insn::Call(callee) => !matches!(callee, Callee::Local(_)),
        _ => false,
    }
}

/// The slot with its source line.
pub(crate) fn with_line(object: &Object, func: FuncId, slot: usize) -> InsnLocation {
    InsnLocation { slot, line: line(object, func, slot) }
}

fn line(object: &Object, func: FuncId, slot: usize) -> Option<SourceLineText> {
    let linked = object.link(func).ok()?;
    let btf = object.btf.as_ref()?;
    let at = linked.line_info.partition_point(|l| l.insn as usize <= slot).checked_sub(1)?;
    let info = linked.line_info.get(at)?;
    let text = |s| btf.str(s).to_owned();
    Some(SourceLineText { file: text(info.file), number: info.line, text: text(info.text) })
}
