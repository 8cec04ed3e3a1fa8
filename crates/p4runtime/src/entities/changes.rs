//! Changes of the store one by one, for runtimes that carry each out on a switch, and take it back if the
//! switch refuses.

use crate::entities::error::EntityError;
use crate::entities::keys::EntryKey;
use crate::entities::state::{EntityStore, StoredEntry, UndoStep};
use crate::entities::tables;
use crate::proto::v1::{
    Action, ActionProfileGroup, CloneSessionEntry, CounterData, MeterConfig, MulticastGroupEntry, P4Data,
    TableAction, TableEntry, Update, ValueSetMember, digest_entry,
};

/// A change that was made, with what undoes it.
#[derive(Debug)]
pub struct EntityChange {
    step: UndoStep,
}

/// Part of the store that a change is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntityPlace {
    /// An entry: id of the table, and key.
    Entry(u32, EntryKey),
    /// The default action of a table.
    Default(u32),
    /// A member of an action profile: ids of both.
    Member(u32, u32),
    /// A group of an action profile: ids of both.
    Group(u32, u32),
    /// A cell of a counter, or all: id and index.
    Counter(u32, Option<i64>),
    /// A cell of a meter, or all.
    Meter(u32, Option<i64>),
    /// A cell of a register, or all.
    Register(u32, Option<i64>),
    /// A value set.
    ValueSet(u32),
    /// A digest.
    Digest(u32),
    /// A multicast group.
    MulticastGroup(u32),
    /// A clone session.
    CloneSession(u32),
}

impl EntityChange {
    /// Place of the change.
    pub fn place(&self) -> EntityPlace {
        match &self.step {
            UndoStep::Entry(table, key, _) => EntityPlace::Entry(*table, key.clone()),
            UndoStep::Default(table, _) => EntityPlace::Default(*table),
            UndoStep::Member(profile, id, _) => EntityPlace::Member(*profile, *id),
            UndoStep::Group(profile, id, _) => EntityPlace::Group(*profile, *id),
            UndoStep::Counters(id, _) => EntityPlace::Counter(*id, None),
            UndoStep::Counter(id, at, _) => EntityPlace::Counter(*id, Some(*at)),
            UndoStep::Meters(id, _) => EntityPlace::Meter(*id, None),
            UndoStep::Meter(id, at, _) => EntityPlace::Meter(*id, Some(*at)),
            UndoStep::Registers(id, _) => EntityPlace::Register(*id, None),
            UndoStep::Register(id, at, _) => EntityPlace::Register(*id, Some(*at)),
            UndoStep::ValueSet(id, _) => EntityPlace::ValueSet(*id),
            UndoStep::Digest(id, _) => EntityPlace::Digest(*id),
            UndoStep::MulticastGroup(id, _) => EntityPlace::MulticastGroup(*id),
            UndoStep::CloneSession(id, _) => EntityPlace::CloneSession(*id),
        }
    }
}

/// An entry or default action of the store.
#[derive(Clone, Copy, Debug)]
pub struct EntryState<'s> {
    /// Action; entries have one.
    pub action: Option<&'s TableAction>,
    /// Direct meter.
    pub meter: Option<&'s MeterConfig>,
    /// Direct counter, as a controller set it.
    pub counter: CounterData,
    /// Time without packets after which controllers are told, in nanoseconds; 0 for none.
    pub idle_timeout_ns: i64,
}

impl StoredEntry {
    fn state(&self) -> EntryState<'_> {
        EntryState {
            action: self.action.as_ref(),
            meter: self.meter.as_ref(),
            counter: self.counter,
            idle_timeout_ns: self.idle_timeout_ns,
        }
    }
}

impl EntityStore {
    /// Writes one entity, or changes nothing. An update that is right and leaves all as it is gives no change.
    ///
    /// # Errors
    /// If the update is malformed, or the state does not allow it.
    pub fn change(&mut self, update: &Update) -> Result<Option<EntityChange>, EntityError> {
        let steps = self.write_undoable(update)?;
        Ok(steps.into_iter().next().map(|step| EntityChange { step }))
    }

