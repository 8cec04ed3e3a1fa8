//! Attach targets of programs, for kinds of which the kernel wants one at load: a BTF id of vmlinux.

use millstream_btf::{KindTag, TypeId};
use millstream_object::{AttachType, ProgramType, SectionKind};

use crate::error::ProgramError;
use crate::kernel_types::KernelTypes;

/// The BTF id of a program's target, if it attaches by one.
pub(crate) fn target(kind: &SectionKind, section: &str) -> Result<Option<TypeId>, ProgramError> {
    match kind.program_type {
        ProgramType::STRUCT_OPS => {
            let what =
                format!("section {section:?}: struct_ops programs are loaded with their map, by libbpf");
            return Err(ProgramError::Unsupported(what));
        }
        ProgramType::EXT => {
            let what = format!("section {section:?}: a program extension needs the program that it extends");
            return Err(ProgramError::Unsupported(what));
        }
        ProgramType::UNSPEC => {
            let what = format!("section {section:?} does not say what type of program this is");
            return Err(ProgramError::Unsupported(what));
        }
        _ if !kind.attach_btf => return Ok(None),
        _ => {}
    }
    let Some(name) = &kind.target else {
        let what = format!("section {section:?} does not name the function that it attaches to");
        return Err(ProgramError::Target(what));
    };
    let types = KernelTypes::running()?;
    let (prefix, tag) = convention(kind);
    // Sections may name a module before a colon (`fentry/module:function`).
    if name.contains(':') {
        return Err(ProgramError::Unsupported(format!("{name:?}: targets in modules")));
    }
    let wanted = format!("{prefix}{name}");
    match types.btf().find(tag, &wanted) {
        Some(id) => Ok(Some(id)),
        None => Err(ProgramError::Target(format!("this kernel's BTF has no {wanted}"))),
    }
}

/// Prefix and kind of the kernel's names for the targets of a kind.
fn convention(kind: &SectionKind) -> (&'static str, KindTag) {
    match (kind.program_type, kind.attach_type) {
        (ProgramType::TRACING, Some(AttachType::TRACE_RAW_TP)) => ("btf_trace_", KindTag::Typedef),
        (ProgramType::TRACING, Some(AttachType::TRACE_ITER)) => ("bpf_iter_", KindTag::Func),
        (ProgramType::LSM, _) => ("bpf_lsm_", KindTag::Func),
        _ => ("", KindTag::Func),
    }
}
