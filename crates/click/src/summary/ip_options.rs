//! Options of IP as text. Source: ToIPSummaryDump(n), "IP options"; RFC 791, 3.1.

use std::net::Ipv4Addr;

use super::header_options::{self, numbered_text, option_bytes, parse_numbered};

/// Options that are a list of addresses, by their names.
const ROUTES: &[(&str, u8)] = &[("rr", 7), ("lsrr", 131), ("ssrr", 137)];
/// Number of the byte that the pointer of an empty list names.
const FIRST: u8 = 4;

/// Options as text.
pub(super) fn text(options: &[u8]) -> String {
    header_options::text(options, |kind, data| vec![option(kind, data)])
}

fn option(kind: u8, data: &[u8]) -> String {
    let route = ROUTES.iter().find(|(_, known)| *known == kind);
    match (route, data) {
        (Some((name, _)), [pointer, addresses @ ..]) if addresses.len().is_multiple_of(4) => {
            format!("{name}{{{}}}", addresses_text(*pointer, addresses))
        }
        _ => numbered_text(kind, data),
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
    header_options::parse(text, |option| match option.split_once('{') {
        Some((name, list)) => {
            let (_, kind) = ROUTES.iter().find(|(known, _)| *known == name)?;
            route(*kind, list.strip_suffix('}')?)
        }
        None => parse_numbered(option),
    })
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
    option_bytes(kind, &[&[pointer], all.as_flattened()].concat())
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
