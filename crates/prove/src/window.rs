//! Equivalence of two windows: straight-line sequences of instructions, with branches out of them, at a known
//! place.
//!
//! The facts at the beginning of a window (registers, bytes of the stack) are given, and so are the live
//! values after it and at each of its exits. Values are numbers, addresses too; each register that holds an
//! address also has the *space* into which it points, and places in two spaces are never the same. The stack
//! is kept byte by byte, other spaces are memories.
//!
//! Two windows are equal if, from all initial values, they leave by the same exit and agree in all live
//! values there. The question put is stronger than necessary: each exit must be taken under the same
//! condition whether or not an earlier one was taken, so that no paths have to be distinguished.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_isa::absint::Scalar;
use millstream_isa::semantics::{self, Domain, Pred, Prim};
use millstream_isa::{AluOp, Insn, Operand, Reg, Size, Width};

use crate::solver::{SolverAnswer as Said, SolverSession};
use crate::term::{Sort, TermId, TermPool, congruence, mask, sum};
use crate::{ProofLimits, Solver, SolverError};
use synthesis::SketchSolver;
pub use synthesis::{InsnSketch, SketchCompletion, SketchLine};
use values::{given, valuation, wanted};

/// Distinct terms after which the collection starts afresh.
const MOST_TERMS: usize = 200_000;

/// Memory limit of the solver for windows, in MiB.
const MEMORY: u64 = 512;

/// Target of an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AddressSpace {
    /// The frame; addresses are counted from its upper end.
    Stack,
    /// Another object, by number: objects with different numbers never overlap.
    Other(u32),
}

/// Fact about a register at the beginning of a window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum EntryFact {
    /// It must not be read.
    Nothing,
    /// It holds a number of this set. Registers with the same name hold the same number.
    Number(Scalar, u32),
    /// It holds an address: the space, the base, and the distance from the base in bytes. Registers with one
    /// base count from one place.
    Address(AddressSpace, u32, i64),
    /// It holds a value that may be an address, but must not be used as one. Registers with the same name
    /// hold the same value.
    Value(u32),
}

/// Facts at the beginning of a window.
#[derive(Clone, Debug)]
pub struct WindowEntry {
    /// The registers.
    pub regs: [EntryFact; 11],
    /// Bytes of the stack that are constants.
    pub bytes: BTreeMap<i16, u8>,
    /// Values of 8 bytes on the stack that are addresses.
    pub spills: BTreeMap<i16, EntryFact>,
}

/// Live values at the end, or at an exit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LiveOut {
    /// Live bits of each register.
    pub regs: [u64; 11],
    /// Live bytes of the stack, by their offset from its upper end. All other memory is always live.
    pub stack: Vec<i16>,
}

/// A part of a window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowStep {
    /// An instruction that computes, loads or stores.
    Do(Insn),
    /// A conditional branch out of the window, by the number of the exit.
    Exit(u32, Insn),
    /// An instruction that puts an unknown value into its register, the same one in both windows, by number:
    /// a symbol.
    Opaque(u32, Insn),
}

/// Context of two windows.
#[derive(Clone, Debug)]
pub struct WindowContext {
    /// Facts at their beginning.
    pub entry: WindowEntry,
    /// Live values at each exit.
    pub exits: Vec<LiveOut>,
    /// Live values after them.
    pub end: LiveOut,
}

/// Initial values for which two windows differ.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InitialValues {
    /// Registers, if the solver gave a value.
    pub regs: [Option<u64>; 11],
    /// Bytes of the stack.
    pub stack: BTreeMap<i16, u8>,
    /// Bytes of other spaces, by address.
    pub memory: Vec<(u32, u64, u8)>,
}

/// Result of a comparison of two windows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WindowVerdict {
    /// They are.
    Equal,
    /// They are not, for example for these values.
    Differs(Box<InitialValues>),
    /// Not decided, with the reason.
    Unknown(String),
}

/// Decides equality of windows, with terms kept from one to the next, and a solver that is started when it is
/// first needed.
#[derive(Debug)]
pub struct WindowProver {
    terms: TermPool,
    solver: Option<Solver>,
    session: Option<SolverSession>,
    time: Duration,
    memory: u64,
    synthesis: Option<SketchSolver>,
    /// Windows that came out as the same terms.
    pub by_form: u64,
    /// Windows about which the solver was asked.
    pub asked: u64,
}

