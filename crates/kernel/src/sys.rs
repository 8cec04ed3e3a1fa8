//! The bpf(2) system call itself.
//!
//! Each command is called with the one member of `union bpf_attr` that it reads: the kernel zero-extends a
//! shorter attribute, and refuses non-zero bytes that it does not know, so every attribute starts zeroed,
//! padding included.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::{KernelError, Result};

pub(crate) use libbpf_sys as uapi;
pub(crate) use libbpf_sys::{
    bpf_attr__bindgen_ty_1 as MapCreate, bpf_attr__bindgen_ty_2 as MapElem,
    bpf_attr__bindgen_ty_3 as MapBatch, bpf_attr__bindgen_ty_4 as ProgLoad, bpf_attr__bindgen_ty_5 as Obj,
    bpf_attr__bindgen_ty_6 as ProgAttach, bpf_attr__bindgen_ty_7 as TestRunAttr,
    bpf_attr__bindgen_ty_8 as GetId, bpf_attr__bindgen_ty_9 as GetInfo, bpf_attr__bindgen_ty_10 as ProgQuery,
    bpf_attr__bindgen_ty_11 as RawTracepoint, bpf_attr__bindgen_ty_12 as BtfLoad,
    bpf_attr__bindgen_ty_14 as LinkCreate, bpf_attr__bindgen_ty_15 as LinkUpdate,
    bpf_attr__bindgen_ty_16 as LinkDetach, bpf_attr__bindgen_ty_17 as EnableStats,
    bpf_attr__bindgen_ty_18 as IterCreate, bpf_attr__bindgen_ty_19 as BindMap,
};

/// Marks the structures that consist of integers (and unions of them) only, so that all-zero bytes are a
/// value and the kernel may read and write each byte.
///
/// # Safety
/// Implementors hold no references, no niches and no drop glue.
pub(crate) unsafe trait PlainData: Copy {
    fn zeroed() -> Self {
        // SAFETY: the trait's contract: all-zero bytes are a valid value.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($t:ty),* $(,)?) => { $(
        // SAFETY: a C structure or union of integers and integer arrays, as bindgen made it.
        unsafe impl PlainData for $t {}
    )* };
}
plain!(
    MapCreate,
    MapElem,
    MapBatch,
    ProgLoad,
    Obj,
    TestRunAttr,
    GetId,
    GetInfo,
    RawTracepoint,
    BtfLoad,
    LinkCreate,
    LinkUpdate,
    LinkDetach,
    IterCreate,
    BindMap,
    EnableStats,
    ProgAttach,
    ProgQuery,
    uapi::bpf_map_info,
    uapi::bpf_prog_info,
    uapi::bpf_link_info,
    uapi::bpf_btf_info,
);

/// A bpf(2) command with its name, for messages.
#[derive(Clone, Copy)]
pub(crate) struct BpfCommand {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
}

