//! Hostile packets through elements, as native code and in the IR's interpreter, which refuses any access
//! outside of a packet: both send the same packets and leave the same counters and tables.
//!
//! Each frame has bytes in front that are stripped first, since the interpreter has no other room for
//! headers. It has no room for copies, so elements that make copies are not tested here.

use crate::common::{number, sum};
use millstream_click::{ClickProgram, STATE, flatten, parse};
use millstream_click_elements::compile;
use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState};
use millstream_ir::Map;
use millstream_native::{BatchReordering, ClockSource, LONGEST, LayoutPolicy, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};
use proptest::prelude::*;

/// Bytes that are stripped, in two steps: a packet that waited is put at a place with room for the longest
/// one, which the interpreter has within the frame only.
const FRONT: usize = 1700;
/// Bytes behind the headers, at most.
const LONGEST_REST: usize = 1700;
const NOW: u64 = 1_000_000_000_000;

/// Elements between `FromDump(a) -> Strip(850) -> Strip(850)` and the files.
const GRAPHS: &[&str] = &[
    "-> c :: Classifier(12/0800, 12/0806 20/0001, -) -> Strip(14) -> k :: CheckIPHeader -> ToDump(0); k[1] -> ToDump(1);
        c[1] -> ARPResponder(18.0.0.0/8 1:1:1:1:1:1) -> ToDump(2); c[2] -> EtherMirror -> ToDump(3)",
    "-> Strip(14) -> CheckIPHeader(CHECKSUM false) \
        -> rt :: RadixIPLookup(1.0.0.0/8 0, 1.2.0.0/16 9.9.9.9 1, 0/0 2) -> DecIPTTL
        -> EtherEncap(0x800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> ToDump(0); rt[1] -> o :: IPGWOptions(9.8.7.6) \
            -> ToDump(1); o[1] -> ToDump(3);
        rt[2] -> ICMPError(1.2.3.4, timeexceeded) -> FixIPSrc(4.5.6.7) -> ToDump(2)",
    "-> Strip(14) -> MarkIPHeader(0) -> f :: IPClassifier(tcp, udp, icmp, -); f[0] -> CheckTCPHeader -> ToDump(0);
        f[1] -> CheckUDPHeader -> ToDump(1); f[2] -> CheckICMPHeader -> ToDump(2); \
            f[3] -> IPFilter(allow ip proto 4 && dst net 1.0.0.0/8,
        deny src host 1.2.3.4, allow ip[3] 7 or ip frag) -> ToDump(3)",
    "-> VLANDecap -> EtherRewrite(1:1:1:1:1:1, 2:2:2:2:2:2) -> v :: Classifier(12/8100, -) -> StoreData(3, \\<010203>)
        -> StoreData(40, \\<a1a2a3a4a5a6a7a8a9>, MASK \\<0f00ff>) -> ToDump(0);
        v[1] -> VLANEncap(VLAN_ID 7) -> StoreData(30, \\<b1b2b3b4b5b6b7b8>, GROW true) -> CheckLength(90) -> ToDump(1)",
    "-> Strip(14) -> CheckIPHeader(CHECKSUM false) -> rw :: IPRewriter(pattern 192.0.2.1 1024-1027# - - 0 1) \
     -> ToDump(0); rw[1] -> ToDump(1)",
    "-> Strip(14) -> CheckIPHeader(CHECKSUM false) -> f :: IPClassifier(icmp type echo or icmp type echo-reply, icmp, -)
        -> ping :: ICMPPingRewriter(pattern 192.0.2.1 1024-1026# - - 0 1) -> ToDump(0); ping[1] -> ToDump(1);
        f[1] -> errors :: ICMPRewriter(rw pairs hosts:0 ping) -> ToDump(2); errors[1] -> ToDump(3);
        f[2] -> c :: IPClassifier(src host 1.2.0.4, src host 1.2.1.4, -) \
            -> rw :: IPRewriter(pattern 192.0.2.1 1024-1027# - - 0 1) -> ToDump(0);
        c[1] -> pairs :: IPAddrPairRewriter(pattern - 192.0.2.1 0 1) -> ToDump(0); \
            c[2] -> hosts :: IPAddrRewriter(pattern 192.0.2.0/29# - 0 1)
        -> ToDump(0); rw[1] -> ToDump(1); pairs[1] -> ToDump(1); hosts[1] -> ToDump(1)",
    "-> Strip(14) -> MarkIPHeader -> ICMPPingRewriter(pattern 192.0.2.1 1024-1026? - - 0 0) \
        -> IPAddrRewriter(pattern 192.0.2.1-192.0.2.2# - 0 0)
        -> IPAddrPairRewriter(keep 0 0) -> e :: ICMPRewriter(none) -> ToDump(0); \
            e[1] -> none :: TCPRewriter(pass 0) -> ToDump(1)",
    "-> Pad(90, MAXLENGTH 200) -> FlowStrip(14) -> MarkIPHeader -> c :: IPClassifier(icmp, -) \
        -> ResetIPChecksum(L4 true)
        -> rr :: RoundRobinSwitch -> IPEncap(ipip, 1.2.3.4, DST_ANNO, TTL 9, DSCP 3, ECT 2, DF true) \
            -> ToDump(0); rr[1] -> ToDump(1);
        rr[2] -> p :: PathSpinlock -> FlowUnstrip(14) -> ToDump(2); c[1] -> Pad(MAXLENGTH 70) -> [1] p; \
            p[1] -> ResetIPChecksum -> ToDump(3)",
    "-> Strip(14) -> MarkIPHeader -> FlowIPManagerIMP -> FlowCounter -> c :: IPClassifier(tcp, -) \
        -> FlowIPNAT(SIP 192.0.2.1) -> ToDump(0);
        c[1] -> FlowCounter -> ToDump(1)",
    "-> Strip(14) -> MarkIPHeader -> CountMinSketch(0.1, 0.1, TOP 2) \
     -> CountSketch(0.3, 0.2, TOP 1, BYTES true) -> ToDump(0)",
    "-> Strip(14) -> d :: CTXDispatcher(9/06 20/0050 1, 9/06 drop, 9/11 0, -) -> h :: HashSwitch(12, 4) \
        -> ToDump(0); h[1] -> ToDump(1);
        h[2] -> ToDump(2); d[1] -> s :: StrideSwitch(3, 1) -> ToDump(1); s[1] -> ToDump(3); \
            d[2] -> [0] u :: Suppressor -> RandomSwitch -> ToDump(2)",
    "-> HashSwitch(3, 2) => [0] a :: Suppressor, [1] a; a[0] -> VLANDecap -> VLANEncap(ANNO) \
        -> r :: RatedSplitter(3000, BURST_SIZE 7) -> ToDump(0);
        r[1] -> ToDump(1); a[1] -> SetVLANAnno(VLAN_ID 5, VLAN_PCP 3) -> VLANEncap(ANNO, NATIVE_VLAN 7) \
            -> b :: BandwidthRatedSplitter(90000) -> ToDump(2); b[1] -> ToDump(3)",
    "-> Strip(14) -> CheckIPHeader(CHECKSUM false) \
        -> StoreData(20, \\<1234 0015 00000001 00000002 5018 0100 0000 0000>) \
        -> StoreData(40, \"PORT 1,2,1,4,\")
        -> f :: FTPPortMapper(rw, rw, 0) -> rw :: TCPRewriter(pattern 192.0.2.200 1024-1027# - - 0 1) \
            -> ToDump(0); rw[1] -> ToDump(1)",
    "-> Strip(14) -> WebGen(10.0.0.0/8, 1.0.0.1, 3) -> ToDump(0)",
    "-> NumberPacket(20, NET_ORDER true) -> RecordTimestamp(N 8, OFFSET 22, SAMPLE 3) \
        -> t :: TimestampDiff(r, OFFSET 5) -> ToDump(0);
        t[1] -> r :: RecordTimestamp(N 8) -> ToDump(1)",
    "-> Strip(14) -> k :: CheckIP6Header -> ProtocolTranslator64 -> CheckIPHeader -> ToDump(0);
        k[1] -> j :: CheckIPHeader -> ProtocolTranslator46 -> CheckIP6Header -> ToDump(1); j[1] -> ToDump(2)",
    "-> Strip(14) -> CheckIP6Header -> c :: Classifier(39/01, 38/0002, 39/03, -) \
        -> [0] a :: AddressTranslator(1, 0, 102:304::1 ::9, 1, 1, 0, ::1 5000 5003);
        c[1] -> [1] a; c[2] -> [0] b :: AddressTranslator(0, 1, 0, 0, ::1, ::2); c[3] -> [1] b; \
            a -> ToDump(0); a[1] -> ToDump(1); b -> ToDump(2); b[1] -> ToDump(3)",
    "-> side :: Classifier(5/00%01, -) -> s :: EtherSwitch -> ToDump(0); side[1] -> [1] s; s[1] -> ToDump(1)",
    "-> c :: Classifier(12/0806, -) -> [1] q :: ARPQuerier(10.0.0.1, 2:0:0:0:0:1) -> ToDump(0); \
     c[1] -> Strip(14) -> GetIPAddress(16) -> q",
    "-> Strip(14) -> k :: CheckIP6Header -> GetIP6Address(24) \
        -> rt :: LookupIP6Route(1::/16 0, 102::/15 3ffe::1 1, ::/0 2) -> DecIP6HLIM
        -> ToDump(0); rt[1] -> d :: DecIP6HLIM -> ICMP6Error(3ffe::2, 137, 0) -> ToDump(1); \
            d[1] -> ICMP6Error(3ffe::1, 3, 0) -> ToDump(1);
        rt[2] -> ICMP6Error(3ffe::1, 2, 0) -> ToDump(2); k[1] -> ToDump(3)",
    "-> c :: Classifier(12/86dd 54/87, 12/86dd 54/88, -) -> IP6NDAdvertiser(100::/8 1:1:1:1:1:1) -> ToDump(0);
        c[1] -> [1] n :: IP6NDSolicitor(3ffe::1, 2:0:0:0:0:1) -> ToDump(1); \
            c[2] -> Strip(14) -> GetIP6Address(24) -> n",
    "-> Strip(14) -> MarkIPHeader -> f :: IPClassifier(tcp, udp, icmp, -) -> SetTCPChecksum(true) \
        -> IPMirror -> ToDump(0);
        f[1] -> u :: SetUDPChecksum -> IPMirror -> UDPIPEncap(1.2.3.4, 5, 6.7.8.9, 10) -> ToDump(1); \
            u[1] -> StoreIPAddress(5) -> ToDump(2);
        f[2] -> p :: ICMPPingResponder -> ToDump(3); p[1] -> s :: StoreIPAddress(1.2.3.4, 50) -> ToDump(1); \
            s[1] -> ToDump(2); f[3] -> IPMirror -> ToDump(2)",
];

/// Orders of packets and stages; small tables are fetched for, too.
const SCHEDULES: [&str; 9] = [
    "batch=8",
    "batch=8,from=0,trials=off,pattern=packets,distance=2",
    "batch=13,from=0,trials=off,pattern=packets,distance=1,unroll=3",
    "batch=32,from=0,trials=off,pattern=groups,sub-batch=5,unroll=2",
    "batch=8,from=0,trials=off,pattern=groups,sub-batch=all,unroll=8",
    "batch=21,from=0,trials=off,pattern=pipelined-groups,sub-batch=4,unroll=3,classes=protocol",
    "batch=64,classes=ethertype",
    "batch=16,traversals=whole,flows=2",
    "batch=8,from=0,trials=off,pattern=pipelined-groups,sub-batch=4,traversals=split",
];

/// Packets sent, and the final state and tables.
type Outcome = (Vec<(u64, Vec<u8>)>, Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>);

fn native(program: &ClickProgram, frames: &[Vec<u8>], schedule: &str) -> Outcome {
    let descriptors = LayoutPolicy::Shuffled(schedule.len() as u64);
    let options = NativeOptions {
        schedule: schedule.parse().expect("a schedule"),
        descriptors,
        ..NativeOptions::default()
    };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    engine.set_clock(ClockSource::Fixed(NOW));
    for entry in &program.code.entries {
        assert_eq!(engine.map(&entry.map).expect("the map").update(&entry.key, &entry.value, 0, None), 0);
    }
    let mut sent = Vec::new();
    let feeds = [SourceFrames { frames, count: frames.len() as u64 }];
    let batch = engine.batch() as usize;
    run_graph(&mut engine, &feeds, program.targets.len(), batch, |p| {
        sent.push((p.number, (p.output as u64, p.bytes.to_vec())));
        Ok(())
    })
    .expect("memory");
    if engine.schedule.schedule.classes != BatchReordering::One {
        // Packets that one packet causes stay together, in order.
        sent.sort_by_key(|(number, _)| *number);
    }
    let sent = sent.into_iter().map(|(_, sent)| sent).collect();
    let maps = engine.maps().filter(|map| !map.holds_addresses()).map(|map| {
        let mut keys = map.keys();
        keys.sort_unstable();
        let entries = keys.into_iter().map(|k| (k.clone(), map.get(&k).expect("its own key"))).collect();
        (map.name().to_owned(), entries)
    });
    (sent, maps.collect())
}

fn interpreted(program: &ClickProgram, frames: &[Vec<u8>]) -> Outcome {
    let mut machine = MachineState::new(ContextKind::Xdp);
    // Ports that are drawn are the same.
    (machine.env.time, machine.env.tick, machine.env.seed) = (NOW, 0, NativeOptions::default().seed);
    let interpreter = IrInterpreter::new(&program.code.module, &mut machine);
    let names: Vec<(String, _)> = (0..program.code.module.maps.len())
        .map(|at| Map::from_u32(at as u32))
        .map(|map| (program.code.module.maps[map].name.clone(), interpreter.map(map).expect("a map")))
        .collect();
    let id = |name: &str| names.iter().find(|(known, _)| known == name).expect("the map").1;
    for entry in &program.code.entries {
        machine.maps.set(id(&entry.map), &entry.key, &entry.value, 0).expect("room");
    }
    let sent = crate::common::sent(program, &interpreter, &mut machine, frames);
    let maps = names.into_iter().map(|(name, id)| (name, machine.maps.entries(id)));
    (sent, maps.collect())
}

/// An IPv6 header and the bytes behind it: a message about a neighbour with a correct sum, or anything.
fn behind_ip6(protocol: u8, hops: u8, rest: &[u8]) -> Vec<u8> {
    let neighbour = protocol == 1;
    let next = if neighbour { 58 } else { [17, 44, 58, 6][usize::from(protocol & 3)] };
    let mut payload = rest.to_vec();
    if neighbour {
        payload = vec![
            135 + (hops & 1),
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            1,
            2,
            3,
            4,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            hops & 3,
        ];
        payload.extend([1 + (hops & 1), 1, 4, 0, 0, 0, 0, 1]);
    }
    let mut packet = [&[0x60, 0, 0, 0][..], &(payload.len() as u16).to_be_bytes(), &[next]].concat();
    packet.push(if neighbour { 255 } else { hops });
    packet.extend([
        1,
        2,
        3,
        4,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        1 + (hops & 1),
        2,
        3,
        4,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        hops & 3,
    ]);
    packet.extend(payload);
    if neighbour {
        let pseudo = [&packet[8..], &[0, 32, 0, 58]].concat();
        let sum = !(sum(&pseudo) as u16);
        packet[42..44].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// A message about a flow that may be known: an echo, or an error that carries a header as it is behind one
/// of the graphs, or before it.
fn about(bits: u16, rest: &[u8]) -> Vec<u8> {
    let [a, b] = bits.to_le_bytes();
    let word = [0, 4 * (b & 1), 0, a & 3];
    if a & 4 == 0 {
        return [&[if a & 8 == 0 { 8 } else { 0 }, 0, a, b][..], &[4 * (b & 1), a & 3, 0, 1], rest].concat();
    }
    let kind = [3, 4, 5, 11, 12, 9, 3, 3][usize::from(b >> 5)];
    let protocol = [6, 17, 1, 17][usize::from(a >> 6)];
    let ends = match (a >> 4) & 3 {
        0 => [[192, 0, 2, 1 + (b & 3)], [10, 0, 0, 1 + (b >> 2 & 3)]],
        1 => [[1, 2, 1, 4], [192, 0, 2, 1]],
        2 => [[10, 0, 0, 1 + (b & 3)], [192, 0, 2, 1]],
        _ => [[1, 2, b & 3, 4], [10, 0, 0, 1 + (b >> 2 & 3)]],
    };
    let behind = match protocol {
        1 => vec![8, 0, a, b, 4, a & 3, 0, 1],
        _ => vec![4, a & 3, 0, b & 7, 0, 0, a, b & 1],
    };
    let header = [&[0x45, 0, 0, 60, 0, 7, 0, 0, 9, protocol, a, b][..], ends.as_flattened()].concat();
    [&[kind, 0, b, a][..], &word, &header, &behind, rest].concat()
}

/// Frames that elements look into: headers that are nearly right, behind tags or not, cut anywhere, short and
/// long.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ethertype = prop::sample::select(vec![
        [8, 0],
        [8, 0],
        [8, 0],
        [8, 6],
        [0x86, 0xdd],
        [0x86, 0xdd],
        [0x81, 0],
        [1, 2],
    ]);
    let protocol = prop::sample::select(vec![1u8, 4, 6, 17, 17, 6, 99]);
    let head = (ethertype, protocol, prop::collection::vec(any::<u8>(), 12), 0u8..16, any::<u16>());
    let change = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let rest = prop_oneof![
        9 => prop::collection::vec(any::<u8>(), 0..80),
        1 => prop::collection::vec(any::<u8>(), 1000..LONGEST_REST),
    ];
    let tags = prop::sample::select(vec![
        &[][..],
        &[],
        &[],
        &[[0x81, 0, 0, 7]],
        &[[0x88, 0xa8, 0, 9], [0x81, 0, 0xe0, 7]],
    ]);
    (head, rest, change, prop::option::of(any::<prop::sample::Index>()), tags).prop_map(
        |((ethertype, protocol, mac, length, total), rest, changes, cut, tags)| {
            let mut frame = vec![0xaa; FRONT];
            // Few stations, hosts and ports, so that they are met again.
            frame.extend(mac.iter().map(|b| b & 3));
            frame.extend(tags.as_flattened());
            frame.extend(ethertype);
            let words = if length < 11 { 5 } else { length };
            let is_icmp = protocol == 1 && ethertype == [8, 0];
            let rest = if is_icmp { about(total, &rest) } else { rest };
            let total = if total & 1 == 0 { 20 + rest.len() as u16 } else { total };
            match ethertype {
                [0x86, 0xdd] => frame.extend(behind_ip6(protocol, length, &rest)),
                [8, 6] => frame.extend([0, 1, 8, 0, 6, 4, 0, 1 + (protocol & 1), 2, 2, 2, 2, 2, 2]),
                _ => frame.extend(
                    [
                        [0x40 | words, 0].as_slice(),
                        &total.to_be_bytes(),
                        &[0, 1, 0, 0, length, protocol, 0, 0],
                    ]
                    .concat(),
                ),
            }
            frame.extend([1, 2, 3 & mac[0], 4, 10, 0, 0, 1 + (mac[1] & 3)]);
            if !is_icmp {
                frame.extend([0, 80 + (mac[2] & 1), 0, mac[3] & 7]);
            }
            frame.extend(rest);
            frame.truncate(LONGEST);
            for (at, byte) in changes {
                let at = FRONT + at.index(frame.len() - FRONT);
                frame[at] = byte;
            }
            if let Some(cut) = cut {
                frame.truncate(FRONT + cut.index(frame.len() - FRONT));
            }
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn native_code_does_what_the_interpreter_does(
        frames in prop::collection::vec(frame(), 1..80), first in 0..SCHEDULES.len()
    ) {
        for (graph, schedule) in GRAPHS.iter().zip(SCHEDULES.iter().cycle().skip(first)) {
            let text = format!("FromDump(a) -> Strip({half}) -> Strip({half}) {graph}", half = FRONT / 2);
            let graph = flatten(&parse(&text).expect("parsed"), &[]).expect("flattened");
            let program = compile(&graph).unwrap_or_else(|e| panic!("{text}: {e:?}"));
            let (sent, maps) = interpreted(&program, &frames);
            let (native_sent, native_maps) = native(&program, &frames, schedule);
            prop_assert_eq!(&native_sent, &sent, "{} by {}", text, schedule);
            prop_assert_eq!(&native_maps, &maps, "{} by {}", text, schedule);
            let (_, entries) = maps.iter().find(|(name, _)| name == STATE).expect("the state");
            let dropped: u64 = program.drops.iter().map(|d| number(&entries[0].1, d.offset)).sum();
            prop_assert_eq!(sent.len() as u64 + dropped, frames.len() as u64, "the account: {}", text);
        }
    }
}
