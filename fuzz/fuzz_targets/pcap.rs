//! Capture files: each is read to its end, in memory that does not grow with what it claims to hold.

#![no_main]

use std::io::Cursor;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use millstream_lab::pcap::{CaptureReader, LONGEST};

fuzz_target!(|data: &[u8]| {
    let Ok(mut capture) = CaptureReader::of(Path::new("fuzz.pcap"), Cursor::new(data.to_vec())) else { return };
    let mut packets = 0;
    while let Some(record) = capture.next_record() {
        assert!(record.bytes.len() <= LONGEST);
        packets += 1;
    }
    assert!(packets <= data.len(), "more packets than bytes");
    let _ = capture.damage();
});