macro_rules! commands {
    ($($name:ident = $number:ident),* $(,)?) => {
        $( pub(crate) const $name: BpfCommand =
            BpfCommand { number: uapi::$number as u32, name: concat!("bpf(", stringify!($name), ")") }; )*
    };
}
commands!(
    MAP_CREATE = BPF_MAP_CREATE,
    MAP_LOOKUP_ELEM = BPF_MAP_LOOKUP_ELEM,
    MAP_UPDATE_ELEM = BPF_MAP_UPDATE_ELEM,
    MAP_DELETE_ELEM = BPF_MAP_DELETE_ELEM,
    MAP_GET_NEXT_KEY = BPF_MAP_GET_NEXT_KEY,
    MAP_LOOKUP_AND_DELETE_ELEM = BPF_MAP_LOOKUP_AND_DELETE_ELEM,
    MAP_FREEZE = BPF_MAP_FREEZE,
    MAP_LOOKUP_BATCH = BPF_MAP_LOOKUP_BATCH,
    MAP_UPDATE_BATCH = BPF_MAP_UPDATE_BATCH,
    PROG_LOAD = BPF_PROG_LOAD,
    PROG_TEST_RUN = BPF_PROG_TEST_RUN,
    PROG_ATTACH = BPF_PROG_ATTACH,
    PROG_QUERY = BPF_PROG_QUERY,
    PROG_BIND_MAP = BPF_PROG_BIND_MAP,
    OBJ_PIN = BPF_OBJ_PIN,
    OBJ_GET = BPF_OBJ_GET,
    OBJ_GET_INFO_BY_FD = BPF_OBJ_GET_INFO_BY_FD,
    PROG_GET_NEXT_ID = BPF_PROG_GET_NEXT_ID,
    MAP_GET_NEXT_ID = BPF_MAP_GET_NEXT_ID,
    BTF_GET_NEXT_ID = BPF_BTF_GET_NEXT_ID,
    LINK_GET_NEXT_ID = BPF_LINK_GET_NEXT_ID,
    PROG_GET_FD_BY_ID = BPF_PROG_GET_FD_BY_ID,
    MAP_GET_FD_BY_ID = BPF_MAP_GET_FD_BY_ID,
    BTF_GET_FD_BY_ID = BPF_BTF_GET_FD_BY_ID,
    LINK_GET_FD_BY_ID = BPF_LINK_GET_FD_BY_ID,
    RAW_TRACEPOINT_OPEN = BPF_RAW_TRACEPOINT_OPEN,
    BTF_LOAD = BPF_BTF_LOAD,
    LINK_CREATE = BPF_LINK_CREATE,
    LINK_UPDATE = BPF_LINK_UPDATE,
    LINK_DETACH = BPF_LINK_DETACH,
    ENABLE_STATS = BPF_ENABLE_STATS,
    ITER_CREATE = BPF_ITER_CREATE,
);

/// Calls bpf(2); the error is the bare errno.
///
/// `attr` may hold addresses: the caller passes only addresses of buffers that outlive the call and are as
/// long as the attribute says, which [`addr`] and [`addr_mut`] make from borrowed slices.
///
/// Linux before 5.11 charges maps, programs and BTF to the memory that the process may lock, and says `EPERM`
/// when that is used up: then the limit is raised, where that is permitted, and the kernel asked again.
pub(crate) fn bpf<T: PlainData>(command: BpfCommand, attr: &mut T) -> std::result::Result<i32, i32> {
    let result = call_once(command, attr);
    let charged = [MAP_CREATE.number, PROG_LOAD.number, BTF_LOAD.number].contains(&command.number);
    match result {
        Err(libc::EPERM) if charged && raise_locked_memory() => call_once(command, attr),
        result => result,
    }
}

fn call_once<T: PlainData>(command: BpfCommand, attr: &mut T) -> std::result::Result<i32, i32> {
    // SAFETY: `attr` is exclusive and its size is passed; the buffers it names are live, by the contract of
    // `bpf`.
    let r = unsafe {
        libc::syscall(libc::SYS_bpf, command.number as libc::c_int, std::ptr::from_mut(attr), size_of::<T>())
    };
    if r < 0 { Err(last_errno()) } else { Ok(r as i32) }
}

/// Removes the limit of locked memory; returns true if there was one and it could be removed.
fn raise_locked_memory() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one live structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one live structure.
    known
        && limit.rlim_cur != libc::RLIM_INFINITY
        && unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) } == 0
}

