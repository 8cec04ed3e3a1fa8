//! `ARPQuerier`: questions, answers, and packets that wait.

use crate::common::Bed;

fn bed() -> Bed {
    Bed::new(
        "AddressInfo(me 10.0.0.1 2:0:0:0:0:1); q :: ARPQuerier(me, TIMEOUT 60);
        FromDevice(in) -> GetIPAddress(16) -> [0] q; FromDevice(out) -> [1] q; q -> ToDPDKDevice(out)",
    )
}

/// An IP packet to a host of the net, of a length.
fn packet(host: u8, length: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..length as u32).map(|n| (n * 7 + u32::from(host)) as u8).collect();
    packet[16..20].copy_from_slice(&[10, 0, 0, host]);
    packet
}

fn question(host: u8) -> Vec<u8> {
    let mut out = vec![0xff; 6];
    out.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    out.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, host]);
    out
}

/// The host's answer; its address ends in its number.
fn answer(host: u8) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, host, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
    out.extend([4, 0, 0, 0, 0, host, 10, 0, 0, host, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    out.resize(60, 0);
    out
}

fn framed(host: u8, packet: &[u8]) -> Vec<u8> {
    [&[4, 0, 0, 0, 0, host, 2, 0, 0, 0, 0, 1, 8, 0][..], packet].concat()
}

#[test]
fn the_latest_packet_waits_for_the_answer_and_later_ones_do_not() {
    let mut bed = bed();
    for (host, length) in [(7, 20), (8, 83), (9, 1500), (10, 1536)] {
        let first = packet(host, length + host as usize % 2);
        let latest = packet(host, length);
        let asked = bed.at(1, [&[first], &[]]);
        assert_eq!(asked, [(0, question(host))]);
        assert_eq!(bed.at(1, [std::slice::from_ref(&latest), &[]]), [], "asked a moment ago");
        let sent = bed.at(2, [&[], &[answer(host)]]);
        assert_eq!(sent, [(0, framed(host, &latest))]);
        assert_eq!(bed.at(3, [std::slice::from_ref(&latest), &[]]), [(0, framed(host, &latest))]);
        assert_eq!(bed.at(3, [&[], &[answer(host)]]), [], "nobody waits any more");
    }
    assert_eq!((bed.dropped("waits_for_hop"), bed.dropped("arp_reply")), (4, 4));
}

#[test]
fn answers_hold_for_their_time_and_questions_are_asked_again() {
    let mut bed = bed();
    let one = [packet(7, 40)];
    // An unsolicited answer is remembered, too.
    assert_eq!(bed.at(1, [&[], &[answer(7)]]), []);
    assert_eq!(bed.at(60, [&one, &[]]), [(0, framed(7, &one[0]))]);
    assert_eq!(bed.at(62, [&one, &[]]), [(0, question(7))]);
    assert_eq!(bed.at(63, [&one, &[]]), [(0, question(7))], "no answer for a second");
}

#[test]
fn packets_that_are_too_long_do_not_wait_and_what_is_no_answer_is_dropped() {
    let mut bed = bed();
    assert_eq!(bed.at(1, [&[packet(7, 1600)], &[]]), [(0, question(7))]);
    let mut wrong = vec![answer(7)[..41].to_vec(), question(7), answer(7), answer(7)];
    wrong[2][22] |= 1;
    wrong[3][17] = 1;
    assert_eq!(bed.at(1, [&[], &wrong]), []);
    assert_eq!((bed.dropped("no_arp_reply"), bed.dropped("too_short")), (3, 1));
    assert_eq!(bed.at(1, [&[], &[answer(7)]]), []);
    assert_eq!(bed.dropped("arp_reply"), 1);
}
