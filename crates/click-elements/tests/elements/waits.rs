//! State by which waiting packets go on: random trees of copies, with annotations that are set and read
//! before and behind waits, beside a model without waits.

use std::fmt::Write as _;

use millstream_click::{Ablations, ClickProgram, HandlerWriters, flatten, parse};
use millstream_click_elements::compile_for;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};
use proptest::prelude::*;

/// An element of one output.
#[derive(Clone, Copy, Debug)]
enum Step {
    Paint(u8),
    /// Drops packets of another paint.
    CheckPaint(u8),
    Tag(u16),
    /// Puts a tag in front, if the annotation has any.
    Encapsulate,
    Mark(usize),
    Strip(usize),
    /// Sets the destination from the network header.
    Destination,
    /// Stores it here.
    Store(usize),
    /// Stores this number, by which outputs are told apart.
    Number(u8),
}

/// Offset of the outputs' numbers.
const NUMBERED: usize = 90;
const FRAME: usize = 120;
/// The model's room for headers.
const ROOM: usize = 200;

impl Step {
    fn element(self) -> String {
        match self {
            Step::Paint(colour) => format!("Paint({colour})"),
            Step::CheckPaint(colour) => format!("CheckPaint({colour})"),
            Step::Tag(tag) => format!("SetVLANAnno({tag})"),
            Step::Encapsulate => "VLANEncap(ANNO)".to_owned(),
            Step::Mark(offset) => format!("MarkIPHeader({offset})"),
            Step::Strip(bytes) => format!("Strip({bytes})"),
            Step::Destination => "GetIPAddress(IP dst)".to_owned(),
            Step::Store(offset) => format!("StoreIPAddress({offset})"),
            Step::Number(number) => format!("StoreData({NUMBERED}, \\<{number:02x}>)"),
        }
    }

    fn any() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u8..3).prop_map(Step::Paint),
            (0u8..3).prop_map(Step::CheckPaint),
            (1u16..0xffff).prop_map(Step::Tag),
            Just(Step::Encapsulate),
            prop::sample::select(vec![0usize, 2, 14, 30]).prop_map(Step::Mark),
            (1usize..9).prop_map(Step::Strip),
            Just(Step::Destination),
            (0usize..20).prop_map(Step::Store),
        ]
    }
}

/// Elements in a row, and the rows that their packet is copied to.
#[derive(Clone, Debug)]
struct Tree {
    steps: Vec<Step>,
    copies: Vec<Tree>,
}

fn tree() -> impl Strategy<Value = Tree> {
    let steps = || prop::collection::vec(Step::any(), 0..5);
    let leaf = steps().prop_map(|steps| Tree { steps, copies: Vec::new() });
    leaf.prop_recursive(3, 16, 3, move |inner| {
        (steps(), prop::collection::vec(inner, 2..4)).prop_map(|(steps, copies)| Tree { steps, copies })
    })
}

/// A packet as the model has it.
#[derive(Clone)]
struct Packet {
    buffer: Vec<u8>,
    data: usize,
    network: Option<usize>,
    destination: [u8; 4],
    paint: u8,
    tag: u16,
}

impl Packet {
    fn new(frame: &[u8]) -> Packet {
        let buffer = [&[0; ROOM], frame].concat();
        Packet { buffer, data: ROOM, network: None, destination: [0; 4], paint: 0, tag: 0 }
    }

