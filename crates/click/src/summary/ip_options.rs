//! Options of IP as text. Source: ToIPSummaryDump(n), "IP options"; RFC 791, 3.1.

use std::net::Ipv4Addr;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// Bytes of options, at most.
const MOST: usize = 40;
/// Options that are a list of addresses, by their names.
const ROUTES: &[(&str, u8)] = &[("rr", 7), ("lsrr", 131), ("ssrr", 137)];
/// Number of the byte that the pointer of an empty list names.
const FIRST: u8 = 4;

/// Options as text.
pub(super) fn text(options: &[u8]) -> String {
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
        all.push(option(kind, data));
        rest = &rest[length..];
    }
    if all.is_empty() { ".".to_owned() } else { all.join(";") }
}

fn option(kind: u8, data: &[u8]) -> String {
    let route = ROUTES.iter().find(|(_, known)| *known == kind);
    match (route, data) {
        (Some((name, _)), [pointer, addresses @ ..]) if addresses.len().is_multiple_of(4) => {
            format!("{name}{{{}}}", addresses_text(*pointer, addresses))
        }
        _ if data.is_empty() => kind.to_string(),
        _ => format!("{kind}={}", data.iter().map(u8::to_string).collect::<Vec<_>>().join(":")),
    }
}

/// Addresses between commas, with `^` in front of the one that the pointer names.
fn addresses_text(pointer: u8, addresses: &[u8]) -> String {
    let mut all = String::new();
    for (at, address) in addresses.as_chunks::<4>().0.iter().enumerate() {
        let is_next = usize::from(pointer) == usize::from(FIRST) + 4 * at;
        let mark = if is_next {
            "^"
        } else if at > 0 {
            ","
        } else {
            ""
        };
        all += &format!("{mark}{}", Ipv4Addr::from(*address));
    }
    all
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
    match option {
        "eol" => return Some(vec![END]),
        "nop" => return Some(vec![NO_OPERATION]),
        _ => {}
    }
    if let Some((name, list)) = option.split_once('{') {
        let (_, kind) = ROUTES.iter().find(|(known, _)| *known == name)?;
        return route(*kind, list.strip_suffix('}')?);
    }
    let (kind, data) = option.split_once('=').unwrap_or((option, ""));
    let data: Option<Vec<u8>> =
        data.split(':').filter(|byte| !byte.is_empty()).map(|byte| byte.parse().ok()).collect();
    let data = data.filter(|data| data.len() <= MOST)?;
    Some([vec![kind.parse().ok()?, data.len() as u8 + 2], data].concat())
}

/// A list of addresses, in which `^` stands in front of the next one.
fn route(kind: u8, list: &str) -> Option<Vec<u8>> {
    let (before, after) = list.split_once('^').unwrap_or(("", list));
    let addresses = |text: &str| -> Option<Vec<[u8; 4]>> {
        let all = text.split(',').filter(|address| !address.is_empty());
        all.map(|address| address.parse().ok().map(|address: Ipv4Addr| address.octets())).collect()
    };
    let (before, after) = (addresses(before)?, addresses(after)?);
    let pointer = u8::try_from(before.len()).ok()?.checked_mul(4)?.checked_add(FIRST)?;
    let all = [before, after].concat();
    let length = u8::try_from(3 + 4 * all.len()).ok().filter(|length| usize::from(*length) <= MOST)?;
    Some([vec![kind, length, pointer], all.as_flattened().to_vec()].concat())
}

#[cfg(test)]
mod tests {
    use super::{parse, text};

    #[test]
    fn options_are_the_same_as_text_again() {
        for options in
            [".", "ssrr{128.4.45.60,128.4.49.61^1.1.1.1,2.2.2.2}", "rr{^1.2.3.4}", "68=5:0;130=1:2:3:4"]
        {
            assert_eq!(parse(options).map(|bytes| text(&bytes)).as_deref(), Some(options));
        }
        assert_eq!(parse("nop;nop;eol"), Some(vec![1, 1, 0, 0]));
        assert_eq!([parse("rr{1.2.3}"), parse("xx{1.2.3.4}"), parse("7=300")], [None, None, None]);
    }
}
