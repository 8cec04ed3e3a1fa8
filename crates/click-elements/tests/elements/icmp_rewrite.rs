//! Echoes, errors about flows, and addresses alone are translated: out and back, but not for senders that
//! must not use a flow.

use crate::common::{Bed, packet, seal, sealed, sum};

const INSIDE: [u8; 4] = [10, 0, 0, 5];
const NAT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 7];
const ROUTER: [u8; 4] = [203, 0, 113, 9];

/// An ICMP message in a packet; both checksums are right.
fn icmp([from, to]: [[u8; 4]; 2], kind: u8, word: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let length = 28 + rest.len() as u16;
    let mut packet = [&[0x45, 0][..], &length.to_be_bytes(), &[0, 9, 0, 0, 64, 1, 0, 0]].concat();
    packet.extend([from, to].concat());
    packet.extend([&[kind, 0, 0, 0][..], &word, rest].concat());
    seal(&mut packet[20..], 2, 0);
    seal(&mut packet[..20], 10, 0);
    packet
}

fn echo(ends: [[u8; 4]; 2], is_request: bool, identifier: u16) -> Vec<u8> {
    let [high, low] = identifier.to_be_bytes();
    icmp(ends, if is_request { 8 } else { 0 }, [high, low, 0, 1], b"abc")
}

fn ends(packet: &[u8]) -> [[u8; 4]; 2] {
    [12, 16].map(|at| packet[at..at + 4].try_into().expect("four bytes"))
}

fn identifier(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[24], packet[25]])
}

/// Both checksums of an ICMP packet are right.
fn icmp_sealed(packet: &[u8]) -> bool {
    sum(&packet[..20]) == 0xffff && sum(&packet[20..]) == 0xffff
}

fn only(sent: Vec<(usize, Vec<u8>)>) -> (usize, Vec<u8>) {
    let [one] = <[_; 1]>::try_from(sent).unwrap_or_else(|sent| panic!("{sent:02x?}"));
    one
}

/// `rw` between two sides.
fn between(rewriter: &str) -> Bed {
    Bed::new(&format!(
        "rw :: {rewriter};
        FromDevice(in) -> MarkIPHeader -> [0] rw; FromDevice(out) -> MarkIPHeader -> [1] rw;
        rw[0] -> ToDPDKDevice(out); rw[1] -> ToDPDKDevice(in)"
    ))
}

#[test]
fn pings_find_their_way_back_and_requests_are_no_answers() {
    let mut bed = between("ICMPPingRewriter(pattern 192.0.2.1 1024-65535# - - 0 1, drop)");
    let (output, out) = only(bed.at(1, [&[echo([INSIDE, SERVER], true, 77)], &[]]));
    assert_eq!((output, ends(&out), identifier(&out)), (0, [NAT, SERVER], 1024));
    assert!(icmp_sealed(&out), "{out:02x?}");
    // The same identifier of another host is another flow.
    let (_, other) = only(bed.at(1, [&[echo([[10, 0, 0, 6], SERVER], true, 77)], &[]]));
    assert_eq!(identifier(&other), 1025);
    let strangers =
        [echo([SERVER, NAT], false, 1026), echo([SERVER, NAT], true, 1024), echo([ROUTER, NAT], false, 1024)];
    assert_eq!(bed.at(2, [&[], &strangers]), []);
    assert_eq!(bed.dropped("no_mapping"), 3);
    let (output, back) = only(bed.at(2, [&[], &[echo([SERVER, NAT], false, 1024)]]));
    assert_eq!((output, ends(&back), identifier(&back)), (1, [SERVER, INSIDE], 77));
    assert!(icmp_sealed(&back), "{back:02x?}");
    // Answers without a request begin no flow; nor do packets that are not echoes.
    let odd = [echo([INSIDE, SERVER], false, 5), packet(17, [INSIDE, SERVER], [5000, 53], 0)];
    assert_eq!(bed.at(3, [&odd, &[]]), []);
    assert_eq!((bed.dropped("no_mapping"), bed.dropped("no_echo")), (4, 1));
    assert_eq!(bed.at(303, [&[], &[echo([SERVER, NAT], false, 1024)]]), [], "five minutes have gone by");
}

#[test]
fn a_message_of_zeros_gets_the_other_zero_as_its_checksum() {
    let mut bed = between("ICMPPingRewriter(pattern 192.0.2.1 1024-65535# - - 0 1, drop)");
    let nothing = |ends, kind, word| icmp(ends, kind, word, &[]);
    let (_, out) = only(bed.at(1, [&[nothing([INSIDE, SERVER], 8, [0; 4])], &[]]));
    assert_eq!(identifier(&out), 1024);
    let (_, back) = only(bed.at(1, [&[], &[nothing([SERVER, NAT], 0, [4, 0, 0, 0])]]));
    assert_eq!(back[20..], [0, 0, 0xff, 0xff, 0, 0, 0, 0]);
}