    /// Applies a step. Returns true if the packet goes on behind it.
    fn takes(&mut self, step: Step) -> bool {
        match step {
            Step::Paint(colour) => self.paint = colour,
            Step::CheckPaint(colour) => return self.paint == colour,
            Step::Tag(tag) => self.tag = tag,
            Step::Encapsulate if self.tag & 0xfff == 0 => {}
            Step::Encapsulate => {
                self.buffer.copy_within(self.data..self.data + 12, self.data - 4);
                self.data -= 4;
                self.buffer[self.data + 12..self.data + 14].copy_from_slice(&[0x81, 0]);
                self.buffer[self.data + 14..self.data + 16].copy_from_slice(&self.tag.to_be_bytes());
            }
            Step::Mark(offset) => self.network = Some(self.data + offset),
            Step::Strip(bytes) => self.data += bytes,
            Step::Destination => match self.network {
                Some(at) => self.destination.copy_from_slice(&self.buffer[at + 16..at + 20]),
                None => return false,
            },
            Step::Store(_) if self.destination == [0; 4] => {}
            Step::Store(offset) => {
                self.buffer[self.data + offset..self.data + offset + 4].copy_from_slice(&self.destination);
            }
            Step::Number(number) => self.buffer[self.data + NUMBERED] = number,
        }
        true
    }
}

/// The tree as statements of Click, whose outputs have distinct numbers; and the packets it sends for one.
struct Grown {
    text: String,
    tees: usize,
    outputs: u8,
}

impl Grown {
    fn write(&mut self, from: &str, tree: &mut Tree) {
        if tree.copies.is_empty() {
            tree.steps.push(Step::Number(self.outputs));
            self.outputs += 1;
        }
        self.text.push_str(from);
        for step in &tree.steps {
            let _ = write!(self.text, " -> {}", step.element());
        }
        if tree.copies.is_empty() {
            let _ = writeln!(self.text, " -> ToDump(f{});", self.outputs);
            return;
        }
        let name = format!("t{}", self.tees);
        self.tees += 1;
        let _ = writeln!(self.text, " -> {name} :: Tee({});", tree.copies.len());
        for (at, copy) in tree.copies.iter_mut().enumerate() {
            self.write(&format!("{name}[{at}]"), copy);
        }
    }
}

fn sent_by_model(tree: &Tree, mut packet: Packet, sent: &mut Vec<Vec<u8>>) {
    if !tree.steps.iter().all(|step| packet.takes(*step)) {
        return;
    }
    if tree.copies.is_empty() {
        sent.push(packet.buffer[packet.data..].to_vec());
    }
    tree.copies.iter().for_each(|copy| sent_by_model(copy, packet.clone(), sent));
}

fn program(text: &str, general: Ablations) -> ClickProgram {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let none = |_: &str, _: Option<&str>| Err("there are no object files".into());
    compile_for(&graph, &none, HandlerWriters::Scripts, general).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

fn sent(program: &ClickProgram, frames: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &NativeOptions::default())
            .unwrap_or_else(|e| panic!("{e}"));
    for entry in &program.code.entries {
        assert_eq!(engine.map(&entry.map).expect("the map").update(&entry.key, &entry.value, 0, None), 0);
    }
    let mut sent = Vec::new();
    let feeds = [SourceFrames { frames, count: frames.len() as u64 }];
    run_graph(&mut engine, &feeds, program.targets.len(), 16, |p| {
        sent.push((p.number, p.bytes.to_vec()));
        Ok(())
    })
    .expect("memory");
    sent.sort();
    sent
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn packets_go_on_as_what_they_were_before_they_waited(
        mut tree in tree(),
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), FRAME + 40), 1..5),
    ) {
        let mut grown = Grown { text: String::new(), tees: 0, outputs: 0 };
        grown.write("FromDump(a)", &mut tree);
        let mut expected = Vec::new();
        for (number, frame) in (0u64..).zip(&frames) {
            let mut sent = Vec::new();
            sent_by_model(&tree, Packet::new(frame), &mut sent);
            expected.extend(sent.into_iter().map(|bytes| (number, bytes)));
        }
        expected.sort();
        for annotations in [false, true] {
            let program = program(&grown.text, Ablations { annotations, ..Ablations::default() });
            prop_assert!(program.code.layout.kept <= 40);
            let found = sent(&program, &frames);
            prop_assert!(found == expected, "{} of {} packets\n{}", found.len(), expected.len(), grown.text);
        }
    }
}