impl WindowProver {
    /// Without a solver, only windows that come out as the same terms are decided. `time` is the limit of one
    /// question.
    pub fn new(solver: Option<Solver>, time: Duration) -> WindowProver {
        WindowProver {
            terms: TermPool::new(MOST_TERMS),
            solver,
            session: None,
            time,
            memory: MEMORY,
            synthesis: None,
            by_form: 0,
            asked: 0,
        }
    }

    /// Decides if `a` and `b` are equal at `place`.
    pub fn judge(&mut self, place: &WindowContext, a: &[WindowStep], b: &[WindowStep]) -> WindowVerdict {
        if self.terms.len() > MOST_TERMS / 2 {
            self.terms = TermPool::new(MOST_TERMS);
            self.session = None;
        }
        let claim = match self.claim(place, a, b) {
            Ok(claim) => claim,
            Err(why) => return WindowVerdict::Unknown(why.into()),
        };
        if self.terms.is_full() {
            return WindowVerdict::Unknown("more terms than the limit".into());
        }
        match self.terms.known(claim) {
            Some(true) => {
                self.by_form += 1;
                WindowVerdict::Equal
            }
            _ => self.ask(place, claim).unwrap_or_else(|e| WindowVerdict::Unknown(e.to_string())),
        }
    }

    fn claim(
        &mut self,
        place: &WindowContext,
        a: &[WindowStep],
        b: &[WindowStep],
    ) -> Result<TermId, &'static str> {
        let one = WindowExecutor::new(&mut self.terms, place).over(a)?;
        let two = WindowExecutor::new(&mut self.terms, place).over(b)?;
        if one.len() != two.len() {
            return Err("other exits");
        }
        let terms = &mut self.terms;
        let mut parts = Vec::new();
        for (i, (x, y)) in one.iter().zip(&two).enumerate() {
            let live = place.exits.get(i).filter(|_| i + 1 < one.len()).unwrap_or(&place.end);
            same(terms, live, x, y, &mut parts)?;
        }
        let equal = terms.and(&parts);
        if terms.known(equal) == Some(true) {
            return Ok(equal);
        }
        let mut parts = vec![equal];
        for known in &place.entry.regs {
            let outside = ranges(terms, known);
            parts.push(outside);
        }
        Ok(terms.or(&parts))
    }

    fn ask(&mut self, place: &WindowContext, claim: TermId) -> Result<WindowVerdict, SolverError> {
        let Some(solver) = &self.solver else {
            return Ok(WindowVerdict::Unknown("no solver at hand".into()));
        };
        self.asked += 1;
        if self.session.is_none() {
            let limits = ProofLimits { memory: self.memory, ..ProofLimits::default() };
            self.session = Some(solver.start(&limits)?);
        }
        let Some(session) = &mut self.session else { return Ok(WindowVerdict::Unknown("no solver".into())) };
        let wanted = wanted(&self.terms, claim);
        match session.valid(&self.terms, claim, &wanted, self.time)? {
            Said::Valid => Ok(WindowVerdict::Equal),
            Said::Unknown(why) => Ok(WindowVerdict::Unknown(why)),
            Said::Refuted(model) => {
                let value = |t: TermId| model.get(&t).copied();
                Ok(WindowVerdict::Differs(Box::new(valuation(&self.terms, place, &wanted, value))))
            }
        }
    }
}

/// Condition that a register is outside its known range, apart from its known bits.
fn ranges(terms: &mut TermPool, known: &EntryFact) -> TermId {
    let EntryFact::Number(s, name) = known else { return terms.truth(false) };
    let t = number(terms, s, *name);
    let mut parts = Vec::new();
    let (min, max) = s.unsigned();
    if min > s.bits().value() {
        let k = terms.constant(64, min);
        parts.push(terms.compare_terms(Pred::Ult, t, k));
    }
    if max < s.bits().max() {
        let k = terms.constant(64, max);
        parts.push(terms.compare_terms(Pred::Ult, k, t));
    }
    let (min, max) = s.signed();
    if min > i64::MIN {
        let k = terms.constant(64, min as u64);
        parts.push(terms.compare_terms(Pred::Slt, t, k));
    }
    if max < i64::MAX {
        let k = terms.constant(64, max as u64);
        parts.push(terms.compare_terms(Pred::Slt, k, t));
    }
    terms.or(&parts)
}

