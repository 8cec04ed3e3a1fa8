//! Runtime files of the P4 tutorials (`sN-runtime.json`): entries, multicast groups and clone sessions.

use std::collections::BTreeMap;

use millstream_p4runtime::proto::config::v1::{MatchField, P4Info, Table, match_field::MatchType};
use millstream_p4runtime::proto::v1::write_request::Atomicity;
use millstream_p4runtime::proto::v1::{
    Action, CloneSessionEntry, Entity, MulticastGroupEntry, PacketReplicationEngineEntry, Replica,
    TableAction, TableEntry, Update, action, entity, packet_replication_engine_entry, replica, table_action,
    update,
};
use serde::Deserialize;
use serde_json::Value;

use crate::handle::SwitchHandle;
use crate::names::{find, find_action, id_of};
use crate::values::{FieldCondition, field_match, match_type, parse_value};

/// Reason why a runtime file is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeFileError {
    /// The file is not a runtime file.
    #[error("no runtime file: {0}")]
    Json(#[from] serde_json::Error),
    /// An entry is malformed, or refused.
    #[error("{place} {number}: {reason}")]
    Entry {
        /// List that the entry is in.
        place: &'static str,
        /// Position, from 1.
        number: usize,
        /// Reason.
        reason: String,
    },
    /// The switch has no program.
    #[error("the switch has no program")]
    NoProgram,
}

/// A runtime file. Its paths of P4Info and of the compiled program are those of the tutorials' controller.
#[derive(Deserialize)]
struct RuntimeFile {
    #[serde(default)]
    table_entries: Vec<FileEntry>,
    #[serde(default)]
    multicast_group_entries: Vec<FileGroup>,
    #[serde(default)]
    clone_session_entries: Vec<FileSession>,
}

#[derive(Deserialize)]
struct FileEntry {
    table: String,
    #[serde(default, rename = "match")]
    conditions: BTreeMap<String, Value>,
    #[serde(default)]
    default_action: bool,
    action_name: String,
    #[serde(default)]
    action_params: BTreeMap<String, Value>,
    #[serde(default)]
    priority: i32,
}

#[derive(Deserialize)]
struct FileReplica {
    egress_port: u32,
    instance: u32,
}

#[derive(Deserialize)]
struct FileGroup {
    multicast_group_id: u32,
    replicas: Vec<FileReplica>,
}

#[derive(Deserialize)]
struct FileSession {
    clone_session_id: u32,
    replicas: Vec<FileReplica>,
    #[serde(default)]
    packet_length_bytes: i32,
}

/// Writes the entries of a runtime file; returns their number. All are written, or none.
///
/// # Errors
/// [`RuntimeFileError`] for the first entry that is refused.
pub fn load_runtime_file(handle: &SwitchHandle, text: &str) -> Result<usize, RuntimeFileError> {
    let file: RuntimeFile = serde_json::from_str(text)?;
    let written = handle.control(|switch| {
        let (updates, places) = updates_of(&file, &switch.program().description.info)?;
        let outcome = switch.write(&updates, Atomicity::RollbackOnError);
        let is_own = |error: &millstream_p4runtime::entities::EntityError| {
            error.kind != millstream_p4runtime::entities::ErrorKind::Aborted
        };
        for (result, (place, number)) in outcome.results.iter().zip(places) {
            if let Err(error) = result
                && is_own(error)
            {
                return Err(RuntimeFileError::Entry { place, number, reason: error.message.clone() });
            }
        }
        Ok(updates.len())
    });
    written.unwrap_or(Err(RuntimeFileError::NoProgram))
}

