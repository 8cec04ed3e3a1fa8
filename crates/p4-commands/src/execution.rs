//! Engines that run the functions of a program.

use std::sync::Arc;

use millstream_p4_lower::LoweredProgram;
use millstream_p4_native::NativeExecutor;
use millstream_p4_switch::{InterpreterExecutor, SwitchExecutor};
use millstream_passes::{PassError, PassPipeline, PassSession, TargetInfo};

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

/// Makes the engine of a program.
///
/// # Errors
/// If a pass breaks the program, or LLVM is missing or makes no code of it.
pub(super) fn make_executor(
    on: SwitchExecution,
    program: &Arc<LoweredProgram>,
) -> Result<Box<dyn SwitchExecutor + Send>, String> {
    match on {
        SwitchExecution::Interpreter => Ok(Box::new(InterpreterExecutor::new(Arc::clone(program)))),
        SwitchExecution::Optimized => {
            let optimized = optimize(program, false).map_err(|error| error.to_string())?;
            Ok(Box::new(InterpreterExecutor::new(optimized)))
        }
        SwitchExecution::Native => match NativeExecutor::new(program) {
            Ok(executor) => Ok(Box::new(executor)),
            Err(error) => Err(error.to_string()),
        },
    }
}
