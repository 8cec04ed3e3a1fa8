//! IPv6 headers, addresses and routes. Source: RFC 8200, section 3.

use millstream_ir::{Map, Value};
use millstream_isa::{AluOp, Cond};

use super::ip::header;
use super::ip_check::versioned;
use super::lookup::{parts, routes};
use super::transport::bad;
use millstream_click::arguments::{ip6, prefix6, unsigned};
use millstream_click::build::ElementBuilder;
use millstream_click::class::{ElementClass, ElementCodegen, ElementResult};
use millstream_click::keyword::{at, refused_but};
use millstream_click::packet::{Annotation, PacketValues};
use millstream_click::tables::RouteEntry;
use millstream_click::{ElementSetup, Error, SpannedText, words};

/// Bytes of a header.
pub(super) const HEADER: i64 = 40;
/// Offsets of the source and the destination in a header.
pub(super) const SOURCE: i32 = 8;
pub(super) const DESTINATION: i32 = 24;
/// Offset of the hop limit.
const HOPS: i32 = 7;

pub(super) const CLASSES: &[ElementClass] = &[
    ElementClass::check(
        "CheckIP6Header",
        "Checks the IPv6 header.",
        &[
            at("BADADDRS"),
            at("OFFSET"),
            refused_but("PROCESS_EH", &["false"], "extension headers are not gone through"),
        ],
        check,
    ),
    ElementClass::filter(
        "GetIP6Address",
        "Takes the destination annotation from the packet.",
        &[at("OFFSET")],
        get,
    )
    .passing(),
    ElementClass::check("DecIP6HLIM", "Counts the hops that are left down.", &[], |_| {
        Ok(Box::new(DecrementHopLimit))
    }),
    ElementClass {
        ports: "1/-",
        processing: "h/h",
        ..ElementClass::filter(
            "LookupIP6Route",
            "Sends packets to the output of the longest prefix.",
            &[],
            lookup,
        )
    }
    .and(at("PREFIX [GATEWAY] OUTPUT")),
];

/// The words of an address.
pub(super) fn address_words(address: u128) -> [i64; 4] {
    [96, 64, 32, 0].map(|shift| (address >> shift) as i64 & 0xffff_ffff)
}

/// A number that is zero if four words are those of an address, under a mask.
pub(super) fn differs(
    code: &mut ElementBuilder<'_, '_>,
    words: [Value; 4],
    address: u128,
    mask: u128,
) -> Value {
    let mut sum = code.int(0);
    for ((word, wanted), mask) in words.into_iter().zip(address_words(address)).zip(address_words(mask)) {
        let masked = code.with(AluOp::And, word, mask);
        let other = code.with(AluOp::Xor, masked, wanted & mask);
        sum = code.alu(AluOp::Or, sum, other);
    }
    sum
}

struct CheckIp6Header {
    offset: i64,
    bad_sources: Vec<u128>,
    counter: u32,
}

fn check(setup: &mut ElementSetup<'_>) -> ElementResult {
    let names = setup.arguments.names;
    // All ones is no address of a host.
    let mut bad_sources = vec![u128::MAX];
    if let Some(text) = setup.arguments.next("BADADDRS") {
        for word in words(&text) {
            bad_sources.push(ip6(&word, names)?);
        }
    }
    let offset = setup.arguments.or("OFFSET", 0, |text| unsigned(text, 65_535))? as i64;
    Ok(Box::new(CheckIp6Header { offset, bad_sources, counter: setup.counter("count") }))
}

impl ElementCodegen for CheckIp6Header {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, mut packet: PacketValues) {
        let header = versioned(code, packet, self.offset, (HEADER, 6));
        let payload = code.half(header, 4);
        let length = code.with(AluOp::Add, payload, HEADER);
        let end = code.end(header, length);
        code.check(Cond::Le, end, packet.end, |code| bad(code, packet, "bad_length"));
        let source = code.words(header, SOURCE);
        for address in &self.bad_sources {
            let differs = differs(code, source, *address, u128::MAX);
            code.check_int(Cond::Ne, differs, 0, |code| bad(code, packet, "bad_source"));
        }
        packet.end = end;
        let (one, yes) = (code.int(1), code.truth(true));
        code.count(self.counter, one);
        code.out(0, packet.with(Annotation::Network, header).with(Annotation::HasNetwork, yes));
    }
}

/// Sets the destination from the packet, at an offset.
struct GetIp6Address(i64);

fn get(setup: &mut ElementSetup<'_>) -> ElementResult {
    Ok(Box::new(GetIp6Address(unsigned(&setup.arguments.need("OFFSET")?, 65_535)? as i64)))
}

impl ElementCodegen for GetIp6Address {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        code.need(packet, packet.data, self.0 + 16, "too_short");
        let words = code.words(packet.data, self.0 as i32);
        code.out(0, packet.bound_for(words));
    }
}

struct DecrementHopLimit;

impl ElementCodegen for DecrementHopLimit {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let header = header(code, packet);
        let hops = code.byte(header, HOPS);
        code.check_int(Cond::Gt, hops, 1, |code| bad(code, packet, "hops_expired"));
        let less = code.with(AluOp::Sub, hops, 1);
        code.set_byte(header, HOPS, less);
        code.out(0, packet);
    }
}

struct LookupIp6Route {
    routes: Map,
    outputs: u32,
}

fn lookup(setup: &mut ElementSetup<'_>) -> ElementResult {
    let routes = routes(setup, route, |route| (route.address, route.bits))?;
    if routes.is_empty() {
        return Err(Error::new(setup.element.span, "`LookupIP6Route` has no routes"));
    }
    Ok(Box::new(LookupIp6Route { routes: setup.routes6(&routes), outputs: setup.outputs }))
}

fn route(setup: &ElementSetup<'_>, argument: &SpannedText) -> Result<RouteEntry<u128>, Error> {
    let names = setup.arguments.names;
    let (to, gateway, output) = parts(setup, argument, "ADDRESS/BITS")?;
    let (address, bits) = prefix6(&to, names)?;
    let gateway = gateway.map_or(Ok(0), |text| ip6(&text, names))?;
    Ok(RouteEntry { address, bits, gateway, output })
}

impl ElementCodegen for LookupIp6Route {
    fn build(&self, code: &mut ElementBuilder<'_, '_>, _: u32, packet: PacketValues) {
        let destination = packet.destination6();
        let route = code.longest6(self.routes, destination);
        code.check_int(Cond::Ne, route, 0, |code| code.drop(packet, "no_route"));
        let gateway = [0, 4, 8, 12].map(|at| code.field(route, at));
        let output = code.field(route, 16);
        let (any, zero) = (differs(code, gateway, 0, u128::MAX), code.int(0));
        let has = code.compare(Cond::Ne, any, zero);
        let mut next = destination;
        for (word, gateway) in next.iter_mut().zip(gateway) {
            *word = code.select(has, gateway, *word);
        }
        let packet = packet.bound_for(next);
        for port in 1..self.outputs {
            code.check_int(Cond::Ne, output, i64::from(port), |code| code.out(port, packet));
        }
        code.out(0, packet);
    }
}
