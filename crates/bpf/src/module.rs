//! Whole objects: an [`Object`] lifted to a [`Module`](ir::Module), and lowered functions given back to it.

use std::collections::BTreeMap;

use cranelift_entity::{EntityRef, PrimaryMap};
use millstream_ir as ir;
use millstream_isa::encode_all;
use millstream_isa::helpers::id;
use millstream_object as obj;
use millstream_object::{MapOrigin, NewFunction, Object, RelocKind};
use rustc_hash::FxHashMap;

use crate::lift::{self, BytecodeFunction, LiftError, RelocTarget, Signature, UnliftedFunctions};
use crate::lower::LoweredFunction;
use crate::settings::fold_settings;

/// A module with the tables that tie it to its object. Functions, maps and externs have the object's numbers;
/// maps beyond those of the object are templates of inner maps.
#[derive(Clone, Debug, Default)]
pub struct LiftedModule {
    /// The module.
    pub module: ir::Module,
    /// Line records that `loc` of an instruction points into, with the function they come from.
    pub lines: Vec<obj::LineInfo>,
    /// CO-RE relocations by the module's numbers.
    pub cores: Vec<obj::CoreRelo>,
    /// Functions that have no body because they, or functions that they refer to, are not understood.
    pub left: UnliftedFunctions,
}

/// The module's number of a function of the object.
pub fn func(id: obj::FuncId) -> ir::Func {
    ir::Func::new(id.index())
}

/// The module's number of a map of the object.
pub fn map(id: obj::MapId) -> ir::Map {
    ir::Map::new(id.index())
}

/// Lifts all functions of an object.
///
/// # Errors
/// [`LiftError`] for bytecode that no verifier would accept, and for code that is not understood.
pub fn lift_object(object: &Object) -> Result<LiftedModule, LiftError> {
    let lifted = lift_supported(object);
    let own = lifted.left.values().find(|why| !why.dependent);
    own.cloned().map_or(Ok(lifted), Err)
}

/// Lifts the functions of an object for one of its programs. Functions that it cannot reach are without a
/// body if they cannot be lifted.
///
/// # Errors
/// [`LiftError`] if the program, a function that it calls, or a program that it may reach by a tail call
/// cannot be lifted.
pub fn lift_program(object: &Object, program: ir::Func) -> Result<LiftedModule, LiftError> {
    let lifted = lift_supported(object);
    let has_tail_calls = lifted.module.funcs.values().any(makes_tail_calls);
    let is_needed =
        |f: ir::Func| f == program || has_tail_calls && object.programs.iter().any(|p| func(p.func) == f);
    let missing = lifted.left.iter().find(|(f, _)| is_needed(**f)).map(|(_, why)| why.clone());
    missing.map_or(Ok(lifted), Err)
}

/// Returns true if a function makes a tail call.
pub fn makes_tail_calls(function: &ir::Function) -> bool {
    let is_tail_call = |inst| matches!(function.insts[inst].op, ir::Op::Helper { id: id::TAIL_CALL });
    function.insts_in_order().any(|(_, inst)| is_tail_call(inst))
}

/// Lifts the functions of an object that can be, but for those that depend on others: see
/// [`LiftedModule::left`].
pub fn lift_supported(object: &Object) -> LiftedModule {
    let mut lifted = LiftedModule::default();
    lifted.module.name = object.name.clone();
    declare_maps(object, &mut lifted.module);
    for e in &object.externs {
        let kind = match e.kind {
            obj::ExternKind::Kfunc { .. } => ir::ExternKind::Kfunc,
            obj::ExternKind::Kconfig { .. } => ir::ExternKind::Kconfig,
            obj::ExternKind::Ksym { .. } | obj::ExternKind::Unknown => ir::ExternKind::Ksym,
        };
        lifted.module.externs.push(ir::ExternDecl { name: e.name.clone(), kind, weak: e.weak });
    }
    let taken = addresses_taken(object);
    let mut sources = PrimaryMap::new();
    for (i, f) in object.functions.iter().enumerate() {
        let in_data = object.is_in_data(obj::FuncId(i as u32));
        let mut source = source(object, f, taken[i] || in_data, &mut lifted);
        if in_data && source.linkage == ir::Linkage::Static {
            source.linkage = ir::Linkage::Hidden;
        }
        sources.push(source);
    }
    let extern_args = |e: ir::Extern| extern_args(object, e.index());
    for (i, f) in object.functions.iter().enumerate() {
        let reason = object.frozen.as_ref().or(f.kept.as_ref().map(|kept| &kept.reason));
        lifted.left.extend(reason.map(|what| {
            let function = f.name.clone();
            (ir::Func::new(i), LiftError { function, slot: 0, what: what.clone(), dependent: false })
        }));
    }
    lift::lift_supported_functions(&mut sources, &mut lifted.module, &extern_args, &mut lifted.left);
    lifted.module.funcs.values_mut().for_each(|func| fold_settings(object, func));
    lifted
}

fn declare_maps(object: &Object, module: &mut ir::Module) {
    let mut templates = Vec::new();
    for m in &object.maps {
        let global = match m.origin {
            MapOrigin::Data => Some(ir::GlobalData::Data),
            MapOrigin::Rodata => Some(ir::GlobalData::Rodata),
            MapOrigin::Bss => Some(ir::GlobalData::Bss),
            MapOrigin::Kconfig => Some(ir::GlobalData::Kconfig),
            _ => None,
        };
        let mut decl = declaration(&m.name, &m.spec);
        decl.global = global;
        decl.inner = m.inner.as_ref().map(|inner| {
            templates.push(declaration(&format!("{}.inner", m.name), inner));
            ir::Map::new(object.maps.len() + templates.len() - 1)
        });
        module.maps.push(decl);
    }
    for t in templates {
        module.maps.push(t);
    }
}

