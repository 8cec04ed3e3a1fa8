//! Elements of hosts, as native code: packets of sources, headers that they put in front, swap and sum up,
//! echo requests.

use crate::common::{Bed, hex, sum};
use millstream_click::{ClickProgram, GraphSource, flatten, parse};
use millstream_click_elements::compile;

const NONE: &[Vec<u8>] = &[];

fn program(text: &str) -> ClickProgram {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    compile(&graph).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

/// Packets that the one source of a configuration sends, and the limit.
fn frames(text: &str) -> (Vec<Vec<u8>>, Option<u64>) {
    let mut sources = program(text).sources;
    match sources.pop().expect("a source") {
        GraphSource::Frames(frames, limit) => (frames, limit),
        GraphSource::Constant(frame, limit) => (vec![frame], limit),
        other => panic!("{other:?}"),
    }
}

/// The sum of TCP or UDP with the pseudo header: 0xffff where the checksum is right.
fn transport_sum(packet: &[u8]) -> u32 {
    let length = (packet.len() - 20) as u16;
    let pseudo = [&packet[12..20], &[0, packet[9]], &length.to_be_bytes()].concat();
    sum(&[&pseudo[..], &packet[20..]].concat())
}

/// A packet between 1.0.0.1 and 2.0.0.2 with right sums of the IP header only.
fn packet(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = hex("4500 0000 0000 4000 4000 0000 01000001 02000002");
    packet[3] = 20 + rest.len() as u8;
    packet[9] = protocol;
    let header = !(sum(&packet) as u16);
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    packet.extend(rest);
    packet
}

#[test]
fn flows_change_ports_after_their_packets_and_are_the_same_in_every_run() {
    let text = |more: &str| {
        format!(
            "FastUDPFlows(RATE 0, LIMIT 12, LENGTH 64, SRCETH 1:1:1:1:1:1, DSTETH 2:2:2:2:2:2, \
                SRCIP 10.0.0.1, DSTIP 10.0.0.2, FLOWS 2,
                FLOWSIZE 3, SEQUENTIAL true{more}) -> Discard"
        )
    };
    let (all, limit) = frames(&text(""));
    assert_eq!((all.len(), limit), (12, Some(12)));
    assert_eq!(all, frames(&text("")).0);
    for frame in &all {
        let head = hex("0202 0202 0202 0101 0101 0101 0800 4500 0032 0000 0000 fa11");
        assert_eq!((frame.len(), &frame[..24]), (64, &head[..]));
        assert_eq!((&frame[26..34], &frame[38..40]), (&[10, 0, 0, 1, 10, 0, 0, 2][..], &[0, 30][..]));
        assert_eq!((sum(&frame[14..34]), transport_sum(&frame[14..])), (0xffff, 0xffff));
    }
    let ports = |frame: &Vec<u8>| [34, 36].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
    let ports: Vec<[u16; 2]> = all.iter().map(ports).collect();
    // Two flows by turns, three packets each, then the next ports.
    assert_eq!([ports[0], ports[1]], [ports[2], ports[3]]);
    assert_ne!(ports[0], ports[1]);
    assert_eq!(ports[6], ports[0].map(|port| port.wrapping_add(1)));
    let (plain, _) = frames(&text(", CHECKSUM false"));
    assert!(plain.iter().all(|frame| frame[40..42] == [0, 0]));
    assert_eq!(frames(&text(", ACTIVE false")).1, Some(0));
}

#[test]
fn datagrams_and_echo_requests_are_made_as_said() {
    let (all, limit) = frames(
        "FastUDPSource(100, -1, 60, 1:1:1:1:1:1, 10.0.0.1, 1000, 2:2:2:2:2:2, 10.0.0.2, 2000) -> Discard",
    );
    assert_eq!((all.len(), limit), (1, None));
    assert_eq!((&all[0][34..40], transport_sum(&all[0][14..])), (&[3, 232, 7, 208, 0, 26][..], 0xffff));
    let (all, _) =
        frames("ICMPPingSource(10.0.0.1, 10.0.0.2, LIMIT 3, IDENTIFIER 7, DATA \"abc\") -> Discard");
    for (number, packet) in (1..).zip(&all) {
        assert_eq!((&packet[4..6], &packet[6..10]), (&[0, number][..], &[0, 0, 200, 1][..]));
        assert_eq!((&packet[20..22], &packet[24..]), (&[8, 0][..], &[7, 0, 0, number, b'a', b'b', b'c'][..]));
        assert_eq!((sum(&packet[..20]), sum(&packet[20..])), (0xffff, 0xffff));
    }
    assert_eq!(all.len(), 3);
    let (all, limit) = frames("RatedSource(\"ab\", 10, 5, LENGTH 4) -> Discard");
    assert_eq!((all, limit), (vec![b"abab".to_vec()], Some(5)));
    let (all, limit) = frames("TimedSource(0.5, \\<0102>) -> Discard");
    assert_eq!((all, limit), (vec![vec![1, 2]], None));
}

