//! The way of a packet through a switch, from its arrival to all packets that leave because of it.

use millstream_p4_lower::Architecture;

use crate::executor::SwitchExecutor;
use crate::switch::{MOST_RUNS, SentPacket, Switch, SwitchError};
use crate::trace::TraceEvent;
use crate::{filters, portable, v1model};

/// Nanoseconds between packets, on the switch's clock.
const PACKET_INTERVAL: u64 = 1_000_000;

impl<E: SwitchExecutor> Switch<E> {
    /// Takes a packet from a port, and gives the packets that leave.
    ///
    /// # Errors
    /// [`SwitchError`] if the engine fails, or the packet circulates without end.
    pub fn receive(&mut self, port: u64, data: &[u8]) -> Result<Vec<SentPacket>, SwitchError> {
        self.advance_time();
        self.receive_now(port, data)?;
        Ok(std::mem::take(&mut self.sent))
    }

    /// Takes packets that have come at once, each from a port, and gives the packets that leave, for each of them.
    ///
    /// # Errors
    /// As [`Switch::receive`].
    pub fn receive_batch(&mut self, packets: &[(u64, &[u8])]) -> Result<Vec<Vec<SentPacket>>, SwitchError> {
        let mut all: Vec<Vec<SentPacket>> = vec![Vec::new(); packets.len()];
        self.forward_batch(packets, &mut |at, port, data| {
            if let Some(sent) = all.get_mut(at) {
                sent.push(SentPacket { port, data: data.to_vec() });
            }
        })?;
        Ok(all)
    }

    /// Takes packets that have come at once, each from a port, and hands over those that leave: the number of the
    /// packet that caused it, its port and its bytes.
    ///
    /// # Errors
    /// As [`Switch::receive`].
    pub fn forward_batch(
        &mut self,
        packets: &[(u64, &[u8])],
        send: &mut dyn FnMut(usize, u64, &[u8]),
    ) -> Result<(), SwitchError> {
        self.advance_time();
        if let Some(ran) = self.executor.run_batch(packets, send) {
            self.collect_events();
            return Ok(ran?);
        }
        for (at, (port, data)) in packets.iter().enumerate() {
            self.receive_now(*port, data)?;
            for SentPacket { port, data } in self.sent.drain(..) {
                send(at, port, &data);
                self.buffers.give_back(data);
            }
        }
        Ok(())
    }

    /// Packets that [`Switch::receive_batch`] runs at once, if the engine has code for that.
    pub fn batch_size(&self) -> Option<usize> {
        self.executor.batch_size()
    }

    fn advance_time(&mut self) {
        self.time = match &self.clock {
            Some(clock) => clock(),
            None => self.time + PACKET_INTERVAL,
        };
        self.executor.set_time(self.time);
    }

    /// Takes a packet from a port, and leaves the packets that leave in `sent`.
    fn receive_now(&mut self, port: u64, data: &[u8]) -> Result<(), SwitchError> {
        self.note(|| TraceEvent::Arrived { port, bytes: data.len() });
        self.sent.clear();
        if let Some(sent) = self.executor.forward(port, data) {
            self.collect_events();
            self.sent = sent?;
            return Ok(());
        }
        self.queue.clear();
        match self.pipeline().architecture {
            Architecture::V1Model => v1model::arrive(self, port, data)?,
            Architecture::Psa => portable::arrive(self, port, data)?,
            _ => filters::filter(self, port, data)?,
        }
        self.collect_events();
        let mut runs = 1;
        while let Some(next) = self.queue.pop_front() {
            runs += 1;
            if runs > MOST_RUNS {
                return Err(SwitchError::Endless);
            }
            match (self.pipeline().architecture, next.is_egress) {
                (Architecture::V1Model, false) => v1model::ingress(self, next)?,
                (Architecture::V1Model, true) => v1model::egress(self, next)?,
                (_, false) => portable::portable_ingress(self, next)?,
                (_, true) => portable::portable_egress(self, next)?,
            }
            self.collect_events();
        }
        if let Some(trace) = &mut self.trace {
            let sent = self.sent.iter();
            trace.extend(sent.map(|packet| TraceEvent::Sent { port: packet.port, bytes: packet.data.len() }));
        }
        Ok(())
    }
}
