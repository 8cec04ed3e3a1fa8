//! Packets of IPv6 as packets of IPv4 and back, and addresses of hosts behind a translator.

use crate::common::{Bed, hex, packet, pseudo, seal, sealed, sum};

const NONE: &[Vec<u8>] = &[];
const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [192, 0, 2, 7];

/// The IPv6 address for one of IPv4.
fn mapped(address: [u8; 4]) -> Vec<u8> {
    [&[0; 10][..], &[0xff, 0xff], &address].concat()
}

/// A header of IPv6 with a payload behind it; sets the checksum at an offset.
fn six(protocol: u8, hops: u8, [from, to]: [&[u8]; 2], payload: &[u8], at: Option<usize>) -> Vec<u8> {
    let head = [0x62, 0x50, 0, 0, 0, payload.len() as u8, protocol, hops];
    let mut packet = [&head[..], from, to, payload].concat();
    if let Some(at) = at {
        let more = sum(&packet[8..40]) + payload.len() as u32 + u32::from(protocol);
        seal(&mut packet[40..], at, more);
    }
    packet
}

/// Returns true if the checksum behind a header of IPv6 is right.
fn sealed6(packet: &[u8]) -> bool {
    let length = u32::from(u16::from_be_bytes([packet[4], packet[5]]));
    let total = sum(&packet[8..40]) + length + u32::from(packet[6]) + sum(&packet[40..]);
    sum(&total.to_be_bytes()) == 0xffff && packet.len() == 40 + length as usize
}

const TO_FOUR: &str =
    "FromDump(a) -> MarkIPHeader -> t :: ProtocolTranslator64 -> ToDump(0); FromDump(b) -> Discard";
const TO_SIX: &str =
    "FromDump(a) -> MarkIPHeader -> t :: ProtocolTranslator46 -> ToDump(0); FromDump(b) -> Discard";

fn one(bed: &mut Bed, packet: &[u8]) -> Vec<u8> {
    let mut sent = bed.at(1, [&[packet.to_vec()], NONE]);
    assert_eq!(sent.len(), 1, "{packet:02x?}");
    sent.remove(0).1
}

#[test]
fn segments_datagrams_and_echoes_go_there_and_back() {
    let (mut four, mut six_bed) = (Bed::new(TO_FOUR), Bed::new(TO_SIX));
    let ends = [mapped(A), mapped(B)];
    let ends = [&ends[0][..], &ends[1]];
    let segment =
        [&[0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 2, 1, 0, 0, 0, 0, 0][..], b"odd"].concat();
    for (protocol, becomes, payload, at) in [
        (6, 6, segment, 16),
        (17, 17, hex("1234 0035 000b 0000 616263"), 6),
        (58, 1, hex("80 00 0000 0007 0001 61"), 2),
        (58, 1, hex("81 00 0000 0007 0001"), 2),
    ] {
        let whole = six(protocol, 9, ends, &payload, Some(at));
        assert!(sealed6(&whole));
        let there = one(&mut four, &whole);
        assert_eq!(there[..4], [0x45, 0x25, 0, 20 + payload.len() as u8], "{protocol}");
        assert_eq!((there[6], there[8], there[9], &there[12..20]), (0x40, 9, becomes, &[A, B].concat()[..]));
        assert_eq!(sum(&there[..20]), 0xffff);
        if becomes == 1 {
            assert_eq!((sum(&there[20..]), there[20]), (0xffff, if payload[0] == 128 { 8 } else { 0 }));
        } else {
            assert!(sealed(&there), "{there:02x?}");
        }
        let mut back = one(&mut six_bed, &there);
        // Flow labels are not kept.
        back[1..4].copy_from_slice(&whole[1..4]);
        assert_eq!(back, whole, "{protocol}");
    }
    let mut wrong = six(17, 9, ends, &hex("1234 0035 000b 0000 616263"), Some(6));
    wrong[47] ^= 1;
    assert!(!sealed(&one(&mut four, &wrong)), "a wrong checksum stays wrong");
}

#[test]
fn a_datagram_without_a_checksum_gets_one() {
    let mut bed = Bed::new(TO_SIX);
    let mut datagram = packet(17, [A, B], [5, 6], 0);
    datagram[26..28].fill(0);
    assert!(sealed6(&one(&mut bed, &datagram)));
    let zero = |bytes: &[u8]| pseudo(bytes) + sum(&bytes[20..]);
    assert_ne!(zero(&datagram) & 0xffff, 0, "or else it would be another test");
}

