//! Feature probes: what this kernel lets this process do, found out by doing it.
//!
//! Each probe works on throw-away objects, in a network namespace of its own where one is needed, and leaves
//! nothing behind.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use millstream_isa::MapType;

use crate::error::{KernelError, Result};
use crate::iface::{create_veth, set_up_pair};
use crate::link::{Link, XdpMode};
use crate::load::{LoadError, ProgramSpec};
use crate::map::{KernelMap, MapSpec};
use crate::netns::Namespace;
use crate::program::KernelProgram;
use crate::sys;
use crate::tc::{TcFilter, add_clsact, remove_empty_clsact};
use crate::testrun::TestRun;
use crate::types::{AttachType, ProgramType};

/// The outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// It works.
    Yes,
    /// It does not, for this reason.
    No(String),
    /// The kernel refuses it to this process (`EPERM`, `EACCES`), so its abilities stay unknown.
    Forbidden(String),
}

impl ProbeOutcome {
    /// Returns true if it works.
    pub fn is_yes(&self) -> bool {
        *self == ProbeOutcome::Yes
    }

    fn of<T>(result: Result<T>) -> Self {
        match result {
            Ok(_) => ProbeOutcome::Yes,
            Err(e) if matches!(e.errno(), Some(libc::EPERM | libc::EACCES)) => {
                ProbeOutcome::Forbidden(e.to_string())
            }
            Err(e) => ProbeOutcome::No(e.to_string()),
        }
    }
}

/// `r0 = value; exit`.
fn constant(value: i32) -> [u64; 2] {
    let mov = u64::from_ne_bytes(slot(0xb7, value));
    [mov, u64::from_ne_bytes(slot(0x95, 0))]
}

fn slot(code: u8, imm: i32) -> [u8; 8] {
    let i = imm.to_ne_bytes();
    [code, 0, 0, 0, i[0], i[1], i[2], i[3]]
}

/// Loads the XDP program that gives `verdict` for every packet.
///
/// # Errors
/// If BPF is not permitted.
pub fn constant_xdp(verdict: i32) -> std::result::Result<KernelProgram, LoadError> {
    KernelProgram::load(&ProgramSpec {
        name: "constant",
        program_type: ProgramType::XDP,
        insns: &constant(verdict),
        license: "GPL",
        ..ProgramSpec::default()
    })
}

/// Tests if maps may be made and XDP programs loaded.
pub fn bpf() -> ProbeOutcome {
    let map = MapSpec {
        name: "probe",
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        ..MapSpec::default()
    };
    ProbeOutcome::of(KernelMap::create(&map).and_then(|_| constant_xdp(2).map_err(refused)))
}

