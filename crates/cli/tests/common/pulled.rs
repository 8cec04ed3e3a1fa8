//! Elements that choose what is pulled, and those that hold packets in tables, as Click's driver runs them.

use std::path::Path;

use crate::driver::{click, simulated, wrapper};

/// Standard error of a configuration in simulated time.
fn printed(text: &str) -> String {
    click(&["--simtime"], text).2
}

#[test]
fn a_switch_pulls_from_one_input_and_the_others_keep_their_packets() {
    for class in ["PullSwitch", "SimplePullSwitch"] {
        let text = format!(
            "InfiniteSource(DATA a, LIMIT 2) -> s :: {class}(-1) -> Print(CONTENTS ASCII) -> Discard; \
             InfiniteSource(DATA b, LIMIT 2) -> Queue -> [1] s; \
             Script(wait 1, write s.switch 1, wait 1, write s.switch 0, wait 1, stop)"
        );
        assert_eq!(printed(&text), "   1 |  b\n   1 |  b\n   1 |  a\n   1 |  a\n", "{class}");
    }
    let fixed = "InfiniteSource(DATA a, LIMIT 2) -> s :: StaticPullSwitch(1) -> Print(CONTENTS ASCII) \
        -> Discard; b :: InfiniteSource(DATA b, LIMIT 2) -> [1] s; Script(wait 1, stop)";
    assert_eq!(printed(fixed), "   1 |  b\n   1 |  b\n");
}

#[test]
fn a_source_is_scheduled_unless_its_queue_is_full_or_its_limit_is_reached() {
    let text = "i :: InfiniteSource -> c :: Counter -> Queue(5) -> s :: PullSwitch(1) \
        -> Counter(COUNT_CALL 2 s.switch 1) -> Discard; Idle -> [1] s; \
        Script(wait 0.1, print $(i.scheduled) $(c.count), write s.switch 0, wait 0.1, \
            print $(i.scheduled) $(c.count), stop)";
    assert_eq!(simulated(text), "false 5\nfalse 7\n");
    let text = "i :: InfiniteSource(LIMIT 3, ACTIVE false) -> Queue(5) -> Idle; \
        Script(wait 0.1, print $(i.scheduled), write i.active true, print $(i.scheduled), wait 0.1, \
            print $(i.scheduled), stop)";
    assert_eq!(simulated(text), "false\ntrue\nfalse\n");
}

#[test]
fn a_call_of_a_pulled_element_takes_effect_with_the_next_packet() {
    let text = "InfiniteSource(DATA x, LIMIT 4, STOP true) -> PullNull -> Counter(COUNT_CALL 3 b.active true) \
        -> b :: Bypass -> Print(direct) -> Discard; b[1] -> Print(round) -> [1] b";
    let line = |name: &str| format!("{name}:    1 | 78\n");
    let expected = ["direct", "direct", "direct", "round", "direct"].map(line).concat();
    assert_eq!(printed(text), expected);
    let pushed = text.replace("PullNull", "Queue -> Unqueue");
    let expected = ["direct", "direct", "round", "direct", "round", "direct"].map(line).concat();
    assert_eq!(printed(&pushed), expected);
}

#[test]
fn the_second_output_of_a_shaper_has_what_is_beyond_the_rate() {
    let text = "i :: InfiniteSource(LIMIT 100) -> s :: Shaper(500) => ([0] -> c :: Counter -> [0]; [1] -> [1]) \
        => RoundRobinSched -> all :: Counter -> TimedSink(1ms); \
        Script(wait 150ms, write c.reset, write all.reset, write s.reset, write i.reset, wait 150ms, \
            print $(all.count) $(ge $(c.count) 48) $(le $(c.count) 52), stop)";
    assert_eq!(simulated(text), "100 true true\n");
    let (code, _, said) = click(&["-q"], "Idle -> s :: Shaper(1) -> Discard; s[1] -> Discard");
    assert_eq!(code, Some(2));
    assert!(said.contains("must lead to one scheduler"), "{said}");
}

/// Packets and bytes behind an `IPReassembler`, of a packet of 128 bytes whose fragments go through these
/// elements.
fn reassembled(between: &str) -> String {
    let text = format!(
        "InfiniteSource(LIMIT 1, LENGTH 100) -> UDPIPEncap(1.0.0.1, 2, 3.0.0.3, 4) -> IPFragmenter(60) \
         {between} -> r :: IPReassembler -> CheckIPHeader -> CheckUDPHeader -> c :: Counter -> Discard; \
         Script(wait 1, print $(c.count) $(c.byte_count), stop)"
    );
    simulated(&text)
}

