//! Sketches as code: `CountMinSketch`, `CountSketch`. [`FlowSketch`] describes them and reads them.
//!
//! Hashes are arithmetic, and rows are looked up in an array like any other, so that a sketch that no cache
//! holds is prefetched. Flows that may be among the largest are kept in a small table by hash, each until
//! another one's estimate is larger.

use millstream_ir::{Size, Value};
use millstream_isa::{AluOp, Cond};

use super::flows;
use millstream_click::arguments::{boolean, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at};
use millstream_click::packet::PacketValues;
use millstream_click::{
    ElementSetup, Error, FlowSketch, HandlerAccess, MIX, MOST_ROWS, SpannedText, multiplier,
};

const ARGUMENTS: &[ArgumentSpec] = &[at("EPSILON"), at("DELTA"), at("TOP"), at("BYTES")];

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter(
        "CountMinSketch",
        "Says about how many packets a flow had, never too few.",
        ARGUMENTS,
        |setup| sketch(setup, false),
    ),
    ElementClass::filter("CountSketch", "Says about how many packets a flow had.", ARGUMENTS, |setup| {
        sketch(setup, true)
    }),
];

/// Counters of a row, at least and at most.
const LEAST: f64 = 16.0;
const MOST: f64 = (1 << 26) as f64;
/// Flows that are shown, unless said otherwise, and at most.
const SHOWN: u64 = 64;
const MOST_SHOWN: u64 = 1 << 16;
/// Places for each of them, so that two of these rarely want the same.
const PLACES: u64 = 8;
/// A flow, and its estimate.
const CANDIDATE: [Size; 3] = [Size::Dw; 3];

struct SketchCounter {
    counters: ElementHashTable,
    candidates: ElementHashTable,
    /// Maximum number of candidates.
    places: u64,
    sketch: FlowSketch,
    bytes: bool,
    total: u32,
}

/// A number between 0 and 1, without these.
fn fraction(text: &SpannedText) -> Result<f64, Error> {
    let number = text.text.parse().ok().filter(|n: &f64| *n > 0.0 && *n < 1.0);
    number.ok_or_else(|| Error::new(text.span, format!("`{}` is not between 0 and 1", text.text)))
}

fn sketch(setup: &mut ElementSetup<'_>, signed: bool) -> ElementResult {
    let epsilon = setup.arguments.or("EPSILON", if signed { 0.01 } else { 0.0001 }, fraction)?;
    let delta = setup.arguments.or("DELTA", 0.01, fraction)?;
    let shown = setup.arguments.or("TOP", SHOWN, |text| unsigned(text, MOST_SHOWN))?;
    let bytes = setup.arguments.or("BYTES", false, boolean)?;
    let width = if signed { 3.0 / (epsilon * epsilon) } else { std::f64::consts::E / epsilon };
    // A median of an even number of rows would be two.
    let rows = (1.0 / delta).ln().ceil().max(1.0) as u32 | u32::from(signed);
    if width > MOST || rows > MOST_ROWS {
        let message = format!("a sketch has {MOST} counters in {MOST_ROWS} rows at most");
        let rule = format!("these need {width:.0} in {rows}: EPSILON or DELTA is too small");
        return Err(Error::new(setup.element.span, message).help(rule));
    }
    let bits = (width.max(LEAST) as u64).next_power_of_two().ilog2();
    let places = (PLACES * shown.max(1)).next_power_of_two();
    // Sketches that count otherwise have another name, so that no configuration takes over counters with
    // another meaning.
    let what = format!("{}{}", if signed { "signed " } else { "" }, if bytes { "bytes" } else { "packets" });
    let counters =
        setup.array(&format!("{what} {rows}x{}", 1u64 << bits), &[Size::W], &[Size::Dw], rows << bits);
    let candidates = setup.array(&format!("{what} top"), &[Size::W], &CANDIDATE, places as u32);
    let [counters_name, candidates_name] = [counters, candidates].map(|table| setup.map_name(&table));
    let total = setup.counter("count");
    let sketch = FlowSketch {
        counters: counters_name,
        candidates: candidates_name,
        rows,
        bits,
        signed,
        shown: shown as u32,
    };
    let arrays = vec![sketch.counters.clone(), sketch.candidates.clone()];
    setup.handler("estimate", HandlerAccess::Estimate(sketch.clone()));
    setup.handler("top", HandlerAccess::Largest(sketch.clone()));
    setup.handler("reset", HandlerAccess::Zero { words: vec![total], arrays });
    Ok(Box::new(SketchCounter { counters, candidates, places, sketch, bytes, total }))
}

