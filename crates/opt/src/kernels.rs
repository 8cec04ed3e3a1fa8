//! The oldest kernel that can load an object, by the features that the object uses.
//!
//! Only certain evidence counts: an instruction, a helper, a kind of map or program that older kernels lack.
//! An answer that is too old costs code that is a little longer; one that is too new would cost acceptance.

use millstream_isa::generation::VerifierGeneration;
use millstream_isa::{Callee, Insn, Operand, Reg, Width, decode_all};
use millstream_object::{EntryProgram, FuncId, Object, RelocKind};

/// Sections of programs that kernels before a generation do not have, by how their names begin.
const NEW_SECTIONS: &[(&str, VerifierGeneration)] = &[
    ("syscall", VerifierGeneration::V6_1),
    ("kprobe.multi", VerifierGeneration::V6_1),
    ("kretprobe.multi", VerifierGeneration::V6_1),
    ("lsm_cgroup", VerifierGeneration::V6_1),
    ("netfilter", VerifierGeneration::V6_12),
    ("tcx/", VerifierGeneration::V6_12),
    ("netkit/", VerifierGeneration::V6_12),
    ("uprobe.multi", VerifierGeneration::V6_12),
    ("uretprobe.multi", VerifierGeneration::V6_12),
    ("kprobe.session", VerifierGeneration::V6_12),
    ("cgroup/connect_unix", VerifierGeneration::V6_12),
    ("cgroup/sendmsg_unix", VerifierGeneration::V6_12),
    ("cgroup/recvmsg_unix", VerifierGeneration::V6_12),
    ("cgroup/getsockname_unix", VerifierGeneration::V6_12),
    ("cgroup/getpeername_unix", VerifierGeneration::V6_12),
    ("uprobe.session", VerifierGeneration::V6_18),
    ("fsession", VerifierGeneration::V7_2),
];

/// The oldest generation that can load every program of an object.
pub fn oldest_kernel(object: &Object) -> VerifierGeneration {
    let insns = object.functions.iter().filter_map(|f| decode_all(&f.insns).ok()).flatten();
    let by_insns = insns.map(|(_, insn)| VerifierGeneration::needed_by(insn).max(needed_by_call(insn)));
    let by_maps = object.maps.iter().map(|m| with(|g| g.has_map_type(m.spec.map_type.0)));
    let relocs = object.functions.iter().flat_map(|f| &f.relocs);
    let by_relocs = relocs.map(|r| match r.kind {
        // Callbacks and kernel functions came with Linux 5.13.
        RelocKind::FuncAddr(_) => VerifierGeneration::V6_1,
        _ => VerifierGeneration::OLDEST,
    });
    let by_programs =
        object.programs.iter().map(|p| needed_by_section(p).max(needed_by_stores(object, p.func)));
    by_insns.chain(by_maps).chain(by_relocs).chain(by_programs).max().unwrap_or(VerifierGeneration::OLDEST)
}

/// The oldest generation with a property; the newest if none has it.
fn with(has: impl Fn(VerifierGeneration) -> bool) -> VerifierGeneration {
    VerifierGeneration::ALL.into_iter().find(|&g| has(g)).unwrap_or(VerifierGeneration::NEWEST)
}

fn needed_by_call(insn: Insn) -> VerifierGeneration {
    match insn {
        Insn::Call(Callee::Helper(id)) => {
            u32::try_from(id).map_or(VerifierGeneration::OLDEST, |id| with(|g| g.has_helper(id)))
        }
        Insn::Call(Callee::Kfunc { .. }) => VerifierGeneration::V6_1,
        _ => VerifierGeneration::OLDEST,
    }
}

fn needed_by_section(program: &EntryProgram) -> VerifierGeneration {
    let section = program.section.trim_start_matches('?');
    let new = NEW_SECTIONS.iter().filter(|(name, _)| section.starts_with(name));
    new.map(|&(_, generation)| generation).max().unwrap_or(VerifierGeneration::OLDEST)
}

/// The generation that takes the constants which a program stores into its context without a register. The
/// context is followed from the program's entry as far as control cannot come from elsewhere.
fn needed_by_stores(object: &Object, func: FuncId) -> VerifierGeneration {
    let Some(Ok(insns)) = object.functions.get(func.index()).map(|f| decode_all(&f.insns)) else {
        return VerifierGeneration::OLDEST;
    };
    let mut context = [false; 11];
    context[Reg::R1.index()] = true;
    for (_, insn) in insns {
        match insn {
            Insn::Store { dst, src: Operand::Imm(_), .. } if context[dst.index()] => {
                return with(VerifierGeneration::stores_context_immediates);
            }
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
                context[dst.index()] = context[src.index()];
            }
            Insn::Call(_) => context[..=Reg::R5.index()].fill(false),
            Insn::Alu { dst, .. }
            | Insn::Mov { dst, .. }
            | Insn::MovSx { dst, .. }
            | Insn::Neg { dst, .. }
            | Insn::Swap { dst, .. }
            | Insn::LoadImm64 { dst, .. }
            | Insn::Load { dst, .. } => context[dst.index()] = false,
            // On a path around the next instructions, registers may hold something else.
            Insn::Exit | Insn::Jump { .. } => return VerifierGeneration::OLDEST,
            _ => {}
        }
    }
    VerifierGeneration::OLDEST
}
