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

/// Runs the function, and sends what passes. A uBPF program that says nothing, or whose parser rejects
/// the packet, passes it; the other models drop what the parser rejects.
pub(crate) fn filter<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
) -> Result<Vec<SentPacket>, SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    switch.put(&mut state, "standard_metadata.input_port", port);
    switch.put(&mut state, "standard_metadata.packet_length", packet.len() as u64);
    switch.put(&mut state, "standard_metadata.output_action", output_action::PASS);
    switch.put(&mut state, "input.input_port", port);
    switch.run_stage("filter", &mut state, &mut packet)?;
    let stops = ["engine.assertion_failed", "engine.deparser_overflow"];
    if stops.iter().any(|name| switch.get(&state, name) != 0) {
        return Ok(Vec::new());
    }
    if switch.get(&state, "engine.rejected") != 0 {
        let passes = switch.pipeline().architecture == Architecture::Ubpf;
        return Ok(passes.then_some(SentPacket { port, data: packet }).into_iter().collect());
    }
    if switch.get(&state, "engine.truncates") != 0 {
        packet.truncate(switch.get(&state, "engine.truncated_length") as usize);
    }
    let mut sent = Vec::new();
    let target = match switch.pipeline().architecture {
        Architecture::Filter => (switch.get(&state, "accept") != 0).then_some(port),
        Architecture::Ubpf => {
            if switch.get(&state, "standard_metadata.clone") != 0 {
                let port = switch.get(&state, "standard_metadata.clone_port");
                sent.push(SentPacket { port, data: packet.clone() });
            }
            match switch.get(&state, "standard_metadata.output_action") {
                output_action::PASS => Some(port),
                output_action::UBPF_REDIRECT => Some(switch.get(&state, "standard_metadata.output_port")),
                _ => None,
            }
        }
        _ => match switch.get(&state, "output.output_action") {
            output_action::PASS | output_action::XDP_TRANSMIT => Some(port),
            output_action::XDP_REDIRECT => Some(switch.get(&state, "output.output_port")),
            _ => None,
        },
    };
    sent.extend(target.map(|port| SentPacket { port, data: packet }));
    Ok(sent)
}