#[test]
fn interfaces_of_the_host_send_and_receive() {
    let mut bed =
        Bed::new("FromDevice(a) -> KernelTap(10.0.0.1/24, DEVNAME tap0) -> Strip(1) -> ToDPDKDevice(b)");
    let frame = vec![9; 20];
    // The configuration's first device, and the interface.
    let sent = bed.at(1, [std::slice::from_ref(&frame), NONE]);
    assert_eq!(sent, [(0, frame.clone())]);
    assert_eq!(bed.at(1, [NONE, std::slice::from_ref(&frame)]), [(1, frame[1..].to_vec())]);
    let program = program("Idle -> KernelTun(10.0.0.1/24) -> CheckIPHeader -> Discard");
    assert_eq!(program.sources, [GraphSource::Device("KernelTun@2".into())]);
}

#[test]
fn sums_of_tcp_and_udp_are_set_where_all_of_them_is_there() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> c :: IPClassifier(tcp, -); c -> SetTCPChecksum -> ToDPDKDevice(a);
            c[1] -> u :: SetUDPChecksum -> ToDPDKDevice(b); u[1] -> ToDPDKDevice(c)",
    );
    let tcp = packet(6, &hex("0001 0002 00000003 00000004 5010 0005 dead 0000 616263"));
    let udp = packet(17, &hex("0001 0002 000b dead 616263"));
    let mut fragment = udp.clone();
    fragment[6] = 0x20;
    let mut short = udp.clone();
    short[25] = 12;
    let sent =
        bed.at(1, [&[tcp.clone(), udp.clone(), fragment.clone(), short.clone(), tcp[..39].to_vec()], NONE]);
    assert_eq!(sent[2..], [(2, fragment), (2, short)]);
    for ((output, sent), (place, given)) in sent.iter().zip([(36, &tcp), (26, &udp)]) {
        assert_eq!((*output, transport_sum(sent)), (usize::from(place == 26), 0xffff));
        assert_eq!((&sent[..place], &sent[place + 2..]), (&given[..place], &given[place + 2..]));
    }
    assert_eq!(bed.dropped("too_short"), 1);
}

#[test]
fn mirrored_packets_go_back_with_sums_that_stay_right() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> IPMirror -> StaticIPLookup(1.0.0.1/32 0) -> ToDPDKDevice(a)",
    );
    let tcp = packet(6, &hex("0001 0002 00000003 00000004 5010 0005 dead 0000"));
    let expected = packet(6, &hex("0002 0001 00000004 00000003 5010 0005 dead 0000"));
    let mut later = packet(17, &hex("0001 0002 000b dead"));
    later[7] = 1;
    let sent = bed.at(1, [&[tcp, packet(1, &[1, 2]), later.clone()], NONE]);
    let swapped = |packet: &[u8]| [&packet[..12], &packet[16..20], &packet[12..16], &packet[20..]].concat();
    assert_eq!(
        sent.into_iter().map(|(_, p)| p).collect::<Vec<_>>(),
        [swapped(&expected), swapped(&packet(1, &[1, 2])), swapped(&later)]
    );
}

#[test]
fn datagrams_are_put_around_packets() {
    let mut bed = Bed::new(
        "FromDevice(a) -> UDPIPEncap(1.0.0.1, 5, 2.0.0.2, 6) -> StaticIPLookup(2.0.0.2/32 0) -> ToDPDKDevice(a)",
    );
    let sent = bed.at(1, [&[b"odd".to_vec(), b"even".to_vec()], NONE]);
    for (id, ((_, packet), data)) in sent.iter().zip([&b"odd"[..], b"even"]).enumerate() {
        let whole = 28 + data.len() as u8;
        assert_eq!(packet[..10], [0x45, 0, 0, whole, 0, id as u8, 0, 0, 250, 17]);
        assert_eq!(packet[12..26], [1, 0, 0, 1, 2, 0, 0, 2, 0, 5, 0, 6, 0, whole - 20]);
        assert_eq!((&packet[28..], sum(&packet[..20]), transport_sum(packet)), (data, 0xffff, 0xffff));
    }
    assert_eq!(sent.len(), 2);
}

#[test]
fn echo_requests_are_answered_and_addresses_stored() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> p :: ICMPPingResponder -> r :: IPClassifier(icmp echo-reply, -)
            -> ToDPDKDevice(a); r[1] -> Discard; p[1] -> StoreIPAddress(9.8.7.6, 16) -> ToDPDKDevice(b)",
    );
    let mut request = packet(1, &hex("0800 0000 1234 0001 6162 63"));
    let echo = !(sum(&request[20..]) as u16);
    request[22..24].copy_from_slice(&echo.to_be_bytes());
    let other = packet(17, &[0; 8]);
    let sent = bed.at(1, [&[request.clone(), other.clone()], NONE]);
    let (_, answer) = &sent[0];
    assert_eq!(answer[6..9], [0, 0, 255]);
    assert_eq!((&answer[12..22], &answer[24..]), (&[2, 0, 0, 2, 1, 0, 0, 1, 0, 0][..], &request[24..]));
    assert_eq!((sum(&answer[..20]), sum(&answer[20..])), (0xffff, 0xffff));
    assert_eq!(sent[1], (1, [&other[..16], &[9, 8, 7, 6], &other[20..]].concat()));
}

