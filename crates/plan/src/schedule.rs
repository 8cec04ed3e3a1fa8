//! Schedules: the order in which packets of a batch go through a program's stages, how many at once, and the
//! lines to fetch ahead.
//!
//! One description, [`Schedule`], which a command line writes as one text and a tuner varies. The stages of a
//! packet are its headers (which are fetched), then the lines of its look-ups, one after the other, then the
//! program. Batching, sub-batching and prefetching as in the model of
//! APSys'17 (section 2) and NFMorph (HotNets'18, section 2.2).
//!
//! Invariant: no schedule changes the effect of a program. Stages in front of the program leave no trace, and
//! packets run in order; or in the order of their classes if nobody can tell the difference.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Order in which packets go through stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulePattern {
    /// By measurement: packet by packet in two stages; in pipelined sub-batches if there are more, as in
    /// tries of long addresses, and if tables take at least half a gibibyte.
    #[default]
    Fit,
    /// While a packet is processed, stages are done for the packets some places behind.
    Packets,
    /// A sub-batch goes through one stage after the other, then the next one.
    Groups,
    /// While a sub-batch is processed, stages are done for the next ones.
    PipelinedGroups,
}

/// Names of patterns.
const PATTERNS: [(&str, SchedulePattern); 4] = [
    ("fit", SchedulePattern::Fit),
    ("packets", SchedulePattern::Packets),
    ("groups", SchedulePattern::Groups),
    ("pipelined-groups", SchedulePattern::PipelinedGroups),
];

impl SchedulePattern {
    /// Its name.
    pub fn name(self) -> &'static str {
        PATTERNS.iter().find(|(_, pattern)| *pattern == self).map_or("", |(word, _)| word)
    }
}

/// Look-ups that are fetched for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefetchPolicy {
    /// Those in tables of at least [`Schedule::from`] bytes.
    #[default]
    Large,
    /// None.
    Nothing,
    /// Those in tables of these names, whatever their size.
    Tables(Vec<String>),
}

/// Order of a batch's packets: class by class, if no packet can tell the difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchReordering {
    /// All in order.
    #[default]
    One,
    /// Those of IPv4, of IPv6, of ARP, and all others.
    Ethertype,
    /// The same, and those of TCP, UDP, ICMP and the rest of either version of IP.
    Protocol,
}

/// Names of classes.
const CLASSES: [(&str, BatchReordering); 3] = [
    ("one", BatchReordering::One),
    ("ethertype", BatchReordering::Ethertype),
    ("protocol", BatchReordering::Protocol),
];

impl BatchReordering {
    /// Its name.
    pub fn name(self) -> &'static str {
        CLASSES.iter().find(|(_, classes)| *classes == self).map_or("", |(word, _)| word)
    }
}

/// Caches of traversals: one look-up of the fields that decide several look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraversalCaching {
    /// None.
    #[default]
    Off,
    /// As many look-ups as possible have one entry together.
    Whole,
    /// Only look-ups that the same fields decide have one entry together. There are more entries, and each is found
    /// by more packets.
    Split,
}

/// Names of ways to cache traversals.
const TRAVERSALS: [(&str, TraversalCaching); 3] =
    [("off", TraversalCaching::Off), ("whole", TraversalCaching::Whole), ("split", TraversalCaching::Split)];

impl TraversalCaching {
    /// Its name.
    pub fn name(self) -> &'static str {
        TRAVERSALS.iter().find(|(_, caching)| *caching == self).map_or("", |(word, _)| word)
    }
}

/// Order of packets and stages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// Maximum number of packets that a program gets at once.
    pub batch: u32,
    /// The order of stages and packets.
    pub pattern: SchedulePattern,
    /// Distance between the packets of two stages, if packets are pipelined.
    pub distance: u32,
    /// Packets that go through a stage before the next one begins, if they go in groups; [`Schedule::ALL`]
    /// for a whole batch.
    pub sub_batch: u32,
    /// Packets per iteration of a loop.
    pub unroll: u32,
    /// Number of packets by which headers are fetched ahead, if packets are pipelined; otherwise nonzero to
    /// fetch them. 0 for not at all.
    pub headers: u32,
    /// Other lines to fetch.
    pub fetch: PrefetchPolicy,
    /// Minimum size in bytes of a large table, when full.
    pub from: u64,
    /// True if the loop that fetches for look-ups is timed now and then beside one that does not, and the
    /// faster one taken.
    pub trials: bool,
    /// Classes that run one after the other.
    pub classes: BatchReordering,
    /// Caches of traversals.
    pub traversals: TraversalCaching,
    /// Flows of each of these caches, a power of two.
    pub flows: u32,
}

