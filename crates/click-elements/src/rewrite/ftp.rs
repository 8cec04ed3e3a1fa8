//! `FTPPortMapper`: a client behind a rewriter announces the address at which it waits for data. The mapper
//! replaces it by the address that the rewriter gives it, so that the server finds the client. Source: RFC
//! 959, 4.1.2; RFC 3022, 4.2.
//!
//! A segment that is `PORT h1,h2,h3,h4,p1,p2` and an end of line has address and port exchanged, and the flow
//! of the data is begun. Since the text may become longer or shorter, the bytes of the stream have other
//! sequence numbers from there on. The difference is recorded for the rewriter of the control connection,
//! through which every later segment of both directions comes ([`renumber`]).

use millstream_ir::{Prov, Size, Type, Value};
use millstream_isa::{AluOp, Cond};

use super::sack::renumber_sacks;
use super::{
    FlowTuple, InputSpec, IpRewriter, LOW, MappingEntry, RewriteContext, RewriterFlows, changes, exchanged,
    reversed,
};
use crate::ip::{fold, header, header_length, set_checksum};
use crate::transport::{TCP, pseudo_sum, sum_bytes};
use millstream_click::arguments::unsigned;
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::at;
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error, SpannedText};

pub(super) const CLASS: ElementClass = ElementClass {
    processing: "h/h",
    ..ElementClass::filter(
        "FTPPortMapper",
        "Changes the addresses that commands of FTP name.",
        &[at("CONTROL_REWRITER"), at("DATA_REWRITER"), at("DATA_REWRITER_INPUT")],
        mapper,
    )
};

/// Control connections with changed streams that are known at a time.
const STREAMS: u32 = 1 << 14;
/// A stream by its addresses and ports as they lie in memory; the byte from which on it is longer, by how
/// much, and by how much before.
const STREAM: [Size; 3] = [Size::Dw, Size::W, Size::W];
const DELTAS: [Size; 3] = [Size::Dw, Size::Dw, Size::Dw];
/// The port that data come from.
const DATA_PORT: u16 = 20;
/// `PORT`, and how long it is with its blank.
const COMMAND: i64 = 0x504f_5254;
const BEGIN: i64 = 5;
/// Numbers behind that, and by how much their text can grow.
const NUMBERS: i64 = 6;
const GROWTH: i64 = 2 * NUMBERS;
/// Numbers of bytes wrap here.
const ALL: i64 = 0xffff_ffff;
const HALF: i64 = 1 << 31;

struct FtpPortMapper {
    data: String,
    input: u32,
    deltas: ElementHashTable,
}

/// The rewriter that an argument names.
fn rewriter(setup: &ElementSetup<'_>, text: &SpannedText) -> Result<String, Error> {
    let classes = ["IPRewriter", "TCPRewriter", "UDPRewriter"];
    Ok(setup.needed(text, "rewriter of TCP", &classes)?.name.clone())
}

fn deltas(setup: &mut ElementSetup<'_>, control: &str) -> ElementHashTable {
    setup.shared_table(Some(control), "deltas", &STREAM, &DELTAS, 0, STREAMS)
}

fn mapper(setup: &mut ElementSetup<'_>) -> ElementResult {
    let control = setup.arguments.need("CONTROL_REWRITER")?;
    let control = rewriter(setup, &control)?;
    let data = setup.arguments.need("DATA_REWRITER")?;
    let data = rewriter(setup, &data)?;
    let input = unsigned(&setup.arguments.need("DATA_REWRITER_INPUT")?, u64::from(u8::MAX))? as u32;
    Ok(Box::new(FtpPortMapper { data, input, deltas: deltas(setup, &control) }))
}

/// Table of the growth of streams that come through a rewriter, if a mapper names it.
pub(super) fn deltas_of(setup: &mut ElementSetup<'_>) -> Option<ElementHashTable> {
    let own = setup.element.name.clone();
    let names_it = setup.elements().iter().filter(|e| e.class == CLASS.name).any(|mapper| {
        let control = mapper.arguments.first().and_then(|text| setup.named_by(mapper, &text.text));
        control.is_some_and(|control| control.name == own)
    });
    names_it.then(|| deltas(setup, &own))
}

/// The key of a stream.
fn stream(code: &mut ElementBuilder<'_, '_>, flow: FlowTuple) -> [Value; 3] {
    [flow.addresses, flow.ports, code.int(0)]
}

/// A number of a byte, how far it is behind another one: 0 and less count as before it.
fn behind(code: &mut ElementBuilder<'_, '_>, number: Value, other: Value) -> Value {
    let distance = code.sub(number, other);
    let distance = code.with(AluOp::And, distance, ALL);
    // Of half of all numbers it is said that they are behind.
    let less = code.with(AluOp::Sub, distance, 1);
    let half = code.int(HALF - 1);
    code.compare(Cond::Lt, less, half)
}

