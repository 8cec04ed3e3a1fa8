//! Links: programs attached to hooks, replaced by compare and swap.
//!
//! A link that is dropped detaches its program, unless it is pinned or opened elsewhere too.

use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{KernelError, Result};
use crate::info::{self, LinkInfo};
use crate::map;
use crate::program::KernelProgram;
use crate::sys::{self, IterCreate, LinkCreate, LinkDetach, LinkUpdate, PlainData, RawTracepoint, uapi};
use crate::types::AttachType;

/// Place in the receive path at which an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XdpMode {
    /// The driver's, if it has one; generic otherwise.
    #[default]
    Any,
    /// In the driver, or fail.
    Native,
    /// In the stack, after a socket buffer was made.
    Generic,
    /// On the card.
    Hardware,
}

impl std::fmt::Display for XdpMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            XdpMode::Any => "any",
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
            XdpMode::Hardware => "hardware",
        })
    }
}

impl XdpMode {
    pub(crate) fn flags(self) -> u32 {
        match self {
            XdpMode::Any => 0,
            XdpMode::Native => uapi::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => uapi::XDP_FLAGS_SKB_MODE,
            XdpMode::Hardware => uapi::XDP_FLAGS_HW_MODE,
        }
    }
}

/// A link in the kernel, held by a descriptor.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Attaches an XDP program to an interface.
    ///
    /// # Errors
    /// `EBUSY` if another program is attached, `EOPNOTSUPP` if the driver has no native XDP, `ENODEV`.
    pub fn attach_xdp(program: &KernelProgram, ifindex: u32, mode: XdpMode) -> Result<Self> {
        let mut attr = LinkCreate::zeroed();
        attr.__bindgen_anon_2.target_ifindex = ifindex;
        attr.attach_type = AttachType::XDP.0;
        attr.flags = mode.flags();
        Self::create(program, attr, || {
            format!("attaching XDP program {:?} to interface {ifindex}", program.name())
        })
    }

    /// Attaches a TC program to an interface, after those already there.
    ///
    /// # Errors
    /// `ENODEV`; `EINVAL` before Linux 6.6.
    pub fn attach_tcx(program: &KernelProgram, ifindex: u32, hook: AttachType) -> Result<Self> {
        let mut attr = LinkCreate::zeroed();
        attr.__bindgen_anon_2.target_ifindex = ifindex;
        attr.attach_type = hook.0;
        Self::create(program, attr, || {
            format!("attaching TC program {:?} to {hook} of interface {ifindex}", program.name())
        })
    }

    /// Attaches an iterator that walks objects of the kernel, of the kind that the program was loaded for.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn attach_iterator(program: &KernelProgram) -> Result<Self> {
        let mut attr = LinkCreate::zeroed();
        attr.attach_type = AttachType::TRACE_ITER.0;
        Self::create(program, attr, || format!("attaching iterator {:?}", program.name()))
    }

    /// Walks the objects of an iterator, and returns what its program has written.
    ///
    /// # Errors
    /// If the link is no iterator's, or the program fails.
    pub fn iterate(&self) -> Result<Vec<u8>> {
        let mut attr = IterCreate::zeroed();
        attr.link_fd = self.fd.as_raw_fd() as u32;
        let fd = sys::call_fd(sys::ITER_CREATE, &mut attr, || "walking an iterator".to_owned())?;
        let mut written = Vec::new();
        match std::fs::File::from(fd).read_to_end(&mut written) {
            Ok(_) => Ok(written),
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                Err(KernelError::call("read", "reading an iterator".to_owned(), errno))
            }
        }
    }

    fn create(program: &KernelProgram, mut attr: LinkCreate, doing: impl FnOnce() -> String) -> Result<Self> {
        attr.__bindgen_anon_1.prog_fd = program.raw();
        Ok(Link { fd: sys::call_fd(sys::LINK_CREATE, &mut attr, doing)? })
    }

    /// Attaches a tracing program (`tp_btf`, `fentry`, `fexit`, LSM) to the target that it was loaded for.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn attach_tracing(program: &KernelProgram) -> Result<Self> {
        let mut attr = RawTracepoint::zeroed();
        attr.prog_fd = program.raw();
        let fd = sys::call_fd(sys::RAW_TRACEPOINT_OPEN, &mut attr, || program.doing("attaching tracing"))?;
        Ok(Link { fd })
    }

    /// Puts an extension into the place of a function of a program, which has this id in the program's BTF.
    ///
    /// # Errors
    /// `EBUSY` if another extension is there, `EINVAL` if it does not fit.
    pub fn attach_extension(extension: &KernelProgram, host: &KernelProgram, function: u32) -> Result<Self> {
        let mut attr = LinkCreate::zeroed();
        attr.__bindgen_anon_2.target_fd = host.raw();
        attr.__bindgen_anon_3.target_btf_id = function;
        Self::create(extension, attr, || {
            format!("replacing a function of {:?} by program {:?}", host.name(), extension.name())
        })
    }

    /// Attaches a raw tracepoint program to the tracepoint of this name.
    ///
    /// # Errors
    /// `ENOENT` for a name that the kernel does not have.
    pub fn attach_raw_tracepoint(program: &KernelProgram, name: &str) -> Result<Self> {
        let doing = || format!("attaching program {:?} to raw tracepoint {name}", program.name());
        let text = sys::c_string(name, &doing())?;
        let mut attr = RawTracepoint::zeroed();
        attr.name = text.as_ptr() as u64;
        attr.prog_fd = program.raw();
        Ok(Link { fd: sys::call_fd(sys::RAW_TRACEPOINT_OPEN, &mut attr, doing)? })
    }

    /// Opens the link with this id.
    ///
    /// # Errors
    /// `ENOENT` if it is gone; `EPERM` without CAP_SYS_ADMIN.
    pub fn from_id(id: u32) -> Result<Self> {
        Ok(Link { fd: info::open_id(sys::LINK_GET_FD_BY_ID, id, 0, "link")? })
    }

    /// Opens the link pinned at `path`.
    ///
    /// # Errors
    /// If nothing, or something else than a link, is pinned there.
    pub fn from_pin(path: &Path) -> Result<Self> {
        let fd = map::get_pinned(path)?;
        info::link_info(fd.as_fd())?;
        Ok(Link { fd })
    }

    /// Pins the link at `path`, so that it outlives this process.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM`, or `EINVAL` outside a BPF file system.
    pub fn pin(&self, path: &Path) -> Result<()> {
        map::pin(self.fd.as_fd(), path)
    }

    /// Puts `new` in the place of `expected`, in one step that no packet sees half done.
    ///
    /// The packets move over within microseconds; the caller returns when none runs in the old program.
    ///
    /// # Errors
    /// `EPERM` if the link's program is not `expected` (another process replaced it; nothing changed),
    /// `EINVAL` if `new` does not fit the hook, `ENOLINK` if the interface is gone.
    pub fn replace(&self, new: &KernelProgram, expected: &KernelProgram) -> Result<()> {
        self.update(new, Some(expected))
    }

    /// Puts `new` in the place of any present program.
    ///
    /// # Errors
    /// As for [`Link::replace`], less the comparison.
    pub fn replace_any(&self, new: &KernelProgram) -> Result<()> {
        self.update(new, None)
    }

    fn update(&self, new: &KernelProgram, expected: Option<&KernelProgram>) -> Result<()> {
        let mut attr = LinkUpdate::zeroed();
        attr.link_fd = self.fd.as_raw_fd() as u32;
        attr.__bindgen_anon_1.new_prog_fd = new.raw();
        if let Some(old) = expected {
            attr.flags = uapi::BPF_F_REPLACE;
            attr.__bindgen_anon_2.old_prog_fd = old.raw();
        }
        sys::call(sys::LINK_UPDATE, &mut attr, || {
            let by = expected.map_or(String::new(), |old| format!("{:?} by ", old.name()));
            format!("replacing {by}{:?} in a link", new.name())
        })
        .map(drop)
    }

    /// Detaches the program now, whoever else holds the link.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for link types that cannot.
    pub fn detach(&self) -> Result<()> {
        let mut attr = LinkDetach::zeroed();
        attr.link_fd = self.fd.as_raw_fd() as u32;
        sys::call(sys::LINK_DETACH, &mut attr, || "detaching a link".to_owned()).map(drop)
    }

    /// Id, program and target.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn info(&self) -> Result<LinkInfo> {
        info::link_info(self.fd.as_fd())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
