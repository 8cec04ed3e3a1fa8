//! Hook of a session: the attachments, and the packets that come there.

use std::collections::BTreeSet;

use millstream_kernel::KernelProgram;

use super::LiveError;
use super::packet_counters::PacketCounters;
use crate::attachment::{HookAttachments, HookInfo};
use crate::pins::{PinDir, PinDirLock};
use crate::report::AttachedInterface;

/// The hook that a session holds.
#[derive(Debug)]
pub(super) struct SessionHook {
    pub(super) pins: PinDir,
    /// Names of the maps that outlive the session.
    pub(super) kept: BTreeSet<String>,
    pub(super) attachments: Option<HookAttachments>,
    pub(super) claim: Option<PinDirLock>,
    pub(super) received: PacketCounters,
    /// Packets that variants had passed on to the original before the program was attached.
    pub(super) missed_before: u64,
    /// Packets received when the traffic was last looked at.
    looked_at: u64,
}

impl SessionHook {
    pub(super) fn new(pins: PinDir, claim: PinDirLock, kept: BTreeSet<String>) -> SessionHook {
        SessionHook {
            pins,
            kept,
            attachments: None,
            claim: Some(claim),
            received: PacketCounters::default(),
            missed_before: 0,
            looked_at: 0,
        }
    }

    /// The attachments.
    ///
    /// # Errors
    /// [`LiveError::NotAttached`].
    pub(super) fn attached(&mut self) -> Result<&mut HookAttachments, LiveError> {
        self.attachments.as_mut().ok_or(LiveError::NotAttached)
    }

    /// Holds these attachments from now on; `missed` packets were passed on to the original before.
    pub(super) fn hold(&mut self, attachments: HookAttachments, egress: bool, missed: u64) {
        let names = attachments.held().into_iter().map(|h| h.interface).collect();
        self.attachments = Some(attachments);
        self.received = PacketCounters::at(names, egress);
        self.looked_at = self.received.count();
        self.missed_before = missed;
    }

    pub(super) fn held(&self) -> Vec<HookInfo> {
        self.attachments.as_ref().map_or_else(Vec::new, HookAttachments::held)
    }

    pub(super) fn interfaces(&self) -> Vec<AttachedInterface> {
        self.held().into_iter().map(AttachedInterface::from).collect()
    }

    /// Number of programs put onto the hook.
    pub(super) fn swaps(&self) -> u64 {
        self.attachments.as_ref().map_or(0, HookAttachments::swaps)
    }

    /// Puts a program onto the hook in the place of the present one.
    pub(super) fn swap(&mut self, new: KernelProgram, specialised: bool) -> Result<(), LiveError> {
        self.attached()?.swap(new)?;
        self.received.turn(specialised);
        Ok(())
    }

    /// Counts the packets; returns true if some have come since the last look, or nobody counts them.
    pub(super) fn has_new_packets(&mut self) -> bool {
        let count = self.received.count();
        !self.received.known() || count != std::mem::replace(&mut self.looked_at, count)
    }

    /// Counts packets from now on for [`SessionHook::has_new_packets`].
    pub(super) fn note_look(&mut self) {
        self.looked_at = self.received.count();
    }
}
