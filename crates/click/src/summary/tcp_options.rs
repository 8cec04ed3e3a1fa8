//! Options of TCP as text. Source: ToIPSummaryDump(n), "TCP options"; RFC 9293, RFC 7323, RFC 2018.

use super::fields::SummaryField as Field;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const SEGMENT: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;
/// Bytes of options, at most.
const MOST: usize = 40;

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The options of a field: all, all but timestamps, or selective acknowledgements alone.
pub(super) fn text(options: &[u8], field: Field) -> String {
    let mut all = Vec::new();
    let mut rest = options;
    while let Some((&kind, behind)) = rest.split_first() {
        if kind == END {
            break;
        }
        if kind == NO_OPERATION {
            rest = behind;
            continue;
        }
        let length = behind.first().map_or(0, |length| usize::from(*length));
        let Some(data) = rest.get(2..length) else { return "?".to_owned() };
        let shown = match field {
            Field::TcpOptionsButTime => kind != TIMESTAMP,
            Field::TcpSack => kind == SACK,
            _ => true,
        };
        if shown {
            all.extend(option(kind, data));
        }
        rest = &rest[length..];
    }
    if all.is_empty() { ".".to_owned() } else { all.join(";") }
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
        (kind, []) => vec![kind.to_string()],
        (kind, data) => {
            let bytes: Vec<String> = data.iter().map(u8::to_string).collect();
            vec![format!("{kind}={}", bytes.join(":"))]
        }
    }
}

/// The bytes of options, filled up to words.
pub(super) fn parse(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for option in text.split(';').filter(|option| !["", "."].contains(option)) {
        bytes.extend(bytes_of(option)?);
    }
    bytes.resize(bytes.len().next_multiple_of(4), END);
    (bytes.len() <= MOST).then_some(bytes)
}

fn bytes_of(option: &str) -> Option<Vec<u8>> {
    let pair = |text: &str, between: char| {
        let (one, other) = text.split_once(between)?;
        let number = |text: &str| text.parse().ok().map(u32::to_be_bytes);
        Some([number(one)?, number(other)?].concat())
    };
    let with = |kind: u8, data: Vec<u8>| [vec![kind, data.len() as u8 + 2], data].concat();
    Some(match option {
        "eol" => vec![END],
        "nop" => vec![NO_OPERATION],
        "sackok" => with(SACK_PERMITTED, Vec::new()),
        option => {
            let said = |name: &str| option.strip_prefix(name);
            if let Some(size) = said("mss") {
                with(SEGMENT, size.parse::<u16>().ok()?.to_be_bytes().to_vec())
            } else if let Some(shift) = said("wscale") {
                with(SCALE, vec![shift.parse().ok()?])
            } else if let Some(block) = said("sack") {
                with(SACK, pair(block, '-').or_else(|| pair(block, ':'))?)
            } else if let Some(times) = said("ts") {
                with(TIMESTAMP, pair(times, ':')?)
            } else {
                let (kind, data) = option.split_once('=').unwrap_or((option, ""));
                let data = data.split(':').filter(|byte| !byte.is_empty()).map(|byte| byte.parse().ok());
                let data = data.collect::<Option<Vec<u8>>>().filter(|data| data.len() <= MOST)?;
                with(kind.parse().ok()?, data)
            }
        }
    })
}
