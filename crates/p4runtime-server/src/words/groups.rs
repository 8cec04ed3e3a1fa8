//! Commands about multicast groups and mirror sessions.

use millstream_p4_switch::MirrorTarget;
use millstream_p4runtime::proto::v1::{
    CloneSessionEntry, MulticastGroupEntry, PacketReplicationEngineEntry, Replica, entity,
    packet_replication_engine_entry::Type, update,
};

use super::handles::CommandNode;
use super::{CommandResult, at_least, exactly, number, write};
use crate::controlled::ControlledSwitch;
use crate::runtime_file::replica_of;

fn write_replication(switch: &mut ControlledSwitch, kind: update::Type, value: Type) -> Result<(), String> {
    let entry = PacketReplicationEngineEntry { r#type: Some(value) };
    write(switch, kind, entity::Entity::PacketReplicationEngineEntry(entry))
}

fn write_group(
    switch: &mut ControlledSwitch,
    kind: update::Type,
    id: u32,
    replicas: Vec<Replica>,
) -> Result<(), String> {
    let group = MulticastGroupEntry { multicast_group_id: id, replicas, ..MulticastGroupEntry::default() };
    write_replication(switch, kind, Type::MulticastGroupEntry(group))
}

pub(super) fn create_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [id] = exactly(arguments)?;
    write_group(switch, update::Type::Insert, number(id)?, Vec::new())?;
    Ok(format!("Creating multicast group {id}"))
}

pub(super) fn destroy_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [id] = exactly(arguments)?;
    let id = number(id)?;
    write_group(switch, update::Type::Delete, id, Vec::new())?;
    let nodes = switch.handles.nodes.values_mut().filter(|node| node.group == Some(id));
    nodes.for_each(|node| node.group = None);
    Ok(String::new())
}

fn ports_of(words: &[&str]) -> Result<Vec<u32>, String> {
    words.iter().map(|word| number(word)).collect()
}

pub(super) fn create_node(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([replica], ports) = at_least(arguments)?;
    let node = CommandNode { replica: number(replica)?, ports: ports_of(ports)?, group: None };
    let handle = switch.handles.next_node;
    switch.handles.next_node += 1;
    switch.handles.nodes.insert(handle, node);
    Ok(format!("node was created with handle {handle}"))
}

fn node_of(switch: &ControlledSwitch, handle: u64) -> Result<CommandNode, String> {
    let found = switch.handles.nodes.get(&handle).cloned();
    found.ok_or_else(|| format!("no node has the handle {handle}"))
}

/// Replicas of a group without those of one node, and of another in its place.
fn exchanged(
    switch: &ControlledSwitch,
    group: u32,
    (old, new): (Option<&CommandNode>, Option<&CommandNode>),
) -> Result<Vec<Replica>, String> {
    let replicas = |node: &CommandNode| -> Vec<Replica> {
        node.ports.iter().map(|port| replica_of(*port, node.replica)).collect()
    };
    let found = switch.store.multicast_group(group);
    let mut list = found.ok_or_else(|| format!("there is no multicast group {group}"))?.replicas.clone();
    let removed = old.map(replicas).unwrap_or_default();
    list.retain(|replica| !removed.contains(replica));
    list.extend(new.map(replicas).unwrap_or_default());
    Ok(list)
}

pub(super) fn associate(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [group, handle] = exactly(arguments)?;
    let (group, handle) = (number(group)?, number(handle)?);
    let node = node_of(switch, handle)?;
    if node.group.is_some() {
        return Err("the node belongs to a group already".to_owned());
    }
    let replicas = exchanged(switch, group, (None, Some(&node)))?;
    write_group(switch, update::Type::Modify, group, replicas)?;
    switch.handles.nodes.insert(handle, CommandNode { group: Some(group), ..node });
    Ok(String::new())
}

pub(super) fn dissociate(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [group, handle] = exactly(arguments)?;
    let (group, handle) = (number(group)?, number(handle)?);
    let node = node_of(switch, handle)?;
    if node.group != Some(group) {
        return Err("the node does not belong to this group".to_owned());
    }
    let replicas = exchanged(switch, group, (Some(&node), None))?;
    write_group(switch, update::Type::Modify, group, replicas)?;
    switch.handles.nodes.insert(handle, CommandNode { group: None, ..node });
    Ok(String::new())
}

