//! The router in the kernel against RFC 791, 1071 and 1812: packets in, packets and verdicts out.

use crate::rig::{INGRESS, Rig, Verdict};
use millstream_programs::ROUTER;
use millstream_programs::packet::{EthernetFrame, TransportHeader, checksum};
use millstream_programs::router::{
    NextHop, Route, RouterConfig, RouterEvent, RouterModel, RouterOutcome, flows, generate,
};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;
use std::net::Ipv4Addr;

const DST_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
const SRC_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];

/// 198.18/15 out of another port, 10/8 back where it came from, and the other kinds of next hops.
fn config() -> RouterConfig {
    let hop = |port| NextHop::Forward { dst_mac: DST_MAC, src_mac: SRC_MAC, port, mtu: 1500 };
    let route = |prefix: &str, next_hop| Route { prefix: prefix.parse().unwrap(), next_hop };
    RouterConfig {
        next_hops: vec![hop(2), hop(INGRESS), NextHop::Stack, NextHop::Drop],
        routes: vec![
            route("198.18.0.0/15", 0),
            route("10.0.0.0/8", 1),
            route("198.19.255.1/32", 2),
            route("192.0.2.0/24", 3),
            route("224.0.0.0/3", 0),
        ],
    }
}

fn rig() -> Option<Rig> {
    Rig::new(&ROUTER, &config().entries().unwrap())
}

/// The frame comes out as it went in, with this verdict, and the reason is counted.
fn left_alone(rig: &Rig, frame: &[u8], verdict: Verdict, reason: RouterEvent) {
    let before = rig.sum("reasons", reason as u32, 0);
    assert_eq!(rig.run(frame), (verdict, frame.to_vec()), "{reason:?}");
    assert_eq!(rig.sum("reasons", reason as u32, 0), before + 1, "{reason:?} is not counted");
}

fn mended(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let header = 14 + 4 * usize::from(frame[14] & 15);
    let sum = checksum(&frame[14..header.min(frame.len())], 0);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn forwards_to_the_next_hop() {
    let Some(rig) = rig() else { return };
    let frame = EthernetFrame::default();
    let expected = EthernetFrame { dst_mac: DST_MAC, src_mac: SRC_MAC, ttl: 63, ..frame.clone() }.to_bytes();
    assert_eq!(rig.run(&frame.to_bytes()), (Verdict::Redirect, expected.clone()));
    let counted = |port, word| rig.sum("counters", port, word);
    assert_eq!((counted(INGRESS, 0), counted(INGRESS, 1), counted(INGRESS, 2)), (1, 64, 0));
    assert_eq!((counted(2, 0), counted(2, 2), counted(2, 3)), (0, 1, 64));
    let back = EthernetFrame { dst: Ipv4Addr::new(10, 1, 1, 1), ..frame };
    let expected = EthernetFrame { dst_mac: DST_MAC, src_mac: SRC_MAC, ttl: 63, ..back.clone() }.to_bytes();
    assert_eq!(rig.run(&back.to_bytes()), (Verdict::Tx, expected));
    assert_eq!((counted(INGRESS, 2), counted(INGRESS, 3)), (1, 64));
}

#[test]
fn fragments_are_forwarded_as_any_packet() {
    let Some(rig) = rig() else { return };
    for fragment in [0x2000, 0x2001, 0x0100] {
        let transport = TransportHeader::Raw { protocol: 17, bytes: vec![0xaa; 24] };
        let frame = EthernetFrame { fragment, transport, ..EthernetFrame::default() };
        let expected = EthernetFrame { dst_mac: DST_MAC, src_mac: SRC_MAC, ttl: 63, ..frame.clone() };
        assert_eq!(rig.run(&frame.to_bytes()), (Verdict::Redirect, expected.to_bytes()));
    }
}

#[test]
fn the_checksum_is_right_for_every_header() {
    let Some(rig) = rig() else { return };
    // Over all identifications the sum takes all values, the two zeros among them; RFC 1624 is about these.
    for id in (0..=u16::MAX).step_by(7).chain(0xff00..=0xffff) {
        for ttl in [2, 255] {
            let frame = EthernetFrame { id, ttl, ..EthernetFrame::default() };
            let (verdict, out) = rig.run(&frame.to_bytes());
            assert_eq!(verdict, Verdict::Redirect);
            assert_eq!(checksum(&out[14..34], 0), 0, "id {id:#x}, ttl {ttl}");
        }
    }
}

#[test]
fn malformed_headers_are_dropped() {
    let Some(rig) = rig() else { return };
    let good = EthernetFrame::default().to_bytes();
    let with = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        mended(frame)
    };
    left_alone(&rig, &with(14, 0x55), Verdict::Drop, RouterEvent::BadHeader);
    left_alone(&rig, &with(14, 0x44), Verdict::Drop, RouterEvent::BadHeader);
    left_alone(&rig, &with(17, 19), Verdict::Drop, RouterEvent::BadLength);
    left_alone(&rig, &with(17, 51), Verdict::Drop, RouterEvent::BadLength);
    for byte in 14..34 {
        let mut frame = good.clone();
        frame[byte] ^= 0x10;
        if byte != 14 && byte != 17 && byte != 16 {
            left_alone(&rig, &frame, Verdict::Drop, RouterEvent::BadChecksum);
        }
    }
}

#[test]
fn padding_is_no_part_of_the_packet() {
    let Some(rig) = rig() else { return };
    let mut frame = EthernetFrame { length: 42, ..EthernetFrame::default() }.to_bytes();
    frame.resize(60, 0);
    assert_eq!(rig.run(&frame).0, Verdict::Redirect);
}

