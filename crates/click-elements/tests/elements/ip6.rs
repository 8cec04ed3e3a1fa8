//! Elements of IPv6 on single packets, as native code: headers, routes, neighbours, errors.

use crate::common::{Bed, hex, sum};

const NONE: &[Vec<u8>] = &[];

/// A header of type `next` for `payload`, to 3ffe:1ce1:2::200:HOST.
fn packet(next: u8, hops: u8, host: u8, payload: &[u8]) -> Vec<u8> {
    let head = [0x60, 0, 0, 0, 0, payload.len() as u8, next, hops];
    [&head[..], &hex("3ffe 1ce1 0002 0000 0000 0000 0000 0001"), &address(host), payload].concat()
}

fn address(host: u8) -> Vec<u8> {
    [&hex("3ffe 1ce1 0002 0000 0000 0000 0200 00")[..], &[host]].concat()
}

/// The sum of an ICMPv6 message with its pseudo header: 0xffff where the checksum in it is right.
fn message_sum(packet: &[u8]) -> u32 {
    let length = u16::from_be_bytes([packet[4], packet[5]]);
    let pseudo = [&packet[8..40], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, packet[6]]].concat();
    sum(&[&pseudo[..], &packet[40..40 + length as usize]].concat())
}

#[test]
fn headers_are_checked_and_padding_is_cut_off() {
    let mut bed = Bed::new(
        "FromDevice(a) -> c :: CheckIP6Header(3ffe:1ce1:2::7 ::1) -> ToDPDKDevice(good); c[1] -> ToDPDKDevice(bad)",
    );
    let good = packet(17, 64, 5, &[1; 9]);
    let padded = [&good[..], &[0; 6]].concat();
    let mut wrong = vec![good.clone(); 4];
    wrong[0][0] = 0x40;
    wrong[1][5] = 10;
    wrong[2][8..24].copy_from_slice(&hex("3ffe 1ce1 0002 0000 0000 0000 0000 0007"));
    wrong[3][8..24].fill(0xff);
    wrong.push(good[..39].to_vec());
    let sent = bed.at(1, [&[&wrong[..], &[good.clone(), padded]].concat(), NONE]);
    let expected = wrong.into_iter().map(|p| (1, p)).chain([(0, good.clone()), (0, good)]);
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    let mut sent = sent;
    sent.sort();
    assert_eq!(sent, expected);
}

#[test]
fn the_longest_prefix_of_all_four_words_says_where_packets_go() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> GetIP6Address(24) \
            -> rt :: LookupIP6Route(3ffe:1ce1:2::200:5/128 0, 3ffe:1ce1:2::/80 ::0 1,
            3ffe:1ce1::/32 3ffe:1ce1:2::200:9 2); rt[0] -> ToDPDKDevice(a); rt[1] -> ToDPDKDevice(b);
            // Where the gateway leads.
            rt[2] -> gw :: LookupIP6Route(3ffe:1ce1:2::200:9/128 0, ::/0 1); gw -> ToDPDKDevice(c); \
                gw[1] -> ToDPDKDevice(d)",
    );
    let mut packets =
        [packet(17, 64, 5, &[]), packet(17, 64, 6, &[]), packet(17, 64, 5, &[]), packet(17, 64, 5, &[])];
    packets[2][24 + 5] = 3;
    packets[3][24 + 1] = 0;
    let outputs: Vec<usize> = bed.at(1, [&packets, NONE]).into_iter().map(|(output, _)| output).collect();
    assert_eq!(outputs, [0, 1, 2]);
    assert_eq!(bed.dropped("no_route"), 1);
}