/// Growth of a stream: the byte from which on it is longer, by how much before that byte and behind it.
struct StreamGrowth {
    from: Value,
    before: Value,
    after: Value,
}

impl StreamGrowth {
    fn read(code: &mut ElementBuilder<'_, '_>, entry: Value) -> StreamGrowth {
        let [from, before, after] = [0, 8, 16].map(|offset| code.wide(entry, offset));
        StreamGrowth { from, before, after }
    }

    /// The new number of a byte that is sent.
    fn sent(&self, code: &mut ElementBuilder<'_, '_>, number: Value) -> Value {
        let is_behind = behind(code, number, self.from);
        let delta = code.select(is_behind, self.after, self.before);
        let new = code.add(number, delta);
        code.with(AluOp::And, new, ALL)
    }

    /// The number that a byte that is acknowledged was sent with.
    fn acknowledged(&self, code: &mut ElementBuilder<'_, '_>, number: Value) -> Value {
        let compared = code.sub(number, self.after);
        let is_behind = behind(code, compared, self.from);
        let delta = code.select(is_behind, self.after, self.before);
        let new = code.sub(number, delta);
        code.with(AluOp::And, new, ALL)
    }
}

/// Gives a segment that comes through the rewriter of a control connection the sequence numbers of the other
/// side: those of its own bytes if its stream was changed, those that it acknowledges if the other one was.
pub(super) fn renumber(
    code: &mut ElementBuilder<'_, '_>,
    passage: &RewriteContext,
    deltas: &ElementHashTable,
    flow: FlowTuple,
    to: FlowTuple,
) {
    let (segment, on) = (code.block(), code.block());
    let tcp = code.int(TCP);
    code.branch(Cond::Eq, passage.protocol, tcp, segment, on);
    code.switch_to_block(segment);
    let whole = code.at(passage.transport, 20);
    code.check(Cond::Le, whole, passage.packet.end, |code| code.jump(on, &[]));
    let back = reversed(code, to);
    for (flow, offset, own) in [(flow, 4, true), (back, 8, false)] {
        let next = code.block();
        let key = stream(code, flow);
        let entry = code.find(deltas, &key);
        code.check_int(Cond::Ne, entry, 0, |code| code.jump(next, &[]));
        let growth = StreamGrowth::read(code, entry);
        let number = code.word(passage.transport, offset);
        let new = match own {
            true => growth.sent(code, number),
            false => growth.acknowledged(code, number),
        };
        let (old, raw) = (code.raw(4, passage.transport, offset), code.swapped(32, new));
        let words = changes(code, old, raw, 2);
        let sum = code.raw(2, passage.transport, 16);
        let sum = exchanged(code, sum, &words);
        code.set_raw(2, passage.transport, 16, sum);
        code.set_word(passage.transport, offset, new);
        if !own {
            renumber_sacks(code, passage, &|code, number| growth.acknowledged(code, number));
        }
        code.jump(next, &[]);
        code.switch_to_block(next);
    }
    code.jump(on, &[]);
    code.switch_to_block(on);
}

/// Contents of a command.
struct PortCommand {
    /// Address and port, a byte a number.
    numbers: Value,
    /// Bytes of the end of the line, and the first of them.
    ending: Value,
    first: Value,
}

/// Reads the numbers of a command that ends the packet; all else leaves as it is.
fn command(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, from: Value) -> PortCommand {
    let pass = |code: &mut ElementBuilder<'_, '_>| code.out(0, packet);
    let (head, zero) = (code.block(), code.int(0));
    let at = code.param(head, Type::Ptr(Prov::Packet));
    let [numbers, current, digits, commas] = [0; 4].map(|_: i64| code.number_param(head));
    code.jump(head, &[from, zero, zero, zero, zero]);
    code.switch_to_block(head);
    let next = code.at(at, 1);
    code.check(Cond::Le, next, packet.end, pass);
    let byte = code.byte(at, 0);
    let digit = code.with(AluOp::Sub, byte, i64::from(b'0'));
    let (is_digit, other, ten) = (code.block(), code.block(), code.int(10));
    code.branch(Cond::Lt, digit, ten, is_digit, other);
    code.switch_to_block(is_digit);
    let larger = code.with(AluOp::Mul, current, 10);
    let larger = code.add(larger, digit);
    code.check_int(Cond::Le, larger, 255, pass);
    let more = code.with(AluOp::Add, digits, 1);
    code.check_int(Cond::Le, more, 3, pass);
    code.jump(head, &[next, numbers, larger, more, commas]);

    code.switch_to_block(other);
    code.check_int(Cond::Ne, digits, 0, pass);
    let shifted = code.with(AluOp::Lsh, numbers, 8);
    let all = code.alu(AluOp::Or, shifted, current);
    let (comma, end, separator) = (code.block(), code.block(), code.int(i64::from(b',')));
    code.branch(Cond::Eq, byte, separator, comma, end);
    code.switch_to_block(comma);
    code.check_int(Cond::Lt, commas, NUMBERS - 1, pass);
    let another = code.with(AluOp::Add, commas, 1);
    code.jump(head, &[next, all, zero, zero, another]);
    code.switch_to_block(end);
    code.check_int(Cond::Eq, commas, NUMBERS - 1, pass);
    let ending = code.sub(packet.end, at);
    // A line feed, or both bytes of the usual end.
    let (single, double, done) = (code.block(), code.block(), code.block());
    let feed = code.int(i64::from(b'\n'));
    code.branch(Cond::Eq, byte, feed, single, double);
    code.switch_to_block(single);
    code.check_int(Cond::Eq, ending, 1, pass);
    code.jump(done, &[]);
    code.switch_to_block(double);
    code.check_int(Cond::Eq, byte, i64::from(b'\r'), pass);
    code.check_int(Cond::Eq, ending, 2, pass);
    code.jump(done, &[]);
    code.switch_to_block(done);
    PortCommand { numbers: all, ending, first: byte }
}

