//! The laboratory's own programs: assembled from text, with the maps they use filled in.

use std::os::fd::{AsFd, AsRawFd};

use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::{Map, MapSpec, MapType, Mapping, Program, ProgramSpec, ProgramType, map_flags};

use crate::error::{Error, Result};

/// Assembles and loads an XDP program.
pub(crate) fn xdp(name: &'static str, text: &str, flags: u32) -> Result<Program> {
    let insns = assemble(text).map_err(|source| Error::Assemble { name, source })?;
    let slots: Vec<u64> = encode_all(&insns).iter().map(|raw| u64::from_ne_bytes(raw.to_bytes())).collect();
    let spec = ProgramSpec {
        name,
        program_type: ProgramType::XDP,
        insns: &slots,
        license: "GPL",
        flags,
        ..ProgramSpec::default()
    };
    Program::load(&spec).map_err(|source| Error::Load { name, source })
}

/// The text of the address of byte `offset` of a map of one element.
pub(crate) fn value(map: &Map, offset: usize) -> String {
    format!("map[fd:{}][0]+{offset}", map.as_fd().as_raw_fd())
}

/// Memory that programs and this process share: an array of one element.
pub(crate) fn shared(name: &str, bytes: usize) -> Result<(Map, Mapping)> {
    let value_size = u32::try_from(bytes.next_multiple_of(8))
        .map_err(|_| Error::Unusable(format!("{bytes} bytes of shared memory")))?;
    let map = Map::create(&MapSpec {
        name,
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size,
        max_entries: 1,
        flags: map_flags::MMAPABLE,
        ..MapSpec::default()
    })?;
    let mapping = map.mmap(true)?;
    Ok((map, mapping))
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
