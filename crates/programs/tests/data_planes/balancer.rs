//! The balancer in the kernel against its model: verdicts, frames, the connection table.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use crate::rig::{Rig, Verdict};
use millstream_kernel::UpdateMode;
use millstream_programs::BALANCER;
use millstream_programs::balancer::{
    BalancerConfig, BalancerEvent, BalancerModel, BalancerOutcome, BalancerReal, BalancerService, ServiceMix,
    flows, generate, ring_entries,
};
use millstream_programs::packet::{EthernetFrame, FiveTuple, TCP, TransportHeader, UDP};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;

/// Runs all frames in their order, and compares each verdict and the frame that leaves.
fn compare(config: &BalancerConfig, frames: &[Vec<u8>]) {
    let Some(rig) = Rig::new(&BALANCER, &config.entries().unwrap()) else { return };
    let mut model = BalancerModel::new(config);
    let mut forwarded = vec![[0u64; 2]; config.reals.len()];
    for frame in frames {
        let outcome = model.process(frame, 0);
        let expected = match &outcome {
            BalancerOutcome::Forward { frame, .. } | BalancerOutcome::Answer(frame) => {
                (Verdict::Tx, frame.clone())
            }
            BalancerOutcome::Stack => (Verdict::Pass, frame.clone()),
            BalancerOutcome::Drop => (Verdict::Drop, frame.clone()),
        };
        assert!(rig.run(frame) == expected, "{:02x?}, not {outcome:02x?}, for {frame:02x?}", rig.run(frame));
        if let BalancerOutcome::Forward { real, .. } = outcome {
            let at = if frame[12] == 8 { 16 } else { 18 };
            let length = u64::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
            forwarded[real as usize][0] += 1;
            forwarded[real as usize][1] += if frame[12] == 8 { length } else { length + 40 };
        }
    }
    for (real, expected) in (1u32..).zip(forwarded) {
        assert_eq!(rig.sums("real_counters", real), expected, "counters of real {real}");
    }
}

/// Services of every kind; some reals are down. The model has no limits.
fn every_kind() -> BalancerConfig {
    let mut config = BalancerConfig { icmp_limit: u32::MAX, ..generate(ServiceMix::Mixed, 8, 20, 3) };
    config.services[0].port = 0;
    config.services[1].client_affinity = true;
    config.services[4].stateless = true;
    config.services[5].port = 0;
    config.services[5].client_affinity = true;
    for real in config.reals.iter_mut().step_by(7) {
        real.up = false;
    }
    config
}

/// Traffic, each frame followed by variants of itself.
fn frames(config: &BalancerConfig, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut all = Vec::new();
    for frame in flows(config, count, FlowLocality::NONE, seed).packets {
        all.push(frame.clone());
        for _ in 0..4 {
            all.push(disturb(frame.clone(), &mut rng));
        }
        all.push(frame);
    }
    all
}

fn disturb(mut frame: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    let ipv6 = frame[12] == 0x86;
    let transport = if ipv6 { 54 } else { 34 };
    match rng.below(8) {
        0 => frame.truncate(14 + rng.below(60) as usize),
        // TCP flags: SYN, RST, FIN and ACK; for UDP some of the payload.
        1 => frame[transport + 13] = rng.next_u32() as u8 & 0x17,
        2 => frame[transport + 2 + rng.below(2) as usize] = rng.next_u32() as u8,
        3 if ipv6 => extend_ipv6(&mut frame, rng),
        3 => frame[20..22].copy_from_slice(&[0x20 << rng.below(2), rng.below(2) as u8]),
        4 => grow(&mut frame, 1400 + rng.below(200) as usize),
        5 => frame = icmp_error(&frame, rng),
        6 => frame = echo(&frame),
        _ => {
            let at = 12 + rng.below(frame.len() as u64 - 12) as usize;
            frame[at] = rng.next_u32() as u8;
        }
    }
    frame
}

/// Puts extension headers in front of the transport.
fn extend_ipv6(frame: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(5) {
        let next = frame[20];
        frame[20] = [0, 43, 60, 44][rng.below(40).min(33) as usize / 11];
        let units = rng.below(3) as usize;
        let mut header = vec![0; 8 * (units + 1)];
        (header[0], header[1]) = (next, units as u8);
        frame.splice(54..54, header);
    }
    let length = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
}

