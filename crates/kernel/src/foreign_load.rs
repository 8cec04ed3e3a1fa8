//! Program loads that another process asks for: its attribute, read whole, and the load here in its place.
//!
//! Everything of the attribute is passed on, or the attribute is refused. Descriptors in it are the other
//! process's: the caller gives those that stand for them here.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{self, PlainData, ProgLoad, addr, addr_mut, name_from};
use crate::types::{AttachType, ProgramType};

/// The command's number, by which a filter of system calls knows it.
pub const PROGRAM_LOAD: u32 = sys::PROG_LOAD.number;

/// `BPF_F_TOKEN_FD`: the attribute has a token.
const TOKEN: u32 = 1 << 16;
/// Instructions of the longest program.
const MOST_INSNS: u32 = 1_000_000;
/// Longest licence that the kernel reads, in bytes.
const LICENSE: usize = 128;
const FUNC_RECORD: u32 = 8;
const LINE_RECORD: u32 = 16;

/// Reason why an attribute is not passed on.
#[derive(Debug, thiserror::Error)]
pub enum ForeignLoadError {
    /// The memory that it names cannot be read.
    #[error("its memory cannot be read: {0}")]
    Memory(#[from] std::io::Error),
    /// It has a part that is not passed on.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// Reads memory of the other process: address and length in bytes.
pub type ReadMemory<'m> = dyn FnMut(u64, usize) -> std::io::Result<Vec<u8>> + 'm;

/// A program load that another process asks for.
#[derive(Clone)]
pub struct ForeignLoad {
    attr: ProgLoad,
    license: Vec<u8>,
    /// The instructions, in slots.
    pub insns: Vec<u64>,
    /// `struct bpf_func_info`, end to end.
    pub func_info: Vec<u8>,
    /// `struct bpf_line_info`, end to end.
    pub line_info: Vec<u8>,
}

/// The code of a load, with descriptors of this process.
#[derive(Clone, Copy, Debug)]
pub struct ForeignCode<'c> {
    /// The instructions, in slots.
    pub insns: &'c [u64],
    /// `struct bpf_func_info`, end to end.
    pub func_info: &'c [u8],
    /// `struct bpf_line_info`, end to end.
    pub line_info: &'c [u8],
    /// The types of both.
    pub btf: Option<BorrowedFd<'c>>,
    /// The program or BTF that it attaches to.
    pub target: Option<BorrowedFd<'c>>,
    /// Descriptors that instructions name by index.
    pub fd_array: &'c [i32],
}

impl ForeignLoad {
    /// Reads the attribute at an address, of a size in bytes, and what it names.
    ///
    /// # Errors
    /// [`ForeignLoadError`]: then the process has to make the call itself.
    pub fn read(
        address: u64,
        size: usize,
        memory: &mut ReadMemory<'_>,
    ) -> Result<ForeignLoad, ForeignLoadError> {
        let unsupported = ForeignLoadError::Unsupported;
        if size > 4096 {
            return Err(unsupported("its attribute is longer than a page"));
        }
        let bytes = memory(address, size)?;
        let known = size_of::<ProgLoad>();
        if bytes.iter().skip(known).any(|byte| *byte != 0) {
            return Err(unsupported("its attribute has fields that are not known here"));
        }
        let mut attr = ProgLoad::zeroed();
        let read = sys::bytes_mut(&mut attr);
        let length = bytes.len().min(known);
        read[..length].copy_from_slice(&bytes[..length]);
        check(&attr).map_err(unsupported)?;
        let insns = memory(attr.insns, attr.insn_cnt as usize * 8)?;
        let (slots, _) = insns.as_chunks::<8>();
        let mut records = |at: u64, count: u32, size: u32| {
            if count == 0 { Ok(Vec::new()) } else { memory(at, count as usize * size as usize) }
        };
        let func_info = records(attr.func_info, attr.func_info_cnt, FUNC_RECORD)?;
        let line_info = records(attr.line_info, attr.line_info_cnt, LINE_RECORD)?;
        let license = read_license(attr.license, memory)?;
        let insns = slots.iter().map(|slot| u64::from_ne_bytes(*slot)).collect();
        Ok(ForeignLoad { attr, license, insns, func_info, line_info })
    }

    /// Name of the program.
    pub fn name(&self) -> String {
        name_from(&self.attr.prog_name)
    }

