//! Information of the kernel about its objects: by descriptor, and lists of ids.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use millstream_isa::MapType;

use crate::error::{KernelError, Result};
use crate::sys::{self, GetId, GetInfo, PlainData, addr_mut, addr_of, name_from, uapi};
use crate::types::{AttachType, LinkType, ProgramType};

/// A map, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// Id.
    pub id: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// Type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value (of one CPU).
    pub value_size: u32,
    /// Elements at most.
    pub max_entries: u32,
    /// [`map_flags`](crate::map_flags).
    pub flags: u32,
    /// BTF object that the next two are ids in; 0 if none.
    pub btf_id: u32,
    /// BTF type of the key.
    pub btf_key_type: u32,
    /// BTF type of the value.
    pub btf_value_type: u32,
    /// Type-specific extra.
    pub extra: u64,
}

/// A program, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Id.
    pub id: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// Type.
    pub program_type: ProgramType,
    /// Hash of the instructions.
    pub tag: [u8; 8],
    /// Bytes of machine code over all functions; 0 if interpreted or hidden.
    pub jited_len: u32,
    /// Bytes of instructions after the kernel's rewrites.
    pub translated_len: u32,
    /// The maps that it holds.
    pub map_ids: Vec<u32>,
    /// Instructions that the verifier walked.
    pub verified_insns: u32,
    /// Nanoseconds run, while `bpf_stats` was on.
    pub run_time_ns: u64,
    /// Times run, while `bpf_stats` was on.
    pub run_count: u64,
    /// Runs skipped because the program was already running.
    pub recursion_misses: u64,
    /// Its BTF object; 0 if none.
    pub btf_id: u32,
    /// The function or hook that it attaches to, in BTF; 0 if none.
    pub attach_btf_id: u32,
    /// When it was loaded: nanoseconds since boot.
    pub load_time_ns: u64,
    /// True if its licence is compatible with the GPL.
    pub gpl_compatible: bool,
    /// User who loaded it.
    pub uid: u32,
}

/// A link, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Id.
    pub id: u32,
    /// Type.
    pub link_type: LinkType,
    /// The program attached.
    pub program_id: u32,
    /// Its target, for the types that this project uses.
    pub detail: LinkDetail,
}

/// Target of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkDetail {
    /// XDP hook of an interface (0 once the interface is gone), numbered in the link's own namespace.
    Xdp {
        /// Interface index.
        ifindex: u32,
    },
    /// TC hook of an interface.
    Tcx {
        /// Interface index.
        ifindex: u32,
        /// Ingress or egress.
        attach: AttachType,
    },
    /// A function or tracepoint, by BTF.
    Tracing {
        /// Attach type.
        attach: AttachType,
        /// Id of the program in which the target is (`freplace`, `fentry` of a program), otherwise of the BTF object.
        target_id: u32,
        /// BTF id of the target.
        target_btf_id: u32,
    },
    /// An iterator.
    Iter {
        /// The map whose elements it walks; 0 if it walks something else.
        map_id: u32,
    },
    /// Any other.
    Other,
}

impl LinkDetail {
    /// The interface on whose XDP or TC hook it is; `None` once that is gone.
    pub fn interface(&self) -> Option<u32> {
        match *self {
            LinkDetail::Xdp { ifindex } | LinkDetail::Tcx { ifindex, .. } => {
                Some(ifindex).filter(|i| *i != 0)
            }
            _ => None,
        }
    }
}

/// A BTF object, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BtfInfo {
    /// Id.
    pub id: u32,
    /// Name: `vmlinux`, a module's, or empty.
    pub name: String,
    /// Bytes of data.
    pub size: u32,
    /// True if the kernel (and not a user) made it.
    pub kernel: bool,
}

fn get<T: PlainData>(fd: BorrowedFd<'_>, info: &mut T, what: &str) -> Result<()> {
    let mut attr = GetInfo::zeroed();
    attr.bpf_fd = fd.as_raw_fd() as u32;
    attr.info_len = size_of::<T>() as u32;
    attr.info = addr_of(info);
    sys::call(sys::OBJ_GET_INFO_BY_FD, &mut attr, || format!("asking about a {what}")).map(drop)
}

pub(crate) fn map_info(fd: BorrowedFd<'_>) -> Result<MapInfo> {
    let mut raw = uapi::bpf_map_info::zeroed();
    get(fd, &mut raw, "map")?;
    Ok(MapInfo {
        id: raw.id,
        name: name_from(&raw.name),
        map_type: MapType(raw.type_),
        key_size: raw.key_size,
        value_size: raw.value_size,
        max_entries: raw.max_entries,
        flags: raw.map_flags,
        btf_id: raw.btf_id,
        btf_key_type: raw.btf_key_type_id,
        btf_value_type: raw.btf_value_type_id,
        extra: raw.map_extra,
    })
}

