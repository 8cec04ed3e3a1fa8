//! The library through Python.

use std::process::Command;

use millstream_kernel::testing;

use crate::{Installed, has, programs, run, shared_library, source};

fn python(installed: &Installed, script: &str) -> Command {
    let mut python = installed.command("python3");
    python.env("PYTHONPATH", source("bindings/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("MILLSTREAM_LIBRARY", shared_library()).arg(source(script));
    python
}

#[test]
fn python_gets_the_same_bytes_and_errors_as_exceptions() {
    if !has("python3", "--version") {
        return;
    }
    let installed = Installed::new();
    for data_plane in programs() {
        let (object, expected) = installed.objects(data_plane);
        run(python(&installed, "tests/bindings/check.py").args([object, expected]));
    }
}

#[test]
fn a_session_of_python_reports_by_a_descriptor() {
    if !has("python3", "--version") || !testing::require() {
        return;
    }
    let installed = Installed::new();
    let (object, _) = installed.objects(programs()[0]);
    let pins = format!("/sys/fs/bpf/millstream-library-{}", std::process::id());
    let script = python(&installed, "tests/bindings/session.py");
    let mut alone = Command::new("unshare");
    alone.args(["--net", "--"]).arg(script.get_program()).args(script.get_args()).arg(object).arg(&pins);
    alone.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = run(&mut alone);
    assert!(said.contains("\"attached\"") && said.contains("\"stopped\": true"), "{said}");
    assert!(!std::path::Path::new(&pins).exists());
}
