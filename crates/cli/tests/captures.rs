//! Capture files, as all commands read and write them.

#[path = "common/capture.rs"]
mod capture;
mod common;
#[path = "common/flat.rs"]
mod flat;

use std::io::Write;
use std::process::{Command, Output};

use capture::capture;
use common::Files;
use flat::flat;

/// A capture of truncated packets: captured bytes, and original lengths.
fn snapped(packets: &[(usize, usize)]) -> Vec<u8> {
    let mut file = capture(&[]);
    for &(captured, length) in packets {
        let words = [7u32, 8, captured as u32, length as u32];
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend((0..captured).map(|at| at as u8));
    }
    file
}

/// Link type, and for each packet the seconds, nanoseconds, captured bytes and original length.
fn packets(file: &[u8]) -> (u32, Vec<[u32; 4]>) {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    let (mut all, mut at) = (Vec::new(), 24);
    while at < file.len() {
        all.push([0, 4, 8, 12].map(|field| word(at + field)));
        at += 16 + word(at + 8) as usize;
    }
    (word(20), all)
}

fn click(files: &Files, text: &str, args: &[&str]) -> Output {
    let conf = files.path("test.click");
    std::fs::write(&conf, text).expect("written");
    Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["click", &conf, "--json"])
        .args(args)
        .current_dir(&files.0)
        .output()
        .expect("run")
}

