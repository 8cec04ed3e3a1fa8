//! A switch: state of the control plane, and the queue of packets between the functions of a program.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use millstream_ir::Func;
use millstream_p4_lower::{
    ActionChoice, EVENT_DIGEST, EVENT_MESSAGE, EntrySpec, LoweredProgram, ObjectKind, ObjectSpec, Pipeline,
    SourceLine, TableSpec,
};

use crate::buffers::PacketBuffers;
use crate::entries::{EntryError, entry_key, entry_value, group_value, value_set_key};
use crate::executor::{ExecutorError, SwitchExecutor};
use crate::state_fields::{StateFields, SwitchField};
use crate::trace::TraceEvent;
use num_bigint::BigUint;

/// Most runs of a pipeline that one packet may cause.
pub(crate) const MOST_RUNS: usize = 1024;

/// Failure of the switch or of a request to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// The engine failed.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// An entry is not accepted.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// Entries or the default action are constant.
    #[error("{0} is constant")]
    Constant(String),
    /// One packet caused more runs of the pipeline than allowed.
    #[error("one packet caused more than {MOST_RUNS} runs of the pipeline")]
    Endless,
    /// The program lacks a function.
    #[error("the program has no function `{0}`")]
    NoStage(&'static str),
}

/// Target of copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorTarget {
    /// A port.
    Port(u64),
    /// A multicast group.
    Group(u64),
}

/// A node of a multicast group: a replica for each port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MulticastNode {
    /// `egress_rid` of the replicas.
    pub replica: u64,
    /// Ports.
    pub ports: Vec<u64>,
}

/// A packet that left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentPacket {
    /// Port.
    pub port: u64,
    /// Bytes.
    pub data: Vec<u8>,
}

/// Digest or message that the program sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwitchEvent {
    /// A digest: number of the object, and its fields.
    Digest(usize, Vec<u8>),
    /// A message of `log_msg`: number of the format, and its fields.
    Message(usize, Vec<u8>),
}

/// A packet that waits for ingress or egress, with its state.
pub(crate) struct WaitingPacket {
    pub(crate) is_egress: bool,
    /// Port that it came from, or that it goes to.
    pub(crate) port: u64,
    pub(crate) packet: Vec<u8>,
    pub(crate) state: Vec<u8>,
}

/// Packets that wait, oldest first.
pub(crate) type WaitingQueue = VecDeque<WaitingPacket>;

/// Clock of a switch, in nanoseconds.
pub type SwitchClock = Box<dyn Fn() -> u64 + Send>;

/// A switch.
pub struct Switch<E> {
    program: Arc<LoweredProgram>,
    pub(crate) fields: StateFields,
    pub(crate) executor: E,
    pub(crate) buffers: PacketBuffers,
    /// A packet's state in which only fields have been set that are set for each packet that arrives.
    pub(crate) clean_state: Option<Vec<u8>>,
    /// Packets between two functions because of the one that arrived last.
    pub(crate) queue: WaitingQueue,
    /// Packets that have left because of the one that arrived last.
    pub(crate) sent: Vec<SentPacket>,
    /// Mirror sessions, by number.
    pub mirrors: BTreeMap<u64, MirrorTarget>,
    /// Nodes of multicast groups, by group.
    pub groups: BTreeMap<u64, Vec<MulticastNode>>,
    /// Digests and messages that nobody took yet.
    pub events: Vec<SwitchEvent>,
    /// Time in nanoseconds.
    pub(crate) time: u64,
    /// Clock that says the time; without one, each run of a pipeline takes a constant time.
    pub(crate) clock: Option<SwitchClock>,
    /// Events of packets, while they are traced.
    pub(crate) trace: Option<Vec<TraceEvent>>,
    /// Line that marked the traced packet to be dropped.
    pub(crate) drop_line: Option<SourceLine>,
}

impl<E: SwitchExecutor> Switch<E> {
    /// A switch with the entries that the program states.
    ///
    /// # Errors
    /// [`SwitchError`] if the program's entries are not accepted.
    pub fn new(program: Arc<LoweredProgram>, executor: E) -> Result<Switch<E>, SwitchError> {
        let fields = StateFields::new(&program.pipeline.state);
        let mut switch = Switch {
            program: program.clone(),
            fields,
            executor,
            buffers: PacketBuffers::default(),
            clean_state: None,
            queue: VecDeque::new(),
            sent: Vec::new(),
            mirrors: BTreeMap::new(),
            groups: BTreeMap::new(),
            events: Vec::new(),
            time: 0,
            clock: None,
            trace: None,
            drop_line: None,
        };
        for object in &program.pipeline.objects {
            switch.write_initial(object)?;
        }
        for table in &program.pipeline.tables {
            switch.write_default(table, &table.default)?;
            for entry in &table.entries {
                switch.write_entry(table, entry)?;
            }
        }
        Ok(switch)
    }

