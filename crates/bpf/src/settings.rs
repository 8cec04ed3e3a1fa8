//! Loads of load-time settings become constants.
//!
//! This happens while an object is lifted, so that all that reads its IR, the prover too, sees the same
//! program: the one that runs with these settings.

use cranelift_entity::EntityRef;
use millstream_ir::{AluOp, Function, Inst, Map, Op, Type, Value, Width};
use millstream_isa::Size;
use millstream_object::{MapId, Object};

/// Addresses are followed through this many additions.
const MAX_CHAIN: usize = 16;

/// Replaces the loads of bytes that are [settled](Object::settle) by their values.
pub(crate) fn fold_settings(object: &Object, func: &mut Function) {
    if object.settled.is_empty() {
        return;
    }
    let order: Vec<Inst> = func.insts_in_order().map(|(_, inst)| inst).collect();
    for inst in order {
        let Some((result, value)) = func.result(inst).zip(settled_value(object, func, inst)) else {
            continue;
        };
        let data = &mut func.insts[inst];
        data.op = Op::Const { value };
        data.args.clear();
        if !func.types[result].is_int() {
            func.types[result] = Type::I64;
        }
    }
}

/// The value that a load gives, if it is known.
fn settled_value(object: &Object, func: &Function, inst: Inst) -> Option<i64> {
    let data = &func.insts[inst];
    let Op::Load { size, sext, offset, flags } = &data.op else { return None };
    if flags.core.is_some() || flags.volatile {
        return None;
    }
    let (map, base) = address(func, *data.args.first()?)?;
    let start = u32::try_from(base.checked_add(i64::from(*offset))?).ok()?;
    let map = MapId(u32::try_from(map.index()).ok()?);
    let bytes = object.settled_bytes(map, start, size.bytes())?;
    Some(loaded(object.byte_order().number(bytes), *size, *sext))
}

/// The byte of a map's value that an address is.
fn address(func: &Function, value: Value) -> Option<(Map, i64)> {
    let (mut at, mut distance) = (value, 0i64);
    for _ in 0..MAX_CHAIN {
        let inst = func.def_inst(at)?;
        match func.insts[inst].op {
            Op::MapValueAddr { map, offset } => return Some((map, distance.checked_add(offset.into())?)),
            Op::Alu { op: op @ (AluOp::Add | AluOp::Sub), width: Width::W64 } => {
                let args = &func.insts[inst].args;
                let by = func.as_const(*args.get(1)?)?;
                distance = distance.checked_add(if op == AluOp::Add { by } else { by.checked_neg()? })?;
                at = *args.first()?;
            }
            _ => return None,
        }
    }
    None
}

fn loaded(unsigned: u64, size: Size, sext: bool) -> i64 {
    let unused = 64 - size.bits();
    if sext { (unsigned << unused) as i64 >> unused } else { unsigned as i64 }
}
