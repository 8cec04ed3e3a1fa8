//! State of the store: types, and the changes that keep counts of what is used.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::entities::data::zero_data;
use crate::entities::error::EntityError;
use crate::entities::keys::EntryKey;
use crate::entities::pipeline::{PipelineIndex, TableShape};
use crate::proto::v1::{
    Action, ActionProfileGroup, CloneSessionEntry, CounterData, MeterConfig, MulticastGroupEntry, P4Data,
    TableAction, ValueSetMember, digest_entry, entity, table_action,
};

/// Receiver of entities, which can end a read.
pub(crate) type EmitEntity<'e> = dyn FnMut(entity::Entity) -> ControlFlow<()> + 'e;

/// Result of a read: its receiver ended it, or not.
pub(crate) type ReadResult = Result<ControlFlow<()>, EntityError>;

/// Type of an update that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UpdateKind {
    Insert,
    Modify,
    Delete,
}

/// Entities of a program, in memory.
#[derive(Clone, Debug)]
pub struct EntityStore {
    pub(crate) index: Arc<PipelineIndex>,
    pub(crate) tables: BTreeMap<u32, TableState>,
    pub(crate) profiles: BTreeMap<u32, ProfileState>,
    pub(crate) counters: BTreeMap<u32, CellArray<CounterData>>,
    pub(crate) meters: BTreeMap<u32, CellArray<Option<MeterConfig>>>,
    pub(crate) registers: BTreeMap<u32, CellArray<P4Data>>,
    pub(crate) value_sets: BTreeMap<u32, Vec<ValueSetMember>>,
    pub(crate) digests: BTreeMap<u32, digest_entry::Config>,
    pub(crate) multicast_groups: BTreeMap<u32, MulticastGroupEntry>,
    pub(crate) clone_sessions: BTreeMap<u32, CloneSessionEntry>,
}

/// Step that undoes an update.
#[derive(Debug)]
pub(crate) enum UndoStep {
    Entry(u32, EntryKey, Option<StoredEntry>),
    Default(u32, StoredEntry),
    Member(u32, u32, Option<Action>),
    Group(u32, u32, Option<ActionProfileGroup>),
    Counters(u32, CellArray<CounterData>),
    Counter(u32, i64, Option<CounterData>),
    Meters(u32, CellArray<Option<MeterConfig>>),
    Meter(u32, i64, Option<Option<MeterConfig>>),
    Registers(u32, CellArray<P4Data>),
    Register(u32, i64, Option<P4Data>),
    ValueSet(u32, Vec<ValueSetMember>),
    Digest(u32, Option<digest_entry::Config>),
    MulticastGroup(u32, Option<MulticastGroupEntry>),
    CloneSession(u32, Option<CloneSessionEntry>),
}

/// State of an entry, or of the default action.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct StoredEntry {
    pub(crate) action: Option<TableAction>,
    pub(crate) controller_metadata: u64,
    pub(crate) metadata: Vec<u8>,
    pub(crate) idle_timeout_ns: i64,
    pub(crate) meter: Option<MeterConfig>,
    pub(crate) counter: CounterData,
    pub(crate) is_const: bool,
}

/// Entries of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableState {
    pub(crate) entries: BTreeMap<EntryKey, StoredEntry>,
    pub(crate) default: StoredEntry,
}

impl TableState {
    pub(crate) fn new(shape: &TableShape) -> TableState {
        TableState { entries: BTreeMap::new(), default: initial_default(shape) }
    }
}

pub(crate) fn initial_default(shape: &TableShape) -> StoredEntry {
    let action = shape.default_action.clone().map(table_action::Type::Action);
    let action = action.map(|action| TableAction { r#type: Some(action) });
    StoredEntry { action, ..StoredEntry::default() }
}

/// Members and groups of an action profile, and how often entries and groups name them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProfileState {
    pub(crate) members: BTreeMap<u32, Action>,
    pub(crate) groups: BTreeMap<u32, ActionProfileGroup>,
    pub(crate) member_uses: FxHashMap<u32, i64>,
    pub(crate) group_uses: FxHashMap<u32, i64>,
    /// Entries with a group of their own.
    pub(crate) one_shots: i64,
}

impl ProfileState {
    /// Counts what the action of an entry names.
    pub(crate) fn count_action(&mut self, action: Option<&TableAction>, step: i64) {
        match action.and_then(|action| action.r#type.as_ref()) {
            Some(table_action::Type::ActionProfileMemberId(id)) => count(&mut self.member_uses, *id, step),
            Some(table_action::Type::ActionProfileGroupId(id)) => count(&mut self.group_uses, *id, step),
            Some(table_action::Type::ActionProfileActionSet(_)) => self.one_shots += step,
            Some(table_action::Type::Action(_)) | None => {}
        }
    }

    fn count_members(&mut self, group: Option<&ActionProfileGroup>, step: i64) {
        for member in group.into_iter().flat_map(|group| &group.members) {
            count(&mut self.member_uses, member.member_id, step);
        }
    }
}

fn count(uses: &mut FxHashMap<u32, i64>, id: u32, step: i64) {
    let number = uses.entry(id).or_default();
    *number += step;
    if *number == 0 {
        uses.remove(&id);
    }
}

/// Cells of an array: those that were written, and the value of all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellArray<T> {
    pub(crate) cells: BTreeMap<i64, T>,
    others: T,
}

