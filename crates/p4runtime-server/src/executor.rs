//! The executor of a controlled switch, which its caller chooses.

use std::sync::Arc;

use millstream_p4_lower::LoweredProgram;
use millstream_p4_switch::SwitchExecutor;

/// Engine of a switch that is controlled.
pub(crate) type DynamicExecutor = Box<dyn SwitchExecutor + Send>;

/// Makes the engine of a program, or says why there is none.
pub type ExecutorFactory = Arc<dyn Fn(&Arc<LoweredProgram>) -> Result<DynamicExecutor, String> + Send + Sync>;
