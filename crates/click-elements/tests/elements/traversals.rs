//! Caches of traversals: native code with them beside the IR's interpreter, which has none, while tables are written
//! between batches.

use millstream_click::{ClickProgram, flatten, parse};
use millstream_click_elements::compile;
use millstream_interp::ir::IrInterpreter;
use millstream_interp::maps::MapId;
use millstream_interp::{ContextKind, MachineState};
use millstream_ir::Map;
use millstream_native::{ClockSource, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};
use millstream_rng::Rng;

const NOW: u64 = 1_000_000_000_000;
/// Packets between two writes, at most.
const BETWEEN: u64 = 40;

/// A firewall of many rules, a router, and a route back by the source; counters and lifetimes all along.
fn chain() -> String {
    let rules =
        (0..120u32).map(|n| format!("deny src net 10.{}.{}.0/24 && dst port {}", n % 7, n % 11, 80 + n % 9));
    let rules: Vec<String> = rules.chain(["allow udp".to_owned(), "deny all".to_owned()]).collect();
    let routes: Vec<String> = (0..20).map(|n| format!("20.{n}.0.0/16 {}", n % 3)).collect();
    format!(
        "FromDump(a) -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> a :: Counter -> f :: IPFilter({}) -> b :: Counter
        -> rt :: RadixIPLookup({}, 0/0 3) -> DecIPTTL -> c :: Counter -> ToDump(0);
        rt[1] -> DecIPTTL -> GetIPAddress(12) -> back :: RadixIPLookup(10.1.0.0/16 0, 10.2.0.0/16 1, 0/0 0)
        -> ToDump(1); back[1] -> ToDump(2); rt[2] -> ToDump(2); rt[3] -> ToDump(3)",
        rules.join(", "),
        routes.join(", ")
    )
}

fn compiled(text: &str) -> ClickProgram {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    compile(&graph).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

fn engine(program: &ClickProgram, schedule: &str) -> NativeEngine {
    let options =
        NativeOptions { schedule: schedule.parse().expect("a schedule"), ..NativeOptions::default() };
    let (module, entry) = (program.code.module.clone(), program.code.entry);
    let mut engine = NativeEngine::of_module(module, entry, &options).expect("compiled");
    engine.set_clock(ClockSource::Fixed(NOW));
    for entry in &program.code.entries {
        assert_eq!(engine.map(&entry.map).expect("the map").update(&entry.key, &entry.value, 0, None), 0);
    }
    engine
}

/// A packet of one of some flows; few of them have most packets.
fn packet(rng: &mut Rng) -> Vec<u8> {
    let few = rng.below(4) > 0;
    let any = |rng: &mut Rng, most: u64| rng.below(if few { most.min(3) } else { most }) as u8;
    let mut frame = vec![2; 12];
    frame.extend([
        8,
        0,
        0x45,
        0,
        0,
        28,
        0,
        0,
        0,
        0,
        1 + any(rng, 64),
        if any(rng, 9) == 8 { 6 } else { 17 },
        0,
        0,
    ]);
    frame.extend([10, any(rng, 8), any(rng, 12), 1, 20, any(rng, 24), 0, 1]);
    frame.extend([0, 9, 0, 78 + any(rng, 12), 0, 8, 0, 0]);
    frame
}

/// The interpreter and an engine with the same tables.
struct Pair<'p> {
    program: &'p ClickProgram,
    interpreter: IrInterpreter<'p>,
    machine: MachineState,
    engine: NativeEngine,
}

