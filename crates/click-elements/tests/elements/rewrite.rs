//! Flows that are translated: out, back, without a free port, and after their time. Results for real traffic
//! are compared with a peer's by `bench/click.py`.

use crate::common::{Bed, packet, sealed, sum};

fn ends(packet: &[u8]) -> ([u8; 4], u16, [u8; 4], u16) {
    let address = |at: usize| packet[at..at + 4].try_into().expect("four bytes");
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    (address(12), port(20), address(16), port(22))
}

const INSIDE: [u8; 4] = [10, 0, 0, 5];
const NAT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 7];

fn nat(pattern: &str, more: &str) -> Bed {
    Bed::new(&format!(
        "rw :: IPRewriter(pattern {pattern} 0 1, drop{more});
        FromDevice(in) -> MarkIPHeader -> [0] rw; FromDevice(out) -> MarkIPHeader -> [1] rw;
        rw[0] -> ToDPDKDevice(out); rw[1] -> ToDPDKDevice(in)"
    ))
}

#[test]
fn answers_find_their_way_back_and_nobody_else_does() {
    for protocol in [6, 17] {
        let mut bed = nat("192.0.2.1 1024-65535# - -", "");
        let there = packet(protocol, [INSIDE, SERVER], [5000, 80], 2);
        let sent = bed.at(1, [std::slice::from_ref(&there), &[]]);
        let [(0, out)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(ends(out), (NAT, 1024, SERVER, 80));
        assert!(sealed(out), "{out:02x?}");
        let answer = packet(protocol, [SERVER, NAT], [80, 1024], 16);
        let stranger = packet(protocol, [SERVER, NAT], [81, 1024], 16);
        let sent = bed.at(2, [&[], &[stranger, answer]]);
        let [(1, back)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(ends(back), (SERVER, 80, INSIDE, 5000));
        assert!(sealed(back), "{back:02x?}");
        assert_eq!(bed.dropped("no_mapping"), 1);
    }
}

#[test]
fn ports_are_given_out_once_each_until_none_is_left() {
    for suffix in ["", "#", "?"] {
        let mut bed = nat(&format!("192.0.2.1 2000-2002{suffix} - -"), "");
        let flows: Vec<Vec<u8>> = (0..5).map(|n| packet(17, [INSIDE, SERVER], [2001 + n, 53], 0)).collect();
        let sent = bed.at(1, [&flows, &[]]);
        let mut ports: Vec<u16> = sent.iter().map(|(_, p)| ends(p).1).collect();
        if suffix.is_empty() {
            assert_eq!(ports[..2], [2001, 2002], "a flow keeps its port where that is free");
        }
        ports.sort_unstable();
        assert_eq!(ports, [2000, 2001, 2002], "{suffix}");
        assert_eq!(bed.dropped("no_free_port"), 2);
        // Known flows keep their ports; another server's answers do not collide.
        let again = bed.at(2, [&flows[..1], &[]]);
        assert_eq!(again[0], sent[0]);
        let other = packet(17, [INSIDE, [198, 51, 100, 8]], [2001, 53], 0);
        assert_eq!(bed.at(3, [&[other], &[]]).len(), 1);
    }
}

#[test]
fn flows_end_when_neither_direction_was_used_for_their_time() {
    let mut bed = nat("192.0.2.1 1024-65535# - -", ", UDP_TIMEOUT 100, TCP_DONE_TIMEOUT 10");
    let there = [packet(17, [INSIDE, SERVER], [5000, 53], 0)];
    let answer = [packet(17, [SERVER, NAT], [53, 1024], 0)];
    assert_eq!(bed.at(0, [&there, &[]]).len(), 1);
    assert_eq!(bed.at(90, [&[], &answer]).len(), 1);
    let kept = bed.at(180, [&there, &[]]);
    assert_eq!(ends(&kept[0].1).1, 1024, "the answer has kept the flow alive");
    assert_eq!(bed.at(300, [&[], &answer]).len(), 0, "nothing came for 120 seconds");
    assert_eq!(bed.dropped("no_mapping"), 1);
    let new = bed.at(301, [&there, &[]]);
    assert_eq!(ends(&new[0].1).1, 1025, "a new flow has the next port");

    let there = [packet(6, [INSIDE, SERVER], [5000, 80], 2)];
    let ends_it = [packet(6, [INSIDE, SERVER], [5000, 80], 4)];
    let answer = [packet(6, [SERVER, NAT], [80, 1026], 1)];
    assert_eq!(bed.at(400, [&there, &[]]).len(), 1);
    assert_eq!(bed.at(3000, [&[], &answer]).len(), 1, "TCP lasts");
    assert_eq!(bed.at(3001, [&ends_it, &[]]).len(), 1);
    assert_eq!(bed.at(3020, [&[], &answer]).len(), 0, "both directions have ended");
}

#[test]
fn segments_that_are_cut_off_get_addresses_only_as_the_peer_has_it() {
    let mut bed = nat("192.0.2.1 1024-65535# - -", "");
    let cut = packet(6, [INSIDE, SERVER], [5000, 80], 2)[..30].to_vec();
    let sent = bed.at(1, [std::slice::from_ref(&cut), &[]]);
    let [(0, out)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(ends(out), (NAT, 5000, SERVER, 80));
    assert_eq!((sum(&out[..20]), &out[20..]), (0xffff, &cut[20..]));
}

#[test]
fn a_configuration_that_takes_anothers_place_knows_its_flows_and_counts() {
    let mut old = nat("192.0.2.1 1024-65535# - -", "");
    let there = packet(17, [INSIDE, SERVER], [5000, 53], 0);
    let stranger = packet(17, [SERVER, NAT], [99, 1024], 0);
    assert_eq!(old.at(1, [&[there], &[stranger]]).len(), 1);
    let mut new = nat("192.0.2.1 1024-65535# - -", ", UDP_TIMEOUT 60");
    new.take_over(&mut old);
    assert_eq!(new.dropped("no_mapping"), 1);
    let sent = new.at(2, [&[], &[packet(17, [SERVER, NAT], [53, 1024], 0)]]);
    let [(1, back)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(ends(back), (SERVER, 53, INSIDE, 5000));
    let other = new.at(3, [&[packet(17, [INSIDE, SERVER], [5001, 53], 0)], &[]]);
    assert_eq!(ends(&other[0].1).1, 1025, "the next port, too");
}

#[test]
fn what_has_no_ports_passes_or_is_dropped() {
    let mut fragment = packet(17, [INSIDE, SERVER], [5000, 53], 0);
    fragment[7] = 9;
    let mut icmp = packet(17, [INSIDE, SERVER], [5000, 53], 0);
    icmp[9] = 1;
    let short = packet(17, [INSIDE, SERVER], [5000, 53], 0)[..24].to_vec();
    let odd = [fragment, icmp, short];
    let mut bed = nat("192.0.2.1 1024-65535# - -", "");
    assert_eq!(bed.at(1, [&odd, &[]]).len(), 0);
    assert_eq!(bed.dropped("not_tcp_or_udp"), 3);
    let mut bed = Bed::new(
        "rw :: IPRewriter(pass 0, keep 0 1);
        FromDevice(in) -> MarkIPHeader -> [0] rw; FromDevice(out) -> MarkIPHeader -> [1] rw;
        rw[0] -> ToDPDKDevice(out); rw[1] -> ToDPDKDevice(in)",
    );
    let sent = bed.at(1, [&odd, &[]]);
    assert_eq!(sent.into_iter().map(|(_, p)| p).collect::<Vec<_>>(), odd);
    // A flow that is kept as it is lets its answers through the other input.
    let there = packet(17, [INSIDE, SERVER], [5000, 53], 0);
    let answer = packet(17, [SERVER, INSIDE], [53, 5000], 0);
    assert_eq!(bed.at(2, [&[], std::slice::from_ref(&there)]), [(0, there)]);
    assert_eq!(bed.at(3, [std::slice::from_ref(&answer), &[]]), [(1, answer)]);
}

#[test]
fn a_destination_is_annotated_unless_that_is_said() {
    for (more, output) in [("", 1), (", DST_ANNO true", 1), (", DST_ANNO false", 0)] {
        // The output shows the annotation: it was in 10.0.0.0/8 before, and becomes one in 203.0.113.0/24.
        let mut bed = Bed::new(&format!(
            "FromDevice(in) -> MarkIPHeader -> SetIPAddress(10.9.9.9)
            -> IPRewriter(pattern - - 203.0.113.9 - 0 0{more})
            -> rt :: StaticIPLookup(10.0.0.0/8 0, 203.0.113.0/24 1, 0/0 2);
            rt[0] -> ToDPDKDevice(a); rt[1] -> ToDPDKDevice(b); rt[2] -> ToDPDKDevice(c)"
        ));
        let there = packet(17, [INSIDE, SERVER], [5000, 80], 0);
        // The first of a flow, and one that is known.
        let sent = bed.at(1, [&[there.clone(), there], &[]]);
        let outputs: Vec<usize> = sent.iter().map(|(to, _)| *to).collect();
        assert_eq!(outputs, [output, output], "{more}");
        assert!(sent.iter().all(|(_, bytes)| ends(bytes).2 == [203, 0, 113, 9]), "{more}");
    }
}
