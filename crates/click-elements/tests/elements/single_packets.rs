//! Elements on single packets, as native code. Results for many real packets are compared with a peer's by
//! `bench/click.py`.

use crate::common::{hex, number, sum};
use millstream_click::{ClickProgram, Graph, HostInterface, STATE, flatten, parse};
use millstream_click_elements::compile;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};

/// Outcome of packets: those sent, with their output, and the dropped ones by reason.
struct Outcome {
    sent: Vec<(usize, Vec<u8>)>,
    dropped: Vec<(String, u64)>,
    state: Vec<u8>,
    program: ClickProgram,
}

impl Outcome {
    fn handler(&self, element: &str, name: &str) -> u64 {
        let found = self.program.handlers.iter().find(|h| h.element == element && h.name == name);
        match found.expect("the handler").access {
            millstream_click::HandlerAccess::Number(at) => number(&self.state, at),
            ref other => panic!("{other:?}"),
        }
    }
}

/// Runs frames through a configuration, with the passes and without, which must be the same.
fn run(text: &str, frames: &[Vec<u8>]) -> Outcome {
    let one = run_with(text, frames, true);
    let other = run_with(text, frames, false);
    assert_eq!((&one.sent, &one.dropped), (&other.sent, &other.dropped));
    one
}

fn run_with(text: &str, frames: &[Vec<u8>], passes: bool) -> Outcome {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    let options = NativeOptions { passes, ..NativeOptions::default() };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    for entry in &program.code.entries {
        let map = engine.map(&entry.map).expect("the map");
        assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
    }
    let feeds: Vec<SourceFrames<'_>> =
        program.sources.iter().map(|_| SourceFrames { frames, count: frames.len() as u64 }).collect();
    let mut sent = Vec::new();
    let ran = run_graph(&mut engine, &feeds, program.targets.len(), 3, |p| {
        sent.push((p.output, p.bytes.to_vec()));
        Ok(())
    });
    let ran = ran.expect("memory");
    let state = engine.map(STATE).expect("the state").get(&[0; 4]).expect("one value");
    let dropped: Vec<(String, u64)> = program
        .drops
        .iter()
        .map(|d| (format!("{} {}", d.element, d.reason), number(&state, d.offset)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let received: u64 = ran.received.iter().sum();
    let copies = ran.copies + number(&state, program.uncloned);
    let all_dropped: u64 = dropped.iter().map(|(_, count)| count).sum();
    assert_eq!(received + copies, sent.len() as u64 + all_dropped + ran.unfit, "the account");
    Outcome { sent, dropped, state, program }
}

/// A UDP datagram from 1.0.0.1 to 2.0.0.2, with Ethernet header; its IP checksum is right.
fn datagram() -> Vec<u8> {
    hex("0000c0ae67ef 000000000000 0800 45000028 00000000 401177c3 01000001 02000002 13691369 0014d641
         55445020 7061636b 6574210a")
}

#[test]
fn packets_are_classified_counted_and_dropped() {
    let text = "FromDevice(a) -> c :: Classifier(12/0800 23/11, 12/08?? 40/01, !0/00) -> ip :: Counter \
        -> Queue -> ToDevice(b);
        c[1] -> Discard; c[2] -> d :: Discard";
    let short = vec![0; 13];
    let ran = run(text, &[datagram(), short.clone(), vec![1; 60], vec![0; 60]]);
    assert_eq!(ran.sent, [(0, datagram())]);
    assert_eq!(ran.dropped, [("c no_pattern".to_owned(), 2), ("d discarded".to_owned(), 1)]);
    assert_eq!((ran.handler("ip", "count"), ran.handler("ip", "byte_count")), (1, 54));
}

#[test]
fn a_router_path_checks_decrements_and_encapsulates() {
    let text = "FromDump(a) -> Strip(14) -> c :: CheckIPHeader -> rt :: RadixIPLookup(2.0.0.0/8 9.9.9.9 1, 0/0 0);
        rt[0] -> Discard; rt[1] -> d :: DecIPTTL -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> ToDump(b)";
    let mut expired = datagram();
    (expired[22], expired[24]) = (1, 0xb6);
    let mut wrong = datagram();
    wrong[24] ^= 1;
    let ran = run(text, &[datagram(), expired, wrong, datagram()[..30].to_vec()]);
    let [(0, packet), rest @ ..] = &ran.sent[..] else { panic!("{:?}", ran.sent) };
    assert!(rest.is_empty());
    assert_eq!(packet[..14], hex("020202020202 010101010101 0800"));
    assert_eq!((packet[22], sum(&packet[14..34]), packet.len()), (63, 0xffff, 54));
    let reasons: Vec<&str> = ran.dropped.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["c bad_checksum", "c too_short", "d ttl_expired"]);
}

#[test]
fn copies_come_in_the_order_of_calls() {
    let text = "FromDump(a) -> t :: Tee(3); o :: ToDump(b); u :: Tee(2);
        t -> u -> Strip(1) -> o; u[1] -> Strip(2) -> o; t[1] -> p :: Paint(7) -> PaintTee(7) -> Strip(3) -> o;
        t[2] -> Strip(5) -> o";
    let text = text.replace("PaintTee(7) ->", "q :: PaintTee(7) ->") + "; q[1] -> Strip(4) -> o";
    let ran = run(&text, &[vec![0; 60], vec![0; 70]]);
    let lengths: Vec<usize> = ran.sent.iter().map(|(_, bytes)| bytes.len()).collect();
    // `PaintTee` sends its copy first.
    assert_eq!(lengths, [59, 58, 56, 57, 55, 69, 68, 66, 67, 65]);
}

#[test]
fn a_copy_keeps_its_annotations() {
    let text = "FromDump(a) -> Paint(3) -> MarkIPHeader(14) -> t :: Tee(2) -> Discard;
        t[1] -> GetIPAddress(IP dst) -> k :: CheckPaint(3) -> StaticIPLookup(2.0.0.2/32 0) -> ToDump(b)";
    assert_eq!(run(text, &[datagram()]).sent, [(0, datagram())]);
}

#[test]
fn packets_that_go_round_for_ever_are_dropped() {
    // The way round has other outputs, which these packets never take.
    let text =
        "FromDump(a) -> c :: Classifier(0/01, -) -> [0] s :: Null -> k :: CheckLength(1500) -> t :: Tee;
        t[0] -> s; t[1] -> Discard; k[1] -> Discard; c[1] -> ToDump(b)";
    let ran = run(text, &[vec![1; 60], vec![0; 60]]);
    assert_eq!(ran.sent, [(0, vec![0; 60])]);
    let endless: u64 = ran.dropped.iter().filter(|(what, _)| what.ends_with("endless")).map(|d| d.1).sum();
    assert_eq!(endless, 1, "{:?}", ran.dropped);
}

#[test]
fn too_many_copies_are_counted_and_no_stall() {
    let outputs = |tee: &str, to: &str| (0..40).map(|n| format!("{tee}[{n}] -> {to};")).collect::<String>();
    let text = format!(
        "FromDump(a) -> t :: Tee; u :: Tee; o :: Discard; {}{}",
        outputs("t", "u"),
        outputs("u", "o")
    );
    let ran = run(&text, &vec![vec![0; 60]; 3]);
    let lost: u64 =
        ran.dropped.iter().filter(|(reason, _)| reason.ends_with("no_buffer")).map(|(_, lost)| lost).sum();
    // Of the first packet there are 39 copies, and would be 39 of each of 40; for the others no buffer is
    // left.
    assert_eq!(lost, 3 * 39 + (40 + 1 + 1) * 39 - 1024);
}

#[test]
fn arp_requests_are_answered() {
    let text = "FromDump(a) -> r :: ARPResponder(18.26.4.24 18.26.7.0/24 00-00-C0-AE-67-EF); \
        r[0] -> ToDump(b); r[1] -> ToDump(c)";
    let request = |wanted: &str| {
        hex(&format!(
            "ffffffffffff 0a0b0c0d0e0f 0806 0001 0800 06 04 0001 0a0b0c0d0e0f 121a0401 000000000000 {wanted} 00000000"
        ))
    };
    let ran = run(text, &[request("121a0705"), request("121a0805")]);
    let answer = hex(
        "0a0b0c0d0e0f 0000c0ae67ef 0806 0001 0800 06 04 0002 0000c0ae67ef 121a0705 0a0b0c0d0e0f 121a0401",
    );
    assert_eq!(ran.sent, [(0, answer), (1, request("121a0805"))]);
}

#[test]
fn errors_carry_the_packet_they_speak_of() {
    let text = "FromDump(a) -> Strip(14) -> CheckIPHeader -> Paint(1) \
        -> ICMPError(18.26.4.24, unreachable, needfrag, PMTU 1400)
        -> FixIPSrc(5.6.7.8) -> ToDump(b)";
    let mut icmp = datagram();
    // An ICMP error (type 3), which no error may be sent about, and a fragment.
    (icmp[23], icmp[34], icmp[24], icmp[25]) = (1, 3, 0x77, 0xd3);
    let ran = run(text, &[datagram(), icmp]);
    let [(0, error)] = &ran.sent[..] else { panic!("{:?}", ran.sent) };
    assert_eq!(error[28..], datagram()[14..]);
    assert_eq!(error[12..20], [5, 6, 7, 8, 1, 0, 0, 1]);
    assert_eq!(error[20..22], [3, 4]);
    assert_eq!(error[26..28], 1400u16.to_be_bytes());
    assert_eq!((sum(&error[..20]), sum(&error[20..])), (0xffff, 0xffff));
    assert_eq!(ran.dropped, [("ICMPError@5 icmp_error".to_owned(), 1)]);
}

#[test]
fn long_packets_are_cut_into_fragments_in_order() {
    let text = "FromDump(a) -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> f :: IPFragmenter(70) \
        -> ToDump(b); f[1] -> ToDump(c)";
    let mut frame = datagram()[..34].to_vec();
    frame.extend((0..98u8).collect::<Vec<_>>());
    (frame[16], frame[17], frame[20]) = (0, 118, 0);
    let mut whole = frame.clone();
    whole[20] = 0x40;
    let ran = run(text, &[frame.clone(), whole.clone()]);
    let [fragments @ .., (1, refused)] = &ran.sent[..] else { panic!("{:?}", ran.sent) };
    assert_eq!(*refused, whole[14..]);
    let heads: Vec<(usize, [u8; 2])> = fragments.iter().map(|(_, f)| (f.len(), [f[6], f[7]])).collect();
    assert_eq!(heads, [(68, [0x20, 0]), (68, [0x20, 6]), (22, [0, 12])]);
    assert!(fragments.iter().all(|(_, f)| sum(&f[..20]) == 0xffff));
    let data: Vec<u8> = fragments.iter().flat_map(|(_, f)| f[20..].to_vec()).collect();
    assert_eq!(data, frame[34..]);
}

#[test]
fn routes_are_recorded_and_bad_options_reported() {
    let text =
        "FromDump(a) -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> o :: IPGWOptions(9.8.7.6) -> ToDump(b);
        o[1] -> ICMPError(1.2.3.4, parameterproblem) -> ToDump(c)";
    let with = |options: &str| {
        let options = hex(options);
        let mut frame = datagram()[..34].to_vec();
        frame[14] = 0x45 + options.len() as u8 / 4;
        frame.extend(&options);
        frame.extend([0; 8]);
        (frame[16], frame[17]) = (0, frame.len() as u8 - 14);
        frame
    };
    let frames = [
        with("01 07 07 04 00000000"),
        with("07 07 08 01010101 00"),
        with("07 08 06 0000000000"),
        with("01 83 0c 04 00000000"),
    ];
    let ran = run(text, &frames);
    let [(0, recorded), (0, full), (1, no_room), (1, too_long)] = &ran.sent[..] else {
        panic!("{:?}", ran.sent)
    };
    assert_eq!(recorded[20..28], hex("01 07 07 08 09080706"));
    assert_eq!(sum(&recorded[..28]), 0xffff);
    assert_eq!(*full, frames[1][14..]);
    // Where the error is, counted from the header.
    assert_eq!((no_room[20], no_room[24], too_long[24]), (12, 22, 22));
}

#[test]
fn expressions_choose_outputs() {
    let text =
        |rules: &str| format!("FromDump(a) -> MarkIPHeader(14) -> f :: IPFilter({rules}); f -> ToDump(b)");
    for (rule, holds) in [
        ("udp", true),
        ("tcp", false),
        ("src host 1.0.0.1", true),
        ("dst 1.0.0.1", false),
        ("host 2.0.0.2", true),
        ("src net 1.0.0.0/8 and dst 2.0.0.0/8", true),
        ("port 4969", true),
        ("tcp port 4969", false),
        ("src udp port 80 or 4969", true),
        ("src udp domain or dns", false),
        ("dst udp domain or 4969", true),
        ("dst tcp ssh or 4969", false),
        ("dst port > 5000", false),
        ("dst port != 4969", false),
        ("ip ttl 64 && !(tcp || icmp)", true),
        ("ip unfrag", true),
        ("ip[8] 64", true),
        ("udp[4:2] 20", true),
        ("tcp ? false : udp", true),
        ("syn", false),
        ("not syn", true),
        ("ip hl 5 and ip vers 4", true),
        ("ip tos & 0xff == 0", true),
        ("all", true),
        ("false", false),
        ("src and dst host 1.0.0.1", false),
        // Numbers at an offset compare as fields do, and values lose the bits outside of a mask.
        ("ip[8] > 63", true),
        ("ip[8:1] <= 63", false),
        ("ip[2:2] & 0xff", true),
        ("ip ttl & 0x40 255", true),
        ("ip[8] & 0x40 != 255", false),
        ("src or dst host != 1.0.0.1", false),
        ("ip proto gre", false),
        // The length in the header, whatever is behind the packet.
        ("ip len 40", true),
        // The form of a value says what it is of.
        ("udp port 4969 and src != 1.0.0.2", true),
        ("udp port 4969 and dst == 1.0.0.2", false),
        ("src port 4969 and != 80", true),
        // Either protocol.
        ("tcpudp", true),
        ("tcpudp port >= 1024", true),
        ("dst tcpudp port 4970", false),
        ("tcpudp src port 4969 and not tcp", true),
    ] {
        let ran =
            run_with(&text(&format!("allow {rule}, deny all")), &[[datagram(), vec![0; 6]].concat()], true);
        assert_eq!(ran.sent.len(), usize::from(holds), "{rule}");
    }
}

/// `src or dst port < 100` denies that one of both is 100 or above.
#[test]
fn contraries_deny_the_whole() {
    let mut frame = datagram();
    frame[34..38].copy_from_slice(&[0, 80, 0x23, 0x28]);
    for (rule, holds) in [
        ("src or dst port > 99", true),
        ("src and dst port > 99", false),
        ("src or dst port < 100", false),
        ("src and dst port < 100", true),
        ("src or dst port <= 9000", true),
        ("src or dst port >= 9000", true),
        ("src or dst port != 80", false),
    ] {
        let text = format!("FromDump(a) -> MarkIPHeader(14) -> IPFilter(allow {rule}) -> ToDump(b)");
        assert_eq!(run(&text, &[frame.clone()]).sent.len(), usize::from(holds), "{rule}");
    }
}

#[test]
fn expressions_compare_ethernet_addresses() {
    for (rule, holds) in [
        ("dst 0:0:c0:ae:67:ef", true),
        ("src 0:0:c0:ae:67:ef", false),
        ("ether host 00-00-C0-AE-67-EF", true),
        ("ether src 0:0:0:0:0:0 and udp", true),
        ("src and dst ether host 0:0:c0:ae:67:ef", false),
        ("host 0:0:0:0:0:1", false),
        ("ether dst != 0:0:c0:ae:67:ef", false),
        ("src 1.0.0.1 & 1.0.0.0 = 1.0.0.0", true),
        ("dst host & 255.0.0.0 = 2.0.0.0", true),
    ] {
        let text = format!("FromDump(a) -> MarkIPHeader(14) -> IPFilter(allow {rule}) -> ToDump(b)");
        assert_eq!(run(&text, &[datagram()]).sent.len(), usize::from(holds), "{rule}");
    }
    // The header is there behind the packet's beginning, too.
    let stripped = "FromDump(a) -> Strip(14) -> MarkIPHeader -> \
        IPFilter(allow dst 0:0:c0:ae:67:ef) -> ToDump(b)";
    assert_eq!(run(stripped, &[datagram()]).sent.len(), 1);
}

#[test]
fn what_has_met_congestion_is_capable_of_saying_so() {
    for (class, capable) in [(0, false), (1, true), (2, true), (3, true), (0xfc, false)] {
        let mut frame = datagram();
        frame[15] = class;
        let ran = run("FromDump(a) -> MarkIPHeader(14) -> IPFilter(allow ip ect) -> ToDump(b)", &[frame]);
        assert_eq!(ran.sent.len(), usize::from(capable), "{class}");
    }
}

#[test]
fn data_is_stored_as_far_as_packets_reach() {
    let frames = [20, 21, 22, 25].map(|length| vec![0xff; length]);
    let sent = |arguments: &str| -> Vec<Vec<u8>> {
        let text = format!("FromDump(a) -> StoreData(20, {arguments}) -> ToDump(b)");
        run(&text, &frames).sent.into_iter().map(|(_, packet)| packet).collect()
    };
    let of = |ends: [&str; 4]| ends.map(|end| [&[0xff; 20][..], &hex(end)].concat()).to_vec();
    assert_eq!(sent(r"\<010203>"), of(["", "01", "01 02", "01 02 03 ff ff"]));
    assert_eq!(sent(r"\<010203>, GROW true"), of(["", "01 02 03", "01 02 03", "01 02 03 ff ff"]));
    assert_eq!(sent(r"\<010203>, \<0f>"), of(["", "f1", "f1 02", "f1 02 03 ff ff"]));
}

#[test]
fn clauses_of_masks_without_bits_hold_of_short_packets() {
    let text = "FromDump(a) -> c :: Classifier(22/80%00 !27/14, -); c[0] -> ToDump(0); c[1] -> ToDump(1)";
    let sent = run(text, &[vec![0; 15], vec![0x14; 40]]).sent;
    assert_eq!(sent.iter().map(|(to, packet)| (*to, packet.len())).collect::<Vec<_>>(), [(0, 15), (1, 40)]);
}

#[test]
fn names_of_addresses_may_have_what_is_meant_behind_them() {
    let text = "AddressInfo(me 10.0.0.1 10.0.0.0/8 1:2:3:4:5:6, you 7:8:9:a:b:c);
        FromDump(a) -> EtherEncap(0x0800, me:eth, you:eth) -> IPEncap(4, me:ip, me) -> ToDump(b)";
    let ran = run(text, &[vec![0; 60]]);
    assert_eq!(ran.sent[0].1[12..20], [10, 0, 0, 1, 10, 0, 0, 1]);
    assert_eq!(ran.sent[0].1[20..32], [7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6]);
}

/// Initial entries of a table of routes: length and address of each prefix.
fn routed(graph: &Graph) -> Vec<(u32, [u8; 4])> {
    let program = compile(graph).unwrap_or_else(|e| panic!("{e:?}"));
    let key = |key: &[u8]| {
        let (bits, address) = key.split_at(4);
        (u32::from_le_bytes(bits.try_into().unwrap()), address.try_into().unwrap())
    };
    program.code.entries.iter().map(|entry| key(&entry.key)).collect()
}

#[test]
fn a_name_is_rather_an_address_than_its_prefix() {
    let text = "AddressInfo(here 10.1.18.3/20, there 10.2.0.0/16, both 10.3.0.0/16 10.3.0.9);
        FromDump(a) -> MarkIPHeader -> rt :: LinearIPLookup(here 0, here:ipnet 0, here:bcast 0, here:gw 0, \
            there 0, both 0, both:net 0) -> Discard";
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let expected = [
        (32, [10, 1, 18, 3]),
        (20, [10, 1, 16, 0]),
        (32, [10, 1, 31, 255]),
        (32, [10, 1, 16, 1]),
        (16, [10, 2, 0, 0]),
        (32, [10, 3, 0, 9]),
        (16, [10, 3, 0, 0]),
    ];
    assert_eq!(routed(&graph), expected);
    let filter = "AddressInfo(here 10.1.18.3/20, there 10.2.0.0/16); FromDump(a) -> MarkIPHeader(0)
        -> c :: IPClassifier(src net here, src host here, src there, -);
        c[0] -> ToDump(0); c[1] -> ToDump(1); c[2] -> ToDump(2); c[3] -> ToDump(3)";
    let from =
        |address: [u8; 4]| [&[0x45, 0, 0, 20, 0, 0, 0, 0, 9, 17, 0, 0][..], &address, &[0; 4]].concat();
    let frames = [[10, 1, 16, 1], [10, 2, 3, 4], [10, 1, 32, 1]].map(from);
    let outputs: Vec<usize> = run(filter, &frames).sent.iter().map(|(output, _)| *output).collect();
    assert_eq!(outputs, [0, 2, 3]);
}

#[test]
fn interfaces_lend_their_names_what_is_not_said_of_these() {
    let text = "AddressInfo(eth0 10.0.0.9, out 10.0.0.8 eth1); FromDump(a) -> MarkIPHeader
        -> LinearIPLookup(eth0 0, eth0:ipnet 0, eth0:gw 0, eth1:ip 0, eth1:bcast 0, eth1:gw 0) -> Discard;
        FromDump(b) -> EtherEncap(0x0800, eth0, eth1:eth) -> ARPResponder(eth1) -> ARPResponder(out) -> Discard";
    let mut graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let interface = |name: &str, gateway| HostInterface {
        name: name.into(),
        ether: Some([2; 6]),
        ip: Some((0xc000_0202, 0xffff_ff00)),
        gateway,
    };
    graph.interfaces = vec![interface("eth0", Some(0xc000_02fe)), interface("eth1", None)];
    let expected = [
        (32, [10, 0, 0, 9]),
        (24, [192, 0, 2, 0]),
        (32, [192, 0, 2, 254]),
        (32, [192, 0, 2, 2]),
        (32, [192, 0, 2, 255]),
        (32, [192, 0, 2, 1]),
    ];
    assert_eq!(routed(&graph), expected);
}

#[test]
fn cut_and_foreign_packets_are_never_read_beyond_their_end() {
    let text = "FromDump(a) -> c :: Classifier(12/0800, -); c[1] -> ARPResponder(0/0 1:1:1:1:1:1) -> Discard;
        c -> Strip(14) -> k :: CheckIPHeader(CHECKSUM false) \
            -> IPClassifier(tcp opt syn, src port 5, icmp type echo, -) => i :: Null, i, i, i;
        k[1] -> Discard; i -> DecIPTTL -> ICMPError(1.2.3.4, timeexceeded) -> FixIPSrc(4.5.6.7) \
            -> StripIPHeader -> Discard";
    let whole = datagram();
    let mut frames: Vec<Vec<u8>> = (0..whole.len()).map(|n| whole[..n].to_vec()).collect();
    for header in 0..16 {
        for total in [0u8, 19, 20, 39, 40, 255] {
            let mut frame = whole.clone();
            (frame[14], frame[17], frame[23]) = (0x40 | header, total, [1, 6, 17][usize::from(header % 3)]);
            frames.push(frame);
        }
    }
    let ran = run(text, &frames);
    assert_eq!(ran.dropped.iter().map(|(_, n)| *n).sum::<u64>(), frames.len() as u64);
}

/// A frame between two addresses of one byte each.
fn frame(to: u8, from: u8) -> Vec<u8> {
    [&[to & 1, 0, 0, 0, 0, to][..], &[0, 0, 0, 0, 0, from], &[8, 0], &[0; 46]].concat()
}

#[test]
fn a_switch_floods_until_it_knows_and_never_sends_back() {
    let text = "FromDevice(a) -> side :: Classifier(11/02, 11/04, -); s :: EtherSwitch; side[0] -> [0] s;
        side[1] -> [1] s; side[2] -> [2] s; s[0] -> ToDump(0); s[1] -> ToDump(1); s[2] -> ToDump(2)";
    let frames = [frame(4, 2), frame(2, 4), frame(4, 2), frame(6, 2), frame(1, 4), frame(2, 2), vec![0; 11]];
    let ran = run(text, &frames);
    let expected = [
        // Not known; then both are; a third one is not; a group; itself.
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 2),
        (1, 3),
        (2, 3),
        (0, 4),
        (2, 4),
    ];
    let expected: Vec<_> =
        expected.iter().map(|&(output, at): &(usize, usize)| (output, frames[at].clone())).collect();
    assert_eq!(ran.sent, expected);
    assert_eq!(ran.dropped, [("s same_port".to_owned(), 1), ("s too_short".to_owned(), 1)]);
}

/// Buffers are used again: bytes of an earlier frame behind the end of a short one are not looked at.
#[test]
fn a_frame_too_short_for_an_address_is_for_this_host() {
    let broadcast = vec![0xff; 64];
    let short: Vec<Vec<u8>> = (0..6).map(|bytes| vec![0xff; bytes]).collect();
    let frames: Vec<Vec<u8>> = std::iter::repeat_n(broadcast, 2_000).chain(short.clone()).collect();
    let outcome = run("FromDevice(a) -> DropBroadcasts -> ToDPDKDevice(b)", &frames);
    let sent: Vec<Vec<u8>> = outcome.sent.into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(sent, short);
}

#[test]
fn a_host_filter_passes_what_its_device_would_receive() {
    let frame = |to: &str, from: &str| hex(&format!("{to}{from}0800{}", "00".repeat(46)));
    let (own, other) = ("020000000001", "020000000002");
    let frames = [
        frame(own, other),
        frame(other, own),
        frame("ffffffffffff", other),
        frame("01005e000001", other),
        frame("020000000101", other),
        frame(own, own),
    ];
    let numbers = |text: &str, output: usize| -> Vec<usize> {
        let sent = run(text, &frames).sent.into_iter().filter(|(to, _)| *to == output);
        sent.map(|(_, bytes)| frames.iter().position(|f| *f == bytes).expect("as it came")).collect()
    };
    let both = "FromDevice(in) -> h :: HostEtherFilter(2:0:0:0:0:1, true) -> ToDPDKDevice(a); h[1] -> ToDPDKDevice(b)";
    assert_eq!((numbers(both, 0), numbers(both, 1)), (vec![0, 2, 3], vec![1, 4, 5]));
    let all = "FromDevice(in) -> HostEtherFilter(2:0:0:0:0:1, DROP_OTHER false) -> ToDPDKDevice(a)";
    assert_eq!(numbers(all, 0), [0, 1, 2, 3, 4, 5]);
    // Its annotation decides which packets others drop.
    let cast = "FromDump(in) -> HostEtherFilter(2:0:0:0:0:1) -> DropBroadcasts -> ToDPDKDevice(a)";
    assert_eq!(numbers(cast, 0), [0, 5]);
}

#[test]
fn a_checksum_that_is_set_is_right() {
    let mut wrong = datagram();
    wrong[24] ^= 0x55;
    let fixed = run(
        "FromDevice(in) -> Strip(14) -> MarkIPHeader -> s :: SetIPChecksum \
        -> CheckIPHeader(CHECKSUM true) -> Unstrip(14)
        -> ToDPDKDevice(a)",
        &[wrong.clone(), wrong[..30].to_vec()],
    );
    assert_eq!(fixed.sent, [(0, datagram())]);
    assert_eq!(fixed.dropped, [("s too_short".to_owned(), 1)]);
}

#[test]
fn pullers_may_be_copied_from_and_averages_count() {
    let text = "FromDevice(in) -> MarkMACHeader -> Align(4, 2) -> SetTimestamp -> Queue -> t :: PullTee
        -> c :: AverageCounter(IGNORE 1) -> ToDevice(a); t[1] -> ToDPDKDevice(b); \
            ControlSocket(TCP, 7777); DPDKInfo(65536)";
    let out = run(text, &[datagram(), datagram()]);
    assert_eq!(out.sent.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [0, 1, 0, 1]);
    // Nothing comes behind the first second.
    assert_eq!(out.handler("c", "count"), 0);
}

#[test]
fn red_needs_a_queue_and_passes_packets_while_it_is_empty() {
    let text = |queue: &str| {
        format!("FromDump(a) -> red :: RED(5, 50, 0.02) {queue} -> ToDump(b); red[1] -> Discard")
    };
    let errors = |text: &str| {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        compile(&graph).err().unwrap_or_default()
    };
    assert_eq!(errors(&text("-> Counter")).len(), 1);
    assert_eq!(errors(&text("-> Queue -> Unqueue")), []);
    assert_eq!(run(&text("-> Queue -> Unqueue"), &vec![vec![0; 60]; 50]).sent.len(), 50);
}

#[test]
fn a_hub_sends_to_all_other_ports() {
    let out = run(
        "FromDevice(a) -> h :: Hub -> ToDPDKDevice(0); Idle -> [1] h [1] -> ToDPDKDevice(1); \
         Idle -> [2] h [2] -> ToDPDKDevice(2);",
        &[datagram()],
    );
    assert_eq!(out.sent, [(1, datagram()), (2, datagram())]);
}

#[test]
fn a_tagged_header_comes_and_goes() {
    let out = run(
        "FromDevice(a) -> Strip(14) -> EtherVLANEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2, VLAN_ID 5) \
         -> t :: Tee -> ToDPDKDevice(0); t [1] -> StripEtherVLANHeader -> ToDPDKDevice(1);",
        &[datagram()],
    );
    let inner = &datagram()[14..];
    let tagged = [&hex("020202020202 010101010101 8100 0005 0800")[..], inner].concat();
    assert_eq!(out.sent, [(0, tagged), (1, inner.to_vec())]);
}

#[test]
fn packets_leave_by_a_fixed_output_or_that_of_a_message() {
    let out = run(
        "FromDevice(a) -> s :: StaticSwitch(1); s [0] -> Discard; s [1] -> Strip(14) -> Truncate(28) \
         -> Strip(20) -> ICMPIPEncap(1.0.0.1, 1.0.0.2, echo-reply, IDENTIFIER 7) -> ToDPDKDevice(0);",
        &[datagram()],
    );
    let [(0, sent)] = &out.sent[..] else { panic!("{:?}", out.sent) };
    assert_eq!((sent.len(), sent[9], &sent[20..22], &sent[24..26]), (36, 1, &[0, 0][..], &[0, 7][..]));
    assert_eq!((sum(&sent[..20]), sum(&sent[20..])), (0xffff, 0xffff));
    assert_eq!(sent[28..], datagram()[34..42]);
}
