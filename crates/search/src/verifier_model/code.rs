//! A function's lines with the facts about them that do not depend on the path.

use millstream_isa::helpers::{ArgKind, Helper, HelperEffects};
use millstream_isa::{AtomicOp, Callee, Insn, LegacyMode, Operand, Reg};
use millstream_object::{FuncId, Linkage, Object, RelocKind};

use crate::code::FunctionCode;

/// Registers that a call changes.
pub(super) const SCRATCH: [Reg; 6] = [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// An instruction of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkLine {
    pub(super) insn: Insn,
    /// The line that a jump or branch goes to.
    pub(super) target: Option<usize>,
    pub(super) reloc: Option<RelocKind>,
    /// A relocated number, which the loader may change.
    pub(super) open: bool,
    /// States are compared and kept here.
    pub(super) prune: bool,
    /// The step to here is remembered: a jump, or the way back from a call.
    pub(super) jump_point: bool,
    /// A state is always kept here.
    pub(super) checkpoint: bool,
}

/// A function of the program.
#[derive(Debug)]
pub(super) struct WalkedFunction {
    pub(super) lines: Vec<WalkLine>,
    /// Registers that may still be read at the beginning of each line, one bit each.
    pub(super) live: Vec<u16>,
}

impl WalkedFunction {
    pub(super) fn new(object: &Object, func: u32) -> Option<WalkedFunction> {
        let code = FunctionCode::new(object.functions.get(func as usize)?)?;
        let mut lines = lines_of(object, &code);
        mark_prune_points(object, &mut lines);
        let live = registers_live_before(&code, &lines);
        Some(WalkedFunction { lines, live })
    }
}

/// Registers that are live before each line of a function, a bit each.
pub(crate) fn live_registers(object: &Object, func: u32) -> Option<Vec<u16>> {
    Some(WalkedFunction::new(object, func)?.live)
}

/// Returns true if a function is verified with the caller's state.
pub(super) fn is_static(object: &Object, func: FuncId) -> bool {
    object.functions.get(func.index()).is_some_and(|f| f.linkage == Linkage::Static || f.hidden)
}

/// The helper that a line calls.
pub(super) fn helper_of(insn: Insn) -> Option<&'static Helper> {
    if let Insn::Call(Callee::Helper(id)) = insn { Helper::get(id) } else { None }
}

fn lines_of(object: &Object, code: &FunctionCode) -> Vec<WalkLine> {
    let first = |block: usize| code.blocks.get(block).map(|b| b.first as usize);
    let line = |l: &crate::code::CodeLine| WalkLine {
        insn: l.insn,
        target: l.target.and_then(first),
        reloc: l.reloc,
        open: l.core.is_some(),
        prune: false,
        jump_point: false,
        checkpoint: calls_back(object, l.insn, l.reloc),
    };
    code.lines().map(line).collect()
}

/// Returns true if a call has the kernel call a function of the program, or begins a round of an iterator.
fn calls_back(object: &Object, insn: Insn, reloc: Option<RelocKind>) -> bool {
    let helper = helper_of(insn).is_some_and(|h| h.effects.contains(HelperEffects::CALLBACK));
    let next = match (insn, reloc) {
        (Insn::Call(_), Some(RelocKind::Extern(e))) => object
            .externs
            .get(e.index())
            .is_some_and(|e| e.name.starts_with("bpf_iter_") && e.name.ends_with("_next")),
        _ => false,
    };
    helper || next || matches!(insn, Insn::MayGoto { .. })
}

/// Marks the lines where states are compared, and those to which steps are remembered (`visit_insn`).
fn mark_prune_points(object: &Object, lines: &mut [WalkLine]) {
    let mut prune = vec![0];
    let mut jumps = vec![0];
    for (n, line) in lines.iter().enumerate() {
        jumps.extend(line.target);
        let enters = match (line.insn, line.reloc) {
            (Insn::Call(_), Some(RelocKind::Call(to))) => is_static(object, to),
            (Insn::LoadImm64 { .. }, Some(RelocKind::FuncAddr(_))) => true,
            _ => false,
        };
        if enters || matches!(line.insn, Insn::Call(_)) {
            jumps.push(n + 1);
        }
        if enters || line.checkpoint || matches!(line.insn, Insn::Branch { .. } | Insn::MayGoto { .. }) {
            prune.push(n);
        }
        if line.checkpoint && helper_of(line.insn).is_some() {
            jumps.push(n);
        }
    }
    prune.extend(&jumps);
    for n in jumps {
        lines.get_mut(n).into_iter().for_each(|l| l.jump_point = true);
    }
    for n in prune {
        lines.get_mut(n).into_iter().for_each(|l| l.prune = true);
    }
}

/// The register that an instruction other than a call writes.
pub(crate) fn written(insn: Insn) -> Option<Reg> {
    match insn {
        Insn::Alu { dst, .. }
        | Insn::Mov { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::AddrSpaceCast { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadAcquire { dst, .. } => Some(dst),
        Insn::Atomic { op: AtomicOp::CmpXchg, .. } => Some(Reg::R0),
        Insn::Atomic { fetch: true, src, .. } => Some(src),
        _ => None,
    }
}

/// Live registers before each line: a backward dataflow (`compute_live_registers`).
fn registers_live_before(code: &FunctionCode, lines: &[WalkLine]) -> Vec<u16> {
    let mut live = vec![0u16; lines.len()];
    loop {
        let mut changed = false;
        for block in code.blocks.iter().rev() {
            let first = |to: &usize| code.blocks.get(*to).and_then(|b| live.get(b.first as usize)).copied();
            let mut now = block.next.iter().filter_map(first).fold(0, |a, b| a | b);
            for i in (0..block.lines.len()).rev() {
                let n = block.first as usize + i;
                let (Some(line), Some(known)) = (lines.get(n), live.get_mut(n)) else { continue };
                now = live_before(line.insn, now);
                changed |= *known != now;
                *known = now;
            }
        }
        if !changed {
            return live;
        }
    }
}

fn live_before(insn: Insn, after: u16) -> u16 {
    let bit = |r: Reg| 1u16 << r.index();
    let operand = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
    let left = match insn {
        Insn::Call(_) | Insn::LegacyLoad { .. } => after & !0x3f,
        Insn::Exit => 0,
        insn => written(insn).map_or(after, |dst| after & !bit(dst)),
    };
    left | match insn {
        Insn::Alu { dst, src, .. } | Insn::Store { dst, src, .. } | Insn::Branch { dst, src, .. } => {
            bit(dst) | operand(src)
        }
        Insn::Mov { src, .. } => operand(src),
        Insn::MovSx { src, .. } | Insn::AddrSpaceCast { src, .. } => bit(src),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => bit(dst),
        Insn::Load { src, .. } | Insn::LoadAcquire { src, .. } => bit(src),
        Insn::StoreRelease { dst, src, .. } => bit(dst) | bit(src),
        Insn::Atomic { op, dst, src, .. } => bit(dst) | bit(src) | u16::from(op == AtomicOp::CmpXchg),
        Insn::LegacyLoad { mode, .. } => {
            bit(Reg::R6) | if let LegacyMode::Ind(r) = mode { bit(r) } else { 0 }
        }
        Insn::Call(_) => {
            let args = helper_of(insn)
                .map_or(5, |h| h.args.iter().take_while(|a| !matches!(a, ArgKind::Optional)).count().min(5));
            (1..=args).fold(0, |bits, n| bits | 1 << n)
        }
        Insn::Exit => 1,
        Insn::LoadImm64 { .. } | Insn::Jump { .. } | Insn::MayGoto { .. } => 0,
    }
}
