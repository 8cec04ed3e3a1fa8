//! Access to a configuration that runs: handlers, and the settings behind some of them.
//!
//! A setting is a number that a handler writes. Code loads it from an array if it may be written
//! ([`HandlerWriters`]); otherwise it is a constant of the code, so that unused handlers cost nothing.

use std::borrow::Cow;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::arguments::{ether_text, ip_text};
use crate::config::words;
use crate::graph::Graph;
use crate::sketch::FlowSketch;

/// The name of the map with the settings of all elements: one value, which all workers read.
pub const SETTINGS: &str = "click.settings";

/// Effect of reading or writing a handler.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HandlerAccess {
    /// 64 bits of the state, at this byte.
    Number(u32),
    /// True if 64 bits of the state, at this byte, are zero.
    IsZero(u32),
    /// Writing sets these words of the state and the contents of these arrays to zero.
    Zero {
        /// Their offsets in the state.
        words: Vec<u32>,
        /// Names of maps.
        arrays: Vec<String>,
    },
    /// The sketch's estimate for the flow in the argument.
    Estimate(FlowSketch),
    /// The largest flows that a sketch knows of.
    Largest(FlowSketch),
    /// A text that does not change.
    Text(String),
    /// The sum of drops of the element.
    Drops,
    /// Drops of the element by reason, a line each.
    DropsByReason,
    /// A number of the state by another one.
    Ratio(StateRatio),
    /// 64 bits of the settings, at this byte, which may be written.
    Setting(u32, SettingType),
    /// An argument of the element, as `NAME VALUE`, whose value is a setting.
    Argument(String, u32),
    /// Some bits of a setting.
    Bits(SettingBits),
    /// Writing gives these settings these values.
    Sets(Vec<(u32, i64)>),
    /// A setting that is a constant of the code, since it was not to be written.
    Constant(String),
    /// Lets a source begin again: its limit applies to the packets counted since then.
    Restart {
        /// Offset of the count of its packets in the state.
        count: u32,
        /// Those before, in the settings.
        base: u32,
    },
    /// Something about the entries of a table.
    Table {
        /// The map's name.
        map: String,
        /// Form of its entries.
        form: TableFormat,
        /// Operation.
        verb: TableOperation,
    },
    /// Bytes of packets of a source: the first so many of a map's one value, which repeats them.
    Data {
        /// The map's name.
        map: String,
        /// Number of bytes that packets have: 64 bits of the settings, at this byte.
        length: u32,
        /// Size of the value.
        most: u32,
    },
    /// Something about numbers that are kept.
    Samples(SampleSeries, SampleStatistic),
    /// A part of a range of times.
    Times(TimeRange, TimeRangePart),
    /// The handlers of the element.
    Listing,
    /// True if a source makes packets as soon as it may.
    Ready(SourceReadiness),
}

/// The latest numbers of a series: number `i` is at `i` modulo the length of an array.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SampleSeries {
    /// Name of the array, of 64 bits each.
    pub array: String,
    /// Its length.
    pub entries: u32,
    /// Numbers of the series so far: 64 bits of the state, at this byte.
    pub count: u32,
    /// Divisor of each number that is given, with three places; 1 for the number itself.
    pub divisor: u32,
}

/// A figure about the numbers of a [`SampleSeries`]. All but those of one number take the first number to
/// look at as an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SampleStatistic {
    /// So many of 100 numbers are less.
    Percentile(u8),
    /// So many of 100 numbers are less as the argument says, with places.
    AnyPercentile,
    /// The standard deviation.
    Deviation,
    /// The number of those so far, less one.
    Index,
    /// The latest one.
    Last,
    /// All, a line each.
    List,
    /// All, a line each, behind their places in the series.
    NumberedList,
}

/// A range of times, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimeRange {
    /// The first time of the range, as a time and the number of its [`RangeEdge`].
    pub start: [SettingValue; 2],
    /// The first time behind the range, likewise.
    pub end: [SettingValue; 2],
    /// One more than the time of the first packet: 64 bits of the state, at this byte; 0 before that packet.
    pub first: u32,
    /// Number of changes of the end.
    pub changes: SettingValue,
}

/// Meaning of the time of an edge of a [`TimeRange`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeEdge {
    /// Since 1970.
    Absolute,
    /// Behind the first packet.
    AfterFirst,
    /// Behind the start of the range.
    AfterStart,
}

