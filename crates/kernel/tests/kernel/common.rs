//! Little programs, slot by slot, so that these tests depend on no assembler.

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, KernelProgram, MapSpec, ProgramSpec, ProgramType};
use std::os::fd::{AsFd, AsRawFd};

/// One slot.
pub(crate) fn slot(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    let (o, i) = (off.to_ne_bytes(), imm.to_ne_bytes());
    u64::from_ne_bytes([code, dst | src << 4, o[0], o[1], i[0], i[1], i[2], i[3]])
}

/// `rD = imm`.
pub(crate) fn mov(dst: u8, imm: i32) -> u64 {
    slot(0xb7, dst, 0, 0, imm)
}

/// `exit`.
pub(crate) fn exit() -> u64 {
    slot(0x95, 0, 0, 0, 0)
}

/// `rD = map` (two slots).
pub(crate) fn ld_map(dst: u8, map: &KernelMap) -> [u64; 2] {
    [slot(0x18, dst, 1, 0, map.as_fd().as_raw_fd()), 0]
}

/// Loads an XDP program.
pub(crate) fn xdp(name: &str, insns: &[u64]) -> KernelProgram {
    KernelProgram::load(&ProgramSpec {
        name,
        program_type: ProgramType::XDP,
        insns,
        license: "GPL",
        ..ProgramSpec::default()
    })
    .unwrap()
}

/// An XDP program that adds one to the 8 bytes at element 0 of an array for each packet whose first byte is 0
/// (which tells ours from the multicasts of an interface that comes up), and gives `verdict`.
pub(crate) fn counting_xdp(name: &str, counter: &KernelMap, verdict: i32) -> KernelProgram {
    let [lo, hi] = ld_map(1, counter);
    xdp(
        name,
        &[
            slot(0x61, 2, 1, 0, 0),   // r2 = data
            slot(0x61, 3, 1, 4, 0),   // r3 = data_end
            slot(0xbf, 4, 2, 0, 0),   // r4 = r2
            slot(0x07, 4, 0, 0, 1),   // r4 += 1
            slot(0x2d, 4, 3, 11, 0),  // if r4 > r3 goto out
            slot(0x71, 2, 2, 0, 0),   // r2 = *(u8 *)(r2 + 0)
            slot(0x55, 2, 0, 9, 0),   // if r2 != 0 goto out
            slot(0x62, 10, 0, -4, 0), // *(u32 *)(r10 - 4) = 0
            lo,
            hi,
            slot(0xbf, 2, 10, 0, 0),
            slot(0x07, 2, 0, 0, -4),
            slot(0x85, 0, 0, 0, 1), // map_lookup_elem
            slot(0x15, 0, 0, 2, 0), // if r0 == 0 goto out
            mov(1, 1),
            slot(0xdb, 0, 1, 0, 0), // lock *(u64 *)(r0 + 0) += r1
            mov(0, verdict),        // out:
            exit(),
        ],
    )
}

/// An array of `entries` values of `value_size` bytes.
pub(crate) fn array(name: &str, value_size: u32, entries: u32, flags: u32) -> KernelMap {
    map(MapType::ARRAY, name, 4, value_size, entries, flags)
}

/// A map.
pub(crate) fn map(
    map_type: MapType,
    name: &str,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> KernelMap {
    KernelMap::create(&MapSpec {
        name,
        map_type,
        key_size,
        value_size,
        max_entries,
        flags,
        ..MapSpec::default()
    })
    .unwrap()
}

/// Returns true if the kernel has the features of this release. If not, prints so.
pub(crate) fn since(major: u32, minor: u32, what: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let has = parts.next().zip(parts.next()) >= Some((major, minor));
    if !has {
        eprintln!("skipped: {what} came with Linux {major}.{minor}");
    }
    has
}
