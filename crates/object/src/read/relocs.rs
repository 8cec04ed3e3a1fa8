//! References of instructions: from ELF relocations, and from calls that the assembler resolved.

use crate::codes::{
    CALL, LD_IMM64, PSEUDO_BTF_ID, PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_KFUNC_CALL, PSEUDO_MAP_FD,
    PSEUDO_MAP_VALUE, R_64_32, R_64_64,
};
use crate::elf::{ElfRelocation, ElfSymbol, STT_SECTION};
use crate::ids::{FuncId, RelocKind};
use crate::image::SymbolReference;
use crate::model::{ExternKind, Object, Reloc};
use crate::read::{externs, functions, jump_tables};
use millstream_isa::RawInsn;
use rustc_hash::FxHashSet;

/// A function with a relocation that is not understood is kept as it is.
pub(crate) fn read_relocations(object: &mut Object) {
    let count = object.elf().sections.len();
    for n in 0..count {
        let s = &object.elf().sections[n];
        let target = s.info as usize;
        if s.is_relocations() && object.elf().sections.get(target).is_some_and(|t| t.is_code()) {
            match object.elf().relocations(n) {
                Ok(relocations) => relocations.iter().for_each(|r| read_relocation(object, target, r)),
                Err(e) => object.freeze(e),
            }
        }
    }
    read_resolved_references(object);
    for n in 0..object.functions.len() {
        let f = &mut object.functions[n];
        f.relocs.sort_by_key(|r| r.insn);
        if let Some(w) = f.relocs.windows(2).find(|w| w[0].insn == w[1].insn) {
            let what = format!("slot {} has two relocations", w[0].insn);
            object.keep(FuncId(n as u32), what, false);
        }
    }
}

fn read_relocation(object: &mut Object, section: usize, r: &ElfRelocation) {
    let Some(id) = functions::function_around(object, section, r.offset / 8) else {
        return; // in instructions that belong to no function
    };
    if jump_tables::note_table_reference(object, id, r) {
        return;
    }
    if let Err(what) = read_reference(object, id, r) {
        let slot = r.offset / 8 - u64::from(object.functions[id.index()].start);
        object.keep(id, format!("relocation at slot {slot}: {what}"), false);
    }
}

fn read_reference(object: &mut Object, id: FuncId, r: &ElfRelocation) -> Result<(), String> {
    if !r.offset.is_multiple_of(8) {
        return Err("no instruction starts there".into());
    }
    let f = &object.functions[id.index()];
    let at = (r.offset / 8) as u32 - f.start;
    let insn = f.insns[at as usize];
    let symbol = &object.elf().symbols[r.symbol];
    let addend = i64::from(insn.imm).wrapping_add(r.addend);
    let expected = if insn.code == CALL { R_64_32 } else { R_64_64 };
    let referent = match insn.code {
        _ if f.relocs.iter().rev().take(2).any(|old| old.insn == at) => {
            return Err("it has another already".into());
        }
        LD_IMM64 | CALL if r.kind != expected => return Err(format!("it is of kind {}", r.kind)),
        LD_IMM64 if at as usize + 1 == f.insns.len() => {
            return Err("the function ends inside ld_imm64".into());
        }
        LD_IMM64 if let Some(map) = object.image.extern_maps.get(&r.symbol) => {
            RelocReferent::Known(RelocKind::Map(*map))
        }
        LD_IMM64 | CALL if symbol.is_undefined() => extern_of(object, r.symbol),
        CALL if insn.src == PSEUDO_CALL => callee(object, symbol, addend)?,
        LD_IMM64 => address(object, symbol, addend)?,
        code => return Err(format!("the instruction there, of opcode {code:#04x}, refers to nothing")),
    };
    let kind = match referent {
        RelocReferent::Known(kind) => kind,
        RelocReferent::NewExtern => externs::add_unknown_extern(object, r.symbol),
    };
    object.image.forms.entry(kind).or_insert(SymbolReference { symbol: r.symbol, immediate: insn.imm });
    put(object, id, at, kind);
    Ok(())
}

fn extern_of(object: &Object, symbol: usize) -> RelocReferent {
    match object.image.externs_by_symbol.get(&symbol) {
        Some(id) => RelocReferent::Known(RelocKind::Extern(*id)),
        None => RelocReferent::NewExtern,
    }
}

fn callee(object: &Object, symbol: &ElfSymbol, addend: i64) -> Result<RelocReferent, String> {
    let section = symbol.section().ok_or("the symbol called is in no section")?;
    let slot = (symbol.value as i64 / 8).wrapping_add(addend).wrapping_add(1);
    let slot = u64::try_from(slot).map_err(|_| "the call leads out of the section")?;
    let found = functions::function_at(object, section, slot)
        .or_else(|| functions::function_at(object, section, symbol.value / 8));
    let name = &symbol.name;
    let func = found.ok_or_else(|| format!("no function starts where the call leads ({name})"))?;
    Ok(RelocReferent::Known(RelocKind::Call(func)))
}

