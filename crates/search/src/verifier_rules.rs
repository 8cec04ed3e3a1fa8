//! Predicts if the kernel's verifier accepts a candidate, given that it accepted the window: K2's section 6.
//!
//! A candidate is walked with the facts at the window's beginning. It may read defined values. It may access
//! bytes outside of the stack only after the point where the window has accessed them (so that the check
//! before the access stands). It may use addresses as the window did, and add constants. At the end it must
//! know no less about numbers than the window.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use millstream_isa::{AluOp, AtomicOp, Insn, Operand, Reg, Size, Width};
use millstream_prove::window::{AddressSpace, WindowStep};
use rustc_hash::FxHasher;

use crate::code::CodeLine;
use crate::facts::{
    AbstractState, CONTEXT, ContextType, FRAME, FunctionContext, RegisterFact, RegisterKind, StackCell,
};
use crate::transfer;
use crate::window::InsnWindow;

/// An atomic operation: space, base, offset, operation and size.
type AtomicAccess = (AddressSpace, u32, i64, AtomicOp, Size);

/// Accesses and operations of a window that a candidate may have, too.
pub(crate) struct AllowedAccesses<'a> {
    window: &'a InsnWindow,
    world: &'a FunctionContext,
    /// Its instructions.
    own: BTreeSet<u64>,
    /// Bytes accessed outside of the stack: space, base, offset, number of exits passed; true if written.
    touched: Vec<(AddressSpace, u32, i64, usize, bool)>,
    /// Accesses to the context: offset, size, number of exits passed; true if written.
    fields: Vec<(i64, Size, usize, bool)>,
    /// Atomic operations, which stay: space, base, offset, and the instruction without its registers and
    /// displacement.
    atomics: Vec<AtomicAccess>,
    /// True if it stores constants to the context, which not every kernel accepts.
    constants: bool,
    /// The states at the exits and in the end.
    states: Vec<AbstractState>,
}

fn name(insn: &Insn) -> u64 {
    let mut h = FxHasher::default();
    insn.hash(&mut h);
    h.finish()
}

/// A name for the result of an instruction on its operands: the same for the same operation, wherever it
/// stands.
fn made(s: &AbstractState, insn: Insn) -> u32 {
    let mut h = FxHasher::default();
    let mut plain = insn;
    plain.rename(|_| Reg::R0);
    plain.hash(&mut h);
    for r in named(insn) {
        s.get(r).id.hash(&mut h);
    }
    (h.finish() >> 34) as u32
}

/// The registers that an instruction reads.
pub(crate) fn named(insn: Insn) -> Vec<Reg> {
    let both = |dst: Reg, src: Operand| match src {
        Operand::Reg(r) => vec![dst, r],
        Operand::Imm(_) => vec![dst],
    };
    match insn {
        Insn::Alu { dst, src, .. } | Insn::Store { dst, src, .. } | Insn::Branch { dst, src, .. } => {
            both(dst, src)
        }
        Insn::Mov { src: Operand::Reg(r), .. } | Insn::MovSx { src: r, .. } | Insn::Load { src: r, .. } => {
            vec![r]
        }
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => vec![dst],
        Insn::Atomic { dst, src, .. } => vec![dst, src],
        _ => Vec::new(),
    }
}

/// The register that an instruction writes.
pub(crate) fn written(insn: Insn) -> Option<Reg> {
    match insn {
        Insn::Alu { dst, .. }
        | Insn::Mov { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. } => Some(dst),
        _ => None,
    }
}

fn is_number(f: RegisterFact) -> bool {
    matches!(f.kind, RegisterKind::Number(_))
}

