//! The traffic manager of v1model. The order of operations is that of the reference software switch: clone,
//! resubmission, multicast, unicast or drop behind ingress; clone, drop, recirculation behind egress.

use millstream_p4_lower::DROP_PORT;

use crate::executor::{SwitchExecutor, UnicastOutcome};
use crate::switch::{SentPacket, Switch, SwitchError, WaitingPacket, WaitingQueue};

/// Values of `instance_type`.
mod instance_type {
    pub(super) const NORMAL: u64 = 0;
    pub(super) const INGRESS_CLONE: u64 = 1;
    pub(super) const EGRESS_CLONE: u64 = 2;
    pub(super) const RECIRCULATED: u64 = 4;
    pub(super) const REPLICATED: u64 = 5;
    pub(super) const RESUBMITTED: u64 = 6;
}

/// `instance_type` of a packet that comes from a port.
pub(crate) const NORMAL_PACKET: u64 = instance_type::NORMAL;

/// Fields that survive: offsets and bytes.
type KeptFields = Vec<(u32, Vec<u8>)>;

fn put_all<E: SwitchExecutor>(switch: &Switch<E>, state: &mut [u8], values: &[(&str, u64)]) {
    for (name, value) in values {
        switch.put(state, name, *value);
    }
}

/// State of a packet that arrives.
pub(crate) fn fresh_state<E: SwitchExecutor>(
    switch: &Switch<E>,
    port: u64,
    packet: &[u8],
    kind: u64,
    kept: &[(u32, Vec<u8>)],
) -> Vec<u8> {
    let mut state = switch.empty_state();
    for (offset, bytes) in kept {
        let from = *offset as usize;
        if let Some(to) = state.get_mut(from..from + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
    put_all(
        switch,
        &mut state,
        &[
            ("standard_metadata.ingress_port", port),
            ("standard_metadata.packet_length", packet.len() as u64),
            ("standard_metadata.instance_type", kind),
            ("standard_metadata.ingress_global_timestamp", switch.time / 1000),
        ],
    );
    state
}

/// Fields of a list, as requested: its number plus 1, or 0 for none.
fn kept<E: SwitchExecutor>(switch: &Switch<E>, state: &[u8], request: u64) -> KeptFields {
    let lists = &switch.pipeline().field_lists;
    let list = lists.iter().find(|list| Some(list.number) == request.checked_sub(1));
    let ranges = list.map_or(&[][..], |list| &list.ranges);
    ranges
        .iter()
        .filter_map(|(offset, size)| {
            let from = *offset as usize;
            Some((*offset, state.get(from..from + *size as usize)?.to_vec()))
        })
        .collect()
}

pub(crate) fn ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
    queue: &mut WaitingQueue,
) -> Result<Option<SentPacket>, SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    let is_new = switch.get(&state, "standard_metadata.instance_type") == NORMAL_PACKET;
    let outcome = match is_new {
        true => switch.executor.run_unicast(&mut state, &mut packet)?,
        false => UnicastOutcome::Unsupported,
    };
    match outcome {
        UnicastOutcome::Unsupported => {
            switch.run_stage("parser", &mut state, &mut packet)?;
            switch.run_stage("ingress", &mut state, &mut packet)?;
        }
        UnicastOutcome::BehindIngress => {}
        UnicastOutcome::Dropped => return Ok(None),
        UnicastOutcome::Sent(port) => return Ok(Some(SentPacket { port, data: packet })),
    }
    behind_ingress(switch, WaitingPacket { is_egress: false, port, packet, state }, queue)?;
    Ok(None)
}

/// Does the work of the traffic manager behind ingress.
fn behind_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
    queue: &mut WaitingQueue,
) -> Result<(), SwitchError> {
    let WaitingPacket { port, packet, mut state, .. } = waiting;
    if switch.get(&state, "engine.assertion_failed") != 0 {
        switch.note_drop("an assertion failed in ingress");
        return Ok(());
    }
    if switch.get(&state, "engine.clone_ingress") != 0 {
        clone_ingress(switch, (port, &packet), &state, queue)?;
    }
    if switch.get(&state, "engine.resubmit") != 0 {
        let kept = kept(switch, &state, switch.get(&state, "engine.resubmit_list"));
        let state = fresh_state(switch, port, &packet, instance_type::RESUBMITTED, &kept);
        queue.push_back(WaitingPacket { is_egress: false, port, packet, state });
        return Ok(());
    }
    let group = switch.get(&state, "standard_metadata.mcast_grp");
    if group != 0 {
        put_all(switch, &mut state, &[("standard_metadata.instance_type", instance_type::REPLICATED)]);
        let targets = switch.group_targets(group);
        if targets.is_empty() {
            switch.note_drop("the multicast group has no ports");
        }
        replicate(switch, &targets, &packet, &state, queue);
        return Ok(());
    }
    let port = switch.get(&state, "standard_metadata.egress_spec");
    match port {
        DROP_PORT => switch.note_drop("`egress_spec` is the drop port behind ingress"),
        port => enqueue(switch, port, packet, state, queue),
    }
    Ok(())
}

/// Sends copies to egress: one for each port, with the replica's number.
fn replicate<E: SwitchExecutor>(
    switch: &Switch<E>,
    targets: &[(u64, u64)],
    packet: &[u8],
    state: &[u8],
    queue: &mut WaitingQueue,
) {
    for (port, replica) in targets {
        let mut state = state.to_vec();
        put_all(switch, &mut state, &[("standard_metadata.egress_rid", *replica)]);
        enqueue(switch, *port, packet.to_vec(), state, queue);
    }
}

