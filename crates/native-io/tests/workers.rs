//! Several workers: no packet is lost or run twice, flows keep their order, and tables that all of them
//! change at once are never seen half changed.

use std::io;
use std::sync::Mutex;

use millstream_interp::MapKind;
use millstream_ir::{
    AluOp, AtomicOp, Block, BlockCall, Cond, Func, Function, KeyLayout, KeyPiece, Linkage, Map, MapDecl,
    MemFlags, Module, Op, Prov, Size, Type, Value, Width,
};
use millstream_native::{ArrivalMetadata, HashTemplate, LpmTemplate, NativeEngine, NativeOptions};
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::steer::{flow_hash, worker_of};
use millstream_native_io::{DropReason, PacketSink, ReplaySource, RunConfig, RunStats, WorkerHooks, run_by};
use millstream_programs::packet::EthernetFrame;
use millstream_rng::Rng;

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
const WORKERS: u32 = 4;
const PLAN: RunConfig = RunConfig { batch: 32, ingress: 1 };
/// Factor from a key to its value.
const FACTOR: i64 = 0x9e37_79b9;
/// Offsets in a packet of its key, and of the operation on it.
const KEY: i32 = 42;
const DEED: i32 = 46;
/// Operations: insert, remove, look up.
const PUT: i64 = 0;
const TAKE: i64 = 1;

fn declared(name: &str, kind: MapKind, value_size: u32, max_entries: u32) -> MapDecl {
    let key_size = if kind == MapKind::LpmTrie { 8 } else { 4 };
    let (kind, name) = (kind as u32, name.to_owned());
    MapDecl { name, kind, key_size, value_size, max_entries, flags: 0, global: None, inner: None }
}

fn load(size: Size, offset: i32) -> Op {
    Op::Load { size, sext: false, offset, flags: MemFlags::default() }
}

/// Writer at the end of a block.
struct Writing<'f> {
    func: &'f mut Function,
    at: Block,
}

impl Writing<'_> {
    fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.func.at_end(self.at).value(op, args.iter().copied(), ty)
    }

    fn int(&mut self, value: i64) -> Value {
        self.func.at_end(self.at).iconst(value)
    }

    fn finish(&mut self, verdict: i64) {
        let verdict = self.int(verdict);
        self.func.at_end(self.at).effect(Op::Return {}, [verdict], []);
    }

    /// Continues in the block where the comparison does not hold, and returns the one where it does.
    fn branch(&mut self, a: Value, b: Value) -> Block {
        let (yes, no) = (self.func.add_block(), self.func.add_block());
        let op = Op::Branch { cond: Cond::Eq, width: Width::W64 };
        self.func.at_end(self.at).effect(op, [a, b], [BlockCall::new(yes), BlockCall::new(no)]);
        self.at = no;
        yes
    }
}

