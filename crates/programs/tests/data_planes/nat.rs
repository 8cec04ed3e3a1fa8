//! The NAT in the kernel against RFC 3022, 4787, 5382 and 5508.
//!
//! Test runs come in at one interface, which is inside for packets that go out and made outside for the
//! answers.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::rig::{INGRESS, Rig, Verdict};
use millstream_programs::NAT;
use millstream_programs::nat::{
    CONNECTIONS, EVENTS, FlowDirection, NatConfig, NatEvent, NatFlow, NatSide, NatTranslation, PORTS,
    ProtocolMix, generate, idle, traffic,
};
use millstream_programs::packet::{EthernetFrame, FiveTuple, ICMP, TCP, TransportHeader, UDP, checksum};
use millstream_programs::traffic::FlowLocality;

const OUTSIDE: u32 = 2;
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const OURS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
/// The next router outside, and we towards it, as the generator has them.
const GATEWAY: [[u8; 6]; 2] = [[2, 2, 0, 0, 0, 2], [2, 1, 0, 0, 0, 2]];

fn config() -> NatConfig {
    generate(INGRESS, OUTSIDE, 1, 7)
}

fn rig() -> Option<Rig> {
    Rig::new(&NAT, &config().entries().unwrap())
}

fn side(rig: &Rig, side: NatSide) {
    rig.map(PORTS).update(&INGRESS.to_ne_bytes(), &(side as u32).to_ne_bytes(), Default::default()).unwrap();
}

fn udp(src: u16, dst: u16) -> TransportHeader {
    TransportHeader::Udp { src, dst }
}

fn tcp(src: u16, dst: u16, flags: u8) -> TransportHeader {
    TransportHeader::Tcp { src, dst, flags }
}

fn echo(id: u16, reply: bool) -> TransportHeader {
    TransportHeader::Echo { reply, id }
}

/// From the host inside.
fn out(transport: TransportHeader) -> EthernetFrame {
    EthernetFrame {
        dst_mac: [2, 1, 0, 0, 0, 1],
        src_mac: [2, 2, 0, 0, 0, 1],
        src: HOST,
        dst: PEER,
        transport,
        ..EthernetFrame::default()
    }
}

/// From the peer outside to us.
fn back(transport: TransportHeader) -> EthernetFrame {
    EthernetFrame {
        dst_mac: GATEWAY[1],
        src_mac: GATEWAY[0],
        src: PEER,
        dst: OURS,
        transport,
        ..EthernetFrame::default()
    }
}

/// The frame that leaves for the gateway instead of `frame`, with this transport.
fn sent(frame: &EthernetFrame, transport: TransportHeader) -> Vec<u8> {
    let [dst_mac, src_mac] = GATEWAY;
    EthernetFrame { dst_mac, src_mac, src: OURS, ttl: frame.ttl - 1, transport, ..frame.clone() }.to_bytes()
}

/// The frame that reaches the host inside instead of `frame`.
fn delivered(frame: &EthernetFrame, transport: TransportHeader) -> Vec<u8> {
    let EthernetFrame { dst_mac, src_mac, .. } = out(transport.clone());
    let (dst_mac, src_mac) = (src_mac, dst_mac);
    EthernetFrame { dst_mac, src_mac, dst: HOST, ttl: frame.ttl - 1, transport, ..frame.clone() }.to_bytes()
}

fn u16_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn left_alone(rig: &Rig, frame: &[u8], verdict: Verdict, event: NatEvent) {
    let before = rig.sum(EVENTS, event as u32, 0);
    assert_eq!(rig.run(frame), (verdict, frame.to_vec()), "{event:?}");
    assert_eq!(rig.sum(EVENTS, event as u32, 0), before + 1, "{event:?} is not counted");
}

fn table(rig: &Rig) -> HashMap<NatFlow, NatTranslation> {
    let entries = rig.map(CONNECTIONS).entries().unwrap();
    entries.iter().map(|(k, v)| (NatFlow::decode(k).unwrap(), NatTranslation::decode(v).unwrap())).collect()
}

