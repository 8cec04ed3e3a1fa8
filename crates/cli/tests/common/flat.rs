//! Messages without the breaks that the renderer puts where the terminal ends.

/// Joins lines, with a space between words.
pub(crate) fn flat(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}
