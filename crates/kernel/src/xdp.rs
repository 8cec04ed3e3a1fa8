//! The XDP hook of an interface: its holder, and taking its place.
//!
//! A program gets onto the hook either by a link, which belongs to the holder of its descriptor or pin, or by
//! rtnetlink (`ip link set dev X xdp ...`), which belongs to the interface. Either can be replaced by compare
//! and swap, so that nothing is changed if another process was faster.

use crate::error::{KernelError, Result};
use crate::iface::{self, IFLA_XDP};
use crate::info::{self, LinkDetail};
use crate::link::{Link, XdpMode};
use crate::netlink::{NetlinkRequest, u32_at};
use crate::program::KernelProgram;
use crate::sys::uapi;

const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const ATTACHED_NATIVE: u8 = 1;
const ATTACHED_GENERIC: u8 = 2;
const ATTACHED_HARDWARE: u8 = 3;

/// Mechanism that holds the program on the hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpHolder {
    /// A link, with its id.
    Link(u32),
    /// rtnetlink.
    Netlink,
}

/// State of the XDP hook of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpState {
    /// Id of the program.
    pub program_id: u32,
    /// Place in the receive path.
    pub mode: XdpMode,
    /// Mechanism that holds it there.
    pub holder: XdpHolder,
}

/// Returns the state of the XDP hook of an interface; `None` if it is empty.
///
/// # Errors
/// `ENODEV`; `EPERM` without CAP_SYS_ADMIN, for links are found by enumeration. An interface with programs in
/// several modes at once is refused.
pub fn query_xdp(ifindex: u32) -> Result<Option<XdpState>> {
    let found = iface::interface(ifindex)?;
    let get = |kind| found.xdp.iter().find(|(k, _)| *k == kind).map(|(_, p)| p.as_slice());
    let mode = match get(IFLA_XDP_ATTACHED).and_then(|p| p.first()) {
        None | Some(0) => return Ok(None),
        Some(&ATTACHED_NATIVE) => XdpMode::Native,
        Some(&ATTACHED_GENERIC) => XdpMode::Generic,
        Some(&ATTACHED_HARDWARE) => XdpMode::Hardware,
        Some(_) => {
            return Err(KernelError::argument(
                format!("asking what XDP runs on {:?}", found.name),
                "programs are attached in several modes at once; detach all but one",
            ));
        }
    };
    let Some(program_id) = get(IFLA_XDP_PROG_ID).and_then(|p| u32_at(p, 0)) else { return Ok(None) };
    let holder = link_of(ifindex, program_id)?.map_or(XdpHolder::Netlink, XdpHolder::Link);
    Ok(Some(XdpState { program_id, mode, holder }))
}

/// The id of the program on the XDP hook of an interface, whoever put it there; `None` if nothing is, or the
/// interface is gone.
///
/// # Errors
/// If the kernel does not answer.
pub fn xdp_program(ifindex: u32) -> Result<Option<u32>> {
    let found = match iface::interface(ifindex) {
        Err(e) if e.errno() == Some(libc::ENODEV) => return Ok(None),
        found => found?,
    };
    let id = found.xdp.iter().find(|(kind, _)| *kind == IFLA_XDP_PROG_ID).and_then(|(_, p)| u32_at(p, 0));
    Ok(id.filter(|id| *id != 0))
}

/// The XDP link with this program on this interface. Interface numbers repeat across namespaces, so
/// both are compared.
fn link_of(ifindex: u32, program_id: u32) -> Result<Option<u32>> {
    for id in info::link_ids()? {
        // A link may vanish between the listing and the look.
        let Ok(link) = Link::from_id(id) else { continue };
        let Ok(info) = link.info() else { continue };
        if info.detail == (LinkDetail::Xdp { ifindex }) && info.program_id == program_id {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Replaces what rtnetlink put onto the hook: `expected` (or nothing) by `new` (or nothing), in one step.
///
/// # Errors
/// `EEXIST` if the program there is not `expected`, `EBUSY` if a link holds the hook; nothing changed then.
pub fn replace_xdp_netlink(
    ifindex: u32,
    new: Option<&KernelProgram>,
    expected: Option<&KernelProgram>,
    mode: XdpMode,
) -> Result<()> {
    let fd = |p: Option<&KernelProgram>| p.map_or(-1i32, |p| p.raw() as i32).to_ne_bytes();
    let flags = mode.flags() | uapi::XDP_FLAGS_REPLACE;
    let mut request = NetlinkRequest::link(libc::RTM_SETLINK, 0, ifindex, 0, 0);
    request.nest(IFLA_XDP, &[], |r| {
        r.attribute(IFLA_XDP_FD, &fd(new));
        r.attribute(IFLA_XDP_FLAGS, &flags.to_ne_bytes());
        r.attribute(IFLA_XDP_EXPECTED_FD, &fd(expected));
    });
    request.send(&format!("replacing the XDP program of interface {ifindex}")).map(drop)
}
