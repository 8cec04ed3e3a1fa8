//! A program with a look-up, for tests and for figures.

use millstream_ir::{
    Block, BlockCall, Cond, Func, FuncCursor, Function, Linkage, MapDecl, MemFlags, Module, Op, Prov, Size,
    Type, Value, Width,
};
use millstream_isa::helpers::id;

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;

/// A program that looks up the key at the beginning of the packet, in a table of this declaration. On a hit
/// `found` continues, with packet and value's address, and gives the verdict; on a miss the verdict is 1.
pub(crate) fn look_up(
    table: MapDecl,
    found: impl FnOnce(&mut FuncCursor<'_>, Value, Value) -> Value,
) -> (Module, Func) {
    let mut module = Module::default();
    let map = module.maps.push(table);
    let mut func = Function::new("look", Linkage::Program { prog_type: XDP });
    let [entry, there, absent] = [(); 3].map(|()| func.add_block());
    let ctx = func.add_param(entry, Type::Ptr(Prov::Ctx));
    let load = Op::Load { size: Size::W, sext: false, offset: 0, flags: MemFlags::default() };
    let mut at = func.at_end(entry);
    let packet = at.value(load, [ctx], Type::Ptr(Prov::Packet));
    let address = at.value(Op::MapAddr { map }, [], Type::Ptr(Prov::Map(map)));
    let value = at.value(
        Op::Helper { id: id::MAP_LOOKUP_ELEM },
        [address, packet],
        Type::Ptr(Prov::MapValueOrNull(map)),
    );
    let null = at.iconst(0);
    let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
    at.effect(branch, [value, null], [BlockCall::new(there), BlockCall::new(absent)]);
    answer(&mut func, there, |at| found(at, packet, value));
    answer(&mut func, absent, |at| at.iconst(1));
    let func = module.funcs.push(func);
    (module, func)
}

fn answer(func: &mut Function, block: Block, verdict: impl FnOnce(&mut FuncCursor<'_>) -> Value) {
    let mut at = func.at_end(block);
    let verdict = verdict(&mut at);
    at.effect(Op::Return {}, [verdict], []);
}

/// The value's first eight bytes.
pub(crate) fn word(at: &mut FuncCursor<'_>, value: Value) -> Value {
    let load = Op::Load { size: Size::Dw, sext: false, offset: 0, flags: MemFlags::default() };
    at.value(load, [value], Type::Any)
}
