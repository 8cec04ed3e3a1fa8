//! Lines that elements print, as native code and in the IR's interpreter.

use std::sync::{Arc, Mutex};

use millstream_click::{ClickProgram, PRINTS, flatten, parse, printed};
use millstream_click_elements::compile;
use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState, SideEffect};
use millstream_native::{ClockSource, LayoutPolicy, NativeEngine, NativeOptions, RecordListener};
use millstream_native_io::graph::{SourceFrames, run_graph};

const NOW: u64 = 1_000_020_000;

fn program(text: &str) -> ClickProgram {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    program
}

/// The text of a record, unless nothing is printed of it.
fn text(program: &ClickProgram, record: &[u8]) -> Option<String> {
    let (_, text) = printed(&program.printers, record, NOW)?;
    Some(String::from_utf8(text).expect("text"))
}

fn interpreted(program: &ClickProgram, frames: &[Vec<u8>]) -> Vec<String> {
    let mut machine = MachineState::new(ContextKind::Xdp);
    let interpreter = IrInterpreter::new(&program.code.module, &mut machine);
    let mut all = Vec::new();
    for frame in frames {
        machine.reset(frame);
        machine.set_context_field(12, 1);
        interpreter.run_context(&mut machine, program.code.entry).unwrap_or_else(|fault| panic!("{fault}"));
        all.extend(machine.env.events.drain(..).filter_map(|event| match event {
            SideEffect::Perf { data, .. } => text(program, &data),
            _ => None,
        }));
    }
    all
}

fn native(program: &ClickProgram, frames: &[Vec<u8>]) -> Vec<String> {
    let options = NativeOptions {
        descriptors: LayoutPolicy::Shuffled(frames.len() as u64),
        ..NativeOptions::default()
    };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    engine.set_clock(ClockSource::Fixed(NOW));
    for entry in &program.code.entries {
        assert_eq!(engine.map(&entry.map).expect("the map").update(&entry.key, &entry.value, 0, None), 0);
    }
    let records: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let into = Arc::clone(&records);
    let take = move |record: &[u8], time: u64| {
        assert_eq!(time, NOW);
        into.lock().expect("one worker").push(record.to_vec());
    };
    engine.listen(RecordListener { map: PRINTS.to_owned(), take: Arc::new(take) });
    let feeds = [SourceFrames { frames, count: frames.len() as u64 }];
    run_graph(&mut engine, &feeds, program.targets.len(), 3, |_| Ok(())).expect("memory");
    let records = records.lock().expect("one worker");
    records.iter().filter_map(|record| text(program, record)).collect()
}

fn both(text: &str, frames: &[Vec<u8>]) -> Vec<String> {
    let program = program(text);
    let found = native(&program, frames);
    assert_eq!(found, interpreted(&program, frames), "{text}");
    found
}

/// A frame of Ethernet with a datagram.
fn datagram() -> Vec<u8> {
    let packet = crate::common::packet(17, [[1, 0, 0, 1], [1, 0, 0, 2]], [7, 9], 0);
    [&[2; 12][..], &[8, 0], &packet].concat()
}

#[test]
fn print_prints_what_is_there_of_each_packet() {
    let frames = [vec![1, 2, 3, 4, 5], (0..30).collect(), vec![]];
    assert_eq!(
        both("FromDump(a) -> Print(in) -> Strip(2) -> Print(\"cut off\", 3) -> Discard", &frames),
        [
            "in:    5 | 01020304 05",
            "cut off:    3 | 030405",
            "in:   30 | 00010203 04050607 08090a0b 0c0d0e0f 10111213 14151617",
            "cut off:   28 | 020304",
            "in:    0",
        ]
    );
    let all = "FromDump(a) -> Print(MAXLENGTH -1, CONTENTS ASCII, TIMESTAMP true) -> Discard";
    assert_eq!(both(all, &[b"abcdefghij".to_vec()]), ["1.000020:   10 |  abcdefgh ij"]);
    assert_eq!(both("FromDump(a) -> Print(x, ACTIVE false) -> Discard", &frames), [""; 0]);
}

/// The interpreter makes no copies of packets.
#[test]
fn copies_are_printed_in_the_order_in_which_they_are_worked_on() {
    let text = "FromDump(a) -> t :: Tee(3) -> Print(a) -> Discard; t[1] -> Print(b) -> Discard; \
        t[2] -> Print(c) -> Discard";
    let found = native(&program(text), &[vec![1], vec![2], vec![3], vec![4]]);
    let expected: Vec<String> =
        (1..=4).flat_map(|n| ["a", "b", "c"].map(|label| format!("{label}:    1 | 0{n}"))).collect();
    assert_eq!(found, expected);
}

#[test]
fn ipprint_sees_headers_that_were_marked_also_in_front_of_the_packet() {
    let text = "FromDump(a) -> Paint(5) -> IPPrint(none) -> MarkIPHeader(14) \
        -> IPPrint(marked, TIMESTAMP false) -> Strip(14)
        -> IPPrint(stripped, PAINT true, TTL true) -> Strip(20) \
            -> IPPrint(behind, CONTENTS hex, TIMESTAMP false) -> Discard";
    assert_eq!(
        both(text, &[datagram()]),
        [
            "marked: 1.0.0.1.7 > 1.0.0.2.9: udp 8",
            "stripped: 1.000020: paint 5: ttl 64 1.0.0.1.7 > 1.0.0.2.9: udp 8",
            &format!(
                "behind: 1.0.0.1.7 > 1.0.0.2.9: udp 8\n  00070009 0008{:02x}{:02x}",
                datagram()[40],
                datagram()[41]
            ),
        ]
    );
    let cut: Vec<Vec<u8>> = (0..datagram().len()).map(|length| datagram()[..length].to_vec()).collect();
    let found = both("FromDump(a) -> MarkIPHeader(14) -> IPPrint(TIMESTAMP false) -> Discard", &cut);
    assert_eq!((found.len(), &*found[20]), (cut.len(), "truncated-ip"));
}

#[test]
fn arguments_that_nothing_can_be_done_for_are_refused() {
    for (arguments, name) in [
        ("Print(PRINTANNO true)", "PRINTANNO"),
        ("Print(HEADROOM true)", "HEADROOM"),
        ("Print(CONTENTS octal)", "octal"),
        ("IPPrint(ETHER true)", "ETHER"),
        ("IPPrint(CHANNEL c)", "CHANNEL"),
        ("IPPrint(CONTENTS hex, PAYLOAD ascii)", "PAYLOAD"),
        ("IP6Print(NBYTES x)", "x"),
        ("Print(WIDTH 7)", "WIDTH"),
    ] {
        let text = format!("FromDump(a) -> {arguments} -> Discard");
        let graph = flatten(&parse(&text).expect("parsed"), &[]).expect("flattened");
        let errors = compile(&graph).expect_err(arguments);
        assert!(errors[0].message.contains(name), "{arguments}: {errors:?}");
    }
    for accepted in ["Print(PRINTANNO false, HEADROOM false)", "IPPrint(ETHER false, CHANNEL default)"] {
        program(&format!("FromDump(a) -> {accepted} -> Discard"));
    }
}
