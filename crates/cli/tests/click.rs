//! `millstream click` as a user calls it.

mod common;

use std::process::{Command, Output};

use common::Files;

/// Runs this configuration; `name` is the test's.
fn click(name: &str, text: &str, args: &[&str]) -> Output {
    let files = Files::new(&format!("click-{name}"));
    let conf = files.path("test.click");
    std::fs::write(&conf, text).expect("written");
    Command::new(env!("CARGO_BIN_EXE_millstream")).arg("click").arg(&conf).args(args).output().expect("run")
}

#[test]
fn a_configuration_runs_and_its_account_adds_up() {
    let text = "define($n 1000) InfiniteSource(DATA \\<00 01>, LIMIT $n) -> t :: Tee(2) -> c :: Counter -> Queue -> ToDevice(eth0); t[1] -> Discard";
    let out = click("account", text, &["n=500", "--json", "--handler", "c.count", "--handler", "c.class"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let dropped: u64 =
        report["dropped"].as_array().expect("rows").iter().map(|r| r["packets"].as_u64().expect("n")).sum();
    assert_eq!((report["received"].as_u64(), report["copies"].as_u64()), (Some(500), Some(500)));
    assert_eq!((report["sent"].as_u64(), dropped), (Some(500), 500));
    assert_eq!(
        (report["handlers"][0]["value"].as_str(), report["handlers"][1]["value"].as_str()),
        (Some("500"), Some("Counter"))
    );
}

#[test]
fn an_error_shows_the_line_and_the_nearest_name() {
    let out = click("error", "FromDevice(a)\n -> Cuonter\n -> Discard;\n", &[]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    for part in ["there is no element class `Cuonter`", "the nearest name is `Counter`", ":2:", "-> Cuonter"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_flat_form_is_a_configuration() {
    let out = click("flat", "elementclass C { -> Strip(1) -> } Idle -> C -> Discard", &["--flat"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("@2/Strip@1 :: Strip(1);"), "{text}");
}
