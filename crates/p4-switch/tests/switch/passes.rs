//! The programs behave the same after the static passes.

use std::sync::Arc;

use millstream_p4_switch::stf::{parse_stf, run_stf};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};

use crate::common::{lowered, program_files, switch};

#[test]
fn programs_behave_the_same_after_the_passes() {
    let mut failures = Vec::new();
    for file in program_files("stf") {
        let path = file.with_extension("p4");
        let mut program = (*lowered(&path.to_string_lossy(), None).unwrap()).clone();
        let before: usize = program.module.funcs.values().map(|func| func.insts_in_order().count()).sum();
        let mut session = PassSession::new(TargetInfo::native());
        session.verify = true;
        PassPipeline::default_o2().run(&mut program.module, &mut session).unwrap();
        let after: usize = program.module.funcs.values().map(|func| func.insts_in_order().count()).sum();
        assert!(after < before, "{}: {before} instructions became {after}", path.display());
        let commands = parse_stf(&std::fs::read_to_string(&file).unwrap()).unwrap();
        if let Err(error) = run_stf(&mut switch(&Arc::new(program)), &commands) {
            failures.push(format!("{}: {error}", file.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