pub(super) fn update_node(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([handle], ports) = at_least(arguments)?;
    let handle = number(handle)?;
    let old = node_of(switch, handle)?;
    let new = CommandNode { ports: ports_of(ports)?, ..old.clone() };
    if let Some(group) = old.group {
        let replicas = exchanged(switch, group, (Some(&old), Some(&new)))?;
        write_group(switch, update::Type::Modify, group, replicas)?;
    }
    switch.handles.nodes.insert(handle, new);
    Ok(String::new())
}

pub(super) fn destroy_node(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [handle] = exactly(arguments)?;
    let handle = number(handle)?;
    let node = node_of(switch, handle)?;
    if let Some(group) = node.group {
        let replicas = exchanged(switch, group, (Some(&node), None))?;
        write_group(switch, update::Type::Modify, group, replicas)?;
    }
    switch.handles.nodes.remove(&handle);
    Ok(String::new())
}

pub(super) fn dump(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [] = exactly(arguments)?;
    let mut lines = vec!["==========".to_owned(), "MC ENTRIES".to_owned()];
    for (group, nodes) in &switch.switch.groups {
        let Ok(group) = u32::try_from(*group) else { continue };
        lines.push(format!("mgrp({group})"));
        for node in nodes {
            let ports: Vec<String> = node.ports.iter().map(ToString::to_string).collect();
            lines.push(format!("  -> rid {} ports [{}]", node.replica, ports.join(", ")));
        }
    }
    lines.push("==========".to_owned());
    Ok(lines.join("\n"))
}

pub(super) fn add_mirror(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [session, port] = exactly(arguments)?;
    let id = number(session)?;
    let replicas = vec![replica_of(number(port)?, 0)];
    let kind = match switch.store.clone_session(id) {
        Some(_) => update::Type::Modify,
        None => update::Type::Insert,
    };
    let session = CloneSessionEntry { session_id: id, replicas, ..CloneSessionEntry::default() };
    write_replication(switch, kind, Type::CloneSessionEntry(session))?;
    Ok(format!("Adding mirroring session {id}"))
}

/// A session to a multicast group, which P4Runtime has no entity for.
pub(super) fn add_group_mirror(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [session, group] = exactly(arguments)?;
    let (session, group): (u32, u32) = (number(session)?, number(group)?);
    switch.switch.mirrors.insert(session.into(), MirrorTarget::Group(group.into()));
    Ok(format!("Adding mirroring session {session}"))
}

pub(super) fn delete_mirror(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [session] = exactly(arguments)?;
    let id: u32 = number(session)?;
    if switch.store.clone_session(id).is_some() {
        let session = CloneSessionEntry { session_id: id, ..CloneSessionEntry::default() };
        write_replication(switch, update::Type::Delete, Type::CloneSessionEntry(session))?;
        return Ok(String::new());
    }
    let removed = switch.switch.mirrors.remove(&id.into());
    removed.map(|_| String::new()).ok_or_else(|| format!("there is no mirroring session {id}"))
}

pub(super) fn get_mirror(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [session] = exactly(arguments)?;
    let id: u32 = number(session)?;
    let nodes_text = |group: u64| {
        let nodes = switch.switch.groups.get(&group).into_iter().flatten();
        let ports: Vec<String> = nodes.flat_map(|node| &node.ports).map(ToString::to_string).collect();
        ports.join(", ")
    };
    match switch.switch.mirrors.get(&id.into()) {
        Some(MirrorTarget::Port(port)) => Ok(format!("session {id}: port {port}")),
        Some(MirrorTarget::Group(group)) => match u32::try_from(*group) {
            Ok(group) => Ok(format!("session {id}: multicast group {group}")),
            Err(_) => Ok(format!("session {id}: ports {}", nodes_text(*group))),
        },
        None => Err(format!("there is no mirroring session {id}")),
    }
}
