//! The language of the simple test framework (STF): commands, one a line, that set entries, send packets and
//! say which packets are expected.

mod parse;
mod run;
mod values;

pub use parse::{CounterCheck, ExpectedData, StfCommand, StfEntry, StfError, StfLine, parse_stf};
pub use run::{StfFailure, run_stf};
pub use values::{StfValue, ValueError};
