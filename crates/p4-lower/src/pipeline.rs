//! Description of a lowered program, for runtimes and control planes: plain data.

use millstream_ir::{Func, Map};
use num_bigint::BigUint;

/// Port of dropped packets in v1model.
pub const DROP_PORT: u64 = 511;

/// Architecture of a program: it decides what happens between the functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Architecture {
    /// v1model, of the reference software switch.
    #[default]
    V1Model,
    /// The portable switch architecture (PSA).
    Psa,
    /// `ebpf_model`: a filter.
    Filter,
    /// `ubpf_model`
    Ubpf,
    /// `xdp_model`
    Xdp,
}

/// A program beside its code: functions, state of a packet, tables and objects.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// Architecture.
    pub architecture: Architecture,
    /// Functions in the order in which a packet meets them.
    pub stages: Vec<PipelineStage>,
    /// Memory of a packet.
    pub state: StateLayout,
    /// Tables.
    pub tables: Vec<TableSpec>,
    /// Counters, meters, registers, value sets, digests.
    pub objects: Vec<ObjectSpec>,
    /// Fields that survive a clone, resubmission or recirculation, by number of the list.
    pub field_lists: Vec<FieldList>,
    /// Messages of `log_msg`, by number.
    pub messages: Vec<MessageSpec>,
    /// Ring buffer of digests and messages: a record is its kind and number (32 bits each), and the data.
    pub events: Option<Map>,
    /// Room in front of a packet, in bytes, that the deparser may need.
    pub headroom: u32,
    /// Names of errors, by value.
    pub errors: Vec<String>,
    /// Lines of the program: records that instructions refer to by [`millstream_ir::Function::locs`].
    pub lines: Vec<SourceLine>,
    /// Marks of a program that was lowered for a trace.
    pub trace: Option<TraceMarks>,
}

/// Places of which a trace tells. The code looks the number of a mark up in a map that stays empty, so that an
/// engine that records lookups records marks, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceMarks {
    /// The map.
    pub map: Map,
    /// Marks by number.
    pub marks: Vec<TraceMark>,
}

/// A place of which a trace tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceMark {
    /// Kind.
    pub kind: MarkKind,
    /// Line.
    pub line: SourceLine,
}

/// Kinds of places of which a trace tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// The parser enters this state.
    ParserState(String),
    /// The parser stops with this error.
    ParserError(String),
    /// The packet is marked to be dropped.
    Drop,
}

/// A message of `log_msg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// Text, with `{}` for each field.
    pub text: String,
    /// Width of each field; their bits follow each other in the event's data.
    pub bits: Vec<u32>,
}

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Path, or the name that `#line` gave.
    pub path: String,
    /// Line, from 1.
    pub line: u32,
}

/// Kind of an event's record: a digest.
pub const EVENT_DIGEST: u32 = 1;
/// Kind of an event's record: a message of `log_msg`.
pub const EVENT_MESSAGE: u32 = 2;

/// A function of a pipeline. It takes the packet's state, first byte and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineStage {
    /// Name: `ingress`, `egress`.
    pub name: String,
    /// Function.
    pub func: Func,
}

/// Memory of a packet: metadata, headers, and fields of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Bytes.
    pub size: u32,
    /// Scalars, with names that dots join.
    pub fields: Vec<StateField>,
    /// Memory of the deparser behind the state, where the engine wants the output there.
    pub output: Option<OutputArea>,
}

/// Memory behind a packet's state for what the deparser writes. The field `engine.output_length` says how many
/// bytes of the packet's new start it stands for, `engine.output_copied` how many of them are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputArea {
    /// Bytes from the start of the state.
    pub offset: u32,
    /// Bytes.
    pub capacity: u32,
}

/// A scalar of a packet's state, in the byte order of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateField {
    /// Name.
    pub name: String,
    /// Bytes from the start.
    pub offset: u32,
    /// Width.
    pub bits: u32,
}

impl StateLayout {
    /// Finds a field.
    pub fn field(&self, name: &str) -> Option<&StateField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// Fields that survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldList {
    /// Number in the program.
    pub number: u64,
    /// Offset and size of each field, in bytes of the state.
    pub ranges: Vec<(u32, u32)>,
}

/// Comparison of an element of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyMatch {
    /// Equal.
    Exact,
    /// Longest prefix.
    Prefix,
    /// Equal under a mask.
    Ternary,
    /// Between two bounds.
    Range,
    /// Equal, or anything.
    Optional,
}

/// Kind of map that holds a table's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableStorage {
    /// Hash map: scalars in the byte order of the host.
    Hash,
    /// Longest-prefix map: length in bits (32 bits, host order), then elements in packet order, the prefix
    /// last and at the top of its bytes.
    Prefix,
    /// Map with priorities: elements in packet order, each in whole bytes.
    Priority,
}

