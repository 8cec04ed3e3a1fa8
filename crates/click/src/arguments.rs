//! Arguments of an element: by position and by keyword, with types.
//!
//! An argument is a keyword argument if its first word names a keyword; anything that can be given by
//! position can be given by name, too.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

use rustc_hash::FxHashMap;

use crate::config::{SpannedText, unquote, words};
use crate::error::{ConfigSpan, Error};
use crate::graph::{Element, HostInterface};
use crate::keyword::ArgumentSpec;

/// Words by the name that stands in front of them.
pub type NameTable = FxHashMap<String, Vec<SpannedText>>;

/// Addresses of names: those that `AddressInfo` declares, else those of the interface of that name,
/// separately for each kind of address. Source: AddressInfo(n).
pub struct AddressNames {
    /// Those of `AddressInfo`.
    pub said: NameTable,
    /// The interfaces of the machine.
    pub interfaces: Vec<HostInterface>,
}

impl AddressNames {
    /// Returns true if a name has any address.
    pub fn has(&self, name: &str) -> bool {
        self.said.contains_key(name) || self.interface(name).is_some()
    }

    fn interface(&self, name: &str) -> Option<&HostInterface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The interface of a name, or the one that `AddressInfo` declares for it.
    fn interface_of(&self, name: &str) -> Option<&HostInterface> {
        let said =
            self.said.get(name).and_then(|all| all.iter().find_map(|value| self.interface(&value.text)));
        said.or_else(|| self.interface(name))
    }

    /// The first value that `AddressInfo` declares for a name and that `read` accepts.
    fn said<T>(&self, name: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.said.get(name)?.iter().find_map(|value| read(&value.text))
    }

    /// The address of `NAME` or `NAME:KIND`.
    fn ip(&self, text: &str) -> Option<u32> {
        let (name, kind) = kind(text, "ip");
        let first = |(address, mask)| address & mask | 1;
        match kind.as_str() {
            "ip" | "ip4" => self.said(name, host_text).or_else(|| Some(self.interface_of(name)?.ip?.0)),
            "bcast" => self.net(name).map(|(address, mask)| address | !mask),
            "gw" => {
                let said = self.said(text, ip_text).or_else(|| self.said(name, net_text).map(first));
                said.or_else(|| {
                    let interface = self.interface_of(name)?;
                    interface.gateway.or_else(|| interface.ip.map(first))
                })
            }
            _ => None,
        }
    }

    /// The prefix of `NAME` or `NAME:ipnet`.
    fn net(&self, text: &str) -> Option<(u32, u32)> {
        let (name, kind) = kind(text, "net");
        let is_net = ["net", "ipnet", "ip4net"].contains(&kind.as_str());
        let own = || self.said(name, net_text).or_else(|| self.interface_of(name)?.ip);
        is_net.then(own)?
    }

    fn ip6(&self, text: &str) -> Option<u128> {
        let (name, kind) = kind(text, "ip6");
        (kind == "ip6").then(|| self.said(name, host6_text))?
    }

    fn net6(&self, text: &str) -> Option<(u128, u32)> {
        let (name, kind) = kind(text, "ip6net");
        (kind == "ip6net").then(|| self.said(name, net6_text))?
    }

    fn ether(&self, text: &str) -> Option<[u8; 6]> {
        let (name, kind) = kind(text, "eth");
        let is_ether = ["eth", "ether", "ethernet"].contains(&kind.as_str());
        let own = || self.said(name, ether_text).or_else(|| self.interface_of(name)?.ether);
        is_ether.then(own)?
    }
}

/// Name and kind of `NAME:KIND`.
fn kind<'t>(text: &'t str, usual: &str) -> (&'t str, String) {
    let (name, kind) = text.rsplit_once(':').unwrap_or((text, usual));
    (name, kind.to_ascii_lowercase())
}

/// Arguments of an element that have not been read yet.
pub struct ElementArguments<'e> {
    element: &'e Element,
    positional: VecDeque<SpannedText>,
    keywords: Vec<(&'static str, SpannedText)>,
    /// Those that its class has: by name, and further ones by position.
    specs: &'static [ArgumentSpec],
    rest: Option<&'static ArgumentSpec>,
    /// The first error of an argument that no element asks for.
    refused: Option<Error>,
    /// Addresses of names.
    pub names: &'e AddressNames,
}

