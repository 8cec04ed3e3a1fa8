//! The traffic manager of v1model. The order of operations is that of the reference software switch: clone,
//! resubmission, multicast, unicast or drop behind ingress; clone, drop, recirculation behind egress.

use millstream_p4_lower::DROP_PORT;

use crate::executor::{SwitchExecutor, UnicastOutcome};
use crate::state_fields::SwitchField;
use crate::switch::{SentPacket, Switch, SwitchError, WaitingPacket};

/// Values of `instance_type`.
mod instance_type {
    pub(super) const NORMAL: u64 = 0;
    pub(super) const INGRESS_CLONE: u64 = 1;
    pub(super) const EGRESS_CLONE: u64 = 2;
    pub(super) const RECIRCULATED: u64 = 4;
    pub(super) const REPLICATED: u64 = 5;
    pub(super) const RESUBMITTED: u64 = 6;
}

/// Sets what a packet brings along.
fn put_inputs<E: SwitchExecutor>(
    switch: &Switch<E>,
    state: &mut [u8],
    (port, packet): (u64, &[u8]),
    kind: u64,
) {
    let inputs = [
        (SwitchField::IngressPort, port),
        (SwitchField::PacketLength, packet.len() as u64),
        (SwitchField::InstanceType, kind),
        (SwitchField::IngressTimestamp, switch.time / 1000),
    ];
    switch.put_all(state, &inputs);
}

/// State of a packet that comes again, with the fields that survive of its old state: the number of their list
/// plus 1, or 0 for none.
fn next_state<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    arrived: (u64, &[u8]),
    kind: u64,
    old: &[u8],
    list: SwitchField,
) -> Vec<u8> {
    let mut state = switch.empty_state();
    keep_fields(switch, old, &mut state, list);
    put_inputs(switch, &mut state, arrived, kind);
    state
}

/// Copies the fields that survive.
fn keep_fields<E: SwitchExecutor>(switch: &Switch<E>, old: &[u8], state: &mut [u8], list: SwitchField) {
    let request = switch.get(old, list);
    let lists = &switch.pipeline().field_lists;
    let list = lists.iter().find(|list| Some(list.number) == request.checked_sub(1));
    for (offset, size) in list.map_or(&[][..], |list| &list.ranges) {
        let range = *offset as usize..(*offset + *size) as usize;
        if let (Some(from), Some(to)) = (old.get(range.clone()), state.get_mut(range)) {
            to.copy_from_slice(from);
        }
    }
}

/// Runs ingress on a packet from a port, and egress too if the engine can do both at once.
pub(crate) fn arrive<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    port: u64,
    data: &[u8],
) -> Result<(), SwitchError> {
    let mut state = match switch.clean_state.take() {
        Some(state) => state,
        None => switch.empty_state(),
    };
    put_inputs(switch, &mut state, (port, data), instance_type::NORMAL);
    let mut packet = switch.buffers.empty();
    let outcome = switch.executor.run_unicast(&mut state, data, &mut packet)?;
    let waiting = |port, packet, state| WaitingPacket { is_egress: false, port, packet, state };
    match outcome {
        UnicastOutcome::Unsupported => {
            packet.extend_from_slice(data);
            ingress(switch, waiting(port, packet, state))?;
        }
        UnicastOutcome::BehindIngress => behind_ingress(switch, waiting(port, packet, state))?,
        UnicastOutcome::BehindEgress(port) => behind_egress(switch, waiting(port, packet, state), data),
        UnicastOutcome::Dropped => {
            switch.buffers.give_back(packet);
            switch.clean_state = Some(state);
        }
        UnicastOutcome::Sent(port) => {
            switch.sent.push(SentPacket { port, data: packet });
            switch.clean_state = Some(state);
        }
    }
    Ok(())
}

/// Runs ingress on a packet.
pub(crate) fn ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    switch.run_stage("parser", &mut state, &mut packet)?;
    switch.run_stage("ingress", &mut state, &mut packet)?;
    behind_ingress(switch, WaitingPacket { is_egress: false, port, packet, state })
}

/// Does the work of the traffic manager behind ingress.
fn behind_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, packet, mut state, .. } = waiting;
    if switch.get(&state, SwitchField::AssertionFailed) != 0 {
        drop_packet(switch, packet, state, "an assertion failed in ingress");
        return Ok(());
    }
    if switch.get(&state, SwitchField::CloneIngress) != 0 {
        clone_ingress(switch, (port, &packet), &state)?;
    }
    if switch.get(&state, SwitchField::Resubmit) != 0 {
        let (kind, list) = (instance_type::RESUBMITTED, SwitchField::ResubmitList);
        let again = next_state(switch, (port, &packet), kind, &state, list);
        switch.buffers.give_back(state);
        switch.queue.push_back(WaitingPacket { is_egress: false, port, packet, state: again });
        return Ok(());
    }
    let group = switch.get(&state, SwitchField::MulticastGroup);
    if group != 0 {
        switch.put_all(&mut state, &[(SwitchField::InstanceType, instance_type::REPLICATED)]);
        let targets = switch.group_targets(group);
        if targets.is_empty() {
            switch.note_drop("the multicast group has no ports");
        }
        replicate(switch, &targets, packet, state);
        return Ok(());
    }
    match switch.get(&state, SwitchField::EgressSpec) {
        DROP_PORT => drop_packet(switch, packet, state, "`egress_spec` is the drop port behind ingress"),
        port => enqueue(switch, port, packet, state),
    }
    Ok(())
}

fn drop_packet<E: SwitchExecutor>(switch: &mut Switch<E>, packet: Vec<u8>, state: Vec<u8>, reason: &str) {
    switch.note_drop(reason);
    switch.buffers.give_back(packet);
    switch.buffers.give_back(state);
}

