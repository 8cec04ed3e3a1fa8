//! Load-time settings: constants with their final values, and removal of what they make unreachable.

use std::process::Command;

use millstream_object::{MapId, Object};
use millstream_opt::{LoadSetting, OptimizeOptions, PruneReport, apply_settings, optimize, prune};

use super::compile;

fn parse(settings: &[&str]) -> Vec<LoadSetting> {
    settings.iter().map(|s| s.parse().expect("a setting")).collect()
}

/// The fixture with these settings, optimized and pruned.
fn made(settings: &[&str]) -> Option<(Object, Object, PruneReport)> {
    let mut object = compile("settings")?;
    apply_settings(&mut object, &parse(settings)).expect("the settings fit");
    let optimized = optimize(&object, &OptimizeOptions::default()).expect("it can be optimized");
    let (pruned, report) = prune(&object, &optimized.object).expect("it can be pruned");
    Some((object, pruned, report))
}

fn error(setting: &str) -> Option<String> {
    let mut object = compile("settings")?;
    Some(apply_settings(&mut object, &parse(&[setting])).expect_err("it is refused").to_string())
}

/// The bytes of a constant.
fn value(object: &Object, name: &str) -> Vec<u8> {
    let variables = object.maps.iter().flat_map(|m| m.variables.iter().map(move |v| (m, v)));
    let (map, v) = variables.into_iter().find(|(_, v)| v.name == name).expect("the variable");
    let data = map.data.as_ref().expect("its data");
    data[v.offset as usize..(v.offset + v.size) as usize].to_vec()
}

#[test]
fn values_are_written_as_their_types_say() {
    let settings = [
        "enable_counting=0",
        "enable_tail=false",
        "port=0x1f90",
        "level=-7",
        "cookie=18446744073709551615",
        "mode=MODE_DROP",
        "pair=0100aabbccdd",
        "plain=9",
    ];
    let Some(mut object) = compile("settings") else { return };
    apply_settings(&mut object, &parse(&settings)).expect("the settings fit");
    let again = Object::parse("settings.o", &object.write().expect("written")).expect("read again");
    for o in [&object, &again] {
        assert_eq!(value(o, "enable_tail"), [0]);
        assert_eq!(value(o, "port"), [0x90, 0x1f]);
        assert_eq!(value(o, "level"), (-7i32).to_le_bytes());
        assert_eq!(value(o, "cookie"), [0xff; 8]);
        assert_eq!(value(o, "mode"), 70000u32.to_le_bytes());
        assert_eq!(value(o, "pair"), [1, 0, 0xaa, 0xbb, 0xcc, 0xdd]);
        assert_eq!(value(o, "plain"), [9, 0, 0, 0]);
    }
}

#[test]
fn a_wrong_setting_names_the_variable_and_its_type() {
    let cases = [
        ("ports=1", "`port` of type const volatile"),
        ("port=65536", "0 to 65535"),
        ("level=x", "`x` is not an integer"),
        ("enable_tail=2", "neither true nor false"),
        ("mode=MODE_ON", "MODE_OFF, MODE_COUNT, MODE_DROP"),
        ("pair=00", "12 hexadecimal digits"),
        ("total=1", "only constants"),
    ];
    for (setting, expected) in cases {
        let Some(message) = error(setting) else { return };
        assert!(message.contains(expected), "{setting}: {message}");
    }
    assert!("port".parse::<LoadSetting>().is_err());
}

#[test]
fn code_and_maps_that_settings_switch_off_go() {
    let off = ["enable_counting=0", "enable_tail=0", "mode=MODE_COUNT"];
    let Some((before, after, report)) = made(&off) else { return };
    assert_eq!(report.programs, ["tail"]);
    for map in ["counts", "behind_tail", "outer", "inner", "calls"] {
        assert!(report.maps.iter().any(|m| m == map), "{map} is still in {:?}", report.maps);
    }
    assert!(after.maps.len() < before.maps.len());
    let names: Vec<_> = after.maps.iter().map(|m| m.name.as_str()).collect();
    assert!(names.contains(&"first") && names.contains(&"never_used"), "{names:?}");
    loads(&after, "off");
}

#[test]
fn what_is_reached_stays() {
    let Some((before, after, report)) = made(&["mode=MODE_OFF"]) else { return };
    assert_eq!(report, PruneReport::default());
    assert_eq!(after.maps.len(), before.maps.len());
    let outer = after.maps.iter().find(|m| m.name == "outer").expect("the map of maps");
    let inner = after.maps.iter().position(|m| m.name == "inner").expect("its inner map");
    let held = outer.initial.iter().map(|(slot, v)| (*slot, *v)).collect::<Vec<_>>();
    assert_eq!(held, [(1, millstream_object::InitialValue::Map(MapId(inner as u32)))]);
    loads(&after, "reached");
}

/// Definitions of maps close up, and initial values move with them.
#[test]
fn maps_that_stay_keep_their_initial_values() {
    let Some((_, after, report)) = made(&["enable_counting=0", "mode=MODE_OFF"]) else { return };
    assert_eq!(report.maps, ["counts"]);
    let outer = after.maps.iter().find(|m| m.name == "outer").expect("the map of maps");
    assert_eq!(outer.initial.len(), 1);
    loads(&after, "moved");
}

/// Loads an object by libbpf.
fn loads(object: &Object, tag: &str) {
    let name = format!("settings-{}-{tag}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.o"));
    std::fs::write(&path, object.write().expect("it can be written")).expect("a file");
    let pins = format!("/sys/fs/bpf/{name}");
    let out = Command::new("bpftool").args(["prog", "loadall"]).arg(&path).arg(&pins).output();
    let _ = std::fs::remove_dir_all(&pins);
    let _ = std::fs::remove_file(&path);
    match out {
        Ok(out) if out.status.success() => {}
        Ok(out) => {
            let why = String::from_utf8_lossy(&out.stderr).into_owned();
            let forbidden =
                why.contains("Operation not permitted") || why.contains("No such file or directory");
            assert!(forbidden && std::env::var("CI").is_err(), "{tag}: {why}");
            eprintln!("skipped: bpftool cannot load here: {why}");
        }
        Err(e) => {
            assert!(std::env::var("CI").is_err(), "bpftool: {e}");
            eprintln!("skipped: no bpftool: {e}");
        }
    }
}
