//! Advice for a session that cannot go on.

use std::path::Path;

use millstream_kernel::{KernelError, LoadError, MOUNT, PinDirError};
use millstream_loader::{Error as LoaderError, ProgramError};
use millstream_specialize::LiveError;
use millstream_specialize::chain::ChainError;
use millstream_specialize::guard::GuardError;
use millstream_specialize::pins::PinError;

use crate::exit::{Exit, WithExitCode, ended};

const DOCTOR: &str = "`millstream doctor` says what this machine permits";
const UNCHANGED: &str = "nothing was changed";
const THEIRS: &str = "another process has replaced the program; its program stays attached";

/// Lines of advice, and the exit code of a command that ends with the error.
pub(crate) type Advice = (Vec<String>, Exit);

/// Advice for an error.
pub(crate) fn on(dev: &str, pins: &Path, error: &LiveError) -> Advice {
    match error {
        LiveError::Pin(e) => of_pins(dev, e),
        LiveError::Load(LoaderError::ByteOrder(_)) => (Vec::new(), Exit::NotPermitted),
        LiveError::Load(LoaderError::Layout { .. }) => {
            let found = format!("it is pinned in {}, or held by a program that is adopted", pins.display());
            let other = format!("give --pin another directory, or remove that one; {UNCHANGED}");
            (vec![found, other], Exit::Input)
        }
        LiveError::Apart(_) => {
            let each =
                format!("each needs a session (or an entry of the configuration) of its own; {UNCHANGED}");
            (vec![each], Exit::Input)
        }
        LiveError::Other { name, .. } if name == "xdp_dispatcher" => {
            let what =
                "that is libxdp's, which calls the programs that are attached to it (`xdp-loader status`)";
            let how = "run --fuse with the objects of dispatcher and programs makes one program of them";
            (vec![what.to_owned(), format!("{how}; {UNCHANGED}")], Exit::Input)
        }
        LiveError::Other { .. } => {
            let first =
                "name the object that it was loaded from, built from the same sources by the same compiler";
            let other = "or have `any` program replaced (--adopt=any, `adopt = \"any\"`)";
            (vec![first.to_owned(), format!("{other}; {UNCHANGED}")], Exit::Input)
        }
        LiveError::Several { .. } => {
            let how = "it is identified by its name, or as the only one: detach the others";
            (vec![format!("{how}; {UNCHANGED}")], Exit::Input)
        }
        LiveError::Unsuited(_) => (vec!["`millstream inspect` shows its programs".to_owned()], Exit::Input),
        LiveError::Kind(..) | LiveError::Setting(_) | LiveError::NothingToAdopt => {
            (vec![UNCHANGED.to_owned()], Exit::Input)
        }
        LiveError::Gone(_) => (vec!["`ip link` lists the interfaces".into()], Exit::Negative),
        LiveError::Replaced { .. } => (vec![THEIRS.into()], Exit::Negative),
        LiveError::Guard(GuardError::Load(e)) if lacks_types(e) => {
            (vec!["the guard needs the kernel's BTF".into(), DOCTOR.into()], Exit::NotPermitted)
        }
        _ => of_kernel(dev, error),
    }
}

/// Advice for a chain that cannot be one program.
pub(super) fn on_chain(dev: &str, error: &ChainError) -> Advice {
    match error {
        ChainError::Kernel(e) | ChainError::Load(LoaderError::Kernel(e)) => {
            by_number(dev, e.errno(), Some(e))
        }
        ChainError::Empty | ChainError::NoComponents { .. } => {
            let how =
                format!("`xdp-loader load {dev} OBJECT...` attaches a chain; without one, leave --fuse out");
            (vec![format!("{how}; {UNCHANGED}")], Exit::Input)
        }
        ChainError::Untold => (vec![UNCHANGED.to_owned()], Exit::NotPermitted),
        ChainError::Unknown { .. } | ChainError::NoFunction(_) => {
            let which =
                "name the objects of the dispatcher and of each program that `xdp-loader status` shows";
            let built = "the very files, or ones built from the same sources by the same compiler";
            (vec![which.to_owned(), format!("{built}; {UNCHANGED}")], Exit::Input)
        }
        ChainError::Load(_) | ChainError::Types(_) => (vec![UNCHANGED.to_owned()], Exit::Input),
        ChainError::Apart(_) | ChainError::Fuse(_) => (vec![UNCHANGED.to_owned()], Exit::Negative),
    }
}

