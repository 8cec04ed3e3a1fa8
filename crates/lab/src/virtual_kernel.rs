//! Other kernels, in virtual machines: found or fetched, and booted for one command.
//!
//! A kernel is a folder with `vmlinuz` and `lib/modules`. `scripts/vmrun` boots it, `scripts/kernels` fetches it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variable that names the program that runs a command in a virtual machine.
const VMRUN: &str = "MILLSTREAM_VMRUN";
/// Variable that names the folder of kernels.
const KERNELS: &str = "MILLSTREAM_KERNELS";
/// Seconds that a machine may take.
const LIMIT: &str = "1800";

/// Why a kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum VirtualKernelError {
    /// The program that runs virtual machines is not there.
    #[error("there is no scripts/vmrun above this folder: run it in the repository, or set {VMRUN}")]
    NoRunner,
    /// The kernel is not there and cannot be fetched.
    #[error(
        "there is no kernel {name} in {}: scripts/kernels fetches 5.10, 6.1, 6.12 and the newest",
        folder.display()
    )]
    NoKernel {
        /// The version.
        name: String,
        /// Folder of kernels.
        folder: PathBuf,
    },
    /// A program cannot be started.
    #[error("cannot run {}: {source}", program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The machine did not end as it should.
    #[error("the virtual machine with kernel {name} gave no answer: {reason}")]
    NoAnswer {
        /// The version.
        name: String,
        /// The last line of its messages.
        reason: String,
    },
}

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub struct VirtualKernel {
    /// Its version as it was asked for.
    pub name: String,
    folder: PathBuf,
    vmrun: PathBuf,
}

impl VirtualKernel {
    /// Finds the kernel of a version in the cache. If it is not there, the script beside `vmrun` fetches it.
    ///
    /// # Errors
    /// [`VirtualKernelError`] without the scripts, or if the kernel cannot be fetched.
    pub fn find(name: &str) -> Result<VirtualKernel, VirtualKernelError> {
        let (vmrun, cache) = (runner().ok_or(VirtualKernelError::NoRunner)?, cache());
        if kernel_folder(&cache, name).is_none() {
            fetch(name, &vmrun)?;
        }
        let folder = kernel_folder(&cache, name)
            .ok_or_else(|| VirtualKernelError::NoKernel { name: name.to_owned(), folder: cache })?;
        Ok(VirtualKernel { name: name.to_owned(), folder, vmrun })
    }

    /// Boots the kernel with files and folders inside, each with its place there, and runs a script of bash.
    /// The script's files in `/out` come to the folder `out`.
    ///
    /// # Errors
    /// [`VirtualKernelError`] if the machine or the script fails.
    pub fn run(&self, inputs: &[(&Path, &str)], script: &str, out: &Path) -> Result<(), VirtualKernelError> {
        let mut command = Command::new(&self.vmrun);
        command.args(["-t", LIMIT, "-o"]).arg(out);
        for (from, to) in inputs {
            command.arg("-i").arg(format!("{}:{to}", from.display()));
        }
        let done = command.arg(&self.folder).arg(script).stdin(Stdio::null()).output();
        let done =
            done.map_err(|source| VirtualKernelError::NotStarted { program: self.vmrun.clone(), source })?;
        if done.status.success() {
            return Ok(());
        }
        let messages = String::from_utf8_lossy(&done.stderr);
        let reason = messages.lines().last().unwrap_or("it gave no reason").to_owned();
        Err(VirtualKernelError::NoAnswer { name: self.name.clone(), reason })
    }
}

/// The program that runs virtual machines: named by the variable, or in the repository around this folder.
fn runner() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VMRUN) {
        return Some(path.into());
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join("scripts/vmrun")).find(|path| path.is_file())
}

fn cache() -> PathBuf {
    if let Some(folder) = std::env::var_os(KERNELS) {
        return folder.into();
    }
    let home =
        || std::env::var_os("HOME").map_or_else(PathBuf::new, |home| PathBuf::from(home).join(".cache"));
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("millstream/kernels")
}

/// Fetches a kernel into the cache.
fn fetch(name: &str, vmrun: &Path) -> Result<(), VirtualKernelError> {
    let program = vmrun.with_file_name("kernels");
    if !program.is_file() {
        return Ok(());
    }
    // The script wants a folder for copies besides the cache.
    let copies = std::env::temp_dir().join(format!("millstream-kernels-{}", std::process::id()));
    let known = ["5.10", "6.1", "6.12"].contains(&name);
    let done = Command::new(&program)
        .arg("--unpack")
        .arg(&copies)
        .arg(if known { name } else { "sid" })
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    let _ = std::fs::remove_dir_all(&copies);
    done.map(drop).map_err(|source| VirtualKernelError::NotStarted { program, source })
}

/// The folder of a kernel: of this name, or of another one with modules of this version.
fn kernel_folder(cache: &Path, name: &str) -> Option<PathBuf> {
    let own = cache.join(name);
    if own.join("vmlinuz").is_file() {
        return Some(own);
    }
    let is_version = |version: &str| {
        version.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let folders = std::fs::read_dir(cache).ok()?.flatten().map(|entry| entry.path());
    let mut bootable = folders.filter(|folder| folder.join("vmlinuz").is_file());
    bootable.find(|folder| {
        let modules = std::fs::read_dir(folder.join("lib/modules")).into_iter().flatten().flatten();
        modules.into_iter().any(|entry| is_version(&entry.file_name().to_string_lossy()))
    })
}
