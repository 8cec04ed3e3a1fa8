//! Object files that a C compiler links into a C program behave as the same programs in this process.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millstream_built::{PayloadKind, ProgramPayload, header};
use millstream_click::{flatten, parse};
use millstream_click_elements::compile;
use millstream_interp::MapKind;
use millstream_native::{ExportOptions, NativeEngine, NativeImage, NativeMap, NativeOptions, PacketBatch};
use millstream_native_io::graph::{SourceFrames, run_graph};
use millstream_object::Object;
use millstream_programs::packet::partly_broken;
use millstream_programs::router::generate;
use millstream_programs::{DataPlaneProgram, NAT, ROUTER};
use millstream_rng::Rng;
use tempfile::TempDir;

const INGRESS: u32 = 1;
const BATCH: usize = 64;

/// The library that the C compiler links, as it was built with this test.
fn library() -> PathBuf {
    let beside = std::env::current_exe().expect("this test").parent().expect("a directory").to_owned();
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libmillstream_embed") && name.ends_with(".a")
    };
    let all =
        std::fs::read_dir(beside).expect("read").map(|entry| entry.expect("an entry").path()).filter(fits);
    let age = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).expect("its age");
    all.max_by_key(age).expect("the library is built with its tests")
}

/// A program in C around an object file.
struct Linked {
    _folder: TempDir,
    program: PathBuf,
}

