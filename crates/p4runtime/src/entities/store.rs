//! Writes and reads of all entities.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::entities::error::EntityError;
use crate::entities::state::{EntityStore, UndoStep, UpdateKind};
use crate::entities::{arrays, profiles, replication, settings, table_reads, tables};
use crate::proto::v1::{Entity, Update, entity, update};

impl EntityStore {
    /// Inserts the entries that a program gives its tables; those that are constant stay as they are.
    ///
    /// # Errors
    /// If an update is no insertion of a table entry, the entry is malformed, or it is there already.
    pub fn install(&mut self, entries: &[Update]) -> Result<(), EntityError> {
        for update in entries {
            let entity = update.entity.as_ref().and_then(|entity| entity.entity.as_ref());
            match (update.r#type(), entity) {
                (update::Type::Insert, Some(entity::Entity::TableEntry(entry))) => {
                    tables::install_entry(self, entry)?
                }
                _ => return Err(EntityError::invalid("a program gives entries of tables alone")),
            }
        }
        Ok(())
    }

    /// Writes one entity, or changes nothing.
    ///
    /// # Errors
    /// If the update is malformed, or the state does not allow it.
    pub fn write(&mut self, update: &Update) -> Result<(), EntityError> {
        self.write_undoable(update).map(|_| ())
    }

    /// Writes one entity, and gives what undoes it.
    pub(crate) fn write_undoable(&mut self, update: &Update) -> Result<Vec<UndoStep>, EntityError> {
        let kind = match update.r#type() {
            update::Type::Insert => UpdateKind::Insert,
            update::Type::Modify => UpdateKind::Modify,
            update::Type::Delete => UpdateKind::Delete,
            update::Type::Unspecified => return Err(EntityError::invalid("the update has no type")),
        };
        let entity = update.entity.as_ref().and_then(|entity| entity.entity.as_ref());
        let step = match entity.ok_or_else(no_entity)? {
            entity::Entity::ExternEntry(_) => return Err(no_externs()),
            entity::Entity::TableEntry(entry) => tables::write_entry(self, kind, entry)?,
            entity::Entity::ActionProfileMember(member) => Some(profiles::write_member(self, kind, member)?),
            entity::Entity::ActionProfileGroup(group) => Some(profiles::write_group(self, kind, group)?),
            entity::Entity::MeterEntry(entry) => Some(arrays::write_meter(self, kind, entry)?),
            entity::Entity::DirectMeterEntry(entry) => Some(tables::write_direct_meter(self, kind, entry)?),
            entity::Entity::CounterEntry(entry) => arrays::write_counter(self, kind, entry)?,
            entity::Entity::DirectCounterEntry(entry) => tables::write_direct_counter(self, kind, entry)?,
            entity::Entity::PacketReplicationEngineEntry(entry) => {
                Some(replication::write_replication(self, kind, entry)?)
            }
            entity::Entity::ValueSetEntry(entry) => Some(settings::write_value_set(self, kind, entry)?),
            entity::Entity::RegisterEntry(entry) => Some(arrays::write_register(self, kind, entry)?),
            entity::Entity::DigestEntry(entry) => Some(settings::write_digest(self, kind, entry)?),
        };
        Ok(step.into_iter().collect())
    }

    /// Undoes an update.
    pub(crate) fn undo(&mut self, step: UndoStep) {
        fn put<V>(map: &mut BTreeMap<u32, V>, id: u32, value: Option<V>) {
            match value {
                Some(value) => map.insert(id, value),
                None => map.remove(&id),
            };
        }
        match step {
            UndoStep::Entry(table, key, entry) => _ = self.set_entry(table, key, entry),
            UndoStep::Default(table, entry) => {
                if let Some(table) = self.tables.get_mut(&table) {
                    table.default = entry;
                }
            }
            UndoStep::Member(profile, id, member) => _ = self.set_member(profile, id, member),
            UndoStep::Group(profile, id, group) => _ = self.set_group(profile, id, group),
            UndoStep::Counters(id, cells) => _ = self.counters.insert(id, cells),
            UndoStep::Meters(id, cells) => _ = self.meters.insert(id, cells),
            UndoStep::Registers(id, cells) => _ = self.registers.insert(id, cells),
            UndoStep::Counter(id, at, cell) => self.counters.entry(id).or_default().restore(at, cell),
            UndoStep::Meter(id, at, cell) => self.meters.entry(id).or_default().restore(at, cell),
            UndoStep::Register(id, at, cell) => self.registers.entry(id).or_default().restore(at, cell),
            UndoStep::ValueSet(id, members) => _ = self.value_sets.insert(id, members),
            UndoStep::Digest(id, config) => put(&mut self.digests, id, config),
            UndoStep::MulticastGroup(id, group) => put(&mut self.multicast_groups, id, group),
            UndoStep::CloneSession(id, session) => put(&mut self.clone_sessions, id, session),
        }
    }

    /// Reads the entities that a request selects, one after the other; fields that are not set select all.
    /// The receiver can end the read, since arrays can be larger than what it has room for.
    ///
    /// # Errors
    /// If the request is malformed, or the one entity that it names does not exist.
    pub fn read(
        &self,
        request: &Entity,
        emit: &mut dyn FnMut(Entity) -> ControlFlow<()>,
    ) -> Result<(), EntityError> {
        let emit = &mut |entity: entity::Entity| emit(Entity { entity: Some(entity) });
        let result = match request.entity.as_ref().ok_or_else(no_entity)? {
            // Programs of these architectures have no other externs: there is nothing to read.
            entity::Entity::ExternEntry(entry) if entry.extern_type_id == 0 => return Ok(()),
            entity::Entity::ExternEntry(_) => return Err(no_externs()),
            entity::Entity::TableEntry(entry) => table_reads::read_entries(self, entry, emit),
            entity::Entity::ActionProfileMember(member) => profiles::read_members(self, member, emit),
            entity::Entity::ActionProfileGroup(group) => profiles::read_groups(self, group, emit),
            entity::Entity::MeterEntry(entry) => arrays::read_meters(self, entry, emit),
            entity::Entity::DirectMeterEntry(entry) => table_reads::read_direct_meters(self, entry, emit),
            entity::Entity::CounterEntry(entry) => arrays::read_counters(self, entry, emit),
            entity::Entity::DirectCounterEntry(entry) => table_reads::read_direct_counters(self, entry, emit),
            entity::Entity::PacketReplicationEngineEntry(entry) => {
                replication::read_replication(self, entry, emit)
            }
            entity::Entity::ValueSetEntry(entry) => settings::read_value_sets(self, entry, emit),
            entity::Entity::RegisterEntry(entry) => arrays::read_registers(self, entry, emit),
            entity::Entity::DigestEntry(entry) => settings::read_digests(self, entry, emit),
        };
        result.map(|_| ())
    }
}

fn no_entity() -> EntityError {
    EntityError::invalid("the entity is not set")
}

fn no_externs() -> EntityError {
    EntityError::unimplemented("externs of other types are not supported")
}
