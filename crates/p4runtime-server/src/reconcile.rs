//! State that a new program takes over from the one that ran: what has the same name and type.

use std::ops::ControlFlow;

use millstream_p4_lower::ObjectSpec;
use millstream_p4_switch::SwitchExecutor;
use millstream_p4runtime::proto::v1::{
    ActionProfileGroup, ActionProfileMember, CloneSessionEntry, DigestEntry, Entity, MeterEntry,
    MulticastGroupEntry, PacketReplicationEngineEntry, TableEntry, Update, ValueSetEntry, entity,
    packet_replication_engine_entry, update, write_request::Atomicity,
};

use crate::controlled::ControlledSwitch;

/// Counts of what was kept, and what was not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReconcileReport {
    /// Entities that the new program has, too.
    pub kept: usize,
    /// Entities that it does not have, with the reason, at most 64 of them.
    pub lost: Vec<String>,
    /// Number of such entities.
    pub lost_count: usize,
    /// Arrays whose cells were copied.
    pub arrays: Vec<String>,
}

/// Reasons that are kept.
const MOST_REASONS: usize = 64;

/// Requests for all entities of each kind that controllers write; members come before groups, and both before
/// entries.
fn all_entities() -> Vec<entity::Entity> {
    use packet_replication_engine_entry::Type;
    let replication = |kind: Type| {
        entity::Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry { r#type: Some(kind) })
    };
    let counters = Some(Default::default());
    let meter_config = Some(Default::default());
    let entries = TableEntry { counter_data: counters, meter_config, ..TableEntry::default() };
    vec![
        replication(Type::MulticastGroupEntry(MulticastGroupEntry::default())),
        replication(Type::CloneSessionEntry(CloneSessionEntry::default())),
        entity::Entity::ActionProfileMember(ActionProfileMember::default()),
        entity::Entity::ActionProfileGroup(ActionProfileGroup::default()),
        entity::Entity::TableEntry(entries.clone()),
        entity::Entity::TableEntry(TableEntry { is_default_action: true, ..entries }),
        entity::Entity::ValueSetEntry(ValueSetEntry::default()),
        entity::Entity::DigestEntry(DigestEntry::default()),
        entity::Entity::MeterEntry(MeterEntry::default()),
    ]
}

/// Type of the update that writes an entity into a switch that has the program's own state.
fn update_type(entity: &entity::Entity) -> update::Type {
    match entity {
        entity::Entity::TableEntry(entry) if entry.is_default_action => update::Type::Modify,
        entity::Entity::ValueSetEntry(_) | entity::Entity::MeterEntry(_) => update::Type::Modify,
        _ => update::Type::Insert,
    }
}

/// Copies state from an old switch to a new one.
pub(crate) fn keep_state(old: &mut ControlledSwitch, new: &mut ControlledSwitch) -> ReconcileReport {
    let mut report = ReconcileReport::default();
    for request in all_entities() {
        let mut found = Vec::new();
        let request = Entity { entity: Some(request) };
        let read = old.store.read(&request, &mut |entity| {
            found.push(entity);
            ControlFlow::Continue(())
        });
        if let Err(error) = read {
            tracing::debug!("state is not kept: {error}");
        }
        for entity in found {
            keep_entity(old, new, entity, &mut report);
        }
    }
    keep_arrays(old, new, &mut report);
    report
}

fn keep_entity(
    old: &mut ControlledSwitch,
    new: &mut ControlledSwitch,
    mut entity: Entity,
    report: &mut ReconcileReport,
) {
    let Some(kind) = entity.entity.as_mut() else { return };
    if let Err(reason) = translate(old, new, kind) {
        return lose(report, reason);
    }
    // Entries of the program itself are there already.
    if matches!(kind, entity::Entity::TableEntry(entry) if entry.is_const) {
        return;
    }
    let is_plain_meter = matches!(kind, entity::Entity::MeterEntry(entry) if entry.config.is_none());
    let is_default_of_profile = matches!(kind, entity::Entity::TableEntry(entry)
        if entry.is_default_action && entry.action.is_none());
    if is_plain_meter || is_default_of_profile {
        return;
    }
    let mut update = Update { r#type: update_type(kind) as i32, entity: Some(entity) };
    let mut outcome = new.write(std::slice::from_ref(&update), Atomicity::ContinueOnError);
    if outcome.results.first().is_some_and(|result| {
        result.as_ref().is_err_and(|e| e.kind == millstream_p4runtime::entities::ErrorKind::AlreadyExists)
    }) {
        update.r#type = update::Type::Modify as i32;
        outcome = new.write(std::slice::from_ref(&update), Atomicity::ContinueOnError);
    }
    match outcome.results.into_iter().next() {
        Some(Err(error)) => lose(report, error.message),
        _ => report.kept += 1,
    }
}

fn lose(report: &mut ReconcileReport, reason: String) {
    report.lost_count += 1;
    if report.lost.len() < MOST_REASONS {
        report.lost.push(reason);
    }
}

/// Checks that the new program has the object of an entity, described in the same way under the same id, and
/// puts the values that packets gave it into the entity.
fn translate(
    old: &mut ControlledSwitch,
    new: &ControlledSwitch,
    entity: &mut entity::Entity,
) -> Result<(), String> {
    let (mine, theirs) = (&old.program.description.info, &new.program.description.info);
    match entity {
        entity::Entity::TableEntry(entry) => {
            let is_own = |table: &&millstream_p4runtime::proto::config::v1::Table| {
                table.preamble.as_ref().is_some_and(|preamble| preamble.id == entry.table_id)
            };
            let (before, after) = (mine.tables.iter().find(is_own), theirs.tables.iter().find(is_own));
            let name = before.and_then(|table| table.preamble.as_ref()).map_or("?", |p| p.name.as_str());
            let same = before.zip(after).is_some_and(|(before, after)| {
                before.preamble.as_ref().map(|p| &p.name) == after.preamble.as_ref().map(|p| &p.name)
                    && before.match_fields == after.match_fields
                    && before.implementation_id == after.implementation_id
            });
            if !same {
                return Err(format!("the new program has no table `{name}` with the same key"));
            }
            check_actions(entry, mine, theirs)?;
            let mut whole = Entity { entity: Some(entity::Entity::TableEntry(std::mem::take(entry))) };
            old.refresh(&mut whole);
            if let Some(entity::Entity::TableEntry(found)) = whole.entity {
                *entry = found;
            }
            let has_counter = after.is_some_and(|table| {
                let counters = theirs.direct_counters.iter().filter_map(|c| c.preamble.as_ref());
                counters.into_iter().any(|preamble| table.direct_resource_ids.contains(&preamble.id))
            });
            let has_meter = after.is_some_and(|table| {
                let meters = theirs.direct_meters.iter().filter_map(|m| m.preamble.as_ref());
                meters.into_iter().any(|preamble| table.direct_resource_ids.contains(&preamble.id))
            });
            entry.counter_data = entry.counter_data.filter(|_| has_counter);
            entry.meter_config = entry.meter_config.filter(|_| has_meter);
            Ok(())
        }
        entity::Entity::MeterEntry(entry) => {
            let is_own = |meter: &&millstream_p4runtime::proto::config::v1::Meter| {
                meter.preamble.as_ref().is_some_and(|preamble| preamble.id == entry.meter_id)
            };
            match mine.meters.iter().find(is_own) == theirs.meters.iter().find(is_own) {
                true => Ok(()),
                false => Err("the new program has no such meter".to_owned()),
            }
        }
        _ => Ok(()),
    }
}

/// Checks that an entry's action has the same name and parameters in both programs.
fn check_actions(
    entry: &TableEntry,
    mine: &millstream_p4runtime::proto::config::v1::P4Info,
    theirs: &millstream_p4runtime::proto::config::v1::P4Info,
) -> Result<(), String> {
    use millstream_p4runtime::proto::v1::table_action::Type;
    let Some(Type::Action(action)) = entry.action.as_ref().and_then(|action| action.r#type.as_ref()) else {
        return Ok(());
    };
    let is_own = |known: &&millstream_p4runtime::proto::config::v1::Action| {
        known.preamble.as_ref().is_some_and(|preamble| preamble.id == action.action_id)
    };
    let (before, after) = (mine.actions.iter().find(is_own), theirs.actions.iter().find(is_own));
    let name = before.and_then(|action| action.preamble.as_ref()).map_or("?", |p| p.name.as_str());
    let same = before.zip(after).is_some_and(|(before, after)| {
        before.preamble.as_ref().map(|p| &p.name) == after.preamble.as_ref().map(|p| &p.name)
            && before.params == after.params
    });
    match same {
        true => Ok(()),
        false => Err(format!("the new program has no action `{name}` with the same parameters")),
    }
}

/// Copies the cells of counters and registers.
fn keep_arrays(old: &mut ControlledSwitch, new: &mut ControlledSwitch, report: &mut ReconcileReport) {
    use millstream_p4_lower::ObjectKind::{Counter, Register};
    let (before, after) = (old.program.lowered.clone(), new.program.lowered.clone());
    let has_cells =
        |object: &&ObjectSpec| matches!(object.kind, Counter | Register { .. }) && object.map.is_some();
    for object in before.pipeline.objects.iter().filter(has_cells) {
        let same = after.pipeline.objects.iter().find(|other| {
            other.name == object.name && other.kind == object.kind && other.size == object.size
        });
        let (Some(from), Some(to)) = (object.map, same.and_then(|same| same.map)) else {
            lose(report, format!("the new program has no `{}` of the same type and size", object.name));
            continue;
        };
        for index in 0..object.size {
            let key = index.to_le_bytes();
            let Some(value) = old.switch.executor().get(from, &key) else { continue };
            if let Err(error) = new.switch.executor().set(to, &key, &value) {
                lose(report, format!("{}: {error}", object.name));
                break;
            }
        }
        report.arrays.push(object.name.clone());
    }
}
