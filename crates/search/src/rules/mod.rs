//! Rules for windows: rewrites of bytecode with variable registers, constants and displacements, with the
//! facts required before them and the values that may be live after them. The search tries them before all
//! else.
//!
//! A rule is proven on its own ([`PeepholeRule::prove`]): for all values of its registers and all constants
//! of their ranges. Its replacement is checked like any candidate wherever it is applied, so a wrong rule
//! costs time and nothing else.
//!
//! A store of them has a checksum, like those of rules for terms. One rule per line: left side, right side,
//! required facts, live values (at each exit, and at the end), and origin.
//!
//! ```text
//! r0 <<= {a} => w0 <<= {a} @ a:[0x0,0xf] r0:n0[0x0,0xffff] @ r0 @ katran, fires 3
//! ```
//!
//! `r0:n0[min,max]` is a number of this range (two with one number are equal), `r0={a}` the constant of that
//! name, `r0:v0` a value that may be read, `r0:p1.0+4` an address in space 1, 4 bytes behind base 0,
//! `r0:s-16` one in the frame. Registers that are not named after the second `@` must not be live where the
//! rule is applied. All displacements from one base may be shifted by the same number, which is a claim about
//! another base and needs no other proof.

mod learn;
mod matcher;
mod text;

use millstream_isa::absint::Scalar;
use millstream_isa::semantics::eval;
use millstream_isa::{AluOp, Insn, Operand, Reg, Width};
use millstream_prove::window::{
    AddressSpace, EntryFact, LiveOut, WindowContext, WindowEntry, WindowProver, WindowStep, WindowVerdict,
};
use millstream_text_store::StoreError;
use rustc_hash::FxHashMap;

pub use learn::RuleCandidate;

use crate::facts::FRAME;
use crate::verifier_rules::{named, written};

/// First name of the numbers that are constants of the rule.
const CONSTANT: u32 = 1000;
/// Most instructions of a left side.
pub(crate) const LONGEST: usize = 6;

/// The second operand of a computed constant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ConstOperand {
    Const(usize),
    Literal(i32),
}

/// A constant of an instruction: one of the rule's, or computed from one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RuleConstant {
    of: usize,
    then: Option<(AluOp, ConstOperand)>,
}

impl RuleConstant {
    fn value(self, consts: &[Option<u64>]) -> Option<u64> {
        let of = (*consts.get(self.of)?)?;
        Some(match self.then {
            None => of,
            Some((op, ConstOperand::Literal(k))) => eval::alu(op, Width::W64, of, k as i64 as u64),
            Some((op, ConstOperand::Const(n))) => eval::alu(op, Width::W64, of, (*consts.get(n)?)?),
        })
    }
}

/// An instruction of a rule, with the constant that replaces its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RuleInsn {
    step: WindowStep,
    imm: Option<RuleConstant>,
}

/// A rule.
#[derive(Clone, PartialEq, Debug)]
pub struct PeepholeRule {
    /// Location: store and line; empty for one that was just found.
    pub name: String,
    left: Vec<RuleInsn>,
    right: Vec<RuleInsn>,
    /// The range of each constant.
    consts: Vec<Scalar>,
    /// Facts required of each register.
    regs: [EntryFact; 11],
    /// The bits of each register that may be live: at the exits, then at the end.
    looks: Vec<[u64; 11]>,
    /// Place where it was found.
    pub origin: String,
    /// Applications in the last corpus.
    pub fires: u64,
}

/// The constant of an instruction, if it has one.
pub(crate) fn imm(insn: &Insn) -> Option<u64> {
    match insn {
        Insn::Alu { src: Operand::Imm(k), .. }
        | Insn::Mov { src: Operand::Imm(k), .. }
        | Insn::Store { src: Operand::Imm(k), .. }
        | Insn::Branch { src: Operand::Imm(k), .. } => Some(*k as i64 as u64),
        Insn::LoadImm64 { imm, .. } => Some(*imm),
        _ => None,
    }
}

