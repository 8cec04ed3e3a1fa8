//! A v1model switch: state of the control plane, and the traffic manager.
//!
//! The order of operations behind a pipeline is that of the reference software switch: clone, resubmission,
//! multicast, unicast or drop behind ingress; clone, drop, recirculation behind egress.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use millstream_ir::Func;
use millstream_p4_lower::{
    ActionChoice, EVENT_DIGEST, EVENT_MESSAGE, EntrySpec, LoweredProgram, Pipeline, StateField, TableSpec,
};

use crate::entries::{EntryError, entry_key, entry_value};
use crate::executor::{ExecutorError, SwitchExecutor};

/// Port of dropped packets.
pub const DROP_PORT: u64 = 511;
/// Most runs of a pipeline that one packet may cause.
const MOST_RUNS: usize = 1024;

/// Values of `instance_type`.
mod instance_type {
    pub(super) const NORMAL: u64 = 0;
    pub(super) const INGRESS_CLONE: u64 = 1;
    pub(super) const EGRESS_CLONE: u64 = 2;
    pub(super) const RECIRCULATED: u64 = 4;
    pub(super) const REPLICATED: u64 = 5;
    pub(super) const RESUBMITTED: u64 = 6;
}

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

/// A packet that waits for a part of the pipeline.
enum WaitingPacket {
    Ingress { port: u64, packet: Vec<u8>, kind: u64, kept: Vec<(u32, Vec<u8>)> },
    Egress { port: u64, packet: Vec<u8>, state: Vec<u8> },
}

/// A switch.
pub struct Switch<E> {
    program: Arc<LoweredProgram>,
    executor: E,
    /// Mirror sessions, by number.
    pub mirrors: BTreeMap<u64, MirrorTarget>,
    /// Nodes of multicast groups, by group.
    pub groups: BTreeMap<u64, Vec<MulticastNode>>,
    /// Digests and messages that nobody took yet.
    pub events: Vec<SwitchEvent>,
    /// Time in nanoseconds.
    time: u64,
    stages: [Func; 3],
}

/// Nanoseconds between packets, on the switch's clock.
const PACKET_INTERVAL: u64 = 1_000_000;

