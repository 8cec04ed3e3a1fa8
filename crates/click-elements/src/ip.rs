//! IP headers: marking them, and the changes that routers make to them. Checksums: RFC 1071, RFC 1624.

use millstream_ir::{Type, Value};
use millstream_isa::{AluOp, Cond};

use millstream_click::arguments::{boolean, ip, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, key, refused_but};
use millstream_click::packet::{Annotation, HOST, PacketValues};
use millstream_click::{ElementSetup, Error, SettingType, SettingValue};

/// Bytes of a header without options.
pub(super) const HEADER: i64 = 20;

/// Names of the one annotation that is an address of IPv4.
const DESTINATION: &[&str] = &["0", "DST_IP"];
const ONE_ADDRESS: &str = "the destination is the one annotation that is an address";

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::filter("Strip", "Takes bytes away in front.", &[at("LENGTH")], |setup| {
        Ok(Box::new(StripBytes(bytes(setup)?)))
    }),
    ElementClass::filter(
        "Unstrip",
        "Gives back bytes that were taken away in front.",
        &[at("LENGTH")],
        |setup| Ok(Box::new(UnstripBytes(bytes(setup)?))),
    ),
    // Flows are no stack of contexts here, which these would tell that the header is gone.
    ElementClass::filter("FlowStrip", "Takes bytes away in front.", &[at("LENGTH")], |setup| {
        Ok(Box::new(StripBytes(bytes(setup)?)))
    }),
    ElementClass::filter(
        "FlowUnstrip",
        "Gives back bytes that were taken away in front.",
        &[at("LENGTH")],
        |setup| Ok(Box::new(UnstripBytes(bytes(setup)?))),
    ),
    ElementClass::filter("StripIPHeader", "Takes the IP header away.", &[], |_| Ok(Box::new(StripHeader))),
    ElementClass::filter("MarkIPHeader", "Says where the IP header is.", &[at("OFFSET")], mark),
    ElementClass::filter(
        "GetIPAddress",
        "Takes the destination annotation from the packet.",
        &[at("OFFSET"), refused_but("ANNO", DESTINATION, ONE_ADDRESS).or_at(), key("IP")],
        get,
    ),
    ElementClass::filter(
        "SetIPAddress",
        "Sets the destination annotation.",
        &[at("IPADDR"), refused_but("ANNO", DESTINATION, ONE_ADDRESS)],
        set,
    ),
    ElementClass::filter("DropBroadcasts", "Drops packets that came to all or to a group.", &[], |_| {
        Ok(Box::new(DropBroadcasts))
    }),
    ElementClass::filter(
        "FixIPSrc",
        "Sets the source of packets that are to have it set.",
        &[at("IPADDR")],
        fix,
    ),
    ElementClass::filter("SetIPChecksum", "Sets the checksum of the IP header.", &[], |_| {
        Ok(Box::new(SetChecksum))
    }),
    ElementClass::check(
        "DecIPTTL",
        "Counts the time to live down.",
        &[key("ACTIVE"), key("MULTICAST")],
        decrement,
    ),
    ElementClass::check(
        "CheckLength",
        "Lets packets pass that are not too long.",
        &[at("LENGTH"), refused_but("EXTRA_LENGTH", &["false"], "packets have no extra length")],
        check_length,
    ),
];

fn bytes(setup: &mut ElementSetup<'_>) -> Result<i64, Error> {
    Ok(unsigned(&setup.arguments.need("LENGTH")?, 1500)? as i64)
}

