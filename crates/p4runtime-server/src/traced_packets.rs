//! Packets that are traced on their way through a controlled switch.

use millstream_p4_switch::{SwitchError, TraceEvent};

use crate::controlled::ControlledSwitch;
use crate::moves::MovedPackets;
use crate::tracer::PacketTracer;

impl ControlledSwitch {
    /// Moves a packet that came in at a port, and gives the events on its way: those of a replay in the
    /// interpreter, with copies of the tables as they are.
    ///
    /// # Errors
    /// As for [`ControlledSwitch::receive`]; the events are those until then.
    pub fn receive_traced(
        &mut self,
        port: u64,
        data: &[u8],
    ) -> (Result<MovedPackets, SwitchError>, Vec<TraceEvent>) {
        let events = self.replay(port, data);
        (self.receive(port, data), events)
    }

    fn replay(&mut self, port: u64, data: &[u8]) -> Vec<TraceEvent> {
        let now = self.now();
        let mut tracer = match self.tracer.take() {
            Some(tracer) => tracer,
            None => match PacketTracer::new(&self.program.lowered, &self.program.traced) {
                Ok(tracer) => tracer,
                Err(error) => {
                    tracing::warn!("packets cannot be traced: {error}");
                    return Vec::new();
                }
            },
        };
        let events = tracer.replay(&mut self.switch, now, (port, data));
        self.tracer = Some(tracer);
        events
    }

    /// Notes that the control plane changes something.
    pub(crate) fn note_write(&mut self) {
        if let Some(tracer) = &mut self.tracer {
            tracer.note_write();
        }
    }
}
