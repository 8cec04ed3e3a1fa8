//! Elements that choose an output without looking into headers, and tags by annotation.

use crate::common::Bed;

/// A packet that says its number.
fn numbered(number: u8) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[20] = number;
    packet
}

/// The output of each of so many packets, at a time.
fn outputs(bed: &mut Bed, seconds: u64, count: u8) -> Vec<usize> {
    let packets: Vec<Vec<u8>> = (0..count).map(numbered).collect();
    bed.at(seconds, [&packets, &[]]).into_iter().map(|(output, _)| output).collect()
}

/// A graph with files at outputs 0 to 3.
fn bed(element: &str, count: usize) -> Bed {
    let ends: Vec<String> = (0..count).map(|port| format!("s[{port}] -> ToDump({port})")).collect();
    Bed::new(&format!("FromDump(a) -> s :: {element}; {}; FromDump(b) -> Discard", ends.join("; ")))
}

#[test]
fn strides_are_by_tickets_and_begin_where_there_are_most() {
    let mut three = bed("StrideSwitch(1, 2, 1)", 3);
    let first = outputs(&mut three, 1, 8);
    // The shortest stride; it is as far as the others then, and was the last to become so.
    assert_eq!(first[..4], [1, 1, 0, 2]);
    let count = |all: &[usize], output| all.iter().filter(|o| **o == output).count();
    assert_eq!([0, 1, 2].map(|output| count(&first, output)), [2, 4, 2]);
    let more = outputs(&mut three, 1, 80);
    assert_eq!([0, 1, 2].map(|output| count(&more, output)), [20, 40, 20]);
    let mut idle = bed("StrideSwitch(0, 5)", 2);
    assert_eq!(outputs(&mut idle, 1, 4), [1; 4], "no tickets, no packets");
}

#[test]
fn hashes_are_sums_of_bytes_and_short_packets_leave_by_the_first_output() {
    let mut three = bed("HashSwitch(20, 1)", 3);
    assert_eq!(outputs(&mut three, 1, 7), [0, 1, 2, 0, 1, 2, 0]);
    let mut four = bed("HashSwitch(20, 1)", 4);
    // Of a power of two the high bits count, too.
    assert_eq!(outputs(&mut four, 1, 20)[15..], [3, 1, 0, 3, 2]);
    assert_eq!(four.at(1, [&[vec![9; 20]], &[]]), [(0, vec![9; 20])]);
}

#[test]
fn random_packets_go_everywhere() {
    let mut four = bed("RandomSwitch", 4);
    let all = outputs(&mut four, 1, 200);
    assert!((0..4).all(|output| all.iter().filter(|o| **o == output).count() > 20), "{all:?}");
}

#[test]
fn a_rate_is_kept_and_what_is_over_it_leaves_by_the_other_output() {
    let mut rated = bed("RatedSplitter(10, BURST_SIZE 4)", 2);
    let passed = |all: Vec<usize>| all.iter().filter(|o| **o == 0).count();
    assert_eq!(passed(outputs(&mut rated, 100, 20)), 4, "the bucket is full at first");
    assert_eq!(passed(outputs(&mut rated, 100, 20)), 0, "no time has passed");
    assert_eq!(passed(outputs(&mut rated, 101, 20)), 4, "a second fills it");
    let mut bytes = bed("BandwidthRatedSplitter(600, BURST_DURATION 500ms)", 2);
    assert_eq!(passed(outputs(&mut bytes, 100, 20)), 5, "300 bytes in half a second");
}

#[test]
fn a_dispatcher_takes_outputs_from_its_rules() {
    let text = "CTXDispatcher(20/01 1, 20/02 drop, 20/03 0, 20/04, 20/05/0f 9, -)";
    let mut contexts = bed(text, 3);
    // A rule without an output gets the one behind the highest; if there is none, the rest get none.
    assert_eq!(outputs(&mut contexts, 1, 5), [1, 0, 2]);
    assert_eq!(contexts.dropped("dropped_by_pattern"), 2);
    let mut open = bed("CTXDispatcher(20/01 0)", 2);
    assert_eq!(outputs(&mut open, 1, 3), [1, 0, 1], "what no rule names leaves by the last output");
}

