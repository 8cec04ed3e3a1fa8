//! Model of the walk of the kernel's verifier over a program: predicts how many instructions it verifies.
//!
//! The walk goes path by path: the fall-through successor first, static functions in the context of each
//! caller, global ones once. At prune points states are kept and compared, and a path ends where a kept
//! state covers it. For that, numbers count only if they are precise: an address, a size or a decided branch
//! depends on them, which is found by walking the path backwards.
//!
//! Types of kernel objects, references and locks are not modelled. They decide verdicts, not costs.
//!
//! The walk is that of Linux 6.12 and later, or that of 5.10 and 6.1 ([`WalkRules`](rules::WalkRules)).
//!
//! Source: `is_state_visited`, `states_equal`, `mark_chain_precision`, `check_cfg` and
//! `check_cond_jmp_op` of `kernel/bpf/verifier.c`, Linux 6.18, and of 6.1 in its stable release 192.

mod branch;
mod calls;
mod code;
mod frame;
mod liveness;
mod precision;
mod register;
mod rules;
mod step;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeSet;

use millstream_isa::generation::VerifierGeneration;
use millstream_object::{FuncId, Object};

use walk::ModelWalker;

pub use walk::StateDifference;

pub(crate) use code::{live_registers, written};

/// Effort of verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerificationEffort {
    /// Instructions visited; at least, if the estimate is not certain.
    pub instructions: u64,
    /// True if the walk was complete and met nothing that it does not model.
    pub certain: bool,
}

/// A place of a program where states were compared and differed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateMiss {
    /// The function.
    pub func: u32,
    /// The line, counted in instructions.
    pub line: usize,
    /// The first register or slot that differed.
    pub difference: StateDifference,
    /// Comparisons that failed by it.
    pub count: u64,
}

/// Predicts the effort of verifying a program and all functions that it calls on kernels of a generation; gives
/// up after `most` instructions, or once the estimate cannot be certain any more.
pub fn verification_effort(
    object: &Object,
    program: FuncId,
    generation: VerifierGeneration,
    most: u64,
) -> VerificationEffort {
    let mut walker = ModelWalker::new(object, program, generation, most);
    walker.must_be_certain = true;
    effort(&mut walker, program)
}

/// The same of the whole walk, with the differences that kept states from being found equal, most frequent first.
pub fn verification_profile(
    object: &Object,
    program: FuncId,
    generation: VerifierGeneration,
    most: u64,
) -> (VerificationEffort, Vec<StateMiss>) {
    let mut walker = ModelWalker::new(object, program, generation, most);
    let effort = effort(&mut walker, program);
    let miss = |(&(func, line, difference), &count): (&(u32, usize, StateDifference), &u64)| StateMiss {
        func,
        line,
        difference,
        count,
    };
    let mut misses: Vec<StateMiss> = walker.misses.iter().map(miss).collect();
    misses.sort_by_key(|m| (std::cmp::Reverse(m.count), m.func, m.line));
    (effort, misses)
}

/// Walks a program, and the functions that are verified by themselves.
fn effort(walker: &mut ModelWalker<'_>, program: FuncId) -> VerificationEffort {
    walker.walk(program.0, true);
    let mut done = BTreeSet::from([program.0]);
    while let Some(next) = walker.apart.iter().copied().find(|f| !done.contains(f)) {
        if walker.has_given_up() {
            break;
        }
        done.insert(next);
        walker.walk(next, false);
    }
    VerificationEffort { instructions: walker.instructions, certain: !walker.is_uncertain() }
}
