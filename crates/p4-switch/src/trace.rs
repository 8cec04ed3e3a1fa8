//! Trace of a packet: the functions that it passes, its headers, the tables with key, entry and action, and
//! the reason of a drop.

use std::fmt::{self, Display, Formatter};

use millstream_p4_lower::{
    ENTRY_GROUP, KeySpec, MarkKind, SourceLine, StateField, TableSpec, TableStorage, TraceMark,
};
use num_bigint::BigUint;

use crate::executor::{ExecutorLookup, SwitchExecutor};
use crate::switch::Switch;

/// End of the names of fields that say if a header is valid.
const VALIDITY: &str = ".$valid$";

/// An action that a table chose, with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedAction {
    /// Name.
    pub name: String,
    /// Names and values of the arguments.
    pub arguments: Vec<(String, BigUint)>,
}

/// An event of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TraceEvent {
    /// The packet came in.
    Arrived {
        /// Port.
        port: u64,
        /// Length.
        bytes: usize,
    },
    /// The parser entered a state.
    State {
        /// Name of the state.
        name: String,
        /// Its line.
        line: SourceLine,
    },
    /// The parser stopped.
    ParserError {
        /// Error, or `verify` for a condition that does not hold.
        error: String,
        /// Line that stopped it.
        line: SourceLine,
    },
    /// A function of the program ended.
    Stage {
        /// Name of the function.
        name: String,
        /// Headers that are valid behind it, as far as the switch sees them.
        headers: Vec<String>,
        /// Names and values of their fields.
        fields: Vec<(String, BigUint)>,
    },
    /// A table was applied.
    Table {
        /// Name of the table.
        name: String,
        /// Names and values of the key's elements.
        key: Vec<(String, BigUint)>,
        /// An entry matched.
        is_hit: bool,
        /// Action of the entry; a group chooses it otherwise.
        action: Option<TracedAction>,
        /// Group of the entry; 0 for none.
        group: u32,
    },
    /// Without an entry, a table chose its default action.
    DefaultAction {
        /// Name of the table.
        table: String,
        /// Action; none if the table has no action that fits.
        action: Option<TracedAction>,
    },
    /// A selector chose a member of a group.
    Member {
        /// Name of the table.
        table: String,
        /// Action of the member.
        action: Option<TracedAction>,
    },
    /// The packet, or a copy, was dropped.
    Dropped {
        /// Reason.
        reason: String,
        /// Line that marked the packet last.
        line: Option<SourceLine>,
    },
    /// A packet left.
    Sent {
        /// Port.
        port: u64,
        /// Length.
        bytes: usize,
    },
}

fn values(list: &[(String, BigUint)]) -> String {
    let parts: Vec<String> = list.iter().map(|(name, value)| format!("{name}={value:#x}")).collect();
    parts.join(", ")
}

impl Display for TracedAction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, values(&self.arguments))
    }
}

impl Display for TraceEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let of =
            |action: &Option<TracedAction>| action.as_ref().map_or("no action".to_owned(), |a| a.to_string());
        match self {
            TraceEvent::Arrived { port, bytes } => write!(f, "port {port}: {bytes} bytes came in"),
            TraceEvent::State { name, line } => write!(f, "state {name} ({}:{})", line.path, line.line),
            TraceEvent::ParserError { error, line } => {
                write!(f, "the parser stops: {error} ({}:{})", line.path, line.line)
            }
            TraceEvent::Stage { name, headers, .. } if headers.is_empty() => write!(f, "end of {name}"),
            TraceEvent::Stage { name, headers, .. } => {
                write!(f, "end of {name}, valid headers: {}", headers.join(", "))
            }
            TraceEvent::Table { name, key, is_hit: false, .. } => {
                write!(f, "table {name}: {}: miss", values(key))
            }
            TraceEvent::Table { name, key, group, .. } if *group != 0 => {
                write!(f, "table {name}: {}: hit, group {group}", values(key))
            }
            TraceEvent::Table { name, key, action, .. } => {
                write!(f, "table {name}: {}: hit, {}", values(key), of(action))
            }
            TraceEvent::DefaultAction { table, action } => {
                write!(f, "table {table}: default, {}", of(action))
            }
            TraceEvent::Member { table, action } => write!(f, "table {table}: member, {}", of(action)),
            TraceEvent::Dropped { reason, line: Some(line) } => {
                write!(f, "dropped: {reason} ({}:{})", line.path, line.line)
            }
            TraceEvent::Dropped { reason, line: None } => write!(f, "dropped: {reason}"),
            TraceEvent::Sent { port, bytes } => write!(f, "port {port}: {bytes} bytes leave"),
        }
    }
}

impl<E: SwitchExecutor> Switch<E> {
    /// Traces packets from now on.
    pub fn start_trace(&mut self) {
        self.trace = Some(Vec::new());
        self.drop_line = None;
        self.executor.record_lookups(true);
    }

    /// Ends the trace, and gives its events.
    pub fn take_trace(&mut self) -> Vec<TraceEvent> {
        self.executor.record_lookups(false);
        self.trace.take().unwrap_or_default()
    }

    /// Adds an event to the trace, if there is one.
    pub(crate) fn note(&mut self, event: impl FnOnce() -> TraceEvent) {
        if let Some(trace) = &mut self.trace {
            trace.push(event());
        }
    }

