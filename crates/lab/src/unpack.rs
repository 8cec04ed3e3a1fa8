//! Decompresses files as streams: gzip, xz and zstd, told by their first bytes.
//!
//! Memory is bounded: by the format for gzip, by the dictionary for xz (at most [`MOST_DICTIONARY`]), and by
//! the decoder for zstd (windows of 100 MiB at most).
//!
//! Source: RFC 1952; "The .xz File Format", version 1.2.1; RFC 8878.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Largest dictionary of an xz file, in bytes: twice that of `xz -9`.
const MOST_DICTIONARY: u64 = 128 << 20;

/// Reads the contents of a file that may be compressed.
///
/// # Errors
/// If the file cannot be read, or its decoder would take too much memory.
pub fn unpack(mut file: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let first = file.fill_buf()?;
    if first.starts_with(GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(file)));
    }
    if first.starts_with(ZSTD) {
        return Ok(Box::new(ZstdReader { frame: None, file: Some(file) }));
    }
    if first.starts_with(XZ) {
        if dictionary(first).is_some_and(|bytes| bytes > MOST_DICTIONARY) {
            let what = format!("xz with a dictionary of more than {} MiB", MOST_DICTIONARY >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        return Ok(Box::new(XzReader::new(file, true)));
    }
    Ok(Box::new(file))
}

/// Size of the dictionary in the first block of an xz file, in bytes: section 5.3.1.
fn dictionary(file: &[u8]) -> Option<u64> {
    // Behind the stream header come the size of the block header and its flags.
    let mut fields = file.get(14..)?.iter().copied();
    let flags = *file.get(13)?;
    let mut number = || {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = fields.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    };
    for has_size in [0x40, 0x80] {
        if flags & has_size != 0 {
            number()?;
        }
    }
    for _ in 0..=(flags & 3) {
        let (filter, size) = (number()?, number()?);
        let property = number()?;
        if (filter, size) == (0x21, 1) {
            return Some((2 | property & 1) << (property.min(62) / 2 + 11));
        }
        for _ in 1..size.min(16) {
            number()?;
        }
    }
    None
}

/// The frames of a zstd file, one after the other.
struct ZstdReader<R: BufRead> {
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
    /// The file, between two frames.
    file: Option<R>,
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(mut file) = self.file.take() {
                if buffer.is_empty() || file.fill_buf()?.is_empty() {
                    self.file = Some(file);
                    return Ok(0);
                }
                let invalid = |e| io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {e}"));
                self.frame = Some(StreamingDecoder::new(file).map_err(invalid)?);
            }
            let Some(frame) = &mut self.frame else { return Ok(0) };
            match frame.read(buffer)? {
                0 => self.file = self.frame.take().map(StreamingDecoder::into_inner),
                read => return Ok(read),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor, Read as _};

    use super::unpack;

    /// `xz`, `xz -9` and `zstd` of `Millstream\n`, the last one twice; written by these programs.
    const PACKED: [&str; 3] = [
        "fd377a585a000004e6d6b4460200210116000000742fe5a301000a4d696c6c73747265616d0a0000\
         dc53bda64013d36d0001230bc21bfd091fb6f37d010000000004595a",
        "fd377a585a000004e6d6b446020021011c00000010cf58cc01000a4d696c6c73747265616d0a0000\
         dc53bda64013d36d0001230bc21bfd091fb6f37d010000000004595a",
        "28b52ffd04585900004d696c6c73747265616d0a84c796c228b52ffd04585900004d696c6c737472\
         65616d0a84c796c2",
    ];

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
        hexadecimal.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    fn text(file: Vec<u8>) -> std::io::Result<String> {
        let mut text = String::new();
        unpack(BufReader::new(Cursor::new(file)))?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn files_are_unpacked_by_their_first_bytes() {
        let expected = ["Millstream\n", "Millstream\n", "Millstream\nMillstream\n"];
        assert_eq!(PACKED.map(|file| text(bytes(file)).unwrap()), expected);
        assert_eq!(text(b"Millstream\n".to_vec()).unwrap(), expected[0]);
    }

    #[test]
    fn cut_files_are_errors_and_no_panics() {
        for file in PACKED.map(bytes) {
            for end in 7..file.len() {
                assert!(text(file[..end].to_vec()).is_err() || end * 2 == file.len(), "{end}");
            }
        }
    }

    #[test]
    fn a_dictionary_that_takes_too_much_memory_is_refused() {
        let mut file = bytes(PACKED[0]);
        // The property of the only filter: 3 GiB.
        file[16] = 39;
        assert!(text(file).unwrap_err().to_string().contains("dictionary"));
    }
}
