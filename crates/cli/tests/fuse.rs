//! `millstream fuse` as a user runs it, on objects that clang makes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millstream_object::Object;
use serde_json::Value;

/// Compiles a fixture of the object crate into a folder; false, with the reason printed, where there is no
/// clang and this is not CI.
fn compile(folder: &Path, fixture: &str, name: &str, flags: &[&str]) -> bool {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../object/tests/fixtures/{fixture}.bpf.c"));
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let arguments = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", &headers];
    let mut command = Command::new(&clang);
    match command.args(arguments).args(flags).arg("-c").arg(source).arg("-o").arg(folder.join(name)).status()
    {
        Ok(status) => {
            assert!(status.success(), "{fixture}");
            true
        }
        Err(error) => {
            assert!(std::env::var("CI").is_err(), "{clang}: {error}");
            eprintln!("skipped: {clang} cannot be run: {error}");
            false
        }
    }
}

/// A folder with a dispatcher and two components; it is removed on drop.
struct Objects(PathBuf);

impl Objects {
    fn new(name: &str) -> Option<Objects> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let objects = Objects(folder);
        let parts = [
            ("dispatcher", "dispatcher.o", &[][..]),
            ("component", "first.o", &["-DETHERTYPE=0x800", "-DVERDICT=XDP_DROP"]),
            ("component", "second.o", &["-DETHERTYPE=0x806", "-DVERDICT=XDP_TX"]),
        ];
        parts.into_iter().all(|(f, n, flags)| compile(&objects.0, f, n, flags)).then_some(objects)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.current_dir(&self.0).arg("fuse").args(arguments).env("NO_COLOR", "1").output().unwrap()
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_chain_becomes_one_object_with_the_maps_of_all() {
    let Some(objects) = Objects::new("fuse") else { return };
    let output = objects.run(&["dispatcher.o", "first.o", "second.o", "-o", "out.o", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["schema"], &report["program"]), (&Value::from(1), &Value::from("dispatch")));
    let components = report["components"].as_array().unwrap();
    assert_eq!(components.len(), 2);
    for component in components {
        assert_eq!(component["priority"], 50);
        assert_eq!(component["continue_after"], serde_json::json!(["XDP_PASS"]));
    }
    assert_ne!(components[0]["maps"], components[1]["maps"], "each has its own, under names that differ");
    let slots = |when: &str| report["costs"][when]["slots"].as_u64().unwrap();
    assert!(slots("after") < slots("before"), "{report}");

    let written = Object::parse("out.o", &std::fs::read(objects.0.join("out.o")).unwrap()).unwrap();
    assert_eq!(written.programs.len(), 1);
    let names = components.iter().flat_map(|c| c["maps"].as_array().unwrap()).filter_map(Value::as_str);
    // Maps of global data are named after the file.
    for name in names.filter(|name| !name.contains('.')) {
        assert!(written.maps.iter().any(|m| m.name == name), "{name}");
    }
    let text = objects.run(&["dispatcher.o", "first.o", "second.o"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("next after XDP_PASS") && text.contains("predicted cycles"), "{text}");
}

#[test]
fn chains_that_cannot_be_fused_end_with_the_reason() {
    let Some(objects) = Objects::new("unfused") else { return };
    let code = |arguments: &[&str]| {
        let output = objects.run(arguments);
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (rc, error) = code(&["first.o", "second.o"]);
    assert!(rc == Some(2) && error.contains("chain_call_actions"), "{error}");
    let (rc, error) = code(&["dispatcher.o", "second.o:absent"]);
    assert!(rc == Some(2) && error.contains("no such XDP program"), "{error}");
    let many = vec!["first.o"; 11];
    let (rc, error) = code(&[&["dispatcher.o"][..], &many].concat());
    assert!(rc == Some(2) && error.contains("room for 10 programs"), "{error}");
    std::fs::write(objects.0.join("closed.o"), closed(&objects.0.join("first.o"))).unwrap();
    let (rc, error) = code(&["dispatcher.o", "closed.o"]);
    assert!(rc == Some(1) && error.contains("licence"), "{error}");
}

/// The object at a path, under a licence of the same length that is not compatible with the GPL.
fn closed(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(4).position(|w| w == b"GPL\0").unwrap();
    bytes[at..at + 3].copy_from_slice(b"XYZ");
    bytes
}