    /// Adds the reason of a drop to the trace.
    pub(crate) fn note_drop(&mut self, reason: &str) {
        let line = self.drop_line.take();
        self.note(|| TraceEvent::Dropped { reason: reason.to_owned(), line });
    }

    /// Adds the lookups and the end of a function to the trace.
    pub(crate) fn trace_stage(&mut self, name: &str, state: &[u8]) {
        let lookups = self.executor.take_lookups();
        let mut events: Vec<TraceEvent> = Vec::new();
        for lookup in &lookups {
            match self.mark_of(lookup).cloned() {
                Some(TraceMark { kind: MarkKind::ParserState(name), line }) => {
                    events.push(TraceEvent::State { name, line });
                }
                Some(TraceMark { kind: MarkKind::ParserError(error), line }) => {
                    events.push(TraceEvent::ParserError { error, line });
                }
                Some(TraceMark { kind: MarkKind::Drop, line }) => self.drop_line = Some(line),
                None => events.extend(self.lookup_event(lookup)),
            }
        }
        let headers = self.valid_headers(state);
        let fields = self.field_values(state, &headers);
        if let Some(trace) = &mut self.trace {
            trace.extend(events);
            trace.push(TraceEvent::Stage { name: name.to_owned(), headers, fields });
        }
    }

    /// The mark that a lookup stands for.
    fn mark_of(&self, lookup: &ExecutorLookup) -> Option<&TraceMark> {
        let marks = self.pipeline().trace.as_ref().filter(|marks| marks.map == lookup.map)?;
        marks.marks.get(word(&lookup.key, 0)? as usize)
    }

    fn valid_headers(&self, state: &[u8]) -> Vec<String> {
        let fields = self.pipeline().state.fields.iter();
        let validities = fields.filter(|field| field.name.ends_with(VALIDITY));
        let valid =
            validities.filter(|field| state.get(field.offset as usize).is_some_and(|byte| *byte != 0));
        valid.map(|field| field.name.trim_end_matches(VALIDITY).to_owned()).collect()
    }

    /// Fields of these headers.
    fn field_values(&self, state: &[u8], headers: &[String]) -> Vec<(String, BigUint)> {
        let is_own = |name: &str| {
            let header = name.rsplit_once('.').map_or("", |(header, _)| header);
            !name.ends_with(VALIDITY) && headers.iter().any(|valid| valid == header)
        };
        let value = |field: &StateField| {
            let bytes = state.get(field.offset as usize..).unwrap_or_default();
            BigUint::from_bytes_le(&bytes[..bytes.len().min(field.bits.div_ceil(8) as usize)])
        };
        let fields = self.pipeline().state.fields.iter().filter(|field| is_own(&field.name));
        fields.map(|field| (field.name.clone(), value(field))).collect()
    }

    /// The event of a lookup; lookups of registers and counters have none.
    fn lookup_event(&self, lookup: &ExecutorLookup) -> Option<TraceEvent> {
        for table in &self.pipeline().tables {
            let (value, name) = (lookup.value.as_deref(), table.name.clone());
            if table.map == lookup.map {
                return Some(TraceEvent::Table {
                    name,
                    key: table.keys.iter().map(|key| key_value(table, key, &lookup.key)).collect(),
                    is_hit: value.is_some(),
                    action: value.and_then(|value| traced_action(table, value)),
                    group: value.and_then(|value| word(value, ENTRY_GROUP)).unwrap_or(0),
                });
            }
            if table.default_map == lookup.map {
                let action = value.and_then(|value| traced_action(table, value));
                return Some(TraceEvent::DefaultAction { table: name, action });
            }
            if table.selector.as_ref().is_some_and(|selector| selector.member_map == lookup.map) {
                let action = value.and_then(|value| traced_action(table, value));
                return Some(TraceEvent::Member { table: name, action });
            }
        }
        None
    }
}

fn word(value: &[u8], at: u32) -> Option<u32> {
    let bytes = value.get(at as usize..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Name and value of an element of a key.
fn key_value(table: &TableSpec, key: &KeySpec, bytes: &[u8]) -> (String, BigUint) {
    let part = bytes.get(key.offset as usize..(key.offset + key.size) as usize).unwrap_or_default();
    let is_prefix = key.kind == millstream_p4_lower::KeyMatch::Prefix;
    let value = match table.storage {
        TableStorage::Hash => BigUint::from_bytes_le(part),
        TableStorage::Prefix if is_prefix => BigUint::from_bytes_be(part) >> (8 * key.size - key.bits),
        _ => BigUint::from_bytes_be(part),
    };
    (key.name.clone(), value)
}

/// Action of an entry's value.
fn traced_action(table: &TableSpec, value: &[u8]) -> Option<TracedAction> {
    let action = table.actions.get(word(value, 0)? as usize)?;
    let argument = |parameter: &millstream_p4_lower::ParameterSpec| {
        let from = parameter.offset as usize;
        let bytes = value.get(from..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(parameter.bits.div_ceil(8) as usize)];
        (parameter.name.clone(), BigUint::from_bytes_le(bytes))
    };
    Some(TracedAction {
        name: action.name.clone(),
        arguments: action.parameters.iter().map(argument).collect(),
    })
}