/// Packets that wait for egress at a port.
fn depth(queue: &WaitingQueue, port: u64) -> u64 {
    queue.iter().filter(|waiting| waiting.is_egress && waiting.port == port).count() as u64
}

/// Queues a packet for egress, with the queue's length and the time.
fn enqueue<E: SwitchExecutor>(
    switch: &Switch<E>,
    port: u64,
    packet: Vec<u8>,
    mut state: Vec<u8>,
    queue: &mut WaitingQueue,
) {
    let depth = depth(queue, port);
    put_all(
        switch,
        &mut state,
        &[("standard_metadata.enq_timestamp", switch.time / 1000), ("standard_metadata.enq_qdepth", depth)],
    );
    queue.push_back(WaitingPacket { is_egress: true, port, packet, state });
}

/// A clone of the packet as it came goes through the parser, and on to egress.
fn clone_ingress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    (port, packet): (u64, &[u8]),
    state: &[u8],
    queue: &mut WaitingQueue,
) -> Result<(), SwitchError> {
    let targets = switch.mirror_targets(switch.get(state, "engine.clone_ingress_session"));
    if targets.is_empty() {
        return Ok(());
    }
    let kept = kept(switch, state, switch.get(state, "engine.clone_ingress_list"));
    let mut copy = fresh_state(switch, port, packet, instance_type::INGRESS_CLONE, &kept);
    let mut packet = packet.to_vec();
    switch.run_stage("parser", &mut copy, &mut packet)?;
    replicate(switch, &targets, &packet, &copy, queue);
    Ok(())
}

pub(crate) fn egress<E: SwitchExecutor>(
    switch: &mut Switch<E>,
    waiting: WaitingPacket,
    queue: &mut WaitingQueue,
) -> Result<Option<SentPacket>, SwitchError> {
    let WaitingPacket { port, mut packet, mut state, .. } = waiting;
    let may_clone = switch.field("engine.clone_egress").is_some();
    let original = if may_clone { packet.clone() } else { Vec::new() };
    let depth = depth(queue, port);
    let waited = (switch.time / 1000).wrapping_sub(switch.get(&state, "standard_metadata.enq_timestamp"));
    put_all(
        switch,
        &mut state,
        &[
            ("standard_metadata.deq_timedelta", waited),
            ("standard_metadata.deq_qdepth", depth),
            ("standard_metadata.egress_port", port),
            ("standard_metadata.egress_spec", 0),
            ("standard_metadata.packet_length", packet.len() as u64),
            ("standard_metadata.egress_global_timestamp", switch.time / 1000),
        ],
    );
    for request in ["engine.clone_egress", "engine.clone_ingress", "engine.recirculate", "engine.resubmit"] {
        switch.put(&mut state, request, 0);
    }
    switch.run_stage("egress", &mut state, &mut packet)?;
    if switch.get(&state, "engine.assertion_failed") != 0
        || switch.get(&state, "engine.deparser_overflow") != 0
    {
        switch.note_drop("an assertion failed in egress, or the deparser's buffer is full");
        return Ok(None);
    }
    if switch.get(&state, "engine.clone_egress") != 0 {
        clone_egress(switch, &original, &state, queue);
    }
    if switch.get(&state, "standard_metadata.egress_spec") == DROP_PORT {
        switch.note_drop("`egress_spec` is the drop port behind egress");
        return Ok(None);
    }
    if switch.get(&state, "engine.truncates") != 0 {
        packet.truncate(switch.get(&state, "engine.truncated_length") as usize);
    }
    if switch.get(&state, "engine.recirculate") != 0 {
        let kept = kept(switch, &state, switch.get(&state, "engine.recirculate_list"));
        let port = switch.get(&state, "standard_metadata.ingress_port");
        let state = fresh_state(switch, port, &packet, instance_type::RECIRCULATED, &kept);
        queue.push_back(WaitingPacket { is_egress: false, port, packet, state });
        return Ok(None);
    }
    Ok(Some(SentPacket { port, data: packet }))
}

/// A clone keeps the headers as egress left them, but no metadata that is not listed.
fn clone_egress<E: SwitchExecutor>(
    switch: &Switch<E>,
    packet: &[u8],
    state: &[u8],
    queue: &mut WaitingQueue,
) {
    let kept = kept(switch, state, switch.get(state, "engine.clone_egress_list"));
    let mut copy = state.to_vec();
    let layout = &switch.pipeline().state;
    for field in layout.fields.iter().filter(|field| !field.name.starts_with("headers")) {
        let from = field.offset as usize;
        let len = field.bits.div_ceil(8) as usize;
        let is_kept = field.name == "engine.cursor" || field.name == "standard_metadata.ingress_port";
        if let (false, Some(bytes)) = (is_kept, copy.get_mut(from..from + len)) {
            bytes.fill(0);
        }
    }
    for (offset, bytes) in kept {
        let from = offset as usize;
        if let Some(to) = copy.get_mut(from..from + bytes.len()) {
            to.copy_from_slice(&bytes);
        }
    }
    put_all(switch, &mut copy, &[("standard_metadata.instance_type", instance_type::EGRESS_CLONE)]);
    let targets = switch.mirror_targets(switch.get(state, "engine.clone_egress_session"));
    replicate(switch, &targets, packet, &copy, queue);
}
