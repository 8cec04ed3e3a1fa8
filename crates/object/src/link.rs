//! One program as the kernel takes it: its function, then every function it reaches, in one vector.
//!
//! The order is libbpf's: when a function that is not there yet is referred to, it is appended, and its own
//! references follow before those after it.

use crate::codes::LD_IMM64;
use crate::error::ObjectError;
use crate::ids::{FuncId, RelocKind};
use crate::model::{CoreRelo, LineInfo, LinkedProgram, Object, Reloc};
use rustc_hash::FxHashMap;

/// A reference between functions, to be put in place once all have theirs.
struct PendingReference {
    insn: u32,
    target: FuncId,
}

/// Links the program whose function is `program`.
pub(crate) fn link(object: &Object, program: FuncId) -> Result<LinkedProgram, ObjectError> {
    let mut linked = LinkedProgram::default();
    let mut starts: FxHashMap<FuncId, u32> = FxHashMap::default();
    let mut pending = Vec::new();
    // Functions whose references are still to be followed: the last is next, as in a recursion.
    let mut stack = vec![append(object, program, &mut linked, &mut starts, &mut pending)?.into_iter()];
    while let Some(references) = stack.last_mut() {
        match references.next() {
            None => {
                stack.pop();
            }
            Some(target) if starts.contains_key(&target) => {}
            Some(target) => {
                stack.push(append(object, target, &mut linked, &mut starts, &mut pending)?.into_iter());
            }
        }
    }
    for PendingReference { insn, target } in pending {
        let distance = i64::from(starts[&target]) - i64::from(insn) - 1;
        linked.insns[insn as usize].imm = distance as i32; // programs are far shorter than 2^31
    }
    drop_partial_info(&mut linked);
    Ok(linked)
}

/// Appends a function; gives the functions it refers to, in order.
fn append(
    object: &Object,
    id: FuncId,
    linked: &mut LinkedProgram,
    starts: &mut FxHashMap<FuncId, u32>,
    pending: &mut Vec<PendingReference>,
) -> Result<Vec<FuncId>, ObjectError> {
    let f = &object.functions[id.index()];
    if f.removed {
        let what = "it has been removed, and is still referred to".to_owned();
        return Err(ObjectError::BadFunction { function: f.name.clone(), insn: 0, what });
    }
    if let Some(kept) = f.kept.as_ref().filter(|kept| !kept.loadable) {
        let what = kept.reason.clone();
        return Err(ObjectError::NotUnderstood { function: f.name.clone(), what });
    }
    let start = linked.insns.len() as u32;
    starts.insert(id, start);
    linked.functions.push((start, id));
    linked.insns.extend(&f.insns);
    linked.func_info.extend(f.type_id.map(|t| (start, t)));
    linked.line_info.extend(f.line_info.iter().map(|l| LineInfo { insn: start + l.insn, ..*l }));
    linked.core_relos.extend(f.core_relos.iter().map(|c| CoreRelo { insn: start + c.insn, ..*c }));
    let mut references = Vec::new();
    for r in &f.relocs {
        let insn = start + r.insn;
        match r.kind {
            RelocKind::Call(target) | RelocKind::FuncAddr(target) => {
                pending.push(PendingReference { insn, target });
                references.push(target);
            }
            kind => linked.relocs.push(Reloc { insn, kind }),
        }
    }
    Ok(references)
}

/// The kernel wants function and line information of every function or of none.
fn drop_partial_info(linked: &mut LinkedProgram) {
    if linked.func_info.len() < linked.functions.len() {
        linked.func_info.clear();
    }
    let lined = |start: u32| linked.line_info.binary_search_by_key(&start, |l| l.insn).is_ok();
    if !linked.functions.iter().all(|(start, _)| lined(*start)) {
        linked.line_info.clear();
    }
    let insns = &linked.insns;
    // A line cannot begin at the second half of a 64-bit constant.
    let inside =
        |l: &LineInfo| l.insn > 0 && insns.get(l.insn as usize - 1).is_some_and(|i| i.code == LD_IMM64);
    linked.line_info.retain(|l| !inside(l));
}
