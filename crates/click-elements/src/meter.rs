//! Elements that choose an output by how many packets or bytes have come lately.
//!
//! The rate is averaged over ticks of a millisecond: after each, the average moves a sixteenth of the way to
//! the count of that tick, so that after 11 ms half of the earlier average is left.

use millstream_ir::Value;
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{SECOND, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::PacketValues;
use millstream_click::token_rates::bandwidth;
use millstream_click::{ElementSetup, Error, HandlerAccess, StateRatio};

const fn metering(name: &'static str, make: fn(&mut ElementSetup<'_>) -> ElementResult) -> ElementClass {
    let about = "Sends packets to an output by how many came lately.";
    ElementClass { ports: "1/2-", processing: "h/h", ..ElementClass::filter(name, about, &[], make) }
        .and(at("RATE"))
}

pub(super) const CLASSES: &[ElementClass] =
    &[metering("Meter", |setup| meter(setup, false)), metering("BandwidthMeter", |setup| meter(setup, true))];

/// Nanoseconds of a tick, and ticks per second.
const TICK: i64 = (SECOND / TICKS) as i64;
const TICKS: u64 = 1000;
/// An average of one packet or byte a second.
const ONE: u64 = 64;
/// Bits behind the point of factors.
const FRACTION: i64 = 16;
/// A tick's share of the average, as bits to be shifted by.
const SHARE: i64 = 4;
/// Ticks after which nothing is left of an average, as a number of bits.
const FORGOTTEN: u32 = 9;
/// Packets or bytes per second, at most: so that no product of an average is too large.
const MOST_RATE: u64 = 1 << 34;

struct RateMeter {
    /// From which averages on packets leave by the next output.
    from: Vec<i64>,
    bytes: bool,
    average: u32,
    /// Packets or bytes in the current tick, and the number of that tick.
    came: u32,
    tick: u32,
}

fn meter(setup: &mut ElementSetup<'_>, bytes: bool) -> ElementResult {
    let mut from = Vec::new();
    for text in setup.arguments.rest() {
        let rate = if bytes { bandwidth(&text)? } else { unsigned(&text, MOST_RATE)? };
        if rate > MOST_RATE {
            return Err(Error::new(text.span, format!("a rate is {MOST_RATE} bytes per second at most")));
        }
        let average = (rate * ONE) as i64;
        if from.last().is_some_and(|last| *last >= average) {
            return Err(Error::new(text.span, "rates go up: each is the least of the next output"));
        }
        from.push(average);
    }
    if from.len() + 1 != setup.outputs as usize {
        let message =
            format!("{} rates and {} outputs: there is one more of these", from.len(), setup.outputs);
        return Err(Error::new(setup.element.span, message));
    }
    let [average, came, tick] = [setup.number(), setup.number(), setup.number()];
    setup.handler("rate", HandlerAccess::Ratio(StateRatio { of: average, by: None, divisor: ONE as u32 }));
    setup.require_clock();
    Ok(Box::new(RateMeter { from, bytes, average, came, tick }))
}

/// The average that is left after so many ticks without packets. Valid for `ticks` below two to the power of
/// [`FORGOTTEN`].
fn left_after(code: &mut ElementBuilder<'_, '_>, mut average: Value, ticks: Value) -> Value {
    let mut left = 1.0 - 1.0 / f64::from(1 << SHARE);
    for bit in 0..FORGOTTEN {
        let factor = code.int((left * f64::from(1 << FRACTION)) as i64);
        let product = code.alu(AluOp::Mul, average, factor);
        let less = code.with(AluOp::Rsh, product, FRACTION);
        let set = code.with(AluOp::And, ticks, 1 << bit);
        let zero = code.int(0);
        let is_set = code.compare(Cond::Ne, set, zero);
        average = code.select(is_set, less, average);
        left *= left;
    }
    average
}

impl ElementCodegen for RateMeter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let now = code.time();
        let now = code.with(AluOp::Div, now, TICK);
        let (tick, before, came) = (code.get(self.tick), code.get(self.average), code.get(self.came));
        let passed = code.sub(now, tick);
        let zero = code.int(0);
        let averages = code.when(Cond::Ne, passed, zero, &[before, came], |code| {
            let new = code.with(AluOp::Mul, came, (TICKS * ONE) as i64 >> SHARE);
            let share = code.with(AluOp::Rsh, before, SHARE);
            let rest = code.sub(before, share);
            let average = code.add(rest, new);
            // The tick that is over has its share by now; in those behind it nothing came.
            let idle = code.with(AluOp::Sub, passed, 1);
            let left = left_after(code, average, idle);
            let most = code.int(1 << FORGOTTEN);
            let some = code.compare(Cond::Lt, idle, most);
            let zero = code.int(0);
            vec![code.select(some, left, zero), zero]
        });
        let (average, came) = (averages[0], averages[1]);
        let more = if self.bytes { code.length(packet) } else { code.int(1) };
        let came = code.add(came, more);
        code.set(self.tick, now);
        code.set(self.average, average);
        code.set(self.came, came);
        for (port, from) in (0..).zip(&self.from) {
            code.check_int(Cond::Ge, average, *from, |code| code.out(port, packet));
        }
        code.out(self.from.len() as u32, packet);
    }
}