#[test]
fn fragments_become_the_packet_whatever_their_order() {
    assert_eq!(reassembled(""), "1 128\n");
    // The first fragment comes last.
    let late =
        "-> f :: IPClassifier(ip[6:2] & 0x1fff = 0, -) -> Queue -> DelayUnqueue(0.5) -> n :: Null; f[1] -> n";
    assert_eq!(reassembled(late), "1 128\n");
    assert_eq!(reassembled("-> t :: Tee -> n :: Null; t[1] -> n"), "1 128\n");
    assert_eq!(reassembled("-> IPFilter(deny ip[6:2] & 0x1fff = 5, allow all)"), "0 0\n");
}

#[test]
fn known_addresses_are_asked_for_again_before_they_expire() {
    let text = "FromIPSummaryDump(DATA \"!data timestamp ip_dst\n0 1.0.0.1\n0.05 1.0.0.1\n0.09 1.0.0.1\n\", \
        TIMING true, STOP true) -> q :: ARPQuerier(1.0.0.9, 2:1:1:1:1:1, TIMEOUT 1, POLL_TIMEOUT 0.08) \
        -> c :: Counter -> Discard; \
        q[1] -> ARPPrint(ETHER true) -> ARPResponder(0/0 2:2:2:2:2:2) -> [1] q; \
        DriverManager(pause, print $(c.count) $(q.queries) $(q.length))";
    let (_, out, said) = click(&["--simtime"], text);
    assert_eq!(out, "3 2 0\n", "{said}");
    let asked = |to: &str, time: &str| {
        format!("{time}: 02-01-01-01-01-01 > {to}: arp who-has 1.0.0.1 tell 1.0.0.9\n")
    };
    assert_eq!(said, asked("FF-FF-FF-FF-FF-FF", "0.000000") + &asked("02-02-02-02-02-02", "0.090000"));
    let all = text.replace("0.08)", "0.08, BROADCAST_POLL true)");
    assert!(printed(&all).ends_with(&asked("FF-FF-FF-FF-FF-FF", "0.090000")));
}

#[test]
fn summaries_are_packets_of_headers_unless_checksums_are_wanted() {
    let text = "FromIPSummaryDump(DATA \"!data ip_src ip_len ip_proto\n1.0.0.1 1000 U\n\", STOP true) \
        -> c :: Counter -> ToIPSummaryDump(-, FIELDS ip_src ip_len payload_len, HEADER false); \
        DriverManager(pause, print $(c.byte_count))";
    assert_eq!(simulated(text), "28\n1.0.0.1 1000 972\n");
    assert_eq!(simulated(&text.replace("STOP", "CHECKSUM true, STOP")), "1000\n1.0.0.1 1000 972\n");
}

#[test]
fn qualifiers_of_addresses_come_in_any_order() {
    let text = "FromIPSummaryDump(DATA \"!data ip_src ip_dst\n9.0.0.9 1.0.0.1\n2.0.0.2 9.0.0.9\n\
        3.0.0.3 9.0.0.9\n9.0.0.9 3.0.0.3\n4.0.0.4 9.0.0.9\n\", STOP true) \
        -> i :: IPClassifier(dst ip 1.0.0.1, ip src 2.0.0.2, src or dest 3.0.0.3, ip 4.0.0.4, -); \
        i -> a :: Counter -> Discard; i[1] -> b :: Counter -> Discard; i[2] -> c :: Counter -> Discard; \
        i[3] -> d :: Counter -> Discard; i[4] -> e :: Counter -> Discard; \
        DriverManager(pause, print $(a.count) $(b.count) $(c.count) $(d.count) $(e.count))";
    assert_eq!(simulated(text), "1 1 2 1 0\n");
}

#[test]
fn dead_elements_are_left_out_on_request() {
    let text = "s :: FromDevice(a) -> w :: StaticSwitch(1); w -> ToDump(b); w[1] -> q :: Queue -> r :: PrioSched \
        -> d :: ToDump(c); Idle -> [1] r";
    let out = wrapper("click-undead", Path::new("/tmp"), &[], text);
    let expected = "s :: FromDevice(a);\nq :: Queue;\nd :: ToDump(c);\n\ns -> q\n    -> d;\n";
    assert_eq!(String::from_utf8_lossy(&out.stdout), expected);
}

#[test]
fn all_connections_that_do_not_fit_are_reported() {
    let text = "a, b :: Idle;\na [0,1] => [0,1,2] b;\na [] => [] b;\n";
    let expected = "<stdin>:2: connection mismatch: 2 outputs connected to 3 inputs\n\
        <stdin>:3: at most one expandable port allowed per connection\n";
    assert_eq!(click(&["-q"], text).2, expected);
    let flat = "a :: Idle;\nb :: Idle;\n\na [2] -> b;\na [3] -> [1] b;\n";
    assert_eq!(click(&["-qo-"], "a, b :: Idle; a[2,3] => [] b").1, flat);
}