/// A number with some known bits.
fn number(terms: &mut TermPool, s: &Scalar, name: u32) -> TermId {
    let var = terms.var(&format!("number {name}"), Sort::Bits(64));
    with_bits(terms, s, var)
}

/// Puts the known bits into a number.
fn with_bits(terms: &mut TermPool, s: &Scalar, var: TermId) -> TermId {
    let unknown = terms.constant(64, s.bits().mask());
    let set = terms.constant(64, s.bits().value());
    let kept = terms.prim(Prim::And, 64, &var, &unknown);
    terms.prim(Prim::Or, 64, &kept, &set)
}

/// Value of a register, and the space into which it points.
#[derive(Clone, Copy, Debug)]
struct WindowValue {
    t: TermId,
    space: Option<AddressSpace>,
}

/// Values at an exit, or at the end.
struct ExitValues {
    taken: TermId,
    regs: [Option<WindowValue>; 11],
    stack: BTreeMap<i16, TermId>,
    memory: BTreeMap<u32, TermId>,
}

/// Collects the equations between two windows at one exit.
fn same(
    terms: &mut TermPool,
    live: &LiveOut,
    x: &ExitValues,
    y: &ExitValues,
    parts: &mut Vec<TermId>,
) -> Result<(), &'static str> {
    parts.push(terms.equal(x.taken, y.taken));
    for (n, &bits) in live.regs.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let (Some(a), Some(b)) = (x.regs[n], y.regs[n]) else { return Err("a register is not defined") };
        if a.space != b.space {
            return Err("a register points elsewhere");
        }
        let seen = terms.constant(64, bits);
        let (a, b) = (terms.prim(Prim::And, 64, &a.t, &seen), terms.prim(Prim::And, 64, &b.t, &seen));
        parts.push(terms.equal(a, b));
    }
    for at in &live.stack {
        let (a, b) = (byte_of(terms, &x.stack, *at), byte_of(terms, &y.stack, *at));
        parts.push(terms.equal(a, b));
    }
    let spaces: Vec<u32> = x.memory.keys().chain(y.memory.keys()).copied().collect();
    for space in spaces {
        let (a, b) = (memory_of(terms, &x.memory, space), memory_of(terms, &y.memory, space));
        parts.push(congruence::congruent(terms, a, b));
    }
    Ok(())
}

fn byte_of(terms: &mut TermPool, stack: &BTreeMap<i16, TermId>, at: i16) -> TermId {
    stack.get(&at).copied().unwrap_or_else(|| terms.var(&format!("stack {at}"), Sort::Bits(8)))
}

fn memory_of(terms: &mut TermPool, memory: &BTreeMap<u32, TermId>, space: u32) -> TermId {
    memory.get(&space).copied().unwrap_or_else(|| terms.var(&format!("space {space}"), Sort::Memory))
}

/// One window on terms.
struct WindowExecutor<'a> {
    terms: &'a mut TermPool,
    /// Given values of variables.
    given: BTreeMap<String, u64>,
    regs: [Option<WindowValue>; 11],
    stack: BTreeMap<i16, TermId>,
    spills: BTreeMap<i16, WindowValue>,
    memory: BTreeMap<u32, TermId>,
}

