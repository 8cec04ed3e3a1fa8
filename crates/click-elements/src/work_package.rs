//! Work in the place of a network function's: `WorkPackage`, as in PacketMill's figures 7 and 9.
//!
//! For each packet, random numbers, then reads of 4 bytes one after another, each at a place that the one
//! before decides: of the packet or of an array of so many megabytes. The result is kept in the element's
//! state, so that no pass may remove the work.

use millstream_ir::{Block, Size, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::ElementSetup;
use millstream_click::arguments::{boolean, megabytes, unsigned};
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{ArgumentSpec, at};
use millstream_click::packet::PacketValues;

const ARGUMENTS: &[ArgumentSpec] = &[at("S"), at("N"), at("R"), at("PAYLOAD"), at("W")];

pub(super) const CLASSES: &[ElementClass] =
    &[ElementClass::filter("WorkPackage", "Takes time and memory for each packet.", ARGUMENTS, work)
        .passing()];

/// Bytes of an entry of the array.
const ENTRY: u64 = 8;
/// Ethernet, IP and TCP: the bytes of a packet that are read, unless all are.
const HEADERS: i64 = 54;
/// Random numbers and reads at most.
const MOST: u64 = 1 << 20;
/// Shifts of a generator of full period (Marsaglia, 2003, "Xorshift RNGs", section 4).
const SHIFTS: [(AluOp, i64); 3] = [(AluOp::Lsh, 13), (AluOp::Rsh, 7), (AluOp::Lsh, 17)];

struct WorkPackage {
    array: Option<(ElementHashTable, u64)>,
    numbers: u64,
    reads: u64,
    /// Of the reads, in per cent, those of the packet.
    of_packet: u64,
    whole_packet: bool,
    kept: u32,
}

fn work(setup: &mut ElementSetup<'_>) -> ElementResult {
    let bytes = setup.arguments.or("S", 0, megabytes)?;
    let reads = setup.arguments.or("N", 0, |text| unsigned(text, MOST))?;
    let of_packet = setup.arguments.or("R", 0, |text| unsigned(text, 100))?;
    let whole_packet = setup.arguments.or("PAYLOAD", false, boolean)?;
    let numbers = setup.arguments.or("W", 0, |text| unsigned(text, MOST))?;
    let entries = bytes / ENTRY;
    let array =
        (entries > 0).then(|| (setup.array("work", &[Size::W], &[Size::Dw], entries as u32), entries));
    Ok(Box::new(WorkPackage { array, numbers, reads, of_packet, whole_packet, kept: setup.number() }))
}

impl ElementCodegen for WorkPackage {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let seed = code.random();
        // The generator stays at zero for ever.
        let seed = code.with(AluOp::Or, seed, 1);
        let random = repeat(code, self.numbers, seed, next);
        let found = repeat(code, self.reads, random, |code, random| {
            let word = self.read(code, packet, random);
            let random = next(code, random);
            code.alu(AluOp::Xor, random, word)
        });
        code.set(self.kept, found);
        code.out(0, packet);
    }
}

/// Repeats a computation so often, each time with the previous result.
fn repeat(
    code: &mut ElementBuilder<'_, '_>,
    times: u64,
    first: Value,
    once: impl FnOnce(&mut ElementBuilder<'_, '_>, Value) -> Value,
) -> Value {
    let (head, body, done) = (code.block(), code.block(), code.block());
    let (count, value) = (code.number_param(head), code.number_param(head));
    let (zero, end) = (code.int(0), code.int(times as i64));
    code.jump(head, &[zero, first]);
    code.switch_to_block(head);
    code.branch(Cond::Lt, count, end, body, done);
    code.switch_to_block(body);
    let came = once(code, value);
    let more = code.with(AluOp::Add, count, 1);
    code.jump(head, &[more, came]);
    code.switch_to_block(done);
    value
}

/// The next random number.
fn next(code: &mut ElementBuilder<'_, '_>, random: Value) -> Value {
    SHIFTS.into_iter().fold(random, |random, (op, by)| {
        let shifted = code.with(op, random, by);
        code.alu(AluOp::Xor, random, shifted)
    })
}

/// A number below `bound`, by the lower or the upper half of a random one.
fn below(code: &mut ElementBuilder<'_, '_>, random: Value, lower: bool, bound: Value) -> Value {
    let half =
        if lower { code.with(AluOp::And, random, 0xffff_ffff) } else { code.with(AluOp::Rsh, random, 32) };
    let product = code.alu(AluOp::Mul, half, bound);
    code.with(AluOp::Rsh, product, 32)
}

impl WorkPackage {
    /// A word of the packet or of the array; 0 if it does not exist.
    fn read(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, random: Value) -> Value {
        let read = code.block();
        let word = code.number_param(read);
        let (zero, hundred) = (code.int(0), code.int(100));
        let (of_packet, of_array) = (code.block(), code.block());
        let (percent, share) = (below(code, random, false, hundred), code.int(self.of_packet as i64));
        code.branch(Cond::Lt, percent, share, of_packet, of_array);
        code.switch_to_block(of_packet);
        self.of_packet(code, packet, random, read);
        code.switch_to_block(of_array);
        match &self.array {
            Some((table, entries)) => {
                let entries = code.int(*entries as i64);
                let index = below(code, random, true, entries);
                let entry = code.find(table, &[index]);
                code.check_int(Cond::Ne, entry, 0, |code| code.jump(read, &[zero]));
                let found = code.wide(entry, 0);
                code.jump(read, &[found]);
            }
            None => code.jump(read, &[zero]),
        }
        code.switch_to_block(read);
        word
    }

    /// Goes to `read` with a word of the packet.
    fn of_packet(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, random: Value, read: Block) {
        let zero = code.int(0);
        let bytes = if self.whole_packet { code.length(packet) } else { code.int(HEADERS) };
        let place = below(code, random, true, bytes);
        let from = code.plus(packet.data, place);
        let beyond = code.at(from, 4);
        code.check(Cond::Le, beyond, packet.end, |code| code.jump(read, &[zero]));
        let word = code.raw(4, from, 0);
        code.jump(read, &[word]);
    }
}