#[test]
fn a_connection_goes_out_and_comes_back() {
    for protocol in [TCP, UDP, ICMP] {
        let Some(rig) = rig() else { return };
        let (first, at) = match protocol {
            TCP => (out(tcp(5000, 443, 2)), 34),
            UDP => (out(udp(5000, 53)), 34),
            _ => (out(echo(5000, false)), 38),
        };
        let (verdict, frame) = rig.run(&first.to_bytes());
        assert_eq!(verdict, Verdict::Redirect);
        let port = u16_at(&frame, at);
        assert!(port >= 1024, "{port} is outside the range");
        let (there, answer, here) = match protocol {
            TCP => (tcp(port, 443, 2), tcp(443, port, 0x12), tcp(443, 5000, 0x12)),
            UDP => (udp(port, 53), udp(53, port), udp(53, 5000)),
            _ => (echo(port, false), echo(port, true), echo(5000, true)),
        };
        assert_eq!(frame, sent(&first, there.clone()), "protocol {protocol}: checksums and all");
        assert_eq!(rig.run(&first.to_bytes()).1, sent(&first, there), "the second packet gets the same port");
        assert_eq!(rig.sum(EVENTS, NatEvent::Created as u32, 0), 1);
        assert_eq!(table(&rig).len(), 2);
        side(&rig, NatSide::Outside);
        let answer = back(answer);
        assert_eq!(
            rig.run(&answer.to_bytes()),
            (Verdict::Tx, delivered(&answer, here)),
            "protocol {protocol}"
        );
    }
}

#[test]
fn flows_from_one_host_get_ports_of_their_own_and_paired_addresses() {
    let mut config = generate(INGRESS, OUTSIDE, 4, 7);
    config.secret = 99;
    let Some(rig) = Rig::new(&NAT, &config.entries().unwrap()) else { return };
    let mut seen = HashMap::new();
    for n in 0..500u16 {
        let (_, frame) = rig.run(&out(udp(2000 + n, 53)).to_bytes());
        let (address, port) = (frame[26..30].to_vec(), u16_at(&frame, 34));
        assert_eq!(seen.insert((address.clone(), port), n), None, "{address:?}:{port} is given twice");
    }
    let addresses: Vec<_> = seen.keys().map(|(address, _)| address.clone()).collect();
    assert!(
        addresses.iter().all(|a| *a == addresses[0]),
        "RFC 4787, REQ-2: one external address for one host"
    );
}

#[test]
fn checksums_are_right_for_all_ports_and_a_udp_checksum_may_be_missing() {
    let Some(rig) = rig() else { return };
    for n in (1..=u16::MAX).step_by(61) {
        for transport in [udp(n, 53), tcp(n, 443, 2)] {
            let frame = out(transport.clone());
            let (_, bytes) = rig.run(&frame.to_bytes());
            let port = u16_at(&bytes, 34);
            let there = if transport.protocol() == UDP { udp(port, 53) } else { tcp(port, 443, 2) };
            assert_eq!(bytes, sent(&frame, there));
        }
    }
    let mut bytes = out(udp(7, 9)).to_bytes();
    bytes[40..42].fill(0);
    assert_eq!(u16_at(&rig.run(&bytes).1, 40), 0, "no checksum is no checksum afterwards");
}

#[test]
fn what_is_not_translated_goes_to_the_stack() {
    let Some(rig) = rig() else { return };
    let base = out(udp(1, 2));
    let pass = |frame: EthernetFrame, event| left_alone(&rig, &frame.to_bytes(), Verdict::Pass, event);
    pass(EthernetFrame { dst: Ipv4Addr::new(10, 9, 9, 9), ..base.clone() }, NatEvent::NoRule);
    pass(EthernetFrame { dst: OURS, ..base.clone() }, NatEvent::NoRule);
    pass(EthernetFrame { src: Ipv4Addr::new(192, 0, 2, 1), ..base.clone() }, NatEvent::NoRule);
    pass(EthernetFrame { ttl: 1, ..base.clone() }, NatEvent::Ttl);
    pass(EthernetFrame { options: vec![1; 4], ..base.clone() }, NatEvent::Options);
    pass(EthernetFrame { vlan: Some(1), ..base.clone() }, NatEvent::NotIpv4);
    pass(EthernetFrame { dst: Ipv4Addr::new(224, 0, 0, 1), ..base.clone() }, NatEvent::NotUnicast);
    pass(out(TransportHeader::Raw { protocol: 50, bytes: vec![0; 30] }), NatEvent::Protocol);
    pass(out(echo(1, true)), NatEvent::Protocol);
    side(&rig, NatSide::Outside);
    pass(back(udp(53, 4000)), NatEvent::NoConnection);
    pass(back(echo(4000, true)), NatEvent::NoConnection);
    pass(back(echo(4000, false)), NatEvent::Protocol);
    assert!(table(&rig).is_empty());
}