#[test]
fn a_packet_with_one_hop_left_is_sent_no_further_but_its_sender_is_told() {
    let mut bed = Bed::new(
        "FromDevice(a) -> CheckIP6Header -> h :: DecIP6HLIM -> ToDPDKDevice(on);
            h[1] -> ICMP6Error(3ffe:1ce1:2::fe, 3, 0) -> rt :: LookupIP6Route(3ffe:1ce1:2::1/128 0, ::/0 1);
            rt -> ToDPDKDevice(back); rt[1] -> ToDPDKDevice(elsewhere)",
    );
    let (fresh, old) = (packet(17, 2, 5, &[1, 2, 3]), packet(17, 1, 5, &[4, 5, 6]));
    let sent = bed.at(1, [&[fresh.clone(), old.clone(), packet(17, 0, 5, &[])], NONE]);
    let mut expected = fresh;
    expected[7] = 1;
    assert_eq!(sent[0], (0, expected));
    // RFC 4443, 3.3, with the packet behind it.
    let (output, error) = &sent[1];
    assert_eq!((*output, error.len()), (1, 48 + old.len()));
    let head = hex(
        "6000 0000 0033 3aff 3ffe 1ce1 0002 0000 0000 0000 0000 00fe 3ffe 1ce1 0002 0000 0000 0000 0000 0001 0300",
    );
    assert_eq!((&error[..42], &error[44..48], &error[48..]), (&head[..], &[0; 4][..], &old[..]));
    assert_eq!((message_sum(error), sent.len()), (0xffff, 3));
}

#[test]
fn errors_are_short_and_none_is_about_an_error_a_group_or_a_later_fragment() {
    let mut bed = Bed::new("FromDevice(a) -> CheckIP6Header -> ICMP6Error(3ffe::1, 2, 0) -> ToDPDKDevice(a)");
    let mut long = packet(17, 64, 5, &[]);
    long.extend([7; 1000]);
    long[4..6].copy_from_slice(&1000u16.to_be_bytes());
    let mut group = packet(17, 64, 5, &[1; 8]);
    group[24] = 0xff;
    let (about, redirect) = (packet(58, 64, 5, &[1, 0, 0, 0]), packet(58, 64, 5, &[137, 0, 0, 0]));
    let (later, first) = (packet(44, 64, 5, &[17, 0, 0, 8]), packet(44, 64, 5, &[17, 0, 0, 1]));
    let sent = bed
        .at(1, [&[long.clone(), group, about, redirect, later, first, packet(58, 64, 5, &[128, 0])], NONE]);
    assert_eq!(sent.len(), 3);
    let error = &sent[0].1;
    assert_eq!((error.len(), &error[4..6], &error[48..]), (616, &[2, 64][..], &long[..568]));
    assert_eq!((&error[40..42], &error[44..48]), (&[2, 0][..], &1500u32.to_be_bytes()[..]));
    assert!(sent.iter().all(|(_, error)| message_sum(error) == 0xffff));
    assert_eq!([bed.dropped("broadcast"), bed.dropped("about_an_error"), bed.dropped("fragment")], [1, 2, 1]);
}

/// A solicitation for a host, from 3ffe:1ce1:2::1, as Linux writes it; its sum is right.
fn solicitation(host: u8) -> Vec<u8> {
    let message = [&hex("87 00 0000 00000000")[..], &address(host), &hex("01 01 4000 0000 0007")].concat();
    let mut packet = packet(58, 255, host, &message);
    let sum = !(message_sum(&packet) as u16);
    packet[42..44].copy_from_slice(&sum.to_be_bytes());
    [&hex("3333 ff00 0005 4000 0000 0007 86dd")[..], &packet].concat()
}

