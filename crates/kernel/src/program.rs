//! Programs in the kernel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{KernelError, Result};
use crate::info::{self, ProgramInfo};
use crate::load::{ProgramSpec, VerifierStats};
use crate::map;
use crate::sys::{self, EnableStats, PlainData, uapi};

/// A program in the kernel, held by a descriptor.
#[derive(Debug)]
pub struct KernelProgram {
    fd: OwnedFd,
    name: String,
    stats: Option<VerifierStats>,
    extension: Option<Box<KernelProgram>>,
}

impl KernelProgram {
    pub(crate) fn new(fd: OwnedFd, spec: &ProgramSpec<'_>, stats: Option<VerifierStats>) -> Self {
        KernelProgram { fd, name: spec.name.to_owned(), stats, extension: None }
    }

    /// Takes a descriptor that is a program's.
    ///
    /// # Errors
    /// If it is not a program's.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let name = info::program_info(fd.as_fd())?.name;
        Ok(KernelProgram { fd, name, stats: None, extension: None })
    }

    /// Opens the program with this id.
    ///
    /// # Errors
    /// `ENOENT` if it is gone; `EPERM` without CAP_SYS_ADMIN.
    pub fn from_id(id: u32) -> Result<Self> {
        Self::from_fd(info::open_id(sys::PROG_GET_FD_BY_ID, id, 0, "program")?)
    }

    /// Opens the program pinned at `path`.
    ///
    /// # Errors
    /// If nothing, or something else than a program, is pinned there.
    pub fn from_pin(path: &Path) -> Result<Self> {
        Self::from_fd(map::get_pinned(path)?)
    }

    /// Pins the program at `path`, below a BPF file system.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM`, or `EINVAL` outside a BPF file system.
    pub fn pin(&self, path: &Path) -> Result<()> {
        map::pin(self.fd.as_fd(), path)
    }

    /// A second handle on the same program.
    ///
    /// # Errors
    /// `EMFILE`, if the process has too many descriptors.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self.fd.try_clone().map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            KernelError::call("fcntl(F_DUPFD_CLOEXEC)", self.doing("duplicating"), errno)
        })?;
        let extension = self.extension.as_ref().map(|e| e.try_clone().map(Box::new)).transpose()?;
        Ok(KernelProgram { fd, name: self.name.clone(), stats: self.stats, extension })
    }

    /// Adds the form of this program that can replace a function of another program: the same instructions,
    /// loaded as an extension. Extensions cannot be test-run, so that both forms are needed.
    #[must_use]
    pub fn with_extension(mut self, extension: KernelProgram) -> Self {
        self.extension = Some(Box::new(extension));
        self
    }

    /// The form that can replace a function of another program ([`KernelProgram::with_extension`]).
    pub fn extension(&self) -> Option<&KernelProgram> {
        self.extension.as_deref()
    }

    /// The kernel's ids of the program and its extension.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn ids(&self) -> Result<Vec<u32>> {
        [Some(self), self.extension()].into_iter().flatten().map(KernelProgram::id).collect()
    }

    /// The name that it was loaded with, or the kernel's 15 bytes of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts of the verifier, if this handle comes from a load.
    pub fn stats(&self) -> Option<VerifierStats> {
        self.stats
    }

    /// The kernel's description of it: sizes, maps, counters.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn info(&self) -> Result<ProgramInfo> {
        info::program_info(self.fd.as_fd())
    }

    /// The kernel's id of the program.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn id(&self) -> Result<u32> {
        info::program_id(self.fd.as_fd())
    }

    /// The machine code, all functions end to end. Empty without permission to see it, or without a JIT.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn jited_image(&self) -> Result<Vec<u8>> {
        info::jited_image(self.fd.as_fd())
    }

    /// Kernel address and length of each function's machine code, in the order of
    /// [`KernelProgram::jited_image`].
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn jited_functions(&self) -> Result<Vec<(u64, u32)>> {
        info::jited_functions(self.fd.as_fd())
    }

    /// The type of each function, the entry first, as ids of the program's BTF; empty for a program without BTF.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn function_types(&self) -> Result<Vec<u32>> {
        info::function_types(self.fd.as_fd())
    }

    /// For each record of line information that outlived the kernel's rewrites, in the order of the code: its
    /// line, and the kernel address of the machine code that begins there. Empty without permission to see
    /// it.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn jited_lines(&self) -> Result<Vec<(u32, u64)>> {
        info::jited_lines(self.fd.as_fd())
    }

    /// The instructions after the kernel's own rewrites, which cannot be loaded again.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn translated(&self) -> Result<Vec<u64>> {
        info::translated(self.fd.as_fd())
    }

    pub(crate) fn doing(&self, verb: &str) -> String {
        format!("{verb} program {:?}", self.name)
    }

    pub(crate) fn raw(&self) -> u32 {
        self.fd.as_raw_fd() as u32
    }
}

impl AsFd for KernelProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes the kernel count the runs of all programs and their time ([`ProgramInfo::run_time_ns`]), which costs
/// each run some tens of nanoseconds, until the descriptor is closed.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN; `EINVAL` before Linux 5.8.
pub fn run_time_statistics() -> Result<OwnedFd> {
    let mut attr = EnableStats::zeroed();
    attr.type_ = uapi::BPF_STATS_RUN_TIME;
    sys::call_fd(sys::ENABLE_STATS, &mut attr, || "asking for run-time statistics".to_owned())
}