fn declaration(name: &str, spec: &obj::MapDefinition) -> ir::MapDecl {
    ir::MapDecl {
        name: name.to_string(),
        kind: spec.map_type.0,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags,
        global: None,
        inner: None,
    }
}

fn addresses_taken(object: &Object) -> Vec<bool> {
    let mut taken = vec![false; object.functions.len()];
    for f in &object.functions {
        for r in &f.relocs {
            if let RelocKind::FuncAddr(id) = r.kind
                && let Some(t) = taken.get_mut(id.index())
            {
                *t = true;
            }
        }
    }
    taken
}

fn source(
    object: &Object,
    f: &obj::ObjectFunction,
    address_taken: bool,
    lifted: &mut LiftedModule,
) -> BytecodeFunction {
    let base = lifted.lines.len() as u32;
    lifted.lines.extend_from_slice(&f.line_info);
    let lines: BTreeMap<u32, u32> =
        f.line_info.iter().enumerate().map(|(i, l)| (l.insn, base + i as u32)).collect();
    let mut cores = FxHashMap::default();
    for c in &f.core_relos {
        let core = lifted.module.cores.push(ir::CoreDecl { index: lifted.cores.len() as u32 });
        lifted.cores.push(*c);
        cores.insert(c.insn, core);
    }
    let syms = f.relocs.iter().map(|r| (r.insn, symbol(r.kind))).collect();
    let linkage = linkage(object, f);
    let declared_args = match linkage {
        ir::Linkage::Global => f.type_id.and_then(|id| prototype_args(object, id)),
        _ => None,
    };
    BytecodeFunction {
        name: f.name.clone(),
        linkage,
        insns: f.insns.clone(),
        syms,
        cores,
        lines,
        declared_args,
        address_taken,
    }
}

fn symbol(kind: RelocKind) -> RelocTarget {
    match kind {
        RelocKind::Map(id) => RelocTarget::Map(map(id)),
        RelocKind::MapValue { map: id, offset } => RelocTarget::MapValue(map(id), offset),
        RelocKind::Call(id) | RelocKind::FuncAddr(id) => RelocTarget::Func(func(id)),
        RelocKind::Extern(id) => RelocTarget::Extern(ir::Extern::new(id.index())),
    }
}

fn linkage(object: &Object, f: &obj::ObjectFunction) -> ir::Linkage {
    if !f.subprogram {
        let program = object.programs.iter().find(|p| object.functions.get(p.func.index()) == Some(f));
        return ir::Linkage::Program { prog_type: program.map_or(0, |p| p.kind.program_type.0) };
    }
    match f.linkage {
        obj::Linkage::Static => ir::Linkage::Static,
        obj::Linkage::Global if f.hidden => ir::Linkage::Hidden,
        obj::Linkage::Global | obj::Linkage::Weak => ir::Linkage::Global,
    }
}

fn prototype_args(object: &Object, id: millstream_btf::TypeId) -> Option<u8> {
    let proto = object.btf.as_ref()?.prototype(id).ok()?;
    u8::try_from(proto.params.len()).ok().filter(|n| *n <= 5)
}

/// Arguments of a kernel function, by its declaration in the object.
fn extern_args(object: &Object, index: usize) -> u8 {
    match object.externs.get(index).map(|e| e.kind) {
        Some(obj::ExternKind::Kfunc { type_id }) => {
            prototype_args(object, type_id).unwrap_or(Signature::UNKNOWN)
        }
        _ => Signature::UNKNOWN,
    }
}

/// A lowered function in the form that [`Object::replace_function`] takes.
pub fn new_function(lifted: &LiftedModule, code: &LoweredFunction) -> NewFunction {
    let relocs = code.syms.iter().map(|&(insn, sym)| obj::Reloc { insn, kind: reloc_kind(code, insn, sym) });
    let core_relos = code.cores.iter().map(|&(insn, core)| {
        let index = lifted.module.cores[core].index as usize;
        obj::CoreRelo { insn, ..lifted.cores[index] }
    });
    let line_info = code
        .lines
        .iter()
        .filter_map(|&(insn, rec)| lifted.lines.get(rec as usize).map(|l| obj::LineInfo { insn, ..*l }));
    NewFunction {
        insns: encode_all(&code.insns),
        relocs: relocs.collect(),
        line_info: line_info.collect(),
        core_relos: core_relos.collect(),
    }
}

fn reloc_kind(code: &LoweredFunction, slot: u32, sym: RelocTarget) -> RelocKind {
    let id = |n: usize| n as u32;
    match sym {
        RelocTarget::Map(m) => RelocKind::Map(obj::MapId(id(m.index()))),
        RelocTarget::MapValue(m, offset) => RelocKind::MapValue { map: obj::MapId(id(m.index())), offset },
        RelocTarget::Extern(e) => RelocKind::Extern(obj::ExternId(id(e.index()))),
        RelocTarget::Func(f) => {
            let f = obj::FuncId(id(f.index()));
            if code.is_call(slot) { RelocKind::Call(f) } else { RelocKind::FuncAddr(f) }
        }
    }
}
