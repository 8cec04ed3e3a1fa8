//! Keys in stack objects that other functions see, built by stores of all sizes.

use millstream_interp::MapKind;
use millstream_ir::{
    AluOp, BlockCall, Cond, Func, Function, Linkage, MapDecl, MemFlags, Module, Op, Prov, Size, SlotData,
    Type, Width,
};
use millstream_isa::helpers::id;
use millstream_native::{NativeEngine, NativeOptions, PacketBatch};
use millstream_rng::Rng;

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
const ENTRIES: u64 = 32;
/// Offset of the key in its object.
const WITHIN: i32 = 4;
const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];

/// Copies the bytes at the beginning of the packet to the stack, by stores of these sizes, has a function
/// flip the bits of the byte at `turned`, and looks up the result: the value, or 1.
fn program(key_size: u32, stores: &[(i32, Size)], turned: i32) -> (Module, Func) {
    let mut module = Module::default();
    let map = module.maps.push(MapDecl {
        name: "table".into(),
        kind: MapKind::Hash as u32,
        key_size,
        value_size: 8,
        max_entries: ENTRIES as u32,
        flags: 0,
        global: None,
        inner: None,
    });
    let flags = MemFlags::default();
    let load = |size, offset| Op::Load { size, sext: false, offset, flags };
    let mut turn = Function::new("turn", Linkage::Static);
    let block = turn.add_block();
    let key = turn.add_param(block, Type::Ptr(Prov::Stack));
    let mut at = turn.at_end(block);
    let byte = at.value(load(Size::B, turned), [key], Type::I64);
    let ones = at.iconst(0xff);
    let byte = at.value(Op::Alu { op: AluOp::Xor, width: Width::W64 }, [byte, ones], Type::I64);
    at.effect(Op::Store { size: Size::B, offset: turned, flags }, [key, byte], []);
    at.effect(Op::Return {}, [byte], []);
    let turn = module.funcs.push(turn);

    let mut func = Function::new("look", Linkage::Program { prog_type: XDP });
    let [entry, there, absent] = [(); 3].map(|()| func.add_block());
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let slot = func.slots.push(SlotData { size: 64, align: 8, fixed: None });
    let mut at = func.at_end(entry);
    let packet = at.value(load(Size::W, 0), [ctx], Type::Ptr(Prov::Packet));
    let key = at.value(Op::StackAddr { slot, offset: WITHIN }, [], Type::Ptr(Prov::Stack));
    for &(offset, size) in stores {
        let part = at.value(load(size, offset), [packet], Type::I64);
        at.effect(Op::Store { size, offset, flags }, [key, part], []);
    }
    at.value(Op::Call { func: turn }, [key], Type::Any);
    let table = at.value(Op::MapAddr { map }, [], Type::Ptr(Prov::Map(map)));
    let value =
        at.value(Op::Helper { id: id::MAP_LOOKUP_ELEM }, [table, key], Type::Ptr(Prov::MapValueOrNull(map)));
    let null = at.iconst(0);
    let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
    at.effect(branch, [value, null], [BlockCall::new(there), BlockCall::new(absent)]);
    let mut at = func.at_end(there);
    let verdict = at.value(load(Size::Dw, 0), [value], Type::Any);
    at.effect(Op::Return {}, [verdict], []);
    let mut at = func.at_end(absent);
    let verdict = at.iconst(1);
    at.effect(Op::Return {}, [verdict], []);
    let func = module.funcs.push(func);
    (module, func)
}

/// Stores that cover this many bytes, some of them twice.
fn stores(rng: &mut Rng, key_size: u32) -> Vec<(i32, Size)> {
    let (mut stores, mut at) = (Vec::new(), 0);
    let mut drawn = |left: u32| loop {
        let size = SIZES[rng.below(4) as usize];
        if size.bytes() <= left {
            return size;
        }
    };
    while at < key_size {
        let size = drawn(key_size - at);
        stores.push((at as i32, size));
        at += size.bytes();
    }
    let size = drawn(key_size);
    stores.push(((key_size - size.bytes()) as i32, size));
    stores
}

#[test]
fn keys_in_pieces_are_found_whoever_sees_them() {
    let mut rng = Rng::new(3);
    for key_size in [1, 2, 3, 4, 6, 8, 11, 13, 16, 20, 37, 40] {
        let turned = rng.below(u64::from(key_size)) as usize;
        let (module, func) = program(key_size, &stores(&mut rng, key_size), turned as i32);
        for passes in [false, true] {
            let options = NativeOptions { passes, ..NativeOptions::default() };
            let mut engine = NativeEngine::of_module(module.clone(), func, &options).expect("compiled");
            let mut batch = PacketBatch::new(ENTRIES as usize).expect("memory");
            let table = engine.map("table").expect("there");
            for entry in 0..ENTRIES {
                let mut frame: Vec<u8> = (0..64).map(|_| rng.below(256) as u8).collect();
                frame[0] = entry as u8;
                let mut key = frame[..key_size as usize].to_vec();
                key[turned] ^= 0xff;
                if entry % 2 == 0 {
                    assert_eq!(table.update(&key, &(entry + 2).to_le_bytes(), 0, None), 0);
                }
                assert!(batch.push(&frame, 1));
            }
            engine.run(&mut batch);
            for entry in 0..ENTRIES as u32 {
                let expected = if entry % 2 == 0 { entry + 2 } else { 1 };
                assert_eq!(batch.verdict(entry as usize), expected, "{key_size} bytes, {passes}, {entry}");
            }
        }
    }
}
