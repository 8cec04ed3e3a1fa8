//! A program as terms, evaluated at given bytes: shows the meaning that the prover gives to instructions, as
//! numbers for comparison.

use std::time::Instant;

use millstream_isa::{ByteOrder, Insn};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::exec::{ComparedProgram, SymbolicExecutor};
use crate::program::{ContextLayout, ProofProgram};
use crate::state::{SymbolicState, initial_memory};
use crate::sweep::cone;
use crate::term::{NormalizationRules, TermId, TermNode, TermPool, eval};
use crate::uninitialized::{ProofContext, UninitializedStack};
use crate::value::{MemorySpace, PointerRegion, SymbolicValues};
use crate::{ProofError, ProofLimits};

/// Outcome of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvaluationResult {
    /// `r0`.
    pub result: u64,
    /// The input bytes after the program.
    pub bytes: Vec<u8>,
}

/// A program without maps, as terms over its input bytes.
#[derive(Debug)]
pub struct SymbolicProgram {
    terms: TermPool,
    /// All terms of the outcome, each after its parts.
    order: Vec<TermId>,
    /// Position of each of these in that order, by index.
    place: Vec<u32>,
    result: TermId,
    bytes: Vec<TermId>,
    /// Memory that holds the bytes before the program runs.
    input: TermId,
}

impl SymbolicProgram {
    /// An XDP program on packets of `length` bytes.
    ///
    /// # Errors
    /// If part of the program is not modelled.
    pub fn on_packets(
        insns: &[Insn],
        length: usize,
        limits: &ProofLimits,
    ) -> Result<SymbolicProgram, ProofError> {
        let layout = (ContextLayout::Xdp, ByteOrder::Little);
        SymbolicProgram::new(insns, layout, MemorySpace::Packet, length, limits, |_, _| ())
    }

    /// A program for a machine of this byte order, with the address of `length` bytes in `r1` and their
    /// number in `r2`; null if there are none.
    /// If the bytes are `known`, the terms are over their values.
    ///
    /// # Errors
    /// If part of the program is not modelled.
    pub fn on_memory(
        insns: &[Insn],
        order: ByteOrder,
        length: usize,
        known: Option<&[u8]>,
        limits: &ProofLimits,
    ) -> Result<SymbolicProgram, ProofError> {
        let begin = |w: &mut ProofContext, s: &mut SymbolicState| {
            let zero = w.terms.constant(64, 0);
            let count = w.terms.constant(64, length as u64);
            for r in [3, 4, 5] {
                s.regs[r] = w.values.number(zero);
            }
            s.regs[2] = w.values.number(count);
            s.regs[1] = match length {
                0 => w.values.number(zero),
                _ => w.values.pointer(PointerRegion::In(MemorySpace::Context, zero), zero),
            };
            let mut memory = initial_memory(&mut w.terms, MemorySpace::Context);
            for (at, byte) in known.unwrap_or_default().iter().enumerate() {
                let (at, byte) = (w.terms.constant(64, at as u64), w.terms.constant(8, u64::from(*byte)));
                memory = w.terms.store(memory, zero, at, byte);
            }
            s.memory.insert(MemorySpace::Context, memory);
        };
        SymbolicProgram::new(
            insns,
            (ContextLayout::Other, order),
            MemorySpace::Context,
            length,
            limits,
            begin,
        )
    }

