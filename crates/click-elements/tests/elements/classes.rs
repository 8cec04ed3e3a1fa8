//! Batches that are sorted into classes: packets of a flow stay in order, all are sent once and unchanged. If
//! packets see state that others have left, they run in order, and the engine reports that.

use millstream_click::{flatten, parse};
use millstream_click_elements::compile;
use millstream_native::{BatchReordering, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};
use millstream_native_io::steer::flow_hash;
use millstream_rng::Rng;

const IP: [u8; 2] = [8, 0];
const IP6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [8, 6];
const TAGGED: [u8; 2] = [0x81, 0];

/// Frames of all kinds by turns, some cut off; a number that no element looks at tells them apart.
fn frames(rng: &mut Rng, count: u32, kinds: &[[u8; 2]]) -> Vec<Vec<u8>> {
    let frame = |number: u32| {
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        let mut frame = vec![2; 12];
        frame.extend(kind);
        let pick = |rng: &mut Rng, all: &[u8]| all[rng.below(all.len() as u64) as usize];
        frame.resize(90, 0);
        match kind {
            IP => {
                (frame[14], frame[17], frame[22], frame[23]) = (0x45, 76, 64, pick(rng, &[1, 6, 17, 50]));
                (frame[29], frame[33]) = (pick(rng, &[1, 2]), 9);
            }
            _ => {
                (frame[14], frame[20], frame[21]) = (0x60, pick(rng, &[58, 6, 17, 0]), 64);
                frame[37] = pick(rng, &[1, 2]);
            }
        }
        frame.truncate(if rng.below(12) == 0 { 16 + rng.below(50) as usize } else { 90 });
        // Behind the headers.
        frame.extend(number.to_be_bytes());
        frame
    };
    (0..count).map(frame).collect()
}

/// A packet's number, the output that it left by, and its bytes.
type Left = (u64, usize, Vec<u8>);

/// Packets sent, in order, and the engine.
fn sent(text: &str, schedule: &str, frames: &[Vec<u8>]) -> (Vec<Left>, NativeEngine) {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let program = compile(&graph).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    let options =
        NativeOptions { schedule: schedule.parse().expect("a schedule"), ..NativeOptions::default() };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    for entry in &program.code.entries {
        assert_eq!(engine.map(&entry.map).expect("the map").update(&entry.key, &entry.value, 0, None), 0);
    }
    let mut sent = Vec::new();
    let (batch, feeds) = (engine.batch() as usize, [SourceFrames { frames, count: frames.len() as u64 }]);
    run_graph(&mut engine, &feeds, program.targets.len(), batch, |p| {
        sent.push((p.number, p.output, p.bytes.to_vec()));
        Ok(())
    })
    .expect("memory");
    (sent, engine)
}

/// Counters and a table of routes.
const ROUTER: &str = "FromDump(a) -> c :: Classifier(12/0800, 12/86dd, 12/0806, -);
    c[0] -> a :: Counter -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> rt :: RadixIPLookup(0.0.0.0/8 0, 0/0 1)
        -> DecIPTTL -> Unstrip(14) -> ToDump(0); rt[1] -> Unstrip(14) -> EtherMirror -> ToDump(1);
    c[1] -> b :: Counter -> EtherRewrite(1:1:1:1:1:1, 2:2:2:2:2:2) -> ToDump(0); c[2] -> ToDump(1); c[3] -> ToDump(2);";

#[test]
fn packets_of_a_flow_stay_in_order_and_all_are_as_they_would_be() {
    let mut rng = Rng::new(3);
    for kinds in [&[IP, IP6, ARP, [9, 9]][..], &[IP], &[IP, IP6, TAGGED]] {
        let frames = frames(&mut rng, 700, kinds);
        let (in_order, mut plain) = sent(ROUTER, "", &frames);
        for schedule in [
            "classes=ethertype",
            "classes=protocol,batch=77,unroll=2",
            "classes=protocol,pattern=groups,sub-batch=9",
            "classes=protocol,from=0,trials=off,pattern=pipelined-groups,sub-batch=5",
            "classes=protocol,from=0,trials=off,distance=3",
        ] {
            let (mut found, mut engine) = sent(ROUTER, schedule, &frames);
            assert_eq!(engine.schedule.in_order, None, "{schedule}");
            assert!(found.len() > 400, "{schedule} {kinds:?}");
            let numbers: Vec<u64> = found.iter().map(|(number, ..)| *number).collect();
            let stays = (kinds.len() == 1 && schedule.contains("ethertype")) || kinds.contains(&TAGGED);
            assert!(numbers.is_sorted() == stays, "{schedule} {kinds:?}");
            let mut last = std::collections::HashMap::new();
            for number in numbers {
                let before = last.insert(flow_hash(&frames[number as usize]), number);
                assert!(
                    before.is_none_or(|before| before < number),
                    "{schedule}: {number} behind {before:?}"
                );
            }
            found.sort_by_key(|(number, ..)| *number);
            assert!(found == in_order, "{schedule}");
            let state =
                |engine: &mut NativeEngine| engine.map("click.state").expect("the state").get(&[0; 4]);
            assert_eq!(state(&mut engine), state(&mut plain), "{schedule}");
        }
    }
}

#[test]
fn where_packets_see_what_others_left_they_run_in_order_and_it_is_said() {
    let frames = frames(&mut Rng::new(4), 300, &[IP, IP6, ARP]);
    for (graph, why) in [
        (
            "Strip(14) -> CheckIPHeader(CHECKSUM false) -> IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) \
             -> ToDump(0);",
            "",
        ),
        ("RoundRobinSwitch -> ToDump(0);", "adding"),
        ("Tee -> ToDump(0);", ""),
    ] {
        let (found, engine) = sent(&format!("FromDump(a) -> {graph}"), "classes=ethertype", &frames);
        let said = engine.schedule.in_order.clone().unwrap_or_default();
        let one_way = graph.starts_with("Tee");
        assert!((said.is_empty() == one_way) && said.contains(why), "{graph}: {said:?}");
        if !one_way {
            assert_eq!(engine.schedule.schedule.classes, BatchReordering::One);
            assert!(found.is_sorted_by_key(|(number, ..)| *number), "{graph}");
        }
    }
}