/// The header, or the packet is dropped for having none; 20 bytes of it are there.
pub(super) fn header(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> Value {
    code.check_int(Cond::Ne, packet.note(Annotation::HasNetwork), 0, |code| {
        code.drop(packet, "no_ip_header")
    });
    let header = packet.note(Annotation::Network);
    code.need(packet, header, HEADER, "too_short");
    header
}

/// Bytes of a header, as it says.
pub(super) fn header_length(code: &mut ElementBuilder<'_, '_>, header: Value) -> Value {
    let first = code.byte(header, 0);
    let words = code.with(AluOp::And, first, 15);
    code.with(AluOp::Lsh, words, 2)
}

/// The sum of 16-bit words with end-around carry, of 32-bit words from `from` to `to`, which are a multiple
/// of four bytes apart, on top of `sum`; not complemented, in the order of memory.
pub(super) fn sum_words(code: &mut ElementBuilder<'_, '_>, from: Value, to: Value, sum: Value) -> Value {
    let head = code.block();
    let (at, total) = (code.param(head, Type::Ptr(millstream_ir::Prov::Packet)), code.param(head, Type::I64));
    code.jump(head, &[from, sum]);
    code.switch_to_block(head);
    let (body, done) = (code.block(), code.block());
    code.branch(Cond::Lt, at, to, body, done);
    code.switch_to_block(body);
    let word = code.raw(4, at, 0);
    let (next, total_next) = (code.at(at, 4), code.add(total, word));
    code.jump(head, &[next, total_next]);
    code.switch_to_block(done);
    total
}

/// A sum folded to 16 bits.
pub(super) fn fold(code: &mut ElementBuilder<'_, '_>, sum: Value) -> Value {
    let mut sum = sum;
    for (bits, mask) in [(32, 0xffff_ffff), (16, 0xffff), (16, 0xffff), (16, 0xffff)] {
        let (low, high) = (code.with(AluOp::And, sum, mask), code.with(AluOp::Rsh, sum, bits));
        sum = code.add(low, high);
    }
    sum
}

/// The folded sum of a header of `length` bytes, at least 20.
pub(super) fn header_sum(code: &mut ElementBuilder<'_, '_>, header: Value, length: Value) -> Value {
    let mut sum = code.raw(4, header, 0);
    for offset in [4, 8, 12, 16] {
        let word = code.raw(4, header, offset);
        sum = code.add(sum, word);
    }
    let options = code.int(HEADER);
    let sum = code.when(Cond::Gt, length, options, &[sum], |code| {
        let (from, to) = (code.at(header, HEADER), code.plus(header, length));
        vec![sum_words(code, from, to, sum)]
    });
    fold(code, sum[0])
}

/// Computes a header's checksum anew.
pub(super) fn set_checksum(code: &mut ElementBuilder<'_, '_>, header: Value, length: Value) {
    code.write(header, 10, &[0, 0]);
    let sum = header_sum(code, header, length);
    let sum = code.with(AluOp::Xor, sum, 0xffff);
    code.set_raw(2, header, 10, sum);
}

struct SetChecksum;

impl ElementCodegen for SetChecksum {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        checked_and_set(code, packet);
        code.out(0, packet);
    }
}

/// Drops packets without a whole header, and sets the checksum of the others' headers; gives the header.
pub(super) fn checked_and_set(code: &mut ElementBuilder<'_, '_>, packet: PacketValues) -> Value {
    let header = header(code, packet);
    let length = header_length(code, header);
    code.check_int(Cond::Ge, length, HEADER, |code| code.drop(packet, "bad_header_length"));
    let end = code.plus(header, length);
    code.check(Cond::Le, end, packet.end, |code| code.drop(packet, "too_short"));
    set_checksum(code, header, length);
    header
}

struct StripBytes(i64);

impl ElementCodegen for StripBytes {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        code.need(packet, packet.data, self.0, "too_short");
        packet.data = code.at(packet.data, self.0);
        code.out(0, packet);
    }
}

struct UnstripBytes(i64);

impl ElementCodegen for UnstripBytes {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        packet.data = code.push(packet, packet.data, self.0);
        code.out(0, packet);
    }
}

struct StripHeader;

impl ElementCodegen for StripHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        let header = header(code, packet);
        let length = header_length(code, header);
        let data = code.plus(header, length);
        code.check(Cond::Le, data, packet.end, |code| code.drop(packet, "too_short"));
        packet.data = data;
        code.out(0, packet);
    }
}

struct MarkIpHeader(i64);

impl ElementCodegen for MarkIpHeader {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (network, yes) = (code.at(packet.data, self.0), code.truth(true));
        code.out(0, packet.with(Annotation::Network, network).with(Annotation::HasNetwork, yes));
    }
}

fn mark(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(MarkIpHeader(setup.arguments.or("OFFSET", 0, |text| unsigned(text, 65_535))? as i64)))
}

/// Sets the destination annotation from the packet.
enum GetIpAddress {
    /// From this offset.
    Offset(i64),
    /// From this place in the IP header.
    Header(i32),
}

impl ElementCodegen for GetIpAddress {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let address = match *self {
            GetIpAddress::Offset(offset) => {
                code.need(packet, packet.data, offset + 4, "too_short");
                code.word(packet.data, offset as i32)
            }
            GetIpAddress::Header(offset) => {
                let header = header(code, packet);
                code.word(header, offset)
            }
        };
        code.out(0, packet.with(Annotation::Destination, address));
    }
}

