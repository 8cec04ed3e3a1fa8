//! Control flow and register liveness of a function's bytecode: what SSA construction needs to know first.

use millstream_isa::helpers::{ArgKind, Helper};
use millstream_isa::{Callee, Insn, LegacyMode, Operand, Reg, decode_all};
use rustc_hash::FxHashMap;

use millstream_ir::Func;

use super::{BytecodeFunction, LiftError, RelocTarget, Signature};

/// A set of `r0` to `r9`, one bit each.
pub(super) type RegSet = u16;

const ARGS: RegSet = 0b11_1110;

pub(super) fn bit(reg: Reg) -> RegSet {
    // The frame pointer is a constant of the function, not a variable.
    if reg == Reg::R10 { 0 } else { 1 << reg.index() }
}

fn first_args(n: u8) -> RegSet {
    ARGS & ((2 << n) - 1)
}

/// An instruction and the slot where it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocatedInsn {
    pub(super) slot: u32,
    pub(super) insn: Insn,
}

/// A run of instructions that is entered at its start and left at its end.
#[derive(Clone, Debug)]
pub(super) struct BytecodeBlock {
    /// Range of instruction indices.
    pub(super) insns: std::ops::Range<usize>,
    /// Successors as run indices: for a branch the taken one first.
    pub(super) succs: Vec<usize>,
    pub(super) live_in: RegSet,
    pub(super) live_out: RegSet,
    /// Registers that every path has written on entry.
    pub(super) init_in: RegSet,
    pub(super) reachable: bool,
}

/// Decoded bytecode with its control-flow graph. Run 0 is the entry.
#[derive(Clone, Debug)]
pub(super) struct BytecodeCfg {
    pub(super) insns: Vec<LocatedInsn>,
    pub(super) runs: Vec<BytecodeBlock>,
    pub(super) rpo: Vec<usize>,
    /// True if an exit passes on `r0`, as of the last [`BytecodeCfg::analyse`].
    returns: bool,
}

impl BytecodeCfg {
    pub(super) fn new(source: &BytecodeFunction) -> Result<BytecodeCfg, LiftError> {
        let decoded = decode_all(&source.insns).map_err(|e| error(source, 0, e.to_string()))?;
        let insns: Vec<LocatedInsn> =
            decoded.into_iter().map(|(slot, insn)| LocatedInsn { slot: slot as u32, insn }).collect();
        if insns.is_empty() {
            return Err(error(source, 0, "the function has no instruction".into()));
        }
        let jumps = jumps(source, &insns)?;
        let runs = runs(source, &insns, &jumps)?;
        let mut scan = BytecodeCfg { insns, runs, rpo: Vec::new(), returns: false };
        scan.order();
        Ok(scan)
    }

    fn order(&mut self) {
        let mut post = Vec::new();
        let mut stack = vec![(0usize, 0usize)];
        self.runs[0].reachable = true;
        while let Some((run, next)) = stack.last_mut() {
            match self.runs[*run].succs.get(*next).copied() {
                Some(s) => {
                    *next += 1;
                    if !self.runs[s].reachable {
                        self.runs[s].reachable = true;
                        stack.push((s, 0));
                    }
                }
                None => {
                    post.push(*run);
                    stack.pop();
                }
            }
        }
        post.reverse();
        self.rpo = post;
    }

    /// Computes which registers are surely written, and which are live, given what callees take and return.
    pub(super) fn analyse(
        &mut self,
        source: &BytecodeFunction,
        sigs: &dyn Fn(&RelocTarget) -> Signature,
        own: Signature,
    ) {
        self.returns = own.returns;
        self.initialised(first_args(own.args), source, sigs);
        loop {
            let mut changed = false;
            for i in (0..self.rpo.len()).rev() {
                let r = self.rpo[i];
                let out = self.runs[r].succs.iter().fold(0, |acc, &s| acc | self.runs[s].live_in);
                let mut init = self.runs[r].init_in;
                let mut steps = Vec::with_capacity(self.runs[r].insns.len());
                for l in &self.insns[self.runs[r].insns.clone()] {
                    let access = access(l, source, sigs, own, init);
                    init = init & !access.clobbers | access.defs;
                    steps.push(access);
                }
                let live = steps.iter().rev().fold(out, |live, a| live & !(a.defs | a.clobbers) | a.uses);
                changed |= live != self.runs[r].live_in || out != self.runs[r].live_out;
                (self.runs[r].live_in, self.runs[r].live_out) = (live, out);
            }
            if !changed {
                break;
            }
        }
    }

