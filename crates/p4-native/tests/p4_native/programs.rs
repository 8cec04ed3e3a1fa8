//! Programs with STF files behave natively as the files say.

use millstream_p4_native::NativeExecutor;
use millstream_p4_switch::Switch;
use millstream_p4_switch::stf::{parse_stf, run_stf};

use crate::common::{files, lowered, own_folder};

#[test]
fn programs_behave_as_their_stf_files_say() {
    let mut failures = Vec::new();
    let tests = files(&own_folder(), "stf");
    assert!(tests.len() >= 6, "the programs are missing");
    for test in tests {
        let program = lowered(&test.with_extension("p4"), None).unwrap();
        let commands = parse_stf(&std::fs::read_to_string(&test).unwrap()).unwrap();
        let mut switch = Switch::new(program.clone(), NativeExecutor::new(&program).unwrap()).unwrap();
        if let Err(error) = run_stf(&mut switch, &commands) {
            failures.push(format!("{}: {error}", test.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
