//! Contract of a global function with the programs that replace it once it is loaded.
//!
//! A program of type `freplace` may change packet data, or sleep, only if the function that it replaces does
//! so somewhere: the kernel looks at all instructions of it and of its callees, before it looks at their
//! reachability (`check_cfg` in `kernel/bpf/verifier.c`). A call that is never made is there to declare that.
//! Passes see through such a call; this module checks that the result still declares the same as the
//! original.

use std::collections::BTreeSet;

use millstream_isa::helpers::{Helper, HelperEffects, id};
use millstream_object::{Linkage, Object, ObjectFunction, RelocKind};

const CALL: u8 = 0x85;
/// Helpers that may sleep.
const SLEEPING: [i32; 4] =
    [id::COPY_FROM_USER, id::IMA_INODE_HASH, id::COPY_FROM_USER_TASK, id::IMA_FILE_HASH];

/// Effects that a function and all its callees may have on their callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct EffectSummary {
    changes_packet: bool,
    /// A kernel function that is called may be one that sleeps.
    sleeps: bool,
}

impl EffectSummary {
    fn and(self, other: EffectSummary) -> EffectSummary {
        EffectSummary {
            changes_packet: self.changes_packet || other.changes_packet,
            sleeps: self.sleeps || other.sleeps,
        }
    }

    fn keep(self, original: EffectSummary) -> bool {
        (self.changes_packet || !original.changes_packet) && (self.sleeps || !original.sleeps)
    }
}

/// Global functions that an object has before and after, and whose contract has changed.
pub(crate) fn changed_contracts(before: &Object, after: &Object) -> Vec<u32> {
    let global = |f: &ObjectFunction| f.linkage != Linkage::Static && !f.hidden && f.subprogram;
    let functions = before.functions.iter().enumerate().filter(|(_, f)| global(f));
    let lost = functions.filter(|&(n, _)| !marks(after, n).keep(marks(before, n)));
    lost.map(|(n, _)| n as u32).collect()
}

/// Functions that a function refers to, including itself.
pub(crate) fn reachable_functions(object: &Object, function: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([function]);
    let mut work = vec![function];
    while let Some(n) = work.pop() {
        for r in &object.functions[n].relocs {
            if let RelocKind::Call(to) | RelocKind::FuncAddr(to) = r.kind
                && found.insert(to.index())
            {
                work.push(to.index());
            }
        }
    }
    found
}

fn marks(object: &Object, function: usize) -> EffectSummary {
    let own = reachable_functions(object, function).into_iter().map(|n| own_marks(&object.functions[n]));
    own.fold(EffectSummary::default(), EffectSummary::and)
}

fn own_marks(f: &ObjectFunction) -> EffectSummary {
    let helpers = f.insns.iter().filter(|i| i.code == CALL && i.src == 0);
    let helpers = helpers.map(|i| EffectSummary {
        changes_packet: Helper::get(i.imm)
            .is_none_or(|h| h.may_change_packet() || h.effects.intersects(HelperEffects::TAIL_CALL)),
        sleeps: SLEEPING.contains(&i.imm),
    });
    let externs = f
        .relocs
        .iter()
        .filter(|r| matches!(r.kind, RelocKind::Extern(_)) && f.insns[r.insn as usize].code == CALL);
    let externs = externs.map(|_| EffectSummary { changes_packet: true, sleeps: true });
    helpers.chain(externs).fold(EffectSummary::default(), EffectSummary::and)
}