impl<E: SwitchExecutor> Switch<E> {
    /// A switch with the entries that the program states.
    ///
    /// # Errors
    /// [`SwitchError`] if the program's entries are not accepted.
    pub fn new(program: Arc<LoweredProgram>, executor: E) -> Result<Switch<E>, SwitchError> {
        let stage = |name| {
            let found = program.pipeline.stages.iter().find(|stage| stage.name == name);
            found.map(|stage| stage.func).ok_or(SwitchError::NoStage(name))
        };
        let stages = [stage("parser")?, stage("ingress")?, stage("egress")?];
        let mut switch = Switch {
            program: program.clone(),
            executor,
            mirrors: BTreeMap::new(),
            groups: BTreeMap::new(),
            events: Vec::new(),
            time: 0,
            stages,
        };
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

    /// The engine.
    pub fn executor(&mut self) -> &mut E {
        &mut self.executor
    }

    fn write_entry(&mut self, table: &TableSpec, entry: &EntrySpec) -> Result<(), SwitchError> {
        let (key, value) = (entry_key(table, entry)?, entry_value(table, &entry.choice, false)?);
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

    /// Takes a packet from a port, and gives the packets that leave.
    ///
    /// # Errors
    /// [`SwitchError`] if the engine fails, or the packet circulates without end.
    pub fn receive(&mut self, port: u64, data: &[u8]) -> Result<Vec<SentPacket>, SwitchError> {
        let first = WaitingPacket::Ingress {
            port,
            packet: data.to_vec(),
            kind: instance_type::NORMAL,
            kept: Vec::new(),
        };
        let mut queue = VecDeque::from([first]);
        let mut sent = Vec::new();
        let mut runs = 0;
        while let Some(next) = queue.pop_front() {
            runs += 1;
            if runs > MOST_RUNS {
                return Err(SwitchError::Endless);
            }
            self.time += PACKET_INTERVAL;
            self.executor.set_time(self.time);
            match next {
                WaitingPacket::Ingress { port, packet, kind, kept } => {
                    self.ingress((port, packet), kind, &kept, &mut queue)?;
                }
                WaitingPacket::Egress { port, packet, state } => {
                    sent.extend(self.egress((port, packet), state, &mut queue)?);
                }
            }
            self.collect_events();
        }
        Ok(sent)
    }

    fn collect_events(&mut self) {
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

    fn field(&self, name: &str) -> Option<&StateField> {
        self.program.pipeline.state.field(name)
    }

    /// Reads a field of up to 64 bits; 0 if there is none.
    fn get(&self, state: &[u8], name: &str) -> u64 {
        let Some(field) = self.field(name) else { return 0 };
        let from = field.offset as usize;
        let len = (field.bits.div_ceil(8) as usize).min(8);
        let mut word = [0; 8];
        if let Some(bytes) = state.get(from..from + len) {
            word[..len].copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }

    /// Writes a field of up to 64 bits, if there is one.
    fn put(&self, state: &mut [u8], name: &str, value: u64) {
        let Some(field) = self.field(name) else { return };
        let from = field.offset as usize;
        let len = (field.bits.div_ceil(8) as usize).min(8);
        let value = if field.bits < 64 { value & ((1 << field.bits) - 1) } else { value };
        if let Some(bytes) = state.get_mut(from..from + len) {
            bytes.copy_from_slice(&value.to_le_bytes()[..len]);
        }
    }

    fn standard(&self, state: &mut [u8], values: &[(&str, u64)]) {
        for (name, value) in values {
            self.put(state, &format!("standard_metadata.{name}"), *value);
        }
    }

    fn engine(&self, state: &[u8], name: &str) -> u64 {
        self.get(state, &format!("engine.{name}"))
    }

    /// State of a packet that arrives.
    fn fresh_state(&self, port: u64, packet: &[u8], kind: u64, kept: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut state = vec![0; self.program.pipeline.state.size as usize];
        for (offset, bytes) in kept {
            let from = *offset as usize;
            if let Some(to) = state.get_mut(from..from + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        }
        self.standard(
            &mut state,
            &[
                ("ingress_port", port),
                ("packet_length", packet.len() as u64),
                ("instance_type", kind),
                ("ingress_global_timestamp", self.time / 1000),
            ],
        );
        state
    }

    /// Fields of a list, as requested: its number plus 1, or 0 for none.
    fn kept(&self, state: &[u8], request: u64) -> Vec<(u32, Vec<u8>)> {
        let lists = &self.program.pipeline.field_lists;
        let list = lists.iter().find(|list| list.number + 1 == request);
        let ranges = list.map_or(&[][..], |list| &list.ranges);
        ranges
            .iter()
            .filter_map(|(offset, size)| {
                let from = *offset as usize;
                Some((*offset, state.get(from..from + *size as usize)?.to_vec()))
            })
            .collect()
    }

    fn ingress(
        &mut self,
        (port, mut packet): (u64, Vec<u8>),
        kind: u64,
        kept: &[(u32, Vec<u8>)],
        queue: &mut VecDeque<WaitingPacket>,
    ) -> Result<(), SwitchError> {
        let mut state = self.fresh_state(port, &packet, kind, kept);
        let [parser, ingress, _] = self.stages;
        self.executor.run(parser, &mut state, &mut packet)?;
        self.executor.run(ingress, &mut state, &mut packet)?;
        if self.engine(&state, "assertion_failed") != 0 {
            return Ok(());
        }
        if self.engine(&state, "clone_ingress") != 0 {
            self.clone_ingress((port, &packet), &state, queue)?;
        }
        if self.engine(&state, "resubmit") != 0 {
            let kept = self.kept(&state, self.engine(&state, "resubmit_list"));
            queue.push_back(WaitingPacket::Ingress { port, packet, kind: instance_type::RESUBMITTED, kept });
            return Ok(());
        }
        let group = self.get(&state, "standard_metadata.mcast_grp");
        if group != 0 {
            self.standard(&mut state, &[("instance_type", instance_type::REPLICATED)]);
            self.multicast(group, &packet, &state, queue);
            return Ok(());
        }
        let port = self.get(&state, "standard_metadata.egress_spec");
        if port != DROP_PORT {
            queue.push_back(WaitingPacket::Egress { port, packet, state });
        }
        Ok(())
    }

    fn multicast(&self, group: u64, packet: &[u8], state: &[u8], queue: &mut VecDeque<WaitingPacket>) {
        for node in self.groups.get(&group).into_iter().flatten() {
            for port in &node.ports {
                let mut state = state.to_vec();
                self.standard(&mut state, &[("egress_rid", node.replica)]);
                queue.push_back(WaitingPacket::Egress { port: *port, packet: packet.to_vec(), state });
            }
        }
    }

    /// Sends a copy to the target of a mirror session.
    fn mirror(&self, session: u64, packet: &[u8], state: &[u8], queue: &mut VecDeque<WaitingPacket>) {
        match self.mirrors.get(&session) {
            Some(MirrorTarget::Port(port)) => {
                let (packet, state) = (packet.to_vec(), state.to_vec());
                queue.push_back(WaitingPacket::Egress { port: *port, packet, state });
            }
            Some(MirrorTarget::Group(group)) => self.multicast(*group, packet, state, queue),
            None => {}
        }
    }

    /// A clone of the packet as it came goes through the parser, and on to egress.
    fn clone_ingress(
        &mut self,
        (port, packet): (u64, &[u8]),
        state: &[u8],
        queue: &mut VecDeque<WaitingPacket>,
    ) -> Result<(), SwitchError> {
        let kept = self.kept(state, self.engine(state, "clone_ingress_list"));
        let mut copy = self.fresh_state(port, packet, instance_type::INGRESS_CLONE, &kept);
        let mut packet = packet.to_vec();
        self.executor.run(self.stages[0], &mut copy, &mut packet)?;
        self.mirror(self.engine(state, "clone_ingress_session"), &packet, &copy, queue);
        Ok(())
    }

    fn egress(
        &mut self,
        (port, mut packet): (u64, Vec<u8>),
        mut state: Vec<u8>,
        queue: &mut VecDeque<WaitingPacket>,
    ) -> Result<Option<SentPacket>, SwitchError> {
        let original = packet.clone();
        self.standard(
            &mut state,
            &[
                ("egress_port", port),
                ("egress_spec", 0),
                ("packet_length", packet.len() as u64),
                ("egress_global_timestamp", self.time / 1000),
            ],
        );
        for request in ["clone_egress", "clone_ingress", "recirculate", "resubmit"] {
            self.put(&mut state, &format!("engine.{request}"), 0);
        }
        self.executor.run(self.stages[2], &mut state, &mut packet)?;
        if self.engine(&state, "assertion_failed") != 0 || self.engine(&state, "deparser_overflow") != 0 {
            return Ok(None);
        }
        if self.engine(&state, "clone_egress") != 0 {
            self.clone_egress(&original, &state, queue);
        }
        if self.get(&state, "standard_metadata.egress_spec") == DROP_PORT {
            return Ok(None);
        }
        if self.engine(&state, "truncates") != 0 {
            packet.truncate(self.engine(&state, "truncated_length") as usize);
        }
        if self.engine(&state, "recirculate") != 0 {
            let kept = self.kept(&state, self.engine(&state, "recirculate_list"));
            let port = self.get(&state, "standard_metadata.ingress_port");
            queue.push_back(WaitingPacket::Ingress { port, packet, kind: instance_type::RECIRCULATED, kept });
            return Ok(None);
        }
        Ok(Some(SentPacket { port, data: packet }))
    }

    /// A clone keeps the headers as egress left them, but no metadata that is not listed.
    fn clone_egress(&self, packet: &[u8], state: &[u8], queue: &mut VecDeque<WaitingPacket>) {
        let kept = self.kept(state, self.engine(state, "clone_egress_list"));
        let mut copy = state.to_vec();
        let layout = &self.program.pipeline.state;
        for field in layout.fields.iter().filter(|field| !field.name.starts_with("headers")) {
            let from = field.offset as usize;
            let len = field.bits.div_ceil(8) as usize;
            let is_kept = field.name == "engine.cursor" || field.name == "standard_metadata.ingress_port";
            if let (false, Some(bytes)) = (is_kept, copy.get_mut(from..from + len)) {
                bytes.fill(0);
            }
        }
        for (offset, bytes) in kept {
            let from = offset as usize;
            if let Some(to) = copy.get_mut(from..from + bytes.len()) {
                to.copy_from_slice(&bytes);
            }
        }
        self.standard(&mut copy, &[("instance_type", instance_type::EGRESS_CLONE)]);
        self.mirror(self.engine(state, "clone_egress_session"), packet, &copy, queue);
    }
}
