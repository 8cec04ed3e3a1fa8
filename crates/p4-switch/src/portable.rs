//! The replication engine of PSA: clone, drop, resubmission, multicast and unicast behind ingress; clone,
//! drop and recirculation behind egress. Source: Portable Switch Architecture 1.2, sections 6.2 and 6.5.

use crate::executor::SwitchExecutor;
use crate::state_fields::SwitchField;
use crate::switch::{SentPacket, Switch, SwitchError, WaitingPacket};

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

/// Port for recirculation.
const RECIRCULATION_PORT: u64 = 0xffff_fffa;

/// State of a packet in front of ingress.
fn ingress_state<E: SwitchExecutor>(switch: &mut Switch<E>, port: u64, path: u64) -> Vec<u8> {
    let mut state = switch.empty_state();
    let inputs = [
        (SwitchField::PsaIngressParserPort, port),
        (SwitchField::PsaIngressParserPath, path),
        (SwitchField::PsaIngressPort, port),
        (SwitchField::PsaIngressPath, path),
        (SwitchField::PsaIngressTimestamp, switch.time / 1000),
        (SwitchField::PsaIngressDrop, 1),
    ];
    switch.put_all(&mut state, &inputs);
    state
}

/// State of a packet in front of egress, with metadata of the packet's earlier state.
fn egress_state<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    (port, replica): (u64, u64),
    path: u64,
    from: &[u8],
    metadata: &str,
) -> Vec<u8> {
    let mut state = switch.empty_state();
    let inputs = [
        (SwitchField::PsaEgressParserPort, port),
        (SwitchField::PsaEgressParserPath, path),
        (SwitchField::PsaEgressPort, port),
        (SwitchField::PsaEgressPath, path),
        (SwitchField::PsaEgressClass, switch.get(from, SwitchField::PsaIngressClass)),
        (SwitchField::PsaEgressTimestamp, switch.time / 1000),
        (SwitchField::PsaEgressDeparserPort, port),
    ];
    switch.put_all(&mut state, &inputs);
    copy_metadata(switch, from, &mut state, metadata);
    switch.put_all(&mut state, &[(SwitchField::PsaEgressInstance, replica)]);
    state
}

/// Copies all fields of a part of the state.
fn copy_metadata<E: SwitchExecutor>(switch: &Switch<E>, from: &[u8], to: &mut [u8], part: &str) {
    let is_own = |name: &str| name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
    for field in switch.pipeline().state.fields.iter().filter(|field| is_own(&field.name)) {
        let range = field.offset as usize..(field.offset + field.bits.div_ceil(8)) as usize;
        if let (Some(from), Some(to)) = (from.get(range.clone()), to.get_mut(range)) {
            to.copy_from_slice(from);
        }
    }
}

/// Sends copies to egress.
fn replicate_to_egress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    targets: &[(u64, u64)],
    (packet, path): (&[u8], u64),
    (from, metadata): (&[u8], &str),
) {
    for target in targets {
        let state = egress_state(switch, *target, path, from, metadata);
        let packet = switch.buffers.copy(packet);
        switch.queue.push_back(WaitingPacket { is_egress: true, port: target.0, packet, state });
    }
}

/// Runs ingress on a packet from a port.
pub(crate) fn arrive<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    port: u64,
    data: &[u8],
) -> Result<(), SwitchError> {
    let (state, packet) = (ingress_state(switch, port, packet_path::NORMAL), switch.buffers.copy(data));
    portable_ingress(switch, WaitingPacket { is_egress: false, port, packet, state })
}

pub(crate) fn portable_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    let original = switch.buffers.copy(&packet);
    switch.run_stage("ingress", &mut state, &mut packet)?;
    behind_ingress(switch, port, (&original, &packet), &state);
    [original, packet, state].into_iter().for_each(|buffer| switch.buffers.give_back(buffer));
    Ok(())
}

/// Does the work of the replication engine behind ingress, for the packet as it was in front of ingress and as it is.
fn behind_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    port: u64,
    (original, packet): (&[u8], &[u8]),
    state: &[u8],
) {
    if switch.get(state, SwitchField::AssertionFailed) != 0
        || switch.get(state, SwitchField::DeparserOverflow) != 0
    {
        return;
    }
    if switch.get(state, SwitchField::PsaIngressClone) != 0 {
        let targets = switch.mirror_targets(switch.get(state, SwitchField::PsaIngressCloneSession));
        replicate_to_egress(
            switch,
            &targets,
            (original, packet_path::INGRESS_CLONE),
            (state, "clone_i2e_meta"),
        );
    }
    if switch.get(state, SwitchField::PsaIngressDrop) != 0 {
        return;
    }
    if switch.get(state, SwitchField::PsaIngressResubmit) != 0 {
        let mut again = ingress_state(switch, port, packet_path::RESUBMITTED);
        copy_metadata(switch, state, &mut again, "resubmit_meta");
        let packet = switch.buffers.copy(original);
        switch.queue.push_back(WaitingPacket { is_egress: false, port, packet, state: again });
        return;
    }
    match switch.get(state, SwitchField::PsaIngressGroup) {
        0 => {
            let target = (switch.get(state, SwitchField::PsaIngressTarget), 0);
            replicate_to_egress(switch, &[target], (packet, packet_path::UNICAST), (state, "normal_meta"));
        }
        group => {
            let targets = switch.group_targets(group);
            replicate_to_egress(switch, &targets, (packet, packet_path::MULTICAST), (state, "normal_meta"));
        }
    }
}

pub(crate) fn portable_egress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    switch.run_stage("egress", &mut state, &mut packet)?;
    match leaves(switch, &packet, &state) {
        true if port == RECIRCULATION_PORT => {
            let mut again = ingress_state(switch, port, packet_path::RECIRCULATED);
            copy_metadata(switch, &state, &mut again, "recirculate_meta");
            switch.queue.push_back(WaitingPacket { is_egress: false, port, packet, state: again });
        }
        true => switch.sent.push(SentPacket { port, data: packet }),
        false => switch.buffers.give_back(packet),
    }
    switch.buffers.give_back(state);
    Ok(())
}

/// Returns true if a packet behind egress is not dropped. A clone is queued.
fn leaves<E: SwitchExecutor>(switch: &mut Switch<E>, packet: &[u8], state: &[u8]) -> bool {
    if switch.get(state, SwitchField::AssertionFailed) != 0
        || switch.get(state, SwitchField::DeparserOverflow) != 0
    {
        return false;
    }
    if switch.get(state, SwitchField::PsaEgressClone) != 0 {
        let targets = switch.mirror_targets(switch.get(state, SwitchField::PsaEgressCloneSession));
        replicate_to_egress(switch, &targets, (packet, packet_path::EGRESS_CLONE), (state, "clone_e2e_meta"));
    }
    switch.get(state, SwitchField::PsaEgressDrop) == 0
}
