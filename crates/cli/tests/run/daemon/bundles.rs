//! Bundles in place of objects: which form runs, and why.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use millstream_bundle::{Bundle, PartRole};
use millstream_kernel::testing;
use millstream_programs::ROUTER;

use super::{Daemon, namespace, router_on};
use crate::session::{Place, ended};

/// Packs the router, with these flags.
fn pack(place: &Place, name: &str, flags: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(["bundle", "pack", "router.o", "-o", name]).args(flags).current_dir(&place.files);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Entries of a configuration: a bundle each, on the interface of the same place.
fn entries(bundles: &[(&str, &str)]) -> String {
    let entry = |(bundle, dev): &(&str, &str)| {
        router_on(bundle, &[dev]).replace("ROUTER", "FOLDER/NAME.tar").replace("NAME", bundle)
    };
    bundles.iter().map(entry).collect()
}

#[test]
fn the_form_for_this_kernel_runs_if_it_is_proven_and_else_the_original() {
    if !testing::require() {
        return;
    }
    let place = Place::new("bundles");
    pack(&place, "proven.tar", &[]);
    let proven = Bundle::read(&place.files.join("proven.tar")).unwrap();
    // Forms that are another program, and no forms.
    let forged = proven.parts().iter().map(|part| {
        let is_form = matches!(part.role, PartRole::Optimized { .. });
        let data = if is_form { millstream_programs::SWITCH.object } else { proven.data(part) };
        (part.role.clone(), part.name.clone(), data.to_vec())
    });
    Bundle::new("somebody", forged).unwrap().write(&place.files.join("forged.tar")).unwrap();
    let original = [(PartRole::Original, "router.o".to_owned(), ROUTER.object.to_vec())];
    Bundle::new("somebody", original).unwrap().write(&place.files.join("bare.tar")).unwrap();

    let namespace = namespace(&["a", "b", "c"]);
    let config = entries(&[("proven", "a"), ("forged", "b"), ("bare", "c")]);
    let daemon = Daemon::start(&namespace, &place, &config.replace("FOLDER", folder(&place)));
    for (name, form) in [
        ("proven", "optimized for"),
        ("forged", "is none of the original"),
        ("bare", "the bundle has no form"),
    ] {
        let status = daemon.until_state(name, "running");
        let told = status["form"].as_str().unwrap();
        assert!(told.contains(form) && told.starts_with("optimized") == (name == "proven"), "{status}");
    }
    let text = String::from_utf8(daemon.ask(&["status"]).stdout).unwrap();
    assert!(text.contains("proven here"), "{text}");
}

#[test]
fn with_a_key_only_signed_bundles_run_and_their_forms_may_be_trusted() {
    if !testing::require() {
        return;
    }
    let place = Place::new("bundles_signed");
    let key = place.files.join("team.key");
    std::fs::write(&key, "k".repeat(64)).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    pack(&place, "signed.tar", &["--store-key", "team.key"]);
    pack(&place, "unsigned.tar", &[]);
    let namespace = namespace(&["a", "b"]);
    let programs = entries(&[("signed", "a"), ("unsigned", "b")]).replace("FOLDER", folder(&place));
    let config = format!("store-key = {key:?}\ntrust-store = true\n{programs}");
    let daemon = Daemon::start(&namespace, &place, &config);
    let status = daemon.until_state("signed", "running");
    assert!(status["form"].as_str().unwrap().contains("not proven here"), "{status}");
    let status = daemon.until_state("unsigned", "failed");
    assert!(status["reason"].as_str().unwrap().contains("signature"), "{status}");

    // `run` says the form before it looks for the interface, and refuses what is not signed.
    for (bundle, said) in
        [("signed.tar", "bundle: optimized for"), ("unsigned.tar", "the signature of the bundle: none")]
    {
        let mut command = place.run_object(&place.files.join(bundle), "nothing");
        let output = ended(&namespace, command.arg("--store-key").arg(&key));
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(said), "{text}");
    }
}

fn folder(place: &Place) -> &str {
    Path::new(&place.files).to_str().unwrap()
}
