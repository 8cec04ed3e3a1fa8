//! The library through C.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use millstream_kernel::testing;

use crate::{Installed, programs, run, source};

fn compile(installed: &Installed, file: &str, libraries: &[&str]) -> PathBuf {
    let program = installed.path("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source(file));
    cc.arg("-I").arg(installed.path("include")).arg("-L").arg(installed.path("lib"));
    run(cc.arg("-lmillstream").args(libraries));
    program
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let installed = Installed::new();
    let symbols =
        run(Command::new("nm").args(["-D", "--defined-only"]).arg(installed.path("lib/libmillstream.so")));
    let names = symbols.lines().filter_map(|line| line.rsplit(' ').next());
    let exported: BTreeSet<&str> = names.filter(|name| name.starts_with("millstream_")).collect();
    let header = std::fs::read_to_string(source("include/millstream.h")).expect("read");
    let mut comment = false;
    let code = header.lines().filter(|line| {
        comment |= line.starts_with("/*");
        let is_code = !comment && !line.starts_with([' ', '\t', '#', '}']);
        comment &= !line.ends_with("*/");
        is_code
    });
    let name = |line: &str| {
        let before = line.split_once('(')?.0;
        before.rsplit([' ', '*']).next().filter(|name| name.starts_with("millstream_")).map(str::to_owned)
    };
    let declared: BTreeSet<String> = code.filter_map(name).collect();
    assert_eq!(declared.iter().map(String::as_str).collect::<BTreeSet<_>>(), exported);
}

#[test]
fn c_gets_the_same_bytes_and_errors_as_codes_and_texts() {
    let installed = Installed::new();
    let program = compile(&installed, "tests/bindings/check.c", &["-lpthread"]);
    for data_plane in programs() {
        let (object, expected) = installed.objects(data_plane);
        let said = run(installed.command(&program).args([object, expected]));
        assert!(said.ends_with("all is as it should be\n"), "{said}");
    }
}

#[test]
fn the_example_on_libbpf_loads_an_optimized_object() {
    if !testing::require() {
        return;
    }
    let installed = Installed::new();
    let program = compile(&installed, "examples/c/optimized_loader.c", &["-lbpf"]);
    let (object, _) = installed.objects(programs()[0]);
    let said = run(installed.command(&program).arg(object));
    assert!(said.contains("after: ") && said.contains("loaded: "), "{said}");
}
