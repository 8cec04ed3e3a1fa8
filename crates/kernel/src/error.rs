//! Errors that name the failed call, the operation, and a remedy.

use std::fmt;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure at the border to the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{doing}: {call} failed: {errno}{}", extra(.detail))]
    Call {
        /// System call and command, such as `bpf(MAP_CREATE)`.
        call: &'static str,
        /// Failed operation, with the names involved.
        doing: String,
        /// The kernel's error number.
        errno: Errno,
        /// Further explanation of the kernel (netlink's extended acknowledgement, a log), or empty.
        detail: String,
    },
    /// The request itself cannot be right; the kernel was not asked.
    #[error("{doing}: {reason}")]
    Argument {
        /// Failed operation.
        doing: String,
        /// Why it cannot be.
        reason: String,
    },
    /// A file of /proc or /sys could not be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Error of the read.
        source: std::io::Error,
    },
}

fn extra(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

/// A kernel error number, shown as its name and the C library's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", errno_name(self.0))?;
        // The kernel-internal ENOTSUPP reaches user space from bpf(2) but has no text in the C library.
        if self.0 == ENOTSUPP {
            return write!(f, " (operation not supported for this object)");
        }
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default().to_lowercase();
        write!(f, " ({text})")
    }
}

/// The kernel's internal "not supported", which bpf(2) lets through.
pub(crate) const ENOTSUPP: i32 = 524;

impl Error {
    pub(crate) fn call(call: &'static str, doing: impl Into<String>, errno: i32) -> Self {
        Error::Call { call, doing: doing.into(), errno: Errno(errno), detail: String::new() }
    }

    pub(crate) fn argument(doing: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Argument { doing: doing.into(), reason: reason.into() }
    }

    /// The error number, where a system call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Call { errno, .. } => Some(errno.0),
            Error::Read { source, .. } => source.raw_os_error(),
            Error::Argument { .. } => None,
        }
    }

    /// Remedy for the user, where one is known.
    pub fn hint(&self) -> Option<&'static str> {
        let Error::Call { call, errno, .. } = self else { return None };
        hint(call, errno.0)
    }
}

fn hint(call: &str, errno: i32) -> Option<&'static str> {
    let netlink = call.starts_with("rtnetlink");
    Some(match errno {
        libc::EPERM if netlink => "changing an interface needs root or CAP_NET_ADMIN",
        libc::EPERM if call == "bpf(MAP_UPDATE_ELEM)" => "the map is frozen or read-only to user space",
        libc::EPERM => {
            "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; `millstream doctor` says \
             what this kernel permits"
        }
        libc::ENODEV => "no such interface in this network namespace; `ip link` lists them",
        libc::EBUSY if call == "bpf(LINK_CREATE)" || netlink => {
            "another program is attached to this hook; adopt it, or detach it first (`bpftool net` names it)"
        }
        libc::EEXIST if call == "bpf(OBJ_PIN)" => {
            "something is pinned there already; remove it or choose another path"
        }
        libc::ENOMEM | libc::E2BIG if call == "bpf(MAP_CREATE)" => "the map is too large for this machine",
        libc::EOPNOTSUPP if call == "bpf(LINK_CREATE)" || netlink => {
            "the driver has no native XDP; use generic mode"
        }
        libc::ENOENT if call == "bpf(OBJ_GET)" => "nothing is pinned there; is the BPF file system mounted?",
        libc::ESTALE => "the program attached now is not the one expected: somebody replaced it meanwhile",
        libc::ENOLINK => "the link was detached, or its interface is gone",
        _ => return None,
    })
}

/// The symbolic name of an error number, or `errno N`.
pub fn errno_name(errno: i32) -> String {
    let name = NAMES.iter().find(|(n, _)| *n == errno).map(|(_, s)| *s);
    name.map_or_else(|| format!("errno {errno}"), str::to_owned)
}

/// The error numbers that bpf(2) and rtnetlink give.
const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EINTR, "EINTR"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ERANGE, "ERANGE"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENOLINK, "ENOLINK"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EMSGSIZE, "EMSGSIZE"),
    (libc::ESTALE, "ESTALE"),
    (libc::EILSEQ, "EILSEQ"),
    (ENOTSUPP, "ENOTSUPP"),
];
