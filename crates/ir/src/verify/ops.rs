//! Checks of single instructions: counts of arguments, entities, attributes, plausible types.

use cranelift_entity::EntityRef;

use crate::entities::*;
use crate::func::{Function, Linkage};
use crate::module::Module;
use crate::op::{KeyLayout, MemFlags, Op};
use crate::op_group;
use crate::types::{Prov, Type};
use crate::{Size, Width};

type VerifyResult = Result<(), String>;

/// Errors of an instruction whose structure (targets, values) is sound.
pub(super) fn check(func: &Function, module: &Module, inst: Inst) -> Vec<String> {
    let checks = [entities(func, module, inst), counts(func, module, inst), attributes(func, module, inst)];
    let mut messages: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    if messages.is_empty() {
        messages.extend(types(func, module, inst).err());
    }
    messages
}

fn exists<E: EntityRef + std::fmt::Display>(entity: E, len: usize) -> VerifyResult {
    if entity.index() < len { Ok(()) } else { Err(format!("{entity} does not exist")) }
}

fn entities(func: &Function, module: &Module, inst: Inst) -> VerifyResult {
    match &func.insts[inst].op {
        Op::CoreConst { core, .. } => exists(*core, module.cores.len()),
        Op::MapAddr { map }
        | Op::MapValueAddr { map, .. }
        | Op::MapLookup { map, .. }
        | Op::MapUpdate { map, .. }
        | Op::MapDelete { map, .. } => exists(*map, module.maps.len()),
        Op::FuncAddr { func } | Op::Call { func } => exists(*func, module.funcs.len()),
        Op::ExternAddr { ext } | Op::Kfunc { ext } => exists(*ext, module.externs.len()),
        Op::StackAddr { slot, .. } => exists(*slot, func.slots.len()),
        Op::TableMatch { table } => exists(*table, module.tables.len()),
        Op::Load { flags: MemFlags { core: Some(core), .. }, .. }
        | Op::Store { flags: MemFlags { core: Some(core), .. }, .. } => exists(*core, module.cores.len()),
        Op::Const { .. } | Op::Undef {} | Op::Verdict { .. } | Op::Helper { .. } | Op::CallIndirect {} => {
            Ok(())
        }
        op_group!(arithmetic) | op_group!(access) | op_group!(packet) | op_group!(terminator) => Ok(()),
    }
}

/// The least and greatest number of arguments.
fn arg_range(func: &Function, module: &Module, op: &Op) -> (usize, usize) {
    let exactly = |n| (n, n);
    match op {
        Op::MapLookup { key, .. } | Op::MapDelete { key, .. } => exactly(key.len()),
        Op::MapUpdate { key, value, .. } => exactly(key.len() + value.len() + 1),
        Op::TableMatch { table } => {
            exactly(module.tables.get(*table).map_or(0, |t| t.fields.iter().map(|f| f.words()).sum()))
        }
        Op::Call { func: callee } => exactly(module.funcs.get(*callee).map_or(0, param_count)),
        Op::Helper { .. } | Op::Kfunc { .. } => (0, 5),
        Op::CallIndirect {} => (1, 6),
        Op::LegacyLoad { .. } => (1, 2),
        Op::Return {} => (usize::from(func.returns), 1),
        _ => exactly(op.arg_names().len()),
    }
}

fn param_count(func: &Function) -> usize {
    func.layout.first().map_or(0, |&entry| func.blocks[entry].params.len())
}

fn counts(func: &Function, module: &Module, inst: Inst) -> VerifyResult {
    let data = &func.insts[inst];
    let (least, most) = arg_range(func, module, &data.op);
    let found = data.args.len();
    if (least..=most).contains(&found) {
        return Ok(());
    }
    match least == most {
        true => Err(format!("expected {least} arguments, found {found}")),
        false => Err(format!("expected {least} to {most} arguments, found {found}")),
    }
}

