//! Instructions of an object with the names of their targets, and their source lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use millstream_object::{Object, ObjectFunction, instruction_texts};

/// The instructions of a function, each source line before its first instruction.
pub(super) fn text(object: &Object, function: &ObjectFunction) -> String {
    let lines: BTreeMap<usize, (u32, &str)> = match &object.btf {
        Some(btf) => {
            function.line_info.iter().map(|l| (l.insn as usize, (l.line, btf.str(l.text)))).collect()
        }
        None => BTreeMap::new(),
    };
    let insns = match instruction_texts(object, &function.insns, &function.relocs) {
        Ok(insns) => insns,
        Err(error) => return format!("; {error}\n"),
    };
    let mut out = String::new();
    for (at, insn) in &insns {
        if let Some((line, text)) = lines.get(at) {
            let _ = writeln!(out, "; {line}: {}", text.trim());
        }
        let _ = writeln!(out, "{at:5}: {insn}");
    }
    out
}