#[test]
fn malformed_packets_are_dropped() {
    let Some(rig) = rig() else { return };
    let good = out(udp(1, 2)).to_bytes();
    let mut bad = good.clone();
    bad[24] ^= 1;
    left_alone(&rig, &bad, Verdict::Drop, NatEvent::BadChecksum);
    let short = EthernetFrame {
        length: 38,
        transport: TransportHeader::Raw { protocol: UDP, bytes: vec![0; 4] },
        ..out(udp(1, 2))
    };
    left_alone(&rig, &short.to_bytes(), Verdict::Drop, NatEvent::BadLength);
    let short = EthernetFrame {
        transport: TransportHeader::Raw { protocol: TCP, bytes: vec![0; 16] },
        ..out(udp(1, 2))
    };
    left_alone(&rig, &short.to_bytes(), Verdict::Drop, NatEvent::BadLength);
    let martian = EthernetFrame { src: Ipv4Addr::LOCALHOST, ..out(udp(1, 2)) };
    left_alone(&rig, &martian.to_bytes(), Verdict::Drop, NatEvent::Martian);
}

#[test]
fn the_answer_of_another_peer_does_not_get_in() {
    let Some(rig) = rig() else { return };
    let (_, frame) = rig.run(&out(udp(5000, 53)).to_bytes());
    side(&rig, NatSide::Outside);
    let answer = EthernetFrame { src: Ipv4Addr::new(198, 51, 100, 8), ..back(udp(53, u16_at(&frame, 34))) };
    left_alone(&rig, &answer.to_bytes(), Verdict::Pass, NatEvent::NoConnection);
}

#[test]
fn fragments_follow_their_first() {
    let Some(rig) = rig() else { return };
    let later = |id| {
        let transport = TransportHeader::Raw { protocol: UDP, bytes: vec![0xee; 24] };
        EthernetFrame { id, fragment: 3, ..out(transport) }
    };
    left_alone(&rig, &later(9).to_bytes(), Verdict::Drop, NatEvent::OrphanFragment);
    let first = EthernetFrame { id: 9, fragment: 0x2000, ..out(udp(5000, 53)) };
    let (verdict, bytes) = rig.run(&first.to_bytes());
    assert_eq!((verdict, bytes.clone()), (Verdict::Redirect, sent(&first, udp(u16_at(&bytes, 34), 53))));
    let frame = later(9);
    assert_eq!(rig.run(&frame.to_bytes()), (Verdict::Redirect, sent(&frame, frame.transport.clone())));
    left_alone(&rig, &later(10).to_bytes(), Verdict::Drop, NatEvent::OrphanFragment);
}

/// An ICMP error of type 3 with a quoted packet.
fn error(from: &EthernetFrame, quoted: &[u8]) -> EthernetFrame {
    let mut bytes = vec![3, 3, 0, 0, 0, 0, 0, 0];
    bytes.extend(quoted);
    let sum = checksum(&bytes, 0);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    EthernetFrame { transport: TransportHeader::Raw { protocol: ICMP, bytes }, ..from.clone() }
}

