//! Made-up configurations: real ones with changes, and words of the language in any order. Nothing panics,
//! and every error has a position.

use crate::front::through;
use proptest::prelude::*;

/// Words that configurations consist of; many are elements, so that graphs are valid now and then.
const WORDS: &[&str] = &[
    "a",
    "b",
    "::",
    ":: Counter",
    "->",
    " -> ",
    "=>",
    ";",
    ",",
    "(",
    ")",
    "[",
    "]",
    "[0]",
    "[1]",
    "{",
    "}",
    "|",
    "||",
    "...",
    "$a",
    "${a}",
    "${a-1}",
    "define($a 1)",
    "require(click)",
    "elementclass",
    "elementclass C { $a | input -> Strip($a) -> output }",
    "C(14)",
    "input",
    "output",
    "Idle",
    "Discard",
    "FromDevice(a)",
    "FromDump(x.pcap)",
    "Tee",
    "Tee(2)",
    "Queue",
    "Unqueue",
    "ToDevice(b)",
    "\"",
    "'",
    "\\",
    "\\<00 g>",
    "//",
    "/*",
    "*/",
    "\n",
    "# 1 \"file\"",
    "0",
    "-1",
    "18446744073709551616",
    "0x",
    "1.2.3.4",
    "1.2.3.4/33",
    "::1",
    "::/129",
    "ff:ff:0:1:2:3",
    "12/0800",
    "12/08%0",
    "-",
    "Classifier(12/0806 20/0001, 12/0800, -)",
    "IPClassifier(tcp and dst port 80, icmp echo, -)",
    "IPFilter(allow all)",
    "IPFilter(deny src 1.2.3.4 && (tcp or udp",
    "CheckIPHeader",
    "CheckIP6Header(::1)",
    "GetIPAddress(16)",
    "GetIP6Address(24)",
    "LookupIP6Route(::/0 0)",
    "RadixIPLookup(0/0 0, 1.0.0.0/8 2.2.2.2 1)",
    "IP6NDAdvertiser(::1/64 1:1:1:1:1:1)",
    "IP6NDSolicitor(::1, 1:1:1:1:1:1)",
    "ICMP6Error(::1, 3, 0)",
    "ICMPError(1.1.1.1, timeexceeded)",
    "ARPQuerier(1.1.1.1, 1:1:1:1:1:1)",
    "Pad(60, MAXLENGTH 9)",
    "RoundRobinSwitch",
    "IPEncap(ipip, 1.1.1.1, DST_ANNO, DSCP 3)",
    "ResetIPChecksum(L4 true)",
    "PathSpinlock",
    "FlowStrip(14)",
    "IPRewriter(pattern 1.1.1.1 1024-65535 - - 0 0)",
    "rw :: IPRewriter(pattern 1.1.1.1 - 0 0)",
    "ICMPPingRewriter(pattern 1.1.1.1 1024-65535# - - 0 0)",
    "IPAddrRewriter(pattern 1.1.1.1-1.1.1.9 - 0 0)",
    "IPAddrPairRewriter(pattern 1.1.0.0/16# 2.2.2.2 0 0)",
    "ICMPRewriter(rw)",
    "ICMPRewriter(rw:0 a)",
    "IPFragmenter(100)",
    "EtherSwitch",
    "FlowIPManagerIMP(CAPACITY 9)",
    "FlowIPNAT(SIP 1.1.1.1)",
    "FlowCounter",
    "WorkPackage(S 0.01, N 3, R 50, W 2)",
    "Paint(1)",
    "PaintTee(1)",
    "StoreData(0, \\<01>)",
    "VLANEncap(5)",
    "VLANEncap(ANNO, NATIVE_VLAN -1)",
    "SetVLANAnno(VLAN_ID 5)",
    "RandomSwitch",
    "NumberPacket(8)",
    "FTPPortMapper(rw, rw, 0)",
    "r :: RecordTimestamp(N 4)",
    "TimestampDiff(r, OFFSET 8)",
    "TimestampDiff(r, OFFSET 8, SAMPLE 3, N 2, NANO true)",
    "ProtocolTranslator64",
    "ProtocolTranslator46",
    "AddressTranslator(1, 0, ::1 ::2, 1, 1, 0, ::3 5 9)",
    "AddressTranslator(0, 1, 0, 0, ::1)",
    "EtherSpanTree",
    "HashSwitch(1, 2)",
    "StrideSwitch(3, 1)",
    "Suppressor",
    "RatedSplitter(100, BURST_SIZE 2)",
    "BandwidthRatedSplitter(100)",
    "CTXManager(BUILDER 1)",
    "CTXDispatcher(12/0800 0, 12/0806 drop, -)",
    "ARPQuerier(1.1.1.1, 1:1:1:1:1:1, TABLE t)",
    "t :: ARPTable",
    "Script(write a.switch 1)",
    "SetTCPChecksum",
    "IPMirror",
    "UDPIPEncap(1.1.1.1, 1, 2.2.2.2, 2)",
    "ICMPPingSource(1.1.1.1, 2.2.2.2)",
    "WebGen(10.0.0.0/8, 1.0.0.1, 3)",
    "KernelTap(1.1.1.1/24)",
    "FastUDPFlows(RATE 0, LIMIT 5, LENGTH 60, SRCETH 1:1:1:1:1:1, SRCIP 1.1.1.1, DSTETH 1:1:1:1:1:1, \
     DSTIP 1.1.1.1, FLOWS 2, FLOWSIZE 1)",
    "Script(label l, wait 1s, print \"$(a.count)\", goto l $(lt 1 2), end)",
    "Script(goto nowhere)",
    "Script(TYPE PACKET)",
    "Script(TYPE PACKET, init n 0, set n $(add $n 1), return $(mod $n 2))",
    "SetTimestamp(5)",
    "AdjustTimestamp(-1s, ALL true)",
    "SetTimestampDelta",
    "TimeSortedSched",
    "TimeFilter(1, 3, END_CALL t.extend_interval 1)",
    "TimeFilter(START_AFTER 1, INTERVAL 2)",
    "IPFilter(allow src 1:1:1:1:1:1, allow ether host 2:2:2:2:2:2)",
    "MixedQueue(3)",
    "NotifierQueue",
    "AggregateCounter(BYTES true)",
    "RandomSample(0.5)",
    "InputSwitch(1)",
    "StaticSwitch(0)",
    "Clipboard(0/4)",
    "Hub",
    "EtherVLANEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2, 5)",
    "StripEtherVLANHeader",
    "StoreIPAddress(1.1.1.1, src)",
    "ICMPIPEncap(1.1.1.1, 2.2.2.2, echo, 0)",
    "PortInfo(ssh 23)",
    "ReplayUnqueue(STOP 1, ACTIVE false)",
    "ReplayUnqueue(STOP 2, LIMIT 3)",
    "MultiReplayUnqueue(STOP 1, TIMING 50)",
    "DriverManager(wait, stop)",
    "RatedSource(RATE 0.5)",
    "TimedSource(.5ms)",
    "LIMIT",
    "ACTIVE false",
    "é",
    "\u{0}",
];

