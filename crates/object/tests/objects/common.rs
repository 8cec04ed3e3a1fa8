//! Fixtures: C files compiled by clang when the tests run.

use millstream_object::Object;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles a fixture; [`None`], with the reason printed, where there is no clang and this is not CI.
pub(crate) fn compile(name: &str, flags: &[&str]) -> Option<(PathBuf, Vec<u8>)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&folder).expect("a folder for fixtures");
    let (source, out) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../object/tests/fixtures/{name}.bpf.c")),
        folder.join(format!("{name}.bpf.o")),
    );
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let machine = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let made = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", &machine])
        .args(flags)
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&out)
        .output();
    match made {
        Ok(o) if o.status.success() => {
            let data = std::fs::read(&out).expect("what clang wrote");
            Some((out, data))
        }
        Ok(o) => panic!("{name}: {}", String::from_utf8_lossy(&o.stderr)),
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "{clang}: {e}");
            eprintln!("skipped: {clang} cannot be run: {e}");
            None
        }
    }
}

/// Compiles and reads a fixture.
pub(crate) fn read(name: &str, flags: &[&str]) -> Option<Object> {
    let (path, data) = compile(name, flags)?;
    Some(Object::parse(&path.to_string_lossy(), &data).expect("a fixture can be read"))
}
