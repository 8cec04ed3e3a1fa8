//! Text in buffers that the kernel fills.

/// The text of a log buffer, up to its zero byte.
pub(crate) fn log_text(log: &[u8]) -> String {
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}
