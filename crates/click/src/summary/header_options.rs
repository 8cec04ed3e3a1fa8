//! Options of IP and TCP headers as text: each has a kind, a length and data. Source: RFC 791, 3.1; RFC 9293, 3.1.

pub(super) const END: u8 = 0;
pub(super) const NO_OPERATION: u8 = 1;
/// Bytes of options, at most.
const MOST: usize = 40;

/// Options as text: the texts that `shown` gives for a kind and its data, between semicolons.
pub(super) fn text(options: &[u8], shown: impl Fn(u8, &[u8]) -> Vec<String>) -> String {
    let (mut all, mut rest) = (Vec::new(), options);
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
        all.extend(shown(kind, data));
        rest = &rest[length..];
    }
    if all.is_empty() { ".".to_owned() } else { all.join(";") }
}

/// An option without a name of its own: `KIND` or `KIND=BYTE:BYTE...`.
pub(super) fn numbered_text(kind: u8, data: &[u8]) -> String {
    match data {
        [] => kind.to_string(),
        _ => format!("{kind}={}", data.iter().map(u8::to_string).collect::<Vec<_>>().join(":")),
    }
}

/// The bytes of options, filled up to words. `bytes_of` reads one option.
pub(super) fn parse(text: &str, bytes_of: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for option in text.split(';').filter(|option| !["", "."].contains(option)) {
        bytes.extend(match option {
            "eol" => vec![END],
            "nop" => vec![NO_OPERATION],
            option => bytes_of(option)?,
        });
    }
    bytes.resize(bytes.len().next_multiple_of(4), END);
    (bytes.len() <= MOST).then_some(bytes)
}

/// The bytes of an option as [`numbered_text`] writes it.
pub(super) fn parse_numbered(option: &str) -> Option<Vec<u8>> {
    let (kind, data) = option.split_once('=').unwrap_or((option, ""));
    let data = data.split(':').filter(|byte| !byte.is_empty()).map(|byte| byte.parse().ok());
    option_bytes(kind.parse().ok()?, &data.collect::<Option<Vec<u8>>>()?)
}

/// An option of a kind and its data, if that is short enough.
pub(super) fn option_bytes(kind: u8, data: &[u8]) -> Option<Vec<u8>> {
    let length = u8::try_from(data.len() + 2).ok().filter(|_| data.len() <= MOST)?;
    Some([&[kind, length], data].concat())
}