#[test]
fn packets_go_into_others_with_a_header_of_their_own() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> GetIPAddress(16) \
        -> IPEncap(ipip, 9.8.7.6, DST_ANNO, TTL 9, DSCP 3, ECT 2, DF true)
        -> rt :: StaticIPLookup(2.0.0.2/32 0, 0/0 1) -> CheckIPHeader(CHECKSUM true) \
            -> ToDPDKDevice(a); rt[1] -> Discard;
        FromDevice(b) -> IPEncap(99, 1.1.1.1, 5.5.5.5) -> CheckIPHeader(CHECKSUM true) -> ToDPDKDevice(b)",
    );
    let inner = packet(17, b"abcdefgh");
    let sent = bed.at(1, [&[inner.clone(), inner.clone()], &[vec![1, 2, 3]]]);
    let outer = |id: u8| hex(&format!("450e 0030 00{id:02x} 4000 0904"));
    for (id, packet) in [(0, &sent[0]), (1, &sent[1])] {
        assert_eq!((packet.0, &packet.1[..10], &packet.1[20..]), (0, &outer(id)[..], &inner[..]));
        assert_eq!(packet.1[12..20], [9, 8, 7, 6, 2, 0, 0, 2]);
    }
    let (output, other) = &sent[2];
    assert_eq!((*output, &other[..10]), (1, &hex("4500 0017 0000 0000 fa63")[..]));
    assert_eq!(other[12..], [1, 1, 1, 1, 5, 5, 5, 5, 1, 2, 3]);
}

#[test]
fn packets_are_made_longer_with_zeros_and_cut() {
    let mut bed = Bed::new(
        "FromDevice(a) -> Pad(60) -> ToDPDKDevice(a); FromDevice(b) -> Pad(90, MAXLENGTH 40) -> Pad -> ToDPDKDevice(b)",
    );
    let of = |length: usize| vec![7; length];
    let sent = bed.at(1, [&[of(20), of(61)], &[of(20), of(40), of(41)]]);
    let lengths: Vec<_> = sent.iter().map(|(output, packet)| (*output, packet.len())).collect();
    assert_eq!(lengths, [(0, 60), (0, 61), (1, 40), (1, 40), (1, 40)]);
    assert_eq!(sent[0].1, [&[7; 20][..], &[0; 40]].concat());
    assert_eq!(sent[4].1, [7; 40]);
    // A packet that is too short for the kernel's own way to lengthen packets is not sent with uninitialized
    // bytes.
    let mut bed = Bed::new("FromDevice(a) -> Pad(9) -> ToDPDKDevice(a); FromDevice(b) -> Discard");
    assert_eq!(bed.at(1, [&[of(3)], NONE]), []);
    assert_eq!(bed.dropped("no_tailroom"), 1);
}

#[test]
fn outputs_take_turns() {
    let mut bed = Bed::new(
        "FromDevice(a) -> rr :: RoundRobinSwitch -> ToDPDKDevice(0); rr[1] -> ToDPDKDevice(1); \
         rr[2] -> ToDPDKDevice(2); FromDevice(b) -> Discard",
    );
    let all = vec![vec![1; 60]; 5];
    let turns = |bed: &mut Bed| bed.at(1, [&all, NONE]).iter().map(|(output, _)| *output).collect::<Vec<_>>();
    assert_eq!((turns(&mut bed), turns(&mut bed)), (vec![0, 1, 2, 0, 1], vec![2, 0, 1, 2, 0]));
}

#[test]
fn sums_are_set_as_cards_do() {
    let mut bed = Bed::new(
        "FromDevice(a) -> MarkIPHeader -> ResetIPChecksum(L4 true) -> ToDPDKDevice(a);
        FromDevice(b) -> MarkIPHeader -> ResetIPChecksum -> ToDPDKDevice(b)",
    );
    let wrong = |protocol, rest: &[u8]| {
        let mut packet = packet(protocol, rest);
        packet[10] ^= 1;
        packet
    };
    let udp = wrong(17, &hex("0001 0002 000a 1111 6162"));
    let tcp = wrong(6, &hex("0001 0002 00000001 00000002 5010 0100 1111 0000 61"));
    let mut fragment = udp.clone();
    fragment[6] = 0x20;
    let cut = wrong(6, &hex("0001 0002 0000"));
    let sent =
        bed.at(1, [&[udp.clone(), tcp.clone(), fragment.clone(), cut.clone()], std::slice::from_ref(&udp)]);
    assert!(sent.iter().all(|(_, packet)| sum(&packet[..20]) == 0xffff), "{sent:02x?}");
    for at in [0, 1] {
        assert_eq!(transport_sum(&sent[at].1), 0xffff, "{:02x?}", sent[at].1);
    }
    // A packet without a sum here, or with one that cannot be computed, keeps its bytes.
    for (at, before) in [(2, fragment), (3, cut), (4, udp)] {
        assert_eq!(sent[at].1[20..], before[20..]);
    }
}
