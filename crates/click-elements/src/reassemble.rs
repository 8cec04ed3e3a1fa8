//! `IPReassembler`: packets of their fragments. Source: RFC 791, 3.2; RFC 815.
//!
//! The data of fragments is copied into an entry of a table, in which a byte for each eight bytes of data says
//! whether these have come. The fragment that completes a packet becomes the packet; the others are dropped.
//! So no buffer waits, and the table has as many entries as the memory that it may use has room for.

use millstream_ir::{Prov, Size, Type, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::{HEADER, header, header_length, set_checksum};
use millstream_click::arguments::unsigned;
use millstream_click::build::{ElementBuilder, ElementHashTable};
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{key, refused};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::{ElementSetup, Error};

pub(super) const CLASSES: &[ElementClass] = &[ElementClass::check(
    "IPReassembler",
    "Makes packets of their fragments.",
    &[key("HIMEM"), refused("MAX_MTU_ANNO", "there is no annotation for the length of the longest fragment")],
    reassembler,
)];

/// Bytes of memory, unless said otherwise, and at most.
const USUAL_MEMORY: u64 = 256 << 10;
const MOST_MEMORY: u64 = 1 << 30;
/// Nanoseconds after which an incomplete packet is forgotten.
const FORGOTTEN: i64 = 30_000_000_000;
/// Bytes of data of a packet, at most; offsets of fragments count eights of these.
const MOST_DATA: i64 = 8192;
const UNIT: i64 = 8;
const UNITS: i64 = MOST_DATA / UNIT;
/// Bytes in front of the data of the first fragment, at most.
const MOST_HEAD: i64 = 128;

/// Source and destination; identification and protocol.
const KEY: [Size; 3] = [Size::W, Size::W, Size::W];
/// Time of the last fragment; length of the data, 0 until the last fragment has come; number of units that
/// have come; bytes in front of the data of the first fragment, and how many of them are in front of its
/// IP header; the largest end of a fragment.
const ENTRY: [Size; 6] = [Size::Dw; 6];
const TIME: i32 = 0;
const TOTAL: i32 = 8;
const CAME: i32 = 16;
const HEAD: i32 = 24;
const LINK: i32 = 32;
const END: i32 = 40;
/// Offsets of what is behind that: the units, the head, the data.
const MARKS: i64 = 48;
const HEAD_BYTES: i64 = MARKS + UNITS;
const DATA: i64 = HEAD_BYTES + MOST_HEAD;
const BEHIND: i64 = UNITS + MOST_HEAD + MOST_DATA;

struct IpReassembler {
    packets: ElementHashTable,
}

fn reassembler(setup: &mut ElementSetup<'_>) -> ElementResult {
    let memory =
        setup.arguments.keyword_or("HIMEM", USUAL_MEMORY, |text| unsigned(text, MOST_MEMORY))? as i64;
    if setup.outputs > 1 {
        let message = "packets that were never complete are forgotten when their memory is needed, and do not \
            leave by output 1";
        return Err(Error::new(setup.element.span, message));
    }
    let entries = (memory / (MARKS + BEHIND)).max(1) as u32;
    let packets = setup.evicting_table("packets", &KEY, &ENTRY, BEHIND as u32, entries);
    setup.require_single_worker("fragments that wait lie in its table");
    setup.require_clock();
    Ok(Box::new(IpReassembler { packets }))
}

/// A fragment.
#[derive(Clone, Copy)]
struct Fragment {
    packet: PacketValues,
    header: Value,
    /// Bytes of its header, and of its data.
    length: Value,
    bytes: Value,
    /// The place of its data, and of what is behind that.
    offset: Value,
    end: Value,
    /// Nonzero if there are fragments behind it.
    more: Value,
}

impl ElementCodegen for IpReassembler {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let word = code.half(header, 6);
        let is_fragment = code.with(AluOp::And, word, 0x3fff);
        code.check_int(Cond::Ne, is_fragment, 0, |code| code.out(0, packet));
        let fragment = fragment(code, packet, header, word);
        let (now, key) = (code.time(), key_of(code, header));
        let entry = self.entry(code, packet, &key, now);
        code.set_wide(entry, TIME, now);
        self.take(code, fragment, entry);
        self.complete(code, packet, &key, entry);
    }
}

