//! Reads classic capture files (`.pcap`, plain or gzip) of Ethernet frames.
//!
//! Both byte orders, times in microseconds or nanoseconds (the rig does not use them: it sends at its own pace). Frames
//! that were cut when captured are padded with zeros to their length on the wire, as far as the rig can send them.
//!
//! Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format".

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::error::{Error, Result};
use crate::rig::{MAX_FRAME, MIN_FRAME};

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// Link type of Ethernet.
const ETHERNET: u32 = 1;
/// Unpacked bytes that are read, at most.
const MOST_BYTES: u64 = 1 << 30;

/// The frames of a capture file, and how many were left out because the rig cannot send them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// In the order of the file.
    pub frames: Vec<Vec<u8>>,
    /// When each was captured, in nanoseconds.
    pub times: Vec<u64>,
    /// Shorter than an Ethernet header or longer than a page takes.
    pub left_out: usize,
}

/// Reads a file, at most `most` frames of it.
///
/// # Errors
/// If it cannot be read, is no such capture, or has no frame that could be sent.
pub fn read(path: &Path, most: usize) -> Result<Capture> {
    let capture = read_any(path, most)?;
    match capture.frames.is_empty() {
        true => Err(Error::Unusable(format!("{}: no frame that could be sent", path.display()))),
        false => Ok(capture),
    }
}

/// As [`read`], of a file that may have no frames.
///
/// # Errors
/// If it cannot be read or is no such capture.
pub fn read_any(path: &Path, most: usize) -> Result<Capture> {
    let fail = |e| Error::io(format!("reading {}", path.display()), e);
    let mut bytes = std::fs::read(path).map_err(fail)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        MultiGzDecoder::new(&bytes[..]).take(MOST_BYTES).read_to_end(&mut unpacked).map_err(fail)?;
        bytes = unpacked;
    }
    parse(&bytes, most).map_err(|what| Error::Unusable(format!("{}: {what}", path.display())))
}

/// Reads an unpacked file that is in memory, at most `most` frames of it.
///
/// # Errors
/// In words, if it is no such capture.
pub fn parse(bytes: &[u8], most: usize) -> std::result::Result<Capture, String> {
    let magic = bytes.first_chunk::<4>().ok_or("too short for a capture file")?;
    let number: fn([u8; 4]) -> u32 = match u32::from_le_bytes(*magic) {
        0xa1b2_c3d4 | 0xa1b2_3c4d => u32::from_le_bytes,
        0xd4c3_b2a1 | 0x4d3c_b2a1 => u32::from_be_bytes,
        0x0a0d_0d0a => return Err("a pcapng file; convert it with `editcap -F pcap`".into()),
        _ => return Err("no capture file".into()),
    };
    let nanoseconds = [*b"\x4d\x3c\xb2\xa1", *b"\xa1\xb2\x3c\x4d"].contains(magic);
    let word = |at: usize| {
        let bytes: Option<[u8; 4]> = bytes.get(at..at.checked_add(4)?)?.try_into().ok();
        bytes.map(number)
    };
    // The upper half may say how long frame check sequences are.
    match word(20).ok_or("cut inside its header")? & 0xffff {
        ETHERNET => {}
        other => return Err(format!("frames of link type {other}, not Ethernet")),
    }
    let (mut out, mut at) = (Capture::default(), FILE_HEADER);
    while at < bytes.len() && out.frames.len() < most {
        let cut = || format!("cut inside the record at byte {at}");
        let captured = word(at + 8).ok_or_else(cut)? as usize;
        let on_the_wire = word(at + 12).ok_or_else(cut)? as usize;
        let start = at + RECORD_HEADER;
        let end = start.checked_add(captured).filter(|e| *e <= bytes.len()).ok_or_else(cut)?;
        let mut frame = bytes[start..end].to_vec();
        if (frame.len()..=MAX_FRAME).contains(&on_the_wire) {
            frame.resize(on_the_wire, 0);
        }
        match (MIN_FRAME..=MAX_FRAME).contains(&frame.len()) {
            true => {
                let time = |at| word(at).map_or(0, u64::from);
                let fraction = time(at + 4) * if nanoseconds { 1 } else { 1_000 };
                out.times.push(time(at) * 1_000_000_000 + fraction);
                out.frames.push(frame);
            }
            false => out.left_out += 1,
        }
        at = end;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(order: fn(u32) -> [u8; 4], magic: u32, frames: &[(usize, usize)]) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [magic, 0x0004_0002, 0, 0, 65_535, 1] {
            out.extend(order(word));
        }
        for &(captured, wire) in frames {
            for word in [7, 8, captured as u32, wire as u32] {
                out.extend(order(word));
            }
            out.extend((0..captured).map(|i| i as u8));
        }
        out
    }

    #[test]
    fn both_byte_orders_and_resolutions() {
        for magic in [0xa1b2_c3d4, 0xa1b2_3c4d] {
            let little = parse(&file(u32::to_le_bytes, magic, &[(60, 60), (64, 100)]), 10).unwrap();
            let big = parse(&file(u32::to_be_bytes, magic, &[(60, 60), (64, 100)]), 10).unwrap();
            assert_eq!(little, big);
            assert_eq!(little.frames.iter().map(Vec::len).collect::<Vec<_>>(), [60, 100]);
            let fraction = if magic == 0xa1b2_c3d4 { 8_000 } else { 8 };
            assert_eq!(little.times, [7_000_000_000 + fraction; 2]);
            assert_eq!(little.frames[1][63..66], [63, 0, 0], "padded with zeros");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_left_out_and_counted() {
        let c = parse(&file(u32::to_le_bytes, 0xa1b2_c3d4, &[(10, 10), (60, 60), (5000, 5000)]), 10).unwrap();
        assert_eq!((c.frames.len(), c.left_out), (1, 2));
        let all = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(60, 60); 5]);
        assert_eq!(parse(&all, 3).unwrap().frames.len(), 3);
    }

    #[test]
    fn damaged_files_are_refused_at_every_cut() {
        let whole = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(60, 60), (61, 61)]);
        let ends = [24, 24 + 76, whole.len()];
        for cut in 0..whole.len() {
            let result = parse(&whole[..cut], 10);
            assert_eq!(result.is_ok(), ends.contains(&cut), "{cut}: {result:?}");
        }
        let mut huge = whole.clone();
        huge[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&huge, 10).unwrap_err().contains("byte 24"));
        assert!(parse(&[0x0a, 0x0d, 0x0d, 0x0a, 0, 0], 10).unwrap_err().contains("pcapng"));
    }
}
