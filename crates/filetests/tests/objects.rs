//! The text form of whole objects reads back to the same module, before and after the passes: of our data
//! planes, and of all objects below the folder that `MILLSTREAM_OBJECTS` names. Public objects are not
//! committed, so without it only ours are read.

use std::path::{Path, PathBuf};

use millstream_bpf::lower::lower_func;
use millstream_bpf::module::lift_object;
use millstream_ir::Module;
use millstream_ir::text::parse_module;
use millstream_ir::verify::verify_module;
use millstream_object::Object;
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use millstream_programs::{BALANCER, FIREWALL, GUARD, NAT, ROUTER, STALE, SWITCH};

/// Checks that a module survives printing and parsing; the error names the first difference.
fn reads_back(module: &Module) -> Result<(), String> {
    let text = module.to_string();
    let read = parse_module(&text).map_err(|e| e.to_string())?;
    if let Some(error) = verify_module(&read).first() {
        return Err(format!("what was read is invalid: {error}"));
    }
    if let Some((was, is)) = text.lines().zip(read.to_string().lines()).find(|(was, is)| was != is) {
        return Err(format!("prints as another text: `{was}` is now `{is}`"));
    }
    for id in module.funcs.keys().filter(|&id| !module.funcs[id].layout.is_empty()) {
        let code = |module: &Module| lower_func(module, id).map(|l| l.insns).map_err(|e| e.to_string());
        if code(module) != code(&read) {
            return Err(format!("{} lowers to other code", module.funcs[id].name));
        }
    }
    Ok(())
}

/// Checks an object that can be read and lifted; the number of its functions.
fn check(name: &str, data: &[u8]) -> Result<usize, String> {
    let Ok(object) = Object::parse(name, data) else { return Ok(0) };
    let Ok(lifted) = lift_object(&object) else { return Ok(0) };
    let mut module = lifted.module;
    reads_back(&module).map_err(|e| format!("{name}, lifted: {e}"))?;
    let mut session = PassSession::new(TargetInfo::bpf(4));
    session.verify = true;
    PassPipeline::default_o2().run(&mut module, &mut session).map_err(|e| format!("{name}: {e}"))?;
    reads_back(&module).map_err(|e| format!("{name}, optimized: {e}"))?;
    Ok(module.funcs.len())
}

fn objects_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            objects_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "o") {
            found.push(path);
        }
    }
}

#[test]
fn our_data_planes() {
    for program in [ROUTER, SWITCH, FIREWALL, NAT, BALANCER, GUARD, STALE] {
        let functions = check(program.name, program.object);
        assert!(functions.as_ref().is_ok_and(|&n| n > 0), "{}: {functions:?}", program.name);
    }
}

#[test]
fn objects_of_others() {
    let Some(dir) = std::env::var_os("MILLSTREAM_OBJECTS") else {
        println!("skipped: MILLSTREAM_OBJECTS names no folder");
        return;
    };
    let mut paths = Vec::new();
    objects_below(Path::new(&dir), &mut paths);
    let (mut read, mut functions, mut failures) = (0, 0, Vec::new());
    for path in &paths {
        match check(&path.to_string_lossy(), &std::fs::read(path).unwrap()) {
            Ok(count) => {
                read += usize::from(count > 0);
                functions += count;
            }
            Err(failure) => failures.push(failure),
        }
    }
    println!("{} objects, {read} with functions, {functions} functions", paths.len());
    assert!(read > 0, "there is nothing to check");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
