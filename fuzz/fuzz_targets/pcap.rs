//! Capture files: no more frames than asked for, each of a length that can be sent, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_lab::pcap::parse;

fuzz_target!(|data: &[u8]| {
    let Ok(capture) = parse(data, 1000) else { return };
    assert!(capture.frames.len() <= 1000);
    assert!(capture.frames.iter().all(|f| (14..=4096).contains(&f.len())));
});