fn program_raw(fd: BorrowedFd<'_>) -> Result<uapi::bpf_prog_info> {
    let mut raw = uapi::bpf_prog_info::zeroed();
    get(fd, &mut raw, "program")?;
    Ok(raw)
}

pub(crate) fn program_id(fd: BorrowedFd<'_>) -> Result<u32> {
    Ok(program_raw(fd)?.id)
}

pub(crate) fn program_info(fd: BorrowedFd<'_>) -> Result<ProgramInfo> {
    let first = program_raw(fd)?;
    let mut map_ids = vec![0u32; first.nr_map_ids as usize];
    let mut raw = uapi::bpf_prog_info::zeroed();
    raw.nr_map_ids = first.nr_map_ids;
    raw.map_ids = addr_mut(&mut map_ids);
    get(fd, &mut raw, "program")?;
    // A map may have been bound in between; only as many ids as there now are were written.
    map_ids.truncate(raw.nr_map_ids as usize);
    Ok(ProgramInfo {
        id: raw.id,
        name: name_from(&raw.name),
        program_type: ProgramType(raw.type_),
        tag: raw.tag,
        jited_len: raw.jited_prog_len,
        translated_len: raw.xlated_prog_len,
        map_ids,
        verified_insns: raw.verified_insns,
        run_time_ns: raw.run_time_ns,
        run_count: raw.run_cnt,
        recursion_misses: raw.recursion_misses,
        btf_id: raw.btf_id,
        attach_btf_id: raw.attach_btf_id,
        load_time_ns: raw.load_time,
        gpl_compatible: raw.gpl_compatible() != 0,
        uid: raw.created_by_uid,
    })
}

pub(crate) fn jited_image(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let mut image = vec![0u8; program_raw(fd)?.jited_prog_len as usize];
    let mut raw = uapi::bpf_prog_info::zeroed();
    raw.jited_prog_len = image.len() as u32;
    raw.jited_prog_insns = addr_mut(&mut image);
    get(fd, &mut raw, "program")?;
    // The kernel zeroes the address if it does not show the code.
    if raw.jited_prog_insns == 0 {
        image.clear();
    }
    image.truncate(raw.jited_prog_len as usize);
    Ok(image)
}

pub(crate) fn jited_functions(fd: BorrowedFd<'_>) -> Result<Vec<(u64, u32)>> {
    let first = program_raw(fd)?;
    let mut addresses = vec![0u64; first.nr_jited_ksyms as usize];
    let mut lengths = vec![0u32; first.nr_jited_func_lens as usize];
    let mut raw = uapi::bpf_prog_info::zeroed();
    raw.nr_jited_ksyms = first.nr_jited_ksyms;
    raw.jited_ksyms = addr_mut(&mut addresses);
    raw.nr_jited_func_lens = first.nr_jited_func_lens;
    raw.jited_func_lens = addr_mut(&mut lengths);
    get(fd, &mut raw, "program")?;
    Ok(addresses.into_iter().zip(lengths).collect())
}

/// Records of `struct bpf_func_info`; the kernel may know a longer form.
const FUNC_INFO: usize = 8;

pub(crate) fn function_types(fd: BorrowedFd<'_>) -> Result<Vec<u32>> {
    let count = program_raw(fd)?.nr_func_info as usize;
    let mut records = vec![0u8; FUNC_INFO * count];
    let mut raw = uapi::bpf_prog_info::zeroed();
    (raw.nr_func_info, raw.func_info_rec_size) = (count as u32, FUNC_INFO as u32);
    raw.func_info = addr_mut(&mut records);
    get(fd, &mut raw, "program")?;
    let records = records.chunks_exact(FUNC_INFO).filter_map(|r| r.last_chunk::<4>());
    Ok(records.map(|id| u32::from_ne_bytes(*id)).collect())
}

/// Records of `struct bpf_line_info`; the kernel may know a longer form.
const LINE_INFO: usize = 16;