/// The instruction with another constant; [`None`] if that does not fit.
pub(crate) fn with_imm(mut insn: Insn, value: u64) -> Option<Insn> {
    let short = i32::try_from(value as i64).ok();
    match &mut insn {
        Insn::LoadImm64 { imm, .. } => *imm = value,
        Insn::Alu { src, width, .. } | Insn::Mov { src, width, .. } | Insn::Branch { src, width, .. } => {
            let half = (*width == Width::W32 && value >> 32 == 0).then_some(value as u32 as i32);
            *src = Operand::Imm(short.or(half)?);
        }
        Insn::Store { src, .. } => *src = Operand::Imm(short?),
        _ => return None,
    }
    Some(insn)
}

/// The instruction with its constant taken from a register.
fn from_register(mut insn: Insn, r: Reg) -> Insn {
    match &mut insn {
        Insn::Alu { src, .. }
        | Insn::Mov { src, .. }
        | Insn::Branch { src, .. }
        | Insn::Store { src, .. } => {
            *src = Operand::Reg(r);
        }
        Insn::LoadImm64 { dst, .. } => {
            insn = Insn::Mov { width: Width::W64, dst: *dst, src: Operand::Reg(r) };
        }
        _ => {}
    }
    insn
}

fn insn_of(step: &WindowStep) -> Insn {
    match step {
        WindowStep::Do(i) | WindowStep::Exit(_, i) | WindowStep::Opaque(_, i) => *i,
    }
}

/// A step with another instruction.
fn with_insn(step: WindowStep, insn: Insn) -> WindowStep {
    match step {
        WindowStep::Do(_) => WindowStep::Do(insn),
        WindowStep::Exit(n, _) => WindowStep::Exit(n, insn),
        WindowStep::Opaque(n, _) => WindowStep::Opaque(n, insn),
    }
}

/// The registers of a step, those that it reads first.
fn registers(step: &WindowStep) -> impl Iterator<Item = Reg> + use<> {
    let insn = insn_of(step);
    named(insn).into_iter().chain(written(insn))
}

/// A rule as two windows at a place, constants being registers; [`None`] if there are too few registers.
struct RuleClaim {
    place: WindowContext,
    left: Vec<WindowStep>,
    right: Vec<WindowStep>,
}

impl PeepholeRule {
    /// Proves that both sides do the same wherever the rule may be applied.
    pub fn prove(&self, prover: &mut WindowProver) -> WindowVerdict {
        match self.claim() {
            Some(claim) => prover.judge(&claim.place, &claim.left, &claim.right),
            None => WindowVerdict::Unknown("too many registers and constants".into()),
        }
    }

    fn claim(&self) -> Option<RuleClaim> {
        let mut taken = [false; 11];
        taken[10] = true;
        let steps = self.left.iter().chain(&self.right);
        steps.flat_map(|i| registers(&i.step)).for_each(|r| taken[r.index()] = true);
        let mut regs = self.regs;
        let mut spare = (0..10).rev().filter(|n| !taken[*n]);
        let mut homes = Vec::new();
        for (k, range) in self.consts.iter().enumerate() {
            let home = spare.next()?;
            regs[home] = EntryFact::Number(*range, CONSTANT + k as u32);
            homes.push(Reg::new(home as u8)?);
        }
        // A register that holds a constant of the rule has its range.
        for known in &mut regs {
            if let EntryFact::Number(range, id) = known
                && let Some(class) = id.checked_sub(CONSTANT).and_then(|k| self.consts.get(k as usize))
            {
                *range = *class;
            }
        }
        let mut side = |items: &[RuleInsn]| -> Option<Vec<WindowStep>> {
            let mut out = Vec::new();
            for item in items {
                let Some(expr) = item.imm else {
                    out.push(item.step);
                    continue;
                };
                let mut from = *homes.get(expr.of)?;
                if let Some((op, arg)) = expr.then {
                    let fresh = Reg::new(spare.next()? as u8)?;
                    let src = match arg {
                        ConstOperand::Const(n) => Operand::Reg(*homes.get(n)?),
                        ConstOperand::Literal(k) => Operand::Imm(k),
                    };
                    out.push(WindowStep::Do(Insn::Mov {
                        width: Width::W64,
                        dst: fresh,
                        src: Operand::Reg(from),
                    }));
                    out.push(WindowStep::Do(Insn::Alu { width: Width::W64, op, dst: fresh, src }));
                    from = fresh;
                }
                out.push(with_insn(item.step, from_register(insn_of(&item.step), from)));
            }
            Some(out)
        };
        let (left, right) = (side(&self.left)?, side(&self.right)?);
        let stack = self.stack();
        let mut lives = self.looks.iter().map(|regs| LiveOut { regs: *regs, stack: stack.clone() });
        let end = lives.next_back()?;
        let entry = WindowEntry { regs, bytes: Default::default(), spills: Default::default() };
        Some(RuleClaim { place: WindowContext { entry, exits: lives.collect(), end }, left, right })
    }