    /// Takes a change back. Changes are taken back in the reverse order.
    pub fn revert(&mut self, change: EntityChange) {
        self.undo(change.step);
    }

    /// Finds an entry.
    pub fn entry(&self, table: u32, key: &EntryKey) -> Option<EntryState<'_>> {
        self.tables.get(&table)?.entries.get(key).map(StoredEntry::state)
    }

    /// Reads the key of an entry of the form that controllers write and read.
    ///
    /// # Errors
    /// If the key is not one of the table's.
    pub fn key_of(&self, entry: &TableEntry) -> Result<EntryKey, EntityError> {
        tables::entry_key(self, entry)
    }

    /// Table, key and priority of an entry, in the form that controllers read.
    pub fn named(&self, table: u32, key: &EntryKey) -> Option<TableEntry> {
        let shape = self.index.tables.get(&table)?;
        Some(crate::entities::table_reads::named_entry(table, shape, Some(key)))
    }

    /// All entries of a table, by key.
    pub fn entries(&self, table: u32) -> impl Iterator<Item = (&EntryKey, EntryState<'_>)> {
        let entries = self.tables.get(&table).map(|table| table.entries.iter());
        entries.into_iter().flatten().map(|(key, entry)| (key, entry.state()))
    }

    /// Counts the entries of a table.
    pub fn entry_count(&self, table: u32) -> usize {
        self.tables.get(&table).map_or(0, |table| table.entries.len())
    }

    /// The default action of a table.
    pub fn default_entry(&self, table: u32) -> Option<EntryState<'_>> {
        self.tables.get(&table).map(|table| table.default.state())
    }

    /// Finds a member of an action profile.
    pub fn member(&self, profile: u32, id: u32) -> Option<&Action> {
        self.profiles.get(&profile)?.members.get(&id)
    }

    /// Tells if an entry or group names a member.
    pub fn is_member_used(&self, profile: u32, id: u32) -> bool {
        self.profiles.get(&profile).is_some_and(|state| state.member_uses.contains_key(&id))
    }

    /// Finds a group of an action profile.
    pub fn group(&self, profile: u32, id: u32) -> Option<&ActionProfileGroup> {
        self.profiles.get(&profile)?.groups.get(&id)
    }

    /// All groups of an action profile, by id.
    pub fn groups(&self, profile: u32) -> impl Iterator<Item = &ActionProfileGroup> {
        self.profiles.get(&profile).into_iter().flat_map(|state| state.groups.values())
    }

    /// A cell of a counter, as a controller set it.
    pub fn counter_cell(&self, id: u32, at: i64) -> Option<CounterData> {
        self.counters.get(&id).map(|array| *array.get(at))
    }

    /// A cell of a meter.
    pub fn meter_cell(&self, id: u32, at: i64) -> Option<Option<MeterConfig>> {
        self.meters.get(&id).map(|array| *array.get(at))
    }

    /// A cell of a register, as a controller set it.
    pub fn register_cell(&self, id: u32, at: i64) -> Option<&P4Data> {
        self.registers.get(&id).map(|array| array.get(at))
    }

    /// Members of a value set.
    pub fn value_set(&self, id: u32) -> &[ValueSetMember] {
        self.value_sets.get(&id).map_or(&[], |members| members)
    }

    /// Configuration of a digest that is enabled.
    pub fn digest(&self, id: u32) -> Option<&digest_entry::Config> {
        self.digests.get(&id)
    }

    /// Finds a multicast group.
    pub fn multicast_group(&self, id: u32) -> Option<&MulticastGroupEntry> {
        self.multicast_groups.get(&id)
    }

    /// Finds a clone session.
    pub fn clone_session(&self, id: u32) -> Option<&CloneSessionEntry> {
        self.clone_sessions.get(&id)
    }
}

/// Message about the updates of a batch of which the one at `failed_at` failed and undid the others.
pub fn undone_batch(count: usize, failed_at: usize, error: &EntityError) -> crate::entities::BatchOutcome {
    crate::entities::batch::failed(count, failed_at, error)
}