impl RangeEdge {
    /// Its number in the settings.
    pub fn number(self) -> i64 {
        self as i64
    }
}

/// A part of a [`TimeRange`], as a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeRangePart {
    /// The first time of the range.
    Start,
    /// The first time behind the range.
    End,
    /// The length of the range.
    Interval,
    /// Writing makes the range longer by this.
    Extension,
}

/// Numbers by which a source makes packets or not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceReadiness {
    /// Number of its packets: 64 bits of the state, at this byte.
    pub count: u32,
    /// Most of them; negative for any number.
    pub limit: SettingValue,
    /// 0 if it makes none.
    pub active: SettingValue,
    /// Length, in the state, and capacity of queues: it makes none while all of them are full, if there are
    /// any.
    pub queues: Vec<(u32, SettingValue)>,
}

/// A number that is computed when it is read, with three places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateRatio {
    /// 64 bits of the state, at this byte.
    pub of: u32,
    /// Divisor, as 64 bits of the state at this byte, if there is one; nothing by nothing is zero.
    pub by: Option<u32>,
    /// And this.
    pub divisor: u32,
}

/// Some bits of the settings, as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettingBits {
    /// The 64 bits of the settings that they are among, at this byte.
    pub of: u32,
    /// The lowest of them.
    pub first: u32,
    /// Number of bits; fewer than 63.
    pub count: u32,
}

impl SettingBits {
    /// Returns the range of values they can hold.
    pub fn takes(self) -> SettingType {
        SettingType::Number(0, (1 << self.count) - 1)
    }

    /// The number that they are of a setting's.
    pub fn get(self, setting: i64) -> i64 {
        setting >> self.first & ((1 << self.count) - 1)
    }

    /// A setting with these bits.
    pub fn set(self, setting: i64, bits: i64) -> i64 {
        let mask = ((1 << self.count) - 1) << self.first;
        setting & !mask | bits << self.first & mask
    }
}

/// Values that a setting takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SettingType {
    /// A number from this one to that one.
    Number(i64, i64),
    /// `true` or `false`.
    Truth,
    /// So many, or `-1` for no limit.
    Limit,
    /// An address of IPv4.
    Address,
    /// An Ethernet address, the first byte uppermost.
    Ether,
}

impl SettingType {
    /// The value that a text says, if it is one.
    pub fn parse(self, text: &str) -> Option<i64> {
        let text = text.trim();
        match self {
            SettingType::Number(least, most) => {
                let number = match text.strip_prefix("0x") {
                    Some(digits) => i64::from_str_radix(digits, 16).ok()?,
                    None => text.parse().ok()?,
                };
                (least..=most).contains(&number).then_some(number)
            }
            SettingType::Truth => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "t" | "y" => Some(1),
                "0" | "false" | "no" | "f" | "n" => Some(0),
                _ => None,
            },
            SettingType::Limit => text.parse().ok().filter(|limit| *limit >= -1),
            SettingType::Address => ip_text(text).map(i64::from),
            SettingType::Ether => ether_text(text).map(ether_number),
        }
    }

    /// A value as it is read.
    pub fn text(self, value: i64) -> String {
        match self {
            SettingType::Truth => (value != 0).to_string(),
            SettingType::Number(..) | SettingType::Limit => value.to_string(),
            SettingType::Address => Ipv4Addr::from(value as u32).to_string(),
            SettingType::Ether => {
                value.to_be_bytes()[2..].iter().map(|b| format!("{b:02X}")).collect::<Vec<_>>().join("-")
            }
        }
    }
}

impl std::fmt::Display for SettingType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingType::Number(least, most) => write!(f, "a number from {least} to {most}"),
            SettingType::Truth => f.write_str("true or false"),
            SettingType::Limit => f.write_str("a number of packets, or -1 for no limit"),
            SettingType::Address => f.write_str("an address like 10.0.0.1"),
            SettingType::Ether => f.write_str("an address like 00:11:22:33:44:55"),
        }
    }
}

