//! Runs the test that a file asks for.

use millstream_ir::Module;
use millstream_ir::text::parse_module;
use millstream_ir::verify::verify_module;
use millstream_passes::{Fuel, PassPipeline, PassSession};

use crate::FiletestError;
use crate::case::{TestCase, TestCommand};
use crate::engine::run_all;

/// Runs the test and gives its output.
pub(crate) fn run(case: &TestCase, text: &str) -> Result<String, FiletestError> {
    let mut module = parse_module(text)?;
    round_trip(&module)?;
    if !case.runs.is_empty() {
        valid(&module, "as it stands")?;
        run_all(&module, &case.entries, &case.runs, "as it stands")?;
    }
    match &case.test {
        TestCommand::Parse => Ok(module.to_string()),
        TestCommand::Verify => Ok(errors(&module)),
        TestCommand::Run => Ok(String::new()),
        TestCommand::Passes(names) => {
            valid(&module, "before the passes")?;
            run_passes(case, names, &mut module)?;
            valid(&module, "after the passes")?;
            round_trip(&module)?;
            run_all(&module, &case.entries, &case.runs, "after the passes")?;
            Ok(module.to_string())
        }
    }
}

fn round_trip(module: &Module) -> Result<(), FiletestError> {
    let printed = module.to_string();
    if parse_module(&printed)?.to_string() == printed { Ok(()) } else { Err(FiletestError::RoundTrip) }
}

fn run_passes(case: &TestCase, names: &[String], module: &mut Module) -> Result<(), FiletestError> {
    let mut session = PassSession::new(case.target.clone());
    if let Some(limit) = case.fuel {
        session.fuel = Fuel::limited(limit);
    }
    PassPipeline::of(names.iter().map(String::as_str))?.run(module, &mut session)?;
    Ok(())
}

fn errors(module: &Module) -> String {
    verify_module(module).iter().map(|e| format!("{e}\n")).collect()
}

fn valid(module: &Module, when: &'static str) -> Result<(), FiletestError> {
    let errors = errors(module);
    if errors.is_empty() { Ok(()) } else { Err(FiletestError::Verify { when, errors }) }
}