#[test]
fn those_that_pull_from_one_output_have_packets_by_turns() {
    let mut bed = Bed::new(
        "FromDump(a) -> p :: PathSpinlock; p -> Unqueue -> ToDump(0); p -> Unqueue -> ToDump(1); \
        p -> Unqueue -> ToDump(2);
        FromDump(b) -> Discard",
    );
    assert_eq!(outputs(&mut bed, 1, 7), [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn tags_are_put_in_by_annotation_and_the_native_one_is_not() {
    let tagged = |tag: [u8; 2]| [&[7; 12][..], &[0x81, 0], &tag, &[8, 0], &[0; 46]].concat();
    let mut bed = Bed::new(
        "FromDump(a) -> VLANDecap -> e :: VLANEncap(ANNO, NATIVE_VLAN 9) -> ToDump(0);
        FromDump(b) -> SetVLANAnno(0x2005) -> f :: VLANEncap(ANNO, ETHERTYPE 0x88a8) -> ToDump(1)",
    );
    let plain = [&[7; 12][..], &[8, 0], &[0; 46]].concat();
    let frames = [tagged([0x60, 5]), tagged([0, 9])];
    let sent = bed.at(1, [&frames, std::slice::from_ref(&plain)]);
    assert_eq!(sent[0], (0, frames[0].clone()), "priority and number are as they were");
    assert_eq!(sent[1], (0, plain.clone()), "the native one has no tag");
    assert_eq!(sent[2].1[12..18], [0x88, 0xa8, 0x20, 5, 8, 0]);
}

#[test]
fn queriers_that_name_a_table_have_it_together() {
    let mut bed = Bed::new(
        "t :: ARPTable; FromDump(a) -> GetIPAddress(16) -> p :: ARPQuerier(10.0.0.1, 2:0:0:0:0:1, TABLE t) -> ToDump(0);
        FromDump(b) -> [1] q :: ARPQuerier(10.1.0.1, 2:0:0:0:0:2, TABLE t) -> ToDump(1); Idle -> q",
    );
    let answer = [
        &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9, 10, 0, 0, 9][..],
        &[2, 0, 0, 0, 0, 2, 10, 1, 0, 1],
    ];
    let packet =
        [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 7, 10, 0, 0, 9][..], &[0; 8]].concat();
    assert_eq!(bed.at(1, [&[], &[answer.concat()]]), []);
    let sent = bed.at(2, [&[packet], &[]]);
    assert_eq!(
        (sent[0].0, &sent[0].1[..6]),
        (0, &[2, 0, 0, 0, 0, 9][..]),
        "what one has learnt the other knows"
    );
}

#[test]
fn packets_that_come_back_say_how_long_they_took() {
    let mut bed = Bed::new(
        "FromDump(a) -> n :: NumberPacket(8) -> r :: RecordTimestamp(N 16, OFFSET 8) -> ToDump(0);
        FromDump(b) -> d :: TimestampDiff(r, OFFSET 8, MAXDELAY 5000) -> ToDump(1); d[1] -> ToDump(2)",
    );
    let sent = bed.at(1, [&vec![vec![0; 60]; 3], &[]]);
    let numbers: Vec<u64> =
        sent.iter().map(|(_, p)| u64::from_le_bytes(p[8..16].try_into().expect("eight bytes"))).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let back: Vec<Vec<u8>> = sent.into_iter().map(|(_, packet)| packet).collect();
    let outputs =
        |sent: Vec<(usize, Vec<u8>)>| sent.into_iter().map(|(output, _)| output).collect::<Vec<_>>();
    assert_eq!(outputs(bed.at(3, [&[], &back[..2]])), [1, 1]);
    assert_eq!(outputs(bed.at(9, [&[], &back[2..]])), [2], "that is too long ago");
    let mut never = back[0].clone();
    never[8] = 9;
    assert_eq!(outputs(bed.at(3, [&[], &[never, vec![0; 15]]])), [2, 2]);
    assert_eq!(bed.counter("d", "count"), 2);
    assert_eq!(
        bed.at(1, [&[vec![0; 9]], &[]])[0].1,
        [&[0; 8][..], &3u64.to_le_bytes()].concat(),
        "it is made longer"
    );
}

#[test]
fn times_of_a_sample_of_numbers_are_noted_and_looked_at() {
    let mut bed = Bed::new(
        "FromDump(a) -> NumberPacket(8) -> r :: RecordTimestamp(N 4, OFFSET 8, SAMPLE 2) -> ToDump(0);
        FromDump(b) -> c :: Classifier(0/00, -) -> d :: TimestampDiff(r, OFFSET 8) -> ToDump(1); d[1] -> ToDump(2);
        c[1] -> e :: TimestampDiff(r, OFFSET 8, SAMPLE 2) -> ToDump(3); e[1] -> ToDump(4)",
    );
    let sent = bed.at(1, [&vec![vec![0; 60]; 8], &[]]);
    let back: Vec<Vec<u8>> = sent.into_iter().map(|(_, packet)| packet).collect();
    let outputs = |sent: Vec<(usize, Vec<u8>)>| sent.into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    // Every number of a packet has a time of its own, though the table has room for half of them.
    assert_eq!(outputs(bed.at(1, [&[], &back])), [1, 2, 1, 2, 1, 2, 1, 2]);
    assert_eq!(bed.counter("d", "count"), 4);
    let others: Vec<Vec<u8>> = back.into_iter().map(|packet| [&[1], &packet[1..]].concat()).collect();
    assert_eq!(outputs(bed.at(1, [&[], &others])), [3; 8], "numbers that are not looked at pass");
    assert_eq!(bed.counter("e", "count"), 4);
}