    /// The live bytes of the frame: all, if either side has an address in it.
    fn stack(&self) -> Vec<i16> {
        let in_frame = |r: Reg| matches!(self.regs[r.index()], EntryFact::Address(AddressSpace::Stack, ..));
        let mut registers = self.left.iter().chain(&self.right).flat_map(|i| registers(&i.step));
        if registers.any(in_frame) { (-(FRAME as i16)..0).collect() } else { Vec::new() }
    }
}

/// Base, displacement and bytes of an access to memory.
fn access(insn: &Insn) -> Option<(Reg, i16, u32)> {
    match *insn {
        Insn::Load { src, off, size, .. } => Some((src, off, size.bytes())),
        Insn::Store { dst, off, size, .. } | Insn::Atomic { dst, off, size, .. } => {
            Some((dst, off, size.bytes()))
        }
        _ => None,
    }
}

/// An instruction without registers, constant and displacement.
fn skeleton(step: &WindowStep) -> Insn {
    let mut insn = insn_of(step);
    insn.rename(|_| Reg::R0);
    insn = match (imm(&insn), &mut insn) {
        (Some(_), Insn::LoadImm64 { imm, .. }) => {
            *imm = 0;
            insn
        }
        (Some(_), _) => with_imm(insn, 0).unwrap_or(insn),
        _ => insn,
    };
    match &mut insn {
        Insn::Load { off, .. }
        | Insn::Store { off, .. }
        | Insn::Atomic { off, .. }
        | Insn::Branch { off, .. } => *off = 0,
        _ => {}
    }
    insn
}

/// Rules, indexed by the shape of their left sides.
#[derive(Clone, Debug, Default)]
pub struct PeepholeRuleSet {
    rules: Vec<PeepholeRule>,
    index: FxHashMap<Vec<Insn>, Vec<usize>>,
}

impl PeepholeRuleSet {
    /// These rules without duplicates; of equal ones the first.
    pub fn new(rules: Vec<PeepholeRule>) -> PeepholeRuleSet {
        let mut out = PeepholeRuleSet::default();
        for rule in rules {
            let key: Vec<Insn> = rule.left.iter().map(|i| skeleton(&i.step)).collect();
            let known = out.index.entry(key).or_default();
            if !known.iter().any(|&n| rule.says(&out.rules[n])) {
                known.push(out.rules.len());
                out.rules.push(rule);
            }
        }
        out
    }

    /// The rules that are shipped.
    ///
    /// # Errors
    /// [`StoreError`] if the file is damaged.
    pub fn builtin() -> Result<PeepholeRuleSet, StoreError> {
        PeepholeRuleSet::parse("windows.rules", include_str!("../windows.rules"))
    }

    /// All of them, in order.
    pub fn rules(&self) -> &[PeepholeRule] {
        &self.rules
    }

    /// The rules whose left sides may match these instructions.
    fn like(&self, steps: &[WindowStep]) -> &[usize] {
        let key: Vec<Insn> = steps.iter().map(skeleton).collect();
        self.index.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Returns true if there are rules for instructions like these.
    pub(crate) fn may_match(&self, insns: impl Iterator<Item = Insn>) -> bool {
        let key: Vec<Insn> = insns.map(|i| skeleton(&WindowStep::Do(i))).collect();
        self.index.contains_key(&key)
    }
}

impl PeepholeRule {
    /// Returns true if two rules are the same except for their origins.
    fn says(&self, other: &PeepholeRule) -> bool {
        let part = |r: &PeepholeRule| PeepholeRule {
            name: String::new(),
            origin: String::new(),
            fires: 0,
            ..r.clone()
        };
        part(self) == part(other)
    }
}
