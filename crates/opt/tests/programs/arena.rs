//! Arenas: what programs do with memory that may not be there, before and after `optimize`.

use millstream_kernel::{TestRun, testing};
use millstream_loader::{ObjectLoader, ProgramError};
use millstream_object::Object;
use millstream_opt::{OptimizeOptions, optimize};

use crate::objects;

/// Results of two runs of a program; none where this kernel lacks arenas or a kernel function.
fn results(object: &Object, name: &str) -> Option<[u32; 2]> {
    let session = ObjectLoader::new(object).prepare().map_err(|e| println!("skipped: {e}")).ok()?;
    let program = object.programs.iter().find(|p| p.name == name).expect("a program of the fixture");
    let linked = object.link(program.func).expect("it can be linked");
    let program = match session.load(program.func, &linked) {
        Err(e @ ProgramError::Missing { .. }) => {
            println!("skipped: {e}");
            return None;
        }
        loaded => loaded.unwrap_or_else(|e| panic!("{name}: {e}")),
    };
    let run = || {
        program
            .test_run(&TestRun { repeat: 0, data_room: 0, ..TestRun::default() })
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .retval
    };
    Some([run(), run()])
}

#[test]
fn programs_on_arenas_do_the_same() {
    let Some(object) = objects::read("arena", &[]) else { return };
    let made = optimize(&object, &OptimizeOptions::default()).expect("optimized").object;
    let written = made.write().expect("it can be written");
    let made = Object::parse("arena.bpf.o", &written).expect("it can be read again");
    for program in &object.programs {
        let before = &object.functions[program.func.index()].insns;
        let after = &made.functions[program.func.index()].insns;
        assert!(after.len() <= before.len(), "{}", program.name);
    }
    if !testing::require() {
        return;
    }
    for (name, expected) in [("add", [13, 14]), ("absent_page", [30, 30])] {
        let Some(before) = results(&object, name) else { return };
        assert_eq!(before, expected, "{name}, original");
        assert_eq!(results(&made, name), Some(expected), "{name}, optimized");
    }
}
