//! Configurations that read and write summaries of packets. Inputs and outputs are those of Click's tests and
//! of its documentation, or follow from them.

use std::sync::{Arc, Mutex};

use millstream_click::{GraphSource, PRINTS, SummaryInput, SummaryReader, flatten, parse, printed};
use millstream_click_elements::compile;
use millstream_native::{ClockSource, NativeEngine, NativeOptions, RecordListener};
use millstream_native_io::graph::{SourceFrames, run_graph};

/// Frames of a source: of lines, or a packet that is made up.
fn frames(source: &GraphSource) -> Vec<Vec<u8>> {
    match source {
        GraphSource::Summary(source) => {
            let SummaryInput::Text(text) = &source.input else { panic!("a file") };
            let mut reader = SummaryReader::new(source);
            let packets = text.lines().filter_map(|line| reader.line(line).expect("a line"));
            packets.flat_map(|packet| vec![packet.bytes; packet.count as usize]).collect()
        }
        GraphSource::Constant(bytes, Some(count)) => vec![bytes.clone(); *count as usize],
        other => panic!("{other:?}"),
    }
}

/// Lines that a configuration prints, and the number of packets that it sends.
fn lines(text: &str) -> (Vec<String>, usize) {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &NativeOptions::default())
            .expect("compiled");
    engine.set_clock(ClockSource::Fixed(1_000_000_000));
    for entry in &program.code.entries {
        assert_eq!(engine.map(&entry.map).expect("the map").update(&entry.key, &entry.value, 0, None), 0);
    }
    let found: Arc<Mutex<Vec<String>>> = Arc::default();
    let (into, printers) = (Arc::clone(&found), program.printers.clone());
    let take = move |record: &[u8], time: u64| {
        let (_, line) = printed(&printers, record, time).expect("a line");
        into.lock().expect("one worker").push(String::from_utf8(line).expect("text"));
    };
    engine.listen(RecordListener { map: PRINTS.to_owned(), take: Arc::new(take) });
    let sources: Vec<Vec<Vec<u8>>> = program.sources.iter().map(frames).collect();
    let feeds: Vec<SourceFrames<'_>> =
        sources.iter().map(|frames| SourceFrames { frames, count: frames.len() as u64 }).collect();
    let mut sent = 0;
    run_graph(&mut engine, &feeds, program.targets.len(), 3, |_| {
        sent += 1;
        Ok(())
    })
    .expect("memory");
    let found = found.lock().expect("one worker").clone();
    (found, sent)
}

fn source(lines: &str) -> String {
    format!("FromIPSummaryDump(STOP true, CHECKSUM true, DATA \"{}\")", lines.replace('"', "\\\""))
}

#[test]
fn lines_become_packets_with_right_checksums() {
    let text =
        source("!data src dst icmp_type\n!proto I\n18.26.4.44 10.0.0.4 echo\n10.0.0.4 18.26.4.44 echo-reply");
    let text = format!(
        "{text} -> CheckIPHeader -> CheckICMPHeader -> ToIPSummaryDump(-, FIELDS src dst icmp_type_name)"
    );
    assert_eq!(lines(&text).0, ["18.26.4.44 10.0.0.4 echo", "10.0.0.4 18.26.4.44 echo-reply"]);
}

#[test]
fn congestion_is_marked_on_packets_that_know_of_it() {
    let input = source(
        "!data src dst ip_ecn\n!proto 9\n1.0.0.1 1.0.0.2 no\n1.0.0.2 1.0.0.3 ect1\n\
         1.0.0.3 1.0.0.4 ect2\n1.0.0.4 1.0.0.5 ce",
    );
    let marked = |arguments: &str| {
        let mark = format!("MarkIPCE({arguments})");
        let text = format!(
            "{input} -> CheckIPHeader -> {mark} -> CheckIPHeader -> ToIPSummaryDump(-, FIELDS src ip_ecn)"
        );
        lines(&text).0
    };
    assert_eq!(marked(""), ["1.0.0.2 ce", "1.0.0.3 ce", "1.0.0.4 ce"]);
    assert_eq!(marked("FORCE true"), ["1.0.0.1 ce", "1.0.0.2 ce", "1.0.0.3 ce", "1.0.0.4 ce"]);
}

