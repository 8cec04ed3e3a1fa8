//! Clients of a web server over made-up times: how a connection begins and ends, and how often they ask in vain.

use crate::common::{number, pseudo, seal, sealed};
use millstream_click::{
    Ablations, ClickProgram, GraphSource, HandlerAccess, HandlerWriters, STATE, flatten, parse,
};
use millstream_click_elements::compile_for;
use millstream_native::{ClockSource, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};

const SECOND: u64 = 1_000_000_000;
/// Ticks in a second for each connection that begins then.
const TICKS: usize = 17;
const SERVER: [u8; 4] = [1, 0, 0, 1];
const REQUEST_BYTES: u32 = 30;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PUSH: u8 = 8;
const ACK: u8 = 16;

struct Clients {
    program: ClickProgram,
    engine: NativeEngine,
    tick: usize,
}

/// Fields of a segment that tests compare.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    number: u32,
    acknowledged: u32,
    flags: u8,
    data: Vec<u8>,
}

impl Clients {
    fn new(text: &str) -> Clients {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        let none = |_: &str, _: Option<&str>| Err("there are no object files".into());
        let general = Ablations { time: true, ..Ablations::default() };
        let program = compile_for(&graph, &none, HandlerWriters::Scripts, general)
            .unwrap_or_else(|errors| panic!("{errors:?}"));
        let (module, entry) = (program.code.module.clone(), program.code.entry);
        let engine = NativeEngine::of_module(module, entry, &NativeOptions::default()).expect("compiled");
        let is_tick = |source: &GraphSource| matches!(source, GraphSource::Constant(..));
        let tick = program.sources.iter().position(is_tick).expect("the clock");
        Clients { program, engine, tick }
    }

    fn run(&mut self, second: u64, source: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.engine.set_clock(ClockSource::Fixed((1000 + second) * SECOND));
        let feed = |at| {
            let frames = if at == source { frames } else { &[] };
            SourceFrames { frames, count: frames.len() as u64 }
        };
        let feeds: Vec<SourceFrames<'_>> = (0..self.program.sources.len()).map(feed).collect();
        let mut sent = Vec::new();
        run_graph(&mut self.engine, &feeds, self.program.targets.len(), 4, |packet| {
            sent.push(packet.bytes.to_vec());
            Ok(())
        })
        .expect("memory");
        assert!(sent.iter().all(|packet| sealed(packet)), "{sent:02x?}");
        sent
    }

    /// Segments of so many ticks.
    fn ticks(&mut self, second: u64, count: usize) -> Vec<Vec<u8>> {
        let GraphSource::Constant(tick, _) = &self.program.sources[self.tick] else { panic!("the clock") };
        let ticks = vec![tick.clone(); count];
        self.run(second, self.tick, &ticks)
    }

    /// Answers to a segment.
    fn answers(&mut self, segment: &[u8]) -> Vec<Vec<u8>> {
        let other = 1 - self.tick;
        self.run(0, other, &[segment.to_vec()])
    }

    fn counter(&mut self, name: &str) -> u64 {
        let state = self.engine.map(STATE).expect("the state").get(&[0; 4]).expect("one value");
        let handler = self.program.handlers.iter().find(|h| h.element == "w" && h.name == name).expect(name);
        let HandlerAccess::Number(at) = handler.access else { panic!("{name} is no number") };
        number(&state, at)
    }
}

fn said(packet: &[u8]) -> Said {
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
    Said { number: word(24), acknowledged: word(28), flags: packet[33], data: packet[40..].to_vec() }
}

/// The server's segment to the client of another one.
fn answer(to: &[u8], said: &Said) -> Vec<u8> {
    let length = 40 + said.data.len();
    let mut packet = vec![0x45, 0, 0, length as u8, 0, 7, 0, 0, 64, 6, 0, 0];
    packet.extend([&to[16..20], &to[12..16], &to[22..24], &to[20..22]].concat());
    packet.extend([said.number.to_be_bytes(), said.acknowledged.to_be_bytes()].as_flattened());
    packet.extend([0x50, said.flags, 1, 0, 0, 0, 0, 0]);
    packet.extend(&said.data);
    let more = pseudo(&packet);
    seal(&mut packet[20..], 16, more);
    seal(&mut packet[..20], 10, 0);
    packet
}

const ONE: &str = "FromDump(a) -> w :: WebGen(10.7.0.0/16, 1.0.0.1, 1) -> ToDump(0)";