impl<'e> ElementArguments<'e> {
    /// Those of an element; `specs` are the arguments that its class has, and further ones by position.
    pub fn new(
        element: &'e Element,
        (specs, rest): (&'static [ArgumentSpec], Option<&'static ArgumentSpec>),
        names: &'e AddressNames,
    ) -> Self {
        let mut this = ElementArguments {
            element,
            positional: VecDeque::new(),
            keywords: Vec::new(),
            specs,
            rest,
            refused: None,
            names,
        };
        for argument in &element.arguments {
            let all = words(argument);
            let known = specs.iter();
            let keyword = known.map(|k| k.name).find(|k| all.first().is_some_and(|w| w.text == *k));
            match keyword {
                Some(keyword) if all.len() > 1 => {
                    let span = ConfigSpan { start: all[1].span.start, end: argument.span.end };
                    let text = argument.text[keyword.len()..].trim().to_owned();
                    this.keywords.push((keyword, SpannedText { text, span }));
                }
                _ => {
                    this.refused = this.refused.take().or_else(|| this.unknown(argument, &all));
                    this.positional.push_back(argument.clone());
                }
            }
        }
        this.assign();
        this.judge();
        this
    }

    /// Gives arguments by position the names that they have, in order; those that are given by name are left
    /// out.
    fn assign(&mut self) {
        for argument in self.specs.iter().filter(|argument| argument.positional) {
            if !self.keywords.iter().any(|(name, _)| *name == argument.name)
                && let Some(text) = self.positional.pop_front()
            {
                self.keywords.push((argument.name, text));
            }
        }
    }

    /// Takes out the arguments that no element reads, and records what is wrong with them.
    fn judge(&mut self) {
        let mut errors = Vec::new();
        let class = &self.element.class;
        self.keywords.retain(|(name, text)| {
            let argument = self.specs.iter().find(|argument| argument.name == *name);
            errors.extend(argument.and_then(|argument| argument.check_value(class, text).err()));
            argument.is_some_and(ArgumentSpec::is_implemented)
        });
        if let Some(rest) = self.rest.filter(|rest| !rest.is_implemented()) {
            errors.extend(self.positional.drain(..).filter_map(|text| rest.check_value(class, &text).err()));
        }
        self.refused = self.refused.take().or_else(|| errors.into_iter().next());
    }

    /// The error of an argument that looks like a keyword's. (Classes without keywords take anything.)
    fn unknown(&self, argument: &SpannedText, words: &[SpannedText]) -> Option<Error> {
        let [first, _, ..] = words else { return None };
        let like = first.text.len() > 2 && first.text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        if !like || self.specs.is_empty() || self.names.has(&first.text) {
            return None;
        }
        let message = format!("`{}` has no argument {}", self.element.class, first.text);
        let known = self.specs.iter().map(|argument| argument.name);
        Some(Error::new(argument.span, message).nearest(&first.text, known))
    }

