//! Carries out changes of entities on the switch: looks a place of the store up, and makes the switch equal.

use millstream_p4_lower::{
    ENTRY_COUNTER, ENTRY_GROUP, ENTRY_REST, ObjectKind, Pipeline, TableSpec, meter_layout,
};
use millstream_p4_switch::{
    EntryError, MirrorTarget, MulticastNode, Switch, SwitchExecutor, entry_key, entry_value, group_value,
    value_set_key,
};
use millstream_p4runtime::entities::{EntityError, EntityPlace, EntityStore, EntryKey, EntryState};
use millstream_p4runtime::proto::v1::{
    Action, CounterData, MeterConfig, Replica, action_profile_group, replica, table_action,
};

use crate::bindings::{BoundTable, PipelineBindings};
use crate::executor::DynamicExecutor;
use crate::journal::SwitchJournal;
use crate::live_reads::{counter_bytes, register_number};

/// First number of the groups that stand for clone sessions with several replicas; multicast groups have 32
/// bits.
const FIRST_SESSION_GROUP: u64 = 1 << 32;

/// Carries out changes.
pub(crate) struct SwitchDriver<'c> {
    pub(crate) pipeline: &'c Pipeline,
    pub(crate) bindings: &'c PipelineBindings,
    pub(crate) store: &'c EntityStore,
    pub(crate) switch: &'c mut Switch<DynamicExecutor>,
    pub(crate) journal: &'c mut SwitchJournal,
    /// Number of the last group of an entry of its own.
    pub(crate) last_group: &'c mut u32,
}

fn malformed(error: EntryError) -> EntityError {
    EntityError::invalid(error.to_string())
}