    /// The program's description.
    pub fn pipeline(&self) -> &Pipeline {
        &self.program.pipeline
    }

    /// Lets a clock say the time of packets: meters and timestamps then have real values.
    pub fn use_clock(&mut self, clock: SwitchClock) {
        self.clock = Some(clock);
    }

    /// The engine.
    pub fn executor(&mut self) -> &mut E {
        &mut self.executor
    }

    /// Gives the engine back, with all entries.
    pub fn into_executor(self) -> E {
        self.executor
    }

    fn write_initial(&mut self, object: &ObjectSpec) -> Result<(), SwitchError> {
        let (ObjectKind::Register { initial, .. }, Some(map)) = (&object.kind, object.map) else {
            return Ok(());
        };
        if *initial == BigUint::ZERO {
            return Ok(());
        }
        for index in 0..object.size {
            let mut value = self.executor.get(map, &index.to_le_bytes()).unwrap_or_default();
            for (to, from) in value.iter_mut().zip(initial.to_bytes_le()) {
                *to = from;
            }
            self.executor.set(map, &index.to_le_bytes(), &value)?;
        }
        Ok(())
    }

    fn write_entry(&mut self, table: &TableSpec, entry: &EntrySpec) -> Result<(), SwitchError> {
        let (key, value) = match entry.group {
            Some(group) => (entry_key(table, entry)?, group_value(table, group)?),
            None => (entry_key(table, entry)?, entry_value(table, &entry.choice, false)?),
        };
        Ok(self.executor.set(table.map, &key, &value)?)
    }

    fn write_default(&mut self, table: &TableSpec, choice: &ActionChoice) -> Result<(), SwitchError> {
        let value = entry_value(table, choice, true)?;
        Ok(self.executor.set(table.default_map, &[0; 4], &value)?)
    }

    /// Adds or replaces an entry of a table.
    ///
    /// # Errors
    /// [`SwitchError`] if the table is constant or full, or the entry malformed.
    pub fn set_entry(&mut self, table: usize, entry: &EntrySpec) -> Result<(), SwitchError> {
        let program = self.program.clone();
        let table = &program.pipeline.tables[table];
        if table.is_constant {
            return Err(SwitchError::Constant(table.name.clone()));
        }
        self.write_entry(table, entry)
    }

    /// Removes an entry of a table.
    ///
    /// # Errors
    /// [`SwitchError`] if the table is constant, or has no such entry.
    pub fn delete_entry(&mut self, table: usize, entry: &EntrySpec) -> Result<(), SwitchError> {
        let program = self.program.clone();
        let table = &program.pipeline.tables[table];
        if table.is_constant {
            return Err(SwitchError::Constant(table.name.clone()));
        }
        Ok(self.executor.delete(table.map, &entry_key(table, entry)?)?)
    }

    /// Sets the members of a group of a table's selector.
    ///
    /// # Errors
    /// [`SwitchError`] if the table has no selector, a member is malformed, or there is no room.
    pub fn set_group(
        &mut self,
        table: usize,
        group: u32,
        members: &[ActionChoice],
    ) -> Result<(), SwitchError> {
        let program = self.program.clone();
        let table = &program.pipeline.tables[table];
        let Some(selector) = &table.selector else {
            return Err(EntryError::NoSelector { table: table.name.clone() }.into());
        };
        let values: Vec<Vec<u8>> =
            members.iter().map(|member| entry_value(table, member, false)).collect::<Result<_, _>>()?;
        let key = |index: usize| [group.to_le_bytes(), (index as u32).to_le_bytes()].concat();
        let old = self.executor.get(selector.group_map, &group.to_le_bytes());
        let old = old.and_then(|value| value.first_chunk().map(|word| u32::from_le_bytes(*word)));
        for (index, value) in values.iter().enumerate() {
            self.executor.set(selector.member_map, &key(index), value)?;
        }
        let count = (values.len() as u64).to_le_bytes();
        match values.is_empty() {
            true if old.is_some() => self.executor.delete(selector.group_map, &group.to_le_bytes())?,
            true => {}
            false => self.executor.set(selector.group_map, &group.to_le_bytes(), &count)?,
        }
        for index in values.len()..old.unwrap_or(0) as usize {
            self.executor.delete(selector.member_map, &key(index))?;
        }
        Ok(())
    }

