//! Options of TCP as text. Source: ToIPSummaryDump(n), "TCP options"; RFC 9293, RFC 7323, RFC 2018.

use super::fields::SummaryField as Field;
use super::header_options::{self, numbered_text, option_bytes, parse_numbered};

const SEGMENT: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The options of a field: all, all but timestamps, or selective acknowledgements alone.
pub(super) fn text(options: &[u8], field: Field) -> String {
    let is_shown = |kind: u8| match field {
        Field::TcpOptionsButTime => kind != TIMESTAMP,
        Field::TcpSack => kind == SACK,
        _ => true,
    };
    header_options::text(options, |kind, data| if is_shown(kind) { option(kind, data) } else { Vec::new() })
}

/// The texts of an option.
fn option(kind: u8, data: &[u8]) -> Vec<String> {
    match (kind, data) {
        (SEGMENT, [high, low]) => vec![format!("mss{}", u16::from_be_bytes([*high, *low]))],
        (SCALE, [shift]) => vec![format!("wscale{shift}")],
        (SACK_PERMITTED, []) => vec!["sackok".to_owned()],
        (SACK, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => {
            blocks.chunks(8).map(|block| format!("sack{}-{}", word(block), word(&block[4..]))).collect()
        }
        (TIMESTAMP, [_, _, _, _, echo @ ..]) if echo.len() == 4 => {
            vec![format!("ts{}:{}", word(data), word(echo))]
        }
        (kind, data) => vec![numbered_text(kind, data)],
    }
}

/// The bytes of options, filled up to words.
pub(super) fn parse(text: &str) -> Option<Vec<u8>> {
    header_options::parse(text, bytes_of)
}

fn bytes_of(option: &str) -> Option<Vec<u8>> {
    let pair = |text: &str, between: char| {
        let (one, other) = text.split_once(between)?;
        let number = |text: &str| text.parse().ok().map(u32::to_be_bytes);
        Some([number(one)?, number(other)?].concat())
    };
    let said = |name: &str| option.strip_prefix(name);
    if option == "sackok" {
        option_bytes(SACK_PERMITTED, &[])
    } else if let Some(size) = said("mss") {
        option_bytes(SEGMENT, &size.parse::<u16>().ok()?.to_be_bytes())
    } else if let Some(shift) = said("wscale") {
        option_bytes(SCALE, &[shift.parse().ok()?])
    } else if let Some(block) = said("sack") {
        option_bytes(SACK, &pair(block, '-').or_else(|| pair(block, ':'))?)
    } else if let Some(times) = said("ts") {
        option_bytes(TIMESTAMP, &pair(times, ':')?)
    } else {
        parse_numbered(option)
    }
}