/// Returns true if the kernel's types could not be read.
fn lacks_types(error: &LoaderError) -> bool {
    match error {
        LoaderError::Read { .. } | LoaderError::Btf { .. } => true,
        LoaderError::Program { source, .. } => {
            matches!(&**source, ProgramError::Prepare(e) if lacks_types(e))
        }
        _ => false,
    }
}

fn of_pins(dev: &str, error: &PinError) -> Advice {
    match error {
        PinError::Place(PinDirError::NotBpf { .. }) => (
            vec![
                format!("{MOUNT}; or give --pin a directory of such a file system"),
                "`ip netns exec` hides the one that is mounted; `nsenter --net=/run/netns/NAME` does not"
                    .into(),
            ],
            Exit::NotPermitted,
        ),
        PinError::Place(PinDirError::Io { source, .. }) => by_number(dev, source.raw_os_error(), None),
        PinError::Place(e) => {
            (vec![e.hint(), format!("or give --pin another directory; {UNCHANGED}")], Exit::NotPermitted)
        }
        PinError::Busy { .. } => {
            (vec![format!("stop it first, or give --pin another directory; {UNCHANGED}")], Exit::Negative)
        }
        PinError::Elsewhere { .. } => {
            let help = "name that interface too, or unpin it by removing the file, or take another directory for pins";
            (vec![format!("{help}; {UNCHANGED}")], Exit::Input)
        }
        PinError::Directory { source, .. } => by_number(dev, source.raw_os_error(), None),
        PinError::Kernel(e) => by_number(dev, e.errno(), Some(e)),
    }
}

fn of_kernel(dev: &str, error: &LiveError) -> Advice {
    match kernel(error) {
        // For a link, the kernel reports this with the number that elsewhere means missing privileges.
        Some(e @ KernelError::Call { call: "bpf(LINK_UPDATE)", .. }) if e.errno() == Some(libc::EPERM) => {
            (vec![THEIRS.into()], Exit::Negative)
        }
        Some(e) => by_number(dev, e.errno(), Some(e)),
        None if rejected(error) => {
            (vec![format!("`millstream verify` shows where and why; {UNCHANGED}")], Exit::Negative)
        }
        None => (Vec::new(), Exit::Negative),
    }
}

/// Returns true if the kernel's verifier rejected the program.
fn rejected(error: &LiveError) -> bool {
    let said = |e: &ProgramError| matches!(e, ProgramError::Load(LoadError::Rejected(_)));
    match error {
        LiveError::Program(e) => said(e),
        LiveError::Load(LoaderError::Program { source, .. }) => said(source),
        _ => false,
    }
}

fn by_number(dev: &str, errno: Option<i32>, error: Option<&KernelError>) -> Advice {
    let hint = || error.and_then(|e| e.hint()).map(str::to_owned).into_iter().collect();
    match errno {
        Some(libc::EBUSY | libc::EEXIST) => (
            vec![
                format!("another program is on this interface; {UNCHANGED}"),
                format!("--adopt replaces it until the end; `ip link show dev {dev}` names it"),
            ],
            Exit::Negative,
        ),
        Some(libc::EPERM | libc::EACCES) => (vec!["run as root".into(), DOCTOR.into()], Exit::NotPermitted),
        Some(libc::EOPNOTSUPP) => (hint(), Exit::NotPermitted),
        _ => (hint(), Exit::Negative),
    }
}

/// The kernel's error, if it is one.
fn kernel(error: &LiveError) -> Option<&KernelError> {
    match error {
        LiveError::Kernel(e) | LiveError::Guard(GuardError::Kernel(e)) => Some(e),
        LiveError::Load(e) | LiveError::Guard(GuardError::Load(e)) => of_loader(e),
        LiveError::Program(e) | LiveError::Guard(GuardError::Program(e)) => of_program(e),
        _ => None,
    }
}

fn of_loader(error: &LoaderError) -> Option<&KernelError> {
    match error {
        LoaderError::Kernel(e) => Some(e),
        LoaderError::Program { source, .. } => of_program(source),
        _ => None,
    }
}

fn of_program(error: &ProgramError) -> Option<&KernelError> {
    match error {
        ProgramError::Load(LoadError::Refused(e)) | ProgramError::Prepare(LoaderError::Kernel(e)) => Some(e),
        _ => None,
    }
}

/// An error of a session that ends a command.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct SessionEnd(LiveError);

impl WithExitCode for SessionEnd {
    fn exit(&self) -> Exit {
        on("", Path::new(""), &self.0).1
    }
}

/// The report of an error of a session, with the exit code of a command that ends with it.
#[must_use]
pub fn session_ended(error: LiveError) -> miette::Report {
    ended(SessionEnd(error))
}