impl Linked {
    fn new(
        stem: &str,
        graph: bool,
        make: impl FnOnce(&ExportOptions<'_>) -> (Vec<u8>, NativeImage),
        payload: &dyn Fn(&NativeImage) -> ProgramPayload,
    ) -> Linked {
        let folder = TempDir::new().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let symbol = header::symbol(stem);
        let describe = |image: &NativeImage| payload(image).to_bytes().expect("it is small");
        let (object, image) = make(&ExportOptions { symbol: &symbol, describe: &describe });
        let (object_file, header_file, program) = (at("p.o"), at("p.h"), at("p"));
        std::fs::write(&object_file, object).expect("written");
        std::fs::write(&header_file, header::header(&symbol, &payload(&image))).expect("written");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        cc.arg(format!("-DHEADER=\"{}\"", header_file.display())).arg(format!("-DPROGRAM={symbol}"));
        if graph {
            cc.arg("-DGRAPH");
        }
        cc.arg(source).arg(object_file).arg(library()).args(["-lpthread", "-ldl", "-lm"]);
        let out = cc.output().expect("a C compiler");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Linked { _folder: folder, program }
    }

    /// Its output for lines of input.
    fn say(&self, input: &str) -> String {
        let mut run = Command::new(&self.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut to = run.stdin.take().expect("piped");
        let input = input.to_owned();
        let writer = std::thread::spawn(move || to.write_all(input.as_bytes()));
        let out = run.wait_with_output().expect("its end");
        writer.join().expect("no panic").expect("written");
        assert!(out.status.success(), "{:?}: {}", out.status, String::from_utf8_lossy(&out.stdout));
        String::from_utf8(out.stdout).expect("text")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Frames to addresses all over, some of them broken.
fn frames(count: usize) -> Vec<Vec<u8>> {
    partly_broken(&mut Rng::new(3), count)
}

/// Lines that have the frames run in batches.
fn lines(input: &mut String, frames: &[Vec<u8>]) {
    for group in frames.chunks(BATCH) {
        for frame in group {
            let _ = writeln!(input, "packet {INGRESS} {}", hex(frame));
        }
        input.push_str("run\n");
    }
}

/// An XDP program in C, by this name, and here.
fn both(program: &DataPlaneProgram, stem: &str) -> (Linked, NativeEngine) {
    let object = Object::parse(program.name, program.object).expect("our own");
    let options = NativeOptions::default();
    let payload = |image: &NativeImage| ProgramPayload {
        kind: PayloadKind::Native { object: program.name.to_owned() },
        image: image.clone(),
        entries: Vec::new(),
    };
    let make = |linkage: &ExportOptions<'_>| {
        NativeEngine::link_object(&object, None, &options, linkage).expect("made")
    };
    let linked = Linked::new(stem, false, make, &payload);
    (linked, NativeEngine::of_object(&object, None, &options).expect("compiled"))
}

/// An XDP program, its tables filled, on the same frames in C and here.
fn check(program: &DataPlaneProgram, entries: &[(String, Vec<u8>, Vec<u8>)], frames: &[Vec<u8>]) {
    let (linked, mut here) = both(program, program.name);
    let (mut input, mut expected) = (String::new(), String::new());
    for (map, key, value) in entries {
        let _ = writeln!(input, "set {map} {} {}", hex(key), hex(value));
        expected.push_str("set 0\n");
        assert_eq!(here.map(map).expect("there").update(key, value, 0, None), 0);
    }
    lines(&mut input, frames);
    let mut batch = PacketBatch::new(BATCH).expect("memory");
    let (mut sent, mut all) = (0, 0);
    for group in frames.chunks(BATCH) {
        batch.clear();
        assert!(group.iter().all(|frame| batch.push(frame, INGRESS)));
        here.run(&mut batch);
        expected.push_str("run 0\nsent -2\n");
        for at in 0..group.len() {
            let (verdict, target) = (batch.verdict(at), batch.target(at));
            let _ = writeln!(expected, "{verdict} {target} {}", hex(batch.bytes(at)));
            sent += u32::from(verdict == 3 || verdict == 4 && target != 0);
            all += 1;
        }
    }
    assert!(sent > 0 && sent < all, "{sent} of {all}");
    input.push_str("account\n");
    let said = linked.say(&input);
    let (runs, account) = said.split_once("account ").expect("an account");
    assert!(runs == expected, "{}: what C says is not what happens here", program.name);
    let numbers = account.lines().next().expect("numbers");
    assert_eq!(numbers, format!("{all} 0 {sent} {}", all - sent));
    let dropped = account
        .lines()
        .filter_map(|line| line.strip_prefix("dropped ")?.split(' ').next_back()?.parse::<u32>().ok());
    assert_eq!(dropped.sum::<u32>(), all - sent);
}

#[test]
fn an_xdp_program_in_c_has_the_verdicts_and_packets_that_it_has_here() {
    let entries = generate(500, &[INGRESS, 2], 8, 1).entries().expect("fits");
    let entries: Vec<_> = entries.into_iter().map(|e| (e.map.to_owned(), e.key, e.value)).collect();
    check(&ROUTER, &entries, &frames(640));
}

#[test]
fn maps_are_read_changed_and_gone_through_by_name_and_a_program_is_open_once() {
    let (linked, mut here) = both(&NAT, "maps");
    let is_hash =
        |map: &&mut NativeMap| matches!(map.spec().kind, MapKind::Hash | MapKind::LruHash) && map.is_empty();
    let plain = here.maps().find(is_hash).expect("a table");
    let (name, spec) = (plain.name().to_owned(), plain.spec());
    let (key, value) = (vec![1; spec.key_size as usize], vec![7; spec.value_size as usize]);
    let (key, value) = (hex(&key), hex(&value));
    let size = spec.value_size;
    let said = linked.say(&format!(
        "get nobody {key} 0\nget {name} {key} 0\nset {name} {key} {value}\nget {name} {key} {size}\neach {name}\n\
         delete {name} {key}\ndelete {name} {key}\neach {name}\nread c.count\nagain\neach {name}\n"
    ));
    let expected = format!(
        "get -2 \nget -2 \nset 0\nget 0 {value}\neach 0 1\ndelete 0\ndelete -2\neach 0 0\nread -2 \n"
    );
    let (first, again) = said.split_at(expected.len().min(said.len()));
    assert_eq!(first, expected);
    assert!(again.starts_with("again 0 ") && again.contains("exists"), "its places are taken: {again}");
    assert!(again.ends_with("then 1\neach 0 0\n"), "{again}");
}

#[test]
fn a_configuration_in_c_sends_what_it_sends_here_and_has_its_handlers() {
    let text = "FromDevice(in) -> c :: Counter -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> t :: Tee
        -> rt :: RadixIPLookup(10.0.0.0/8 0, 128.0.0.0/1 0, 0.0.0.0/0 1) -> DecIPTTL -> ToDPDKDevice(out);
        rt[1] -> Discard; t[1] -> ToDPDKDevice(copies)";
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
    let options = NativeOptions::default();
    let payload = |image: &NativeImage| ProgramPayload {
        kind: PayloadKind::Click { configuration: "test.click".into(), program: Box::new(program.clone()) },
        image: image.clone(),
        entries: program.code.entries.clone(),
    };
    let make = |linkage: &ExportOptions<'_>| {
        NativeEngine::link_module(program.code.module.clone(), program.code.entry, &options, linkage)
            .expect("made")
    };
    let linked = Linked::new("graph", true, make, &payload);
    let mut frames = frames(3 * BATCH);
    frames[5] = vec![1; 4000];
    let mut here =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    millstream_built::fill(&mut here, &program.code.entries).expect("they fit");
    let mut sent: Vec<Vec<String>> = vec![Vec::new(); 3];
    let feeds = [SourceFrames { frames: &frames, count: frames.len() as u64 }];
    let ran = run_graph(&mut here, &feeds, 2, 1, |p| {
        let (group, number) = (p.number as usize / BATCH, p.number as usize % BATCH);
        sent[group].push(format!("{} {number} {}\n", p.output, hex(p.bytes)));
        Ok(())
    })
    .expect("memory");
    let mut input = String::new();
    lines(&mut input, &frames);
    input.push_str(
        "account\nread c.count\nread nobody.count\nwrite c.count\nwrite c.reset_counts\n\
         read c.count\nread c.class\n",
    );
    let said = linked.say(&input);
    let expected: String = sent.iter().map(|batch| format!("run 0\n{}", batch.concat())).collect();
    let (runs, rest) = said.split_once("account ").expect("an account");
    assert!(runs == expected, "{runs}\nis not\n{expected}");
    let (received, out) = (frames.len() as u64, ran.sent.iter().sum::<u64>());
    assert_eq!(
        rest.lines().next(),
        Some(format!("{received} {} {out} {}", ran.copies, received + ran.copies - out).as_str())
    );
    assert!(rest.contains("dropped size 1\n"), "{rest}");
    // All texts are cut to seven letters.
    let counted = received - 1;
    let handlers = format!(
        "read {} {counted}\nread -2 \nwrite -2\nwrite 0\nread 1 0\nread 7 Counter\n",
        counted.to_string().len()
    );
    assert!(rest.ends_with(&handlers), "{rest}");
}