fn report(out: &Output) -> serde_json::Value {
    assert!(out.status.success(), "{}", flat(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

#[test]
fn a_snap_length_stays_and_so_does_the_length_behind_it() {
    let files = Files::new("captures-snap");
    std::fs::write(files.path("in.pcap"), snapped(&[(96, 1500), (60, 60), (96, 97)])).expect("written");
    let whole = "FromDump(in.pcap, STOP true) -> c :: Counter -> ToDump(o.pcap)";
    let out = report(&click(&files, whole, &["--handler", "c.byte_count"]));
    assert_eq!(out["handlers"][0]["value"], "252");
    let (link, found) = packets(&std::fs::read(files.path("o.pcap")).expect("a file"));
    assert_eq!((link, found), (1, vec![[7, 8_000, 96, 1500], [7, 8_000, 60, 60], [7, 8_000, 96, 97]]));
    let cut = "FromDump(in.pcap, STOP true) -> Strip(14) -> ToDump(o.pcap, SNAPLEN 20, ENCAP IP, EXTRA_LENGTH false)";
    report(&click(&files, cut, &[]));
    let (link, found) = packets(&std::fs::read(files.path("o.pcap")).expect("a file"));
    assert_eq!((link, found), (101, vec![[7, 8_000, 20, 82], [7, 8_000, 20, 46], [7, 8_000, 20, 82]]));
}

#[test]
fn long_packets_go_through_graphs_with_short_ones() {
    let files = Files::new("captures-long");
    let lengths = [60, 9_000, 1_500, 65_535, 3_521, 60, 200_000, 100];
    let frames: Vec<(usize, usize)> = lengths.iter().map(|length| (*length, *length)).collect();
    std::fs::write(files.path("in.pcap"), snapped(&frames)).expect("written");
    let text = "FromDump(in.pcap, STOP true) -> t :: Tee(2) -> c :: Counter -> ToDump(o.pcap, SNAPLEN 0); \
        t[1] -> d :: Counter -> Discard";
    for more in [&[][..], &["--workers", "2"]] {
        let args = [&["--handler", "c.count", "--handler", "d.byte_count"][..], more].concat();
        let out = report(&click(&files, text, &args));
        let total: usize = lengths.iter().sum();
        assert_eq!(out["handlers"][0]["value"], "8", "{out}");
        assert_eq!(out["handlers"][1]["value"], total.to_string(), "{out}");
        let (_, found) = packets(&std::fs::read(files.path("o.pcap")).expect("a file"));
        let mut found: Vec<u32> = found.iter().map(|packet| packet[2]).collect();
        let mut expected = lengths.map(|length| length as u32);
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
    report(&click(&files, "FromDump(in.pcap) -> ToDump(o.pcap)", &[]));
    let (_, found) = packets(&std::fs::read(files.path("o.pcap")).expect("a file"));
    assert_eq!(found[1][2..], [2_000, 9_000], "what `ToDump` keeps unless it is told otherwise");
}

#[test]
fn long_packets_wait_and_are_handed_to_other_stages() {
    let files = Files::new("captures-wait");
    std::fs::write(files.path("in.pcap"), snapped(&[(60, 60), (9_000, 9_000), (65_535, 65_535)]))
        .expect("written");
    let queued = "FromDump(in.pcap) -> Queue -> DelayUnqueue(0.1) -> c :: Counter -> Discard";
    let stages = "FromDump(in.pcap) -> Queue -> Unqueue -> c :: Counter -> Discard";
    for (text, more) in [(queued, &[][..]), (stages, &["--pipeline"])] {
        let args = [&["--handler", "c.byte_count"][..], more].concat();
        assert_eq!(report(&click(&files, text, &args))["handlers"][0]["value"], "74595", "{text}");
    }
}

#[test]
fn of_a_file_that_is_cut_what_is_whole_is_used_and_an_empty_one_has_nothing() {
    let files = Files::new("captures-cut");
    let whole = capture(&[vec![1; 60], vec![2; 60], vec![3; 60]]);
    let text = "FromDump(in.pcap, STOP true) -> c :: Counter -> Discard";
    for (bytes, count, warned) in [(whole.len(), "3", false), (whole.len() - 7, "2", true), (24, "0", false)]
    {
        std::fs::write(files.path("in.pcap"), &whole[..bytes]).expect("written");
        let out = click(&files, text, &["--handler", "c.count"]);
        assert_eq!(report(&out)["handlers"][0]["value"], count, "{bytes}");
        assert_eq!(flat(&out.stderr).contains("in.pcap"), warned, "{}", flat(&out.stderr));
    }
    for bytes in [0, 10] {
        std::fs::write(files.path("in.pcap"), &whole[..bytes]).expect("written");
        let out = click(&files, text, &[]);
        assert_eq!(out.status.code(), Some(2), "{}", flat(&out.stderr));
    }
}

#[test]
fn packets_of_ip_begin_with_their_header() {
    let files = Files::new("captures-ip");
    let mut file = capture(&[]);
    file[20..24].copy_from_slice(&101u32.to_le_bytes());
    let packet =
        [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 1, 0, 0, 1, 1, 0, 0, 2][..], &[0, 7, 0, 9, 0, 8, 0, 0]]
            .concat();
    for word in [1, 0, packet.len() as u32, packet.len() as u32] {
        file.extend(word.to_le_bytes());
    }
    file.extend(&packet);
    std::fs::write(files.path("in.pcap"), &file).expect("written");
    let text = "f :: FromDump(in.pcap) -> IPPrint -> IPClassifier(udp) -> c :: Counter \
        -> ToDump(o.pcap, USE_ENCAP_FROM f)";
    let out = click(&files, text, &["--handler", "c.count", "--handler", "f.encap"]);
    let report = report(&out);
    assert_eq!(
        (&report["handlers"][0]["value"], &report["handlers"][1]["value"]),
        (&"1".into(), &"IP".into())
    );
    assert_eq!(String::from_utf8_lossy(&out.stderr), "1.000000: 1.0.0.1.7 > 1.0.0.2.9: udp 8\n");
    assert_eq!(packets(&std::fs::read(files.path("o.pcap")).expect("a file")).0, 101);
}

/// A capture of so many frames, compressed.
fn packed(path: &str, frames: usize) {
    let mut packer = packer(path);
    packer.write_all(&capture(&[])).expect("written");
    let record = &capture(&[vec![0; 1_000]])[24..];
    for _ in 0..frames {
        packer.write_all(record).expect("written");
    }
}

/// `gzip` as a user runs it.
fn packer(path: &str) -> impl Write {
    struct Packer(std::process::Child);
    impl Write for Packer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.stdin.as_mut().expect("a pipe").write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl Drop for Packer {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().expect("it ends");
        }
    }
    let file = std::fs::File::create(path).expect("a file");
    let child = Command::new("gzip")
        .arg("-1")
        .stdin(std::process::Stdio::piped())
        .stdout(file)
        .spawn()
        .expect("gzip");
    Packer(child)
}

#[test]
fn files_are_read_as_streams() {
    let files = Files::new("captures-stream");
    packed(&files.path("in.pcap.gz"), 300_000);
    std::fs::write(files.path("test.click"), "FromDump(in.pcap.gz) -> c :: Counter -> Discard")
        .expect("written");
    std::fs::write(files.path("device.click"), "FromDevice(eth0) -> c :: Counter -> Discard")
        .expect("written");
    for (conf, more, count) in [
        ("test.click", &[][..], "300000"),
        ("device.click", &["--io", "pcap:in.pcap.gz", "--packets", "1000"], "1000"),
        ("device.click", &["--io", "pcap:in.pcap.gz"], "300000"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let command = command.args(["click", conf, "--json", "--handler", "c.count"]).args(more);
        let out = command.current_dir(&files.0).output().expect("run");
        assert_eq!(report(&out)["handlers"][0]["value"], count, "{conf} {more:?}");
    }
}