#[test]
fn errors_have_the_header_that_they_quote_translated() {
    let (mut four, mut six_bed) = (Bed::new(TO_FOUR), Bed::new(TO_SIX));
    let (a, b) = (mapped(A), mapped(B));
    let quoted = six(17, 3, [&b, &a], &hex("0035 1234 0008 abcd"), None);
    for (message, becomes) in [
        ("01 04 0000 00000000", hex("03 03")),
        ("01 00 0000 00000000", hex("03 01")),
        ("02 00 0000 00000514", hex("03 04")),
        ("03 00 0000 00000000", hex("0b 00")),
        ("04 01 0000 00000006", hex("03 02")),
        ("04 00 0000 00000007", hex("0c 00")),
    ] {
        let message = [&hex(message)[..], &quoted].concat();
        let there = one(&mut four, &six(58, 60, [&a, &b], &message, Some(2)));
        assert_eq!((there.len(), there[9], &there[20..22]), (20 + 8 + 28, 1, &becomes[..]));
        assert_eq!((sum(&there[20..]), sum(&there[28..48])), (0xffff, 0xffff));
        assert_eq!((there[37], &there[40..48], &there[48..]), (17, &[B, A].concat()[..], &quoted[40..]));
        match message[0] {
            2 => assert_eq!(there[26..28], 1280u16.to_be_bytes(), "20 bytes less fit"),
            4 if message[1] == 0 => assert_eq!(there[24], 8, "the time to live is elsewhere"),
            _ => {}
        }
    }
    let header = packet(17, [B, A], [53, 0x1234], 0);
    for (message, becomes) in [
        ("03 03 0000 00000000", hex("01 04")),
        ("03 04 0000 00000500", hex("02 00")),
        ("0b 01 0000 00000000", hex("03 01")),
        ("0c 00 0000 08000000", hex("04 00")),
    ] {
        let mut whole = packet(1, [A, B], [0, 0], 0)[..20].to_vec();
        let mut message = [&hex(message)[..], &header].concat();
        seal(&mut message, 2, 0);
        whole[3] = 20 + message.len() as u8;
        let there = one(&mut six_bed, &[&whole[..], &message].concat());
        assert!(sealed6(&there), "{there:02x?}");
        assert_eq!((&there[40..42], there[48] >> 4, there[54]), (&becomes[..], 6, 17));
        assert_eq!((&there[56..88], &there[88..]), (&[b.clone(), a.clone()].concat()[..], &header[20..]));
    }
}

#[test]
fn what_has_no_form_in_the_other_version_is_dropped_and_counted() {
    let (mut four, mut six_bed) = (Bed::new(TO_FOUR), Bed::new(TO_SIX));
    let (a, b) = (mapped(A), hex("3ffe 0000 0000 0000 0000 0000 0000 0001"));
    let good = mapped(B);
    let packets = [
        six(17, 9, [&a, &b], &[0; 8], None),
        six(44, 9, [&a, &good], &[0; 8], None),
        six(58, 9, [&a, &good], &hex("87 00 0000 00000000"), None),
        six(6, 9, [&a, &good], &[0; 12], None),
    ];
    assert_eq!(four.at(1, [&packets, NONE]), []);
    for reason in ["no_ipv4_address", "extension_header", "too_short"] {
        assert!(four.dropped(reason) >= 1, "{reason}");
    }
    let mut fragment = packet(17, [A, B], [5, 6], 0);
    fragment[6] = 0x20;
    assert_eq!(six_bed.at(1, [&[fragment, packet(44, [A, B], [5, 6], 0)], NONE]), []);
    assert_eq!([six_bed.dropped("fragment"), six_bed.dropped("not_translated")], [1, 1]);
}

/// A datagram between addresses of IPv6.
fn datagram(from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let payload = [&ports.map(u16::to_be_bytes).concat()[..], &[0, 8, 0, 0]].concat();
    six(17, 9, [&from, &to], &payload, Some(6))
}

fn address(text: &str) -> Vec<u8> {
    text.parse::<std::net::Ipv6Addr>().expect("an address").octets().to_vec()
}

fn translator(arguments: &str) -> Bed {
    Bed::new(&format!(
        "FromDump(a) -> MarkIPHeader -> t :: AddressTranslator({arguments}) -> ToDump(0); \
         FromDump(b) -> MarkIPHeader -> [1] t; t[1] -> ToDump(1)"
    ))
}