fn attributes(func: &Function, module: &Module, inst: Inst) -> VerifyResult {
    match &func.insts[inst].op {
        Op::Sext { bits, .. } if !matches!(bits, 8 | 16 | 32) => Err("expected 8, 16 or 32 bits".into()),
        Op::Swap { bits, .. } if !matches!(bits, 16 | 32 | 64) => Err("expected 16, 32 or 64 bits".into()),
        Op::MapLookup { map, key } | Op::MapDelete { map, key } => {
            layout_fits(key, module.maps.get(*map).map(|m| m.key_size), "key")
        }
        Op::MapUpdate { map, key, value } => {
            layout_fits(key, module.maps.get(*map).map(|m| m.key_size), "key")?;
            layout_fits(value, module.maps.get(*map).map(|m| m.value_size), "value")
        }
        Op::Call { func: callee } => callable(module, *callee),
        _ => Ok(()),
    }
}

fn callable(module: &Module, callee: Func) -> VerifyResult {
    match module.funcs.get(callee) {
        Some(f) if f.layout.is_empty() => Err(format!("{callee} has no body")),
        Some(f) if matches!(f.linkage, Linkage::Program { .. }) => Err(format!("{callee} is a program")),
        _ => Ok(()),
    }
}

/// Pieces must ascend without overlap and end within the key or value.
fn layout_fits(layout: &KeyLayout, size: Option<u32>, what: &str) -> VerifyResult {
    let mut end = 0;
    for piece in layout {
        let offset = u32::from(piece.offset);
        if offset < end {
            return Err(format!("pieces of the {what} overlap or descend at byte {offset}"));
        }
        end = offset + piece.size.bytes();
    }
    match size {
        Some(size) if end > size => Err(format!("the {what} has {size} bytes, its pieces end at {end}")),
        _ => Ok(()),
    }
}

fn types(func: &Function, module: &Module, inst: Inst) -> VerifyResult {
    let data = &func.insts[inst];
    let ty = data.result.expand().map_or(Type::Any, |v| func.types[v]);
    type_exists(ty, module)?;
    let is = |ok: bool, what: &str| match ok {
        true => Ok(()),
        false => Err(format!("its result cannot have type {ty:?}: {what}")),
    };
    match &data.op {
        Op::Const { value } => is(const_fits(*value, ty), "the constant is wider"),
        Op::Cmp { .. } => is(ty.is_int() || ty == Type::Any, "it is a truth value"),
        Op::MapAddr { map } => {
            is(matches!(ty, Type::Any | Type::I64) || ty == Type::Ptr(Prov::Map(*map)), "it is the map")
        }
        Op::StackAddr { .. } => {
            is(matches!(ty, Type::Any | Type::I64 | Type::Ptr(Prov::Stack)), "it is a stack address")
        }
        Op::Load { size, sext, .. } => is(load_fits(*size, *sext, ty), "the loaded value is wider"),
        Op::Alu { width: Width::W32, .. } | Op::Zext {} => {
            is(ty.prov().is_none(), "the high half is cut off")
        }
        Op::Select {} => {
            is(
                ty.int_bits().is_none_or(|bits| bits >= widest(func, &data.args[1..])),
                "its operands are wider",
            )?;
            truth(func, data.args[0])
        }
        _ => Ok(()),
    }
}

fn truth(func: &Function, value: Value) -> VerifyResult {
    match func.types[value] {
        Type::I1 => Ok(()),
        ty => Err(format!("{value} has type {ty:?}, expected a truth value")),
    }
}

/// The greatest width of the integers among the values that are known to be integers.
fn widest(func: &Function, values: &[Value]) -> u32 {
    values.iter().filter_map(|&v| func.types[v].int_bits()).filter(|&b| b < 64).max().unwrap_or(0)
}

fn type_exists(ty: Type, module: &Module) -> VerifyResult {
    match ty {
        Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map) | Prov::Map(map)) => {
            exists(map, module.maps.len())
        }
        _ => Ok(()),
    }
}

/// Narrow integers are held zero-extended, so the constant must be below two to the width.
fn const_fits(value: i64, ty: Type) -> bool {
    match ty.int_bits() {
        Some(bits) if bits < 64 => (value as u64) >> bits == 0,
        _ => true,
    }
}

fn load_fits(size: Size, sext: bool, ty: Type) -> bool {
    match ty.int_bits() {
        Some(bits) => bits >= if sext { 64 } else { 8 * size.bytes() },
        None => true,
    }
}
