//! Packets that were not handled, by reason.

use serde::Serialize;

/// Packets dropped for a reason.
#[derive(Serialize)]
pub(crate) struct DropCount {
    pub(super) reason: &'static str,
    pub(super) packets: u64,
}

/// Packets that the kernel, or a driver of DPDK, dropped.
#[derive(Serialize)]
pub(crate) struct LostBefore {
    pub(crate) no_room: u64,
    pub(crate) unfit: u64,
}

impl LostBefore {
    /// Description, if any packets were lost.
    pub(crate) fn text(&self) -> Option<String> {
        let LostBefore { no_room, unfit } = self;
        let text =
            || format!("lost before reception: {no_room} (no free buffer), {unfit} (too long for a buffer)");
        (no_room + unfit > 0).then(text)
    }
}