impl<'p> Pair<'p> {
    fn new(program: &'p ClickProgram, schedule: &str) -> Pair<'p> {
        let mut machine = MachineState::new(ContextKind::Xdp);
        (machine.env.time, machine.env.tick) = (NOW, 0);
        let interpreter = IrInterpreter::new(&program.code.module, &mut machine);
        let mut pair = Pair { program, interpreter, machine, engine: engine(program, schedule) };
        for entry in &program.code.entries {
            let id = pair.id(&entry.map);
            pair.machine.maps.set(id, &entry.key, &entry.value, 0).expect("room");
        }
        pair
    }

    fn id(&self, name: &str) -> MapId {
        let mut maps = self.program.code.module.maps.iter();
        let (map, _) = maps.find(|(_, decl)| decl.name == name).expect("the map");
        self.interpreter.map(Map::from_u32(map.as_u32())).expect("a map")
    }

    /// Runs packets in both, and compares what they send.
    fn run(&mut self, frames: &[Vec<u8>]) -> usize {
        let expected = crate::common::sent(self.program, &self.interpreter, &mut self.machine, frames);
        let mut sent = Vec::new();
        let (batch, feeds) =
            (self.engine.batch() as usize, [SourceFrames { frames, count: frames.len() as u64 }]);
        run_graph(&mut self.engine, &feeds, self.program.targets.len(), batch, |p| {
            sent.push((p.output as u64, p.bytes.to_vec()));
            Ok(())
        })
        .expect("memory");
        assert!(sent == expected);
        sent.len()
    }

    /// Gives an entry of a table the value of another one, removes it, or puts it back.
    fn write(&mut self, table: &str, rng: &mut Rng) {
        let entries: Vec<_> = self.program.code.entries.iter().filter(|entry| entry.map == table).collect();
        let key = &entries[rng.below(entries.len() as u64) as usize].key;
        let value = &entries[rng.below(entries.len() as u64) as usize].value;
        let id = self.id(table);
        let map = self.engine.map(table).expect("the table");
        if rng.below(3) == 0 {
            map.delete(key);
            self.machine.maps.delete(id, key);
        } else {
            assert_eq!(map.update(key, value, 0, None), 0);
            self.machine.maps.set(id, key, value, 0).expect("room");
        }
    }

    /// Compares counters and tables.
    fn compare(&mut self) {
        for (map, decl) in self.program.code.module.maps.iter() {
            let id = self.interpreter.map(map).expect("a map");
            let native = self.engine.map(&decl.name).expect("the map");
            let mut keys = native.keys();
            keys.sort_unstable();
            let native: Vec<_> =
                keys.into_iter().map(|key| (key.clone(), native.get(&key).expect("its own key"))).collect();
            let mut expected = self.machine.maps.entries(id);
            expected.sort_unstable();
            assert!(native == expected, "{}", decl.name);
        }
    }
}

#[test]
fn cached_traversals_send_and_count_what_the_interpreter_does_while_tables_are_written() {
    let program = compiled(&chain());
    let tables: Vec<&str> = ["rt.routes", "back.routes"]
        .into_iter()
        .filter(|table| program.code.entries.iter().any(|entry| entry.map == *table))
        .collect();
    assert!(
        !tables.is_empty(),
        "{:?}",
        program.code.module.maps.values().map(|m| &m.name).collect::<Vec<_>>()
    );
    for (schedule, seed) in [
        ("traversals=whole", 1),
        ("traversals=split", 2),
        // Flows evict each other all the time.
        ("traversals=whole,flows=1,batch=9", 3),
        ("traversals=split,flows=4,from=0,trials=off,pattern=pipelined-groups,sub-batch=4", 4),
        ("traversals=whole,from=0,trials=off,pattern=packets,distance=2,unroll=2", 5),
    ] {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(&program, schedule);
        let cached = &pair.engine.schedule.lookups.cached;
        assert!(
            cached.iter().any(|traversal| traversal.tables.contains(&"rt.routes".to_owned())),
            "{cached:?}"
        );
        if schedule.contains("whole") {
            assert!(cached[0].tables.len() > 1, "{cached:?}");
        }
        let mut sent = 0;
        for _ in 0..400 {
            let frames: Vec<Vec<u8>> = (0..=rng.below(BETWEEN)).map(|_| packet(&mut rng)).collect();
            sent += pair.run(&frames);
            pair.write(tables[rng.below(tables.len() as u64) as usize], &mut rng);
        }
        assert!(sent > 1000, "{schedule}: {sent}");
        pair.compare();
    }
}

#[test]
fn no_batch_behind_a_write_has_the_old_result() {
    let program = compiled(
        "FromDump(a) -> Strip(14) -> MarkIPHeader -> GetIPAddress(16) -> rt :: RadixIPLookup(20.0.0.0/16 0, 0/0 1)
        -> ToDump(0); rt[1] -> ToDump(1)",
    );
    let mut engine = engine(&program, "traversals=whole");
    assert!(!engine.schedule.lookups.cached.is_empty(), "{:?}", engine.schedule);
    let entries: Vec<_> = program.code.entries.iter().filter(|entry| entry.map == "rt.routes").collect();
    let frame = [vec![2; 12], vec![8, 0, 0x45], vec![0; 15], vec![20, 0, 0, 1], vec![0; 8]].concat();
    let frames = vec![frame; 4];
    let mut outputs = Vec::new();
    for round in 0..20_000usize {
        let value = &entries[round % 2].value;
        for entry in &entries {
            assert_eq!(engine.map("rt.routes").expect("the table").update(&entry.key, value, 0, None), 0);
        }
        let feeds = [SourceFrames { frames: &frames, count: 4 }];
        let mut now = Vec::new();
        run_graph(&mut engine, &feeds, 2, 4, |p| {
            now.push(p.output);
            Ok(())
        })
        .expect("memory");
        assert!(now.len() == 4 && now.iter().all(|output| *output == now[0]));
        outputs.push(now[0]);
    }
    assert!(outputs.chunks(2).all(|pair| pair == &outputs[..2]) && outputs[0] != outputs[1]);
}

#[test]
fn lookups_in_tables_that_packets_write_are_refused_with_the_reason() {
    let program = compiled(
        "FromDump(a) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
        -> rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> ToDump(0)",
    );
    let engine = engine(&program, "traversals=whole");
    let lookups = &engine.schedule.lookups;
    assert!(lookups.cached.is_empty(), "{lookups:?}");
    assert!(lookups.refused.iter().any(|refused| refused.why.contains("programs write it")), "{lookups:?}");
}
