//! An object's count sketch, whose rows of counters are in one array, indexed by hashes of the packet: each
//! row is fetched ahead by look-ups as code, and counts are exact in every order of packets and stages.

use millstream_interp::MapKind;
use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, Function, KeyPiece, Linkage, MapDecl, MemFlags, Module, Op, Prov,
    Size, Type, Value, Width,
};
use millstream_native::{NativeEngine, NativeOptions, PacketBatch};
use millstream_rng::Rng;

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// Offset of the number whose packets are counted.
const KEY: i32 = 14;
const ROWS: u32 = 4;
/// Binary logarithm of the number of counters in a row.
const BITS: u32 = 6;
/// Multipliers of the rows' hashes.
const ODD: [u64; ROWS as usize] =
    [0x9e37_79b9_7f4a_7c15, 0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53, 0xd6e8_feb8_6659_fd93];

fn place(row: u32, key: u64) -> u32 {
    (row << BITS) + (key.wrapping_mul(ODD[row as usize]) >> (64 - BITS)) as u32
}

struct Writing {
    func: Function,
    at: Block,
}

impl Writing {
    fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        self.func.at_end(self.at).value(op, args.iter().copied(), ty)
    }

    fn alu(&mut self, op: AluOp, a: Value, b: i64) -> Value {
        let b = self.func.at_end(self.at).iconst(b);
        self.value(Op::Alu { op, width: Width::W64 }, &[a, b], Type::I64)
    }
}

fn load(size: Size, offset: i32) -> Op {
    Op::Load { size, sext: false, offset, flags: MemFlags::default() }
}

/// A program that adds one to a counter of each row.
fn program(kind: MapKind) -> (Module, Func) {
    let mut module = Module::default();
    let map = module.maps.push(MapDecl {
        name: "sketch".into(),
        kind: kind as u32,
        key_size: 4,
        value_size: 8,
        max_entries: ROWS << BITS,
        flags: 0,
        global: None,
        inner: None,
    });
    let mut func = Function::new("count", Linkage::Program { prog_type: XDP });
    let entry = func.add_block();
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let mut w = Writing { func, at: entry };
    let packet = w.value(load(Size::W, 0), &[ctx], Type::Ptr(Prov::Packet));
    let key = w.value(load(Size::Dw, KEY), &[packet], Type::I64);
    for row in 0..ROWS {
        let hash = w.alu(AluOp::Mul, key, ODD[row as usize] as i64);
        let place = w.alu(AluOp::Rsh, hash, i64::from(64 - BITS));
        let place = w.alu(AluOp::Add, place, i64::from(row << BITS));
        let piece = [KeyPiece { offset: 0, size: Size::W }].into_iter().collect();
        let look = Op::MapLookup { map, key: piece };
        let counter = w.value(look, &[place], Type::Ptr(Prov::MapValueOrNull(map)));
        let (there, on) = (w.func.add_block(), w.func.add_block());
        let mut at = w.func.at_end(w.at);
        let null = at.iconst(0);
        let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
        at.effect(branch, [counter, null], [BlockCall::new(there), BlockCall::new(on)]);
        w.at = there;
        let before = w.value(load(Size::Dw, 0), &[counter], Type::I64);
        let after = w.alu(AluOp::Add, before, 1);
        let mut at = w.func.at_end(there);
        let store = Op::Store { size: Size::Dw, offset: 0, flags: MemFlags::default() };
        at.effect(store, [counter, after], []);
        at.effect(Op::Jump {}, [], [BlockCall::new(on)]);
        w.at = on;
    }
    let mut at = w.func.at_end(w.at);
    let verdict = at.iconst(2);
    at.effect(Op::Return {}, [verdict], []);
    let func = module.funcs.push(w.func);
    (module, func)
}

#[test]
fn rows_of_an_objects_sketch_are_fetched_ahead_and_count_the_same() {
    let mut rng = Rng::new(11);
    let keys: Vec<u64> = (0..1000).map(|_| rng.below(50) * 0x0101_0101).collect();
    let mut expected = vec![0u64; (ROWS << BITS) as usize];
    for (row, key) in (0..ROWS).flat_map(|row| keys.iter().map(move |key| (row, *key))) {
        expected[place(row, key) as usize] += 1;
    }
    for kind in [MapKind::Array, MapKind::PercpuArray] {
        for (schedule, fetched) in [
            ("", false),
            ("from=0,trials=off,pattern=packets,distance=3", true),
            ("from=0,trials=off,pattern=groups,sub-batch=5,unroll=2", true),
            ("fetch=sketch,trials=off,pattern=pipelined-groups,sub-batch=4", true),
        ] {
            let (module, func) = program(kind);
            let schedule = schedule.parse().expect("a schedule");
            let options = NativeOptions { schedule, keep_text: true, ..NativeOptions::default() };
            let mut engine = NativeEngine::of_module(module, func, &options).expect("compiled");
            let table = &engine.schedule.tables[0];
            assert_eq!((table.table.as_str(), table.fetched), ("sketch", fetched), "{}", table.why);
            let text = &engine.texts.as_ref().expect("kept").before;
            let fetches = text.matches("call void @ahead0x1(").count();
            assert_eq!(fetches, if fetched { ROWS as usize } else { 0 }, "one a row");
            let mut batch = PacketBatch::new(64).expect("memory");
            for keys in keys.chunks(64) {
                batch.clear();
                for key in keys {
                    let mut frame = vec![0; 64];
                    frame[KEY as usize..KEY as usize + 8].copy_from_slice(&key.to_le_bytes());
                    assert!(batch.push(&frame, 1));
                }
                engine.run(&mut batch);
            }
            let map = engine.map("sketch").expect("there");
            let mut counter = |at: u32| map.get(&at.to_le_bytes()).expect("arrays are full");
            let word = |value: Vec<u8>| u64::from_le_bytes(value.try_into().expect("eight bytes"));
            let found: Vec<u64> = (0..ROWS << BITS).map(|at| word(counter(at))).collect();
            assert_eq!(found, expected, "{kind:?}");
        }
    }
}
