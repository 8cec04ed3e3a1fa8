//! Capture files as tests write them.

/// A capture of these frames.
pub(crate) fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut out = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for (at, frame) in (0..).zip(frames) {
        out.extend(words(&[at, 5, frame.len() as u32, frame.len() as u32]));
        out.extend(frame);
    }
    out
}