impl<'a> WindowExecutor<'a> {
    fn new(terms: &'a mut TermPool, place: &WindowContext) -> WindowExecutor<'a> {
        WindowExecutor::at(terms, place, &InitialValues::default())
    }

    /// The same with some initial values given.
    fn at(terms: &'a mut TermPool, place: &WindowContext, values: &InitialValues) -> WindowExecutor<'a> {
        let mut run = WindowExecutor {
            terms,
            given: given(place, values),
            regs: [None; 11],
            stack: BTreeMap::new(),
            spills: BTreeMap::new(),
            memory: BTreeMap::new(),
        };
        run.fill(values);
        for (n, known) in place.entry.regs.iter().enumerate() {
            run.regs[n] = run.first(known);
        }
        for (&at, &byte) in &place.entry.bytes {
            let t = run.terms.constant(8, u64::from(byte));
            run.stack.insert(at, t);
        }
        for (&at, known) in &place.entry.spills {
            if let Some(v) = run.first(known) {
                run.put(at, v.t, 8);
                run.spills.insert(at, v);
            }
        }
        run
    }

    fn first(&mut self, known: &EntryFact) -> Option<WindowValue> {
        Some(match known {
            EntryFact::Nothing => return None,
            EntryFact::Number(s, name) => {
                let var = self.var(format!("number {name}"));
                WindowValue { t: with_bits(self.terms, s, var), space: None }
            }
            EntryFact::Value(name) => WindowValue { t: self.var(format!("value {name}")), space: None },
            EntryFact::Address(space, base, offset) => {
                let base = match space {
                    AddressSpace::Stack => self.frame(),
                    AddressSpace::Other(_) => self.var(format!("base {base}")),
                };
                let by = self.terms.constant(64, *offset as u64);
                WindowValue { t: self.terms.prim(Prim::Add, 64, &base, &by), space: Some(*space) }
            }
        })
    }

    fn var(&mut self, name: String) -> TermId {
        match self.given.get(&name) {
            Some(v) => self.terms.constant(64, *v),
            None => self.terms.var(&name, Sort::Bits(64)),
        }
    }

    fn frame(&mut self) -> TermId {
        self.terms.var("frame", Sort::Bits(64))
    }

    fn over(mut self, steps: &[WindowStep]) -> Result<Vec<ExitValues>, &'static str> {
        let mut seen = Vec::new();
        for step in steps {
            match *step {
                WindowStep::Do(insn) => self.step(insn)?,
                WindowStep::Opaque(n, Insn::LoadImm64 { dst, .. }) => {
                    let t = self.terms.var(&format!("symbol {n}"), Sort::Bits(64));
                    self.set(dst, WindowValue { t, space: None })?;
                }
                WindowStep::Exit(n, Insn::Branch { width, cond, dst, src, .. }) => {
                    if n as usize != seen.len() {
                        return Err("exits in another order");
                    }
                    let (a, b) = (self.get(dst)?.t, self.operand(src)?.t);
                    let taken = semantics::cond(self.terms, cond, width, &a, &b);
                    seen.push(self.seen(taken));
                }
                _ => return Err("an instruction that ends a window"),
            }
        }
        let taken = self.terms.truth(true);
        seen.push(self.seen(taken));
        Ok(seen)
    }

    fn seen(&self, taken: TermId) -> ExitValues {
        ExitValues { taken, regs: self.regs, stack: self.stack.clone(), memory: self.memory.clone() }
    }

    fn get(&self, r: Reg) -> Result<WindowValue, &'static str> {
        self.regs[r.index()].ok_or("reads a register that is not defined")
    }