    fn initialised(
        &mut self,
        entry: RegSet,
        source: &BytecodeFunction,
        sigs: &dyn Fn(&RelocTarget) -> Signature,
    ) {
        let all: RegSet = 0x3ff;
        for run in &mut self.runs {
            run.init_in = all;
        }
        self.runs[0].init_in = entry;
        let mut changed = true;
        while changed {
            changed = false;
            for i in 0..self.rpo.len() {
                let r = self.rpo[i];
                let own = Signature { args: 0, returns: false };
                let mut init = self.runs[r].init_in;
                for l in &self.insns[self.runs[r].insns.clone()] {
                    let a = access(l, source, sigs, own, init);
                    init = init & !a.clobbers | a.defs;
                }
                for s in self.runs[r].succs.clone() {
                    let met = self.runs[s].init_in & init;
                    changed |= met != self.runs[s].init_in;
                    self.runs[s].init_in = met;
                }
            }
        }
    }
}

fn error(source: &BytecodeFunction, slot: u32, what: String) -> LiftError {
    LiftError { function: source.name.clone(), slot: slot as usize, what, dependent: false }
}

/// The jump target of each instruction, if it has one.
fn jumps(source: &BytecodeFunction, insns: &[LocatedInsn]) -> Result<Vec<Option<usize>>, LiftError> {
    let index_of: FxHashMap<i64, usize> =
        insns.iter().enumerate().map(|(i, l)| (i64::from(l.slot), i)).collect();
    let target = |l: &LocatedInsn, off: i64| {
        let slot = i64::from(l.slot) + 1 + off;
        let what = || format!("jump to slot {slot}, where no instruction starts");
        index_of.get(&slot).copied().ok_or_else(|| error(source, l.slot, what()))
    };
    insns.iter().map(|l| jump_offset(l.insn).map(|off| target(l, off)).transpose()).collect()
}

/// Runs of instructions without a jump from or to their inside, with their successors.
fn runs(
    source: &BytecodeFunction,
    insns: &[LocatedInsn],
    jumps: &[Option<usize>],
) -> Result<Vec<BytecodeBlock>, LiftError> {
    let mut leader = vec![false; insns.len() + 1];
    leader[0] = true;
    for (i, l) in insns.iter().enumerate() {
        leader[i + 1] |= jumps[i].is_some() || l.insn == Insn::Exit;
        if let Some(t) = jumps[i] {
            leader[t] = true;
        }
    }
    let starts: Vec<usize> = (0..insns.len()).filter(|&i| leader[i]).collect();
    let mut run_of = vec![0; insns.len()];
    let mut runs = Vec::with_capacity(starts.len());
    for (r, &start) in starts.iter().enumerate() {
        let end = starts.get(r + 1).copied().unwrap_or(insns.len());
        run_of[start..end].fill(r);
        let (insns, succs) = (start..end, Vec::new());
        runs.push(BytecodeBlock { insns, succs, live_in: 0, live_out: 0, init_in: 0, reachable: false });
    }
    for run in &mut runs {
        let last = run.insns.end - 1;
        let end = || error(source, insns[last].slot, "control runs off the end".into());
        let falls_to = || run_of.get(last + 1).copied().ok_or_else(end);
        run.succs = match (insns[last].insn, jumps[last]) {
            (Insn::Exit, _) => vec![],
            (Insn::Jump { .. }, Some(t)) => vec![run_of[t]],
            (_, Some(t)) => vec![run_of[t], falls_to()?],
            (_, None) => vec![falls_to()?],
        };
    }
    Ok(runs)
}

fn jump_offset(insn: Insn) -> Option<i64> {
    match insn {
        Insn::Jump { off, .. } => Some(i64::from(off)),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => Some(i64::from(off)),
        _ => None,
    }
}

/// Registers that an instruction reads, writes, and leaves undefined.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RegEffects {
    pub(super) uses: RegSet,
    pub(super) defs: RegSet,
    pub(super) clobbers: RegSet,
}