    /// Its licence.
    pub fn license(&self) -> String {
        String::from_utf8_lossy(self.license.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
    }

    /// Its type.
    pub fn program_type(&self) -> ProgramType {
        ProgramType(self.attr.prog_type)
    }

    /// Its expected attach type.
    pub fn attach_type(&self) -> AttachType {
        AttachType(self.attr.expected_attach_type)
    }

    /// The other process's descriptor of the types, if it has one.
    pub fn btf(&self) -> Option<i32> {
        Some(self.attr.prog_btf_fd as i32).filter(|fd| *fd > 0)
    }

    /// The other process's descriptor of the program or BTF that it attaches to, if it has one.
    pub fn target(&self) -> Option<i32> {
        // SAFETY: both members are integers of the same size.
        #[allow(unsafe_code)]
        let fd = unsafe { self.attr.__bindgen_anon_1.attach_prog_fd } as i32;
        Some(fd).filter(|fd| *fd > 0)
    }

    /// Address of the other process's array of descriptors; 0 if there is none.
    pub fn fd_array(&self) -> u64 {
        self.attr.fd_array
    }

    /// Address and size in bytes of the buffer for the verifier's log, if the process wants one.
    pub fn log(&self) -> Option<(u64, u32)> {
        (self.attr.log_level != 0 && self.attr.log_buf != 0)
            .then_some((self.attr.log_buf, self.attr.log_size))
    }

    /// Offset in the attribute of the field for the length of the log, if the attribute has it.
    pub fn log_length_offset(size: usize) -> Option<usize> {
        let offset = std::mem::offset_of!(ProgLoad, log_true_size);
        (size >= offset + 4).then_some(offset)
    }

    /// Loads code in place of the program, in all else as it was asked for. The verifier's log goes into the
    /// buffer, if one is given. Returns the program's descriptor and the log's length in bytes.
    ///
    /// # Errors
    /// The kernel's error number.
    pub fn load(&self, code: &ForeignCode<'_>, log: &mut [u8]) -> Result<(OwnedFd, u32), i32> {
        let mut attr = self.attr;
        attr.insns = addr(code.insns);
        attr.insn_cnt = u32::try_from(code.insns.len()).map_err(|_| libc::E2BIG)?;
        attr.license = self.license.as_ptr() as u64;
        (attr.func_info, attr.line_info) = (addr(code.func_info), addr(code.line_info));
        attr.func_info_cnt = (code.func_info.len() / FUNC_RECORD as usize) as u32;
        attr.line_info_cnt = (code.line_info.len() / LINE_RECORD as usize) as u32;
        attr.prog_btf_fd = code.btf.map_or(0, |fd| fd.as_raw_fd() as u32);
        if let Some(fd) = code.target {
            attr.__bindgen_anon_1.attach_prog_fd = fd.as_raw_fd() as u32;
        }
        attr.fd_array = addr(code.fd_array);
        (attr.log_buf, attr.log_size, attr.log_true_size) = (addr_mut(log), log.len() as u32, 0);
        if log.is_empty() {
            attr.log_level = 0;
        }
        loop {
            match sys::bpf_fd(sys::PROG_LOAD, &mut attr) {
                Ok(fd) => return Ok((fd, attr.log_true_size)),
                Err(libc::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Finds a part of an attribute that is not passed on.
fn check(attr: &ProgLoad) -> Result<(), &'static str> {
    if !(1..=MOST_INSNS).contains(&attr.insn_cnt) {
        return Err("it has no instructions, or more than the kernel accepts");
    }
    if attr.prog_flags & TOKEN != 0 {
        return Err("it is loaded with a token");
    }
    if attr.prog_ifindex != 0 {
        return Err("it is bound to a device");
    }
    if attr.core_relo_cnt != 0 {
        return Err("the kernel is to resolve its CO-RE relocations");
    }
    if attr.fd_array_cnt != 0 {
        return Err("it is bound to maps that it does not use");
    }
    if attr.signature != 0 || attr.signature_size != 0 {
        return Err("it is signed");
    }
    if attr.func_info_cnt != 0 && attr.func_info_rec_size != FUNC_RECORD
        || attr.line_info_cnt != 0 && attr.line_info_rec_size != LINE_RECORD
        || attr.func_info_cnt > attr.insn_cnt
        || attr.line_info_cnt > attr.insn_cnt
    {
        return Err("its records of functions or lines are of an unknown form");
    }
    Ok(())
}

/// Reads a licence: a text that ends in a zero, of at most so many bytes as the kernel reads.
fn read_license(address: u64, memory: &mut ReadMemory<'_>) -> Result<Vec<u8>, ForeignLoadError> {
    let mut license = Vec::new();
    // Not beyond the zero: there may be no memory behind it.
    while license.len() < LICENSE {
        let byte = memory(address + license.len() as u64, 1)?;
        license.extend(&byte);
        if byte == [0] {
            return Ok(license);
        }
    }
    Err(ForeignLoadError::Unsupported("its licence is no text"))
}