    /// Sets the members of a value set: the scalars of each one.
    ///
    /// # Errors
    /// [`SwitchError`] if the object is no value set, or a member does not fit it, or there is no room.
    pub fn set_value_set(&mut self, object: usize, members: &[Vec<BigUint>]) -> Result<(), SwitchError> {
        let program = self.program.clone();
        let object = &program.pipeline.objects[object];
        let keys: Vec<Vec<u8>> =
            members.iter().map(|member| value_set_key(object, member)).collect::<Result<_, _>>()?;
        let Some(map) = object.map else { return Err(EntryError::no_value_set(object).into()) };
        for old in self.executor.keys(map) {
            if !keys.contains(&old) {
                self.executor.delete(map, &old)?;
            }
        }
        for key in &keys {
            self.executor.set(map, key, &[0; 8])?;
        }
        Ok(())
    }

    /// Sets the default action of a table.
    ///
    /// # Errors
    /// [`SwitchError`] if it is constant, or the action is not the table's.
    pub fn set_default(&mut self, table: usize, choice: &ActionChoice) -> Result<(), SwitchError> {
        let program = self.program.clone();
        let table = &program.pipeline.tables[table];
        if table.is_default_constant {
            return Err(SwitchError::Constant(format!("the default action of {}", table.name)));
        }
        self.write_default(table, choice)
    }

    /// Removes all entries that are not constant.
    ///
    /// # Errors
    /// [`SwitchError`] if the engine fails.
    pub fn clear_entries(&mut self) -> Result<(), SwitchError> {
        let program = self.program.clone();
        for table in program.pipeline.tables.iter().filter(|table| !table.is_constant) {
            for key in self.executor.keys(table.map) {
                self.executor.delete(table.map, &key)?;
            }
        }
        Ok(())
    }

    /// A function of the pipeline.
    pub(crate) fn stage(&self, name: &'static str) -> Result<Func, SwitchError> {
        let found = self.program.pipeline.stages.iter().find(|stage| stage.name == name);
        found.map(|stage| stage.func).ok_or(SwitchError::NoStage(name))
    }

    /// Runs a function of the pipeline on a packet.
    pub(crate) fn run_stage(
        &mut self,
        name: &'static str,
        state: &mut Vec<u8>,
        packet: &mut Vec<u8>,
    ) -> Result<(), SwitchError> {
        let func = self.stage(name)?;
        let ran = self.executor.run(func, state, packet);
        if self.trace.is_some() {
            self.trace_stage(name, state);
        }
        Ok(ran?)
    }

    /// State of a packet with nothing in it.
    pub(crate) fn empty_state(&mut self) -> Vec<u8> {
        self.buffers.zeros(self.program.pipeline.state.size as usize)
    }

    /// Targets of a mirror session: ports, with the replica's number.
    pub(crate) fn mirror_targets(&self, session: u64) -> Vec<(u64, u64)> {
        match self.mirrors.get(&session) {
            Some(MirrorTarget::Port(port)) => vec![(*port, 0)],
            Some(MirrorTarget::Group(group)) => self.group_targets(*group),
            None => Vec::new(),
        }
    }

    /// Targets of a multicast group: ports, with the replica's number.
    pub(crate) fn group_targets(&self, group: u64) -> Vec<(u64, u64)> {
        let nodes = self.groups.get(&group).into_iter().flatten();
        nodes.flat_map(|node| node.ports.iter().map(|port| (*port, node.replica))).collect()
    }

    pub(crate) fn collect_events(&mut self) {
        for record in self.executor.take_records() {
            let Some((header, data)) = record.split_first_chunk::<8>() else { continue };
            let header = u64::from_le_bytes(*header);
            let (kind, number) = (header as u32, (header >> 32) as usize);
            match kind {
                EVENT_DIGEST => self.events.push(SwitchEvent::Digest(number, data.to_vec())),
                EVENT_MESSAGE => self.events.push(SwitchEvent::Message(number, data.to_vec())),
                _ => {}
            }
        }
    }

    /// Reads a field of up to 64 bits; 0 if there is none.
    pub(crate) fn get(&self, state: &[u8], field: SwitchField) -> u64 {
        self.fields.get(state, field)
    }

    /// Writes fields of up to 64 bits, as far as the program has them.
    pub(crate) fn put_all(&self, state: &mut [u8], values: &[(SwitchField, u64)]) {
        values.iter().for_each(|(field, value)| self.fields.put(state, *field, *value));
    }
}