/// Group of an entry's value; 0 for none.
fn group_of(value: &[u8]) -> u32 {
    let at = ENTRY_GROUP as usize;
    value.get(at..at + 4).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Copies the counter of one value to another.
fn keep_counter(value: &mut [u8], old: &[u8]) {
    let range = ENTRY_COUNTER as usize..ENTRY_REST as usize;
    if let (Some(to), Some(from)) = (value.get_mut(range.clone()), old.get(range)) {
        to.copy_from_slice(from);
    }
}

/// Writes the state of a meter; one with the same rates keeps its tokens.
fn put_meter(value: &mut [u8], offset: u32, config: Option<&MeterConfig>, old: Option<&[u8]>) {
    use meter_layout::{
        COMMITTED_BURST, COMMITTED_RATE, COMMITTED_TOKENS, LAST_TIME, PEAK_BURST, PEAK_RATE, PEAK_TOKENS,
        TOKEN_SCALE,
    };
    let number = |value: i64| value.unsigned_abs();
    let tokens = |burst: i64| number(burst).saturating_mul(TOKEN_SCALE);
    let config = config.copied().unwrap_or_default();
    for (field, word) in [
        (COMMITTED_RATE, number(config.cir)),
        (COMMITTED_BURST, number(config.cburst)),
        (PEAK_RATE, number(config.pir)),
        (PEAK_BURST, number(config.pburst)),
        (COMMITTED_TOKENS, tokens(config.cburst)),
        (PEAK_TOKENS, tokens(config.pburst)),
    ] {
        let at = (offset + field) as usize;
        if let Some(place) = value.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
    let rates = offset as usize..(offset + COMMITTED_TOKENS) as usize;
    let state = (offset + COMMITTED_TOKENS) as usize..(offset + LAST_TIME) as usize + 8;
    let Some(old) = old.filter(|old| old.get(rates.clone()) == value.get(rates.clone())) else { return };
    if let (Some(to), Some(from)) = (value.get_mut(state.clone()), old.get(state)) {
        to.copy_from_slice(from);
    }
}

impl SwitchDriver<'_> {
    /// Makes the switch equal to the store at a place. Counters of entries keep their values unless a new one
    /// was written.
    ///
    /// # Errors
    /// If the switch refuses; what was changed before is in the journal.
    pub(crate) fn carry_out(&mut self, place: &EntityPlace, writes_counter: bool) -> Result<(), EntityError> {
        match place {
            EntityPlace::Entry(table, key) => self.entry(*table, key, writes_counter),
            EntityPlace::Default(table) => self.default_action(*table, writes_counter),
            EntityPlace::Member(profile, id) => self.member(*profile, *id),
            EntityPlace::Group(profile, id) => self.group(*profile, *id),
            EntityPlace::Counter(id, at) => self.cells(*id, *at, |driver, index, _| {
                let cell = driver.store.counter_cell(*id, i64::from(index)).unwrap_or_default();
                Ok(counter_bytes(cell).to_vec())
            }),
            EntityPlace::Meter(id, at) => self.cells(*id, *at, |driver, index, old| {
                let config = driver.store.meter_cell(*id, i64::from(index)).flatten();
                check_bursts(config.as_ref())?;
                let mut value = vec![0; old.len()];
                put_meter(&mut value, 0, config.as_ref(), Some(old));
                Ok(value)
            }),
            EntityPlace::Register(id, at) => self.register(*id, *at),
            EntityPlace::ValueSet(id) => self.value_set(*id),
            EntityPlace::Digest(_) => Ok(()),
            EntityPlace::MulticastGroup(id) => self.multicast_group(*id),
            EntityPlace::CloneSession(id) => self.clone_session(*id),
        }
    }

    fn entry(&mut self, table: u32, key: &EntryKey, writes_counter: bool) -> Result<(), EntityError> {
        let bindings = self.bindings;
        let (bound, spec) = bindings.table(self.pipeline, table)?;
        let map_key = entry_key(spec, &bound.entry_spec(spec, key)).map_err(malformed)?;
        let old = self.switch.executor().get(spec.map, &map_key);
        let old_group = old.as_deref().map_or(0, group_of);
        let store = self.store;
        let Some(state) = store.entry(table, key) else {
            self.journal.delete(self.switch, spec.map, &map_key)?;
            return self.release_group((bound, spec), old_group);
        };
        let mut value = self.entry_bytes((bound, spec), &state, old_group)?;
        self.put_resources(spec, &state, &mut value, (old.as_deref(), writes_counter))?;
        let new_group = group_of(&value);
        self.journal.replace(self.switch, spec.map, &map_key, (old, &value))?;
        match new_group == old_group {
            true => Ok(()),
            false => self.release_group((bound, spec), old_group),
        }
    }

    /// Puts counter and meter into the value of an entry or default action.
    fn put_resources(
        &self,
        spec: &TableSpec,
        state: &EntryState<'_>,
        value: &mut [u8],
        (old, writes_counter): (Option<&[u8]>, bool),
    ) -> Result<(), EntityError> {
        match old {
            _ if spec.counter.is_none() => {}
            Some(old) if !writes_counter => keep_counter(value, old),
            _ => put_counter(value, state.counter),
        }
        if let Some((_, offset)) = &spec.meter {
            check_bursts(state.meter)?;
            put_meter(value, *offset, state.meter, old);
        }
        Ok(())
    }

    /// Value of an entry: its action, member or group.
    fn entry_bytes(
        &mut self,
        (bound, spec): (&BoundTable, &TableSpec),
        state: &EntryState<'_>,
        old_group: u32,
    ) -> Result<Vec<u8>, EntityError> {
        let value_of = |action: &Action| entry_value(spec, &bound.choice(action)?, false).map_err(malformed);
        let kind = state.action.and_then(|action| action.r#type.as_ref());
        match kind.ok_or_else(|| EntityError::invalid("the entry has no action"))? {
            table_action::Type::Action(action) => value_of(action),
            table_action::Type::ActionProfileMemberId(id) => value_of(self.member_action(bound, *id)?),
            table_action::Type::ActionProfileGroupId(group) => group_value(spec, *group).map_err(malformed),
            table_action::Type::ActionProfileActionSet(set) => {
                let mut members = Vec::new();
                for member in &set.action_profile_actions {
                    if member.watch_kind.is_some() {
                        return Err(no_watched_ports());
                    }
                    let value = value_of(member.action.as_ref().unwrap_or(&Action::default()))?;
                    members.extend(std::iter::repeat_n(value, member.weight.max(1) as usize));
                }
                let group = if old_group == 0 { self.free_group(spec) } else { old_group };
                self.set_members(spec, group, &members)?;
                group_value(spec, group).map_err(malformed)
            }
        }
    }

    fn member_action(&self, bound: &BoundTable, id: u32) -> Result<&Action, EntityError> {
        let found = bound.profile.and_then(|profile| self.store.member(profile, id));
        found.ok_or_else(|| EntityError::invalid(format!("the member {id} does not exist")))
    }

    /// A number that no group of a table has.
    fn free_group(&mut self, spec: &TableSpec) -> u32 {
        let map = spec.selector.as_ref().map(|selector| selector.group_map);
        loop {
            *self.last_group = self.last_group.checked_add(1).unwrap_or(1);
            let key = self.last_group.to_le_bytes();
            if map.is_none_or(|map| self.switch.executor().get(map, &key).is_none()) {
                return *self.last_group;
            }
        }
    }

    /// Removes a group that belonged to one entry alone.
    fn release_group(
        &mut self,
        (bound, spec): (&BoundTable, &TableSpec),
        group: u32,
    ) -> Result<(), EntityError> {
        let is_shared = bound.profile.is_some_and(|profile| self.store.group(profile, group).is_some());
        match group == 0 || is_shared || spec.selector.is_none() {
            true => Ok(()),
            false => self.set_members(spec, group, &[]),
        }
    }

    /// Sets the members of a group in a table's maps.
    fn set_members(&mut self, spec: &TableSpec, group: u32, members: &[Vec<u8>]) -> Result<(), EntityError> {
        let Some(selector) = &spec.selector else {
            return Err(EntityError::unimplemented("no packet can reach this selector"));
        };
        let key = |index: usize| [group.to_le_bytes(), (index as u32).to_le_bytes()].concat();
        let old = self.switch.executor().get(selector.group_map, &group.to_le_bytes());
        let old =
            old.and_then(|value| value.first_chunk().map(|word| u32::from_le_bytes(*word))).unwrap_or(0);
        for (index, value) in members.iter().enumerate() {
            self.journal.set(self.switch, selector.member_map, &key(index), value)?;
        }
        match members.len() {
            0 => self.journal.delete(self.switch, selector.group_map, &group.to_le_bytes())?,
            count => {
                let count = (count as u64).to_le_bytes();
                self.journal.set(self.switch, selector.group_map, &group.to_le_bytes(), &count)?;
            }
        }
        for index in members.len()..old as usize {
            self.journal.delete(self.switch, selector.member_map, &key(index))?;
        }
        Ok(())
    }

    /// Tables of an action profile that packets reach.
    fn profile_tables(&self, profile: u32) -> Vec<(u32, usize)> {
        let tables = self.bindings.tables.iter();
        let mut tables: Vec<_> = tables
            .filter(|(_, bound)| bound.profile == Some(profile))
            .map(|(id, bound)| (*id, bound.number))
            .collect();
        tables.sort_unstable();
        tables
    }

    /// Writes what names a member anew.
    fn member(&mut self, profile: u32, id: u32) -> Result<(), EntityError> {
        let store = self.store;
        if store.member(profile, id).is_none() || !store.is_member_used(profile, id) {
            return Ok(());
        }
        let wanted = table_action::Type::ActionProfileMemberId(id);
        for (table, _) in self.profile_tables(profile) {
            for (key, state) in store.entries(table) {
                if state.action.and_then(|action| action.r#type.as_ref()) == Some(&wanted) {
                    self.entry(table, key, false)?;
                }
            }
        }
        for group in store.groups(profile) {
            if group.members.iter().any(|member| member.member_id == id) {
                self.group(profile, group.group_id)?;
            }
        }
        Ok(())
    }

    fn group(&mut self, profile: u32, id: u32) -> Result<(), EntityError> {
        let (store, bindings) = (self.store, self.bindings);
        let no_members: &[action_profile_group::Member] = &[];
        let mut members = store.group(profile, id).map_or(no_members, |group| &group.members).to_vec();
        // A hash chooses by the order of ids, as on the reference switch.
        members.sort_by_key(|member| member.member_id);
        if members.iter().any(|member| member.watch_kind.is_some()) {
            return Err(no_watched_ports());
        }
        for (table, _) in self.profile_tables(profile) {
            let (bound, spec) = bindings.table(self.pipeline, table)?;
            let mut values = Vec::new();
            for member in &members {
                let choice = bound.choice(self.member_action(bound, member.member_id)?)?;
                let value = entry_value(spec, &choice, false).map_err(malformed)?;
                values.extend(std::iter::repeat_n(value, member.weight.max(1) as usize));
            }
            self.set_members(spec, id, &values)?;
        }
        Ok(())
    }

    fn default_action(&mut self, table: u32, writes_counter: bool) -> Result<(), EntityError> {
        let bindings = self.bindings;
        let (bound, spec) = bindings.table(self.pipeline, table)?;
        let store = self.store;
        let Some(state) = store.default_entry(table) else { return Ok(()) };
        let choice = match state.action.and_then(|action| action.r#type.as_ref()) {
            Some(table_action::Type::Action(action)) => bound.choice(action)?,
            _ => spec.default.clone(),
        };
        let mut value = entry_value(spec, &choice, true).map_err(malformed)?;
        let old = self.switch.executor().get(spec.default_map, &[0; 4]);
        self.put_resources(spec, &state, &mut value, (old.as_deref(), writes_counter))?;
        self.journal.replace(self.switch, spec.default_map, &[0; 4], (old, &value))
    }

    /// Sets one cell of an array, or all, to the bytes that `make` gives for an index and the old bytes.
    fn cells(
        &mut self,
        id: u32,
        at: Option<i64>,
        make: impl Fn(&Self, u32, &[u8]) -> Result<Vec<u8>, EntityError>,
    ) -> Result<(), EntityError> {
        let (object, map) = self.bindings.object(self.pipeline, id)?;
        let range = match at {
            Some(at) => {
                let at = u32::try_from(at).map_err(|_| EntityError::invalid("the index is out of range"))?;
                at..at.saturating_add(1)
            }
            None => 0..object.size,
        };
        for index in range {
            let key = index.to_le_bytes();
            let Some(old) = self.switch.executor().get(map, &key) else {
                return Err(EntityError::invalid("the index is out of range"));
            };
            let value = make(self, index, &old)?;
            self.journal.replace(self.switch, map, &key, (Some(old), &value))?;
        }
        Ok(())
    }

    fn register(&mut self, id: u32, at: Option<i64>) -> Result<(), EntityError> {
        let (object, _) = self.bindings.object(self.pipeline, id)?;
        let ObjectKind::Register { bits: Some(bits), .. } = object.kind else {
            return Err(EntityError::unimplemented("registers of structures are not supported"));
        };
        let is_signed = self.bindings.is_signed(id);
        self.cells(id, at, |driver, index, old| {
            let data = driver.store.register_cell(id, i64::from(index));
            let number = data.and_then(|data| register_number(data, bits, is_signed));
            let number = number
                .ok_or_else(|| EntityError::unimplemented("registers of this type are not supported"))?;
            let mut value = vec![0; old.len()];
            value.iter_mut().zip(number.to_bytes_le()).for_each(|(to, from)| *to = from);
            Ok(value)
        })
    }

    fn value_set(&mut self, id: u32) -> Result<(), EntityError> {
        let (object, map) = self.bindings.object(self.pipeline, id)?;
        let members =
            self.store.value_set(id).iter().map(|member| {
                value_set_key(object, &self.bindings.set_member(id, member)?).map_err(malformed)
            });
        let keys: Vec<Vec<u8>> = members.collect::<Result<_, _>>()?;
        for old in self.switch.executor().keys(map) {
            if !keys.contains(&old) {
                self.journal.delete(self.switch, map, &old)?;
            }
        }
        keys.iter().try_for_each(|key| self.journal.set(self.switch, map, key, &[0; 8]))
    }

    fn multicast_group(&mut self, id: u32) -> Result<(), EntityError> {
        let store = self.store;
        let group = store.multicast_group(id);
        let nodes = group.map(|group| nodes_of(&group.replicas)).transpose()?;
        self.journal.set_group(self.switch, u64::from(id), nodes);
        Ok(())
    }

    fn clone_session(&mut self, id: u32) -> Result<(), EntityError> {
        let store = self.store;
        let Some(session) = store.clone_session(id) else {
            self.journal.set_mirror(self.switch, u64::from(id), None);
            self.journal.set_group(self.switch, FIRST_SESSION_GROUP + u64::from(id), None);
            return Ok(());
        };
        if session.packet_length_bytes != 0 {
            return Err(EntityError::unimplemented("clones are not cut; use `truncate` in the program"));
        }
        if session.class_of_service != 0 {
            return Err(EntityError::unimplemented("there is one class of service, 0"));
        }
        let group = FIRST_SESSION_GROUP + u64::from(id);
        let nodes = nodes_of(&session.replicas)?;
        self.journal.set_group(self.switch, group, Some(nodes));
        self.journal.set_mirror(self.switch, u64::from(id), Some(MirrorTarget::Group(group)));
        Ok(())
    }
}

fn put_counter(value: &mut [u8], counter: CounterData) {
    if let Some(place) = value.get_mut(ENTRY_COUNTER as usize..ENTRY_REST as usize) {
        place.copy_from_slice(&counter_bytes(counter));
    }
}

fn check_bursts(config: Option<&MeterConfig>) -> Result<(), EntityError> {
    match config {
        Some(config) if config.eburst != 0 => {
            Err(EntityError::unimplemented("meters have two rates, and no excess burst"))
        }
        _ => Ok(()),
    }
}

fn no_watched_ports() -> EntityError {
    EntityError::unimplemented("members that watch a port are not supported")
}

/// One node for each replica.
fn nodes_of(replicas: &[Replica]) -> Result<Vec<MulticastNode>, EntityError> {
    let node = |replica: &Replica| {
        #[expect(deprecated, reason = "controllers of earlier versions set the old field")]
        let port = match &replica.port_kind {
            Some(replica::PortKind::Port(bytes)) => port_number(bytes),
            Some(replica::PortKind::EgressPort(number)) => Some(u64::from(*number)),
            None => None,
        };
        let port = port.ok_or_else(|| EntityError::invalid("a replica's port is a number of 32 bits"))?;
        Ok(MulticastNode { replica: u64::from(replica.instance), ports: vec![port] })
    };
    replicas.iter().map(node).collect()
}

/// A port's number of at most 32 bits.
pub(crate) fn port_number(bytes: &[u8]) -> Option<u64> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let digits = &bytes[zeros..];
    (digits.len() <= 4).then(|| digits.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
