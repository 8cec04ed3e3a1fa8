//! Timing on the live rig: real frames of many flows, the devices' cost included.
//!
//! The trampoline is the program at the rig's test port. Here misses and mispredictions are in play that a
//! test run of one packet never sees; in turn, differences below a nanosecond are lost in the devices' noise.

use millstream_kernel::{KernelMap, KernelProgram};

use super::trampoline::{LoadAttributes, TrampolineTable};
use super::{CopyTimer, HarnessWork, TimingHarness};
use crate::error::{Error, Result};
use crate::os;
use crate::rig::{FrameSender, TestRig};

/// Frames of a timed run: about a millisecond. In that time the cost of a call (10 µs) is a nanosecond a
/// frame, the same for all sides, and disturbances mostly fall between runs.
const WINDOW: u32 = 8_192;

/// Frames of a timed run on a machine that is too slow for [`WINDOW`].
const LEAST: u32 = 512;

/// Live frames on a rig that has its traffic.
#[derive(Debug)]
pub struct LiveHarness<'a> {
    rig: &'a TestRig,
    table: TrampolineTable,
    trampoline: Option<KernelProgram>,
}

impl<'a> LiveHarness<'a> {
    /// A harness for programs that were loaded alike. The rig's test port is taken.
    ///
    /// # Errors
    /// If the kernel refuses an operation.
    pub fn new(rig: &'a TestRig, alike: LoadAttributes) -> Result<Self> {
        Ok(LiveHarness { rig, table: TrampolineTable::new(alike)?, trampoline: None })
    }
}

impl TimingHarness for LiveHarness<'_> {
    fn renew(&mut self) -> Result<()> {
        let program = self.table.trampoline(None)?;
        self.rig.attach(&program)?;
        self.trampoline = Some(program);
        Ok(())
    }

    fn table(&self) -> &KernelMap {
        &self.table.programs
    }

    fn time(&self, work: HarnessWork<'_>) -> Result<()> {
        let before = self.rig.counts()?;
        self.rig.enter(|sender| {
            os::raise_sender_priority();
            work(&mut LiveTimer { sender, table: &self.table })
        })??;
        // With a frame lost, runs of different sides would not have done the same work.
        match (self.rig.counts()? - before).lost() {
            0 => Ok(()),
            lost => Err(Error::Lost(lost)),
        }
    }
}

struct LiveTimer<'a, 'b> {
    sender: &'a mut FrameSender<'b>,
    table: &'a TrampolineTable,
}

impl CopyTimer for LiveTimer<'_, '_> {
    fn select(&mut self, slot: usize) {
        self.table.select(slot);
    }

    fn run(&mut self, packets: u32) -> Result<f64> {
        Ok(self.sender.send(packets)?.ns_per_packet())
    }

    fn calibrate(&mut self) -> Result<u32> {
        Ok(WINDOW)
    }

    fn warm(&self) -> u32 {
        0
    }

    fn least(&self) -> u32 {
        LEAST
    }
}
