//! Two-rate three-color meters (RFC 2698, color-blind and color-aware), in the value of an array or an entry.
//!
//! Rates are units per second, buckets hold units times 10^9, so that a nanosecond adds the rate. A meter
//! whose peak rate is 0 gives the color that it is given, or green.

use millstream_ir::{AluOp, Cond, Op, Size, Type, Value, Width};

use crate::emitter::{Address, Emitter};
use crate::lowerer::Lowerer;

/// Offsets of the fields of a meter, 64 bits each.
pub mod meter_layout {
    /// Committed rate, in units per second.
    pub const COMMITTED_RATE: u32 = 0;
    /// Committed burst, in units.
    pub const COMMITTED_BURST: u32 = 8;
    /// Peak rate, in units per second.
    pub const PEAK_RATE: u32 = 16;
    /// Peak burst, in units.
    pub const PEAK_BURST: u32 = 24;
    /// Tokens of the committed bucket, times 10^9.
    pub const COMMITTED_TOKENS: u32 = 32;
    /// Tokens of the peak bucket, times 10^9.
    pub const PEAK_TOKENS: u32 = 40;
    /// Time of the last packet, in nanoseconds.
    pub const LAST_TIME: u32 = 48;
    /// Units in a token bucket's unit.
    pub const TOKEN_SCALE: u64 = 1_000_000_000;
}

use meter_layout::*;

/// Bytes of a meter.
pub(crate) const METER_SIZE: u32 = 56;
/// `bpf_ktime_get_ns`
pub(crate) const TIME_HELPER: i32 = 5;

const GREEN: u64 = 0;
const YELLOW: u64 = 1;
const RED: u64 = 2;

/// Runs a meter on a number of units; gives the color, which is never better than one that is given.
pub(crate) fn run_meter(emitter: &mut Emitter, meter: Address, units: Value, given: Option<Value>) -> Value {
    let e = emitter;
    let now = e.helper(TIME_HELPER, &[]);
    let peak = e.load(meter.plus(PEAK_RATE), Size::Dw);
    let (works, behind) = (e.new_block(), e.new_block());
    let color = e.parameter(behind, Type::I64);
    let idle = e.new_block();
    e.branch_if(peak, works, idle);
    e.enter(idle);
    let green = e.constant(GREEN);
    e.jump_with(behind, &[given.unwrap_or(green)]);
    e.enter(works);
    let last = e.load(meter.plus(LAST_TIME), Size::Dw);
    let elapsed = e.alu(AluOp::Sub, now, last);
    e.store(meter.plus(LAST_TIME), Size::Dw, now);
    let cost = e.alu_with(AluOp::Mul, units, TOKEN_SCALE);
    let high = refilled(e, meter, elapsed, (PEAK_RATE, PEAK_BURST, PEAK_TOKENS));
    let low = refilled(e, meter, elapsed, (COMMITTED_RATE, COMMITTED_BURST, COMMITTED_TOKENS));
    let mut over_peak = e.compare(Cond::Lt, high, cost);
    let mut over_committed = e.compare(Cond::Lt, low, cost);
    if let Some(color) = given {
        let (is_red, is_yellow) =
            (e.compare_with(Cond::Eq, color, RED), e.compare_with(Cond::Eq, color, YELLOW));
        over_peak = e.either(over_peak, is_red);
        over_committed = e.either(over_committed, is_yellow);
    }
    let high_left = e.alu(AluOp::Sub, high, cost);
    let high_left = e.select(over_peak, high, high_left);
    let keeps = e.either(over_peak, over_committed);
    let low_left = e.alu(AluOp::Sub, low, cost);
    let low_left = e.select(keeps, low, low_left);
    e.store(meter.plus(PEAK_TOKENS), Size::Dw, high_left);
    e.store(meter.plus(COMMITTED_TOKENS), Size::Dw, low_left);
    let (yellow, red) = (e.constant(YELLOW), e.constant(RED));
    let green = e.constant(GREEN);
    let within = e.select(over_committed, yellow, green);
    let result = e.select(over_peak, red, within);
    e.jump_with(behind, &[result]);
    e.enter(behind);
    color
}

/// Tokens of a bucket after some nanoseconds.
fn refilled(
    emitter: &mut Emitter,
    meter: Address,
    elapsed: Value,
    (rate, burst, tokens): (u32, u32, u32),
) -> Value {
    let rate = emitter.load(meter.plus(rate), Size::Dw);
    let burst = emitter.load(meter.plus(burst), Size::Dw);
    let tokens = emitter.load(meter.plus(tokens), Size::Dw);
    let most = emitter.alu_with(AluOp::Mul, burst, TOKEN_SCALE);
    // The time is cut so that the product stays below 2^63; no bucket is that large.
    let limit = emitter.constant(1 << 63);
    let is_zero = emitter.compare_with(Cond::Eq, rate, 0);
    let one = emitter.constant(1);
    let divisor = emitter.select(is_zero, one, rate);
    let longest = emitter.value(Op::Alu { op: AluOp::Div, width: Width::W64 }, &[limit, divisor], Type::I64);
    let is_long = emitter.compare(Cond::Gt, elapsed, longest);
    let elapsed = emitter.select(is_long, longest, elapsed);
    let gained = emitter.alu(AluOp::Mul, elapsed, rate);
    let sum = emitter.alu(AluOp::Add, tokens, gained);
    let is_over = emitter.compare(Cond::Gt, sum, most);
    emitter.select(is_over, most, sum)
}

/// Units of the packet for a meter of bytes or packets.
pub(crate) fn metered_units(l: &mut Lowerer<'_>, counts_bytes: bool) -> Value {
    if counts_bytes { l.packet_bytes() } else { l.emitter.constant(1) }
}
