//! The eBPF, uBPF and XDP models: one function decides about a packet.

use millstream_p4_lower::Architecture;

use crate::executor::SwitchExecutor;
use crate::switch::{SentPacket, Switch, SwitchError, WaitingPacket};

/// Actions of uBPF and XDP programs that send a packet; in both, 2 passes it to the port that it came from.
mod output_action {
    pub(super) const PASS: u64 = 2;
    pub(super) const UBPF_REDIRECT: u64 = 3;
    pub(super) const XDP_TRANSMIT: u64 = 3;
    pub(super) const XDP_REDIRECT: u64 = 4;
}

impl<E: SwitchExecutor> Switch<E> {
    /// Runs the function, and sends what passes. A uBPF program that says nothing, or whose parser rejects
    /// the packet, passes it; the other models drop what the parser rejects.
    pub(crate) fn filter(&mut self, waiting: WaitingPacket) -> Result<Vec<SentPacket>, SwitchError> {
        let WaitingPacket { port, mut packet, mut state, .. } = waiting;
        self.put(&mut state, "standard_metadata.input_port", port);
        self.put(&mut state, "standard_metadata.packet_length", packet.len() as u64);
        self.put(&mut state, "standard_metadata.output_action", output_action::PASS);
        self.put(&mut state, "input.input_port", port);
        self.run_stage("filter", &mut state, &mut packet)?;
        let stops = ["assertion_failed", "deparser_overflow"];
        if stops.iter().any(|name| self.engine(&state, name) != 0) {
            return Ok(Vec::new());
        }
        if self.engine(&state, "rejected") != 0 {
            let passes = self.pipeline().architecture == Architecture::Ubpf;
            return Ok(passes.then_some(SentPacket { port, data: packet }).into_iter().collect());
        }
        if self.engine(&state, "truncates") != 0 {
            packet.truncate(self.engine(&state, "truncated_length") as usize);
        }
        let mut sent = Vec::new();
        let target = match self.pipeline().architecture {
            Architecture::Filter => (self.get(&state, "accept") != 0).then_some(port),
            Architecture::Ubpf => {
                if self.get(&state, "standard_metadata.clone") != 0 {
                    let port = self.get(&state, "standard_metadata.clone_port");
                    sent.push(SentPacket { port, data: packet.clone() });
                }
                match self.get(&state, "standard_metadata.output_action") {
                    output_action::PASS => Some(port),
                    output_action::UBPF_REDIRECT => Some(self.get(&state, "standard_metadata.output_port")),
                    _ => None,
                }
            }
            _ => match self.get(&state, "output.output_action") {
                output_action::PASS | output_action::XDP_TRANSMIT => Some(port),
                output_action::XDP_REDIRECT => Some(self.get(&state, "output.output_port")),
                _ => None,
            },
        };
        sent.extend(target.map(|port| SentPacket { port, data: packet }));
        Ok(sent)
    }
}
