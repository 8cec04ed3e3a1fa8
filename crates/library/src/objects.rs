//! Objects in memory: optimize, list, prove.

use std::ffi::c_char;
use std::time::Duration;

use millstream::optimize::{KernelFeatures, ObjectOptimizer, OptimizationGoal, TargetKernels};
use millstream::prove::{EquivalenceProver, ProofVerdict};
use millstream::{Object, ObjectError};
use millstream_opt::ProgramCosts;

use crate::boundary::{
    self, CallFailure, FailureCode, ForeignMemory, VersionedOptions, argument, with_deep_stack,
};

/// Options of an optimization: `struct millstream_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OptimizeRequest {
    size: usize,
    kernel: *const c_char,
    goal: u32,
    reserved: u32,
}

// SAFETY: it is laid out as C has it, with the size first.
unsafe impl VersionedOptions for OptimizeRequest {}

/// A program with its cost: `struct millstream_program`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProgramRecord {
    name: *const c_char,
    section: *const c_char,
    slots: u32,
    machine_bytes: u32,
    millicycles: u64,
}

/// Reads an object.
pub(crate) fn parse(bytes: &[u8]) -> Result<Object, CallFailure> {
    Object::parse("object", bytes).map_err(|e: ObjectError| argument(format!("the object: {e}")))
}

/// The optimizer for options.
///
/// # Errors
/// If an option has no such value.
pub(crate) fn settings(options: Option<&OptimizeRequest>) -> Result<ObjectOptimizer, CallFailure> {
    let Some(options) = options else { return Ok(ObjectOptimizer::new()) };
    let goal = match options.goal {
        0 => OptimizationGoal::Balanced,
        1 => OptimizationGoal::Size,
        2 => OptimizationGoal::Latency,
        3 => OptimizationGoal::Verify,
        other => return Err(argument(format!("there is no goal {other}"))),
    };
    if options.reserved != 0 {
        return Err(argument("the reserved field of the options is not 0"));
    }
    // SAFETY: by the invariant of the crate it is null or a text.
    let target = match unsafe { boundary::text(options.kernel) }? {
        None | Some("any") => TargetKernels::Any,
        Some("here") => TargetKernels::Probed(KernelFeatures::probe()),
        Some(version) => {
            TargetKernels::of_version(version).map_err(|e| argument(format!("kernel {version:?}: {e}")))?
        }
    };
    Ok(ObjectOptimizer::new().goal(goal).target(target))
}

/// Optimizes an object; gives the object file.
pub(crate) fn optimize(bytes: &[u8], optimizer: &ObjectOptimizer) -> Result<Vec<u8>, CallFailure> {
    with_deep_stack(|| {
        let result = optimizer.optimize(&parse(bytes)?).map_err(argument)?;
        result.object.write().map_err(argument)
    })
}

/// The programs of an object, with their costs.
pub(crate) fn programs(bytes: &[u8]) -> Result<Vec<ProgramCosts>, CallFailure> {
    with_deep_stack(|| {
        let object = parse(bytes)?;
        Ok(millstream_opt::costs(&object, &object))
    })
}

/// The programs as one piece of memory: the records, then their texts.
pub(crate) fn records(programs: &[ProgramCosts]) -> Result<ForeignMemory, CallFailure> {
    let texts: usize = programs.iter().map(|p| p.name.len() + p.section.len() + 2).sum();
    let head = size_of_val(programs).max(programs.len() * size_of::<ProgramRecord>());
    let mut memory = ForeignMemory::zeroed(head + texts)?;
    let start = memory.pointer();
    let mut at = head;
    let mut place = |text: &str| {
        let from = at;
        memory.bytes()[from..from + text.len()].copy_from_slice(text.as_bytes());
        at += text.len() + 1;
        start.wrapping_add(from).cast::<c_char>().cast_const()
    };
    for (n, program) in programs.iter().enumerate() {
        let record = ProgramRecord {
            name: place(&program.name),
            section: place(&program.section),
            slots: program.before.slots,
            machine_bytes: program.before.jited,
            millicycles: program.before.cycles,
        };
        // SAFETY: `head` has room for all records, and memory of `calloc` is aligned for them.
        unsafe { start.cast::<ProgramRecord>().add(n).write(record) };
    }
    Ok(memory)
}

/// Result of a proof.
pub(crate) struct ProvenPrograms {
    /// A line for each program.
    pub(crate) text: String,
    /// The answer for all of them.
    pub(crate) answer: Result<(), CallFailure>,
}

/// Proves that the programs of two objects behave alike.
pub(crate) fn prove(before: &[u8], after: &[u8], milliseconds: u32) -> Result<ProvenPrograms, CallFailure> {
    with_deep_stack(|| {
        let mut prover = EquivalenceProver::with_installed_solvers();
        if milliseconds > 0 {
            prover = prover.time_limit(Duration::from_millis(milliseconds.into()));
        }
        let proofs = prover.prove(&parse(before)?, &parse(after)?).map_err(argument)?;
        let (mut text, mut worst) = (String::new(), Ok(()));
        for proof in proofs {
            let (verdict, code) = match &proof.verdict {
                ProofVerdict::Equivalent => ("equivalent".to_owned(), None),
                ProofVerdict::Differs(found) => (format!("differs: {found}"), Some(FailureCode::No)),
                ProofVerdict::Unknown { reason } => {
                    (format!("unknown: {reason}"), Some(FailureCode::Undecided))
                }
            };
            let line = format!("{}: {}", proof.program, verdict.replace('\n', "; "));
            if let Some(code) = code
                && !matches!(&worst, Err(CallFailure { code: FailureCode::No, .. }))
            {
                worst = Err(CallFailure::new(code, &line));
            }
            text += &line;
            text.push('\n');
        }
        Ok(ProvenPrograms { text, answer: worst })
    })
}