/// Maximum number of stages for which the default is to pipeline packets.
const PIPELINED: u32 = 2;
/// Tables of at least this many bytes are not pipelined by packets, as measured (`examples/tables`): each
/// line takes so long to arrive, with its translation, that more of them must be in flight.
const FAR: u64 = 512 << 20;

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            batch: 64,
            pattern: SchedulePattern::Fit,
            distance: 8,
            // Longer ones leave fewer lines in flight at once, as measured (`examples/tables`).
            sub_batch: 8,
            unroll: 1,
            headers: 4,
            fetch: PrefetchPolicy::Large,
            // Smaller tables stay in the caches of common servers.
            from: 4 << 20,
            trials: true,
            classes: BatchReordering::One,
            traversals: TraversalCaching::Off,
            // 512 KiB of entries.
            flows: 4096,
        }
    }
}

impl Schedule {
    /// A sub-batch that is a whole batch.
    pub const ALL: u32 = u32::MAX;
    /// Maximum number of packets per iteration.
    pub const MOST_BATCH: u32 = 4096;
    /// Most packets of a turn.
    pub const MOST_UNROLLED: u32 = 8;
    /// Maximum number of flows of a cache of traversals.
    pub const MOST_FLOWS: u32 = 1 << 20;

    /// The schedule for code with this many stages of look-ups, in tables of this many bytes; and the reason.
    #[must_use]
    pub fn fitted(&self, stages: u32, bytes: u64) -> (Schedule, String) {
        let with = |pattern| Schedule { pattern, ..self.clone() };
        match self.pattern {
            SchedulePattern::Fit if stages == 0 => {
                (with(SchedulePattern::Packets), "no lookups to prefetch".to_owned())
            }
            SchedulePattern::Fit if bytes >= FAR => {
                (with(SchedulePattern::PipelinedGroups), format!("look-ups in tables of {} MiB", bytes >> 20))
            }
            SchedulePattern::Fit if stages > PIPELINED => {
                (with(SchedulePattern::PipelinedGroups), format!("look-ups of {stages} stages"))
            }
            SchedulePattern::Fit => {
                (with(SchedulePattern::Packets), format!("look-ups of {stages} stages, {bytes} bytes"))
            }
            _ => (self.clone(), "said".to_owned()),
        }
    }

