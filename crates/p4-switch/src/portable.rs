//! The replication engine of PSA: clone, drop, resubmission, multicast and unicast behind ingress; clone,
//! drop and recirculation behind egress. Source: Portable Switch Architecture 1.2, sections 6.2 and 6.5.

use crate::executor::SwitchExecutor;
use crate::switch::{SentPacket, Switch, SwitchError, WaitingPacket, WaitingQueue};

/// Values of `PSA_PacketPath_t`.
mod packet_path {
    pub(super) const NORMAL: u64 = 0;
    pub(super) const UNICAST: u64 = 1;
    pub(super) const MULTICAST: u64 = 2;
    pub(super) const INGRESS_CLONE: u64 = 3;
    pub(super) const EGRESS_CLONE: u64 = 4;
    pub(super) const RESUBMITTED: u64 = 5;
    pub(super) const RECIRCULATED: u64 = 6;
}

/// Path of a packet that comes from a port.
pub(crate) const NORMAL_PATH: u64 = packet_path::NORMAL;
/// Port for recirculation.
const RECIRCULATION_PORT: u64 = 0xffff_fffa;

/// State of a packet in front of ingress.
pub(crate) fn ingress_state<E: SwitchExecutor>(switch: &Switch<E>, port: u64, path: u64) -> Vec<u8> {
    let mut state = switch.empty_state();
    for (name, value) in [
        ("ingress_parser_input.ingress_port", port),
        ("ingress_parser_input.packet_path", path),
        ("ingress_input.ingress_port", port),
        ("ingress_input.packet_path", path),
        ("ingress_input.ingress_timestamp", switch.time / 1000),
        ("ingress_output.drop", 1),
    ] {
        switch.put(&mut state, name, value);
    }
    state
}

/// State of a packet in front of egress, with metadata of the packet's earlier state.
fn egress_state<E: SwitchExecutor>(
    switch: &Switch<E>,
    port: u64,
    path: u64,
    from: &[u8],
    metadata: &str,
) -> Vec<u8> {
    let mut state = switch.empty_state();
    for (name, value) in [
        ("egress_parser_input.egress_port", port),
        ("egress_parser_input.packet_path", path),
        ("egress_input.egress_port", port),
        ("egress_input.packet_path", path),
        ("egress_input.class_of_service", switch.get(from, "ingress_output.class_of_service")),
        ("egress_input.egress_timestamp", switch.time / 1000),
        ("egress_deparser_input.egress_port", port),
    ] {
        switch.put(&mut state, name, value);
    }
    copy_metadata(switch, from, &mut state, metadata);
    state
}

/// Copies all fields of a part of the state.
fn copy_metadata<E: SwitchExecutor>(switch: &Switch<E>, from: &[u8], to: &mut [u8], name: &str) {
    let prefix = format!("{name}.");
    for field in switch.pipeline().state.fields.iter().filter(|field| field.name.starts_with(&prefix)) {
        let range = field.offset as usize..(field.offset + field.bits.div_ceil(8)) as usize;
        if let (Some(from), Some(to)) = (from.get(range.clone()), to.get_mut(range)) {
            to.copy_from_slice(from);
        }
    }
}

/// Sends copies to egress.
fn replicate_to_egress<E: SwitchExecutor>(
    switch: &Switch<E>,
    targets: &[(u64, u64)],
    (packet, path): (&[u8], u64),
    (from, metadata): (&[u8], &str),
    queue: &mut WaitingQueue,
) {
    for (port, replica) in targets {
        let mut state = egress_state(switch, *port, path, from, metadata);
        switch.put(&mut state, "egress_input.instance", *replica);
        let packet = packet.to_vec();
        queue.push_back(WaitingPacket { is_egress: true, port: *port, packet, state });
    }
}

pub(crate) fn portable_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
    queue: &mut WaitingQueue,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    let original = packet.clone();
    switch.run_stage("ingress", &mut state, &mut packet)?;
    if switch.get(&state, "engine.assertion_failed") != 0
        || switch.get(&state, "engine.deparser_overflow") != 0
    {
        return Ok(());
    }
    let output = |name: &str| switch.get(&state, name);
    if output("ingress_output.clone") != 0 {
        let targets = switch.mirror_targets(output("ingress_output.clone_session_id"));
        let copy = (&original[..], packet_path::INGRESS_CLONE);
        replicate_to_egress(switch, &targets, copy, (&state, "clone_i2e_meta"), queue);
    }
    if output("ingress_output.drop") != 0 {
        return Ok(());
    }
    if output("ingress_output.resubmit") != 0 {
        let mut again = ingress_state(switch, port, packet_path::RESUBMITTED);
        copy_metadata(switch, &state, &mut again, "resubmit_meta");
        queue.push_back(WaitingPacket { is_egress: false, port, packet: original, state: again });
        return Ok(());
    }
    let group = output("ingress_output.multicast_group");
    let (targets, path) = match group {
        0 => (vec![(output("ingress_output.egress_port"), 0)], packet_path::UNICAST),
        _ => (switch.group_targets(group), packet_path::MULTICAST),
    };
    replicate_to_egress(switch, &targets, (&packet, path), (&state, "normal_meta"), queue);
    Ok(())
}

pub(crate) fn portable_egress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
    queue: &mut WaitingQueue,
) -> Result<Option<SentPacket>, SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    switch.run_stage("egress", &mut state, &mut packet)?;
    if switch.get(&state, "engine.assertion_failed") != 0
        || switch.get(&state, "engine.deparser_overflow") != 0
    {
        return Ok(None);
    }
    if switch.get(&state, "egress_output.clone") != 0 {
        let targets = switch.mirror_targets(switch.get(&state, "egress_output.clone_session_id"));
        let copy = (&packet[..], packet_path::EGRESS_CLONE);
        replicate_to_egress(switch, &targets, copy, (&state, "clone_e2e_meta"), queue);
    }
    if switch.get(&state, "egress_output.drop") != 0 {
        return Ok(None);
    }
    if port == RECIRCULATION_PORT {
        let mut again = ingress_state(switch, port, packet_path::RECIRCULATED);
        copy_metadata(switch, &state, &mut again, "recirculate_meta");
        queue.push_back(WaitingPacket { is_egress: false, port, packet, state: again });
        return Ok(None);
    }
    Ok(Some(SentPacket { port, data: packet }))
}
