//! Counts stale packets where frames come back to the generator.
//!
//! A program at the far end of a rig with stamps ([`RigConfig::stamps`](crate::RigConfig)) looks at the
//! frames to one destination. Those that were made after an update had returned to its caller, and do not
//! carry the link-layer address of the update, are stale. So staleness is as the receiver saw it, not as the
//! sender believes.

use std::sync::atomic::Ordering;

use millstream_kernel::{ArrayMapping, KernelProgram};
use millstream_loader::ObjectLoader;
use millstream_object::Object;
use millstream_programs::STALE;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::os::monotonic_ns;
use crate::rig::TestRig;

/// Offsets in `struct stale_state` of `programs/guard/stale.bpf.c`.
mod at {
    pub(super) const DESTINATION: usize = 0;
    pub(super) const HOP: usize = 8;
    pub(super) const RETURNED: usize = 16;
    pub(super) const STALE: usize = 24;
    pub(super) const FRESH: usize = 32;
    pub(super) const BETWEEN: usize = 40;
    pub(super) const ALL: usize = 48;
    pub(super) const UNSTAMPED: usize = 56;
}

/// Counters of the far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StalenessCounts {
    /// Frames made after an update with another next hop than it gave.
    pub stale: u64,
    /// Frames made after an update with the next hop that it gave.
    pub fresh: u64,
    /// Frames that came while the expectation changed, and were not judged.
    pub between: u64,
    /// All frames that came back.
    pub all: u64,
    /// Frames to the destination without a time: of these nothing is known.
    pub unstamped: u64,
}

/// The program at the far end. Whoever changes a route says so first ([`StalenessMonitor::expect`]) and when
/// the change has returned ([`StalenessMonitor::resume_counting`]).
#[derive(Debug)]
pub struct StalenessMonitor {
    state: ArrayMapping,
    _program: KernelProgram,
}

impl StalenessMonitor {
    /// Puts the counting program in the place of the rig's own, which then counts nothing any more.
    ///
    /// # Errors
    /// If the kernel refuses an operation.
    pub fn new(rig: &TestRig) -> Result<StalenessMonitor> {
        let object = Object::parse(STALE.name, STALE.object).map_err(millstream_loader::Error::from)?;
        let mut loaded = ObjectLoader::new(&object).load()?;
        let lacks = |what| Error::Unusable(format!("the counting program lacks {what}"));
        let map = loaded.session.map_by_name("stale").ok_or_else(|| lacks("its counters"))?;
        let state = map.mmap(true)?;
        state.atomic_u64(at::RETURNED).store(u64::MAX, Ordering::SeqCst);
        let (_, program) = loaded.programs.pop().ok_or_else(|| lacks("its code"))?;
        rig.replace_sink(&program)?;
        Ok(StalenessMonitor { state, _program: program })
    }

    /// From now on nothing is judged, until [`StalenessMonitor::resume_counting`]: frames to this destination
    /// (as it stands in the packet) will carry this link-layer address.
    pub fn expect(&self, destination: [u8; 4], hop: [u8; 6]) {
        let mut wide = [0; 8];
        wide[..6].copy_from_slice(&hop);
        let set = |at, value| self.state.atomic_u64(at).store(value, Ordering::SeqCst);
        set(at::RETURNED, u64::MAX);
        set(at::DESTINATION, u32::from_ne_bytes(destination).into());
        set(at::HOP, u64::from_ne_bytes(wide));
    }

    /// The change has returned: frames made from now on are judged.
    pub fn resume_counting(&self) {
        self.state.atomic_u64(at::RETURNED).store(monotonic_ns(), Ordering::SeqCst);
    }

    /// Counts so far.
    pub fn counts(&self) -> StalenessCounts {
        let get = |at| self.state.atomic_u64(at).load(Ordering::SeqCst);
        StalenessCounts {
            stale: get(at::STALE),
            fresh: get(at::FRESH),
            between: get(at::BETWEEN),
            all: get(at::ALL),
            unstamped: get(at::UNSTAMPED),
        }
    }
}