impl<'a> AllowedAccesses<'a> {
    pub(crate) fn new(window: &'a InsnWindow) -> Option<AllowedAccesses<'a>> {
        let world = &*window.world;
        let own = window.insns().iter().map(name).collect();
        let mut rules = AllowedAccesses {
            window,
            world,
            own,
            touched: Vec::new(),
            fields: Vec::new(),
            atomics: Vec::new(),
            constants: false,
            states: Vec::new(),
        };
        let mut s = window.state.clone();
        let mut passed = 0;
        for step in &window.steps {
            if let WindowStep::Do(insn) = *step {
                rules.record(&s, insn, passed);
            }
            rules.advance(&mut s, step, &mut passed)?;
        }
        rules.states.push(s);
        Some(rules)
    }

    fn record(&mut self, s: &AbstractState, insn: Insn, passed: usize) {
        let (base, off, size, write) = match insn {
            Insn::Load { size, src, off, .. } => (src, off, size, false),
            Insn::Store { size, dst, off, .. } | Insn::Atomic { size, dst, off, .. } => {
                (dst, off, size, true)
            }
            _ => return,
        };
        let fact = s.get(base);
        let RegisterKind::Address(space, at) = fact.kind else { return };
        let at = at + i64::from(off);
        self.atomics.extend(atomic(s, insn));
        self.constants |= space == CONTEXT && matches!(insn, Insn::Store { src: Operand::Imm(_), .. });
        if space == CONTEXT && !self.is_scratch(at, size) {
            self.fields.push((at, size, passed, write));
        } else if space != AddressSpace::Stack {
            let bytes = at..at + i64::from(size.bytes());
            self.touched.extend(bytes.map(|b| (space, fact.id, b, passed, write)));
        }
    }

    /// The state after a step.
    fn advance(&mut self, s: &mut AbstractState, step: &WindowStep, passed: &mut usize) -> Option<()> {
        if matches!(step, WindowStep::Exit(..)) {
            self.states.push(s.clone());
        }
        advance(self.window, self.world, s, step, passed)
    }

    /// Returns true if a candidate is valid.
    pub(crate) fn allow(&self, steps: &[WindowStep]) -> bool {
        let behind = self.window.closed() && !matches!(steps.last(), Some(WindowStep::Exit(..)));
        !behind && self.walk(steps).is_some()
    }

    fn walk(&self, steps: &[WindowStep]) -> Option<()> {
        let mut s = self.window.state.clone();
        let mut passed = 0;
        let mut atomics = self.atomics.clone();
        for step in steps {
            match *step {
                WindowStep::Do(insn) => {
                    self.insn(&s, insn, passed)?;
                    if let Some(n) = atomic(&s, insn).and_then(|a| atomics.iter().position(|b| *b == a)) {
                        atomics.remove(n);
                    }
                }
                WindowStep::Opaque(_, insn) => {
                    (!matches!(insn, Insn::LoadImm64 { dst: Reg::R10, .. })).then_some(())?
                }
                WindowStep::Exit(n, insn) => {
                    named(insn).iter().all(|r| s.get(*r).kind != RegisterKind::Uninit).then_some(())?;
                    self.exit(&s, n as usize, insn)?;
                }
            }
            advance(self.window, self.world, &mut s, step, &mut passed)?;
        }
        atomics.is_empty().then_some(())?;
        self.knows(&s, self.states.last()?, self.window.place.end.regs)
    }

    /// Returns true if a field of the context is plain memory: `cb` of packets' buffers.
    fn is_scratch(&self, at: i64, size: Size) -> bool {
        let n = i64::from(size.bytes());
        self.world.context == ContextType::Skb && at >= 48 && at + n <= 68 && at % n == 0
    }

    /// Pointers are compared as in the window.
    fn exit(&self, s: &AbstractState, n: usize, insn: Insn) -> Option<()> {
        let own = self.window.steps.iter().find_map(|w| match w {
            WindowStep::Exit(m, own) if *m as usize == n => Some(*own),
            _ => None,
        })?;
        let state = self.states.get(n)?;
        let (mine, theirs) = (named(insn), named(own));
        for (a, b) in mine.iter().zip(&theirs) {
            let (a, b) = (s.get(*a), state.get(*b));
            if !is_number(b) && !matches(a, b) || is_number(b) != is_number(a) {
                return None;
            }
        }
        let (Insn::Branch { cond, width, .. }, Insn::Branch { cond: c, width: w, .. }) = (insn, own) else {
            return None;
        };
        let pointers = theirs.iter().any(|r| !is_number(state.get(*r)));
        (!pointers || (cond, width) == (c, w)).then_some(())?;
        let (mut mine, mut theirs) = (s.clone(), state.clone());
        let taken = (transfer::branch(&mut mine, &insn, true), transfer::branch(&mut theirs, &own, true));
        match taken {
            // Every fact holds in a branch that cannot be taken.
            (None, _) => Some(()),
            (Some(()), None) => None,
            _ => self.knows(&mine, &theirs, self.window.place.exits.get(n)?.regs),
        }
    }

    /// Checks that as much is known about live registers as before.
    fn knows(&self, s: &AbstractState, was: &AbstractState, live: [u64; 11]) -> Option<()> {
        for (n, _) in live.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            let (mine, theirs) = (s.regs[n], was.regs[n]);
            let enough = match (mine.kind, theirs.kind) {
                (RegisterKind::Number(x), RegisterKind::Number(y)) => {
                    x.join(&y) == y || y.as_constant().is_none() && loose(live[n])
                }
                _ => matches(mine, theirs),
            };
            enough.then_some(())?;
        }
        Some(())
    }

