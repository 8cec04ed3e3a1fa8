//! Writes of table entries, default actions and direct resources. Source: P4Runtime specification 1.4,
//! section 9.1.

use crate::entities::actions::ActionUse;
use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::keys::{EntryKey, read_values};
use crate::entities::meters::{check_meter, no_color_counters};
use crate::entities::pipeline::TableShape;
use crate::entities::profiles;
use crate::entities::state::{
    EntityStore, StoredEntry, TableState, UndoStep, UpdateKind, initial_default, only_modify,
};
use crate::proto::v1::{
    CounterData, DirectCounterEntry, DirectMeterEntry, MeterConfig, TableAction, TableEntry, table_action,
};

fn exists_already(shape: &TableShape) -> EntityError {
    EntityError::new(ErrorKind::AlreadyExists, format!("`{}` has this entry already", shape.name))
}

fn denied(message: String) -> EntityError {
    EntityError::new(ErrorKind::PermissionDenied, message)
}

/// Finds the shape of a table.
pub(crate) fn table_shape(store: &EntityStore, id: u32) -> Result<&TableShape, EntityError> {
    let shape = store.index.tables.get(&id);
    shape.ok_or_else(|| EntityError::invalid(format!("no table has the id {id:#x}")))
}

pub(crate) fn write_entry(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &TableEntry,
) -> Result<Option<UndoStep>, EntityError> {
    let index = store.index.clone();
    let shape = table_shape(store, given.table_id)?;
    if given.is_const {
        return Err(EntityError::invalid("constant entries come from the program alone"));
    }
    if given.is_default_action {
        return write_default(store, kind, given).map(Some);
    }
    if shape.is_const && kind != UpdateKind::Modify {
        return Err(denied(format!("the entries of `{}` are constant", shape.name)));
    }
    if shape.fields.is_empty() {
        return Err(EntityError::invalid(format!("`{}` has no key, and so no entries", shape.name)));
    }
    let key = entry_key(store, given)?;
    let existing = store.tables.get(&given.table_id).and_then(|table| table.entries.get(&key));
    let Some(shape) = index.tables.get(&given.table_id) else { return Ok(None) };
    let entry = match (kind, existing) {
        (UpdateKind::Insert, Some(_)) => {
            return Err(exists_already(shape));
        }
        (UpdateKind::Insert, None) => Some(inserted_entry(store, shape, given)?),
        (_, None) => {
            return Err(EntityError::not_found(format!("`{}` has no such entry", shape.name)));
        }
        (UpdateKind::Modify, Some(existing)) => Some(modified_entry(store, shape, existing, given)?),
        (UpdateKind::Delete, Some(existing)) if existing.is_const => {
            return Err(denied(format!("this entry of `{}` is constant", shape.name)));
        }
        (UpdateKind::Delete, Some(_)) => None,
    };
    let before = store.set_entry(given.table_id, key.clone(), entry);
    Ok(Some(UndoStep::Entry(given.table_id, key, before)))
}

/// Inserts an entry that the program gives a table, which may be constant.
///
/// # Errors
/// If the entry is malformed, or there already.
pub(crate) fn install_entry(store: &mut EntityStore, given: &TableEntry) -> Result<(), EntityError> {
    let index = store.index.clone();
    let shape = table_shape(store, given.table_id)?;
    let key = entry_key(store, given)?;
    let is_taken = |table: &TableState| table.entries.contains_key(&key);
    if store.tables.get(&given.table_id).is_some_and(is_taken) {
        return Err(exists_already(shape));
    }
    let Some(shape) = index.tables.get(&given.table_id) else { return Ok(()) };
    let entry = StoredEntry { is_const: given.is_const, ..StoredEntry::default() };
    let entry = assigned_entry(store, shape, &entry, given, given.action.as_ref())?;
    store.set_entry(given.table_id, key, Some(entry));
    Ok(())
}