fn get(setup: &mut ElementSetup<'_>) -> ElementResult {
    if let Some(text) = setup.arguments.keyword("IP") {
        return match text.text.as_str() {
            "src" => Ok(Box::new(GetIpAddress::Header(12))),
            "dst" => Ok(Box::new(GetIpAddress::Header(16))),
            _ => Err(Error::new(text.span, "expected src or dst")),
        };
    }
    Ok(Box::new(GetIpAddress::Offset(unsigned(&setup.arguments.need("OFFSET")?, 65_535)? as i64)))
}

struct SetAddress(SettingValue);

impl ElementCodegen for SetAddress {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let address = code.setting(self.0);
        code.out(0, packet.with(Annotation::Destination, address));
    }
}

fn set(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("IPADDR")?;
    let address = ip(&text, setup.arguments.names)?;
    Ok(Box::new(SetAddress(setup.setting("addr", SettingType::Address, i64::from(address)))))
}

struct DropBroadcasts;

impl ElementCodegen for DropBroadcasts {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.check_int(Cond::Eq, packet.note(Annotation::Cast), HOST, |code| code.drop(packet, "broadcast"));
        code.out(0, packet);
    }
}

/// Sets the source where the annotation says so.
struct FixIpSource(i64);

impl ElementCodegen for FixIpSource {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let (pass, zero) = (code.block(), code.int(0));
        let set = code.block();
        code.branch(Cond::Ne, packet.note(Annotation::FixSource), zero, set, pass);
        code.switch_to_block(set);
        let header = header(code, packet);
        let length = header_length(code, header);
        let beyond = code.plus(header, length);
        code.check(Cond::Le, beyond, packet.end, |code| code.drop(packet, "too_short"));
        let source = code.int(self.0);
        code.set_word(header, 12, source);
        set_checksum(code, header, length);
        code.jump(pass, &[]);
        code.switch_to_block(pass);
        let no = code.truth(false);
        code.out(0, packet.with(Annotation::FixSource, no));
    }
}

fn fix(setup: &mut ElementSetup<'_>) -> ElementResult {
    let text = setup.arguments.need("IPADDR")?;
    Ok(Box::new(FixIpSource(i64::from(ip(&text, setup.arguments.names)?))))
}

struct DecrementTtl {
    active: bool,
    multicast: bool,
}

impl ElementCodegen for DecrementTtl {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        if !self.active {
            return code.out(0, packet);
        }
        let header = header(code, packet);
        if !self.multicast {
            let first = code.byte(header, 16);
            let class = code.with(AluOp::And, first, 0xf0);
            code.check_int(Cond::Ne, class, 0xe0, |code| code.out(0, packet));
        }
        let ttl = code.byte(header, 8);
        code.check_int(Cond::Gt, ttl, 1, |code| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "ttl_expired") }
        });
        let less = code.with(AluOp::Sub, ttl, 1);
        code.set_byte(header, 8, less);
        // RFC 1624, equation 3: one less in the upper byte of its word.
        let sum = code.half(header, 10);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        let sum = code.with(AluOp::Add, sum, 0xfeff);
        let carry = code.with(AluOp::Rsh, sum, 16);
        let sum = code.add(sum, carry);
        let sum = code.with(AluOp::Xor, sum, 0xffff);
        code.set_half(header, 10, sum);
        code.out(0, packet);
    }
}

fn decrement(setup: &mut ElementSetup<'_>) -> ElementResult {
    let active = setup.arguments.keyword_or("ACTIVE", true, boolean)?;
    let multicast = setup.arguments.keyword_or("MULTICAST", true, boolean)?;
    Ok(Box::new(DecrementTtl { active, multicast }))
}

struct CheckLength(i64);

impl ElementCodegen for CheckLength {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let length = code.length(packet);
        code.check_int(Cond::Le, length, self.0, |code| {
            if code.connected(1) { code.out(1, packet) } else { code.drop(packet, "too_long") }
        });
        code.out(0, packet);
    }
}

fn check_length(setup: &mut ElementSetup<'_>) -> ElementResult {
    let length = unsigned(&setup.arguments.need("LENGTH")?, 1 << 20)? as i64;
    Ok(Box::new(CheckLength(length)))
}
