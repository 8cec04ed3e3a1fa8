//! Engines that run the functions of a program.

use std::sync::Arc;

use millstream_native::{NativeOptions, VariantSupport};
use millstream_p4_lower::LoweredProgram;
use millstream_p4_native::{BatchError, BatchedExecutor, NativeExecutor, SEED};
use millstream_p4_switch::{InterpreterExecutor, SwitchExecutor};
use millstream_passes::{PassError, PassPipeline, PassSession, TargetInfo};

use crate::adaptation::SwitchAdaptation;

/// Execution of a switch that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum SwitchExecution {
    /// The interpreter of the IR, on the program as it was lowered
    Interpreter,
    /// The same after the static passes
    Optimized,
    /// Native code, by LLVM 19
    Native,
}

/// The program after the static passes; the IR's verifier checks each of them if `verifies`.
///
/// # Errors
/// If a pass breaks the program.
pub(super) fn optimize(program: &LoweredProgram, verifies: bool) -> Result<Arc<LoweredProgram>, PassError> {
    let mut program = program.clone();
    let mut session = PassSession::new(TargetInfo::native());
    session.verify = verifies;
    PassPipeline::default_o2().run(&mut program.module, &mut session)?;
    Ok(Arc::new(program))
}

/// Makes the engine of a program. Native code runs batches of packets if the program allows it; only such code is
/// adapted.
///
/// # Errors
/// If a pass breaks the program, LLVM is missing or makes no code of it, or it cannot be adapted.
pub(super) fn make_executor(
    on: SwitchExecution,
    program: &Arc<LoweredProgram>,
    adaptation: Option<&SwitchAdaptation>,
) -> Result<Box<dyn SwitchExecutor + Send>, String> {
    match on {
        SwitchExecution::Interpreter => Ok(Box::new(InterpreterExecutor::new(Arc::clone(program)))),
        SwitchExecution::Optimized => {
            let optimized = optimize(program, false).map_err(|error| error.to_string())?;
            Ok(Box::new(InterpreterExecutor::new(optimized)))
        }
        SwitchExecution::Native => make_native(program, adaptation),
    }
}

fn make_native(
    program: &Arc<LoweredProgram>,
    adaptation: Option<&SwitchAdaptation>,
) -> Result<Box<dyn SwitchExecutor + Send>, String> {
    let variants = adaptation.map_or(VariantSupport::None, |_| VariantSupport::Installed);
    let options = NativeOptions { seed: SEED, variants, ..NativeOptions::default() };
    match (BatchedExecutor::new(program, &options), adaptation) {
        (Ok(mut executor), adaptation) => {
            if let Some(adaptation) = adaptation {
                adaptation.begin(executor.engine()).map_err(|error| error.to_string())?;
            }
            Ok(Box::new(executor))
        }
        (Err(BatchError::Refused(_)), None) => match NativeExecutor::new(program) {
            Ok(executor) => Ok(Box::new(executor)),
            Err(error) => Err(error.to_string()),
        },
        (Err(error @ BatchError::Refused(_)), Some(_)) => {
            Err(format!("{error}; --adapt is for programs that can"))
        }
        (Err(error), _) => Err(error.to_string()),
    }
}