    fn insn(&self, s: &AbstractState, insn: Insn, passed: usize) -> Option<()> {
        let reads = named(insn);
        if reads.iter().any(|r| s.get(*r).kind == RegisterKind::Uninit) || written(insn) == Some(Reg::R10) {
            return None;
        }
        let own = self.own.contains(&name(&insn));
        let ok = match insn {
            Insn::Alu { width, op, dst, src } => self.arithmetic(s, width, op, dst, src) || own,
            Insn::Mov { width: Width::W64, .. } | Insn::LoadImm64 { .. } => true,
            Insn::Mov { .. } | Insn::MovSx { .. } | Insn::Neg { .. } | Insn::Swap { .. } => {
                own || reads.iter().all(|r| is_number(s.get(*r)))
            }
            Insn::Load { size, sext, src, off, .. } => self.load(s, size, sext, src, off, passed),
            Insn::Store { size, dst, off, src } => self.store(s, size, dst, off, src, own, passed),
            Insn::Atomic { size, dst, src, off, fetch: false, .. } => {
                own || matches!(size, Size::W | Size::Dw)
                    && is_number(s.get(src))
                    && !matches!(
                        s.get(dst).kind,
                        RegisterKind::Address(CONTEXT | AddressSpace::Stack | crate::facts::PACKET, _)
                    )
                    && self.store(s, size, dst, off, Operand::Reg(src), own, passed)
            }
            _ => false,
        };
        ok.then_some(())
    }

    fn arithmetic(&self, s: &AbstractState, width: Width, op: AluOp, dst: Reg, src: Operand) -> bool {
        let (a, b) = (s.get(dst), transfer::operand(s, src));
        match (a.kind, b.kind) {
            (RegisterKind::Number(_), RegisterKind::Number(_)) => true,
            (RegisterKind::Address(space, _), RegisterKind::Number(k)) => {
                space != CONTEXT
                    && width == Width::W64
                    && matches!(op, AluOp::Add | AluOp::Sub)
                    && k.as_constant().is_some_and(|k| (k as i64).unsigned_abs() < 1 << 16)
            }
            _ => false,
        }
    }

    fn load(&self, s: &AbstractState, size: Size, sext: bool, src: Reg, off: i16, passed: usize) -> bool {
        let fact = s.get(src);
        let RegisterKind::Address(space, at) = fact.kind else { return false };
        let at = at + i64::from(off);
        match space {
            AddressSpace::Stack => self.stack_load(s, size, sext, at),
            CONTEXT if !self.is_scratch(at, size) => {
                !sext && self.fields.iter().any(|f| f.0 == at && f.1 == size && f.2 <= passed && !f.3)
            }
            _ => (at..at + i64::from(size.bytes())).all(|b| {
                self.touched.iter().any(|t| (t.0, t.1, t.2) == (space, fact.id, b) && t.3 <= passed)
            }),
        }
    }