/// Reads the key of an entry.
pub(crate) fn entry_key(store: &EntityStore, given: &TableEntry) -> Result<EntryKey, EntityError> {
    let shape = table_shape(store, given.table_id)?;
    let values = read_values(&shape.fields, &given.r#match)?;
    let is_right = if shape.needs_priority { given.priority > 0 } else { given.priority == 0 };
    match is_right {
        true => Ok(EntryKey { values, priority: given.priority }),
        false if shape.needs_priority => {
            Err(EntityError::invalid(format!("entries of `{}` need a priority above zero", shape.name)))
        }
        false => Err(EntityError::invalid(format!("entries of `{}` have no priority", shape.name))),
    }
}

fn inserted_entry(
    store: &EntityStore,
    shape: &TableShape,
    given: &TableEntry,
) -> Result<StoredEntry, EntityError> {
    let action = given.action.as_ref();
    let action = action.ok_or_else(|| EntityError::invalid("a new entry needs an action"))?;
    let count = store.tables.get(&given.table_id).map_or(0, |table| table.entries.len());
    if shape.size.is_some_and(|size| count >= size) {
        return Err(EntityError::new(ErrorKind::ResourceExhausted, format!("`{}` is full", shape.name)));
    }
    assigned_entry(store, shape, &StoredEntry::default(), given, Some(action))
}

fn modified_entry(
    store: &EntityStore,
    shape: &TableShape,
    existing: &StoredEntry,
    given: &TableEntry,
) -> Result<StoredEntry, EntityError> {
    if existing.is_const && given.action.is_some() {
        return Err(denied(format!("the action of this entry of `{}` is constant", shape.name)));
    }
    assigned_entry(store, shape, existing, given, given.action.as_ref())
}

/// Makes the new state of an entry; what is not given keeps its value or becomes that of a new entry.
fn assigned_entry(
    store: &EntityStore,
    shape: &TableShape,
    existing: &StoredEntry,
    given: &TableEntry,
    action: Option<&TableAction>,
) -> Result<StoredEntry, EntityError> {
    let action = match action {
        Some(action) => Some(checked_action(store, shape, action)?),
        None => existing.action.clone(),
    };
    check_timeout(shape, given)?;
    let (meter, counter) = direct_resources(shape, existing, given)?;
    Ok(StoredEntry {
        action,
        #[expect(deprecated, reason = "controllers still read what they wrote to the old field")]
        controller_metadata: given.controller_metadata,
        metadata: given.metadata.clone(),
        idle_timeout_ns: given.idle_timeout_ns,
        meter,
        counter,
        is_const: existing.is_const,
    })
}

fn checked_action(
    store: &EntityStore,
    shape: &TableShape,
    given: &TableAction,
) -> Result<TableAction, EntityError> {
    let action = store.index.read_entry_action(shape, given)?;
    if let (Some(profile), Some(kind)) = (shape.profile, &action.r#type) {
        profiles::check_profile_reference(store, profile, kind)?;
    }
    Ok(action)
}

fn write_default(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &TableEntry,
) -> Result<UndoStep, EntityError> {
    let shape = table_shape(store, given.table_id)?;
    only_modify(kind, "the default action")?;
    if !given.r#match.is_empty() || given.priority != 0 {
        return Err(EntityError::invalid("the default action has neither key nor priority"));
    }
    if given.idle_timeout_ns != 0 || given.time_since_last_hit.is_some() {
        return Err(EntityError::invalid("the default action has no idle timeout"));
    }
    if shape.has_const_default || shape.profile.is_some() {
        return Err(denied(format!("the default action of `{}` is constant", shape.name)));
    }
    let existing = store.tables.get(&given.table_id).map(|table| &table.default);
    let existing = existing.cloned().unwrap_or_default();
    let entry = match given.action.as_ref().map(|action| action.r#type.as_ref()) {
        None => initial_default(shape),
        Some(Some(table_action::Type::Action(action))) => {
            let action = store.index.read_table_action(shape, action, ActionUse::Default)?;
            let (meter, counter) = direct_resources(shape, &existing, given)?;
            StoredEntry {
                action: Some(TableAction { r#type: Some(table_action::Type::Action(action)) }),
                #[expect(deprecated, reason = "controllers still read what they wrote to the old field")]
                controller_metadata: given.controller_metadata,
                metadata: given.metadata.clone(),
                meter,
                counter,
                ..StoredEntry::default()
            }
        }
        Some(_) => return Err(EntityError::invalid("the default action has to be an action")),
    };
    if let Some(table) = store.tables.get_mut(&given.table_id) {
        table.default = entry;
    }
    Ok(UndoStep::Default(given.table_id, existing))
}

/// Finds the entry that a direct resource belongs to.
fn direct_entry(
    store: &EntityStore,
    given: Option<&TableEntry>,
) -> Result<(u32, Option<EntryKey>, StoredEntry), EntityError> {
    let given = given.ok_or_else(|| EntityError::invalid("a direct resource needs its table entry"))?;
    let shape = table_shape(store, given.table_id)?;
    let table = store.tables.get(&given.table_id);
    if given.is_default_action {
        let default = table.map(|table| table.default.clone()).unwrap_or_default();
        return Ok((given.table_id, None, default));
    }
    let key = entry_key(store, given)?;
    match table.and_then(|table| table.entries.get(&key)) {
        Some(entry) => Ok((given.table_id, Some(key), entry.clone())),
        None => Err(EntityError::not_found(format!("`{}` has no such entry", shape.name))),
    }
}

fn set_direct(store: &mut EntityStore, table: u32, key: Option<EntryKey>, entry: StoredEntry) -> UndoStep {
    match key {
        Some(key) => {
            let before = store.set_entry(table, key.clone(), Some(entry));
            UndoStep::Entry(table, key, before)
        }
        None => {
            let state = store.tables.entry(table).or_default();
            UndoStep::Default(table, std::mem::replace(&mut state.default, entry))
        }
    }
}

pub(crate) fn write_direct_counter(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &DirectCounterEntry,
) -> Result<Option<UndoStep>, EntityError> {
    only_modify(kind, "a direct counter")?;
    let (table, key, entry) = direct_entry(store, given.table_entry.as_ref())?;
    let shape = table_shape(store, table)?;
    if !shape.has_counter {
        return Err(EntityError::invalid(format!("`{}` has no direct counter", shape.name)));
    }
    let Some(counter) = given.data else { return Ok(None) };
    Ok(Some(set_direct(store, table, key, StoredEntry { counter, ..entry })))
}

pub(crate) fn write_direct_meter(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &DirectMeterEntry,
) -> Result<UndoStep, EntityError> {
    only_modify(kind, "a direct meter")?;
    let (table, key, entry) = direct_entry(store, given.table_entry.as_ref())?;
    let shape = table_shape(store, table)?;
    let Some(meter_type) = shape.meter else {
        return Err(EntityError::invalid(format!("`{}` has no direct meter", shape.name)));
    };
    if given.counter_data.is_some() {
        return Err(no_color_counters());
    }
    check_meter(meter_type, given.config.as_ref())?;
    Ok(set_direct(store, table, key, StoredEntry { meter: given.config, ..entry }))
}

fn check_timeout(shape: &TableShape, given: &TableEntry) -> Result<(), EntityError> {
    if given.time_since_last_hit.is_some() {
        return Err(EntityError::invalid("the time since the last packet can only be read"));
    }
    match given.idle_timeout_ns {
        0 => Ok(()),
        1.. if shape.has_timeout => Ok(()),
        1.. => Err(EntityError::invalid(format!("`{}` has no idle timeouts", shape.name))),
        _ => Err(EntityError::invalid("an idle timeout cannot be negative")),
    }
}

/// Reads meter and counter of an entry.
fn direct_resources(
    shape: &TableShape,
    existing: &StoredEntry,
    given: &TableEntry,
) -> Result<(Option<MeterConfig>, CounterData), EntityError> {
    if given.meter_counter_data.is_some() {
        return Err(no_color_counters());
    }
    if given.counter_data.is_some() && !shape.has_counter {
        return Err(EntityError::invalid(format!("`{}` has no direct counter", shape.name)));
    }
    if given.meter_config.is_some() {
        let Some(kind) = shape.meter else {
            return Err(EntityError::invalid(format!("`{}` has no direct meter", shape.name)));
        };
        check_meter(kind, given.meter_config.as_ref())?;
    }
    Ok((given.meter_config, given.counter_data.unwrap_or(existing.counter)))
}
