//! Functions that are not understood, and functions that others rely on, stay as they are; the rest of the
//! object is optimized.

mod settings;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use millstream_isa::RawInsn;
use millstream_isa::helpers::id;
use millstream_object::{FuncId, Object, ObjectFunction, RelocKind};
use millstream_opt::{FunctionOutcome, OptimizationResult, OptimizeOptions, optimize};

const CALL: u8 = 0x85;

/// A fixture of the crate that reads objects; none, with the reason printed, where there is no clang and this
/// is not CI.
fn compile(name: &str) -> Option<Object> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../object/tests/fixtures/{name}.bpf.c"));
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let out = format!("left-alone-{}-{number}-{name}.o", std::process::id());
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(out);
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let machine = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(&clang);
    command
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", &machine, "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&out);
    match command.status() {
        Ok(status) => assert!(status.success(), "{name} does not compile"),
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "{clang}: {e}");
            eprintln!("skipped: {clang} cannot be run: {e}");
            return None;
        }
    }
    let data = std::fs::read(&out).expect("what clang wrote");
    std::fs::remove_file(&out).expect("it is ours");
    Some(Object::parse(&format!("{name}.o"), &data).expect("it can be read"))
}

fn id(o: &Object, name: &str) -> FuncId {
    let found = o.functions.iter().position(|f| f.name == name);
    FuncId(found.unwrap_or_else(|| panic!("no function {name}")) as u32)
}

fn function<'a>(o: &'a Object, name: &str) -> &'a ObjectFunction {
    &o.functions[id(o, name).index()]
}

fn outcome<'a>(made: &'a OptimizationResult, name: &str) -> &'a FunctionOutcome {
    &made.functions[id(&made.object, name).index()].outcome
}

fn calls(o: &Object, from: &str, to: &str) -> usize {
    let to = id(o, to);
    function(o, from).relocs.iter().filter(|r| r.kind == RelocKind::Call(to)).count()
}

#[test]
fn an_unknown_instruction_concerns_its_function_and_what_refers_to_it() {
    let Some(good) = compile("calls") else { return };
    let mut bad = good.clone();
    let twice = id(&bad, "twice");
    // No version of the instruction set has this opcode.
    bad.functions[twice.index()].insns[0] = RawInsn { code: 0xfd, dst: 0, src: 0, off: 0, imm: 0 };
    // Functions are so short that forms which are no faster would be left out.
    let options = OptimizeOptions { keep_longer: true, ..OptimizeOptions::default() };
    let (of_good, of_bad) = (optimize(&good, &options).unwrap(), optimize(&bad, &options).unwrap());
    let reaches = |n: usize| {
        let linked = good.link(FuncId(n as u32)).unwrap();
        linked.functions.iter().any(|(_, f)| *f == twice)
    };
    let mut others = 0;
    for (n, f) in bad.functions.iter().enumerate() {
        let made = &of_bad.object.functions[n];
        if reaches(n) {
            assert!(matches!(of_bad.functions[n].outcome, FunctionOutcome::NotUnderstood(_)), "{}", f.name);
            assert_eq!((&made.insns, &made.relocs), (&f.insns, &f.relocs), "{}", f.name);
        } else {
            assert!(!matches!(of_bad.functions[n].outcome, FunctionOutcome::NotUnderstood(_)), "{}", f.name);
            others += usize::from(of_good.functions[n].outcome == FunctionOutcome::Rewritten);
        }
    }
    assert!(others > 0, "the test would not see that others are optimized");
    let FunctionOutcome::NotUnderstood(why) = outcome(&of_bad, "first") else { panic!("it reaches twice") };
    assert!(why.contains("not understood"), "{why}");
}

#[test]
fn what_an_object_does_not_explain_is_written_and_the_rest_optimized() {
    let Some(o) = compile("strange") else { return };
    let made = optimize(&o, &OptimizeOptions::default()).unwrap();
    for name in ["jumps", "foreign", "last"] {
        assert!(
            matches!(outcome(&made, name), FunctionOutcome::NotUnderstood(_)),
            "{name}: {:?}",
            outcome(&made, name)
        );
        assert_eq!(function(&made.object, name).insns, function(&o, name).insns, "{name}");
    }
    assert!(!function(&made.object, "helped").removed, "what is not understood calls it");
    let again = Object::parse("again.o", &made.object.write().unwrap()).unwrap();
    assert_eq!(again.programs.len(), o.programs.len());
}

#[test]
fn hidden_functions_are_kept_for_the_files_that_are_linked_with_theirs() {
    let Some(o) = compile("parts") else { return };
    let made = optimize(&o, &OptimizeOptions::default()).unwrap();
    let shared = function(&made.object, "shared");
    assert!(!shared.removed && !shared.insns.is_empty());
    let computed = shared.insns.iter().any(|i| i.dst == 0 && i.code & 7 != 5);
    assert!(computed, "its result is wanted by callers that nobody sees: {:?}", shared.insns);
    assert_eq!(calls(&made.object, "entry", "replaceable"), 1, "another definition may take its place");
    let again = Object::parse("again.o", &made.object.write().unwrap()).unwrap();
    assert!(function(&again, "shared").hidden);
}

#[test]
fn global_functions_may_be_replaced_once_they_are_loaded() {
    let Some(o) = compile("dispatch") else { return };
    let made = optimize(&o, &OptimizeOptions::default()).unwrap();
    for (name, count) in [("stage", 2), ("marked", 1)] {
        assert_eq!(calls(&o, "dispatcher", name), count, "{name} as compiled");
        assert_eq!(
            calls(&made.object, "dispatcher", name),
            count,
            "{name}: what replaces it may do anything"
        );
    }
    let changes = |o: &Object| {
        let insns = &function(o, "marked").insns;
        insns.iter().filter(|i| i.code == CALL && i.src == 0 && i.imm == id::XDP_ADJUST_HEAD).count()
    };
    assert_eq!((changes(&o), changes(&made.object)), (1, 1), "it says that the packet may be changed");
}