    /// The arguments that the element's class has.
    pub fn specs(&self) -> &'static [ArgumentSpec] {
        self.specs
    }

    /// Position of the element's declaration.
    pub fn span(&self) -> ConfigSpan {
        self.element.span
    }

    /// An argument that is given by keyword only.
    pub fn keyword(&mut self, name: &str) -> Option<SpannedText> {
        let at = self.keywords.iter().position(|(k, _)| *k == name)?;
        Some(self.keywords.remove(at).1)
    }

    /// The next argument by position, or the one of this name.
    pub fn next(&mut self, name: &str) -> Option<SpannedText> {
        self.keyword(name).or_else(|| self.positional.pop_front())
    }

    /// As [`Self::next`], where there must be one.
    pub fn need(&mut self, name: &str) -> Result<SpannedText, Error> {
        let span = self.span();
        let missing = || {
            let class = &self.element.class;
            Error::new(span, format!("`{class}` lacks its argument {name}"))
        };
        self.keywords
            .iter()
            .position(|(k, _)| *k == name)
            .map(|at| self.keywords.remove(at).1)
            .or_else(|| self.positional.pop_front())
            .ok_or_else(missing)
    }

    /// All that are left by position.
    pub fn rest(&mut self) -> Vec<SpannedText> {
        self.positional.drain(..).collect()
    }

    /// An argument by position or name, of a type, with a default.
    pub fn or<T>(
        &mut self,
        name: &str,
        default: T,
        read: impl FnOnce(&SpannedText) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.next(name).map_or(Ok(default), |text| read(&text))
    }

    /// An argument by name only, of a type, with a default.
    pub fn keyword_or<T>(
        &mut self,
        name: &str,
        default: T,
        read: impl FnOnce(&SpannedText) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.keyword(name).map_or(Ok(default), |text| read(&text))
    }

    /// Reports the arguments that were not read.
    pub fn finish(self) -> Result<(), Error> {
        let class = &self.element.class;
        if let Some((name, text)) = self.keywords.first() {
            return Err(Error::new(text.span, format!("`{class}` has the argument {name} already")));
        }
        let Some(extra) = self.positional.front() else { return Ok(()) };
        Err(Error::new(extra.span, format!("`{class}` has no further argument")))
    }

    /// Fails if there is an argument that cannot be interpreted.
    pub fn check(&mut self) -> Result<(), Error> {
        self.refused.take().map_or(Ok(()), Err)
    }
}

fn wrong(text: &SpannedText, what: &str) -> Error {
    Error::new(text.span, format!("`{}` is not {what}", text.text))
}

/// An unsigned integer up to a bound: decimal, octal with a leading zero, hexadecimal.
pub fn unsigned(text: &SpannedText, most: u64) -> Result<u64, Error> {
    let digits = text.text.strip_prefix('+').unwrap_or(&text.text);
    let value = match (digits.strip_prefix("0x").or(digits.strip_prefix("0X")), digits.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => digits.parse().ok(),
    };
    value.filter(|v| *v <= most).ok_or_else(|| wrong(text, &format!("a number from 0 to {most}")))
}

/// A number of megabytes (of 2^20 bytes), fractions allowed: bytes.
pub fn megabytes(text: &SpannedText) -> Result<u64, Error> {
    const MOST: f64 = 4096.0;
    let number = text.text.parse().ok().filter(|n: &f64| (0.0..=MOST).contains(n));
    let number = number.ok_or_else(|| wrong(text, &format!("a number of megabytes from 0 to {MOST}")))?;
    Ok((number * f64::from(1 << 20)) as u64)
}

/// A byte.
pub fn byte(text: &SpannedText) -> Result<u64, Error> {
    unsigned(text, 255)
}

/// A truth value.
pub fn boolean(text: &SpannedText) -> Result<bool, Error> {
    match text.text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "t" | "y" => Ok(true),
        "0" | "false" | "no" | "f" | "n" => Ok(false),
        _ => Err(wrong(text, "a truth value: true or false")),
    }
}

/// Help for errors about names of addresses.
const NAMES: &str =
    "a name is what `AddressInfo` says it is, or an interface of this machine that has such an address";

/// An error about an address; it explains which names are accepted if the text is a name.
fn no_name(text: &SpannedText, error: Error) -> Error {
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let written = text.text.split([':', '.', '-', '/']).all(hexadecimal);
    if written { error } else { error.help(NAMES) }
}

/// A string, without its quotes.
pub fn string(text: &SpannedText) -> String {
    String::from_utf8_lossy(&unquote(&text.text)).into_owned()
}

/// An IPv4 address.
pub fn ip_text(text: &str) -> Option<u32> {
    text.parse::<Ipv4Addr>().ok().map(u32::from)
}

/// An address in the value of a name: an address itself, or that of a prefix with bits beyond the network.
fn host_text(text: &str) -> Option<u32> {
    let (address, mask) = prefix_text(text)?;
    (mask == u32::MAX || address & !mask != 0).then_some(address)
}

