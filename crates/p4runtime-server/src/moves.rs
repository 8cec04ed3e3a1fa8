//! Packets on their way through a controlled switch, one by one or in batches.

use millstream_p4_lower::MessageSpec;
use millstream_p4_switch::{SentPacket, SwitchError, SwitchEvent};
use millstream_p4runtime::entities::{EntityError, ErrorKind};
use millstream_p4runtime::proto::v1::{PacketIn, PacketOut};
use num_bigint::BigUint;

use crate::controlled::ControlledSwitch;

/// Results of a packet.
#[derive(Debug, Default)]
pub struct MovedPackets {
    /// Packets that leave by ports.
    pub sent: Vec<SentPacket>,
    /// Packets for controllers.
    pub for_controllers: Vec<PacketIn>,
    /// Messages that the program logged.
    pub messages: Vec<String>,
}

impl ControlledSwitch {
    /// Moves a packet that came in at a port.
    ///
    /// # Errors
    /// [`SwitchError`] if the engine fails, or the packet circulates without end.
    pub fn receive(&mut self, port: u64, data: &[u8]) -> Result<MovedPackets, SwitchError> {
        let sent = self.switch.receive(port, data);
        let messages = self.take_events();
        Ok(MovedPackets { messages, ..self.sort(sent?) })
    }

    /// Packets that [`ControlledSwitch::receive_batch`] moves at once, if the engine has code for that.
    pub fn batch_size(&self) -> Option<usize> {
        self.switch.batch_size()
    }

    /// Moves packets that came in at ports at once, and gives the results for each of them. The messages of all are
    /// in the first one's.
    ///
    /// # Errors
    /// As for [`ControlledSwitch::receive`]; then all packets are lost.
    pub fn receive_batch(&mut self, packets: &[(u64, &[u8])]) -> Result<Vec<MovedPackets>, SwitchError> {
        let sent = self.switch.receive_batch(packets);
        let messages = self.take_events();
        let mut moved: Vec<MovedPackets> = sent?.into_iter().map(|sent| self.sort(sent)).collect();
        if let Some(first) = moved.first_mut() {
            first.messages = messages;
        }
        Ok(moved)
    }

    /// Moves packets that came in at ports at once, and counts those that leave, at ports or to controllers. What the
    /// program sends beside packets is lost.
    ///
    /// # Errors
    /// As for [`ControlledSwitch::receive_batch`].
    pub fn count_batch(&mut self, packets: &[(u64, &[u8])]) -> Result<u64, SwitchError> {
        let mut count = 0;
        let moved = self.switch.forward_batch(packets, &mut |_, _, _| count += 1);
        self.switch.events.clear();
        moved.map(|()| count)
    }

    /// Takes what the program has sent beside packets: digests for controllers, and messages, which are returned.
    fn take_events(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        let now = self.now();
        for event in std::mem::take(&mut self.switch.events) {
            match event {
                SwitchEvent::Digest(number, data) => {
                    let enabled =
                        self.bindings.digests.get(&number).filter(|id| self.store.digest(**id).is_some());
                    if let Some(id) = enabled {
                        self.digests.add(*id, data, now);
                    }
                }
                SwitchEvent::Message(number, data) => {
                    let spec = self.program.lowered.pipeline.messages.get(number);
                    messages.extend(spec.map(|spec| message_text(spec, &data)));
                }
            }
        }
        messages
    }

    /// Sorts out the packets for controllers.
    fn sort(&self, sent: Vec<SentPacket>) -> MovedPackets {
        let mut moved = MovedPackets::default();
        let cpu_port = self.cpu_port();
        for packet in sent {
            match Some(packet.port) == cpu_port {
                true => moved.for_controllers.push(self.headers.decode(&packet.data)),
                false => moved.sent.push(packet),
            }
        }
        moved
    }

    /// Moves a packet of a controller.
    ///
    /// # Errors
    /// If its header is not the program's, or the program fails.
    pub fn receive_from_controller(&mut self, packet: &PacketOut) -> Result<MovedPackets, EntityError> {
        let Some(port) = self.cpu_port() else {
            let message = "the program has no header for packets of controllers; --cpu-port names a port";
            return Err(EntityError::new(ErrorKind::FailedPrecondition, message));
        };
        let data = self.headers.encode(packet)?;
        self.receive(port, &data).map_err(|error| EntityError::new(ErrorKind::Aborted, error.to_string()))
    }
}

/// Text of a message: its format with the fields.
fn message_text(spec: &MessageSpec, data: &[u8]) -> String {
    let whole = BigUint::from_bytes_be(data);
    let mut left: u64 = spec.bits.iter().map(|bits| u64::from(*bits)).sum();
    let mut values = spec.bits.iter().map(|bits| {
        left = left.saturating_sub(u64::from(*bits));
        (&whole >> left) & ((BigUint::from(1u8) << *bits) - 1u8)
    });
    let mut parts = spec.text.split("{}");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += &values.next().map_or("{}".to_owned(), |value| value.to_string());
        text += part;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_messages_are_cut_from_packed_bits() {
        let spec = MessageSpec { text: "port {} of {}, {}".into(), bits: vec![9, 7] };
        assert_eq!(message_text(&spec, &[0x81, 0x05]), "port 258 of 5, {}");
    }
}