/// Writes a byte's value in decimal, and gives the address behind it.
fn decimal(code: &mut ElementBuilder<'_, '_>, at: Value, number: Value) -> Value {
    let mut at = at;
    for power in [100, 10] {
        let least = code.int(power);
        at = code.when(Cond::Ge, number, least, &[at], |code| {
            let digit = code.with(AluOp::Div, number, power);
            let digit = code.with(AluOp::Mod, digit, 10);
            let digit = code.with(AluOp::Add, digit, i64::from(b'0'));
            code.set_byte(at, 0, digit);
            vec![code.at(at, 1)]
        })[0];
    }
    let digit = code.with(AluOp::Mod, number, 10);
    let digit = code.with(AluOp::Add, digit, i64::from(b'0'));
    code.set_byte(at, 0, digit);
    code.at(at, 1)
}

impl ElementCodegen for FtpPortMapper {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let rewriter = code.published_by::<IpRewriter>(&self.data);
        let spec = rewriter.as_ref().and_then(|rewriter| rewriter.inputs.get(self.input as usize).cloned());
        let (Some(rewriter), Some(InputSpec::Flow { pattern, outputs })) = (rewriter, spec) else {
            // Data that begin no flow there need no mapping.
            return code.out(0, packet);
        };
        let pass = |code: &mut ElementBuilder<'_, '_>| code.out(0, packet);
        let old = header(code, packet);
        let protocol = code.byte(old, 9);
        code.check_int(Cond::Eq, protocol, TCP, pass);
        let fragment = code.half(old, 6);
        let fragment = code.with(AluOp::And, fragment, 0x3fff);
        code.check_int(Cond::Eq, fragment, 0, pass);
        let (length, total) = (header_length(code, old), code.half(old, 2));
        code.check_int(Cond::Ge, length, 20, pass);
        let (transport, end) = (code.plus(old, length), code.end(old, total));
        code.check(Cond::Le, end, packet.end, pass);
        let whole = code.at(transport, 20);
        code.check(Cond::Le, whole, end, pass);
        let words = code.byte(transport, 12);
        let words = code.with(AluOp::Rsh, words, 4);
        let options = code.with(AluOp::Lsh, words, 2);
        code.check_int(Cond::Ge, options, 20, pass);
        let payload = code.plus(transport, options);
        let text = code.at(payload, BEGIN);
        code.check(Cond::Le, text, end, pass);
        let (word, blank) = (code.word(payload, 0), code.byte(payload, 4));
        code.check_int(Cond::Eq, word, COMMAND, pass);
        code.check_int(Cond::Eq, blank, i64::from(b' '), pass);
        let said = command(code, packet.bounded(packet.data, end), text);

        // A client may not begin a flow for another host (RFC 2577).
        let address = code.with(AluOp::Rsh, said.numbers, 16);
        let source = code.word(old, 12);
        code.check(Cond::Eq, address, source, pass);
        let to = self.data_flow(code, &rewriter, packet, old, &said, (pattern, outputs));
        let offsets = [length, code.sub(payload, old)];
        self.rewrite(code, packet.bounded(packet.data, end), offsets, &said, to);
    }
}

