//! The hooks of an interface, in our hands: whose program is there, and taking its place.

use std::sync::Arc;

use crate::error::Result;
use crate::extension::ExtensionPlace;
use crate::link::{Link, XdpMode};
use crate::program::KernelProgram;
use crate::tc::{self, TcFilter};
use crate::types::AttachType;
use crate::xdp::{self, XdpHolder};

/// A place on a hook of an interface: attached by us, or adopted from whoever attached before.
#[derive(Debug)]
pub enum Hook {
    /// By a link, ours or another's, on XDP or TC. Ours detaches when dropped; another's does not.
    Link(Link),
    /// On XDP, by rtnetlink.
    Xdp {
        /// Interface index.
        ifindex: u32,
        /// Place in the receive path.
        mode: XdpMode,
    },
    /// On TC, without a link.
    Tcx {
        /// Interface index.
        ifindex: u32,
        /// The way in or out.
        attach: AttachType,
    },
    /// On TC, by a filter of rtnetlink's.
    Filter(TcFilter),
    /// On the entry of the program that is attached, which stays attached.
    Extension(Arc<ExtensionPlace>),
}

impl Hook {
    /// Takes hold of the XDP attachment, changing nothing; returns the hook and its present program.
    ///
    /// # Errors
    /// As for [`xdp::query_xdp`]; `ENOENT` if the program vanished meanwhile.
    pub fn adopt_xdp(ifindex: u32) -> Result<Option<(Self, KernelProgram)>> {
        let Some(state) = xdp::query_xdp(ifindex)? else { return Ok(None) };
        let program = KernelProgram::from_id(state.program_id)?;
        let hook = match state.holder {
            XdpHolder::Link(id) => Hook::Link(Link::from_id(id)?),
            XdpHolder::Netlink => Hook::Xdp { ifindex, mode: state.mode },
        };
        Ok(Some((hook, program)))
    }

    /// Takes hold of the TC attachments, changing nothing; returns the hooks and their present programs, in
    /// the order in which packets meet them: tcx before filters.
    ///
    /// # Errors
    /// `ENODEV`; `ENOENT` if a program vanished meanwhile.
    pub fn adopt_tc(ifindex: u32, attach: AttachType) -> Result<Vec<(Self, KernelProgram)>> {
        let mut found = Vec::new();
        let on_tcx = match tc::query_tcx(ifindex, attach) {
            // Before Linux 6.6 there is none.
            Err(e) if e.errno() == Some(libc::EINVAL) => Vec::new(),
            on_tcx => on_tcx?,
        };
        for state in on_tcx {
            let hook = match state.link_id {
                Some(id) => Hook::Link(Link::from_id(id)?),
                None => Hook::Tcx { ifindex, attach },
            };
            found.push((hook, KernelProgram::from_id(state.program_id)?));
        }
        for filter in tc::filters(ifindex, attach)? {
            let program = KernelProgram::from_id(filter.program_id)?;
            found.push((Hook::Filter(filter), program));
        }
        Ok(found)
    }

    /// The id of the program that is there now; `None` if none is, or the interface is gone. Of TC programs
    /// without a link, which have no place of their own, only the expected one is reported.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn program(&self, expected: &KernelProgram) -> Result<Option<u32>> {
        match self {
            // 0 once the interface is gone.
            Hook::Link(link) => {
                let info = link.info()?;
                Ok(info.detail.interface().map(|_| info.program_id))
            }
            Hook::Xdp { ifindex, .. } => xdp::xdp_program(*ifindex),
            Hook::Tcx { ifindex, attach } => {
                let all = match tc::query_tcx(*ifindex, *attach) {
                    Err(e) if e.errno() == Some(libc::ENODEV) => return Ok(None),
                    all => all?,
                };
                let id = expected.id()?;
                Ok(all.iter().any(|s| s.program_id == id).then_some(id))
            }
            Hook::Filter(filter) => filter.program(),
            Hook::Extension(place) => place.program(),
        }
    }

    /// Puts `new` in the place of `expected`, in one step. Restoring is this with the arguments exchanged.
    ///
    /// # Errors
    /// `EPERM` (link) or `EEXIST` (rtnetlink) if the program there is not `expected`; `ENOENT` (TC)
    /// if none is where it was. Nothing changed then.
    pub fn replace(&self, new: &KernelProgram, expected: &KernelProgram) -> Result<()> {
        match self {
            Hook::Link(link) => link.replace(new, expected),
            Hook::Xdp { ifindex, mode } => {
                xdp::replace_xdp_netlink(*ifindex, Some(new), Some(expected), *mode)
            }
            Hook::Tcx { ifindex, attach } => tc::replace_tcx(*ifindex, *attach, new, expected),
            Hook::Filter(filter) => filter.replace(new, expected),
            // Nobody else has this place.
            Hook::Extension(place) => place.replace(new),
        }
    }
}
