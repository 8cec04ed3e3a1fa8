//! Bundles, by the command line: packed, signed, shown, and proven again.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::Files;
use millstream_bundle::{Bundle, PartRole};
use serde_json::Value;

/// A plan that leaves everything to the compiler.
const PLAN: &str = "millstream plan 1\nprogram: router\nhash: 0\nversion: 0\nmachine: m\nend\n";

fn millstream(files: &Files, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    for name in ["MILLSTREAM_STORE_KEY", "MILLSTREAM_REDIS"] {
        command.env_remove(name);
    }
    command.args(arguments).env("NO_COLOR", "1").env("MILLSTREAM_CACHE", "off");
    let vmrun = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/vmrun");
    command.env("MILLSTREAM_VMRUN", vmrun).current_dir(&files.0);
    command.output().unwrap()
}

/// Runs a command; returns its exit code and all that it printed.
fn run(files: &Files, arguments: &[&str]) -> (i32, String) {
    let output = millstream(files, arguments);
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code().unwrap(), said.concat())
}

/// JSON that a command prints, and its exit code.
fn json(files: &Files, arguments: &[&str]) -> (i32, Value) {
    let output = millstream(files, arguments);
    let report = serde_json::from_slice(&output.stdout);
    (output.status.code().unwrap(), report.unwrap_or_else(|_| panic!("{arguments:?}: {output:?}")))
}