/// An error about a packet of each protocol, with as much of it quoted, inbound: the host gets a quote of its
/// own packet.
#[test]
fn errors_from_outside_quote_what_the_host_had_sent() {
    for (transport, at) in [(udp(5000, 53), 34), (tcp(5000, 443, 2), 34), (echo(5000, false), 38)] {
        for quote in [28, 50] {
            let Some(rig) = rig() else { return };
            let original = out(transport.clone());
            let (_, on_the_wire) = rig.run(&original.to_bytes());
            side(&rig, NatSide::Outside);
            let router = EthernetFrame { src: Ipv4Addr::new(192, 0, 2, 99), ..back(udp(0, 0)) };
            let came = error(&router, &on_the_wire[14..14 + quote]);
            let (verdict, bytes) = rig.run(&came.to_bytes());
            assert_eq!(verdict, Verdict::Tx, "{transport:?}");
            // One hop had been taken from the quoted packet, which the quote keeps.
            let mut seen = EthernetFrame { ttl: original.ttl - 1, ..original.clone() }.to_bytes();
            let sum_at = if transport.protocol() == TCP { 50 } else { 0 };
            if sum_at + 2 > 14 + quote {
                seen.truncate(14 + quote);
            }
            let expected = error(&EthernetFrame { ..router.clone() }, &seen[14..14 + quote]);
            assert_eq!(
                bytes,
                delivered(&expected, expected.transport.clone()),
                "{transport:?}, {at}, {quote} bytes"
            );
            assert_eq!(rig.sum(EVENTS, NatEvent::IcmpError as u32, 0), 1);
        }
    }
}

#[test]
fn errors_from_inside_quote_what_came_from_outside() {
    for (transport, answer) in [
        (udp(5000, 53), (|port| udp(53, port)) as fn(u16) -> TransportHeader),
        (tcp(5000, 443, 2), |port| tcp(443, port, 0x12)),
    ] {
        let Some(rig) = rig() else { return };
        let (_, bytes) = rig.run(&out(transport).to_bytes());
        let answer = back(answer(u16_at(&bytes, 34)));
        side(&rig, NatSide::Outside);
        let (_, inside) = rig.run(&answer.to_bytes());
        side(&rig, NatSide::Inside);
        // A router inside, not the host, says that the host is not there.
        let router = EthernetFrame { src: Ipv4Addr::new(10, 0, 0, 1), ..out(udp(0, 0)) };
        let came = error(&router, &inside[14..64]);
        let quoted = EthernetFrame { ttl: answer.ttl - 1, ..answer.clone() }.to_bytes();
        let expected = error(&router, &quoted[14..64]);
        let outcome = rig.run(&came.to_bytes());
        assert_eq!(outcome, (Verdict::Redirect, sent(&expected, expected.transport.clone())), "{answer:?}");
    }
}

#[test]
fn errors_about_nothing_known_are_the_stacks() {
    let Some(rig) = rig() else { return };
    side(&rig, NatSide::Outside);
    let quoted = EthernetFrame { src: OURS, dst: PEER, ..EthernetFrame::default() }.to_bytes();
    let base = back(udp(0, 0));
    left_alone(&rig, &error(&base, &quoted[14..50]).to_bytes(), Verdict::Pass, NatEvent::NoConnection);
    left_alone(&rig, &error(&base, &quoted[14..40]).to_bytes(), Verdict::Pass, NatEvent::Protocol);
}

#[test]
fn ports_run_out_and_idle_connections_make_way() {
    let mut config = config();
    config.externals[0].port_max = config.externals[0].port_min + 7;
    let Some(rig) = Rig::new(&NAT, &config.entries().unwrap()) else { return };
    for n in 0..8 {
        assert_eq!(rig.run(&out(udp(3000 + n, 53)).to_bytes()).0, Verdict::Redirect);
    }
    left_alone(&rig, &out(udp(4000, 53)).to_bytes(), Verdict::Drop, NatEvent::NoFreePort);
    let elsewhere = EthernetFrame { dst: Ipv4Addr::new(198, 51, 100, 8), ..out(udp(4000, 53)) };
    assert_eq!(rig.run(&elsewhere.to_bytes()).0, Verdict::Redirect, "a port may serve another peer");
    let rest = table(&rig);
    // One connection has been idle since the machine started, as far as the table knows.
    for (flow, connection) in rest.iter().filter(|(f, c)| f.tuple.src_port == 3003 || c.port == 3003) {
        let mut old = *connection;
        old.seen = 0;
        rig.map(CONNECTIONS).update(&flow.encode(), &old.encode(), Default::default()).unwrap();
    }
    config.timeouts.udp = 1_000_000;
    let settings = config.entries().unwrap().remove(0);
    let strict = NatConfig {
        timeouts: millstream_programs::nat::ConnectionTimeouts { udp: 60_000_000_000, ..config.timeouts },
        ..config
    };
    rig.apply(&[settings]);
    rig.apply(&strict.entries().unwrap()[..1]);
    assert_eq!(rig.run(&out(udp(4000, 53)).to_bytes()).0, Verdict::Redirect, "its port is free again");
    assert_eq!(rig.sum(EVENTS, NatEvent::Reclaimed as u32, 0), 1);
    let gone = NatFlow {
        tuple: FiveTuple { src: HOST, dst: PEER, src_port: 3003, dst_port: 53, protocol: UDP },
        direction: FlowDirection::Outbound,
    };
    assert!(!table(&rig).contains_key(&gone));
    assert_eq!(table(&rig).len(), rest.len(), "one came, one went");
}