/// Registers that an instruction reads and writes; `init` are those surely written before it.
pub(super) fn access(
    l: &LocatedInsn,
    source: &BytecodeFunction,
    sigs: &dyn Fn(&RelocTarget) -> Signature,
    own: Signature,
    init: RegSet,
) -> RegEffects {
    let operand = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
    let simple = |uses, defs| RegEffects { uses, defs, clobbers: 0 };
    match l.insn {
        Insn::Alu { dst, src, .. } => simple(bit(dst) | operand(src), bit(dst)),
        Insn::Mov { dst, src, .. } => simple(operand(src), bit(dst)),
        Insn::MovSx { dst, src, .. } | Insn::AddrSpaceCast { dst, src, .. } => simple(bit(src), bit(dst)),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => simple(bit(dst), bit(dst)),
        Insn::LoadImm64 { dst, .. } => simple(0, bit(dst)),
        Insn::Load { dst, src, .. } | Insn::LoadAcquire { dst, src, .. } => simple(bit(src), bit(dst)),
        Insn::Store { dst, src, .. } => simple(bit(dst) | operand(src), 0),
        Insn::StoreRelease { dst, src, .. } => simple(bit(dst) | bit(src), 0),
        Insn::Atomic { op, fetch, dst, src, .. } => {
            let compares = op == millstream_isa::AtomicOp::CmpXchg;
            let old = if compares { Reg::R0 } else { src };
            let uses = bit(dst) | bit(src) | if compares { bit(Reg::R0) } else { 0 };
            simple(uses, if fetch { bit(old) } else { 0 })
        }
        Insn::LegacyLoad { mode, .. } => {
            let index = if let LegacyMode::Ind(r) = mode { bit(r) } else { 0 };
            RegEffects { uses: bit(Reg::R6) | index, defs: 1, clobbers: ARGS }
        }
        Insn::Jump { .. } | Insn::MayGoto { .. } => RegEffects::default(),
        Insn::Branch { dst, src, .. } => simple(bit(dst) | operand(src), 0),
        Insn::Exit => simple(if own.returns { 1 } else { 0 }, 0),
        Insn::Call(callee) => {
            let args = first_args(call_args(l.slot, callee, source, sigs, init));
            let through = if let Callee::Register(r) = callee { bit(r) } else { 0 };
            RegEffects { uses: args | through, defs: 1, clobbers: ARGS }
        }
    }
}

/// Number of arguments of a call. Where nothing declares it, all registers from `r1` on that are surely
/// written.
pub(super) fn call_args(
    slot: u32,
    callee: Callee,
    source: &BytecodeFunction,
    sigs: &dyn Fn(&RelocTarget) -> Signature,
    init: RegSet,
) -> u8 {
    let written = (1..=5u8).take_while(|n| init & (1 << n) != 0).count() as u8;
    match callee {
        Callee::Helper(id) => match Helper::get(id) {
            Some(h) => {
                let fixed = h.args.iter().filter(|a| **a != ArgKind::Optional).count() as u8;
                fixed.max(written.min(h.args.len() as u8))
            }
            None => written,
        },
        Callee::Local(_) | Callee::Kfunc { .. } => {
            source.syms.get(&slot).map_or(written, |s| match sigs(s).args {
                Signature::UNKNOWN => written,
                n => n,
            })
        }
        Callee::Register(_) => written,
    }
}

impl BytecodeCfg {
    /// The highest argument register that is live on entry, as a number of arguments.
    pub(super) fn highest_arg(&self) -> u8 {
        (1..=5u8).rev().find(|n| self.runs[0].live_in & (1 << n) != 0).unwrap_or(0)
    }

    /// Functions of the module whose result is live after some call here.
    pub(super) fn used_results(&self, source: &BytecodeFunction) -> Vec<Func> {
        let mut used = Vec::new();
        for &r in &self.rpo {
            let run = &self.runs[r];
            for i in run.insns.clone() {
                let l = &self.insns[i];
                let Insn::Call(Callee::Local(_)) = l.insn else { continue };
                let Some(RelocTarget::Func(callee)) = source.syms.get(&l.slot) else { continue };
                if self.result_read(source, run, i + 1) {
                    used.push(*callee);
                }
            }
        }
        used
    }

    /// Returns true if `r0` is read from instruction `from` of the run on, before it is written.
    fn result_read(&self, source: &BytecodeFunction, run: &BytecodeBlock, from: usize) -> bool {
        let nothing = Signature { args: 0, returns: false };
        for l in &self.insns[from..run.insns.end] {
            let access = access(l, source, &|_| nothing, nothing, 0);
            if access.uses & 1 != 0 {
                return true;
            }
            if access.defs & 1 != 0 {
                return false;
            }
        }
        // An exit passes it on; whether that counts is in this function's own signature, by way of
        // `live_out`.
        run.live_out & 1 != 0 || (run.succs.is_empty() && self.returns)
    }
}
