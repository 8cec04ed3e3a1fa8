//! Our router as native code: verdicts, packets, accounts and files.

use millstream_isa::RawInsn;
use millstream_native::{LONGEST_FRAGMENTED, NativeEngine, NativeError, NativeOptions, PacketBatch};
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_native_io::{DropReason, NullSink, PacketAccounting, ReplaySource, RunConfig, live, run};
use millstream_object::{FuncId, Object};
use millstream_programs::ROUTER;
use millstream_programs::packet::EthernetFrame;
use millstream_programs::router::{
    NextHop, Route, RouterConfig, RouterModel, RouterOutcome, flows, generate,
};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;

const INGRESS: u32 = 1;
const PLAN: RunConfig = RunConfig { batch: 32, ingress: INGRESS };

fn router(config: &RouterConfig) -> NativeEngine {
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("our own");
    let mut engine = NativeEngine::of_object(&object, None, &NativeOptions::default()).expect("compiled");
    for entry in config.entries().expect("fits") {
        let map = engine.map(entry.map).expect("the object's map");
        assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
    }
    engine
}

#[test]
fn batches_agree_with_the_model_of_the_router() {
    let config = generate(2592, &[INGRESS, 2], 8, 1);
    let mut engine = router(&config);
    let model = RouterModel::new(&config);
    let mut rng = Rng::new(3);
    let mut frames = flows(&config, 3000, FlowLocality::NONE, 2).packets;
    for frame in &mut frames {
        if rng.below(3) == 0 {
            let at = rng.below(34) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
    }
    let mut batch = PacketBatch::new(61).expect("memory");
    for group in frames.chunks(61) {
        batch.clear();
        assert!(group.iter().all(|frame| batch.push(frame, INGRESS)));
        engine.run(&mut batch);
        for (at, frame) in group.iter().enumerate() {
            let (verdict, bytes) = (batch.verdict(at), batch.bytes(at));
            match model.process(frame) {
                RouterOutcome::Forward { port, frame } => {
                    assert_eq!(bytes, frame);
                    match port == INGRESS {
                        true => assert_eq!(verdict, 3),
                        false => assert_eq!((verdict, batch.target(at)), (4, port)),
                    }
                }
                RouterOutcome::Drop(_) => assert_eq!((verdict, bytes), (1, &frame[..])),
                RouterOutcome::Stack(_) => assert_eq!((verdict, bytes), (2, &frame[..])),
            }
        }
    }
}

#[test]
fn every_packet_is_accounted_for_and_written_once() {
    let hop = |port| NextHop::Forward { dst_mac: [2; 6], src_mac: [4; 6], port, mtu: 1500 };
    let route = |prefix: &str, next_hop| Route { prefix: prefix.parse().expect("a prefix"), next_hop };
    let config = RouterConfig {
        next_hops: vec![hop(INGRESS), hop(2), NextHop::Drop],
        routes: vec![route("10.0.0.0/8", 0), route("10.2.0.0/16", 1), route("10.3.0.0/16", 2)],
    };
    let mut engine = router(&config);
    let to = |dst: &str| {
        EthernetFrame { dst: dst.parse().expect("an address"), ..EthernetFrame::default() }.to_bytes()
    };
    let frames = [
        to("10.1.1.1"),
        to("10.2.1.1"),
        to("10.3.1.1"),
        to("11.1.1.1"),
        vec![0; 13],
        vec![0; LONGEST_FRAGMENTED + 1],
    ];
    let order = [0, 1, 2, 3, 4, 5, 0];
    let source = ReplaySource { frames: &frames, order: &order, count: 70, stream: None };
    let mut file = Vec::new();
    let mut writer = PcapWriter::new(&mut file, PcapHeader::default()).expect("a header");
    let ran = run(&mut engine, &source, &mut writer, PLAN).expect("written");
    writer.finish().expect("written");
    let a = ran.account;
    assert!(a.adds_up());
    assert_eq!((a.received, a.transmitted, a.redirected), (70, 20, 10));
    let dropped = |reason: DropReason| a.dropped[reason as usize];
    assert_eq!(
        (dropped(DropReason::Drop), dropped(DropReason::Pass), dropped(DropReason::Size)),
        (10, 10, 20)
    );
    let record = 16 + frames[0].len();
    assert_eq!(file.len(), 24 + 30 * record);
    // The second packet that was sent is the source's second.
    let second = &file[24 + record..24 + 2 * record];
    assert_eq!(
        second[..16],
        [0, 0, 0, 0, 0, 0, 0, 0, record as u8 - 16, 0, 0, 0, record as u8 - 16, 0, 0, 0]
    );
    assert_eq!(second[16..22], [2; 6]);

    let endless = ReplaySource { count: 100_000, ..source };
    let ran = run(&mut engine, &endless, &mut NullSink, PLAN).expect("run");
    assert!(ran.account.adds_up() && ran.account.received == 100_000);
    assert!(ran.percentile(0.1).is_some_and(|ns| ns > 0.0 && ns <= ran.percentile(0.9).unwrap_or(0.0)));
    let source = ReplaySource { order: &[], ..source };
    assert_eq!(run(&mut engine, &source, &mut NullSink, PLAN).expect("run").account.received, 0);
}

#[test]
fn programs_are_chosen_by_name() {
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("our own");
    let error = NativeEngine::of_object(&object, Some("nobody"), &NativeOptions::default())
        .err()
        .expect("no such program");
    assert!(
        matches!(&error, NativeError::Choose(text) if text.contains("nobody") && text.contains("router")),
        "{error}"
    );
}

/// A program of unknown code, beside the router.
fn with_an_unknown_neighbour(known: millstream_programs::DataPlaneProgram) -> Object {
    let mut object = Object::parse(known.name, known.object).expect("our own");
    let (mut function, mut program) = (object.functions[0].clone(), object.programs[0].clone());
    program.func = FuncId(object.functions.len() as u32);
    program.name = "unknown".to_owned();
    function.name.clone_from(&program.name);
    // No version of the instruction set has this opcode.
    function.insns = vec![RawInsn { code: 0xfd, dst: 0, src: 0, off: 0, imm: 0 }];
    function.relocs.clear();
    function.line_info.clear();
    object.functions.push(function);
    object.programs.push(program);
    object
}

#[test]
fn a_program_is_compiled_beside_one_that_is_not_understood() {
    let compiled =
        |object: &Object, name| NativeEngine::of_object(object, Some(name), &NativeOptions::default());
    let object = with_an_unknown_neighbour(ROUTER);
    let config = generate(10, &[INGRESS, 2], 8, 1);
    let mut engine = compiled(&object, ROUTER.name).expect("compiled");
    for entry in config.entries().expect("fits") {
        assert_eq!(engine.map(entry.map).expect("a map").update(&entry.key, &entry.value, 0, None), 0);
    }
    let mut batch = PacketBatch::new(1).expect("memory");
    let frame = flows(&config, 1, FlowLocality::NONE, 2).packets.swap_remove(0);
    assert!(batch.push(&frame, INGRESS));
    engine.run(&mut batch);
    let RouterOutcome::Forward { frame, .. } = RouterModel::new(&config).process(&frame) else {
        panic!("no route")
    };
    assert_eq!(batch.bytes(0), frame);
    assert!(compiled(&object, "unknown").is_err());
}

/// An interface in memory: packets to receive, packets sent, and the number that it takes before it is
/// flushed.
struct Wire {
    index: u32,
    coming: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    room: usize,
    taken: usize,
}

impl live::PacketPort for Wire {
    fn index(&self) -> u32 {
        self.index
    }

    fn receive(&mut self, most: usize, take: live::PacketCallback<'_>) -> std::io::Result<usize> {
        let now = most.min(self.coming.len());
        self.coming.drain(..now).for_each(|f| take(&f));
        Ok(now)
    }

    fn send(&mut self, packet: &[u8]) -> bool {
        let room = self.taken < self.room;
        if room {
            self.taken += 1;
            self.sent.push(packet.to_vec());
        }
        room
    }

    fn flush(&mut self) -> std::io::Result<bool> {
        // A wire without room stays full.
        self.taken = if self.room > 1 { 0 } else { self.taken };
        Ok(true)
    }

    fn wait(&mut self, _: std::time::Duration) -> std::io::Result<()> {
        Ok(())
    }
}

/// Final state of wire 1, with these frames, and of wire 2, with room for this many packets.
fn served(config: &RouterConfig, frames: &[Vec<u8>], room: usize) -> (Vec<Wire>, PacketAccounting) {
    let wire = |index, coming, room| Wire { index, coming, sent: Vec::new(), room, taken: 0 };
    let mut wires = vec![wire(1, frames.to_vec(), 1000), wire(2, Vec::new(), room)];
    let all = frames.len() as u64;
    let ran = live::serve(&mut router(config), &mut wires, 32, &mut |a, _| a.received < all, &mut |_| {});
    let account = ran.expect("wires of ours do not fail").account;
    assert!(account.adds_up() && account.received == all, "{account:?}");
    (wires, account)
}

#[test]
fn packets_leave_by_the_wire_that_the_program_names() {
    let config = generate(2592, &[INGRESS, 2], 8, 1);
    let model = RouterModel::new(&config);
    let mut frames = flows(&config, 500, FlowLocality::NONE, 2).packets;
    frames.push(vec![0; 10]);
    let mut expected = [Vec::new(), Vec::new()];
    for frame in &frames[..500] {
        if let RouterOutcome::Forward { port, frame } = model.process(frame) {
            expected[port as usize - 1].push(frame);
        }
    }
    let (wires, account) = served(&config, &frames, 16);
    assert!(wires[0].sent == expected[0] && wires[1].sent == expected[1], "in order");
    assert_eq!(account.transmitted as usize, expected[0].len());
    assert_eq!(account.redirected as usize, expected[1].len());
    assert_eq!(account.dropped[DropReason::Size as usize], 1);
    assert!(expected.iter().all(|e| e.len() > 50));

    let (wires, account) = served(&config, &frames, 1);
    assert_eq!((wires[1].sent.len(), account.redirected), (1, 1));
    assert_eq!(account.dropped[DropReason::NoRoom as usize] as usize, expected[1].len() - 1);
}