/// Makes the IP packet so long.
fn grow(frame: &mut Vec<u8>, length: usize) {
    frame.resize(14 + length, 0xa5);
    let (at, length) = if frame[12] == 0x86 { (18, length - 40) } else { (16, length) };
    frame[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
}

/// An ICMP error, of a router, about a packet that the service sent to the client; now and then about another
/// one.
fn icmp_error(frame: &[u8], rng: &mut Rng) -> Vec<u8> {
    let ipv6 = frame[12] == 0x86;
    let (addresses, size, header) = if ipv6 { (8, 16, 40) } else { (12, 4, 20) };
    let mut quoted = frame[14..].to_vec();
    quoted[addresses..addresses + 2 * size].rotate_left(size);
    quoted[header..header + 4].rotate_left(2);
    if rng.below(8) == 0 {
        quoted[rng.below(header as u64) as usize] ^= 1 << rng.below(8);
    }
    quoted.truncate(header + [8, 8, 3, 20][rng.below(4) as usize]);
    let kind = if ipv6 { rng.below(6) } else { [3, 11, 12, 5, 4][rng.below(5) as usize] } as u8;
    let mut message = vec![kind, 4, 0, 0, 0, 0, 5, 0xdc];
    message.extend(quoted);
    ip_message(frame, ipv6, message)
}

fn echo(frame: &[u8]) -> Vec<u8> {
    let ipv6 = frame[12] == 0x86;
    ip_message(frame, ipv6, vec![if ipv6 { 128 } else { 8 }, 0, 0x12, 0x34, 0, 7, 0, 1, 0xde, 0xad])
}

/// The frame's network header, with an ICMP message.
fn ip_message(frame: &[u8], ipv6: bool, message: Vec<u8>) -> Vec<u8> {
    let mut out = frame[..if ipv6 { 54 } else { 34 }].to_vec();
    out[if ipv6 { 20 } else { 23 }] = if ipv6 { 58 } else { 1 };
    out.extend(message);
    let (at, length) = if ipv6 { (18, out.len() - 54) } else { (16, out.len() - 14) };
    out[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    out
}

#[test]
fn web_traffic_to_a_thousand_reals_is_balanced_as_the_rings_say() {
    let config = BalancerConfig { icmp_limit: u32::MAX, ..generate(ServiceMix::Web, 10, 100, 1) };
    compare(&config, &frames(&config, 4_000, 2));
}

#[test]
fn services_of_every_kind_under_every_disturbance() {
    let config = every_kind();
    compare(&config, &frames(&config, 8_000, 4));
    compare(&BalancerConfig { fragments_to_stack: true, ..config.clone() }, &frames(&config, 500, 5));
    compare(&BalancerConfig { icmp_limit: 0, max_length: 1400, ..config.clone() }, &frames(&config, 500, 6));
}

/// A service with two reals, and a data plane whose ring points to the first alone.
fn two_reals(protocol: u8) -> (BalancerConfig, Vec<u8>) {
    let real = |last| BalancerReal { address: IpAddr::from([10, 1, 0, last]), gue: false, up: true };
    let service = BalancerService {
        address: IpAddr::from([198, 18, 0, 1]),
        port: 80,
        protocol,
        client_affinity: false,
        stateless: false,
        quic: false,
        reals: vec![(0, 1)],
    };
    let config = BalancerConfig {
        services: vec![service],
        reals: vec![real(1), real(2)],
        ..BalancerConfig::default()
    };
    let flow = FiveTuple {
        src: [192, 0, 2, 1].into(),
        dst: [198, 18, 0, 1].into(),
        src_port: 1234,
        dst_port: 80,
        protocol,
    };
    (config, flow.frame().to_bytes())
}

/// The last octet of the outer destination address.
fn real_of(rig: &Rig, frame: &[u8]) -> u8 {
    let (verdict, out) = rig.run(frame);
    assert_eq!(verdict, Verdict::Tx);
    out[33]
}

fn point_ring_to(rig: &Rig, real: u32) {
    rig.apply(&ring_entries(0, &[real; 65_537]).collect::<Vec<_>>());
}

#[test]
fn connections_stay_where_they_are_when_the_ring_changes_and_new_ones_follow_it() {
    let (config, ack) = two_reals(TCP);
    let Some(rig) = Rig::new(&BALANCER, &config.entries().unwrap()) else { return };
    assert_eq!(real_of(&rig, &ack), 1);
    point_ring_to(&rig, 2);
    assert_eq!(real_of(&rig, &ack), 1, "known");
    let mut syn = ack.clone();
    syn[47] = 2;
    assert_eq!(real_of(&rig, &syn), 2, "a SYN starts a connection");
    assert_eq!(real_of(&rig, &ack), 2, "which is remembered in the old one's place");
    let down = BalancerReal { up: false, ..config.reals[1] }.encode();
    rig.map("reals").update(&2u32.to_ne_bytes(), &down, UpdateMode::Any).unwrap();
    point_ring_to(&rig, 1);
    assert_eq!(real_of(&rig, &ack), 1, "the real that it was sent to is down");
    assert_eq!(rig.sums("reasons", BalancerEvent::Syn as u32), [1]);
    assert_eq!(rig.sums("reasons", BalancerEvent::TableMiss as u32), [2]);
    assert_eq!(rig.sums("vip_counters", 0), [5, 5 * 50]);
}

#[test]
fn a_reset_is_forwarded_but_not_remembered() {
    let (config, ack) = two_reals(TCP);
    let Some(rig) = Rig::new(&BALANCER, &config.entries().unwrap()) else { return };
    let mut reset = ack;
    reset[47] = 4;
    assert_eq!(real_of(&rig, &reset), 1);
    point_ring_to(&rig, 2);
    assert_eq!(real_of(&rig, &reset), 2);
}

#[test]
fn silent_udp_connections_are_forgotten() {
    let (mut config, datagram) = two_reals(UDP);
    config.udp_idle_ns = 500_000_000;
    let Some(rig) = Rig::new(&BALANCER, &config.entries().unwrap()) else { return };
    assert_eq!(real_of(&rig, &datagram), 1);
    sleep(Duration::from_millis(700));
    point_ring_to(&rig, 2);
    assert_eq!(real_of(&rig, &datagram), 2);
}

#[test]
fn a_flood_of_new_connections_is_balanced_but_not_remembered() {
    let (mut config, _) = two_reals(TCP);
    config.new_flow_limit = 10;
    let Some(rig) = Rig::new(&BALANCER, &config.entries().unwrap()) else { return };
    for port in 1..=1000 {
        let transport = TransportHeader::Tcp { src: port, dst: 80, flags: 2 };
        let frame =
            EthernetFrame { dst: [198, 18, 0, 1].into(), transport, ..EthernetFrame::default() }.to_bytes();
        assert_eq!(real_of(&rig, &frame), 1);
    }
    let forgotten = rig.sums("reasons", BalancerEvent::NotRemembered as u32)[0];
    // Ten per second and CPU; the thousand take less than some seconds.
    assert!((800..=990).contains(&forgotten), "{forgotten} of 1,000 not remembered");
}