/// A prefix in the value of a name; an address alone is not one.
fn net_text(text: &str) -> Option<(u32, u32)> {
    prefix_text(text).filter(|_| text.contains('/'))
}

/// An IPv4 address, or a name for one.
pub fn ip(text: &SpannedText, names: &AddressNames) -> Result<u32, Error> {
    let found = ip_text(&text.text).or_else(|| names.ip(&text.text));
    found.ok_or_else(|| no_name(text, wrong(text, "an IP address")))
}

const PREFIX: &str = "an IP prefix like 18.26.4.0/24";

/// Address and mask of a prefix: `18.26.4/24`, `18.26.4.0/255.255.255.0`, or an address alone. A name is read
/// as an address first.
pub fn prefix(text: &SpannedText, names: &AddressNames) -> Result<(u32, u32), Error> {
    let found = prefix_text(&text.text).or_else(|| Some((names.ip(&text.text)?, u32::MAX)));
    found.or_else(|| names.net(&text.text)).ok_or_else(|| no_name(text, wrong(text, PREFIX)))
}

/// As [`prefix`], but a name is read as a prefix first.
pub fn net(text: &SpannedText, names: &AddressNames) -> Result<(u32, u32), Error> {
    names.net(&text.text).map_or_else(|| prefix(text, names), Ok)
}

/// Address and mask of a prefix of IPv4.
pub fn prefix_text(text: &str) -> Option<(u32, u32)> {
    let Some((address, mask)) = text.split_once('/') else { return Some((ip_text(text)?, u32::MAX)) };
    let mask = match mask.parse::<u32>() {
        Ok(bits) if bits <= 32 => u32::MAX.checked_shl(32 - bits).unwrap_or(0),
        Ok(_) => return None,
        Err(_) => ip_text(mask)?,
    };
    let given: Vec<&str> = address.split('.').filter(|part| !part.is_empty()).collect();
    let missing = 4usize.checked_sub(given.len())?;
    let whole = [given, vec!["0"; missing]].concat().join(".");
    Some((ip_text(&whole)?, mask))
}

/// An IPv6 address.
pub fn ip6_text(text: &str) -> Option<u128> {
    text.parse::<Ipv6Addr>().ok().map(u128::from)
}

/// As [`host_text`].
fn host6_text(text: &str) -> Option<u128> {
    let (address, bits) = bits6_text(text)?;
    (bits == 128 || address & !mask6(bits) != 0).then_some(address)
}

/// As [`net_text`].
fn net6_text(text: &str) -> Option<(u128, u32)> {
    prefix6_text(text).filter(|_| text.contains('/'))
}

/// An IPv6 address, or a name for one.
pub fn ip6(text: &SpannedText, names: &AddressNames) -> Result<u128, Error> {
    let found = ip6_text(&text.text).or_else(|| names.ip6(&text.text));
    found.ok_or_else(|| wrong(text, "an IPv6 address"))
}

/// Address and length of a prefix of IPv6: `3ffe:1ce1:2::/80`, or an address alone. A name is read as an
/// address first.
pub fn prefix6(text: &SpannedText, names: &AddressNames) -> Result<(u128, u32), Error> {
    let found = prefix6_text(&text.text).or_else(|| Some((names.ip6(&text.text)?, 128)));
    found
        .or_else(|| names.net6(&text.text))
        .ok_or_else(|| wrong(text, "an IPv6 prefix like 3ffe:1ce1:2::/80"))
}

/// Address and length of a prefix of IPv6; an address alone is one of all bits.
pub fn prefix6_text(text: &str) -> Option<(u128, u32)> {
    bits6_text(text).map(|(address, bits)| (address & mask6(bits), bits))
}

/// An address with all its bits, and the length of its prefix.
fn bits6_text(text: &str) -> Option<(u128, u32)> {
    let (address, bits) = text.split_once('/').unwrap_or((text, "128"));
    let bits = bits.parse().ok().filter(|bits| *bits <= 128)?;
    Some((ip6_text(address)?, bits))
}

