//! The library through Go. The module of cilium/ebpf comes from the module cache or the network.

use crate::{Installed, has, programs, run, source};

#[test]
fn go_gets_the_same_bytes_and_errors_as_values() {
    if !has("go", "version") || !has("pkg-config", "--version") {
        return;
    }
    let installed = Installed::new();
    for data_plane in programs() {
        let (object, expected) = installed.objects(data_plane);
        let mut go = installed.command("go");
        go.current_dir(source("bindings/go")).args(["test", "-count=1", "-mod=readonly", "."]);
        run(go.env("OBJECT", object).env("EXPECTED", expected));
    }
}

#[test]
fn the_example_on_cilium_ebpf_loads_an_optimized_collection() {
    if !has("go", "version") || !has("pkg-config", "--version") || !millstream_kernel::testing::require() {
        return;
    }
    let installed = Installed::new();
    let modules =
        installed.command("go").current_dir(source("bindings/go")).args(["mod", "download"]).output();
    if !modules.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: the modules of Go cannot be had");
        return;
    }
    let (object, _) = installed.objects(programs()[0]);
    let mut go = installed.command("go");
    go.current_dir(source("bindings/go")).args(["run", "-mod=readonly", "./cmd/optimized-loader"]);
    let said = run(go.arg(object));
    assert!(said.contains("instructions before") && said.contains("loaded: "), "{said}");
}
