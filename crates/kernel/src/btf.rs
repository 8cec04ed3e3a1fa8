//! BTF in the kernel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{KernelError, Result};
use crate::info::{self, BtfInfo};
use crate::sys::{self, BtfLoad, PlainData, addr, addr_mut};

/// A BTF object in the kernel, held by a descriptor.
#[derive(Debug)]
pub struct KernelBtf {
    fd: OwnedFd,
}

impl KernelBtf {
    /// Loads BTF. Where the kernel refuses it, the error tells the last lines of its log.
    ///
    /// # Errors
    /// `EINVAL` and its like for BTF that the kernel finds malformed.
    pub fn load(bytes: &[u8]) -> Result<Self> {
        let size = u32::try_from(bytes.len()).map_err(|_| {
            KernelError::argument("loading BTF", format!("{} bytes are too many", bytes.len()))
        })?;
        let mut attr = BtfLoad::zeroed();
        attr.btf = addr(bytes);
        attr.btf_size = size;
        let errno = match sys::bpf_fd(sys::BTF_LOAD, &mut attr) {
            Ok(fd) => return Ok(KernelBtf { fd }),
            Err(errno) => errno,
        };
        let mut log = vec![0u8; 64 << 10];
        attr.btf_log_buf = addr_mut(&mut log);
        attr.btf_log_size = log.len() as u32;
        attr.btf_log_level = 1;
        if let Ok(fd) = sys::bpf_fd(sys::BTF_LOAD, &mut attr) {
            return Ok(KernelBtf { fd });
        }
        let text = crate::log_text::log_text(&log);
        let telling = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default().to_owned();
        Err(KernelError::Call {
            call: sys::BTF_LOAD.name,
            doing: format!("loading BTF of {size} bytes"),
            errno: crate::error::Errno(errno),
            detail: telling,
        })
    }

    /// Takes a descriptor that is a BTF object's.
    pub fn from_fd(fd: OwnedFd) -> Self {
        KernelBtf { fd }
    }

    /// Opens the BTF object with this id.
    ///
    /// # Errors
    /// `ENOENT` if it is gone; `EPERM` without CAP_SYS_ADMIN.
    pub fn from_id(id: u32) -> Result<Self> {
        Ok(KernelBtf { fd: info::open_id(sys::BTF_GET_FD_BY_ID, id, 0, "BTF")? })
    }

    /// Id, size and name.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn info(&self) -> Result<BtfInfo> {
        info::btf_info(self.fd.as_fd())
    }

    /// The BTF data itself.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        info::btf_bytes(self.fd.as_fd())
    }
}

impl AsFd for KernelBtf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for KernelBtf {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}
