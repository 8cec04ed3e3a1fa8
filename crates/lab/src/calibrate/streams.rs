//! Measured streams: straight-line programs of one kind of instruction, in chains and side by side.
//!
//! `{r}` is one register after the other and `{i}` its number, `{n}` counts repetitions from 1, `{k}` is the
//! place of one after the other of eight words, `{map}` a map. All begin with the same setup: r6 the context,
//! r9 the value of an array, r8 and the other registers numbers that the verifier does not know, and keys on
//! the stack: at -16 one that is in all maps that have elements, at -24 one that is in none.

use millstream_bpf::cost::Kind;
use millstream_isa::MapType;

/// Measured property of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MeasuredProperty {
    /// The latency of a kind.
    Latency(Kind),
    /// From one to the next, independent one.
    Each(Kind),
    /// A helper.
    Helper(&'static str),
    /// A lookup in a map of this type.
    Lookup(MapType),
}

/// A program: a text that is repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct InsnStream {
    pub(super) what: MeasuredProperty,
    /// The text of one repetition.
    pub(super) text: &'static str,
    /// Other instructions in a repetition, whose latencies are deducted.
    pub(super) less: &'static [Kind],
    /// Things measured in a repetition.
    pub(super) of: u32,
}

const fn latency(kind: Kind, text: &'static str) -> InsnStream {
    InsnStream { what: MeasuredProperty::Latency(kind), text, less: &[], of: 1 }
}

const fn each(kind: Kind, text: &'static str) -> InsnStream {
    InsnStream { what: MeasuredProperty::Each(kind), text, less: &[], of: 1 }
}

const fn helper(name: &'static str, text: &'static str) -> InsnStream {
    InsnStream { what: MeasuredProperty::Helper(name), text, less: &[], of: 1 }
}

const fn lookup(map_type: MapType) -> InsnStream {
    let text = "r1 = {map}\nr2 = r10\nr2 += -16\ncall map_lookup_elem";
    InsnStream { what: MeasuredProperty::Lookup(map_type), text, less: &[], of: 1 }
}

/// Repetitions of most streams, and of calls. While a chain waits, the setup of the next run is done already.
/// At these counts the setup is a negligible part of the measured time.
const OFTEN: usize = 768;
const SELDOM: usize = 96;

impl InsnStream {
    /// Number of repetitions of the text.
    pub(super) fn repetitions(&self) -> usize {
        match self.what {
            MeasuredProperty::Helper(_)
            | MeasuredProperty::Lookup(_)
            | MeasuredProperty::Latency(Kind::Frame | Kind::Saved) => SELDOM,
            _ => OFTEN,
        }
    }

    /// The map that `{map}` is.
    pub(super) fn map_type(&self) -> Option<MapType> {
        match self.what {
            MeasuredProperty::Lookup(map_type) => Some(map_type),
            MeasuredProperty::Helper("redirect_map") => Some(MapType::DEVMAP),
            _ => self.text.contains("{map}").then_some(MapType::HASH),
        }
    }

    /// The program: the setup and the repetitions. Without a stream, the setup alone.
    pub(super) fn program(stream: Option<&InsnStream>, value: &str, map: &str) -> String {
        let mut text = SETUP.replace("{value}", value);
        if let Some(stream) = stream {
            for n in 1..=stream.repetitions() {
                let register = ROTATED[n % ROTATED.len()];
                let one = stream.text.replace("{r}", &format!("r{register}"));
                let one = one.replace("{i}", &register.to_string()).replace("{n}", &n.to_string());
                text += &one.replace("{k}", &(n % 8 * 8).to_string()).replace("{map}", map);
                text.push('\n');
            }
        }
        text += "out:\nr0 = 2\nexit\n";
        match stream.map(|s| s.what) {
            Some(MeasuredProperty::Latency(Kind::Frame)) => text + "empty:\nr0 = 0\nexit\n",
            Some(MeasuredProperty::Latency(Kind::Saved)) => {
                text + "saving:\nr6 = 0\nr7 = 0\nr8 = 0\nr9 = 0\nr0 = 0\nexit\n"
            }
            _ => text,
        }
    }
}

/// Registers that take turns.
const ROTATED: [usize; 7] = [0, 1, 2, 3, 4, 5, 7];

const SETUP: &str = "r6 = r1
r9 = {value}
*(u64 *)(r10 -8) = 0
*(u32 *)(r10 -16) = 32
*(u32 *)(r10 -12) = 5
*(u64 *)(r10 -24) = 33
call get_prandom_u32
r7 = r0
call get_prandom_u32
r8 = r0
r8 |= 1
r0 = r7
r1 = r7
r2 = r7
r3 = r7
r4 = r7
r5 = r7
";

