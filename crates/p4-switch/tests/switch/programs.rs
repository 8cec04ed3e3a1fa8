//! Programs with STF files: one for each group of constructs.

use millstream_p4_switch::stf::{parse_stf, run_stf};

use crate::common::{lowered, program_files, switch};

#[test]
fn programs_behave_as_their_stf_files_say() {
    let mut failures = Vec::new();
    let files = program_files("stf");
    assert!(files.len() >= 6, "the programs are missing");
    for file in files {
        let program = file.with_extension("p4");
        let result = lowered(&program.to_string_lossy(), None).and_then(|program| {
            let commands = parse_stf(&std::fs::read_to_string(&file).unwrap()).unwrap();
            run_stf(&mut switch(&program), &commands).map_err(|error| error.to_string())
        });
        if let Err(error) = result {
            failures.push(format!("{}: {error}", file.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
