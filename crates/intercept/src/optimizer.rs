//! Optimizes a program within the time that a load may take.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use millstream_object::{FuncId, Object};
use millstream_opt::{CostSummary, KernelFeatures, OptimizeOptions, costs, optimize};
use millstream_prove::{ProofLimits, ProofVerdict, Solver, prove};

use crate::translation::Doubt;

/// An optimized program.
pub(crate) struct OptimizedProgram {
    pub(crate) object: Object,
    pub(crate) before: CostSummary,
    pub(crate) after: CostSummary,
    pub(crate) proven: bool,
}

/// Optimizes programs, one at a time. Work that takes too long goes on, and no other begins until it is over.
pub(crate) struct TimedOptimizer {
    options: OptimizeOptions,
    limit: Duration,
    proves: bool,
    late: Option<Receiver<Result<OptimizedProgram, Doubt>>>,
}

impl TimedOptimizer {
    /// An optimizer for the running kernel.
    pub(crate) fn new(limit: Duration, proves: bool) -> TimedOptimizer {
        let options = OptimizeOptions { host: Some(KernelFeatures::probe()), ..OptimizeOptions::default() };
        TimedOptimizer { options, limit, proves, late: None }
    }

    /// Optimizes a program, until so much time is over since the start.
    pub(crate) fn optimize(&mut self, object: Object, start: Instant) -> Result<OptimizedProgram, Doubt> {
        if let Some(late) = &self.late {
            match late.try_recv() {
                Err(std::sync::mpsc::TryRecvError::Empty) => {
                    return Err("the program before it is still being optimized".into());
                }
                _ => self.late = None,
            }
        }
        let left = self.limit.saturating_sub(start.elapsed());
        let (answer, answers) = channel();
        let (options, proof_time) = (self.options.clone(), self.proves.then_some(left));
        let work = move || drop(answer.send(compile(&object, &options, proof_time)));
        let thread = std::thread::Builder::new().stack_size(millstream_threads::STACK);
        thread.spawn(work).map_err(|e| format!("no thread to be had: {e}"))?;
        match answers.recv_timeout(left) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                self.late = Some(answers);
                Err(format!("it was not optimized within {} ms", self.limit.as_millis()))
            }
            Err(RecvTimeoutError::Disconnected) => Err("the optimizer failed; please report this".into()),
        }
    }
}

fn compile(
    object: &Object,
    options: &OptimizeOptions,
    proof_time: Option<Duration>,
) -> Result<OptimizedProgram, Doubt> {
    let made = optimize(object, options).map_err(|e| e.to_string())?;
    let programs = costs(object, &made.object);
    let cost = programs.first().ok_or("it has no program")?;
    let (before, after) = (cost.before, cost.after);
    if (after.slots, after.cycles) == (before.slots, before.cycles) {
        return Err(unchanged(&made));
    }
    if let Some(time) = proof_time {
        let limits = ProofLimits { time, ..ProofLimits::default() };
        let main = FuncId(0);
        match prove((object, main), (&made.object, main), Solver::discover().as_ref(), &limits).verdict {
            ProofVerdict::Equivalent => {}
            ProofVerdict::Differs(_) => {
                return Err("the optimized program differs; please report this".into());
            }
            ProofVerdict::Unknown { reason } => return Err(format!("not proven: {reason}")),
        }
    }
    Ok(OptimizedProgram { object: made.object, before, after, proven: proof_time.is_some() })
}

/// The reason why nothing was gained.
fn unchanged(made: &millstream_opt::OptimizationResult) -> Doubt {
    use millstream_opt::FunctionOutcome::{NothingToDo, Removed, Rewritten};
    let left = made.functions.iter().find(|f| !matches!(f.outcome, NothingToDo | Removed | Rewritten));
    left.map_or_else(|| "nothing to gain".into(), |f| format!("nothing to gain ({} {})", f.name, f.outcome))
}