/// Sends copies to egress: one for each port, with the replica's number. The last of them is the packet itself.
fn replicate<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    targets: &[(u64, u64)],
    packet: Vec<u8>,
    mut state: Vec<u8>,
) {
    let Some(((port, replica), others)) = targets.split_last() else {
        switch.buffers.give_back(packet);
        switch.buffers.give_back(state);
        return;
    };
    for (port, replica) in others {
        let (packet, mut state) = (switch.buffers.copy(&packet), switch.buffers.copy(&state));
        switch.put_all(&mut state, &[(SwitchField::EgressRid, *replica)]);
        enqueue(switch, *port, packet, state);
    }
    switch.put_all(&mut state, &[(SwitchField::EgressRid, *replica)]);
    enqueue(switch, *port, packet, state);
}

/// Packets that wait for egress at a port.
fn depth<E>(switch: &Switch<E>, port: u64) -> u64 {
    switch.queue.iter().filter(|waiting| waiting.is_egress && waiting.port == port).count() as u64
}

/// Queues a packet for egress, with the queue's length and the time.
fn enqueue<E: SwitchExecutor>(switch: &mut Switch<E>, port: u64, packet: Vec<u8>, mut state: Vec<u8>) {
    let inputs =
        [(SwitchField::EnqTimestamp, switch.time / 1000), (SwitchField::EnqQdepth, depth(switch, port))];
    switch.put_all(&mut state, &inputs);
    switch.queue.push_back(WaitingPacket { is_egress: true, port, packet, state });
}

/// A clone of the packet as it came goes through the parser, and on to egress.
fn clone_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    (port, packet): (u64, &[u8]),
    state: &[u8],
) -> Result<(), SwitchError> {
    let targets = switch.mirror_targets(switch.get(state, SwitchField::CloneIngressSession));
    if targets.is_empty() {
        return Ok(());
    }
    let (kind, list) = (instance_type::INGRESS_CLONE, SwitchField::CloneIngressList);
    let mut copy = next_state(switch, (port, packet), kind, state, list);
    let mut packet = switch.buffers.copy(packet);
    switch.run_stage("parser", &mut copy, &mut packet)?;
    replicate(switch, &targets, packet, copy);
    Ok(())
}

/// Runs egress on a packet.
pub(crate) fn egress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    let original = match switch.fields.has(SwitchField::CloneEgress) {
        true => switch.buffers.copy(&packet),
        false => switch.buffers.empty(),
    };
    let waited = (switch.time / 1000).wrapping_sub(switch.get(&state, SwitchField::EnqTimestamp));
    let inputs = [
        (SwitchField::DeqTimedelta, waited),
        (SwitchField::DeqQdepth, depth(switch, port)),
        (SwitchField::EgressPort, port),
        (SwitchField::EgressSpec, 0),
        (SwitchField::PacketLength, packet.len() as u64),
        (SwitchField::EgressTimestamp, switch.time / 1000),
        (SwitchField::CloneEgress, 0),
        (SwitchField::CloneIngress, 0),
        (SwitchField::Recirculate, 0),
        (SwitchField::Resubmit, 0),
    ];
    switch.put_all(&mut state, &inputs);
    switch.run_stage("egress", &mut state, &mut packet)?;
    behind_egress(switch, WaitingPacket { is_egress: true, port, packet, state }, &original);
    switch.buffers.give_back(original);
    Ok(())
}

/// Does the work of the traffic manager behind egress, for the packet as it was in front of egress and as it is.
fn behind_egress<E: SwitchExecutor>(switch: &mut Switch<E>, waiting: WaitingPacket, original: &[u8]) {
    let WaitingPacket { port, mut packet, state, .. } = waiting;
    if switch.get(&state, SwitchField::AssertionFailed) != 0
        || switch.get(&state, SwitchField::DeparserOverflow) != 0
    {
        return drop_packet(
            switch,
            packet,
            state,
            "an assertion failed in egress, or the deparser's buffer is full",
        );
    }
    if switch.get(&state, SwitchField::CloneEgress) != 0 {
        clone_egress(switch, original, &state);
    }
    if switch.get(&state, SwitchField::EgressSpec) == DROP_PORT {
        return drop_packet(switch, packet, state, "`egress_spec` is the drop port behind egress");
    }
    if switch.get(&state, SwitchField::Truncates) != 0 {
        packet.truncate(switch.get(&state, SwitchField::TruncatedLength) as usize);
    }
    if switch.get(&state, SwitchField::Recirculate) != 0 {
        let port = switch.get(&state, SwitchField::IngressPort);
        let (kind, list) = (instance_type::RECIRCULATED, SwitchField::RecirculateList);
        let again = next_state(switch, (port, &packet), kind, &state, list);
        switch.queue.push_back(WaitingPacket { is_egress: false, port, packet, state: again });
    } else {
        switch.sent.push(SentPacket { port, data: packet });
    }
    switch.buffers.give_back(state);
}

/// A clone keeps the headers as egress left them, but no metadata that is not listed.
fn clone_egress<E: SwitchExecutor>(switch: &mut Switch<E>, packet: &[u8], state: &[u8]) {
    let mut copy = switch.buffers.copy(state);
    for range in &switch.fields.lost_by_clones {
        if let Some(bytes) = copy.get_mut(range.clone()) {
            bytes.fill(0);
        }
    }
    keep_fields(switch, state, &mut copy, SwitchField::CloneEgressList);
    switch.put_all(&mut copy, &[(SwitchField::InstanceType, instance_type::EGRESS_CLONE)]);
    let targets = switch.mirror_targets(switch.get(state, SwitchField::CloneEgressSession));
    let packet = switch.buffers.copy(packet);
    replicate(switch, &targets, packet, copy);
}
