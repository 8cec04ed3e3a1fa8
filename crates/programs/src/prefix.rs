//! IPv4 prefixes.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A prefix; bits beyond its length are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ipv4Prefix {
    address: u32,
    len: u8,
}

/// A text that is no IPv4 prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an IPv4 prefix such as 192.0.2.0/24")]
pub struct PrefixError(String);

impl Ipv4Prefix {
    /// The prefix of this length that contains the address; a length beyond 32 counts as 32.
    pub fn new(address: Ipv4Addr, len: u8) -> Self {
        let len = len.min(32);
        Self { address: u32::from(address) & mask(len), len }
    }

    /// The first address.
    pub fn address(self) -> Ipv4Addr {
        self.address.into()
    }

    /// The number of leading bits that count.
    pub fn length(self) -> u8 {
        self.len
    }

    /// True if the address lies in the prefix.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.len) == self.address
    }

    /// The address at this distance from the first, counted modulo the size of the prefix.
    pub fn nth(self, n: u32) -> Ipv4Addr {
        (self.address | n & !mask(self.len)).into()
    }
}

/// Ones where a prefix of this length counts.
fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

impl fmt::Display for Ipv4Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.len)
    }
}

impl FromStr for Ipv4Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let error = || PrefixError(text.to_owned());
        let (address, len) = text.split_once('/').ok_or_else(error)?;
        let address = address.parse().map_err(|_| error())?;
        let len = len.parse().ok().filter(|&len| len <= 32).ok_or_else(error)?;
        Ok(Self::new(address, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_clears_host_bits_and_prints() {
        let prefix: Ipv4Prefix = "10.1.2.3/8".parse().unwrap();
        assert_eq!(prefix.to_string(), "10.0.0.0/8");
        assert_eq!(prefix.nth(5), Ipv4Addr::new(10, 0, 0, 5));
        assert!(prefix.contains(Ipv4Addr::new(10, 255, 0, 1)));
        assert!(!prefix.contains(Ipv4Addr::new(11, 0, 0, 1)));
        let all: Ipv4Prefix = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains(Ipv4Addr::BROADCAST));
        assert_eq!(all.nth(u32::MAX), Ipv4Addr::BROADCAST);
    }

    #[test]
    fn rejects_what_is_no_prefix() {
        for text in ["", "10.0.0.0", "10.0.0/8", "10.0.0.0/33", "10.0.0.0/-1", "2001:db8::/32"] {
            assert!(text.parse::<Ipv4Prefix>().is_err(), "{text}");
        }
    }
}
