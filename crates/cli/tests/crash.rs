//! Programs that crash: what is said, what is kept, and who starts them again.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::Files;
use millstream_lab::pcap;
use millstream_native_io::pcap::{PcapHeader, PcapWriter};

/// First byte of the packets at which the programs crash.
const BAD: u8 = 0xee;
/// Code of [`Exit::Crashed`].
const CRASHED: Option<i32> = Some(5);

/// Encodes an instruction.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let (off, imm) = (off.to_le_bytes(), imm.to_le_bytes());
    [code, src << 4 | dst, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
}

/// An XDP program that passes packets, except that it runs `worse` on bad ones; no verifier would accept it.
fn program(files: &Files, name: &str, worse: &[[u8; 8]]) -> String {
    let path = files.path(&format!("{name}_xdp.insns"));
    let start = [
        // r6 = context; r2 = data; r3 = its first byte; if that is not bad, skip the rest.
        insn(0xbf, 6, 1, 0, 0),
        insn(0x61, 2, 1, 0, 0),
        insn(0x71, 3, 2, 0, 0),
        insn(0x15, 3, 0, 2, i32::from(BAD)),
        insn(0xb7, 0, 0, 0, 2),
        insn(0x95, 0, 0, 0, 0),
    ];
    let end = [insn(0x95, 0, 0, 0, 0)];
    let all: Vec<u8> = start.iter().chain(worse).chain(&end).flatten().copied().collect();
    std::fs::write(&path, all).expect("written");
    path
}

/// A program that reads an unmapped address.
fn reading(files: &Files) -> String {
    program(files, "reading", &[insn(0xb7, 4, 0, 0, 16), insn(0x79, 0, 4, 0, 0)])
}

/// A program that has a helper read there: `bpf_csum_diff`.
fn helping(files: &Files) -> String {
    let set = |register, value| insn(0xb7, register, 0, 0, value);
    let call = insn(0x85, 0, 0, 0, 28);
    program(files, "helping", &[set(1, 16), set(2, 8), set(3, 0), set(4, 0), set(5, 0), call])
}

fn frame(n: u8, first: u8) -> Vec<u8> {
    let mut frame = vec![n; 60];
    frame[0] = first;
    frame
}

/// A capture file of frames; those with these numbers are bad.
fn capture(path: &str, count: u8, bad: &[u8]) {
    let mut writer =
        PcapWriter::new(File::create(path).expect("a file"), PcapHeader::default()).expect("begun");
    for n in 0..count {
        let first = if bad.contains(&n) { BAD } else { 2 };
        writer.write(&frame(n, first), 0, 0).expect("written");
    }
    writer.finish().expect("ended");
}

/// A configuration with the program as an element, in the third line.
fn configuration(files: &Files, program: &str) -> String {
    let path = files.path("test.click");
    let text = format!("FromDevice(eth0)\n -> c :: Counter\n -> crash :: BPF({program})\n -> Discard;\n");
    std::fs::write(&path, text).expect("written");
    path
}

fn millstream(files: &Files, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(args).current_dir(&files.0);
    command
}

/// Checks that the output is that of a crash at frame 69, and names the file with the packet.
fn crashed_at_69(files: &Files, out: &Output, place: &str) {
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), CRASHED, "{text}");
    for part in
        ["SIGSEGV at address 0x10, in ", place, "packet 6 of 36 in its batch", "60 bytes", "0000  ee 45 45"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let mut kept = kept(files);
    let path = kept.pop().expect("a file");
    assert!(kept.is_empty() && text.contains(&path), "{path}, {kept:?}: {text}");
    let read = pcap::read(Path::new(&path), 10).expect("a capture file");
    assert_eq!(read.frames, [frame(69, BAD)]);
    std::fs::remove_file(path).expect("removed");
}

fn kept(files: &Files) -> Vec<String> {
    let all = std::fs::read_dir(&files.0).expect("a folder").flatten();
    let is_kept = |path: &String| path.contains("millstream-crash-");
    all.map(|file| file.path().display().to_string()).filter(is_kept).collect()
}

