//! Elements of FastClick's flow subsystem, and work in the place of a network function's.

use crate::common::{Bed, hex, sum};
use millstream_click::{flatten, parse};
use millstream_click_elements::compile;

const NONE: &[Vec<u8>] = &[];

/// A datagram or segment between 10.1.0.`host` and 2.0.0.2, from a port to port 80.
fn packet(protocol: u8, host: u8, port: u16) -> Vec<u8> {
    let mut packet = hex("4500 0030 0000 4000 4000 0000 0a010000 02000002");
    (packet[9], packet[15]) = (protocol, host);
    let header = !(sum(&packet) as u16);
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend(hex("0050 00000000 00000000 50000000 00000000"));
    packet.resize(48, 7);
    if protocol == 17 {
        packet[24..28].copy_from_slice(&[0, 28, 0, 0]);
    }
    packet
}

#[test]
fn each_flow_gets_the_next_port_of_one_address() {
    let mut bed = Bed::new(
        "FromDevice(x) -> Discard;
         FromDevice(a) -> MarkIPHeader -> FlowIPManagerIMP(CAPACITY 1000, TIMEOUT 10) -> FlowIPNAT(SIP 10.0.0.1)
            -> Queue -> ToDevice(b)",
    );
    let flows = [packet(6, 1, 1000), packet(17, 1, 1000), packet(6, 2, 1000), packet(6, 1, 1000)];
    let sent = bed.at(1, [NONE, &flows]);
    let translated: Vec<(&[u8], u16)> =
        sent.iter().map(|(_, p)| (&p[12..20], u16::from_be_bytes([p[20], p[21]]))).collect();
    let to = [10, 0, 0, 1, 2, 0, 0, 2];
    assert_eq!(translated, [1024, 1025, 1026, 1024].map(|port| (&to[..], port)));
    for (_, packet) in &sent {
        assert_eq!(sum(&packet[..20]), 0xffff);
    }
    // A packet without ports cannot be told from other packets of its host when it comes back.
    assert!(bed.at(2, [NONE, &[packet(47, 1, 1000)]]).is_empty());
    assert_eq!(bed.dropped("not_tcp_or_udp"), 1);
}

#[test]
fn flows_are_counted_once_each() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> c :: FlowCounter -> Queue -> ToDevice(b); FromDevice(x) -> Discard",
    );
    let mut fragment = packet(17, 9, 1);
    fragment[7] = 1;
    let mut other = fragment.clone();
    other[20] ^= 0xff;
    let flows = [
        packet(6, 1, 1),
        packet(17, 1, 1),
        packet(6, 1, 2),
        packet(6, 1, 1),
        packet(47, 1, 1),
        packet(47, 1, 9),
        fragment,
        other,
    ];
    assert_eq!(bed.at(1, [&flows, NONE]).len(), flows.len());
    // Without ports: GRE, and fragments that are not the first.
    assert_eq!(bed.counter("c", "count"), 5);
    assert_eq!(bed.at(2, [&flows, NONE]).len(), flows.len());
    assert_eq!(bed.counter("c", "count"), 5);
}

#[test]
fn work_is_done_and_leaves_packets_as_they_are() {
    for work in ["", "S 1, N 5, W 10", "S 0.5, N 20, R 50, PAYLOAD true", "N 3, R 100", "W 1000"] {
        let mut bed = Bed::new(&format!(
            "FromDevice(a) -> WorkPackage({work}) -> Queue -> ToDevice(b); FromDevice(x) -> Discard"
        ));
        let packets = [packet(6, 1, 1), packet(17, 2, 2), vec![1, 2, 3]];
        let sent: Vec<Vec<u8>> = bed.at(1, [&packets, NONE]).into_iter().map(|(_, p)| p).collect();
        assert_eq!(sent, packets, "{work}");
    }
}

#[test]
fn the_array_is_as_large_as_said() {
    let bytes = |work: &str| {
        let text = format!("FromDevice(a) -> WorkPackage({work}) -> Queue -> ToDevice(b)");
        let graph = flatten(&parse(&text).expect("parsed"), &[]).expect("flattened");
        let program = compile(&graph).expect("compiled");
        let array = program.code.module.maps.values().find(|map| map.name.ends_with(".work"));
        array.map(|map| u64::from(map.max_entries) * u64::from(map.value_size))
    };
    assert_eq!([bytes("S 4, N 1"), bytes("S 0.5, N 1"), bytes("N 1")], [Some(4 << 20), Some(1 << 19), None]);
}
