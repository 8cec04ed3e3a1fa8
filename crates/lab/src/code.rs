//! The laboratory's own programs: assembled from text, with the maps they use filled in.

use std::os::fd::{AsFd, AsRawFd};

use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{
    ArrayMapping, AttachType, KernelMap, KernelProgram, ProgramSpec, ProgramType, shared_memory,
};

use crate::error::{Error, Result};

/// Assembles and loads an XDP program.
pub(crate) fn xdp(name: &'static str, text: &str) -> Result<KernelProgram> {
    xdp_as(name, text, AttachType::XDP, 0)
}

/// Assembles and loads an XDP program with this attach type and these flags.
pub(crate) fn xdp_as(
    name: &'static str,
    text: &str,
    attach: AttachType,
    flags: u32,
) -> Result<KernelProgram> {
    let insns = assemble(text).map_err(|source| Error::Assemble { name, source })?;
    let slots: Vec<u64> = encode_all(&insns).iter().map(|raw| u64::from_ne_bytes(raw.to_bytes())).collect();
    let spec = ProgramSpec {
        name,
        program_type: ProgramType::XDP,
        expected_attach: attach,
        insns: &slots,
        license: "GPL",
        flags,
        ..ProgramSpec::default()
    };
    KernelProgram::load(&spec).map_err(|source| Error::Load { name, source })
}

/// The text of the address of byte `offset` of a map of one element.
pub(crate) fn value(map: &KernelMap, offset: usize) -> String {
    format!("map[fd:{}][0]+{offset}", map.as_fd().as_raw_fd())
}

/// Memory that programs and this process share: an array of one element.
pub(crate) fn shared(name: &str, bytes: usize) -> Result<(KernelMap, ArrayMapping)> {
    Ok(shared_memory(name, bytes.next_multiple_of(8))?)
}

/// Text that copies `len` bytes from `*(from + from_off)` to `*to`, in moves as wide as fit, through `via`.
pub(crate) fn copy(to: &str, from: &str, from_off: usize, via: &str, len: usize) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < len {
        let width = [8, 4, 2, 1].into_iter().find(|w| at + w <= len).unwrap_or(1);
        let bits = 8 * width;
        text += &format!("{via} = *(u{bits} *)({from} +{})\n", from_off + at);
        text += &format!("*(u{bits} *)({to} +{at}) = {via}\n");
        at += width;
    }
    text
}

/// Text that copies a frame that ends at `r3` in words, then in bytes: between `r2`, which points into it,
/// and `r8`. Copies at most `longest` bytes (to seven more). Uses r4 and r5.
pub(crate) fn copy_frame(to: &str, from: &str, longest: usize) -> String {
    let piece = |bytes: usize, otherwise: &str| {
        let check = format!("r4 = r2\nr4 += {bytes}\nif r4 > r3 goto {otherwise}\n");
        check + &copy(to, from, 0, "r5", bytes) + &format!("r2 += {bytes}\nr8 += {bytes}\n")
    };
    let mut text = piece(8, "rest").repeat(longest / 8);
    // Frames longer than the buffer are cut here.
    text += &format!("{}rest:\n", if longest.is_multiple_of(8) { "goto whole\n" } else { "" });
    text += &piece(1, "whole").repeat(7);
    text += "whole:\n";
    text
}