/// The fragment in a packet, whose flags and offset are `word`; drops packets that are none.
fn fragment(code: &mut ElementBuilder<'_, '_>, packet: PacketValues, header: Value, word: Value) -> Fragment {
    let length = header_length(code, header);
    code.check_int(Cond::Ge, length, HEADER, |code| code.drop(packet, "bad_header_length"));
    let total = code.half(header, 2);
    code.check(Cond::Gt, total, length, |code| code.drop(packet, "bad_fragment"));
    let end = code.end(header, total);
    code.check(Cond::Le, end, packet.end, |code| code.drop(packet, "too_short"));
    let bytes = code.sub(total, length);
    let (more, units) = (code.with(AluOp::And, word, 0x2000), code.with(AluOp::And, word, 0x1fff));
    let offset = code.with(AluOp::Lsh, units, 3);
    let end = code.add(offset, bytes);
    code.check_int(Cond::Le, end, MOST_DATA, |code| code.drop(packet, "too_long"));
    // All fragments but the last have whole units.
    let rest = code.with(AluOp::And, bytes, UNIT - 1);
    let (zero, one) = (code.int(0), code.int(1));
    let is_part = code.compare(Cond::Ne, rest, zero);
    let is_part = code.select(is_part, more, zero);
    code.check(Cond::Lt, is_part, one, |code| code.drop(packet, "bad_fragment"));
    Fragment { packet, header, length, bytes, offset, end, more }
}

fn key_of(code: &mut ElementBuilder<'_, '_>, header: Value) -> [Value; 3] {
    let (id, protocol) = (code.half(header, 4), code.byte(header, 9));
    let id = code.with(AluOp::Lsh, id, 8);
    [code.word(header, 12), code.word(header, 16), code.alu(AluOp::Or, id, protocol)]
}

impl IpReassembler {
    /// The entry of a packet; an empty one if there is none, or if its last fragment came long ago.
    fn entry(
        &self,
        code: &mut ElementBuilder<'_, '_>,
        packet: PacketValues,
        key: &[Value],
        now: Value,
    ) -> Value {
        let (known, there, new) = (code.block(), code.block(), code.block());
        let ty = Type::Ptr(Prov::MapValue(self.packets.map));
        let (entry, old) = (code.param(known, ty), code.param(there, ty));
        let (found, zero) = (code.find(&self.packets, key), code.int(0));
        code.branch_with(Cond::Ne, found, zero, (there, &[found]), (new, &[]));
        code.switch_to_block(there);
        let time = code.wide(old, TIME);
        let (age, most) = (code.sub(now, time), code.int(FORGOTTEN));
        code.branch_with(Cond::Sle, age, most, (known, &[old]), (new, &[]));
        code.switch_to_block(new);
        let error = code.update_entry(&self.packets, key, &[now, zero, zero, zero, zero, zero]);
        code.check_int(Cond::Eq, error, 0, |code| code.drop(packet, "no_room_for_fragment"));
        let made = code.find(&self.packets, key);
        code.check_int(Cond::Ne, made, 0, |code| code.drop(packet, "no_room_for_fragment"));
        self.clear(code, made);
        code.jump(known, &[made]);
        code.switch_to_block(known);
        entry
    }

    /// Says of all units of an entry that they have not come.
    fn clear(&self, code: &mut ElementBuilder<'_, '_>, entry: Value) {
        let (head, body, done) = (code.block(), code.block(), code.block());
        let (at, zero) = (code.number_param(head), code.int(0));
        code.jump(head, &[zero]);
        code.switch_to_block(head);
        let most = code.int(UNITS);
        code.branch(Cond::Lt, at, most, body, done);
        code.switch_to_block(body);
        let marks = code.offset(entry, MARKS, self.packets.map);
        let place = code.offset_by(marks, at, self.packets.map);
        code.set_wide(place, 0, zero);
        let next = code.with(AluOp::Add, at, 8);
        code.jump(head, &[next]);
        code.switch_to_block(done);
    }