    fn stack_load(&self, s: &AbstractState, size: Size, sext: bool, at: i64) -> bool {
        let n = i64::from(size.bytes());
        if at % n != 0 || !(-(FRAME as i64)..=-n).contains(&at) {
            return false;
        }
        let first = (at + FRAME as i64) as usize;
        let written = s.stack[first..first + n as usize].iter().all(|c| *c != StackCell::Uninit);
        let whole = s.spills.iter().all(|(&x, f)| {
            is_number(*f)
                || i64::from(x) == at && size == Size::Dw && !sext
                || i64::from(x) + 8 <= at
                || at + n <= i64::from(x)
        });
        written && whole
    }

    #[expect(clippy::too_many_arguments, reason = "a store has so many parts")]
    fn store(
        &self,
        s: &AbstractState,
        size: Size,
        dst: Reg,
        off: i16,
        src: Operand,
        own: bool,
        passed: usize,
    ) -> bool {
        let fact = s.get(dst);
        let value = transfer::operand(s, src);
        let RegisterKind::Address(space, at) = fact.kind else { return false };
        let at = at + i64::from(off);
        match space {
            AddressSpace::Stack => {
                let n = i64::from(size.bytes());
                at % n == 0
                    && (-(FRAME as i64)..=-n).contains(&at)
                    && (is_number(value) || size == Size::Dw)
                    && self.in_reach(at, n)
            }
            CONTEXT if !self.is_scratch(at, size) => {
                (own || matches!(src, Operand::Reg(_)) && is_number(value))
                    && self.fields.iter().any(|f| f.0 == at && f.1 == size && f.2 <= passed && f.3)
            }
            _ => {
                (is_number(value) || own)
                    && (space != CONTEXT || self.constants || matches!(src, Operand::Reg(_)))
                    && (at..at + i64::from(size.bytes())).all(|b| {
                        self.touched
                            .iter()
                            .any(|t| (t.0, t.1, t.2) == (space, fact.id, b) && t.3 <= passed && t.4)
                    })
            }
        }
    }

    /// Returns true if the window itself writes all these bytes of the stack.
    fn in_reach(&self, at: i64, n: i64) -> bool {
        (at..at + n).all(|b| self.window.writes.contains(&(b as i16)))
    }
}

/// The atomic operation of an instruction.
fn atomic(s: &AbstractState, insn: Insn) -> Option<AtomicAccess> {
    let Insn::Atomic { op, size, dst, off, .. } = insn else { return None };
    let fact = s.get(dst);
    let RegisterKind::Address(space, at) = fact.kind else { return None };
    Some((space, fact.id, at + i64::from(off), op, size))
}

/// Registers with at most one live bit are no index or size.
fn loose(bits: u64) -> bool {
    bits.count_ones() <= 1
}

/// Returns true if two registers hold the same kind of value.
fn matches(a: RegisterFact, b: RegisterFact) -> bool {
    match (a.kind, b.kind) {
        (RegisterKind::Address(s, x), RegisterKind::Address(t, y)) => {
            s == t && x == y && (a.id == b.id || s == AddressSpace::Stack)
        }
        (x, y) => x == y,
    }
}

fn advance(
    window: &InsnWindow,
    world: &FunctionContext,
    s: &mut AbstractState,
    step: &WindowStep,
    passed: &mut usize,
) -> Option<()> {
    match *step {
        WindowStep::Do(insn) => {
            let id = made(s, insn);
            transfer::step(s, &CodeLine::new(insn), world, id);
        }
        WindowStep::Opaque(n, insn) => {
            let own = window.steps.iter().position(|w| *w == *step)?;
            let line = CodeLine { insn, ..window.lines[own] };
            transfer::step(s, &line, world, 0x3000_0000 + n);
        }
        WindowStep::Exit(_, insn) => {
            *passed += 1;
            transfer::branch(s, &insn, false)?;
        }
    }
    Some(())
}