#[test]
fn neighbours_are_told_the_address_of_the_longest_prefix() {
    let mut bed = Bed::new(
        "FromDevice(a) -> IP6NDAdvertiser(3ffe:1ce1:2::/80 2:0:0:0:0:1, 3ffe:1ce1:2::200:5/128 2:0:0:0:0:5,
            4000::/8 3ffe::1/128 2:0:0:0:0:9) -> ToDPDKDevice(a)",
    );
    let mut wrong = vec![solicitation(5); 4];
    wrong[0][12] = 8;
    wrong[1][21] = 254;
    wrong[2][54] = 136;
    wrong[3][70] ^= 1;
    wrong.push(solicitation(5)[..85].to_vec());
    let padded = [&solicitation(5)[..], &[0; 10]].concat();
    let sent = bed.at(1, [&[&wrong[..], &[padded, solicitation(6)]].concat(), NONE]);
    for ((_, frame), (host, station)) in sent.iter().zip([(5, 5), (6, 1)]) {
        let ethernet = [&hex("4000 0000 0007 0200 0000 00")[..], &[station], &hex("86dd")].concat();
        let head = [
            &hex("6000 0000 0020 3aff")[..],
            &address(host),
            &hex("3ffe 1ce1 0002 0000 0000 0000 0000 0001"),
        ];
        assert_eq!((&frame[..14], &frame[14..54]), (&ethernet[..], &head.concat()[..]));
        let message =
            [&hex("c000 0000")[..], &address(host), &hex("02 01 0200 0000 00"), &[station]].concat();
        assert_eq!((&frame[54..56], &frame[58..]), (&[136, 0][..], &message[..]));
        assert_eq!(message_sum(&frame[14..]), 0xffff);
    }
    assert_eq!(sent.len(), 2);
    assert_eq!(
        [bed.dropped("no_solicitation"), bed.dropped("bad_checksum"), bed.dropped("too_short")],
        [3, 1, 1]
    );
}

/// Answer of a host, by a router that was asked.
fn advertisement(host: u8) -> Vec<u8> {
    let message =
        [&hex("88 00 0000 c0000000")[..], &address(host), &hex("02 01 0400 0000 00"), &[host]].concat();
    [&hex("0200 0000 0001 0400 0000 0005 86dd")[..], &packet(58, 255, 1, &message)].concat()
}

#[test]
fn a_packet_waits_until_its_neighbour_has_said_where_it_is() {
    let mut bed = Bed::new(
        "n :: IP6NDSolicitor(3ffe:1ce1:2::1, 2:0:0:0:0:1); FromDevice(in) -> GetIP6Address(24) -> [0] n; \
            FromDevice(out) -> [1] n;
            n -> ToDPDKDevice(out)",
    );
    let one = [packet(17, 64, 5, &[1, 2, 3])];
    let asked = bed.at(1, [&one, NONE]);
    assert_eq!(asked.len(), 1);
    let frame = &asked[0].1;
    // RFC 4861, 4.3, to the group of RFC 4291, 2.7.1.
    let head =
        hex("3333 ff00 0005 0200 0000 0001 86dd 6000 0000 0020 3aff 3ffe 1ce1 0002 0000 0000 0000 0000 0001
        ff02 0000 0000 0000 0000 0001 ff00 0005 8700");
    let rest = [&hex("0000 0000")[..], &address(5), &hex("01 01 0200 0000 0001")].concat();
    assert_eq!((&frame[..56], &frame[58..], message_sum(&frame[14..])), (&head[..], &rest[..], 0xffff));
    assert_eq!(bed.at(1, [&one, NONE]), [], "asked a moment ago");
    let mut wrong = vec![advertisement(5); 3];
    wrong[0][54] = 135;
    wrong[1][78] = 1;
    wrong[2][21] = 64;
    wrong.push(advertisement(5)[..85].to_vec());
    assert_eq!(bed.at(2, [NONE, &wrong]), []);
    let framed = [&hex("0400 0000 0005 0200 0000 0001 86dd")[..], &one[0]].concat();
    assert_eq!(bed.at(2, [NONE, &[advertisement(5)]]), [(0, framed.clone())]);
    assert_eq!(bed.at(3, [&one, NONE]), [(0, framed)]);
    assert_eq!(
        bed.at(123, [&one, NONE]).first().map(|(_, f)| f[54]),
        Some(135),
        "an answer holds for two minutes"
    );
    assert_eq!(
        [bed.dropped("no_advertisement"), bed.dropped("too_short"), bed.dropped("waits_for_hop")],
        [3, 1, 1]
    );
}
