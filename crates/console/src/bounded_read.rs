//! Reads files with a limit: a larger one is refused before it takes memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Largest file that is read whole, in bytes.
const LARGEST: u64 = 128 << 20;

/// Bytes of a file.
///
/// # Errors
/// If it cannot be read, or is larger than `LARGEST`.
pub fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > LARGEST {
        return Err(too_large());
    }
    all(file, length)
}

/// Text of a file.
///
/// # Errors
/// As for [`bytes`], or if it is not UTF-8.
pub fn text(path: &Path) -> io::Result<String> {
    into_text(bytes(path)?)
}

/// Text of standard input.
///
/// # Errors
/// As for [`text`].
pub fn text_of_input() -> io::Result<String> {
    into_text(bytes_of_input()?)
}

/// Bytes of standard input.
///
/// # Errors
/// As for [`bytes`].
pub fn bytes_of_input() -> io::Result<Vec<u8>> {
    all(io::stdin().lock(), 0)
}

/// Reads to the end; devices and pipes report no length.
fn all(from: impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    from.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST { Err(too_large()) } else { Ok(bytes) }
}

fn into_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn too_large() -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {} MiB", LARGEST >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_has_no_end_is_refused() {
        let path = std::env::temp_dir().join(format!("millstream-limited-{}", std::process::id()));
        let file = File::create(&path).expect("made");
        for (length, fits) in [(0, true), (1 << 20, true), (LARGEST + 1, false), (1 << 40, false)] {
            file.set_len(length).expect("sparse");
            assert_eq!(bytes(&path).map(|b| b.len() as u64).ok(), fits.then_some(length));
        }
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(bytes(Path::new("/dev/zero")).expect_err("endless").kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn text_is_utf8() {
        assert_eq!(into_text(b"text".to_vec()).expect("text"), "text");
        assert_eq!(into_text(vec![0xff]).expect_err("no text").kind(), ErrorKind::InvalidData);
    }
}
