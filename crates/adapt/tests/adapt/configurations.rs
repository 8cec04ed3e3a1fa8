//! Configurations: graphs that send packets themselves, with tables and settings that handlers write.

use std::path::Path;

use millstream_adapt::{AdaptSession, AdaptSettings, AdaptState, PacketModel};
use millstream_built::{fill, handlers};
use millstream_click::{Ablations, ClickProgram, HandlerWriters, flatten, parse};
use millstream_click_elements::compile_for;
use millstream_native::{NativeEngine, NativeOptions, PacketBatch, ProgramFacts, VariantSupport};
use millstream_programs::packet::EthernetFrame;

use crate::run_until;

/// Packets of a batch.
const BATCH: usize = 32;

/// A configuration, and its engine.
struct Configuration {
    program: ClickProgram,
    engine: NativeEngine,
    batch: PacketBatch,
}

impl Configuration {
    fn new(text: &str) -> Configuration {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        let none = |_: &str, _: Option<&str>| Err("no objects".to_owned());
        let program = compile_for(&graph, &none, HandlerWriters::Anybody, Ablations::default())
            .unwrap_or_else(|e| panic!("{e:?}"));
        let options = NativeOptions {
            variants: VariantSupport::Installed,
            facts: ProgramFacts { copies: program.copies, ..ProgramFacts::default() },
            ..NativeOptions::default()
        };
        let mut engine = NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options)
            .expect("compiled");
        fill(&mut engine, &program.code.entries).expect("room");
        let batch = PacketBatch::with_copies(BATCH, 16 * BATCH).expect("memory");
        Configuration { program, engine, batch }
    }

    fn adapt(&mut self) -> AdaptSession {
        AdaptSession::start(&mut self.engine, AdaptSettings::without_limits(PacketModel::Graph))
            .expect("adaptable")
    }

    fn write(&mut self, text: &str) {
        handlers::write(&self.program, &mut self.engine, text).unwrap_or_else(|e| panic!("{text}: {e}"));
    }

    /// Outputs of packets of the first source.
    fn outputs(&mut self, frames: &[Vec<u8>]) -> Vec<u64> {
        self.batch.clear();
        self.batch.expect(self.engine.layout());
        frames.iter().for_each(|frame| assert!(self.batch.push_open(frame, 1)));
        self.engine.run_graph(&mut self.batch);
        self.batch.sent().map(|(_, output, _)| output).collect()
    }
}

/// An IP packet to an address.
fn to(address: [u8; 4]) -> Vec<u8> {
    [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1][..], &address, &[0, 9, 0, 53, 0, 8, 0, 0]]
        .concat()
}

/// Routes and switches are in code, and follow the handlers all the same.
#[test]
fn handlers_change_what_the_next_batch_does() {
    let mut conf = Configuration::new(
        "FromDump(a) -> GetIPAddress(16) -> r :: RadixIPLookup(10.0.0.0/8 0, 10.1.0.0/16 1) -> s :: Switch(0);
        s[0] -> ToDump(0); s[1] -> ToDump(1); r[1] -> ToDump(2); r[2] -> ToDump(3)",
    );
    let session = conf.adapt();
    let frames: Vec<Vec<u8>> = (0..BATCH as u8).map(|n| to([10, n % 2, n, 1])).collect();
    let mut installed = 0;
    for (text, expected) in [
        ("s.switch 0", [0, 2]),
        ("s.switch 1", [1, 2]),
        ("r.set 10.1.0.0/16 2", [1, 3]),
        ("r.remove 10.1.0.0/16", [1, 1]),
    ] {
        conf.write(text);
        let wanted: Vec<u64> = (0..BATCH).map(|n| expected[n % 2]).collect();
        assert_eq!(conf.outputs(&frames), wanted, "{text}");
        let run = || assert_eq!(conf.outputs(&frames), wanted, "{text}");
        let status = run_until(&session, run, |status| {
            status.swaps > installed && status.state == AdaptState::Specialized
        });
        installed = status.swaps;
        assert_eq!(conf.outputs(&frames), wanted, "{text}");
    }
    assert_eq!(session.finish().differences, 0);
}

/// Caches of traversals are tried while handlers write the routes: no batch behind a write has the old one.
#[test]
fn caches_of_traversals_are_tried_on_live_packets_and_follow_the_handlers() {
    let mut conf = Configuration::new(
        "FromDump(a) -> GetIPAddress(16) -> r :: RadixIPLookup(10.0.0.0/8 0, 10.1.0.0/16 1) -> ToDump(0);
        r[1] -> GetIPAddress(12) -> b :: RadixIPLookup(10.0.0.0/8 0, 0/0 1) -> ToDump(1); b[1] -> ToDump(2);
        r[2] -> ToDump(3)",
    );
    assert!(!conf.engine.schedule.lookups.cached.is_empty());
    let settings =
        AdaptSettings { tries_schedules: true, ..AdaptSettings::without_limits(PacketModel::Graph) };
    let session = AdaptSession::start(&mut conf.engine, settings).expect("adaptable");
    let frames: Vec<Vec<u8>> = (0..BATCH as u8).map(|n| to([10, n % 2, n, 1])).collect();
    let mut round = 0;
    let run = || {
        round += 1;
        let (text, expected) =
            [("r.set 10.1.0.0/16 2", 3), ("r.set 10.1.0.0/16 1", 1), ("r.set 10.1.0.0/16 0", 0)]
                [round / 5 % 3];
        if round % 5 == 0 {
            conf.write(text);
        }
        if round >= 5 {
            let wanted: Vec<u64> = (0..BATCH as u64).map(|n| if n % 2 == 0 { 0 } else { expected }).collect();
            assert_eq!(conf.outputs(&frames), wanted, "{text}");
        }
    };
    // Caches come first.
    let status = run_until(&session, run, |status| status.schedules_tried > 3 || status.failure.is_some());
    assert_eq!((status.differences, status.failure), (0, None));
}

/// Queues and counters, classifiers and the flow table of a NAT stay as they are.
#[test]
fn specialised_configurations_send_what_the_originals_do() {
    let frames: Vec<Vec<u8>> = (0..BATCH as u32)
        .map(|n| {
            let (src, dst) = (0x0a00_0002 + n % 5, 0x0808_0808 + n % 3);
            EthernetFrame { src: src.into(), dst: dst.into(), ..EthernetFrame::default() }.to_bytes()
        })
        .collect();
    for name in ["router", "firewall", "nat"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../conf/{name}.click"));
        let mut conf = Configuration::new(&std::fs::read_to_string(path).expect("ours"));
        let session = conf.adapt();
        let run = || drop(conf.outputs(&frames));
        let status = run_until(&session, run, |status| {
            status.compared > 0 || status.failure.is_some() || status.state == AdaptState::Watching
        });
        assert_eq!((status.differences, status.failure), (0, None), "{name}");
    }
}