    fn new(
        insns: &[Insn],
        (context, order): (ContextLayout, ByteOrder),
        space: MemorySpace,
        length: usize,
        limits: &ProofLimits,
        begin: impl FnOnce(&mut ProofContext, &mut SymbolicState),
    ) -> Result<SymbolicProgram, ProofError> {
        let mut slots = Vec::new();
        for insn in insns {
            slots.push(Some(*insn));
            slots.resize(slots.len() + insn.slots() - 1, None);
        }
        let program = ProofProgram {
            order,
            insns: slots,
            targets: FxHashMap::default(),
            core: FxHashMap::default(),
            context,
            parameters: FxHashMap::default(),
        };
        let mut w = ProofContext {
            terms: TermPool::of(limits.terms, NormalizationRules { order, ..NormalizationRules::default() }),
            values: SymbolicValues::default(),
            maps: Vec::new(),
            unwritten: UninitializedStack::default(),
        };
        let deadline = Instant::now() + limits.time;
        let end = SymbolicExecutor::run_from(
            &mut w,
            &mut ComparedProgram::new(&program, 'A'),
            limits,
            deadline,
            begin,
        )?;
        let result = w.values.numeric(&mut w.terms, end.regs[0]);
        let result = result.ok_or_else(|| ProofError::new("a result that is not defined"))?;
        let memory = end.memory(&mut w.terms, space);
        let zero = w.terms.constant(64, 0);
        let mut bytes = Vec::with_capacity(length);
        for at in 0..length {
            let at = w.terms.constant(64, at as u64);
            bytes.push(w.terms.select(memory, zero, at));
        }
        let input = initial_memory(&mut w.terms, space);
        let roots: Vec<TermId> = bytes.iter().copied().chain([result]).collect();
        let order = cone(&w.terms, &roots);
        let mut place = vec![0; w.terms.len()];
        for (at, t) in order.iter().enumerate() {
            place[t.index() as usize] = at as u32;
        }
        Ok(SymbolicProgram { terms: w.terms, order, place, result, bytes, input })
    }

    /// Outcomes for these inputs, all of the length for which it was made.
    ///
    /// # Errors
    /// If the outcome depends on more than these bytes.
    pub fn run(&self, inputs: &[&[u8]]) -> Result<Vec<EvaluationResult>, ProofError> {
        let lanes = inputs.len();
        let mut values = vec![0u64; self.order.len() * lanes];
        let mut open: FxHashSet<TermId> = FxHashSet::default();
        for (at, t) in self.order.iter().enumerate() {
            for (lane, input) in inputs.iter().enumerate() {
                let v = |x: TermId| values[self.at(x) * lanes + lane];
                let value = match eval::combine(&self.terms, *t, v) {
                    Some(value) => value,
                    None => self.given(*t, &v, input).unwrap_or_else(|| {
                        open.insert(*t);
                        0
                    }),
                };
                values[at * lanes + lane] = value;
            }
        }
        if let Some(t) = open.iter().min() {
            let what = crate::explain::shown(&self.terms, *t, 2);
            return Err(ProofError::new(format!("it depends on {what}, which is not given")));
        }
        let value = |t: &TermId, lane: usize| values[self.at(*t) * lanes + lane];
        Ok((0..lanes)
            .map(|lane| EvaluationResult {
                result: value(&self.result, lane),
                bytes: self.bytes.iter().map(|t| value(t, lane) as u8).collect(),
            })
            .collect())
    }

    fn at(&self, t: TermId) -> usize {
        self.place[t.index() as usize] as usize
    }

    /// Value of a term without a meaning of its own.
    fn given(&self, t: TermId, v: &impl Fn(TermId) -> u64, input: &[u8]) -> Option<u64> {
        match self.terms.node(t) {
            TermNode::App(f, _) if self.terms.name(*f) == "packet length" => Some(input.len() as u64),
            TermNode::App(f, _) if self.terms.name(*f) == "metadata length" => Some(0),
            // Only its identity counts, not its value.
            TermNode::App(..) if t == self.input => Some(0),
            TermNode::Store(..) => Some(0),
            TermNode::Select(m, o, f) => self.byte(*m, v(*o), v(*f), v, input),
            _ => None,
        }
    }

    /// A byte of a memory.
    fn byte(
        &self,
        memory: TermId,
        object: u64,
        at: u64,
        v: &impl Fn(TermId) -> u64,
        input: &[u8],
    ) -> Option<u64> {
        let mut memory = memory;
        loop {
            memory = match self.terms.node(memory) {
                TermNode::Store(_, o, f, b) if (v(*o), v(*f)) == (object, at) => return Some(v(*b)),
                TermNode::Store(m, ..) => *m,
                TermNode::Ite(c, a, b) => {
                    if v(*c) != 0 {
                        *a
                    } else {
                        *b
                    }
                }
                _ if memory == self.input && object == 0 => {
                    return input.get(usize::try_from(at).ok()?).map(|b| u64::from(*b));
                }
                _ => return None,
            };
        }
    }
}