/// Counts each packet, in an array and for each CPU, then inserts its key into a table, removes it, or looks
/// it up: aborts if the value is another key's, or an even key is missing; otherwise sends it back.
fn program(kind: MapKind, entries: u32) -> (Module, Func) {
    let mut module = Module::default();
    let table = module.maps.push(declared("table", kind, 8, entries));
    let all = module.maps.push(declared("all", MapKind::Array, 8, 1));
    let own = module.maps.push(declared("own", MapKind::PercpuArray, 8, 1));
    let mut func = Function::new("p", Linkage::Program { prog_type: XDP });
    let entry = func.add_block();
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let mut w = Writing { func: &mut func, at: entry };
    let packet = w.value(load(Size::W, 0), &[ctx], Type::Ptr(Prov::Packet));
    let one = w.int(1);
    for map in [all, own] {
        count(&mut w, map, one, map == all);
    }
    let key = w.value(load(Size::W, KEY), &[packet], Type::I64);
    let deed = w.value(load(Size::B, DEED), &[packet], Type::I64);
    let factor = w.int(FACTOR);
    let value = w.value(Op::Alu { op: AluOp::Mul, width: Width::W64 }, &[key, factor], Type::I64);
    let bits = w.int(32);
    let piece = |offset, size| KeyPiece { offset, size };
    let (layout, keys): (KeyLayout, &[Value]) = match kind {
        MapKind::LpmTrie => ([piece(0, Size::W), piece(4, Size::W)].into_iter().collect(), &[bits, key]),
        _ => ([piece(0, Size::W)].into_iter().collect(), &[key]),
    };
    let put = w.int(PUT);
    let on = w.branch(deed, put);
    let take = w.int(TAKE);
    let off = w.branch(deed, take);
    let look = Op::MapLookup { map: table, key: layout.clone() };
    let found = w.value(look, keys, Type::Ptr(Prov::MapValueOrNull(table)));
    let null = w.int(0);
    let absent = w.branch(found, null);
    let word = w.value(load(Size::Dw, 0), &[found], Type::I64);
    let same = w.branch(word, value);
    w.finish(0);
    w.at = same;
    w.finish(3);
    w.at = absent;
    let odd = w.value(Op::Alu { op: AluOp::And, width: Width::W64 }, &[key, one], Type::I64);
    let even = w.branch(odd, null);
    w.finish(3);
    w.at = even;
    w.finish(0);
    w.at = on;
    let flags = w.int(0);
    let whole = [piece(0, Size::Dw)].into_iter().collect();
    let update = Op::MapUpdate { map: table, key: layout.clone(), value: whole };
    w.value(update, &[keys, &[value, flags]].concat(), Type::I64);
    w.finish(3);
    w.at = off;
    w.value(Op::MapDelete { map: table, key: layout }, keys, Type::I64);
    w.finish(3);
    let func = module.funcs.push(func);
    (module, func)
}

/// Adds to the only number of a map: atomically, or in two steps.
fn count(w: &mut Writing<'_>, map: Map, one: Value, atomic: bool) {
    let at = w.value(Op::MapValueAddr { map, offset: 0 }, &[], Type::Ptr(Prov::MapValue(map)));
    if atomic {
        let add = Op::Atomic { op: AtomicOp::Add, size: Size::Dw, offset: 0 };
        w.func.at_end(w.at).effect(add, [at, one], []);
        return;
    }
    let before = w.value(load(Size::Dw, 0), &[at], Type::I64);
    let after = w.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[before, one], Type::I64);
    let store = Op::Store { size: Size::Dw, offset: 0, flags: MemFlags::default() };
    w.func.at_end(w.at).effect(store, [at, after], []);
}

/// Packets of random flows with random keys and operations. Even keys, if any, are never removed.
fn frames(count: usize, keys: u64, even: bool) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(11);
    let frame = |_| {
        let (src, dst) = (0x0a00_0000 + rng.below(64) as u32, 0xc000_0200 + rng.below(4) as u32);
        let mut frame =
            EthernetFrame { src: src.into(), dst: dst.into(), ..EthernetFrame::default() }.to_bytes();
        let key = rng.below(keys) as u32 | u32::from(!even);
        let least = if key.is_multiple_of(2) { TAKE + 1 } else { PUT };
        frame[KEY as usize..][..4].copy_from_slice(&key.to_le_bytes());
        frame[DEED as usize] = least as u8 + rng.below(4) as u8;
        frame
    };
    (0..count).map(frame).collect()
}

/// Records the packets that it gets.
#[derive(Default)]
struct Noted(Vec<u64>);

impl PacketSink for Noted {
    fn send(&mut self, _: &[u8], (origin, _): (u64, ArrivalMetadata), _: u32) -> io::Result<()> {
        self.0.push(origin);
        Ok(())
    }
}