impl<T: Clone> CellArray<T> {
    pub(crate) fn new(others: T) -> CellArray<T> {
        CellArray { cells: BTreeMap::new(), others }
    }

    pub(crate) fn get(&self, at: i64) -> &T {
        self.cells.get(&at).unwrap_or(&self.others)
    }

    /// Puts a cell back as it was.
    pub(crate) fn restore(&mut self, at: i64, cell: Option<T>) {
        match cell {
            Some(cell) => self.cells.insert(at, cell),
            None => self.cells.remove(&at),
        };
    }
}

impl EntityStore {
    /// Makes an empty store: tables have their default actions, and arrays are zero.
    pub fn new(index: Arc<PipelineIndex>) -> EntityStore {
        let tables = index.tables.iter().map(|(id, shape)| (*id, TableState::new(shape))).collect();
        let registers = index.registers.iter().map(|(id, shape)| {
            (*id, CellArray::new(zero_data(&shape.cell, &index.types).unwrap_or_default()))
        });
        EntityStore {
            tables,
            profiles: index.profiles.keys().map(|id| (*id, ProfileState::default())).collect(),
            counters: index.counters.keys().map(|id| (*id, CellArray::default())).collect(),
            meters: index.meters.keys().map(|id| (*id, CellArray::default())).collect(),
            registers: registers.collect(),
            value_sets: index.value_sets.keys().map(|id| (*id, Vec::new())).collect(),
            digests: BTreeMap::new(),
            multicast_groups: BTreeMap::new(),
            clone_sessions: BTreeMap::new(),
            index,
        }
    }

    /// Puts an entry in place or removes it, keeps count of the members and groups that entries name, and
    /// gives the entry before.
    pub(crate) fn set_entry(
        &mut self,
        table: u32,
        key: EntryKey,
        entry: Option<StoredEntry>,
    ) -> Option<StoredEntry> {
        let profile = self.index.tables.get(&table).and_then(|shape| shape.profile);
        if let Some(state) = profile.and_then(|profile| self.profiles.get_mut(&profile)) {
            state.count_action(entry.as_ref().and_then(|entry| entry.action.as_ref()), 1);
        }
        let entries = &mut self.tables.entry(table).or_default().entries;
        let before = match entry {
            Some(entry) => entries.insert(key, entry),
            None => entries.remove(&key),
        };
        if let Some(state) = profile.and_then(|profile| self.profiles.get_mut(&profile)) {
            state.count_action(before.as_ref().and_then(|entry| entry.action.as_ref()), -1);
        }
        before
    }

    /// Puts a member in place or removes it, and gives the member before.
    pub(crate) fn set_member(&mut self, profile: u32, id: u32, member: Option<Action>) -> Option<Action> {
        let members = &mut self.profiles.entry(profile).or_default().members;
        match member {
            Some(member) => members.insert(id, member),
            None => members.remove(&id),
        }
    }

    /// Puts a group in place or removes it, and gives the group before.
    pub(crate) fn set_group(
        &mut self,
        profile: u32,
        id: u32,
        group: Option<ActionProfileGroup>,
    ) -> Option<ActionProfileGroup> {
        let state = self.profiles.entry(profile).or_default();
        state.count_members(group.as_ref(), 1);
        let before = match group {
            Some(group) => state.groups.insert(id, group),
            None => state.groups.remove(&id),
        };
        state.count_members(before.as_ref(), -1);
        before
    }
}

/// Error about an update that an entity does not have.
pub(crate) fn only_modify(kind: UpdateKind, what: &str) -> Result<(), EntityError> {
    match kind {
        UpdateKind::Modify => Ok(()),
        _ => Err(EntityError::invalid(format!("{what} can only be modified"))),
    }
}
