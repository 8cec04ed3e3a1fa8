//! A program that this process may not load does not keep the others of its object from being checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_kernel::testing;
use millstream_object::Object;
use millstream_opt::{CheckedObject, KernelVerdict, OptError, OptimizeOptions, check};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

fn object() -> Object {
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/permissions/mixed.bpf.c");
    let out = format!("permissions-{}-{:?}.o", std::process::id(), std::thread::current().id());
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(out);
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&out)
        .status()
        .unwrap_or_else(|e| panic!("{clang}: {e}"));
    assert!(status.success(), "{clang} rejects the source");
    let data = std::fs::read(&out).expect("what clang wrote");
    std::fs::remove_file(&out).expect("it is ours");
    Object::parse("mixed.o", &data).expect("it can be read")
}

/// Checks the object with some of this process's capabilities.
fn checked_with(kept: CapabilitySet) -> Result<CheckedObject, OptError> {
    let object = object();
    let limited = move || {
        let mut own = capabilities(None).expect("the thread's capabilities");
        own.effective &= kept;
        own.permitted &= kept;
        own.inheritable &= kept;
        set_capabilities(None, own).expect("capabilities can be given up");
        check(&object, OptimizeOptions::default())
    };
    std::thread::spawn(limited).join().expect("no panic")
}

#[test]
fn programs_that_may_not_be_loaded_are_named_and_the_others_checked() {
    if !testing::require() {
        return;
    }
    let checked = checked_with(CapabilitySet::BPF | CapabilitySet::NET_ADMIN).expect("an object");
    let verdict = |name: &str| {
        let program = checked.programs.iter().find(|p| p.name == name);
        &program.unwrap_or_else(|| panic!("no program {name}")).verdict
    };
    assert_eq!(verdict("receive"), &KernelVerdict::Accepted);
    assert!(
        matches!(verdict("trace"), KernelVerdict::NotSupported(why) if why.contains("EPERM")),
        "{:?}",
        verdict("trace")
    );
}

#[test]
fn where_no_program_may_be_loaded_the_kernel_cannot_be_asked() {
    if !testing::require() {
        return;
    }
    let error = checked_with(CapabilitySet::empty()).expect_err("no rights");
    assert_eq!(error.kernel_error().and_then(|e| e.errno()), Some(libc::EPERM), "{error}");
}
