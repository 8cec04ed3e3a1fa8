//! `BPF(FILE, PROGRAM)` between elements of Click: packets leave as the kernel's test run leaves the same
//! packets.

mod common;
#[path = "common/flat.rs"]
mod flat;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use common::Files;
use flat::flat;
use millstream_kernel::{TestRun, UpdateMode, testing};
use millstream_lab::pcap;
use millstream_lab::workload::{BuiltinWorkload, Workload};
use millstream_loader::ObjectLoader;
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_object::Object;
use millstream_programs::traffic::FlowLocality;

/// The loopback: an interface that every machine has.
const LOOPBACK: u32 = 1;
const PACKETS: usize = 2000;

/// Verdict and frame of each packet, as the kernel has them.
fn in_the_kernel(builtin: &BuiltinWorkload, load: &Workload) -> Vec<(u32, Vec<u8>)> {
    let object = Object::parse(builtin.program.name, builtin.program.object).expect("our own");
    let loaded = ObjectLoader::new(&object).load().expect("the verifier accepts it");
    let program = loaded.program(builtin.program.function).expect("the program");
    for entry in &load.entries {
        let map = loaded.session.map_by_name(entry.map).expect("the object's map");
        let mut value = entry.value.clone();
        if entry.map == "tx_ports" {
            value[..4].copy_from_slice(&LOOPBACK.to_ne_bytes());
        }
        map.update_all_cpus(&entry.key, &value, UpdateMode::Any).expect("written");
    }
    let run = |frame: &Vec<u8>| {
        let out = program.test_run(&TestRun::packet(frame)).expect("a test run");
        (out.retval, out.data)
    };
    load.flows.packets.iter().map(run).collect()
}

/// Flags for the tables, each in a file as `bpftool -j map dump` writes it.
fn dumped(files: &Files, load: &Workload) -> Vec<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:#04x}")).collect::<Vec<_>>();
    let mut maps: BTreeMap<&str, Vec<serde_json::Value>> = BTreeMap::new();
    for entry in &load.entries {
        let row = serde_json::json!({ "key": hex(&entry.key), "value": hex(&entry.value) });
        maps.entry(entry.map).or_default().push(row);
    }
    let flag = |(name, rows): (&str, Vec<serde_json::Value>)| {
        let path = files.path(&format!("{name}.json"));
        std::fs::write(&path, serde_json::to_vec(&rows).expect("JSON")).expect("written");
        format!("--map=b.{name}={path}")
    };
    maps.into_iter().map(flag).collect()
}

#[test]
fn data_planes_between_elements_do_what_they_do_in_the_kernel() {
    if !testing::require() {
        return;
    }
    for name in ["router", "balancer", "firewall"] {
        let builtin: BuiltinWorkload = format!("builtin:{name}").parse().expect("ours");
        let load = builtin.workload([LOOPBACK, 2], PACKETS, FlowLocality::NONE).expect("fits");
        let files = Files::new(&format!("element-{name}"));
        let trace = files.path("in.pcap");
        let mut writer =
            PcapWriter::new(File::create(&trace).expect("a file"), PcapHeader::default()).expect("a header");
        for frame in &load.flows.packets {
            writer.write(frame, 0, 0).expect("written");
        }
        writer.finish().expect("written");
        let conf = files.path("element.click");
        let text =
            "FromDump($dir/in.pcap) -> Counter -> Unstrip(2) -> Strip(2) -> b :: BPF($file) -> c :: Counter
            -> ToDump($dir/2.pcap); b[1] -> t :: Tee -> ToDump($dir/3.pcap); t[1] -> Discard; \
                b[2] -> ToDump($dir/4.pcap)";
        std::fs::write(&conf, text).expect("written");
        let out = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args([
                "click",
                &conf,
                &format!("dir={}", files.0.display()),
                &format!("file=builtin:{name}"),
                "--json",
            ])
            .args(dumped(&files, &load))
            .output()
            .expect("run");
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        let expected = in_the_kernel(&builtin, &load);
        for verdict in [2, 3, 4] {
            let wanted: Vec<&Vec<u8>> =
                expected.iter().filter(|(v, _)| *v == verdict).map(|(_, frame)| frame).collect();
            let path = files.path(&format!("{verdict}.pcap"));
            // A capture without a packet is an error there.
            let sent = pcap::read(Path::new(&path), PACKETS).map_or_else(|_| Vec::new(), |file| file.frames);
            assert!(sent.iter().eq(wanted.iter().copied()), "{name}: {} and {}", sent.len(), wanted.len());
        }
        let left = expected.iter().filter(|(v, _)| matches!(v, 2..=4)).count();
        assert!(left > PACKETS / 4, "{name}: {left} packets leave");
    }
}

#[test]
fn what_is_no_program_is_said() {
    let files = Files::new("element-errors");
    let conf = files.path("element.click");
    for (element, message) in [
        ("BPF(nowhere.o)", "`nowhere.o` cannot be an element"),
        ("BPF(builtin:router, nobody)", "there is no such program; there are: router"),
    ] {
        std::fs::write(&conf, format!("FromDevice(a) -> {element} -> Discard")).expect("written");
        let out =
            Command::new(env!("CARGO_BIN_EXE_millstream")).args(["click", &conf]).output().expect("run");
        let text = flat(&out.stderr);
        assert!(!out.status.success() && text.contains(message), "{text}");
    }
}
