//! Reads of table entries and direct resources. Source: P4Runtime specification 1.4, section 9.1.6.

use std::ops::ControlFlow;

use crate::entities::error::EntityError;
use crate::entities::keys::{EntryKey, read_values, write_values};
use crate::entities::meters::no_color_counters;
use crate::entities::pipeline::TableShape;
use crate::entities::state::{EmitEntity, EntityStore, ReadResult, StoredEntry, TableState};
use crate::entities::tables;
use crate::proto::v1::{DirectCounterEntry, DirectMeterEntry, TableEntry, entity, table_action, table_entry};

/// Receiver of entries: id and shape of the table, key (none is the default action's), and state.
type VisitEntry<'v> = dyn FnMut(u32, &TableShape, Option<&EntryKey>, &StoredEntry) -> ControlFlow<()> + 'v;

pub(crate) fn read_entries(
    store: &EntityStore,
    request: &TableEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let mut each =
        |id: u32, shape: &TableShape, key: Option<&EntryKey>, entry: &StoredEntry| match is_selected(
            request, key, entry,
        ) {
            true => emit(entity::Entity::TableEntry(described(id, shape, key, entry, request))),
            false => ControlFlow::Continue(()),
        };
    visit_entries(store, request, &mut each)
}

pub(crate) fn read_direct_counters(
    store: &EntityStore,
    request: &DirectCounterEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let selected = request.table_entry.clone().unwrap_or_default();
    check_direct(store, &selected, |shape| shape.has_counter, "counter")?;
    let mut each = |id: u32, shape: &TableShape, key: Option<&EntryKey>, entry: &StoredEntry| {
        if !shape.has_counter || !has_priority(&selected, key) {
            return ControlFlow::Continue(());
        }
        let table_entry = Some(named_entry(id, shape, key));
        let counter = DirectCounterEntry { table_entry, data: Some(entry.counter) };
        emit(entity::Entity::DirectCounterEntry(counter))
    };
    visit_entries(store, &selected, &mut each)
}

pub(crate) fn read_direct_meters(
    store: &EntityStore,
    request: &DirectMeterEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    if request.counter_data.is_some() {
        return Err(no_color_counters());
    }
    let selected = request.table_entry.clone().unwrap_or_default();
    check_direct(store, &selected, |shape| shape.meter.is_some(), "meter")?;
    let mut each = |id: u32, shape: &TableShape, key: Option<&EntryKey>, entry: &StoredEntry| {
        if shape.meter.is_none() || !has_priority(&selected, key) {
            return ControlFlow::Continue(());
        }
        let table_entry = Some(named_entry(id, shape, key));
        let meter = DirectMeterEntry { table_entry, config: entry.meter, counter_data: None };
        emit(entity::Entity::DirectMeterEntry(meter))
    };
    visit_entries(store, &selected, &mut each)
}

/// Checks that the table of a request has a direct resource, and the entry of a request exists.
fn check_direct(
    store: &EntityStore,
    selected: &TableEntry,
    has_resource: impl Fn(&TableShape) -> bool,
    name: &str,
) -> Result<(), EntityError> {
    if selected.table_id == 0 {
        return Ok(());
    }
    let shape = tables::table_shape(store, selected.table_id)?;
    if !has_resource(shape) {
        return Err(EntityError::invalid(format!("`{}` has no direct {name}", shape.name)));
    }
    if selected.r#match.is_empty() || selected.is_default_action {
        return Ok(());
    }
    let key = tables::entry_key(store, selected)?;
    let table = store.tables.get(&selected.table_id);
    match table.is_some_and(|table| table.entries.contains_key(&key)) {
        true => Ok(()),
        false => Err(EntityError::not_found(format!("`{}` has no such entry", shape.name))),
    }
}

/// Visits the entries of one table or of all, or one entry, or default actions.
fn visit_entries(store: &EntityStore, request: &TableEntry, visit: &mut VisitEntry<'_>) -> ReadResult {
    let mut all = |id: u32, shape: &TableShape, table: &TableState| {
        if request.is_default_action {
            return visit(id, shape, None, &table.default);
        }
        table.entries.iter().try_for_each(|(key, entry)| visit(id, shape, Some(key), entry))
    };
    if request.table_id == 0 {
        let mut tables = store.index.tables.iter().zip(store.tables.values());
        return Ok(tables.try_for_each(|((id, shape), table)| all(*id, shape, table)));
    }
    let shape = tables::table_shape(store, request.table_id)?;
    let Some(table) = store.tables.get(&request.table_id) else {
        return Ok(ControlFlow::Continue(()));
    };
    if request.r#match.is_empty() || request.is_default_action {
        return Ok(all(request.table_id, shape, table));
    }
    let values = read_values(&shape.fields, &request.r#match)?;
    // The priority may be left out: then all entries with these values are selected.
    let from = EntryKey { values: values.clone(), priority: i32::MIN };
    let mut same = table.entries.range(from..).take_while(|(key, _)| key.values == values);
    Ok(same.try_for_each(|(key, entry)| visit(request.table_id, shape, Some(key), entry)))
}

/// Tells if an entry has the priority of a request.
fn has_priority(request: &TableEntry, key: Option<&EntryKey>) -> bool {
    request.priority == 0 || key.is_none_or(|key| key.priority == request.priority)
}

/// Tells if an entry is one that a request selects. Without a table, nothing else selects.
fn is_selected(request: &TableEntry, key: Option<&EntryKey>, entry: &StoredEntry) -> bool {
    if request.table_id == 0 {
        return true;
    }
    let action_id = |action: Option<&crate::proto::v1::TableAction>| match action?.r#type.as_ref()? {
        table_action::Type::Action(action) => Some(action.action_id),
        _ => None,
    };
    let wanted = action_id(request.action.as_ref()).filter(|id| *id != 0);
    #[expect(deprecated, reason = "controllers still read what they wrote to the old field")]
    let cookie = request.controller_metadata;
    has_priority(request, key)
        && wanted.is_none_or(|wanted| action_id(entry.action.as_ref()) == Some(wanted))
        && (cookie == 0 || cookie == entry.controller_metadata)
        && (request.metadata.is_empty() || request.metadata == entry.metadata)
}

/// Table and key of an entry.
pub(crate) fn named_entry(id: u32, shape: &TableShape, key: Option<&EntryKey>) -> TableEntry {
    TableEntry {
        table_id: id,
        r#match: key.map(|key| write_values(&shape.fields, &key.values)).unwrap_or_default(),
        priority: key.map_or(0, |key| key.priority),
        is_default_action: key.is_none(),
        ..TableEntry::default()
    }
}

/// An entry with those of its direct resources that a request asks for.
fn described(
    id: u32,
    shape: &TableShape,
    key: Option<&EntryKey>,
    entry: &StoredEntry,
    request: &TableEntry,
) -> TableEntry {
    let has_timeout = request.time_since_last_hit.is_some() && shape.has_timeout && key.is_some();
    TableEntry {
        action: entry.action.clone(),
        #[expect(deprecated, reason = "controllers still read what they wrote to the old field")]
        controller_metadata: entry.controller_metadata,
        metadata: entry.metadata.clone(),
        idle_timeout_ns: entry.idle_timeout_ns,
        meter_config: request.meter_config.and(entry.meter),
        counter_data: request.counter_data.filter(|_| shape.has_counter).map(|_| entry.counter),
        time_since_last_hit: has_timeout.then(table_entry::IdleTimeout::default),
        is_const: entry.is_const,
        ..named_entry(id, shape, key)
    }
}