pub(crate) fn jited_lines(fd: BorrowedFd<'_>) -> Result<Vec<(u32, u64)>> {
    let first = program_raw(fd)?;
    let count = first.nr_line_info.min(first.nr_jited_line_info) as usize;
    let mut records = vec![0u8; LINE_INFO * count];
    let mut addresses = vec![0u64; count];
    let mut raw = uapi::bpf_prog_info::zeroed();
    (raw.nr_line_info, raw.line_info_rec_size) = (count as u32, LINE_INFO as u32);
    (raw.nr_jited_line_info, raw.jited_line_info_rec_size) = (count as u32, size_of::<u64>() as u32);
    raw.line_info = addr_mut(&mut records);
    raw.jited_line_info = addr_mut(&mut addresses);
    get(fd, &mut raw, "program")?;
    // The kernel zeroes the address if it does not show where the code is.
    if raw.jited_line_info == 0 {
        return Ok(Vec::new());
    }
    let lines = records.chunks_exact(LINE_INFO).filter_map(|r| r.last_chunk::<4>());
    Ok(lines.map(|place| u32::from_ne_bytes(*place) >> 10).zip(addresses).collect())
}

pub(crate) fn translated(fd: BorrowedFd<'_>) -> Result<Vec<u64>> {
    let mut insns = vec![0u64; program_raw(fd)?.xlated_prog_len as usize / 8];
    let mut raw = uapi::bpf_prog_info::zeroed();
    raw.xlated_prog_len = (insns.len() * 8) as u32;
    raw.xlated_prog_insns = addr_mut(&mut insns);
    get(fd, &mut raw, "program")?;
    if raw.xlated_prog_insns == 0 {
        insns.clear();
    }
    insns.truncate(raw.xlated_prog_len as usize / 8);
    Ok(insns)
}

pub(crate) fn link_info(fd: BorrowedFd<'_>) -> Result<LinkInfo> {
    let mut raw = uapi::bpf_link_info::zeroed();
    get(fd, &mut raw, "link")?;
    let link_type = LinkType(raw.type_);
    let words = sys::link_detail(&raw);
    let detail = match link_type {
        LinkType::XDP => LinkDetail::Xdp { ifindex: words[0] },
        LinkType::TCX => LinkDetail::Tcx { ifindex: words[0], attach: AttachType(words[1]) },
        LinkType::TRACING => {
            LinkDetail::Tracing { attach: AttachType(words[0]), target_id: words[1], target_btf_id: words[2] }
        }
        // A pointer to a name and its length come first.
        LinkType::ITER => LinkDetail::Iter { map_id: words[3] },
        _ => LinkDetail::Other,
    };
    Ok(LinkInfo { id: raw.id, link_type, program_id: raw.prog_id, detail })
}

pub(crate) fn btf_info(fd: BorrowedFd<'_>) -> Result<BtfInfo> {
    let mut name = vec![0u8; 64];
    let mut raw = uapi::bpf_btf_info::zeroed();
    raw.name = addr_mut(&mut name);
    raw.name_len = name.len() as u32;
    get(fd, &mut raw, "BTF object")?;
    let name = crate::log_text::log_text(&name);
    Ok(BtfInfo { id: raw.id, name, size: raw.btf_size, kernel: raw.kernel_btf != 0 })
}

pub(crate) fn btf_bytes(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![0u8; btf_info(fd)?.size as usize];
    let mut raw = uapi::bpf_btf_info::zeroed();
    raw.btf = addr_mut(&mut bytes);
    raw.btf_size = bytes.len() as u32;
    get(fd, &mut raw, "BTF object")?;
    Ok(bytes)
}

/// Opens an object by id.
pub(crate) fn open_id(command: sys::BpfCommand, id: u32, flags: u32, what: &str) -> Result<OwnedFd> {
    let mut attr = GetId::zeroed();
    attr.__bindgen_anon_1.map_id = id;
    attr.open_flags = flags;
    sys::call_fd(command, &mut attr, || format!("opening {what} {id}"))
}

fn ids(command: sys::BpfCommand, what: &str) -> Result<Vec<u32>> {
    let mut out = Vec::new();
    let mut attr = GetId::zeroed();
    loop {
        match sys::bpf(command, &mut attr) {
            Ok(_) => {
                out.push(attr.next_id);
                attr.__bindgen_anon_1.start_id = attr.next_id;
            }
            Err(libc::ENOENT) => return Ok(out),
            Err(errno) => return Err(KernelError::call(command.name, format!("listing {what}s"), errno)),
        }
    }
}

/// The ids of all programs in the kernel.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn program_ids() -> Result<Vec<u32>> {
    ids(sys::PROG_GET_NEXT_ID, "program")
}

/// The ids of all maps in the kernel.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn map_ids() -> Result<Vec<u32>> {
    ids(sys::MAP_GET_NEXT_ID, "map")
}

/// The ids of all links in the kernel.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn link_ids() -> Result<Vec<u32>> {
    ids(sys::LINK_GET_NEXT_ID, "link")
}

/// The ids of all BTF objects in the kernel.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn btf_ids() -> Result<Vec<u32>> {
    ids(sys::BTF_GET_NEXT_ID, "BTF object")
}