/// Rewriters of both kinds, and errors back: those that are mapped leave by the first output, others by the
/// second.
fn with_errors() -> Bed {
    Bed::new(
        "rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 1, drop, UDP_TIMEOUT 100);
        ping :: ICMPPingRewriter(pattern 192.0.2.1 2048-65535# - - 0 1, drop);
        errors :: ICMPRewriter(rw ping);
        FromDevice(in) -> MarkIPHeader -> c :: IPClassifier(icmp type echo, -); c[0] -> [0] ping; c[1] -> [0] rw;
        FromDevice(out) -> MarkIPHeader -> errors;
        Idle -> [1] rw; Idle -> [1] ping;
        rw[0] -> far :: ToDPDKDevice(out); ping[0] -> far; rw[1] -> Discard; ping[1] -> Discard;
        errors[0] -> rt :: StaticIPLookup(10.0.0.0/8 0, 0/0 1) -> ToDPDKDevice(in); rt[1] -> Discard;
        errors[1] -> ToDPDKDevice(other)",
    )
}

/// Outputs of [`with_errors`].
const IN: usize = 1;
const OTHER: usize = 2;

#[test]
fn errors_reach_who_sent_the_packet_that_they_are_about() {
    let mut bed = with_errors();
    let udp = packet(17, [INSIDE, SERVER], [5000, 53], 0);
    let tcp = packet(6, [INSIDE, SERVER], [5000, 80], 2);
    let ping = echo([INSIDE, SERVER], true, 77);
    for (kind, original) in [(3, udp), (11, tcp), (4, ping)] {
        let (_, out) = only(bed.at(1, [std::slice::from_ref(&original), &[]]));
        assert_eq!(ends(&out), [NAT, SERVER]);
        // All of it, and the least that there must be (RFC 792).
        for carried in [out.len(), 28] {
            let error = icmp([ROUTER, NAT], kind, [0, 0, 5, 0], &out[..carried]);
            let (output, back) = only(bed.at(2, [&[], &[error]]));
            assert_eq!((output, ends(&back)), (IN, [ROUTER, INSIDE]), "with the annotation");
            assert!(icmp_sealed(&back), "{back:02x?}");
            assert_eq!(back[28..], original[..carried], "as it was sent");
        }
    }
}

#[test]
fn what_is_about_no_flow_is_not_changed() {
    let mut bed = with_errors();
    let original = packet(17, [INSIDE, SERVER], [5000, 53], 0);
    let (_, out) = only(bed.at(1, [&[original], &[]]));
    let about = |carried: &[u8]| icmp([ROUTER, NAT], 3, [0; 4], carried);
    let mut fragment = out.clone();
    fragment[7] = 1;
    let mut old = out.clone();
    old[0] = 0x44;
    let others = [
        about(&packet(17, [NAT, SERVER], [1025, 53], 0)),
        about(&packet(6, [NAT, SERVER], [1024, 53], 0)),
        about(&fragment),
        about(&old),
        about(&out[..19]),
        about(&out[..27]),
        echo([ROUTER, NAT], false, 1024),
    ];
    for other in others {
        let sent = bed.at(2, [&[], std::slice::from_ref(&other)]);
        assert_eq!(sent, [(OTHER, other)]);
    }
    assert_eq!(bed.at(2, [&[], &[packet(6, [SERVER, NAT], [80, 1024], 2)]]), []);
    assert_eq!(bed.dropped("no_icmp"), 1);
    // An error does not keep the flow alive.
    assert_eq!(only(bed.at(90, [&[], &[about(&out)]])).0, IN);
    assert_eq!(only(bed.at(120, [&[], &[about(&out)]])).0, OTHER);
}

#[test]
fn who_answers_with_an_error_stays_behind_the_address_that_was_asked() {
    let mut bed = Bed::new(
        "rw :: IPRewriter(pattern - - 10.0.0.5 - 0 1, drop); errors :: ICMPRewriter(rw:0);
        FromDevice(world) -> MarkIPHeader -> [0] rw; FromDevice(inside) -> MarkIPHeader -> errors;
        Idle -> [1] rw; rw[0] -> ToDPDKDevice(inside); rw[1] -> Discard;
        errors[0] -> Discard; errors[1] -> ToDPDKDevice(world)",
    );
    let original = packet(17, [SERVER, NAT], [5000, 53], 0);
    let (_, arrived) = only(bed.at(1, [std::slice::from_ref(&original), &[]]));
    assert_eq!(ends(&arrived), [SERVER, INSIDE]);
    let refused = icmp([INSIDE, SERVER], 3, [0; 4], &arrived);
    let (output, back) = only(bed.at(2, [&[], &[refused]]));
    assert_eq!((output, ends(&back)), (1, [NAT, SERVER]), "by the output of the flow's answers");
    assert!(icmp_sealed(&back), "{back:02x?}");
    assert_eq!(back[28..], original);
}

#[test]
fn hosts_have_an_address_each_as_long_as_there_are_some() {
    for pattern in ["192.0.2.1-192.0.2.2#", "192.0.2.0/30#", "192.0.2.0/30"] {
        let mut bed = between(&format!("IPAddrRewriter(pattern {pattern} - 0 1, drop)"));
        let from = |host: u8| packet(17, [[10, 0, 0, host], SERVER], [5000, 53], 0);
        let sent = bed.at(1, [&[from(5), from(6), from(7)], &[]]);
        let mut given: Vec<u8> = sent.iter().map(|(_, p)| p[15]).collect();
        assert!(sent.iter().all(|(_, p)| p[12..15] == NAT[..3] && sealed(p)));
        if pattern.ends_with('#') {
            assert_eq!(given, [1, 2]);
        }
        given.sort_unstable();
        assert_eq!((given, bed.dropped("no_free_address")), (vec![1, 2], 1), "{pattern}");
        // Any protocol, any port, and fragments, to any host.
        let own = sent[0].1[15];
        let mut fragment = packet(17, [ROUTER, [192, 0, 2, own]], [1, 2], 0);
        (fragment[7], fragment[9]) = (2, 99);
        seal(&mut fragment[..20], 10, 0);
        let (output, back) = only(bed.at(2, [&[], std::slice::from_ref(&fragment)]));
        assert_eq!((output, ends(&back)), (1, [ROUTER, INSIDE]));
        assert_eq!((sum(&back[..20]), &back[20..]), (0xffff, &fragment[20..]));
        let whole = packet(6, [ROUTER, [192, 0, 2, own]], [1, 2], 2);
        assert!(sealed(&only(bed.at(2, [&[], &[whole]])).1));
        assert_eq!(bed.at(3, [&[], &[packet(17, [SERVER, [192, 0, 2, 9]], [53, 5000], 0)]]), []);
        assert_eq!(bed.dropped("no_mapping"), 1);
    }
}

#[test]
fn pairs_of_addresses_are_changed_together() {
    let mut bed = between("IPAddrPairRewriter(pattern 192.0.2.1 203.0.113.9 0 1, drop)");
    let (_, out) = only(bed.at(1, [&[packet(6, [INSIDE, SERVER], [5000, 80], 2)], &[]]));
    assert_eq!(ends(&out), [NAT, ROUTER]);
    assert!(sealed(&out), "{out:02x?}");
    let (output, back) = only(bed.at(2, [&[], &[packet(6, [ROUTER, NAT], [80, 5000], 18)]]));
    assert_eq!((output, ends(&back)), (1, [SERVER, INSIDE]));
    assert!(sealed(&back), "{back:02x?}");
    assert_eq!(bed.at(2, [&[], &[packet(6, [SERVER, NAT], [80, 5000], 18)]]), []);
}

#[test]
fn errors_about_addresses_alone_are_mapped_too() {
    for (class, pattern) in
        [("IPAddrRewriter", "192.0.2.1 -"), ("IPAddrPairRewriter", "192.0.2.1 203.0.113.9")]
    {
        let mut bed = Bed::new(&format!(
            "rw :: {class}(pattern {pattern} 0 1, drop); errors :: ICMPRewriter(rw, DST_ANNO false);
            FromDevice(in) -> MarkIPHeader -> [0] rw; FromDevice(out) -> MarkIPHeader -> errors;
            Idle -> [1] rw; rw[0] -> ToDPDKDevice(out); rw[1] -> Discard; errors[0] -> ToDPDKDevice(in)"
        ));
        let original = packet(17, [INSIDE, SERVER], [5000, 53], 0);
        let (_, out) = only(bed.at(1, [std::slice::from_ref(&original), &[]]));
        let (_, back) = only(bed.at(2, [&[], &[icmp([ROUTER, NAT], 11, [0; 4], &out)]]));
        assert_eq!((&back[16..20], &back[28..]), (&INSIDE[..], &original[..]), "{class}");
        assert!(icmp_sealed(&back), "{back:02x?}");
        assert_eq!(
            bed.at(2, [&[], &[icmp([ROUTER, NAT], 11, [0; 4], &original)]]),
            [],
            "no output for others"
        );
        assert_eq!(bed.dropped("no_mapping"), 1);
    }
}