#[test]
fn pairs_are_translated_both_ways_and_nothing_else_is() {
    let mut bed = translator("1, 0, 3ffe::1 ::18.26.4.17, 0");
    let out = datagram("3ffe::1", "3ffe:2::9", [7, 8]);
    let sent = bed.at(1, [&[out.clone(), datagram("3ffe::2", "3ffe:2::9", [7, 8])], NONE]);
    assert_eq!((sent.len(), &sent[0].1[8..24]), (1, &address("::18.26.4.17")[..]));
    assert!(sealed6(&sent[0].1));
    let back = datagram("3ffe:2::9", "::18.26.4.17", [8, 7]);
    let sent = bed.at(1, [NONE, &[back]]);
    assert_eq!(sent, [(1, datagram("3ffe:2::9", "3ffe::1", [8, 7]))]);
    let mut bed = translator("1, 1, 3ffe::1 7 ::1.1.1.1 70, 0");
    let sent = bed.at(1, [&[out, datagram("3ffe::1", "3ffe:2::9", [9, 8])], NONE]);
    assert_eq!(sent, [(0, datagram("::1.1.1.1", "3ffe:2::9", [70, 8]))]);
}

#[test]
fn each_host_gets_an_address_of_the_pool_until_there_is_none() {
    let mut bed = translator("0, 1, 0, 0, ::1.0.0.1, ::1.0.0.2");
    let from = |host: u8| datagram(&format!("3ffe::{host:x}"), "3ffe:2::9", [7, 8]);
    let sent = bed.at(1, [&[from(1), from(2), from(1), from(3)], NONE]);
    let sources: Vec<u8> = sent.iter().map(|(_, packet)| packet[23]).collect();
    assert_eq!((sources, bed.dropped("no_free_address")), (vec![1, 2, 1], 1));
    let back = |host: u8| datagram("3ffe:2::9", &format!("::1.0.0.{host}"), [8, 7]);
    assert_eq!(bed.at(1, [NONE, &[back(2)]]), [(1, datagram("3ffe:2::9", "3ffe::2", [8, 7]))]);
    let mut fresh = translator("0, 1, 0, 0, ::1.0.0.1");
    assert_eq!(fresh.at(1, [NONE, &[back(1)]]), [], "nobody has it yet");
}

#[test]
fn each_flow_gets_a_port_of_one_address() {
    let mut bed = translator("0, 1, 1, 0, ::1.0.0.1 6000 6001");
    let sent = bed.at(
        1,
        [
            &[
                datagram("3ffe::1", "3ffe:2::9", [7, 8]),
                datagram("3ffe::2", "3ffe:2::9", [7, 8]),
                datagram("3ffe::1", "3ffe:2::9", [7, 8]),
                datagram("3ffe::3", "3ffe:2::9", [7, 8]),
            ],
            NONE,
        ],
    );
    let ports: Vec<[u8; 2]> = sent.iter().map(|(_, packet)| [packet[40], packet[41]]).collect();
    assert_eq!(ports, [6000u16, 6001, 6000].map(u16::to_be_bytes));
    assert!(sent.iter().all(|(_, packet)| sealed6(packet) && packet[8..24] == address("::1.0.0.1")));
    assert_eq!(bed.dropped("no_free_port"), 1);
    let back = datagram("3ffe:2::9", "::1.0.0.1", [8, 6001]);
    assert_eq!(bed.at(1, [NONE, &[back]]), [(1, datagram("3ffe:2::9", "3ffe::2", [8, 7]))]);
    let other = datagram("3ffe:2::a", "::1.0.0.1", [8, 6001]);
    assert_eq!(bed.at(1, [NONE, &[other]]), [], "it is somebody else's flow");
    // Echoes have identifiers.
    let echo = |from: &str, to: &str, kind: u8, id: u16| {
        let payload = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1]].concat();
        six(58, 9, [&address(from), &address(to)], &payload, Some(2))
    };
    let sent = bed.at(1, [&[echo("3ffe::1", "3ffe:2::b", 128, 99)], NONE]);
    assert!(sealed6(&sent[0].1));
    let id = u16::from_be_bytes([sent[0].1[44], sent[0].1[45]]);
    assert!((6000..=6001).contains(&id));
    let sent = bed.at(1, [NONE, &[echo("3ffe:2::b", "::1.0.0.1", 129, id)]]);
    assert_eq!(sent, [(1, echo("3ffe:2::b", "3ffe::1", 129, 99))]);
}