#[test]
fn tcp_flags_are_kept_for_the_time_limits() {
    let Some(rig) = rig() else { return };
    let (_, frame) = rig.run(&out(tcp(5000, 443, 2)).to_bytes());
    let port = u16_at(&frame, 34);
    let now = table(&rig).values().map(|c| c.seen).max().unwrap();
    let limits = config().timeouts;
    let idle_after = |wait| idle(&table(&rig), &limits, now + wait).len();
    assert_eq!(idle_after(limits.tcp_transitory + 1), 2, "half open");
    let exchange = |flags_in, flags_out| {
        side(&rig, NatSide::Outside);
        rig.run(&back(tcp(443, port, flags_in)).to_bytes());
        side(&rig, NatSide::Inside);
        rig.run(&out(tcp(5000, 443, flags_out)).to_bytes());
    };
    exchange(0x12, 0x10);
    assert_eq!(idle_after(limits.tcp_transitory + 1), 0, "established");
    exchange(0x11, 0x11);
    assert_eq!(idle_after(limits.tcp_transitory + 1), 2, "closed");
    rig.run(&out(tcp(5000, 443, 2)).to_bytes());
    side(&rig, NatSide::Outside);
    rig.run(&back(tcp(443, port, 0x12)).to_bytes());
    side(&rig, NatSide::Inside);
    rig.run(&out(tcp(5000, 443, 0x10)).to_bytes());
    assert_eq!(idle_after(limits.tcp_transitory + 1), 0, "a new connection on the old port");
}

/// Connections from the control tool: the data plane takes them as its own, both ways.
#[test]
fn a_restored_table_is_used_as_it_is() {
    let config = config();
    let traffic = traffic(&config, 20_000, ProtocolMix::default(), FlowLocality::NONE, 3);
    let Some(rig) = rig() else { return };
    let now = 1;
    rig.apply(&traffic.entries(now));
    for direction in [FlowDirection::Outbound, FlowDirection::Inbound] {
        for (n, mapping) in traffic.mappings.iter().enumerate().step_by(97) {
            let (frame, at) = match direction {
                FlowDirection::Outbound => (&traffic.outbound.packets[n], 26),
                FlowDirection::Inbound => (&traffic.inbound.packets[n], 30),
            };
            let (_, out) = rig.run(frame);
            let [(_, outbound), (_, inbound)] = mapping.directions(now);
            let to = if direction == FlowDirection::Outbound { outbound } else { inbound };
            assert_eq!(out[at..at + 4], to.address.octets(), "{mapping:?}");
            assert_eq!(checksum(&out[14..34], 0), 0);
            let protocol = mapping.inside.protocol;
            let pseudo = if protocol == ICMP { 0 } else { pseudo_header(&out) };
            assert_eq!(checksum(&out[34..], pseudo), 0, "{mapping:?}");
        }
        side(&rig, NatSide::Outside);
    }
    assert_eq!(rig.sum(EVENTS, NatEvent::Created as u32, 0), 0);
}

fn pseudo_header(frame: &[u8]) -> u32 {
    let words = (26..34).step_by(2).map(|at| u32::from(u16_at(frame, at))).sum::<u32>();
    words + u32::from(frame[23]) + (frame.len() - 34) as u32
}
