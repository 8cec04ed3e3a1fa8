//! Functions that tests of elements share.

use millstream_click::{ClickProgram, HandlerAccess, STATE, flatten, parse};
use millstream_click_elements::compile;
use millstream_interp::ir::IrInterpreter;
use millstream_interp::{MachineState, SideEffect};
use millstream_native::{ClockSource, LayoutPolicy, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};

/// Packets that an interpreted program sends, and their ports, for frames that come by the first device.
pub(crate) fn sent(
    program: &ClickProgram,
    interpreter: &IrInterpreter<'_>,
    machine: &mut MachineState,
    frames: &[Vec<u8>],
) -> Vec<(u64, Vec<u8>)> {
    let mut sent = Vec::new();
    for frame in frames {
        machine.reset(frame);
        machine.set_context_field(12, 1);
        let done = interpreter.run_context(machine, program.code.entry);
        done.unwrap_or_else(|fault| panic!("{fault}: {frame:02x?}"));
        sent.extend(machine.env.events.drain(..).filter_map(|event| match event {
            SideEffect::Emit { port, data } => Some((port, data)),
            _ => None,
        }));
    }
    sent
}

/// A number of the state of all elements.
pub(crate) fn number(state: &[u8], at: u32) -> u64 {
    u64::from_le_bytes(state[at as usize..][..8].try_into().expect("eight bytes"))
}

/// The sum of 16-bit words: 0xffff where the checksum in them is right.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let mut sum: u32 =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Sets a checksum so that the sum of `bytes` and `more` is right.
pub(crate) fn seal(bytes: &mut [u8], at: usize, more: u32) {
    bytes[at..at + 2].fill(0);
    let mut total = sum(bytes) + more;
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    bytes[at..at + 2].copy_from_slice(&(!total as u16).to_be_bytes());
}

/// Sum of the pseudo header.
pub(crate) fn pseudo(packet: &[u8]) -> u32 {
    sum(&packet[12..20]) + u32::from(packet[9]) + (packet.len() as u32 - 20)
}

/// A TCP segment or UDP datagram without Ethernet header.
pub(crate) fn packet(
    protocol: u8,
    [from, to]: [[u8; 4]; 2],
    [source, destination]: [u16; 2],
    flags: u8,
) -> Vec<u8> {
    let len = if protocol == 6 { 20 } else { 8 };
    let mut packet = vec![0x45, 0, 0, 20 + len, 0, 7, 0, 0, 64, protocol, 0, 0];
    packet.extend([from, to].concat());
    packet.extend([source, destination].map(u16::to_be_bytes).concat());
    match protocol {
        6 => packet.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]),
        _ => packet.extend([0, 8, 0, 0]),
    }
    let more = pseudo(&packet);
    seal(&mut packet[20..], if protocol == 6 { 16 } else { 6 }, more);
    seal(&mut packet[..20], 10, 0);
    packet
}

/// Both checksums are right.
pub(crate) fn sealed(packet: &[u8]) -> bool {
    let total = sum(&packet[20..]) + pseudo(packet);
    sum(&packet[..20]) == 0xffff && sum(&total.to_be_bytes()) == 0xffff
}

const SECOND: u64 = 1_000_000_000;

/// A configuration that stays, with the packets that its sources are given.
pub(crate) struct Bed {
    program: ClickProgram,
    engine: NativeEngine,
}

impl Bed {
    pub(crate) fn new(text: &str) -> Bed {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
        // The result of a configuration does not depend on the positions of fields in descriptors.
        let options = NativeOptions {
            descriptors: LayoutPolicy::Shuffled(text.len() as u64),
            ..NativeOptions::default()
        };
        let engine = NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options);
        let mut engine = engine.expect("compiled");
        for entry in &program.code.entries {
            let map = engine.map(&entry.map).expect("the map");
            assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
        }
        Bed { program, engine }
    }

    /// Packets sent for frames that come at a time, in seconds, by each source.
    pub(crate) fn at(&mut self, seconds: u64, frames: [&[Vec<u8>]; 2]) -> Vec<(usize, Vec<u8>)> {
        self.engine.set_clock(ClockSource::Fixed(seconds * SECOND));
        let feeds = frames.map(|frames| SourceFrames { frames, count: frames.len() as u64 });
        let mut sent = Vec::new();
        run_graph(&mut self.engine, &feeds, self.program.targets.len(), 4, |p| {
            sent.push((p.output, p.bytes.to_vec()));
            Ok(())
        })
        .expect("memory");
        sent
    }

    /// Takes another one's place.
    pub(crate) fn take_over(&mut self, old: &mut Bed) {
        self.engine.adopt(&mut old.engine, &[STATE]);
        let was = old.engine.map(STATE).expect("the state").get(&[0; 4]).expect("one value");
        let map = self.engine.map(STATE).expect("the state");
        let mut state = map.get(&[0; 4]).expect("one value");
        assert_eq!(self.program.import_state(&mut state, &old.program, &was), []);
        assert!(map.write(&[0; 4], &state));
    }

    /// Value of a handler of an element that is a number.
    pub(crate) fn counter(&mut self, element: &str, name: &str) -> u64 {
        let state = self.engine.map(STATE).expect("the state").get(&[0; 4]).expect("one value");
        let mut handlers = self.program.handlers.iter();
        let handler = handlers.find(|h| h.element == element && h.name == name).expect("the handler");
        let HandlerAccess::Number(at) = handler.access else { panic!("{element}.{name} is no number") };
        number(&state, at)
    }

    pub(crate) fn dropped(&mut self, reason: &str) -> u64 {
        let state = self.engine.map(STATE).expect("the state").get(&[0; 4]).expect("one value");
        self.program.drops.iter().filter(|d| d.reason == reason).map(|d| number(&state, d.offset)).sum()
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