/// An Ethernet address as a number, the first byte uppermost.
pub fn ether_number(address: [u8; 6]) -> i64 {
    address.iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// Form of a table's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TableFormat {
    /// Prefixes with gateway and output. Addresses have so many bytes.
    Routes {
        /// The last output.
        last: u32,
        /// 4, or 16 of IPv6.
        bytes: u32,
    },
    /// Next hops by address, with their Ethernet addresses, which hold for so many nanoseconds.
    Hops {
        /// Time for which entries hold, in nanoseconds.
        timeout: u64,
        /// 4, or 16 of IPv6.
        bytes: u32,
    },
    /// Prefixes with the Ethernet address to answer with.
    Answers,
    /// Ethernet addresses with the port where each was seen, which is known for so many nanoseconds.
    Stations {
        /// Time for which entries hold, in nanoseconds.
        timeout: u64,
    },
    /// The state of a bridge in the spanning tree, in one entry.
    Bridge {
        /// Number of ports.
        ports: u32,
    },
    /// Flows of a rewriter, two entries each.
    Flows,
    /// Counts of aggregates.
    Aggregates,
}

/// Operation on the entries of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TableOperation {
    /// All are read, a line each.
    List,
    /// Reads the number of entries.
    Count,
    /// Reads the number of packets that wait in entries.
    Waiting,
    /// Reads the result of looking an address up.
    Find,
    /// One is put in where there was none.
    Add,
    /// One is put in.
    Set,
    /// One is removed.
    Remove,
    /// Several are put in and removed, or none.
    Several,
    /// All are removed.
    Clear,
    /// All are written to a file, or with `-` to standard output.
    Save,
}

impl TableOperation {
    /// Returns true if the handler is written.
    pub fn writes(self) -> bool {
        use TableOperation::{Count, Find, List, Waiting};
        !matches!(self, List | Count | Waiting | Find)
    }
}

impl HandlerAccess {
    /// Reports whether the handler can be read, and whether it can be written.
    pub fn access_modes(&self) -> (bool, bool) {
        match self {
            HandlerAccess::Zero { .. } | HandlerAccess::Sets(_) | HandlerAccess::Restart { .. } => {
                (false, true)
            }
            HandlerAccess::Setting(..) | HandlerAccess::Bits(_) | HandlerAccess::Data { .. } => (true, true),
            HandlerAccess::Table { verb, .. } => (!verb.writes(), verb.writes()),
            HandlerAccess::Times(_, TimeRangePart::Extension) => (false, true),
            HandlerAccess::Times(range, _) => (true, matches!(range.changes, SettingValue::Live(_))),
            _ => (true, false),
        }
    }

    /// The text, if it never changes.
    pub fn fixed_text(&self) -> Option<&str> {
        match self {
            HandlerAccess::Text(text) | HandlerAccess::Constant(text) => Some(text),
            _ => None,
        }
    }

    /// Returns true if reading it takes an argument.
    pub fn takes_argument(&self) -> bool {
        matches!(
            self,
            HandlerAccess::Estimate(_)
                | HandlerAccess::Table { verb: TableOperation::Find, .. }
                | HandlerAccess::Samples(_, SampleStatistic::Percentile(_) | SampleStatistic::AnyPercentile)
        )
    }
}

/// A handler of an element.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Handler {
    /// The element's name; none for those of the configuration.
    pub element: String,
    /// Its own.
    pub name: Cow<'static, str>,
    /// Its effect.
    pub access: HandlerAccess,
}

/// Parties that may write handlers while a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HandlerWriters {
    /// Scripts of the configuration.
    #[default]
    Scripts,
    /// Anybody: over a socket, or whoever has the program as a library.
    Anybody,
}

impl HandlerWriters {
    /// Returns true if a script of the configuration may write a handler of an element.
    pub(crate) fn names(graph: &Graph, element: &str, name: &str) -> bool {
        let own = element.rsplit_once('/').map_or(element, |(_, own)| own);
        let whole = format!("{own}.{name}");
        let writes = |text: &crate::config::SpannedText| {
            let all = words(text);
            let [instruction, handler, ..] = &all[..] else { return false };
            let is_write = ["write", "writeq", "call"].contains(&instruction.text.as_str());
            is_write && (handler.text.contains('$') || is_of(&handler.text, &whole))
        };
        let calls =
            |text: &crate::config::SpannedText| called(text).is_some_and(|handler| is_of(&handler, &whole));
        graph.elements.iter().any(|e| e.arguments.iter().any(|text| writes(text) || calls(text)))
    }

