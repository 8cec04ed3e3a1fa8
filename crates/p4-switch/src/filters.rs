//! The eBPF, uBPF and XDP models: one function decides about a packet.

use millstream_p4_lower::Architecture;

use crate::executor::SwitchExecutor;
use crate::state_fields::SwitchField;
use crate::switch::{SentPacket, Switch, SwitchError};

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
    port: u64,
    data: &[u8],
) -> Result<(), SwitchError> {
    let (mut state, mut packet) = (switch.empty_state(), switch.buffers.copy(data));
    let inputs = [
        (SwitchField::FilterInputPort, port),
        (SwitchField::PacketLength, packet.len() as u64),
        (SwitchField::FilterOutputAction, output_action::PASS),
        (SwitchField::XdpInputPort, port),
    ];
    switch.put_all(&mut state, &inputs);
    switch.run_stage("filter", &mut state, &mut packet)?;
    let target = target(switch, port, &state, &mut packet);
    switch.buffers.give_back(state);
    match target {
        Some(port) => switch.sent.push(SentPacket { port, data: packet }),
        None => switch.buffers.give_back(packet),
    }
    Ok(())
}

/// Port by which a packet leaves behind the function, if it does. A clone is sent.
fn target<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    port: u64,
    state: &[u8],
    packet: &mut Vec<u8>,
) -> Option<u64> {
    let stops = [SwitchField::AssertionFailed, SwitchField::DeparserOverflow];
    if stops.iter().any(|field| switch.get(state, *field) != 0) {
        return None;
    }
    let architecture = switch.pipeline().architecture;
    if switch.get(state, SwitchField::Rejected) != 0 {
        return (architecture == Architecture::Ubpf).then_some(port);
    }
    if switch.get(state, SwitchField::Truncates) != 0 {
        packet.truncate(switch.get(state, SwitchField::TruncatedLength) as usize);
    }
    match architecture {
        Architecture::Filter => (switch.get(state, SwitchField::Accept) != 0).then_some(port),
        Architecture::Ubpf => {
            if switch.get(state, SwitchField::FilterClone) != 0 {
                let port = switch.get(state, SwitchField::FilterClonePort);
                let data = switch.buffers.copy(packet);
                switch.sent.push(SentPacket { port, data });
            }
            match switch.get(state, SwitchField::FilterOutputAction) {
                output_action::PASS => Some(port),
                output_action::UBPF_REDIRECT => Some(switch.get(state, SwitchField::FilterOutputPort)),
                _ => None,
            }
        }
        _ => match switch.get(state, SwitchField::XdpOutputAction) {
            output_action::PASS | output_action::XDP_TRANSMIT => Some(port),
            output_action::XDP_REDIRECT => Some(switch.get(state, SwitchField::XdpOutputPort)),
            _ => None,
        },
    }
}
