//! Programs with STF files behave natively as the files say, and as in the interpreter.
//!
//! `MILLSTREAM_P4_PROGRAMS=FOLDER:FOLDER` adds the tests of folders; those only have to end alike.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_p4_lower::LoweredProgram;
use millstream_p4_native::NativeExecutor;
use millstream_p4_switch::stf::{StfLine, parse_stf, run_stf};
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchExecutor};

use crate::common::{extra_folders, files, lowered, own_folder};

/// Runs a test; the first difference, if there is one.
fn verdict<E: SwitchExecutor>(
    program: &Arc<LoweredProgram>,
    executor: E,
    commands: &[StfLine],
) -> Result<(), String> {
    let mut switch = Switch::new(program.clone(), executor).map_err(|error| error.to_string())?;
    run_stf(&mut switch, commands).map_err(|error| error.to_string())
}

fn program_of(test: &Path) -> Option<PathBuf> {
    let stem = test.file_stem()?.to_str()?;
    let names = [stem, stem.trim_end_matches("-bmv2"), stem.trim_end_matches("_ubpf")];
    names.map(|name| test.with_file_name(format!("{name}.p4"))).into_iter().find(|path| path.is_file())
}

#[test]
fn programs_behave_as_their_stf_files_say() {
    let (mut failures, mut passed, mut refused) = (Vec::new(), 0, 0);
    for folder in [own_folder()].into_iter().chain(extra_folders()) {
        for test in files(&folder, "stf") {
            let Some(program) = program_of(&test) else { continue };
            let Ok(text) = std::fs::read_to_string(&test) else { continue };
            let (program, commands) = match (lowered(&program, None), parse_stf(&text)) {
                (Ok(program), Ok(commands)) => (program, commands),
                (program, commands) => {
                    refused += 1;
                    println!("{}: {:?}, {:?}", test.display(), program.err(), commands.err());
                    assert_ne!(folder, own_folder(), "our own programs are supported");
                    continue;
                }
            };
            let interpreter = InterpreterExecutor::new(program.clone());
            let expected = verdict(&program, interpreter, &commands);
            let given = verdict(&program, NativeExecutor::new(&program).unwrap(), &commands);
            if let Err(error) = &expected {
                println!("{}: {error}", test.display());
            }
            passed += usize::from(given.is_ok());
            if given != expected || (given.is_err() && folder == own_folder()) {
                failures.push(format!("{}: {given:?}, interpreted {expected:?}", test.display()));
            }
        }
    }
    println!("passed: {passed}, refused: {refused}");
    assert!(passed >= 6, "the programs are missing");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
