//! A program that copies the value of a key into the packet.

use millstream_interp::MapKind;
use millstream_ir::{
    BlockCall, Cond, Func, FuncCursor, Function, KeyPiece, Linkage, MapDecl, MemFlags, Module, Op, Prov,
    Size, Type, Value, Width,
};
use millstream_native::{NativeEngine, NativeOptions, PacketBatch, VariantSupport};

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// Offsets in a packet: of the key, and of the value that the program writes there.
pub(crate) const KEY: usize = 14;
pub(crate) const VALUE: usize = 24;
/// Name of the table.
pub(crate) const TABLE: &str = "table";

fn load(at: &mut FuncCursor<'_>, base: Value, offset: usize, size: Size, ty: Type) -> Value {
    let op = Op::Load { size, sext: false, offset: offset as i32, flags: MemFlags::default() };
    at.value(op, [base], ty)
}

/// The program: the packet goes back with the value, or is dropped if there is none.
fn program(kind: MapKind, entries: u32) -> (Module, Func) {
    let mut module = Module::default();
    let map = module.maps.push(MapDecl {
        name: TABLE.to_owned(),
        kind: kind as u32,
        key_size: 4,
        value_size: 8,
        max_entries: entries,
        flags: 0,
        global: None,
        inner: None,
    });
    let mut func = Function::new("copy", Linkage::Program { prog_type: XDP });
    let [entry, found, absent] = [(); 3].map(|()| func.add_block());
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let mut at = func.at_end(entry);
    let packet = load(&mut at, ctx, 0, Size::W, Type::Ptr(Prov::Packet));
    let key = load(&mut at, packet, KEY, Size::W, Type::I32);
    let piece = KeyPiece { offset: 0, size: Size::W };
    let look = Op::MapLookup { map, key: [piece].into_iter().collect() };
    let value = at.value(look, [key], Type::Ptr(Prov::MapValueOrNull(map)));
    let null = at.iconst(0);
    let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
    at.effect(branch, [value, null], [BlockCall::new(found), BlockCall::new(absent)]);
    let mut at = func.at_end(found);
    let word = load(&mut at, value, 0, Size::Dw, Type::I64);
    let store = Op::Store { size: Size::Dw, offset: VALUE as i32, flags: MemFlags::default() };
    at.effect(store, [packet, word], []);
    let back = at.iconst(3);
    at.effect(Op::Return {}, [back], []);
    let mut at = func.at_end(absent);
    let drop = at.iconst(1);
    at.effect(Op::Return {}, [drop], []);
    let func = module.funcs.push(func);
    (module, func)
}

/// An engine for it that may be adapted.
pub(crate) fn engine(kind: MapKind, entries: u32, workers: u32) -> NativeEngine {
    let (module, func) = program(kind, entries);
    let options = NativeOptions { workers, variants: VariantSupport::Installed, ..NativeOptions::default() };
    NativeEngine::of_module(module, func, &options).expect("compiled")
}

/// Sets the value of a key.
pub(crate) fn set(engine: &mut NativeEngine, key: u32, value: u64) {
    let map = engine.map(TABLE).expect("the table");
    assert_eq!(map.update(&key.to_ne_bytes(), &value.to_ne_bytes(), 0, None), 0);
}

/// A packet with this key.
pub(crate) fn frame(key: u32) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[KEY..][..4].copy_from_slice(&key.to_ne_bytes());
    frame
}

/// A number in a packet.
pub(crate) fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The value that packet `at` of a batch has got; `None` if there was none.
pub(crate) fn value(batch: &PacketBatch, at: usize) -> Option<u64> {
    (batch.verdict(at) == 3).then(|| number(batch.bytes(at), VALUE))
}
