//! The solver as a search engine: it fills the open places of a sketch so that it agrees with a window on
//! examples.
//!
//! A sketch is a sequence of lines, each one of several instructions, in which some registers stand for
//! constants. An example gives all values at the beginning of the window, so that the question is about the
//! choices and the constants alone. The result agrees on the examples; [`WindowProver::judge`] has to decide
//! if it does so elsewhere.

use super::*;

/// First name of the numbers that are constants of a sketch.
const UNKNOWN: u32 = 0x4000_0000;

/// Time limit of one question; short ones take a hundredth of it.
const TIME: Duration = Duration::from_secs(2);

/// A line of a sketch.
#[derive(Clone, Debug)]
pub enum SketchLine {
    /// This instruction.
    Only(Insn),
    /// One of these, at most 64, which all write this register and no memory.
    OneOf(Reg, Vec<Insn>),
}

/// Instructions with open places.
#[derive(Clone, Debug, Default)]
pub struct InsnSketch {
    /// Its lines.
    pub lines: Vec<SketchLine>,
    /// Registers that stand for constants in these, and the set of possible values of each. The window does
    /// not mention them.
    pub constants: Vec<(Reg, Scalar)>,
}

/// A completed sketch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SketchCompletion {
    /// Instruction of each line.
    pub lines: Vec<Insn>,
    /// The constants.
    pub constants: Vec<u64>,
}

/// Terms and a solver of their own, so that the result does not depend on earlier proofs.
#[derive(Debug)]
pub(super) struct SketchSolver {
    terms: TermPool,
    session: SolverSession,
}

impl WindowProver {
    /// Forgets the questions about other windows; returns true if there is a solver.
    pub fn begin_synthesis(&mut self) -> bool {
        let terms = TermPool::new(MOST_TERMS);
        match (&mut self.synthesis, &self.solver) {
            (Some(s), _) => {
                s.terms = terms;
                s.session.reset();
            }
            (none, Some(solver)) => {
                let limits = ProofLimits { memory: self.memory, ..ProofLimits::default() };
                let session = solver.first().start(&limits).ok();
                *none = session.map(|s| SketchSolver { terms, session: s.for_values() });
            }
            _ => {}
        }
        self.synthesis.is_some()
    }

    /// Completes a sketch so that it agrees with a window without exits on these examples; [`None`] if that
    /// is impossible.
    ///
    /// # Errors
    /// If part of the window is not modelled, or the solver fails, with the reason.
    pub fn complete(
        &mut self,
        place: &WindowContext,
        window: &[WindowStep],
        sketch: &InsnSketch,
        examples: &[InitialValues],
    ) -> Result<Option<SketchCompletion>, String> {
        let Some(s) = &mut self.synthesis else { return Ok(None) };
        let (wrong, wanted) = s.question(place, window, sketch, examples)?;
        if s.terms.known(wrong) == Some(true) || s.terms.is_full() {
            return Ok(None);
        }
        self.asked += 1;
        let answer = s.session.valid(&s.terms, wrong, &wanted, TIME).map_err(|e| e.to_string())?;
        let model = match answer {
            Said::Valid => return Ok(None),
            Said::Unknown(why) => return Err(why),
            Said::Refuted(model) => model,
        };
        let mut values = wanted.iter().map(|t| model.get(t).copied().unwrap_or_default());
        let lines: Option<Vec<Insn>> = sketch
            .lines
            .iter()
            .map(|line| match line {
                SketchLine::Only(insn) => Some(*insn),
                SketchLine::OneOf(_, of) => of.get(values.next()?.trailing_zeros() as usize).copied(),
            })
            .collect();
        Ok(lines.map(|lines| SketchCompletion { lines, constants: values.collect() }))
    }
}

impl SketchSolver {
    /// Condition that a sketch differs in one of the examples, and the unknowns, choices before constants.
    fn question(
        &mut self,
        place: &WindowContext,
        window: &[WindowStep],
        sketch: &InsnSketch,
        examples: &[InitialValues],
    ) -> Result<(TermId, Vec<TermId>), &'static str> {
        let terms = &mut self.terms;
        let mut place = place.clone();
        let (mut right, mut choices, mut constants) = (Vec::new(), Vec::new(), Vec::new());
        for (k, (reg, range)) in sketch.constants.iter().enumerate() {
            let known = EntryFact::Number(*range, UNKNOWN + k as u32);
            let outside = ranges(terms, &known);
            right.push(terms.not(outside));
            constants.push(terms.var(&format!("number {}", UNKNOWN + k as u32), Sort::Bits(64)));
            place.entry.regs[reg.index()] = known;
        }
        for (n, line) in sketch.lines.iter().enumerate() {
            let SketchLine::OneOf(_, of) = line else { continue };
            let bits = u8::try_from(of.len()).ok().filter(|n| (1..=64).contains(n));
            let choice = terms.var(&format!("choice {n}"), Sort::Bits(bits.ok_or("a choice of how many?")?));
            let each: Vec<TermId> = (0..of.len()).map(|i| is_choice(terms, choice, i)).collect();
            right.push(terms.or(&each));
            choices.push(choice);
        }
        for example in examples {
            let wants = WindowExecutor::at(terms, &place, example).over(window)?;
            let mut run = WindowExecutor::at(terms, &place, example);
            let mut choices = choices.iter();
            for line in &sketch.lines {
                match line {
                    SketchLine::Only(insn) => run.step(*insn)?,
                    SketchLine::OneOf(dst, of) => {
                        run.choose(*dst, of, *choices.next().ok_or("a choice is missing")?)?;
                    }
                }
            }
            let always = run.terms.truth(true);
            let (has, last) = (run.seen(always), wants.last().ok_or("no end")?);
            same(terms, &place.end, last, &has, &mut right)?;
        }
        let right = terms.and(&right);
        choices.extend(constants);
        Ok((terms.not(right), choices))
    }
}

/// Condition that a choice is the `n`-th alternative: only one of its bits is set.
fn is_choice(terms: &mut TermPool, choice: TermId, n: usize) -> TermId {
    let bit = terms.constant(terms.bits(choice), 1 << n);
    terms.equal(choice, bit)
}

impl WindowExecutor<'_> {
    /// Writes given bytes to their places.
    pub(super) fn fill(&mut self, values: &InitialValues) {
        for (&at, &byte) in &values.stack {
            let t = self.terms.constant(8, u64::from(byte));
            self.stack.insert(at, t);
        }
        let object = self.terms.constant(64, 0);
        for &(space, at, byte) in &values.memory {
            let memory = memory_of(self.terms, &self.memory, space);
            let (at, byte) = (self.terms.constant(64, at), self.terms.constant(8, u64::from(byte)));
            let memory = self.terms.store(memory, object, at, byte);
            self.memory.insert(space, memory);
        }
    }

    /// Runs one of several instructions: the results of all are combined under masks, which are all ones for
    /// the chosen one.
    fn choose(&mut self, dst: Reg, of: &[Insn], choice: TermId) -> Result<(), &'static str> {
        let before = self.regs;
        let mut made = self.terms.constant(64, 0);
        for (n, insn) in of.iter().enumerate() {
            self.step(*insn)?;
            let value = self.get(dst)?;
            if value.space.is_some() {
                return Err("a choice of addresses");
            }
            self.regs = before;
            let bit = self.terms.extract(choice, n as u32, n as u32);
            let mask = self.terms.sign_extend_to(bit, 64);
            let masked = self.terms.prim(Prim::And, 64, &value.t, &mask);
            made = self.terms.prim(Prim::Or, 64, &made, &masked);
        }
        self.set(dst, WindowValue { t: made, space: None })
    }
}
