//! Faults of a run.

/// Why a program cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An access outside of any object.
    #[error("{} of {size} bytes at {addr:#x}: {why}", if *.write { "write" } else { "read" })]
    Access {
        /// The address.
        addr: u64,
        /// Bytes.
        size: u64,
        /// A write.
        write: bool,
        /// The violation.
        why: &'static str,
    },
    /// A write to the frame pointer.
    #[error("r10 is read-only")]
    FramePointer,
    /// A jump to a slot where no instruction starts.
    #[error("jump to slot {0}, where no instruction starts")]
    Jump(i64),
    /// Control fell off the end.
    #[error("the program ends without exit")]
    End,
    /// A helper that is not modelled.
    #[error("helper {} is not modelled", helper_name(*.0))]
    Helper(i32),
    /// A kernel function that is not modelled.
    #[error("kernel function of BTF id {0} is not modelled")]
    Kfunc(i32),
    /// A helper was called with an argument that the verifier would have refused.
    #[error("helper {}: {why}", helper_name(*.id))]
    Argument {
        /// The helper.
        id: i32,
        /// The violation.
        why: &'static str,
    },
    /// An address that is not the address of a function.
    #[error("{0:#x} is not the address of a function")]
    Function(u64),
    /// More than 8 nested calls.
    #[error("more than 8 frames")]
    Depth,
    /// The instruction budget is spent.
    #[error("more than {0} instructions executed")]
    Fuel(u64),
    /// A reference that the program was not linked against.
    #[error("ld_imm64 refers to {0}, which was not linked")]
    Unlinked(&'static str),
    /// A map type that is not modelled.
    #[error("maps of type {0} are not modelled")]
    MapKind(u32),
    /// An operation of this kind of instruction that is not modelled.
    #[error("`{0}` is not modelled")]
    Instruction(&'static str),
}

fn helper_name(id: i32) -> String {
    millstream_isa::helpers::Helper::get(id).map_or_else(|| format!("#{id}"), |h| format!("bpf_{}", h.name))
}

/// A fault with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("program {program}, slot {slot}: {fault}")]
pub struct ExecutionError {
    /// Index of the program.
    pub program: usize,
    /// Slot of the instruction.
    pub slot: usize,
    /// The fault.
    pub fault: Fault,
}