#[test]
fn a_codepoint_is_set_and_the_checksum_stays_right() {
    let input = source("!data src ip_tos\n1.0.0.1 3\n1.0.0.2 255");
    let text =
        format!("{input} -> SetIPDSCP(10) -> CheckIPHeader -> ToIPSummaryDump(-, FIELDS ip_dscp ip_tos)");
    assert_eq!(lines(&text).0, ["10 43", "10 43"]);
}

#[test]
fn transport_headers_are_taken_away_and_given_back() {
    let input = source(
        "!data src sport dst dport proto tcp_seq tcp_ack payload tcp_opt
200.200.200.200 30 2.0.0.2 21 T 0 0 \"XYZ\" .
200.200.200.200 30 2.0.0.2 21 T 30 0 \"XYZ\" .
2.0.0.2 21 1.0.0.1 1024 T 0 0 \"XYZ\" sack1-10;sack1-18;sack18-20",
    );
    let text = format!(
        "{input} -> CheckIPHeader -> CheckTCPHeader -> StripIPHeader -> StripTCPHeader -> Print(PAY)
        -> StoreData(OFFSET 0, DATA \"ABC\") -> UnstripIPHeader() -> Print(FULLTCP)
        -> ToIPSummaryDump(-, FIELDS src sport dst dport proto tcp_seq tcp_ack payload tcp_opt)"
    );
    let expected = [
        "PAY:    3 | 58595a",
        "FULLTCP:   43 | 4500002b 00000000 6406c33a c8c8c8c8 02000002 001e0015",
        "200.200.200.200 30 2.0.0.2 21 T 0 0 \"ABC\" .",
        "PAY:    3 | 58595a",
        "FULLTCP:   43 | 4500002b 00000000 6406c33a c8c8c8c8 02000002 001e0015",
        "200.200.200.200 30 2.0.0.2 21 T 30 0 \"ABC\" .",
        "PAY:    3 | 58595a",
        "FULLTCP:   75 | 4500004b 00000000 640653ab 02000002 01000001 00150400",
        "2.0.0.2 21 1.0.0.1 1024 T 0 0 \"ABC\" sack1-10;sack1-18;sack18-20",
    ];
    assert_eq!(lines(&text).0, expected);
}

#[test]
fn a_pattern_is_searched_and_the_bytes_in_front_come_back() {
    let text = "InfiniteSource(\"HELLO WORLD !\", LIMIT 1) -> s :: Search(\"LO \") -> Print(FOUND)
        -> UnstripAnno() -> Print(FOUNDFULL) -> Discard; s[1] -> Print(NOTFOUND) -> Discard;";
    let found = ["FOUND:    7 | 574f524c 442021", "FOUNDFULL:   13 | 48454c4c 4f20574f 524c4420 21"];
    assert_eq!(lines(text).0, found);
    let missing = lines(&text.replace("(\"LO ", "(\"LOW")).0;
    assert_eq!(missing, ["NOTFOUND:   13 | 48454c4c 4f20574f 524c4420 21"]);
}

#[test]
fn echo_requests_are_made_and_answered() {
    let text = "InfiniteSource(abc, LIMIT 2) -> ICMPPingEncap(1.0.0.1, 2.0.0.2, IDENTIFIER 3)
        -> CheckIPHeader -> CheckICMPHeader
        -> ToIPSummaryDump(-, FIELDS src dst icmp_type_name icmp_flowid icmp_seq payload)
        -> ICMPPingResponder -> ToDump(FOO)";
    let (lines, sent) = lines(text);
    let bytes = [r"\010\0003\232\000\003\000\000abc", r"\010\0003\231\000\003\000\001abc"];
    let expected = [0, 1].map(|n| format!("1.0.0.1 2.0.0.2 echo 3 {n} \"{}\"", bytes[n]));
    assert_eq!(lines, expected);
    assert_eq!(sent, 2);
}

#[test]
fn a_mapper_gives_patterns_by_turns() {
    let input = source(
        "!data ip_src sport ip_dst dport ip_proto
1.0.0.1 1 1.0.0.2 2 U
1.0.0.1 1 1.0.0.2 3 U
1.0.0.1 1 1.0.0.2 2 U
1.0.0.1 1 1.0.0.3 2 U
1.0.0.1 1 1.0.0.4 2 U
1.0.0.1 1 1.0.0.2 3 U
1.0.0.1 1 1.0.0.2 3 U",
    );
    let text = format!(
        "r :: RoundRobinIPMapper(- - - - 0 0, - - - - 1 0, - - - - 2 0);
        {input} -> rw :: IPRewriter(r) -> Paint(0) -> td :: ToIPSummaryDump(-, FIELDS link);
        rw[1] -> Paint(1) -> td; rw[2] -> Paint(2) -> td;"
    );
    assert_eq!(lines(&text).0, ["0", "1", "0", "2", "0", "1", "1"]);
}

#[test]
fn a_mapper_by_source_gives_a_source_one_server() {
    let flows: String =
        (0..60).map(|flow| format!("\n10.0.0.{} {} 1.1.1.1 80 U", flow % 20, 1000 + flow)).collect();
    let input = source(&format!("!data src sport dst dport proto{flows}"));
    let text = |servers: &str| {
        format!(
            "m :: SourceIPHashMapper(20 77, {servers});
            {input} -> IPRewriter(m) -> ToIPSummaryDump(-, FIELDS ip_src ip_dst)"
        )
    };
    let [one, two, three] = ["- - 9.9.9.1 - 0 0 1", "- - 9.9.9.2 - 0 0 2", "- - 9.9.9.3 - 0 0 3"];
    let all = lines(&text(&[one, two, three].join(", "))).0;
    assert_eq!(all[..20], all[20..40]);
    assert_eq!(all[..20], all[40..]);
    for server in ["9.9.9.1", "9.9.9.2", "9.9.9.3"] {
        assert!(all.iter().any(|line| line.ends_with(server)), "{server}: {all:?}");
    }
    // Without a server, only its sources go elsewhere.
    let fewer = lines(&text(&[one, three].join(", "))).0;
    let moved = all.iter().zip(&fewer).filter(|(before, after)| before != after);
    assert!(moved.into_iter().all(|(before, _)| before.ends_with("9.9.9.2")));
}

#[test]
fn flows_are_numbered_in_both_directions_with_their_fragments() {
    let input = source(
        "!data src sport dst dport proto ip_id ip_fragoff ip_len
18.26.4.44 30 10.0.0.4 40 U 1 0 100
18.26.4.44 30 18.26.4.44 41 U 2 0 100
10.0.0.4 40 18.26.4.44 30 U 3 0 100
18.26.4.44 41 18.26.4.44 30 U 4 0 100
18.26.4.44 41 18.26.4.44 30 U 5 0+ 28
18.26.4.44 30 18.26.4.44 41 U 6 0+ 28
18.26.4.44 41 18.26.4.44 30 U 5 24 80
18.26.4.44 30 18.26.4.44 41 U 6 24 84
18.26.4.44 30 18.26.4.44 41 I 7 0 84",
    );
    let text =
        format!("{input} -> a :: AggregateIPFlows -> ToIPSummaryDump(-, FIELDS aggregate link ip_len ip_id)");
    let found =
        ["1 0 100 1", "2 0 100 2", "1 1 100 3", "2 1 100 4", "2 1 28 5", "2 0 28 6", "2 1 80 5", "2 0 84 6"];
    assert_eq!(lines(&text).0, found);
    let firsts = text.replace("-> ToIP", "-> AggregateFirst -> ToIP");
    assert_eq!(lines(&firsts).0, ["1 0 100 1", "2 0 100 2"]);
}

#[test]
fn packets_are_cut_and_take_a_bypass() {
    let input = source("!data src ip_proto payload_len\n1.0.0.1 U 100\n1.0.0.2 U 1");
    let text = format!(
        "{input} -> Truncate(40, EXTRA_LENGTH false) -> b :: Bypass(true)
        -> ToIPSummaryDump(-, FIELDS ip_src ip_capture_len);
        b[1] -> Print(BY, CONTENTS NONE) -> [1] b"
    );
    let found = ["BY:   40", "!bad truncated IP length\n1.0.0.1 40", "BY:   29", "1.0.0.2 29"];
    assert_eq!(lines(&text).0, found);
    assert_eq!(lines(&text.replace("Bypass(true)", "Bypass")).0, [found[1], found[3]]);
}

#[test]
fn fragments_may_be_as_short_as_eight_bytes() {
    let input = source("!data src ip_proto payload_len\n1.0.0.1 U 20");
    let text = format!("{input} -> IPFragmenter(28) -> ToIPSummaryDump(-, FIELDS ip_fragoff ip_len)");
    assert_eq!(lines(&text).0, ["0+ 28", "8+ 28", "16+ 28", "24 24"]);
}