    /// Copies a fragment into an entry, with what is in front of its data if it is the first one.
    fn take(&self, code: &mut ElementBuilder<'_, '_>, fragment: Fragment, entry: Value) {
        let Fragment { packet, header, length, bytes, offset, end, more } = fragment;
        let map = self.packets.map;
        let zero = code.int(0);
        let (first, behind) = (code.block(), code.block());
        code.branch(Cond::Eq, offset, zero, first, behind);
        code.switch_to_block(first);
        let link = code.sub(header, packet.data);
        let head = code.add(link, length);
        code.check_int(Cond::Le, head, MOST_HEAD, |code| code.drop(packet, "too_long"));
        let to = code.offset(entry, HEAD_BYTES, map);
        code.copy_bytes(to, packet.data, head);
        code.set_wide(entry, HEAD, head);
        code.set_wide(entry, LINK, link);
        code.jump(behind, &[]);
        code.switch_to_block(behind);
        let (last, on) = (code.block(), code.block());
        code.branch(Cond::Eq, more, zero, last, on);
        code.switch_to_block(last);
        let total = code.wide(entry, TOTAL);
        let is_new = code.compare(Cond::Eq, total, zero);
        let total = code.select(is_new, end, total);
        code.check(Cond::Eq, total, end, |code| code.drop(packet, "bad_fragment"));
        code.set_wide(entry, TOTAL, end);
        code.jump(on, &[]);
        code.switch_to_block(on);
        let largest = code.wide(entry, END);
        let is_larger = code.compare(Cond::Gt, end, largest);
        let largest = code.select(is_larger, end, largest);
        code.set_wide(entry, END, largest);
        let data = code.offset(entry, DATA, map);
        let to = code.offset_by(data, offset, map);
        let from = code.plus(header, length);
        code.copy_bytes(to, from, bytes);
        self.mark(code, entry, offset, end);
    }

    /// Says of the units from one byte of data to another that they have come, and counts those that had not.
    fn mark(&self, code: &mut ElementBuilder<'_, '_>, entry: Value, from: Value, to: Value) {
        let first = code.with(AluOp::Rsh, from, 3);
        let end = code.with(AluOp::Add, to, UNIT - 1);
        let end = code.with(AluOp::Rsh, end, 3);
        let (head, body, done) = (code.block(), code.block(), code.block());
        let at = code.number_param(head);
        code.jump(head, &[first]);
        code.switch_to_block(head);
        code.branch(Cond::Lt, at, end, body, done);
        code.switch_to_block(body);
        let marks = code.offset(entry, MARKS, self.packets.map);
        let place = code.offset_by(marks, at, self.packets.map);
        let (was, came, one) = (code.byte(place, 0), code.wide(entry, CAME), code.int(1));
        code.set_byte(place, 0, one);
        let new = code.with(AluOp::Xor, was, 1);
        let came = code.add(came, new);
        code.set_wide(entry, CAME, came);
        let next = code.with(AluOp::Add, at, 1);
        code.jump(head, &[next]);
        code.switch_to_block(done);
    }

    /// Ends: with the whole packet if all of it has come, or else with the fragment dropped.
    fn complete(&self, code: &mut ElementBuilder<'_, '_>, packet: PacketValues, key: &[Value], entry: Value) {
        let (total, came) = (code.wide(entry, TOTAL), code.wide(entry, CAME));
        code.check_int(Cond::Ne, total, 0, |code| code.drop(packet, "waits_for_fragments"));
        let units = code.with(AluOp::Add, total, UNIT - 1);
        let units = code.with(AluOp::Rsh, units, 3);
        let largest = code.wide(entry, END);
        code.check(Cond::Le, largest, total, |code| code.drop(packet, "bad_fragment"));
        code.check(Cond::Eq, came, units, |code| code.drop(packet, "waits_for_fragments"));
        let (head, link) = (code.wide(entry, HEAD), code.wide(entry, LINK));
        let whole = code.add(head, total);
        let length = code.length(packet);
        let missing = code.sub(whole, length);
        let packet = code.lengthened(packet, missing);
        let from = code.offset(entry, HEAD_BYTES, self.packets.map);
        code.copy_bytes(packet.data, from, head);
        let from = code.offset(entry, DATA, self.packets.map);
        let to = code.plus(packet.data, head);
        code.copy_bytes(to, from, total);
        let header = code.plus(packet.data, link);
        let (zero, bytes) = (code.int(0), code.sub(whole, link));
        let length = code.sub(head, link);
        code.set_half(header, 2, bytes);
        code.set_half(header, 6, zero);
        set_checksum(code, header, length);
        code.delete_entry(&self.packets, key);
        code.out(0, packet.with(Annotation::Network, header));
    }
}