/// Tests if the instructions of version 4 are known: sign extension in moves and loads, byte swaps, signed
/// division, long jumps (Linux 6.6 and later).
pub fn instruction_set_v4() -> ProbeOutcome {
    let insns = [
        [0xb7, 0, 0, 0, 7, 0, 0, 0],
        // r0 = (s8)r0; r0 = bswap16 r0; r0 s/= 3; gotol +0
        [0xbf, 0, 8, 0, 0, 0, 0, 0],
        [0xd7, 0, 0, 0, 16, 0, 0, 0],
        [0x37, 0, 1, 0, 3, 0, 0, 0],
        [0x06, 0, 0, 0, 0, 0, 0, 0],
        // *(u64 *)(r10 - 8) = r0; r0 = *(s8 *)(r10 - 8)
        [0x7b, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],
        [0x91, 0xa0, 0xf8, 0xff, 0, 0, 0, 0],
        [0xb7, 0, 0, 0, 2, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    loads(&insns)
}

/// Tests if there are atomic instructions that give the old value, exchange, and compare and exchange (Linux
/// 5.12 and later).
pub fn fetching_atomics() -> ProbeOutcome {
    let insns = [
        [0xb7, 0, 0, 0, 2, 0, 0, 0],
        // *(u64 *)(r10 - 8) = r0; r0 = atomic_fetch_add((u64 *)(r10 - 8), r0)
        [0x7b, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],
        [0xdb, 0x0a, 0xf8, 0xff, 0x01, 0, 0, 0],
        [0xb7, 0, 0, 0, 2, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    loads(&insns)
}

/// Tests if XDP programs may ask for the coarse monotonic clock (`bpf_ktime_get_coarse_ns`, Linux 5.11 and
/// later).
pub fn coarse_clock() -> ProbeOutcome {
    let insns = [
        // call bpf_ktime_get_coarse_ns
        [0x85, 0, 0, 0, 160, 0, 0, 0],
        [0xb7, 0, 0, 0, 2, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    loads(&insns)
}

/// Tests if the verifier knows that a lookup of a constant index below the size of an array finds an entry,
/// so that its result need not be tested (Linux 6.14 and later).
pub fn elided_null_checks() -> ProbeOutcome {
    let map = MapSpec {
        name: "probe",
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 8,
        max_entries: 2,
        ..MapSpec::default()
    };
    let map = match KernelMap::create(&map) {
        Ok(map) => map,
        Err(e) => return ProbeOutcome::of(Err::<(), _>(e)),
    };
    let fd = map.as_fd().as_raw_fd().to_ne_bytes();
    let insns = [
        // *(u32 *)(r10 - 8) = 1; r1 = map ll; r2 = r10 - 8
        [0x62, 0x0a, 0xf8, 0xff, 1, 0, 0, 0],
        [0x18, 0x11, 0, 0, fd[0], fd[1], fd[2], fd[3]],
        [0; 8],
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
        [0x07, 2, 0, 0, 0xf8, 0xff, 0xff, 0xff],
        // call bpf_map_lookup_elem; r0 = *(u64 *)(r0 + 0)
        [0x85, 0, 0, 0, 1, 0, 0, 0],
        [0x79, 0, 0, 0, 0, 0, 0, 0],
        [0xb7, 0, 0, 0, 2, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    loads(&insns)
}

/// Tests if an XDP program of these instructions, in little-endian order, is accepted.
fn loads(insns: &[[u8; 8]]) -> ProbeOutcome {
    let insns: Vec<u64> = insns.iter().map(|&slot| u64::from_le_bytes(slot)).collect();
    let program = KernelProgram::load(&ProgramSpec {
        name: "probe",
        program_type: ProgramType::XDP,
        insns: &insns,
        license: "GPL",
        ..ProgramSpec::default()
    });
    ProbeOutcome::of(program.map_err(refused))
}

/// Tests if objects can be enumerated and opened by id, which adoption and the search for map writers need.
pub fn enumeration() -> ProbeOutcome {
    ProbeOutcome::of(crate::info::map_ids().and_then(|ids| {
        // Maps of other processes may be gone by the time they are opened.
        let mut opened = ids.into_iter().rev().map(|id| KernelMap::from_id(id).map(drop));
        opened.find(|map| !matches!(map, Err(e) if e.errno() == Some(libc::ENOENT))).unwrap_or(Ok(()))
    }))
}

/// Tests if veth runs XDP natively.
pub fn native_xdp_on_veth() -> ProbeOutcome {
    ProbeOutcome::of(in_veth(|ifindex| {
        let program = constant_xdp(2).map_err(refused)?;
        Link::attach_xdp(&program, ifindex, XdpMode::Native).map(drop)
    }))
}

/// Tests if TC programs attach by a filter of a clsact queueing discipline.
pub fn clsact() -> ProbeOutcome {
    ProbeOutcome::of(in_veth(|ifindex| {
        let program = KernelProgram::load(&ProgramSpec {
            name: "probe",
            program_type: ProgramType::SCHED_CLS,
            insns: &constant(0),
            license: "GPL",
            ..ProgramSpec::default()
        });
        let program = program.map_err(refused)?;
        add_clsact(ifindex)?;
        TcFilter::attach(&program, ifindex, AttachType::TCX_INGRESS)?.detach()?;
        remove_empty_clsact(ifindex)
    }))
}

/// Tests if TC programs attach by link (Linux 6.6 and later).
pub fn tcx() -> ProbeOutcome {
    ProbeOutcome::of(in_veth(|ifindex| {
        let program = KernelProgram::load(&ProgramSpec {
            name: "probe",
            program_type: ProgramType::SCHED_CLS,
            insns: &constant(0),
            license: "GPL",
            ..ProgramSpec::default()
        });
        let program = program.map_err(refused)?;
        Link::attach_tcx(&program, ifindex, AttachType::TCX_INGRESS).map(drop)
    }))
}

/// Tests if test runs can send live frames.
pub fn live_frames() -> ProbeOutcome {
    ProbeOutcome::of(constant_xdp(1).map_err(refused).and_then(|program| {
        program.test_run(&TestRun { data: &[0; 64], live_frames: true, batch: 1, ..TestRun::default() })
    }))
}

/// Tests if the processor's counters can be read (`perf_event_open` of cycles).
pub fn hardware_counters() -> ProbeOutcome {
    ProbeOutcome::of(sys::open_cycle_counter())
}

/// Tests if the kernel carries its own BTF.
pub fn kernel_btf() -> ProbeOutcome {
    let path = "/sys/kernel/btf/vmlinux";
    ProbeOutcome::of(
        std::fs::metadata(path).map_err(|source| KernelError::Read { path: path.to_owned(), source }),
    )
}

/// The mount points of BPF file systems.
///
/// # Errors
/// If /proc is not mounted.
pub fn bpf_filesystems() -> Result<Vec<String>> {
    let text = read(Path::new("/proc/self/mounts"))?;
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind) = (words.next()?, words.next()?);
            (kind == "bpf").then(|| at.to_owned())
        })
        .collect())
}

/// Returns true if a path is on a BPF file system, so that an object can be pinned there.
///
/// # Errors
/// If there is no such path, or it may not be seen.
pub fn on_bpf_filesystem(path: &Path) -> Result<bool> {
    /// `BPF_FS_MAGIC` of `include/uapi/linux/magic.h`.
    const MAGIC: i64 = 0xcafe_4a11;
    Ok(sys::file_system(path)? == MAGIC)
}

/// A number from /proc/sys, such as `net/core/bpf_jit_enable`.
///
/// # Errors
/// If there is no such file, or it holds no number.
pub fn sysctl(name: &str) -> Result<i64> {
    let path = Path::new("/proc/sys").join(name);
    let text = read(&path)?;
    text.trim().parse().map_err(|_| {
        KernelError::argument(
            format!("reading {}", path.display()),
            format!("{:?} is not a number", text.trim()),
        )
    })
}

/// The kernel's lockdown: `none`, `integrity`, `confidentiality`, or `unknown` where securityfs does not say.
pub fn lockdown() -> String {
    let text = read(Path::new("/sys/kernel/security/lockdown")).unwrap_or_default();
    let chosen = text.split('[').nth(1).and_then(|t| t.split(']').next());
    chosen.unwrap_or("unknown").to_owned()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|source| KernelError::Read { path: path.to_string_lossy().into_owned(), source })
}

fn in_veth(f: impl FnOnce(u32) -> Result<()> + Send) -> Result<()> {
    Namespace::new()?.enter(|| {
        let ends = create_veth("probe0", "probe1", 1)?;
        set_up_pair(ends)?;
        f(ends.0)
    })?
}

fn refused(e: LoadError) -> KernelError {
    match e {
        LoadError::Refused(e) => e,
        LoadError::Rejected(r) => KernelError::argument("loading a probe", r.to_string()),
    }
}