/// An element of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// Name for the control plane.
    pub name: String,
    /// Width.
    pub bits: u32,
    /// Comparison.
    pub kind: KeyMatch,
    /// Bytes from the start of the key.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// A parameter of an action that the entry sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Name.
    pub name: String,
    /// Width.
    pub bits: u32,
    /// Bytes from the start of the entry's value; host order, words least significant first.
    pub offset: u32,
}

/// An action of a table. Its position in the list is its number in entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSpec {
    /// Name for the control plane.
    pub name: String,
    /// Parameters.
    pub parameters: Vec<ParameterSpec>,
    /// It may only be the default action.
    pub is_default_only: bool,
    /// It may only be an entry's action.
    pub is_table_only: bool,
}

/// An action with arguments.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ActionChoice {
    /// Number of the action in the table.
    pub action: usize,
    /// Arguments.
    pub arguments: Vec<BigUint>,
}

/// Condition of an entry on an element of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryMatch {
    /// Equal.
    Exact(BigUint),
    /// Value, and bits from the top.
    Prefix(BigUint, u32),
    /// Value and mask.
    Ternary(BigUint, BigUint),
    /// Bounds, inclusive.
    Range(BigUint, BigUint),
    /// Anything.
    Any,
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySpec {
    /// Conditions, one an element of the key.
    pub matches: Vec<EntryMatch>,
    /// Action.
    pub choice: ActionChoice,
    /// Priority: the greatest of the matching entries wins.
    pub priority: u32,
    /// Group of the table's selector, from 1, which chooses the action in place of `choice`.
    pub group: Option<u32>,
}

/// Maps of the selector of a table's actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorSpec {
    /// Name for the control plane.
    pub name: String,
    /// Hash map from a group (32 bits) to the number of its members (32 bits).
    pub group_map: Map,
    /// Hash map from a group and the position of a member (32 bits each) to a value like that of an entry.
    pub member_map: Map,
    /// Largest number of groups, and of members of all groups.
    pub size: u32,
}

/// A table. The value of an entry begins with the number of its action and its group, or 0 (32 bits each). In a
/// table with a counter, that of the entry follows: packets and bytes (64 bits each).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Name for the control plane.
    pub name: String,
    /// Map of the entries.
    pub map: Map,
    /// Array with the default action as its one value.
    pub default_map: Map,
    /// Kind of the map.
    pub storage: TableStorage,
    /// Elements of the key.
    pub keys: Vec<KeySpec>,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Actions.
    pub actions: Vec<ActionSpec>,
    /// Default action at first.
    pub default: ActionChoice,
    /// The default action cannot be changed.
    pub is_default_constant: bool,
    /// Entries at first.
    pub entries: Vec<EntrySpec>,
    /// Entries cannot be changed.
    pub is_constant: bool,
    /// Largest number of entries.
    pub size: u32,
    /// Name of the table's direct counter.
    pub counter: Option<String>,
    /// Name of the table's direct meter; its state is at this offset of the value.
    pub meter: Option<(String, u32)>,
    /// Selector of actions by groups.
    pub selector: Option<SelectorSpec>,
}

/// Offset of the group in an entry's value.
pub const ENTRY_GROUP: u32 = 4;

/// Offset of the counter in an entry's value, or of what follows the group in a table without a counter.
pub const ENTRY_COUNTER: u32 = 8;
/// Offset in an entry's value of what follows the counter.
pub const ENTRY_REST: u32 = 24;

/// Kind of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// Array of packets and bytes, 64 bits each.
    Counter,
    /// Array of meters; the layout is that of [`crate::meter_layout`].
    Meter {
        /// Bytes are measured, not packets.
        counts_bytes: bool,
    },
    /// Array of values.
    Register {
        /// Width of a value; aggregates have none.
        bits: Option<u32>,
        /// Value of each element at first.
        initial: BigUint,
    },
    /// Actions that entries of tables refer to; the control plane resolves the references.
    ActionProfile,
    /// Groups of such actions, of which a hash chooses one.
    ActionSelector {
        /// Name of the hash algorithm, as in v1model.
        algorithm: String,
    },
    /// Hash map: its keys are the values.
    ValueSet {
        /// Width of each element of a value.
        bits: Vec<u32>,
    },
    /// Number in events.
    Digest {
        /// Width of each field.
        bits: Vec<u32>,
    },
}

/// A counter, meter, register, value set or digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSpec {
    /// Name for the control plane.
    pub name: String,
    /// Kind.
    pub kind: ObjectKind,
    /// Map with its state; digests have none.
    pub map: Option<Map>,
    /// Elements.
    pub size: u32,
}