fn run(engine: &mut NativeEngine, frames: &[Vec<u8>], count: u64, sink: &mut Noted) -> RunStats {
    let order: Vec<u32> = (0..frames.len() as u32).collect();
    let began = Mutex::new(Vec::new());
    let enter = |worker| {
        began.lock().expect("nobody panics").push(worker);
        Ok(())
    };
    let source = ReplaySource { frames, order: &order, count, stream: None };
    let ran = run_by(engine, &source, sink, PLAN, &WorkerHooks { enter: &enter }, None).expect("run");
    let mut began = began.into_inner().expect("nobody panics");
    began.sort_unstable();
    assert_eq!(began, (0..engine.workers()).collect::<Vec<_>>());
    ran
}

/// An engine for the program; a trie has the list template.
fn engine(kind: MapKind, entries: u32, template: HashTemplate) -> NativeEngine {
    let (module, func) = program(kind, entries);
    let mut options = NativeOptions { workers: WORKERS, ..NativeOptions::default() };
    match kind {
        MapKind::LpmTrie => options.tries.push(("table".into(), LpmTemplate::List)),
        _ => options.tables.push(("table".into(), template)),
    }
    NativeEngine::of_module(module, func, &options).expect("compiled")
}

fn words(engine: &mut NativeEngine, map: &str) -> Vec<u64> {
    let value = engine.map(map).expect("there").get(&[0; 4]).expect("an array");
    value.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

#[test]
fn packets_are_run_once_each_and_in_the_order_of_their_flows() {
    let mut engine = engine(MapKind::Hash, 64, HashTemplate::Open);
    let frames = frames(4096, 64, false);
    let mut noted = Noted::default();
    let ran = run(&mut engine, &frames, 50_000, &mut noted);
    assert_eq!((ran.account.received, ran.account.transmitted), (50_000, 50_000));
    let mut last = std::collections::BTreeMap::new();
    for &origin in &noted.0 {
        let flow = flow_hash(&frames[origin as usize % frames.len()]);
        assert!(last.insert(flow, origin).is_none_or(|before| before < origin), "a flow is out of order");
    }
    noted.0.sort_unstable();
    assert_eq!(noted.0, (0..50_000).collect::<Vec<u64>>());
    assert_eq!(words(&mut engine, "all"), [50_000]);
    let mut shares = vec![0; WORKERS as usize];
    (0..50_000).for_each(|n| shares[worker_of(&frames[n % frames.len()], WORKERS) as usize] += 1);
    assert_eq!(words(&mut engine, "own"), shares, "each worker counts for itself");
}

#[test]
fn tables_that_all_change_at_once_are_whole_to_each() {
    // Entries move whenever a neighbour comes or goes. Few entries that evict each other, so that slots are
    // soon reused.
    for (kind, entries, keys, template) in [
        (MapKind::Hash, 512, 512, HashTemplate::Open),
        (MapKind::Hash, 448, 448, HashTemplate::RobinHood),
        (MapKind::LruHash, 32, 256, HashTemplate::Open),
        (MapKind::Hash, 1638, 1638, HashTemplate::Cuckoo),
        (MapKind::Hash, 448, 448, HashTemplate::RobinHoodKeys),
        (MapKind::LruHash, 32, 256, HashTemplate::OpenKeys),
        (MapKind::Hash, 1638, 1638, HashTemplate::CuckooKeys),
        (MapKind::Hash, 512, 512, HashTemplate::OpenSlots),
        (MapKind::Hash, 448, 448, HashTemplate::RobinHoodSlots),
        (MapKind::LruHash, 32, 256, HashTemplate::RobinHoodSlots),
        (MapKind::Hash, 1638, 1638, HashTemplate::CuckooSlots),
        (MapKind::LpmTrie, 40, 40, HashTemplate::Open),
    ] {
        let mut engine = engine(kind, entries, template);
        let even = kind != MapKind::LruHash;
        let bits: &[u8] = if kind == MapKind::LpmTrie { &[32, 0, 0, 0] } else { &[] };
        for key in (0..keys as u32).step_by(2).filter(|_| even) {
            let value = u64::from(key).wrapping_mul(FACTOR as u64).to_le_bytes();
            let key = [bits, &key.to_le_bytes()].concat();
            assert_eq!(engine.map("table").expect("there").update(&key, &value, 0, None), 0);
        }
        let frames = frames(8192, keys, even);
        let ran = run(&mut engine, &frames, 1_500_000, &mut Noted::default());
        let aborted = ran.account.dropped[DropReason::Aborted as usize];
        assert_eq!(aborted, 0, "{kind:?}, {template:?}: not found, or with a value of another key");
        assert!(ran.account.adds_up());
        assert_eq!(words(&mut engine, "all"), [1_500_000]);
        let table = engine.map("table").expect("there");
        let keys = table.keys();
        assert_eq!(keys.len(), table.len());
        for key in keys {
            let number = u32::from_le_bytes(key[bits.len()..].try_into().expect("four bytes"));
            let value = u64::from(number).wrapping_mul(FACTOR as u64).to_le_bytes().to_vec();
            assert_eq!(table.get(&key), Some(value));
        }
    }
}

/// Aborts a packet if two arrays do not hold the same number.
fn comparing() -> (Module, Func) {
    let mut module = Module::default();
    let both = ["first", "second"].map(|name| module.maps.push(declared(name, MapKind::Array, 8, 1)));
    let mut func = Function::new("p", Linkage::Program { prog_type: XDP });
    let entry = func.add_block();
    func.add_param(entry, Type::Ptr(Prov::Ctx));
    let mut w = Writing { func: &mut func, at: entry };
    let [first, second] = both.map(|map| {
        let at = w.value(Op::MapValueAddr { map, offset: 0 }, &[], Type::Ptr(Prov::MapValue(map)));
        w.value(load(Size::Dw, 0), &[at], Type::I64)
    });
    let same = w.branch(first, second);
    w.finish(0);
    w.at = same;
    w.finish(3);
    let func = module.funcs.push(func);
    (module, func)
}

#[test]
fn what_is_changed_beside_workers_is_changed_between_their_batches() {
    let (module, func) = comparing();
    let options = NativeOptions { workers: WORKERS, ..NativeOptions::default() };
    let mut engine = NativeEngine::of_module(module, func, &options).expect("compiled");
    let frames = frames(4096, 64, false);
    let order: Vec<u32> = (0..frames.len() as u32).collect();
    let source = ReplaySource { frames: &frames, order: &order, count: u64::MAX, stream: None };
    let (mut changes, mut received) = (0u64, 0);
    // Until all workers have had thousands of batches since the first change.
    let mut attend = |floor: &Safepoint<'_>| {
        while !floor.is_over() {
            let board = floor.with(|engine| {
                changes += 1;
                for map in ["first", "second"] {
                    let set =
                        engine.map(map).expect("there").update(&[0; 4], &changes.to_le_bytes(), 0, None);
                    assert_eq!(set, 0);
                }
                engine.stats().clone()
            });
            let least = board
                .map_or(0, |b| b.workers().iter().map(|(account, _)| account.received).min().unwrap_or(0));
            received = received.max(least);
            if least > 100_000 && changes > 200 {
                floor.end();
            }
        }
    };
    let crew = WorkerHooks { enter: &|_| Ok(()) };
    let mut sink = Noted::default();
    let ran = run_by(&mut engine, &source, &mut sink, PLAN, &crew, Some(&mut attend)).expect("run");
    assert!(received > 100_000 && changes > 200, "{received} packets, {changes} changes");
    assert_eq!(ran.account.dropped[DropReason::Aborted as usize], 0, "half of a change was seen");
    assert!(ran.account.adds_up());
    let shown = engine.stats().workers().iter().map(|(account, _)| account.received).sum::<u64>();
    assert_eq!(shown, ran.account.received, "the board is exact behind the last batch");
    assert_eq!(words(&mut engine, "first"), [changes]);
}