/// Calls bpf(2) for a command that answers with a new file descriptor.
pub(crate) fn bpf_fd<T: PlainData>(command: BpfCommand, attr: &mut T) -> std::result::Result<OwnedFd, i32> {
    let fd = bpf(command, attr)?;
    // SAFETY: the kernel has just made this descriptor for us; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls bpf(2) and names the failure.
pub(crate) fn call<T: PlainData>(
    command: BpfCommand,
    attr: &mut T,
    doing: impl FnOnce() -> String,
) -> Result<i32> {
    bpf(command, attr).map_err(|e| KernelError::call(command.name, doing(), e))
}

/// Calls bpf(2) for a descriptor and names the failure.
pub(crate) fn call_fd<T: PlainData>(
    command: BpfCommand,
    attr: &mut T,
    doing: impl FnOnce() -> String,
) -> Result<OwnedFd> {
    bpf_fd(command, attr).map_err(|e| KernelError::call(command.name, doing(), e))
}

pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The address of a buffer that the kernel reads; an empty one is the null pointer.
pub(crate) fn addr<T>(buffer: &[T]) -> u64 {
    if buffer.is_empty() { 0 } else { buffer.as_ptr() as u64 }
}

/// The address of a buffer that the kernel writes; an empty one is the null pointer.
pub(crate) fn addr_mut<T>(buffer: &mut [T]) -> u64 {
    if buffer.is_empty() { 0 } else { buffer.as_mut_ptr() as u64 }
}

/// The bytes of a structure.
pub(crate) fn bytes_mut<T: PlainData>(value: &mut T) -> &mut [u8] {
    // SAFETY: by the trait's contract each byte may be read and written; the callers' types have no padding
    // but what was zeroed.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// The address of a structure that the kernel writes.
pub(crate) fn addr_of<T: PlainData>(value: &mut T) -> u64 {
    std::ptr::from_mut(value) as u64
}

/// A C string for the kernel, or an error if the text holds a zero byte.
pub(crate) fn c_string(text: &str, doing: &str) -> Result<CString> {
    CString::new(text).map_err(|_| KernelError::argument(doing, format!("{text:?} contains a zero byte")))
}

/// A name as the kernel wants it: at most 15 bytes of letters, digits, `_` and `.`; others become `_`.
pub(crate) fn object_name(name: &str) -> [std::os::raw::c_char; 16] {
    let mut out = [0; 16];
    for (slot, byte) in out.iter_mut().take(15).zip(name.bytes()) {
        let fine = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
        *slot = if fine { byte } else { b'_' } as std::os::raw::c_char;
    }
    out
}

/// Reads a fixed-size, zero-padded name back.
pub(crate) fn name_from(raw: &[std::os::raw::c_char]) -> String {
    let bytes: Vec<u8> = raw.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The first words of the type-specific part of a link's description.
pub(crate) fn link_detail(info: &uapi::bpf_link_info) -> [u32; 4] {
    // SAFETY: the union is larger than four words, was zeroed before the kernel wrote it, and holds integers
    // only; `read_unaligned` asks for no alignment.
    unsafe { std::ptr::from_ref(&info.__bindgen_anon_1).cast::<[u32; 4]>().read_unaligned() }
}

/// The kind of file system that a path is on (`statfs`).
pub(crate) fn file_system(path: &std::path::Path) -> Result<i64> {
    use std::os::unix::ffi::OsStrExt;
    let doing = format!("looking at the file system of {}", path.display());
    let text = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| KernelError::argument(&doing, "the path contains a zero byte"))?;
    // SAFETY: a structure of integers, for which zero is a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a live string that ends in zero, and room for the answer.
    if unsafe { libc::statfs(text.as_ptr(), &mut found) } < 0 {
        return Err(KernelError::call("statfs", doing, last_errno()));
    }
    Ok(found.f_type)
}

/// Opens the counter of this thread's processor cycles, to test if there is a performance unit.
pub(crate) fn open_cycle_counter() -> Result<OwnedFd> {
    /// `struct perf_event_attr` of the first version: 64 bytes.
    #[repr(C)]
    struct PerfEventAttr {
        kind: u32,
        size: u32,
        rest: [u64; 7],
    }
    // Type 0 is hardware, configuration 0 (the first of `rest`) is cycles.
    let attr = PerfEventAttr { kind: 0, size: size_of::<PerfEventAttr>() as u32, rest: [0; 7] };
    // SAFETY: the attribute is live and of the size that it says; no other memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, 0, -1, -1, 0) };
    if fd < 0 {
        return Err(KernelError::call("perf_event_open", "opening the cycle counter", last_errno()));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