#[test]
fn martians_are_dropped() {
    let Some(rig) = rig() else { return };
    for src in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"] {
        let frame = EthernetFrame { src: src.parse().unwrap(), ..EthernetFrame::default() }.to_bytes();
        left_alone(&rig, &frame, Verdict::Drop, RouterEvent::Martian);
    }
    for dst in ["0.0.0.0", "127.0.0.1", "240.0.0.1"] {
        let frame = EthernetFrame { dst: dst.parse().unwrap(), ..EthernetFrame::default() }.to_bytes();
        left_alone(&rig, &frame, Verdict::Drop, RouterEvent::Martian);
    }
    for edge in ["1.0.0.0", "126.255.255.255", "128.0.0.1", "223.255.255.255"] {
        let frame = EthernetFrame { src: edge.parse().unwrap(), ..EthernetFrame::default() }.to_bytes();
        assert_eq!(rig.run(&frame).0, Verdict::Redirect, "{edge} is a source like any other");
    }
}

#[test]
fn what_needs_the_stack_goes_there_untouched() {
    let Some(rig) = rig() else { return };
    let base = EthernetFrame::default();
    let to = |dst: &str| EthernetFrame { dst: dst.parse().unwrap(), ..base.clone() }.to_bytes();
    let pass = |frame: &[u8], reason| left_alone(&rig, frame, Verdict::Pass, reason);
    pass(&to("203.0.113.1"), RouterEvent::NoRoute);
    pass(&to("198.19.255.1"), RouterEvent::Local);
    pass(&to("224.0.0.5"), RouterEvent::NotUnicast);
    pass(&to("255.255.255.255"), RouterEvent::NotUnicast);
    for ttl in [0, 1] {
        pass(&EthernetFrame { ttl, ..base.clone() }.to_bytes(), RouterEvent::Ttl);
    }
    pass(&EthernetFrame { options: vec![7, 4, 4, 0], ..base.clone() }.to_bytes(), RouterEvent::Options);
    pass(&EthernetFrame { vlan: Some(10), ..base.clone() }.to_bytes(), RouterEvent::NotIpv4);
    pass(&EthernetFrame { dst_mac: [0xff; 6], ..base.clone() }.to_bytes(), RouterEvent::NotUnicast);
    pass(
        &EthernetFrame { dst_mac: [1, 0, 0x5e, 0, 0, 5], ..base.clone() }.to_bytes(),
        RouterEvent::NotUnicast,
    );
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 2, 8, 6]);
    arp.resize(60, 0);
    pass(&arp, RouterEvent::NotIpv4);
    pass(&base.to_bytes()[..33], RouterEvent::NotIpv4);
}

#[test]
fn the_mtu_of_the_link_is_kept() {
    let Some(rig) = rig() else { return };
    assert_eq!(
        rig.run(&EthernetFrame { length: 1514, ..EthernetFrame::default() }.to_bytes()).0,
        Verdict::Redirect
    );
    let long = EthernetFrame { length: 1515, ..EthernetFrame::default() }.to_bytes();
    left_alone(&rig, &long, Verdict::Pass, RouterEvent::TooBig);
}

#[test]
fn blackholes_swallow() {
    let Some(rig) = rig() else { return };
    let frame = EthernetFrame { dst: Ipv4Addr::new(192, 0, 2, 77), ..EthernetFrame::default() }.to_bytes();
    left_alone(&rig, &frame, Verdict::Drop, RouterEvent::Blackhole);
}

#[test]
fn an_interface_that_is_no_port_is_left_to_the_stack_when_redirected_to() {
    let next_hops = vec![NextHop::Forward { dst_mac: DST_MAC, src_mac: SRC_MAC, port: 9, mtu: 1500 }];
    let routes = vec![Route { prefix: "0.0.0.0/0".parse().unwrap(), next_hop: 0 }];
    let mut entries = RouterConfig { next_hops, routes }.entries().unwrap();
    entries.retain(|e| e.map != "tx_ports");
    let Some(rig) = Rig::new(&ROUTER, &entries) else { return };
    assert_eq!(
        rig.run(&EthernetFrame::default().to_bytes()).0,
        Verdict::Drop,
        "rewritten for a port that is not there"
    );
}

/// The whole of a generated table, and frames that are broken at random, against the model.
#[test]
fn agrees_with_the_model_on_generated_tables_and_broken_frames() {
    let mut config = generate(2592, &[INGRESS, 2], 8, 1);
    for (kind, hop) in [(NextHop::Stack, 3), (NextHop::Drop, 5)] {
        config.next_hops[hop] = kind;
    }
    let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
    let model = RouterModel::new(&config);
    let mut rng = Rng::new(3);
    for frame in flows(&config, 5000, FlowLocality::NONE, 2).packets {
        let mut frame = frame;
        for _ in 0..rng.below(3) {
            frame[rng.below(34) as usize] = rng.next_u32() as u8;
        }
        if rng.below(4) != 0 && frame[14] & 15 >= 5 {
            frame = mended(frame);
        }
        let expected = match model.process(&frame) {
            RouterOutcome::Forward { port, frame } if port == INGRESS => (Verdict::Tx, frame),
            RouterOutcome::Forward { frame, .. } => (Verdict::Redirect, frame),
            RouterOutcome::Stack(_) => (Verdict::Pass, frame.clone()),
            RouterOutcome::Drop(_) => (Verdict::Drop, frame.clone()),
        };
        assert_eq!(rig.run(&frame), expected, "{frame:02x?}: {:?}", model.process(&frame));
    }
}