    /// Decides whether look-ups in a table of this name and size, when full, are fetched for; returns the
    /// reason, too.
    pub fn fetches(&self, name: &str, bytes: u64) -> (bool, String) {
        match &self.fetch {
            PrefetchPolicy::Nothing => (false, "nothing is".to_owned()),
            PrefetchPolicy::Tables(names) if names.iter().any(|known| known == name) => {
                (true, "named".to_owned())
            }
            PrefetchPolicy::Tables(_) => (false, "others are named".to_owned()),
            PrefetchPolicy::Large if bytes >= self.from => {
                (true, format!("{bytes} bytes, {} or more", self.from))
            }
            PrefetchPolicy::Large => (false, format!("{bytes} bytes, below {}", self.from)),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |least: u32, most: u32| {
            let said = value.parse().ok().filter(|n| (least..=most).contains(n));
            said.ok_or_else(|| format!("{key}={value}: not a number from {least} to {most}"))
        };
        match key {
            "batch" => self.batch = number(1, Schedule::MOST_BATCH)?,
            "pattern" => self.pattern = word(key, value, &PATTERNS)?,
            "distance" => self.distance = number(1, 1024)?,
            "sub-batch" if value == "all" => self.sub_batch = Schedule::ALL,
            "sub-batch" => {
                let all = || format!("sub-batch={value}: neither a number from 1 to 4096 nor all");
                self.sub_batch = number(1, Schedule::MOST_BATCH).map_err(|_| all())?;
            }
            "unroll" => self.unroll = number(1, Schedule::MOST_UNROLLED)?,
            "headers" => self.headers = number(0, 1024)?,
            "fetch" => {
                self.fetch = match value {
                    "large" => PrefetchPolicy::Large,
                    "nothing" => PrefetchPolicy::Nothing,
                    names if names.split('+').any(str::is_empty) => {
                        return Err(format!("fetch={value}: neither large, nothing nor TABLE[+TABLE...]"));
                    }
                    names => PrefetchPolicy::Tables(names.split('+').map(str::to_owned).collect()),
                };
            }
            "from" => {
                self.from = bytes(value)
                    .ok_or_else(|| format!("from={value}: not a number of bytes, as in 65536 or 4M"))?
            }
            "classes" => self.classes = word(key, value, &CLASSES)?,
            "traversals" => self.traversals = word(key, value, &TRAVERSALS)?,
            "flows" => {
                let flows = number(1, Schedule::MOST_FLOWS)?;
                if !flows.is_power_of_two() {
                    return Err(format!("flows={value}: not a power of two"));
                }
                self.flows = flows;
            }
            "trials" => self.trials = word(key, value, &[("on", true), ("off", false)])?,
            _ => {
                let known = nearest(key, &KEYS).map(|near| format!("; did you mean `{near}`?"));
                return Err(format!(
                    "there is no {key:?} in schedules{}",
                    known.unwrap_or_else(|| format!(": there are {}", KEYS.join(", ")))
                ));
            }
        }
        Ok(())
    }
}

/// Keys of a schedule's text, in order.
pub(crate) const KEYS: [&str; 12] = [
    "batch",
    "pattern",
    "distance",
    "sub-batch",
    "unroll",
    "headers",
    "fetch",
    "from",
    "trials",
    "classes",
    "traversals",
    "flows",
];

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sub_batch = match self.sub_batch {
            Schedule::ALL => "all".to_owned(),
            packets => packets.to_string(),
        };
        let fetch = match &self.fetch {
            PrefetchPolicy::Large => "large".to_owned(),
            PrefetchPolicy::Nothing => "nothing".to_owned(),
            PrefetchPolicy::Tables(names) => names.join("+"),
        };
        let Schedule { batch, distance, unroll, headers, from, .. } = self;
        let (pattern, trials) = (self.pattern.name(), if self.trials { "on" } else { "off" });
        write!(
            f,
            "batch={batch},pattern={pattern},distance={distance},sub-batch={sub_batch},unroll={unroll},\
             headers={headers},fetch={fetch},from={from},trials={trials},classes={},traversals={},flows={}",
            self.classes.name(),
            self.traversals.name(),
            self.flows
        )
    }
}

impl FromStr for Schedule {
    type Err = String;

    /// Parses `KEY=VALUE,...`; missing keys have their defaults.
    fn from_str(text: &str) -> Result<Schedule, String> {
        let mut schedule = Schedule::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not KEY=VALUE, with {}", KEYS.join(", ")))?;
            schedule.set(key.trim(), value.trim())?;
        }
        Ok(schedule)
    }
}

/// Changes of the default schedule: values by key, as its text has them. Every value is valid.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct ScheduleChanges(BTreeMap<&'static str, String>);

impl ScheduleChanges {
    /// Changes a key.
    ///
    /// # Errors
    /// If there is no such key, or the value is none of its values.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        Schedule::default().set(key, value)?;
        if let Some(known) = KEYS.iter().find(|known| **known == key) {
            self.0.insert(known, value.to_owned());
        }
        Ok(())
    }

    /// Value of a key, if it is changed.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Changed keys and their values, in the order of a schedule's text.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        KEYS.iter().filter_map(|key| Some((*key, self.get(key)?)))
    }

    /// The schedule with these changes.
    pub fn apply(&self, schedule: &Schedule) -> Schedule {
        let mut changed = schedule.clone();
        for (key, value) in self.iter() {
            // Values were checked when they were set.
            let _ = changed.set(key, value);
        }
        changed
    }
}

impl fmt::Display for ScheduleChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&parts.join(","))
    }
}

fn word<T: Copy>(key: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, known)) = words.iter().find(|(word, _)| *word == value) {
        return Ok(*known);
    }
    let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let near = nearest(value, &all).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    Err(format!("{key}={value}: none of {}{near}", all.join(", ")))
}

/// A number of bytes, optionally in kibibytes, mebibytes or gibibytes.
fn bytes(text: &str) -> Option<u64> {
    let shift = match text.chars().last()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => return text.parse().ok(),
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    number.checked_mul(1 << shift)
}