/// Object whose address the `ld_imm64` of a symbol loads.
fn address(object: &Object, symbol: &ElfSymbol, addend: i64) -> Result<RelocReferent, String> {
    let name = &symbol.name;
    let section = symbol.section().ok_or_else(|| format!("{name} is in no section"))?;
    let place = (symbol.value as i64).wrapping_add(addend);
    if object.elf().sections[section].is_code() {
        let func = u64::try_from(place).ok().and_then(|p| functions::function_at(object, section, p / 8));
        let func = func.ok_or_else(|| format!("no function starts at {name}{addend:+#x}"))?;
        return Ok(RelocReferent::Known(RelocKind::FuncAddr(func)));
    }
    let arena = object.image.arena.filter(|(n, _)| *n == section).map(|(_, map)| map);
    if let Some(map) = object.image.data_maps.get(&section).copied().or(arena) {
        let size = object.elf().sections[section].size;
        let offset = u32::try_from(place).ok().filter(|o| u64::from(*o) <= size);
        let offset = offset.ok_or_else(|| format!("{name}{addend:+#x} lies outside its section"))?;
        return Ok(RelocReferent::Known(RelocKind::MapValue { map, offset }));
    }
    let at = |place: u64| object.image.maps_by_place.get(&(section, place)).copied();
    // libbpf ignores the addend of an instruction on a map's own symbol.
    let named = || if symbol.kind() == STT_SECTION { None } else { at(symbol.value) };
    let map = u64::try_from(place).ok().and_then(at).or_else(named);
    let map = map.ok_or_else(|| {
        let section = &object.elf().sections[section].name;
        format!("{name} in section {section} is neither a map nor global data")
    })?;
    Ok(RelocReferent::Known(RelocKind::Map(map)))
}

/// Calls and function addresses of the same section that need no relocation.
fn read_resolved_references(object: &mut Object) {
    for n in 0..object.functions.len() {
        let (section, id) = (object.image.function_sections[n], FuncId(n as u32));
        let f = &object.functions[n];
        let known: FxHashSet<u32> = f.relocs.iter().map(|r| r.insn).collect();
        let mut found = Vec::new();
        for (at, insn) in f.insns.iter().enumerate() {
            let at = at as u32;
            let call = insn.code == CALL && insn.src == PSEUDO_CALL;
            let address = insn.code == LD_IMM64 && insn.src == PSEUDO_FUNC;
            if !call && !address || known.contains(&at) {
                continue;
            }
            let slot = i64::from(f.start) + i64::from(at) + 1 + i64::from(insn.imm);
            let target = u64::try_from(slot).ok().and_then(|s| functions::function_at(object, section, s));
            let kind = target.map(|t| if call { RelocKind::Call(t) } else { RelocKind::FuncAddr(t) });
            found.push((at, kind));
        }
        for (at, kind) in found {
            match kind {
                Some(kind) => put(object, id, at, kind),
                None => object.keep(id, format!("no function starts where slot {at} leads"), false),
            }
        }
    }
}

/// Adds a relocation, and normalises its instruction.
fn put(object: &mut Object, id: FuncId, at: u32, kind: RelocKind) {
    let code = object.functions[id.index()].insns[at as usize].code;
    let (src, offset) = pseudo(object, kind, code);
    let f = &mut object.functions[id.index()];
    f.relocs.push(Reloc { insn: at, kind });
    normalise(&mut f.insns, at as usize, src, offset);
}

enum RelocReferent {
    Known(RelocKind),
    NewExtern,
}

/// The pseudo source register of an instruction that refers to `kind`, and the high half of its constant.
pub(crate) fn pseudo(object: &Object, kind: RelocKind, code: u8) -> (u8, u32) {
    match kind {
        RelocKind::Extern(_) if code == CALL => (PSEUDO_KFUNC_CALL, 0),
        RelocKind::Map(_) => (PSEUDO_MAP_FD, 0),
        RelocKind::MapValue { offset, .. } => (PSEUDO_MAP_VALUE, offset),
        RelocKind::Call(_) => (PSEUDO_CALL, 0),
        RelocKind::FuncAddr(_) => (PSEUDO_FUNC, 0),
        RelocKind::Extern(e) => match object.externs.get(e.index()).map(|e| e.kind) {
            Some(ExternKind::Ksym { type_id: Some(_) }) => (PSEUDO_BTF_ID, 0),
            Some(ExternKind::Kconfig { offset, .. }) => (PSEUDO_MAP_VALUE, offset),
            _ => (0, 0),
        },
    }
}

/// Puts the pseudo register in place and clears the rest.
pub(crate) fn normalise(insns: &mut [RawInsn], at: usize, src: u8, offset: u32) {
    let insn = &mut insns[at];
    (insn.src, insn.imm) = (src, 0);
    if insn.code == LD_IMM64
        && let Some(next) = insns.get_mut(at + 1)
    {
        next.imm = offset as i32;
    }
}