/// The mask of a prefix of IPv6.
pub fn mask6(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

/// An Ethernet address, or a name for one.
pub fn ether(text: &SpannedText, names: &AddressNames) -> Result<[u8; 6], Error> {
    let found = ether_text(&text.text).or_else(|| names.ether(&text.text));
    found.ok_or_else(|| no_name(text, wrong(text, "an Ethernet address like 0:1:2:3:4:5")))
}

/// An Ethernet address.
pub fn ether_text(text: &str) -> Option<[u8; 6]> {
    let mut address = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut address {
        *byte = parts.next().filter(|p| p.len() <= 2).and_then(|p| u8::from_str_radix(p, 16).ok())?;
    }
    parts.next().is_none().then_some(address)
}

/// Seconds in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// Units of time, by their names, in nanoseconds; the first that fits.
const UNITS: &[(&str, u64)] = &[
    ("min", 60 * SECOND),
    ("msec", SECOND / 1_000),
    ("usec", SECOND / 1_000_000),
    ("nsec", 1),
    ("sec", SECOND),
    ("ms", SECOND / 1_000),
    ("us", SECOND / 1_000_000),
    ("ns", 1),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("hr", 3600 * SECOND),
    ("h", 3600 * SECOND),
    ("day", 24 * 3600 * SECOND),
    ("d", 24 * 3600 * SECOND),
    ("", SECOND),
];
/// The longest time, in seconds.
const LONGEST: f64 = (1u64 << 30) as f64;

/// A time in nanoseconds, from a number with a unit; the default unit is the second.
pub fn seconds(text: &SpannedText) -> Result<u64, Error> {
    time(&text.text)
        .ok_or_else(|| Error::new(text.span, format!("`{}` is not a time like 5, 0.5s or 10ms", text.text)))
}

/// A time in nanoseconds, from a number with a unit; the default unit is the second.
pub fn time(text: &str) -> Option<u64> {
    let (number, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim(), *unit)))?;
    let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number: f64 = number.parse().ok().filter(|_| digits)?;
    let whole = number * unit as f64;
    (whole <= LONGEST * SECOND as f64).then_some(whole as u64)
}

#[cfg(test)]
mod tests {
    use super::{ether_text, prefix_text, time, unsigned};
    use crate::config::SpannedText;

    #[test]
    fn prefixes_have_many_forms() {
        let net = 0x121a_0400;
        assert_eq!(prefix_text("18.26.4/24"), Some((net, 0xffff_ff00)));
        assert_eq!(prefix_text("18.26.4.0/255.255.255.0"), Some((net, 0xffff_ff00)));
        assert_eq!(prefix_text("0/0"), Some((0, 0)));
        assert_eq!(prefix_text("18.26.4.9"), Some((net + 9, u32::MAX)));
        for bad in ["18.26.4", "1.2.3.4.5/8", "1.2.3.4/33", "x/8"] {
            assert_eq!(prefix_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_and_addresses_are_as_documented() {
        let number = |t: &str| unsigned(&SpannedText { text: t.into(), ..SpannedText::default() }, 100).ok();
        assert_eq!(
            [number("0x10"), number("010"), number("+7"), number("0")],
            [Some(16), Some(8), Some(7), Some(0)]
        );
        assert_eq!([number("101"), number("-1"), number("a")], [None; 3]);
        assert_eq!(ether_text("0-a0-c9-9c-fd-9c"), Some([0, 0xa0, 0xc9, 0x9c, 0xfd, 0x9c]));
        assert_eq!(ether_text("1:2:3:4:5"), None);
    }

    #[test]
    fn times_have_units_and_fractions() {
        for (text, nanoseconds) in [
            ("5", 5_000_000_000),
            (".05", 50_000_000),
            ("10ms", 10_000_000),
            ("2 min", 120_000_000_000),
            ("7ns", 7),
            ("3 msec", 3_000_000),
            ("2sec", 2_000_000_000),
            ("1hr", 3_600_000_000_000),
            ("0.5day", 43_200_000_000_000),
        ] {
            assert_eq!(time(text), Some(nanoseconds), "{text}");
        }
        for wrong in ["", "s", "-1", "1e3", "inf", "1.2.3", "99999999999"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }
}