#[test]
fn a_crash_names_the_element_and_the_packet_and_keeps_it() {
    let files = Files::new("crash-click");
    let (input, folder) = (files.path("in.pcap"), files.0.display().to_string());
    capture(&input, 100, &[69, 80]);
    let io = format!("pcap:{input}");
    let flags = ["--io", &io, "--crash-dir", &folder];
    for (program, place) in [
        (reading(&files), "`crash :: BPF`, "),
        (helping(&files), "in the runtime, called by `crash :: BPF`, "),
    ] {
        let conf = configuration(&files, &program);
        let place = format!("{place}{conf}:3\n");
        let out = millstream(&files, &["click", &conf]).args(flags).output().expect("run");
        crashed_at_69(&files, &out, &place);
        let both = millstream(&files, &["click", &conf, "--workers", "2"]).args(flags).output().expect("run");
        let text = String::from_utf8_lossy(&both.stderr);
        assert!(both.status.code() == CRASHED && text.contains(&place), "{text}");
        kept(&files).into_iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
        let built = files.path("built");
        let status = millstream(&files, &["build", &conf, "-o", &built]).status().expect("run");
        assert!(status.success());
        let out = Command::new(&built).args(flags).output().expect("run");
        crashed_at_69(&files, &out, &place);
    }
    let native = millstream(&files, &["native", &reading(&files)]).args(flags).output().expect("run");
    crashed_at_69(&files, &native, "function `reading_xdp`\n");
}

#[test]
fn the_supervisor_starts_it_again_until_it_does_not_crash() {
    let files = Files::new("crash-again");
    let (input, better) = (files.path("in.pcap"), files.path("better.pcap"));
    capture(&input, 100, &[69]);
    capture(&better, 100, &[]);
    let conf = configuration(&files, &reading(&files));
    let io = format!("pcap:{input}");
    let args = ["click", &conf, "--io", &io, "--json", "--supervise", "--max-crashes", "50"];
    let mut run =
        millstream(&files, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(run.stderr.take().expect("piped")).lines();
    let said = lines.by_ref().map_while(Result::ok).find(|line| line.contains("has crashed"));
    assert!(said.is_some_and(|line| line.contains("(crash 1)")));
    std::fs::rename(better, &input).expect("replaced");
    // Nobody waits for whom.
    lines.map_while(Result::ok).for_each(drop);
    let mut text = String::new();
    run.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(run.wait().expect("ended").success());
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((report["received"].as_u64(), report["crashes"].as_u64() >= Some(1)), (Some(100), true));
    assert_eq!(
        kept(&files).len() as u64,
        report["crashes"].as_u64().expect("a number"),
        "one packet a crash"
    );
}

#[test]
fn the_supervisor_gives_up_where_it_crashes_all_the_time() {
    let files = Files::new("crash-always");
    let input = files.path("in.pcap");
    capture(&input, 10, &[3]);
    let io = format!("pcap:{input}");
    let program = reading(&files);
    let args =
        ["native", &program, "--io", &io, "--supervise", "--max-crashes", "3", "--crash-window", "3600"];
    let out = millstream(&files, &args).output().expect("run");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), CRASHED, "{text}");
    assert_eq!(text.matches("SIGSEGV at address 0x10").count(), 3, "{text}");
    assert!(text.contains("3 crashes within 3600 s; not restarted"), "{text}");
    assert_eq!(kept(&files).len(), 3);
}

/// The only child of a process.
fn begun_by(parent: &Child) -> Option<String> {
    let path = format!("/proc/{0}/task/{0}/children", parent.id());
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

#[test]
fn signals_reach_what_is_supervised_and_end_both() {
    let files = Files::new("crash-signal");
    let conf = configuration(&files, &reading(&files));
    let args = ["click", &conf, "--packets", "1000000000000", "--supervise"];
    let mut run = millstream(&files, &args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("run");
    let worker = loop {
        match begun_by(&run) {
            Some(worker) => break worker,
            None => std::thread::yield_now(),
        }
    };
    let parent = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(parent, rustix::process::Signal::TERM).expect("sent");
    let status = run.wait().expect("ended");
    assert_eq!(status.code(), Some(128 + 15));
    assert!(!Path::new(&format!("/proc/{worker}")).exists(), "it is waited for");
}