    /// Returns true if the handler of this name of some element may be written in a configuration.
    pub(crate) fn write(self, graph: &Graph, name: &str) -> bool {
        let writes = |text: &crate::config::SpannedText| {
            let all = words(text);
            let [instruction, handler, ..] = &all[..] else { return false };
            // The handler that a source writes at its end is an argument of it.
            let is_write = ["write", "writeq", "call", "END_CALL"].contains(&instruction.text.as_str());
            let own = handler.text.rsplit_once('.').map_or("", |(_, own)| own);
            is_write && (own == name || handler.text.contains('$'))
        };
        let calls = |text: &crate::config::SpannedText| {
            called(text).is_some_and(|handler| own_name(&handler) == name)
        };
        let is_written = |text: &crate::config::SpannedText| writes(text) || calls(text);
        self == HandlerWriters::Anybody || graph.elements.iter().any(|e| e.arguments.iter().any(is_written))
    }
}

/// Returns true if a handler has this name, in any compound element.
fn is_of(handler: &str, whole: &str) -> bool {
    handler.rsplit_once('/').map_or(handler, |(_, own)| own) == whole
}

/// A handler's name without the element's.
fn own_name(handler: &str) -> &str {
    handler.rsplit_once('.').map_or("", |(_, own)| own)
}

/// The handler that an argument writes on an event.
fn called(argument: &crate::config::SpannedText) -> Option<String> {
    let all = words(argument);
    match &all[..] {
        [name, _, handler, ..] if ["COUNT_CALL", "BYTE_COUNT_CALL"].contains(&name.text.as_str()) => {
            Some(handler.text.clone())
        }
        [name, handler, ..] if name.text == "END_CALL" => Some(handler.text.clone()),
        _ => None,
    }
}

/// A setting in code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SettingValue {
    /// Always this.
    Fixed(i64),
    /// 64 bits of the settings, at this byte.
    Live(u32),
}

#[cfg(test)]
mod tests {
    use super::{HandlerWriters, SettingBits, SettingType};
    use crate::{flatten, parse};

    #[test]
    fn settings_take_what_fits() {
        assert_eq!(
            [SettingType::Number(-1, 3).parse("3"), SettingType::Number(-1, 3).parse(" -1 ")],
            [Some(3), Some(-1)]
        );
        assert_eq!(["4", "-2", "x", ""].map(|text| SettingType::Number(-1, 3).parse(text)), [None; 4]);
        assert_eq!(
            ["TRUE", "0", "maybe"].map(|text| SettingType::Truth.parse(text)),
            [Some(1), Some(0), None]
        );
        assert_eq!(["-1", "7", "-2"].map(|text| SettingType::Limit.parse(text)), [Some(-1), Some(7), None]);
        assert_eq!(
            ["10.1.0.2", "10.1", "x"].map(|text| SettingType::Address.parse(text)),
            [Some(0x0a01_0002), None, None]
        );
        assert_eq!(SettingType::Ether.parse("0:11:22:33:44:ff"), Some(0x0011_2233_44ff));
        assert_eq!(SettingType::Ether.text(0x0011_2233_44ff), "00-11-22-33-44-FF");
        assert_eq!(SettingType::Address.text(0x0a01_0002), "10.1.0.2");
        let bits = SettingBits { of: 0, first: 13, count: 3 };
        assert_eq!(
            (bits.get(0xe123), bits.set(0xe123, 1), bits.takes()),
            (7, 0x2123, SettingType::Number(0, 7))
        );
    }

    #[test]
    fn a_script_makes_settable_what_it_writes() {
        let graph = |script: &str| {
            let text = format!("Idle -> s :: Switch -> Discard; Script({script})");
            flatten(&parse(&text).expect("parsed"), &[]).expect("flattened")
        };
        for (script, name, settable) in [
            ("write s.switch 0", "switch", true),
            ("write s.switch 0", "color", false),
            ("print s.switch", "switch", false),
            ("write $(which) 0", "color", true),
        ] {
            assert_eq!(HandlerWriters::Scripts.write(&graph(script), name), settable, "{script}");
        }
        assert!(HandlerWriters::Anybody.write(&graph("stop"), "switch"));
    }
}