/// Configurations that are held against a peer.
fn written() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/click");
    let files =
        std::fs::read_dir(folder).expect("the configurations").map(|entry| entry.expect("a file").path());
    let mut all: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "click")).collect();
    all.sort();
    all.iter().map(|path| std::fs::read_to_string(path).expect("text")).collect()
}

/// Positions, the length of text to remove there, and the text to insert.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, &'static str)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, prop::sample::select(WORDS)), 0..5)
}

#[test]
fn configurations_as_they_are_go_through() {
    let all = written();
    assert!(all.len() > 25);
    all.iter().for_each(|text| through(text));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn words_in_any_order_are_refused_with_a_place_or_make_sense(
        words in prop::collection::vec(prop::sample::select(WORDS), 0..24),
        blank in prop::sample::select(vec!["", " ", " ; "]),
    ) {
        through(&words.join(blank));
    }

    #[test]
    fn elements_in_a_row_are_refused_with_a_place_or_make_sense(
        words in prop::collection::vec(prop::sample::select(WORDS), 1..6),
    ) {
        through(&format!("FromDevice(a) -> {} -> Discard", words.join(" -> ")));
    }

    #[test]
    fn changed_configurations_are_refused_with_a_place_or_make_sense(
        which in any::<prop::sample::Index>(),
        changes in changes(),
    ) {
        let mut text: Vec<char> = which.get(&written()).chars().collect();
        for (at, taken, put) in changes {
            let at = at.index(text.len() + 1);
            let to = (at + taken).min(text.len());
            text.splice(at..to, put.chars());
        }
        through(&text.into_iter().collect::<String>());
    }

    #[test]
    fn any_text_is_refused_with_a_place_or_makes_sense(text in any::<String>()) {
        through(&text);
    }
}