    fn set(&mut self, r: Reg, v: WindowValue) -> Result<(), &'static str> {
        if r == Reg::R10 {
            return Err("writes the frame pointer");
        }
        self.regs[r.index()] = Some(v);
        Ok(())
    }

    fn operand(&mut self, o: Operand) -> Result<WindowValue, &'static str> {
        match o {
            Operand::Reg(r) => self.get(r),
            Operand::Imm(i) => Ok(WindowValue { t: semantics::immediate(self.terms, i), space: None }),
        }
    }

    fn step(&mut self, insn: Insn) -> Result<(), &'static str> {
        let plain = |t| WindowValue { t, space: None };
        match insn {
            Insn::Alu { width, op, dst, src } => {
                let (a, b) = (self.get(dst)?, self.operand(src)?);
                let t = semantics::alu(self.terms, op, width, &a.t, &b.t);
                let space = match (op, width) {
                    (AluOp::Add, Width::W64) if b.space.is_none() => a.space,
                    (AluOp::Add, Width::W64) if a.space.is_none() => b.space,
                    (AluOp::Sub, Width::W64) if b.space.is_none() => a.space,
                    _ => None,
                };
                self.set(dst, WindowValue { t, space })
            }
            Insn::Mov { width: Width::W64, dst, src } => {
                let v = self.operand(src)?;
                self.set(dst, v)
            }
            Insn::Mov { width, dst, src } => {
                let v = self.operand(src)?;
                let t = semantics::mov(self.terms, width, &v.t);
                self.set(dst, plain(t))
            }
            Insn::MovSx { width, bits, dst, src } => {
                let v = self.get(src)?;
                let t = semantics::movsx(self.terms, width, u32::from(bits), &v.t);
                self.set(dst, plain(t))
            }
            Insn::Neg { width, dst } => {
                let v = self.get(dst)?;
                let t = semantics::neg(self.terms, width, &v.t);
                self.set(dst, plain(t))
            }
            Insn::Swap { kind, bits, dst } => {
                let v = self.get(dst)?;
                let t = semantics::swap(self.terms, kind, u32::from(bits), &v.t);
                self.set(dst, plain(t))
            }
            Insn::LoadImm64 { dst, pseudo: millstream_isa::Pseudo::None, imm, .. } => {
                let t = self.terms.constant(64, imm);
                self.set(dst, plain(t))
            }
            Insn::Load { size, sext, dst, src, off } => {
                let v = self.load(size, sext, src, off)?;
                self.set(dst, v)
            }
            Insn::Store { size, dst, off, src } => {
                let v = self.operand(src)?;
                self.store(size, dst, off, v)
            }
            Insn::Atomic { op, fetch: false, size, dst, src, off } => {
                let old = self.load(size, false, dst, off)?;
                let old = self.terms.truncate(64, size.bits(), &old.t);
                let v = self.get(src)?;
                let new = semantics::atomic(self.terms, op, size, &old, &v.t, &v.t).memory;
                let t = self.terms.zero_extend_to(new, 64);
                self.store(size, dst, off, plain(t))
            }
            _ => Err("an instruction that ends a window"),
        }
    }

    /// The address of an access: its space, and for the stack the offset.
    fn address(&mut self, base: Reg, off: i16) -> Result<(AddressSpace, TermId, i16), &'static str> {
        let v = self.get(base)?;
        let space = v.space.ok_or("an access through what is no known address")?;
        let by = self.terms.constant(64, i64::from(off) as u64);
        let at = self.terms.prim(Prim::Add, 64, &v.t, &by);
        if space != AddressSpace::Stack {
            return Ok((space, at, 0));
        }
        let frame = self.frame();
        let offset =
            sum::distance(self.terms, at, frame).ok_or("an access to the stack at no known offset")?;
        let offset = i16::try_from(offset as i64).map_err(|_| "an access outside of the stack")?;
        if !(-512..0).contains(&offset) {
            return Err("an access outside of the stack");
        }
        Ok((space, at, offset))
    }

    fn load(&mut self, size: Size, sext: bool, src: Reg, off: i16) -> Result<WindowValue, &'static str> {
        let (space, at, offset) = self.address(src, off)?;
        let n = size.bytes() as i16;
        let mut bytes = Vec::with_capacity(8);
        match space {
            AddressSpace::Stack => {
                if size == Size::Dw
                    && let Some(v) = self.spills.get(&offset)
                {
                    return Ok(*v);
                }
                for i in (0..n).rev() {
                    bytes.push(byte_of(self.terms, &self.stack, offset + i));
                }
            }
            AddressSpace::Other(s) => {
                let memory = memory_of(self.terms, &self.memory, s);
                let object = self.terms.constant(64, 0);
                for i in (0..n).rev() {
                    let place = self.further(at, i);
                    bytes.push(self.terms.select(memory, object, place));
                }
            }
        }
        let t = self.terms.concat(&bytes);
        Ok(WindowValue { t: semantics::loaded(self.terms, size, sext, &t), space: None })
    }

    fn store(&mut self, size: Size, dst: Reg, off: i16, v: WindowValue) -> Result<(), &'static str> {
        let (space, at, offset) = self.address(dst, off)?;
        match space {
            AddressSpace::Stack => {
                self.put(offset, v.t, size.bytes() as i16);
                if size == Size::Dw && v.space.is_some() {
                    self.spills.insert(offset, v);
                }
            }
            AddressSpace::Other(s) => {
                let mut memory = memory_of(self.terms, &self.memory, s);
                let object = self.terms.constant(64, 0);
                for i in 0..size.bytes() as i16 {
                    let place = self.further(at, i);
                    let byte = self.terms.extract(v.t, i as u32 * 8 + 7, i as u32 * 8);
                    memory = self.terms.store(memory, object, place, byte);
                }
                self.memory.insert(s, memory);
            }
        }
        Ok(())
    }

    /// Writes the low bytes of a value to the stack.
    fn put(&mut self, at: i16, t: TermId, count: i16) {
        self.spills.retain(|&s, _| s + 8 <= at || at + count <= s);
        for i in 0..count {
            let byte = self.terms.extract(t, i as u32 * 8 + 7, i as u32 * 8);
            self.stack.insert(at + i, byte);
        }
    }

    fn further(&mut self, at: TermId, by: i16) -> TermId {
        let by = self.terms.constant(64, i64::from(by) as u64 & mask(64));
        self.terms.prim(Prim::Add, 64, &at, &by)
    }
}

mod synthesis;
#[cfg(test)]
mod tests;
mod values;
