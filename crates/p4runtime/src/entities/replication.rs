//! Multicast groups and clone sessions. Source: P4Runtime specification 1.4, section 9.5.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::state::{EmitEntity, EntityStore, ReadResult, UndoStep, UpdateKind};
use crate::proto::v1::{
    PacketReplicationEngineEntry, Replica, entity, packet_replication_engine_entry::Type, replica,
};

pub(crate) fn write_replication(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &PacketReplicationEngineEntry,
) -> Result<UndoStep, EntityError> {
    match given.r#type.as_ref().ok_or_else(unset)? {
        Type::MulticastGroupEntry(group) => {
            let id = group.multicast_group_id;
            check_presence(kind, id, store.multicast_groups.contains_key(&id), "multicast group")?;
            if kind == UpdateKind::Delete {
                return Ok(UndoStep::MulticastGroup(id, store.multicast_groups.remove(&id)));
            }
            check_replicas(&group.replicas)?;
            Ok(UndoStep::MulticastGroup(id, store.multicast_groups.insert(id, group.clone())))
        }
        Type::CloneSessionEntry(session) => {
            let id = session.session_id;
            check_presence(kind, id, store.clone_sessions.contains_key(&id), "clone session")?;
            if kind == UpdateKind::Delete {
                return Ok(UndoStep::CloneSession(id, store.clone_sessions.remove(&id)));
            }
            check_replicas(&session.replicas)?;
            if session.packet_length_bytes < 0 {
                return Err(EntityError::invalid("the length of cloned packets cannot be negative"));
            }
            Ok(UndoStep::CloneSession(id, store.clone_sessions.insert(id, session.clone())))
        }
    }
}

pub(crate) fn read_replication(
    store: &EntityStore,
    request: &PacketReplicationEngineEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let mut emit = |value: Type| {
        let entry = PacketReplicationEngineEntry { r#type: Some(value) };
        emit(entity::Entity::PacketReplicationEngineEntry(entry))
    };
    Ok(match request.r#type.as_ref().ok_or_else(unset)? {
        Type::MulticastGroupEntry(group) => {
            let groups = selected(&store.multicast_groups, group.multicast_group_id, "multicast group")?;
            groups.into_iter().try_for_each(|group| emit(Type::MulticastGroupEntry(group.clone())))
        }
        Type::CloneSessionEntry(session) => {
            let sessions = selected(&store.clone_sessions, session.session_id, "clone session")?;
            sessions.into_iter().try_for_each(|session| emit(Type::CloneSessionEntry(session.clone())))
        }
    })
}

fn unset() -> EntityError {
    EntityError::invalid("neither a multicast group nor a clone session is set")
}

fn selected<'m, T>(map: &'m BTreeMap<u32, T>, id: u32, what: &str) -> Result<Vec<&'m T>, EntityError> {
    match (id, map.get(&id)) {
        (0, _) => Ok(map.values().collect()),
        (_, Some(one)) => Ok(vec![one]),
        (_, None) => Err(EntityError::not_found(format!("the {what} {id} does not exist"))),
    }
}

fn check_presence(kind: UpdateKind, id: u32, is_present: bool, what: &str) -> Result<(), EntityError> {
    if id == 0 {
        return Err(EntityError::invalid(format!("a {what} has an id above zero")));
    }
    match (kind, is_present) {
        (UpdateKind::Insert, true) => {
            Err(EntityError::new(ErrorKind::AlreadyExists, format!("the {what} {id} exists already")))
        }
        (UpdateKind::Modify | UpdateKind::Delete, false) => {
            Err(EntityError::not_found(format!("the {what} {id} does not exist")))
        }
        _ => Ok(()),
    }
}

/// Checks that replicas have ports, and that no two are the same.
fn check_replicas(replicas: &[Replica]) -> Result<(), EntityError> {
    let mut seen = FxHashSet::default();
    for replica in replicas {
        if !replica.backup_replicas.is_empty() {
            return Err(EntityError::unimplemented("backup replicas are not supported"));
        }
        let port = port_bytes(replica)?;
        if !seen.insert((port, replica.instance)) {
            return Err(EntityError::invalid("two replicas have the same port and instance"));
        }
    }
    Ok(())
}

/// Port of a replica without zeros in front.
fn port_bytes(replica: &Replica) -> Result<Vec<u8>, EntityError> {
    #[expect(deprecated, reason = "controllers of earlier versions set the old field")]
    let bytes = match &replica.port_kind {
        Some(replica::PortKind::Port(bytes)) => bytes.clone(),
        Some(replica::PortKind::EgressPort(number)) => number.to_be_bytes().to_vec(),
        None => Vec::new(),
    };
    match bytes.is_empty() {
        true => Err(EntityError::invalid("a replica needs a port")),
        false => Ok(bytes.into_iter().skip_while(|byte| *byte == 0).collect()),
    }
}