/// The name with the fewest edits from the given one, if they are few.
pub fn nearest<'n>(written: &str, names: &[&'n str]) -> Option<&'n str> {
    let near = names.iter().map(|name| (strsim::osa_distance(written, name), *name)).min()?;
    (near.0 <= 1 + near.1.len() / 4).then_some(near.1)
}

/// Decision to fetch for look-ups in a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrefetchDecision {
    /// The table.
    pub table: String,
    /// True if they are fetched for.
    pub fetched: bool,
    /// Reason for the decision.
    pub why: String,
}

/// Look-ups that have one entry of a cache together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CachedTraversal {
    /// Their tables, in order.
    pub tables: Vec<String>,
    /// Bits of the fields that decide them.
    pub key_bits: u32,
}

/// A look-up that is not cached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UncachedLookup {
    /// Its table.
    pub table: String,
    /// Reason.
    pub why: String,
}

/// Caches of traversals of compiled code.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TraversalReport {
    /// Caches that there are, or that there could be.
    pub cached: Vec<CachedTraversal>,
    /// Look-ups in no cache.
    pub refused: Vec<UncachedLookup>,
}

/// The schedule of compiled code.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CompiledSchedule {
    /// The schedule, with the pattern that was chosen.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Reason for the pattern.
    pub why: String,
    /// Reason why packets run in order although classes were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_order: Option<String>,
    /// Number of stages of look-ups.
    pub stages: u32,
    /// Tables whose look-ups could be fetched for.
    pub tables: Vec<PrefetchDecision>,
    /// Look-ups that caches of traversals have, or could have.
    pub lookups: TraversalReport,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Schedule, String> {
        text.parse()
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        for text in [
            "",
            "batch=32,pattern=groups,sub-batch=all",
            "pattern=pipelined-groups,unroll=4,headers=0,fetch=a b+c,trials=off",
            "distance=3,from=4M,fetch=nothing,pattern=packets,classes=protocol",
            "traversals=split,flows=65536",
        ] {
            let schedule = read(text).unwrap();
            assert_eq!(read(&schedule.to_string()), Ok(schedule.clone()), "{text}");
            assert_eq!(schedule == Schedule::default(), text.is_empty());
        }
        assert_eq!(read("from=2K").unwrap().from, 2048);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_near() {
        for (text, said) in [
            ("sub_batch=4", "did you mean `sub-batch`?"),
            ("speed=4", "there are batch, pattern"),
            ("pattern=gruops", "did you mean `groups`?"),
            ("batch=0", "from 1 to 4096"),
            ("sub-batch=many", "nor all"),
            ("unroll=9", "from 1 to 8"),
            ("flows=1000", "not a power of two"),
            ("traversals=all", "none of off, whole, split"),
            ("from=4T", "not a number of bytes"),
            ("fetch=a++b", "TABLE[+TABLE...]"),
            ("trials", "is not KEY=VALUE"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn many_stages_and_huge_tables_go_in_pipelined_groups_unless_it_is_said_otherwise() {
        let fitted = |text: &str, stages, bytes| read(text).unwrap().fitted(stages, bytes).0.pattern;
        assert_eq!(fitted("", 2, FAR), SchedulePattern::PipelinedGroups);
        assert_eq!(fitted("", 2, FAR - 1), SchedulePattern::Packets);
        assert_eq!(fitted("", 4, 1), SchedulePattern::PipelinedGroups);
        assert_eq!(fitted("", 0, 0), SchedulePattern::Packets);
        assert_eq!(fitted("pattern=packets", 4, FAR), SchedulePattern::Packets);
        assert_eq!(fitted("pattern=pipelined-groups", 1, 1), SchedulePattern::PipelinedGroups);
    }

    #[test]
    fn tables_are_fetched_for_by_size_or_name() {
        let fetches = |text: &str, name, bytes| read(text).unwrap().fetches(name, bytes).0;
        assert!(fetches("", "a", 4 << 20) && !fetches("", "a", (4 << 20) - 1));
        assert!(fetches("fetch=b+a", "a", 1) && !fetches("fetch=b", "a", 1 << 30));
        assert!(!fetches("fetch=nothing", "a", 1 << 30));
    }
}