impl ElementCodegen for SketchCounter {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let [addresses, ports, protocol] = flows::key(code, packet);
        let protocol = code.with(AluOp::Lsh, protocol, 32);
        let rest = code.alu(AluOp::Or, ports, protocol);
        let digest = digest(code, addresses, rest);
        let by = if self.bytes { code.length(packet) } else { code.int(1) };
        code.count(self.total, by);
        let counts = (0..self.sketch.rows).map(|row| self.add(code, digest, row, by)).collect();
        let estimate = if self.sketch.signed { median(code, counts) } else { smallest(code, counts) };
        self.keep(code, digest, [addresses, rest, estimate]);
        code.out(0, packet);
    }
}

/// As [`millstream_click::FlowKey::digest`].
fn digest(code: &mut ElementBuilder<'_, '_>, addresses: Value, rest: Value) -> Value {
    let folded = |code: &mut ElementBuilder<'_, '_>, value, shift| {
        let high = code.with(AluOp::Rsh, value, shift);
        code.alu(AluOp::Xor, value, high)
    };
    let first = code.with(AluOp::Mul, addresses, MIX[0] as i64);
    let first = folded(code, first, 32);
    let mut mixed = code.alu(AluOp::Xor, first, rest);
    for by in MIX {
        mixed = folded(code, mixed, 33);
        mixed = code.with(AluOp::Mul, mixed, by as i64);
    }
    folded(code, mixed, 33)
}

impl SketchCounter {
    /// Counts in a row; gives the row's estimate for the flow.
    fn add(&self, code: &mut ElementBuilder<'_, '_>, digest: Value, row: u32, by: Value) -> Value {
        let FlowSketch { bits, signed, .. } = self.sketch;
        let (bits, zero) = (i64::from(bits), code.int(0));
        let hash = code.with(AluOp::Mul, digest, multiplier(row) as i64);
        let place = code.with(AluOp::Rsh, hash, 64 - bits);
        let place = code.with(AluOp::Add, place, i64::from(row) << bits);
        let minus = signed.then(|| {
            let bit = code.with(AluOp::Rsh, hash, 63 - bits);
            let bit = code.with(AluOp::And, bit, 1);
            code.sub(zero, bit)
        });
        // A number or its negation, without a branch.
        let turned = |code: &mut ElementBuilder<'_, '_>, value| match minus {
            Some(minus) => {
                let other = code.alu(AluOp::Xor, value, minus);
                code.sub(other, minus)
            }
            None => value,
        };
        let by = turned(code, by);
        let entry = code.find(&self.counters, &[place]);
        let after = code.when(Cond::Ne, entry, zero, &[zero], |code| {
            let before = code.wide(entry, 0);
            let after = code.add(before, by);
            code.set_wide(entry, 0, after);
            vec![after]
        })[0];
        turned(code, after)
    }

    /// Keeps a flow, with its estimate, where no other has a larger one.
    fn keep(&self, code: &mut ElementBuilder<'_, '_>, digest: Value, candidate: [Value; 3]) {
        let [addresses, rest, estimate] = candidate;
        let (done, known, other, zero) = (code.block(), code.block(), code.block(), code.int(0));
        let place = code.with(AluOp::And, digest, self.places as i64 - 1);
        let entry = code.find(&self.candidates, &[place]);
        code.check_int(Cond::Ne, entry, 0, |code| code.jump(done, &[]));
        let differs = [(addresses, 0), (rest, 8)].map(|(word, at)| {
            let there = code.wide(entry, at);
            code.alu(AluOp::Xor, there, word)
        });
        let differs = code.alu(AluOp::Or, differs[0], differs[1]);
        code.branch(Cond::Eq, differs, zero, known, other);
        code.switch_to_block(other);
        let before = code.wide(entry, 16);
        code.check(Cond::Sgt, estimate, before, |code| code.jump(done, &[]));
        code.set_wide(entry, 0, addresses);
        code.set_wide(entry, 8, rest);
        code.jump(known, &[]);
        code.switch_to_block(known);
        code.set_wide(entry, 16, estimate);
        code.jump(done, &[]);
        code.switch_to_block(done);
    }
}

fn smallest(code: &mut ElementBuilder<'_, '_>, counts: Vec<Value>) -> Value {
    let first = counts[0];
    counts.into_iter().skip(1).fold(first, |least, count| {
        let less = code.compare(Cond::Slt, count, least);
        code.select(less, count, least)
    })
}

/// The middle of an odd number of values: by transposition sort, which needs no branch.
fn median(code: &mut ElementBuilder<'_, '_>, mut counts: Vec<Value>) -> Value {
    for round in 0..counts.len() {
        for at in (round % 2..counts.len() - 1).step_by(2) {
            let [a, b] = [counts[at], counts[at + 1]];
            let less = code.compare(Cond::Slt, b, a);
            counts[at] = code.select(less, b, a);
            counts[at + 1] = code.select(less, a, b);
        }
    }
    counts[counts.len() / 2]
}