impl FtpPortMapper {
    /// The new form of the flow of the data, which begins unless it has begun already.
    fn data_flow(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        rewriter: &IpRewriter,
        packet: PacketValues,
        header: Value,
        said: &PortCommand,
        (pattern, outputs): (super::RewritePattern, [u32; 2]),
    ) -> FlowTuple {
        let addresses = code.raw(8, header, 12);
        let port = code.with(AluOp::And, said.numbers, 0xffff);
        let port = code.swapped(16, port);
        let ports = code.with(AluOp::Or, port, i64::from(DATA_PORT.swap_bytes()) << 16);
        let flow = FlowTuple { addresses, ports };
        let (now, tcp) = (code.time(), code.int(TCP));
        let (known, new, on, zero) = (code.block(), code.block(), code.block(), code.int(0));
        let to = FlowTuple { addresses: code.number_param(on), ports: code.number_param(on) };
        let key_protocol = rewriter.flows.key_protocol(code, tcp);
        let key = RewriterFlows::key(flow, key_protocol);
        let entry = code.find(&rewriter.flows.table, &key);
        code.branch(Cond::Ne, entry, zero, known, new);
        code.switch_to_block(known);
        code.set_wide(entry, 24, now);
        let found = MappingEntry::read(code, entry);
        code.jump(on, &[found.to.addresses, found.to.ports]);
        code.switch_to_block(new);
        let passage =
            RewriteContext { packet, header, transport: header, protocol: tcp, key_protocol, now, apply: on };
        let made = rewriter.install(code, &passage, flow, pattern, outputs);
        code.jump(on, &[made.to.addresses, made.to.ports]);
        code.switch_to_block(on);
        to
    }

    /// Writes the command anew, and ends.
    fn rewrite(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        [length, payload]: [Value; 2],
        said: &PortCommand,
        to: FlowTuple,
    ) {
        let before = code.length(packet);
        let begin = code.plus(packet.note(Annotation::Network), payload);
        let said_bytes = code.sub(packet.end, begin);
        let room = code.int(GROWTH);
        let longer = code.lengthened(packet, room);
        let header = longer.note(Annotation::Network);
        let (transport, text) = (code.plus(header, length), code.plus(header, payload));
        let address = code.with(AluOp::And, to.addresses, LOW);
        let address = code.swapped(32, address);
        let port = code.with(AluOp::And, to.ports, 0xffff);
        let port = code.swapped(16, port);
        let mut at = code.at(text, BEGIN);
        for (value, shift) in [(address, 24), (address, 16), (address, 8), (address, 0), (port, 8), (port, 0)]
        {
            let number = code.with(AluOp::Rsh, value, shift);
            let number = code.with(AluOp::And, number, 0xff);
            at = decimal(code, at, number);
            if (value, shift) != (port, 0) {
                code.write(at, 0, b",");
                at = code.at(at, 1);
            }
        }
        code.set_byte(at, 0, said.first);
        at = code.at(at, 1);
        let two = code.int(2);
        at = code.when(Cond::Eq, said.ending, two, &[at], |code| {
            code.write(at, 0, b"\n");
            vec![code.at(at, 1)]
        })[0];
        let bytes = code.sub(at, header);
        let packet = longer.bounded(longer.data, code.end(header, bytes));
        code.set_half(header, 2, bytes);
        set_checksum(code, header, length);
        let (segment, zero) = (code.sub(bytes, length), code.int(0));
        code.write(transport, 16, &[0, 0]);
        let sum = pseudo_sum(code, header, segment, TCP);
        let sum = sum_bytes(code, transport, segment, sum);
        let sum = fold(code, sum);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        code.set_raw(2, transport, 16, sum);

        let after = code.length(packet);
        let growth = code.sub(after, before);
        let flow = FlowTuple { addresses: code.raw(8, header, 12), ports: code.raw(4, transport, 0) };
        // The bytes of the command and those that replace them are not told apart: the last one of the command
        // is the first that counts.
        let (key, begin) = (stream(code, flow), code.word(transport, 4));
        let last = code.with(AluOp::Sub, said_bytes, 1);
        let number = code.add(begin, last);
        let number = code.with(AluOp::And, number, ALL);
        let (known, new, on) = (code.block(), code.block(), code.block());
        let entry = code.find(&self.deltas, &key);
        code.branch(Cond::Ne, entry, zero, known, new);
        code.switch_to_block(new);
        // If the table has no room, the stream breaks off at the next segment.
        code.update_entry(&self.deltas, &key, &[number, zero, growth]);
        code.jump(on, &[]);
        code.switch_to_block(known);
        let (from, delta) = (code.wide(entry, 0), code.wide(entry, 16));
        // A retransmission changes nothing.
        code.check(Cond::Ne, from, number, |code| code.jump(on, &[]));
        let sum = code.add(delta, growth);
        for (offset, value) in [(0, number), (8, delta), (16, sum)] {
            code.set_wide(entry, offset, value);
        }
        code.jump(on, &[]);
        code.switch_to_block(on);
        code.out(0, packet);
    }
}