#[test]
fn a_client_asks_for_a_page_takes_it_and_closes() {
    let mut clients = Clients::new(ONE);
    let sent = clients.ticks(0, TICKS);
    let [opening] = &sent[..] else { panic!("{sent:02x?}") };
    assert_eq!((opening.len(), &opening[12..14], &opening[16..20]), (40, &[10, 7][..], &SERVER[..]));
    let port = u16::from_be_bytes([opening[20], opening[21]]);
    assert!(port >= 1024 && opening[22..24] == [0, 80]);
    let first = said(opening);
    assert_eq!((first.flags, first.acknowledged), (SYN, 0));
    let next = first.number + 1;

    let accepted = Said { number: 100, acknowledged: next, flags: SYN | ACK, data: Vec::new() };
    let sent = clients.answers(&answer(opening, &accepted));
    let asked = said(&sent[0]);
    assert_eq!((sent.len(), asked.number, asked.acknowledged, asked.flags), (1, next, 101, ACK | PUSH | FIN));
    let text = String::from_utf8(asked.data).expect("text");
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let [folder, again, middle, page, ..] = digits[..] else { panic!("{text}") };
    assert_eq!(text, format!("GET /spec/{folder}/{folder}-{middle}-{page} HTTP/1.0\r\n\r\n"));
    assert!(folder == again && middle < 3 && page < 9, "{text}");

    let behind = next + REQUEST_BYTES + 1;
    let part = Said { number: 101, acknowledged: behind, flags: ACK, data: b"page!".to_vec() };
    let sent = clients.answers(&answer(opening, &part));
    let [taken] = &sent[..] else { panic!("{sent:02x?}") };
    assert_eq!(said(taken), Said { number: behind, acknowledged: 106, flags: ACK, data: Vec::new() });
    let closing = Said { number: 106, acknowledged: behind, flags: ACK | FIN, data: Vec::new() };
    let sent = clients.answers(&answer(opening, &closing));
    let [closed] = &sent[..] else { panic!("{sent:02x?}") };
    assert_eq!(said(closed), Said { number: behind, acknowledged: 107, flags: ACK | FIN, data: Vec::new() });
    assert_eq!(
        ["initiated", "completed", "timeout", "reset"].map(|name| clients.counter(name)),
        [1, 1, 0, 0]
    );

    let sent = clients.answers(&answer(opening, &closing));
    let [refused] = &sent[..] else { panic!("{sent:02x?}") };
    assert_eq!(
        (said(refused).flags, said(refused).number),
        (RST, behind),
        "the connection is not there any more"
    );
    let reset = Said { number: 107, acknowledged: behind, flags: RST, data: Vec::new() };
    assert_eq!(clients.answers(&answer(opening, &reset)), Vec::<Vec<u8>>::new());
}

#[test]
fn a_client_without_an_answer_asks_six_times_more() {
    let mut clients = Clients::new(ONE);
    let numbers: Vec<usize> = (0..9).map(|second| clients.ticks(second, TICKS).len()).collect();
    // One begins in each second, and every other one asks again.
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 7, 7]);
    assert_eq!(["initiated", "timeout"].map(|name| clients.counter(name)), [9, 2]);
}

#[test]
fn a_reset_ends_a_connection() {
    let mut clients = Clients::new(ONE);
    let opening = clients.ticks(0, 1).remove(0);
    let reset =
        Said { number: 0, acknowledged: said(&opening).number + 1, flags: RST | ACK, data: Vec::new() };
    assert_eq!(clients.answers(&answer(&opening, &reset)), Vec::<Vec<u8>>::new());
    assert_eq!(clients.counter("reset"), 1);
    assert_eq!(clients.ticks(1, TICKS - 1).len(), 0, "nothing is sent again");
}

#[test]
fn segments_in_short_packets_are_answered_and_cut_ones_dropped() {
    let mut clients = Clients::new(ONE);
    let opening = clients.ticks(0, 1).remove(0);
    let accepted =
        Said { number: 1, acknowledged: said(&opening).number + 1, flags: SYN | ACK, data: Vec::new() };
    let whole = answer(&opening, &accepted);
    for cut in
        [&whole[..39], &[&[0x4f][..], &whole[1..]].concat(), &[&whole[..32], &[0xf0], &whole[33..]].concat()]
    {
        assert_eq!(clients.answers(cut), Vec::<Vec<u8>>::new(), "{cut:02x?}");
    }
    assert_eq!(clients.answers(&whole)[0].len(), 40 + REQUEST_BYTES as usize);
}