/// The unit of time is the first: an exclusive or takes one cycle.
pub(super) const STREAMS: &[InsnStream] = &[
    latency(Kind::Alu, "r1 ^= r8"),
    each(Kind::Alu, "{r} ^= r8"),
    latency(Kind::Shift, "r1 <<= 3"),
    each(Kind::Shift, "{r} <<= 3"),
    latency(Kind::ShiftBy, "r1 <<= r8"),
    each(Kind::ShiftBy, "{r} <<= r8"),
    latency(Kind::Mul, "r1 *= r8"),
    each(Kind::Mul, "{r} *= r8"),
    InsnStream {
        what: MeasuredProperty::Latency(Kind::Div32),
        text: "w1 /= w8\nw1 |= w7",
        less: &[Kind::Alu],
        of: 1,
    },
    each(Kind::Div32, "{r} = r7\nw{i} /= w8"),
    InsnStream {
        what: MeasuredProperty::Latency(Kind::Div64),
        text: "r1 /= r8\nr1 |= r7",
        less: &[Kind::Alu],
        of: 1,
    },
    each(Kind::Div64, "{r} = r7\n{r} /= r8"),
    InsnStream { what: MeasuredProperty::Latency(Kind::Move), text: "r2 = r1\nr1 = r2", less: &[], of: 2 },
    each(Kind::Move, "{r} = r8"),
    each(Kind::Constant, "{r} = {n}"),
    latency(Kind::Swap16, "r1 = be16 r1"),
    each(Kind::Swap16, "{r} = be16 {r}"),
    latency(Kind::Swap32, "r1 = be32 r1"),
    each(Kind::Swap32, "{r} = be32 {r}"),
    latency(Kind::Swap64, "r1 = be64 r1"),
    each(Kind::Swap64, "{r} = be64 {r}"),
    InsnStream {
        what: MeasuredProperty::Latency(Kind::Load),
        text: "r1 = *(u64 *)(r9 +0)\nr1 &= 0\nr9 += r1",
        less: &[Kind::Alu, Kind::Alu],
        of: 1,
    },
    each(Kind::Load, "{r} = *(u64 *)(r9 +{k})"),
    each(Kind::Store, "*(u64 *)(r9 +{k}) = r8"),
    latency(Kind::Forward, "*(u64 *)(r10 -8) = r1\nr1 = *(u64 *)(r10 -8)"),
    latency(Kind::Stall, "*(u32 *)(r10 -8) = r1\n*(u32 *)(r10 -4) = r1\nr1 = *(u64 *)(r10 -8)"),
    latency(Kind::Atomic, "lock *(u64 *)(r9 +0) += r8"),
    each(Kind::Atomic, "lock *(u64 *)(r9 +{k}) += r8"),
    latency(Kind::Fetch, "r1 = atomic64_fetch_add((u64 *)(r9 +0), r1)"),
    each(Kind::Fetch, "{r} = atomic64_fetch_add((u64 *)(r9 +{k}), {r})"),
    latency(Kind::FetchLoop, "r1 = atomic64_fetch_or((u64 *)(r9 +0), r1)"),
    each(Kind::FetchLoop, "{r} = atomic64_fetch_or((u64 *)(r9 +{k}), {r})"),
    each(Kind::Branch, "if {r} == {n}00001 goto out"),
    InsnStream {
        what: MeasuredProperty::Each(Kind::Jump),
        text: "if r8 != {n}00001 goto after{n}\nr0 = 1\nafter{n}:",
        less: &[],
        of: 1,
    },
    latency(Kind::Frame, "call empty"),
    InsnStream {
        what: MeasuredProperty::Latency(Kind::Saved),
        text: "call saving",
        less: &[Kind::Frame],
        of: 4,
    },
    helper("get_prandom_u32", "call get_prandom_u32"),
    helper("ktime_get_ns", "call ktime_get_ns"),
    helper("ktime_get_boot_ns", "call ktime_get_boot_ns"),
    helper("ktime_get_coarse_ns", "call ktime_get_coarse_ns"),
    helper("jiffies64", "call jiffies64"),
    helper("get_smp_processor_id", "call get_smp_processor_id"),
    helper("csum_diff", "r1 = r9\nr2 = 16\nr3 = r9\nr4 = 16\nr5 = 0\ncall csum_diff"),
    helper("xdp_adjust_head", "r1 = r6\nr2 = 0\ncall xdp_adjust_head"),
    helper("xdp_adjust_tail", "r1 = r6\nr2 = 0\ncall xdp_adjust_tail"),
    helper("xdp_adjust_meta", "r1 = r6\nr2 = 0\ncall xdp_adjust_meta"),
    helper("xdp_load_bytes", "r1 = r6\nr2 = 0\nr3 = r9\nr4 = 16\ncall xdp_load_bytes"),
    helper("xdp_store_bytes", "r1 = r6\nr2 = 0\nr3 = r9\nr4 = 16\ncall xdp_store_bytes"),
    helper("redirect", "r1 = 1\nr2 = 0\ncall redirect"),
    helper("redirect_map", "r1 = {map}\nr2 = 0\nr3 = 2\ncall redirect_map"),
    // IPv4, in by the loopback, which forwards nothing: the way to there.
    helper(
        "fib_lookup",
        "*(u8 *)(r9 +0) = 2\n*(u32 *)(r9 +8) = 1\nr1 = r6\nr2 = r9\nr3 = 64\nr4 = 0\ncall fib_lookup",
    ),
    helper("map_update_elem", "r1 = {map}\nr2 = r10\nr2 += -16\nr3 = r9\nr4 = 0\ncall map_update_elem"),
    helper("map_delete_elem", "r1 = {map}\nr2 = r10\nr2 += -24\ncall map_delete_elem"),
    lookup(MapType::ARRAY),
    lookup(MapType::PERCPU_ARRAY),
    lookup(MapType::HASH),
    lookup(MapType::PERCPU_HASH),
    lookup(MapType::LRU_HASH),
    lookup(MapType::LRU_PERCPU_HASH),
    lookup(MapType::LPM_TRIE),
    lookup(MapType::ARRAY_OF_MAPS),
    lookup(MapType::HASH_OF_MAPS),
];
