//! Instructions as text, with the names of their targets.

use std::collections::BTreeMap;

use millstream_isa::disasm::{Symbols, disasm};
use millstream_isa::{Callee, DecodeError, Insn, Pseudo, RawInsn, decode_all};

use crate::{Object, Reloc, RelocKind};

struct ObjectSymbols<'a> {
    object: &'a Object,
    relocs: BTreeMap<usize, RelocKind>,
}

impl ObjectSymbols<'_> {
    fn name(&self, slot: usize) -> Option<String> {
        Some(match *self.relocs.get(&slot)? {
            RelocKind::Map(map) => format!("map[{}]", self.object.maps.get(map.index())?.name),
            RelocKind::MapValue { map, offset } => {
                let map = self.object.maps.get(map.index())?;
                let variable =
                    map.variables.iter().find(|v| v.offset <= offset && offset < v.offset + v.size);
                match variable {
                    Some(v) if v.offset == offset => format!("&{}", v.name),
                    Some(v) => format!("&{}+{}", v.name, offset - v.offset),
                    None => format!("&{}+{offset}", map.name),
                }
            }
            RelocKind::Call(func) | RelocKind::FuncAddr(func) => {
                self.object.functions.get(func.index())?.name.clone()
            }
            RelocKind::Extern(ext) => self.object.externs.get(ext.index())?.name.clone(),
        })
    }
}

impl Symbols for ObjectSymbols<'_> {
    fn constant(&self, at: usize, _: Pseudo, _: u64) -> Option<String> {
        self.name(at)
    }
}

/// The text of instructions of an object with these relocations, each with its slot.
///
/// # Errors
/// If they are no instructions.
pub fn instruction_texts(
    object: &Object,
    insns: &[RawInsn],
    relocs: &[Reloc],
) -> Result<Vec<(usize, String)>, DecodeError> {
    let relocs = relocs.iter().map(|r| (r.insn as usize, r.kind)).collect();
    let names = ObjectSymbols { object, relocs };
    let text = |(at, insn): &(usize, Insn)| {
        let callee = match insn {
            Insn::Call(Callee::Local(_) | Callee::Kfunc { .. } | Callee::Helper(_)) => names.name(*at),
            _ => None,
        };
        (*at, callee.map_or_else(|| disasm(insn, *at, &names), |callee| format!("call {callee}")))
    };
    let order = object.byte_order();
    let insns: Vec<RawInsn> = insns.iter().map(|insn| insn.with_host(order)).collect();
    Ok(decode_all(&insns)?.iter().map(text).collect())
}