/// A folder with an object, and keys of two teams.
fn workplace(name: &str) -> Files {
    let files = Files::new(name);
    for (key, byte) in [("ours.key", "a"), ("other.key", "b")] {
        std::fs::write(files.path(key), byte.repeat(64)).unwrap();
        std::fs::set_permissions(files.path(key), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
    }
    let (code, said) = run(&files, &["control", "router", "object", "router.o"]);
    assert_eq!(code, 0, "{said}");
    files
}

fn verdicts(report: &Value) -> Vec<&str> {
    report["forms"].as_array().unwrap().iter().map(|form| form["verdict"].as_str().unwrap()).collect()
}

/// The bundle with the form of a kernel replaced.
fn replace_form(bundle: &Bundle, wanted: &str, form: &[u8]) -> Bundle {
    let parts = bundle.parts().iter().map(|part| {
        let is_wanted = matches!(&part.role, PartRole::Optimized { kernel } if kernel == wanted);
        let data = if is_wanted { form } else { bundle.data(part) };
        (part.role.clone(), part.name.clone(), data.to_vec())
    });
    Bundle::new("somebody", parts).unwrap()
}

#[test]
fn a_bundle_has_what_opt_makes_for_each_kernel_and_its_proof() {
    let files = workplace("bundle-pack");
    let (code, packed) = json(&files, &["bundle", "pack", "router.o", "-o", "b.tar", "--json"]);
    assert_eq!((code, verdicts(&packed)), (0, vec!["proven"; 5]), "{packed}");
    assert_eq!((packed["schema"].as_u64(), packed["signed"].as_bool()), (Some(1), Some(false)));
    let bundle = Bundle::read(Path::new(&files.path("b.tar"))).unwrap();
    assert_eq!(bundle.data(bundle.original().unwrap()), std::fs::read(files.path("router.o")).unwrap());
    for part in bundle.parts() {
        let PartRole::Optimized { kernel } = &part.role else { continue };
        let (code, said) = run(&files, &["opt", "router.o", "--for", kernel, "-o", "made.o"]);
        assert_eq!(code, 0, "{said}");
        assert!(bundle.data(part) == std::fs::read(files.path("made.o")).unwrap(), "{kernel}");
    }
    let (code, shown) = json(&files, &["bundle", "show", "b.tar", "--json"]);
    assert_eq!((code, shown["parts"].as_array().unwrap().len()), (0, 11));
    let (code, verdict) = json(&files, &["bundle", "verify", "b.tar", "--json"]);
    assert_eq!((code, verdicts(&verdict)), (0, vec!["proven"; 5]), "{verdict}");
    assert_eq!(verdict["signature"], "unsigned");
}

#[test]
fn packing_twice_gives_the_same_bytes() {
    let files = workplace("bundle-same");
    for output in ["a.tar", "b.tar"] {
        let arguments =
            ["bundle", "pack", "router.o", "--kernels", "6.1", "-o", output, "--store-key", "ours.key"];
        assert_eq!(run(&files, &arguments).0, 0);
    }
    assert!(std::fs::read(files.path("a.tar")).unwrap() == std::fs::read(files.path("b.tar")).unwrap());
}

#[test]
fn a_kernel_that_cannot_load_the_object_is_refused() {
    let files = workplace("bundle-old");
    let (code, said) = run(&files, &["bundle", "pack", "router.o", "--kernels", "4.4", "-o", "b.tar"]);
    assert_eq!(code, 2, "{said}");
    assert!(!Path::new(&files.path("b.tar")).exists());
}

#[test]
fn a_signature_is_valid_for_its_key_and_its_bundle_only() {
    let files = workplace("bundle-signed");
    let pack = ["bundle", "pack", "router.o", "--kernels", "6.1,6.12", "-o", "b", "--store-key", "ours.key"];
    assert_eq!(run(&files, &pack).0, 0);
    let verify = |bundle: &str, flags: &[&str]| {
        let (code, report) = json(&files, &[&["bundle", "verify", bundle, "--json"], flags].concat());
        let forms: Vec<String> = verdicts(&report).into_iter().map(str::to_owned).collect();
        (code, report["signature"].as_str().unwrap().to_owned(), forms)
    };
    let outcome = |code, signature: &str, form: &str| (code, signature.to_owned(), vec![form.to_owned(); 2]);
    let (ours, other) = (["--store-key", "ours.key"], ["--store-key", "other.key"]);
    let trusting = |key: [&'static str; 2]| [key[0], key[1], "--trust-store"];
    assert_eq!(verify("b", &[]), outcome(0, "unchecked", "proven"));
    assert_eq!(verify("b", &ours), outcome(0, "valid", "proven"));
    assert_eq!(verify("b", &trusting(ours)), outcome(0, "valid", "trusted"));
    // Without the right signature nothing is taken on trust.
    assert_eq!(verify("b", &trusting(other)), outcome(1, "invalid", "proven"));

    let bundle = Bundle::read(Path::new(&files.path("b"))).unwrap();
    let signature = bundle.signature().unwrap().to_owned();
    let original = bundle.data(bundle.original().unwrap());
    let changed = replace_form(&bundle, "6.1", original).with_signature(signature);
    changed.write(Path::new(&files.path("changed.tar"))).unwrap();
    assert_eq!(verify("changed.tar", &trusting(ours)), outcome(1, "invalid", "proven"));
    let unsigned = replace_form(&bundle, "6.1", original);
    unsigned.write(Path::new(&files.path("unsigned.tar"))).unwrap();
    assert_eq!(verify("unsigned.tar", &trusting(ours)), outcome(1, "unsigned", "proven"));
}

#[test]
fn a_form_that_is_none_of_the_original_is_refuted() {
    let files = workplace("bundle-forged");
    assert_eq!(run(&files, &["bundle", "pack", "router.o", "--kernels", "6.1", "-o", "b.tar"]).0, 0);
    let bundle = Bundle::read(Path::new(&files.path("b.tar"))).unwrap();
    let original = bundle.data(bundle.original().unwrap()).to_vec();
    assert_eq!(run(&files, &["control", "switch", "object", "switch.o"]).0, 0);
    let other = std::fs::read(files.path("switch.o")).unwrap();
    let cut = original[..original.len() / 2].to_vec();
    for (form, reason) in [(other, "are not those of the original"), (cut, "it is no object")] {
        replace_form(&bundle, "6.1", &form).write(Path::new(&files.path("forged.tar"))).unwrap();
        let (code, said) = run(&files, &["bundle", "verify", "forged.tar"]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("refuted") && said.contains(reason), "{said}");
    }
}

#[test]
fn other_instructions_are_refuted_and_terminal_codes_in_names_escaped() {
    let files = workplace("bundle-names");
    let assemble = |text: &str| {
        let insns = millstream_isa::asm::assemble(text).unwrap();
        let bytes: Vec<u8> =
            millstream_isa::encode_all(&insns).iter().flat_map(|raw| raw.to_bytes()).collect();
        std::fs::write(files.path("xdp.insns"), bytes).unwrap();
        assert_eq!(run(&files, &["opt", "xdp.insns", "--section", "xdp", "--fuel", "0", "-o", "xdp.o"]).0, 0);
        std::fs::read(files.path("xdp.o")).unwrap()
    };
    let (pass, drop) = (assemble("r0 = 2\nexit\n"), assemble("r0 = 1\nexit\n"));
    let name = "\u{1b}[2J.o".to_owned();
    let form = PartRole::Optimized { kernel: "6.1".to_owned() };
    let parts = [(PartRole::Original, name.clone(), pass), (form, name, drop)];
    Bundle::new("somebody", parts).unwrap().write(Path::new(&files.path("b.tar"))).unwrap();
    let (code, said) = run(&files, &["bundle", "verify", "b.tar"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("differs"), "{said}");
    for command in ["show", "verify"] {
        assert!(!run(&files, &["bundle", command, "b.tar"]).1.contains('\u{1b}'));
    }
}

#[test]
fn rules_costs_and_plans_are_packed_as_they_are_and_a_file_that_is_none_is_refused() {
    let files = workplace("bundle-files");
    let pack = ["bundle", "pack", "router.o", "--kernels", "6.1", "-o", "b.tar"];
    for flag in ["--rules", "--costs", "--plan"] {
        let (code, said) = run(&files, &[&pack[..], &[flag, "ours.key"]].concat());
        assert_eq!(code, 2, "{flag}: {said}");
        assert!(!Path::new(&files.path("b.tar")).exists(), "{flag}");
    }
    let costs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bpf/src/cost/built-in.costs");
    std::fs::copy(&costs, files.path("our.costs")).unwrap();
    std::fs::write(files.path("our.rule"), "(add.64 (sub.64 x y) y) => x\n").unwrap();
    assert_eq!(run(&files, &["rules", "seal", "our.rule", "-o", "our.rules"]).0, 0);
    std::fs::write(files.path("our.plan"), PLAN).unwrap();
    let with = ["--rules", "our.rules", "--costs", "our.costs", "--plan", "our.plan"];
    let (code, said) = run(&files, &[&pack[..], &with].concat());
    assert_eq!(code, 0, "{said}");
    let bundle = Bundle::read(Path::new(&files.path("b.tar"))).unwrap();
    let roles =
        [(PartRole::Rules, "our.rules"), (PartRole::Costs, "our.costs"), (PartRole::Plan, "our.plan")];
    for (role, name) in roles {
        let part = bundle.parts().iter().find(|part| part.role == role).unwrap();
        assert_eq!(part.name, name);
        assert!(bundle.data(part) == std::fs::read(files.path(name)).unwrap(), "{name}");
        assert_eq!(run(&files, &["bundle", "extract", "b.tar", role.name(), "-o", "part"]).0, 0);
        assert!(bundle.data(part) == std::fs::read(files.path("part")).unwrap(), "{name}");
    }
}

#[test]
fn a_part_is_extracted_if_there_is_one_and_only_one() {
    let files = workplace("bundle-extract");
    assert_eq!(run(&files, &["bundle", "pack", "router.o", "--kernels", "6.1,6.12", "-o", "b.tar"]).0, 0);
    let extract =
        |more: &[&str]| run(&files, &[&["bundle", "extract", "b.tar"], more, &["-o", "part"]].concat());
    let (code, said) = extract(&["optimized"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--kernel: 6.1, 6.12"), "{said}");
    assert_eq!(extract(&["plan"]).0, 1);
    assert!(!Path::new(&files.path("part")).exists());
    assert_eq!(extract(&["optimized", "--kernel", "6.12"]).0, 0);
    let (code, said) = run(&files, &["opt", "router.o", "--for", "6.12", "-o", "opt.o"]);
    assert_eq!(code, 0, "{said}");
    assert!(std::fs::read(files.path("part")).unwrap() == std::fs::read(files.path("opt.o")).unwrap());
}

#[test]
fn a_damaged_bundle_is_unusable_input() {
    let files = workplace("bundle-damaged");
    assert_eq!(run(&files, &["bundle", "pack", "router.o", "--kernels", "6.1", "-o", "b.tar"]).0, 0);
    let mut bytes = std::fs::read(files.path("b.tar")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(files.path("b.tar"), bytes).unwrap();
    for command in ["show", "verify"] {
        let (code, said) = run(&files, &["bundle", command, "b.tar"]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("digest"), "{said}");
    }
}

/// The kernel of the virtual machines that tests boot; false, with the reason, if it is not in the cache.
fn has_kernel(name: &str) -> bool {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let folder = cache.or_else(home).unwrap_or_default().join("millstream/kernels").join(name);
    let there = folder.is_dir();
    if !there {
        println!("skipped: there is no {}: `scripts/kernels` fetches it", folder.display());
    }
    there
}

#[test]
fn preflight_says_which_form_each_kernel_takes_and_at_which_cost() {
    if !has_kernel("6.1") {
        return;
    }
    let files = workplace("bundle-preflight");
    assert_eq!(run(&files, &["bundle", "pack", "router.o", "--kernels", "6.1", "-o", "b.tar"]).0, 0);
    let bundle = Bundle::read(Path::new(&files.path("b.tar"))).unwrap();
    let (code, report) = json(&files, &["preflight", "b.tar", "--kernels", "6.1", "--json"]);
    let row = &report["programs"][0];
    assert_eq!(
        (code, row["form"].as_str(), row["verdict"].as_str()),
        (0, Some("optimized"), Some("accepted"))
    );
    assert!(row["verified_insns"].as_u64() < row["original_verified_insns"].as_u64(), "{report}");

    // A form that reads beyond the context, in a bundle with a name that a shell would run.
    let insns = millstream_isa::asm::assemble("r0 = *(u32 *)(r1 +4000)\nexit\n").unwrap();
    let bytes: Vec<u8> = millstream_isa::encode_all(&insns).iter().flat_map(|raw| raw.to_bytes()).collect();
    std::fs::write(files.path("bad.insns"), bytes).unwrap();
    assert_eq!(run(&files, &["opt", "bad.insns", "--section", "xdp", "--fuel", "0", "-o", "bad.o"]).0, 0);
    let form = PartRole::Optimized { kernel: "6.1".to_owned() };
    let name = "'; touch /out/0.json; exit 0 #".to_owned();
    let original = bundle.data(bundle.original().unwrap()).to_vec();
    let bad = std::fs::read(files.path("bad.o")).unwrap();
    let parts = [(PartRole::Original, name.clone(), original), (form, name, bad)];
    Bundle::new("somebody", parts).unwrap().write(Path::new(&files.path("bad.tar"))).unwrap();
    let (code, report) = json(&files, &["preflight", "bad.tar", "--kernels", "6.1", "--json"]);
    assert_eq!((code, report["programs"][0]["verdict"].as_str()), (1, Some("rejected")), "{report}");
}
