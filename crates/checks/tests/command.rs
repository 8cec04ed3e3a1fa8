//! The `checks` command: exit codes, and limits that it writes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const LIMITS: &str = "crates/checks/limits.toml";

fn checks(root: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_checks")).arg("--root").arg(root).args(arguments).output();
    let Output { status, stdout, stderr } = command.unwrap();
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn limits_are_written_held_and_lowered() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let write = |path: &str, text: &str| {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), text).unwrap();
    };
    let limit = || {
        let text = fs::read_to_string(root.join(LIMITS)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("interrogative_comments = ")).unwrap().to_owned()
    };
    write("crates/checks/src/lib.rs", "/// What a is.\nfn a() {}\n/// Who calls b.\nfn b() {}\n");
    let (code, text) = checks(root, &[]);
    assert!(code == Some(2) && text.contains("has no limit"), "{code:?}: {text}");
    assert_eq!(checks(root, &["--bless"]).0, Some(0));
    assert_eq!(limit(), "2");

    write("crates/checks/src/lib.rs", "/// What a is.\nfn a() {}\n");
    assert_eq!(checks(root, &[]).0, Some(0));
    assert_eq!(limit(), "2");
    assert_eq!(checks(root, &["--bless"]).0, Some(0));
    assert_eq!(limit(), "1");

    write("crates/checks/src/more.rs", "");
    write(
        "crates/checks/src/lib.rs",
        "mod more;\n/// What a is.\nfn a() {}\n/// How.\n///\n/// Who.\nfn b() {}\n",
    );
    let (code, text) = checks(root, &["--bless"]);
    assert!(code == Some(1) && text.contains("ABOVE"), "{code:?}: {text}");
    assert_eq!(limit(), "1");
    let (code, text) = checks(root, &["--list", "interrogative_comments"]);
    assert!(code == Some(1) && text.contains("crates/checks/src/lib.rs:6: Who.\n"), "{code:?}: {text}");
    assert!(checks(root, &["--json"]).1.contains("\"name\": \"interrogative_comments\""));
}

#[test]
fn unusable_input_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.rs"), "fn {}").unwrap();
    let (code, text) = checks(folder.path(), &[]);
    assert!(code == Some(2) && text.contains("a.rs:1: "), "{code:?}: {text}");
    let (code, text) = checks(&folder.path().join("nowhere"), &[]);
    assert!(code == Some(2) && text.contains("nowhere"), "{code:?}: {text}");
}
