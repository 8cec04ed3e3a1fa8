//! Rules, as an operator writes them.

use std::fmt;
use std::str::FromStr;

use crate::packet::{FiveTuple, ICMP, TCP, UDP};
use crate::{Ipv4Prefix, PrefixError};

/// Treatment of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// Nothing is said.
    #[default]
    Drop,
    /// It goes on.
    Accept,
    /// The kernel's stack gets it, to answer with an error.
    Reject,
}

impl RuleAction {
    /// `enum fw_action`.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Reject => 2,
        }
    }
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

impl PortRange {
    /// Every port; the only range that packets without ports match.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// One port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// True if the port is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Number of ports in the range.
    pub fn size(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)) + 1
    }
}

/// A rule. Its text is `ACTION PROTOCOL SOURCE PORTS DESTINATION PORTS`, for instance
/// `accept tcp 10.0.0.0/8 any 192.0.2.0/24 80-443`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirewallRule {
    /// Source addresses.
    pub src: Ipv4Prefix,
    /// Destination addresses.
    pub dst: Ipv4Prefix,
    /// Source ports.
    pub src_ports: PortRange,
    /// Destination ports.
    pub dst_ports: PortRange,
    /// IP protocol number; `None` for every protocol.
    pub protocol: Option<u8>,
    /// Treatment of packets that match.
    pub action: RuleAction,
}

impl FirewallRule {
    /// True if the rule admits a packet with these headers; without ports, only one that admits every port
    /// does.
    pub fn matches(&self, packet: &FiveTuple, has_ports: bool) -> bool {
        let port = |range: PortRange, port| {
            if has_ports { range.contains(port) } else { range == PortRange::ANY }
        };
        self.src.contains(packet.src)
            && self.dst.contains(packet.dst)
            && port(self.src_ports, packet.src_port)
            && port(self.dst_ports, packet.dst_port)
            && self.protocol.is_none_or(|protocol| protocol == packet.protocol)
    }
}

/// A text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Not six words.
    #[error("a rule is ACTION PROTOCOL SOURCE PORTS DESTINATION PORTS, not {0} words")]
    Words(usize),
    /// Not an action.
    #[error("`{0}` is not accept, drop or reject")]
    Action(String),
    /// Not a protocol.
    #[error("`{0}` is not any, tcp, udp, icmp or a number below 256")]
    Protocol(String),
    /// Not an address range.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// Not ports.
    #[error("`{0}` is not any, a port or a range of ports such as 80-443")]
    Ports(String),
}

impl FromStr for FirewallRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let &[action, protocol, src, src_ports, dst, dst_ports] = words.as_slice() else {
            return Err(RuleError::Words(words.len()));
        };
        Ok(Self {
            src: src.parse()?,
            dst: dst.parse()?,
            src_ports: src_ports.parse()?,
            dst_ports: dst_ports.parse()?,
            protocol: match protocol {
                "any" => None,
                "tcp" => Some(TCP),
                "udp" => Some(UDP),
                "icmp" => Some(ICMP),
                number => Some(number.parse().map_err(|_| RuleError::Protocol(number.to_owned()))?),
            },
            action: match action {
                "accept" => RuleAction::Accept,
                "drop" => RuleAction::Drop,
                "reject" => RuleAction::Reject,
                other => return Err(RuleError::Action(other.to_owned())),
            },
        })
    }
}

impl FromStr for PortRange {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text == "any" {
            return Ok(Self::ANY);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(RuleError::Ports(text.to_owned())),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ANY => f.write_str("any"),
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

impl fmt::Display for FirewallRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            RuleAction::Accept => "accept ",
            RuleAction::Drop => "drop ",
            RuleAction::Reject => "reject ",
        })?;
        match self.protocol {
            None => f.write_str("any")?,
            Some(TCP) => f.write_str("tcp")?,
            Some(UDP) => f.write_str("udp")?,
            Some(ICMP) => f.write_str("icmp")?,
            Some(number) => write!(f, "{number}")?,
        }
        write!(f, " {} {} {} {}", self.src, self.src_ports, self.dst, self.dst_ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_rule_is_the_rule() {
        for text in [
            "accept tcp 10.0.0.0/8 any 192.0.2.0/24 80-443",
            "drop any 0.0.0.0/0 53 0.0.0.0/0 any",
            "reject 132 198.51.100.7/32 1024-65535 0.0.0.0/0 65535",
        ] {
            assert_eq!(text.parse::<FirewallRule>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_words_are_named() {
        for (text, named) in [
            ("accept tcp 10.0.0.0/8 any 0.0.0.0/0", "5 words"),
            ("permit tcp 10.0.0.0/8 any 0.0.0.0/0 any", "`permit`"),
            ("accept 256 10.0.0.0/8 any 0.0.0.0/0 any", "`256`"),
            ("accept tcp 10.0.0.0/33 any 0.0.0.0/0 any", "`10.0.0.0/33`"),
            ("accept tcp 10.0.0.0/8 9-7 0.0.0.0/0 any", "`9-7`"),
            ("accept tcp 10.0.0.0/8 any 0.0.0.0/0 65536", "`65536`"),
        ] {
            let error = text.parse::<FirewallRule>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