type PlacedUpdates = (Vec<Update>, Vec<(&'static str, usize)>);

fn updates_of(file: &RuntimeFile, info: &P4Info) -> Result<PlacedUpdates, RuntimeFileError> {
    let (mut updates, mut places) = (Vec::new(), Vec::new());
    for (at, entry) in file.table_entries.iter().enumerate() {
        let place = ("table_entries", at + 1);
        let made = table_update(entry, info);
        updates.push(made.map_err(|reason| RuntimeFileError::Entry {
            place: place.0,
            number: place.1,
            reason,
        })?);
        places.push(place);
    }
    use packet_replication_engine_entry::Type;
    let groups = file.multicast_group_entries.iter().map(|group| {
        Type::MulticastGroupEntry(MulticastGroupEntry {
            multicast_group_id: group.multicast_group_id,
            replicas: replicas_of(&group.replicas),
            ..MulticastGroupEntry::default()
        })
    });
    let sessions = file.clone_session_entries.iter().map(|session| {
        Type::CloneSessionEntry(CloneSessionEntry {
            session_id: session.clone_session_id,
            replicas: replicas_of(&session.replicas),
            packet_length_bytes: session.packet_length_bytes,
            ..CloneSessionEntry::default()
        })
    });
    let (of_groups, of_sessions) = (file.multicast_group_entries.len(), file.clone_session_entries.len());
    places.extend((1..=of_groups).map(|number| ("multicast_group_entries", number)));
    places.extend((1..=of_sessions).map(|number| ("clone_session_entries", number)));
    updates.extend(groups.chain(sessions).map(|kind| {
        let entry = PacketReplicationEngineEntry { r#type: Some(kind) };
        update_of(update::Type::Insert, entity::Entity::PacketReplicationEngineEntry(entry))
    }));
    Ok((updates, places))
}

fn replicas_of(replicas: &[FileReplica]) -> Vec<Replica> {
    let replica = |given: &FileReplica| replica_of(given.egress_port, given.instance);
    replicas.iter().map(replica).collect()
}

/// A replica.
pub(crate) fn replica_of(port: u32, instance: u32) -> Replica {
    let bytes = port.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(3);
    let port_kind = Some(replica::PortKind::Port(bytes[zeros..].to_vec()));
    Replica { instance, port_kind, ..Replica::default() }
}

/// An update.
pub(crate) fn update_of(kind: update::Type, entity: entity::Entity) -> Update {
    Update { r#type: kind as i32, entity: Some(Entity { entity: Some(entity) }) }
}

fn table_update(entry: &FileEntry, info: &P4Info) -> Result<Update, String> {
    let table = find(&info.tables, &entry.table)?;
    let own = find_action(info, table, &entry.action_name)?;
    let mut params = Vec::new();
    for (name, value) in &entry.action_params {
        let param = own.params.iter().find(|param| param.name == *name);
        let param = param.ok_or_else(|| format!("`{}` has no parameter `{name}`", entry.action_name))?;
        let value = parse_value(&text_of(value)?, param.bitwidth.unsigned_abs(), name)?;
        params.push(action::Param { param_id: param.id, value: value.to_bytes_be() });
    }
    let action = Action { action_id: id_of(own), params };
    let mut conditions = Vec::new();
    for (name, value) in &entry.conditions {
        let field = table.match_fields.iter().find(|field| field.name == *name);
        let field = field.ok_or_else(|| format!("`{}` has no key `{name}`", entry.table))?;
        let condition = condition_of(field, value)?;
        conditions.extend(field_match(field, condition)?);
    }
    Ok(update_of(
        if entry.default_action { update::Type::Modify } else { update::Type::Insert },
        entity::Entity::TableEntry(TableEntry {
            table_id: id_of::<Table>(table),
            r#match: conditions,
            action: Some(TableAction { r#type: Some(table_action::Type::Action(action)) }),
            priority: entry.priority,
            is_default_action: entry.default_action,
            ..TableEntry::default()
        }),
    ))
}

/// Condition of a key: a value, alone or in a list, or a value with a length, mask or bound.
fn condition_of(field: &MatchField, value: &Value) -> Result<FieldCondition, String> {
    let (name, bits) = (&field.name, field.bitwidth.unsigned_abs());
    let number = |value: &Value| parse_value(&text_of(value)?, bits, name);
    let parts = match value {
        Value::Array(parts) => &parts[..],
        single => std::slice::from_ref(single),
    };
    Ok(match (parts, match_type(field)) {
        ([value], _) => FieldCondition::Value(number(value)?),
        ([value, length], MatchType::Lpm) => {
            let length = text_of(length)?;
            let length = length.parse().map_err(|_| format!("`{length}` is no length"))?;
            FieldCondition::Prefix(number(value)?, length)
        }
        ([low, high], MatchType::Range) => FieldCondition::Range(number(low)?, number(high)?),
        ([value, mask], _) => FieldCondition::Masked(number(value)?, number(mask)?),
        _ => {
            return Err(format!(
                "`{name}` needs a value, and for some kinds of keys a length, mask or bound"
            ));
        }
    })
}

fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        other => Err(format!("`{other}` is no value")),
    }
}
