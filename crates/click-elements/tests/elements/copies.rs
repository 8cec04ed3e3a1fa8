//! Copies of packets are whole: bytes that were stripped from the original, and may be put back, are in front
//! of the copy, too, and the data that is kept of a packet that waits does not overlap with headers.

use crate::common::{Bed, hex};
use millstream_click::{flatten, parse};
use millstream_click_elements::compile;

/// A frame with a different value in every byte.
fn frame() -> Vec<u8> {
    let header = hex("000102030405 060708090a0b 0800");
    header.into_iter().chain((0..60).map(|n| 0x40 + n)).collect()
}

/// Packets that leave by each of two outputs.
fn both(between: &str) -> [Vec<Vec<u8>>; 2] {
    let mut bed = Bed::new(&format!("FromDump(a) -> {between}"));
    let sent = bed.at(1, [&[frame(), frame()], &[]]);
    [0, 1].map(|output| sent.iter().filter(|(by, _)| *by == output).map(|(_, bytes)| bytes.clone()).collect())
}

#[test]
fn what_was_stripped_is_in_front_of_copies() {
    let [original, copy] = both(
        "Paint(3) -> Strip(14) -> t :: Tee(2); t[0] -> Unstrip(14) -> ToDump(b);
         t[1] -> c :: CheckPaint(3) -> Unstrip(14) -> ToDump(d); c[1] -> Discard",
    );
    assert_eq!((original, copy), (vec![frame(), frame()], vec![frame(), frame()]));
}

#[test]
fn headers_that_were_put_in_front_and_stripped_are_in_front_of_copies() {
    let put = "EtherEncap(0x0806, 1:1:1:1:1:1, 2:2:2:2:2:2)";
    let [original, copy] = both(&format!(
        "{put} -> {put} -> Strip(28) -> t :: Tee(2); t[0] -> Unstrip(28) -> ToDump(b); t[1] -> Unstrip(28) -> ToDump(d)"
    ));
    let encapsulated = [&hex("020202020202 010101010101 0806").repeat(2), &frame()[..]].concat();
    assert_eq!((&original, &copy), (&vec![encapsulated.clone(); 2], &vec![encapsulated; 2]));
}

/// Annotations of a packet that waits and room for headers do not overlap: the last header that fits is
/// dropped by neither.
#[test]
fn packets_that_wait_have_all_the_room_in_front() {
    let put = "EtherEncap(0x0806, 1:1:1:1:1:1, 2:2:2:2:2:2) -> ".repeat(15);
    let [original, copy] = both(&format!(
        "Paint(3) -> {put} t :: Tee(2); t[0] -> ToDump(b); t[1] -> c :: CheckPaint(3) -> ToDump(d); c[1] -> Discard"
    ));
    assert_eq!((original.len(), copy.len()), (2, 2));
    assert_eq!(original, copy);
    assert_eq!(original[0].len(), 15 * 14 + frame().len());
}

/// Copies of a packet at most, by a configuration.
fn copies(text: &str) -> u32 {
    compile(&flatten(&parse(text).expect("parsed"), &[]).expect("flattened")).expect("compiled").copies
}

#[test]
fn copies_of_copies_are_counted_and_ways_that_lead_back_are_not() {
    assert_eq!(copies("FromDevice(a) -> Counter -> Discard;"), 0);
    assert_eq!(copies("FromDevice(a) -> t :: Tee(3) -> d :: Discard; t[1] -> d; t[2] -> d;"), 2);
    let both = "FromDevice(a) -> t :: Tee -> u :: Tee -> d :: Discard; t[1] -> u; u[1] -> d; u[2] -> d;";
    assert_eq!(copies(both), 5, "a copy, and two of either");
    let choice =
        "FromDevice(a) -> c :: Classifier(12/0800, -) -> t :: Tee -> d :: Discard; t[1] -> d; c[1] -> d;";
    assert_eq!(copies(choice), 1);
    assert!(
        copies(
            "FromDevice(a) -> t :: Tee -> Discard; t[1] -> Paint(1) -> p :: CheckPaint(2) -> t; p[1] -> Discard;"
        ) >= 1
    );
}
