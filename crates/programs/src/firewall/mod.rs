//! The firewall's control tool: ordered rules to map entries.
//!
//! Layouts are as in `programs/firewall/firewall.h`. Entries are for maps as the object's load leaves them:
//! they replace a rule set as a whole. To change the rules under traffic, load the object anew, fill its
//! maps, and swap the programs; a packet then sees either the old rules or the new, never some of both.

mod compile;
mod generate;
mod model;
mod rule;

pub use generate::{RuleSetKind, flows, generate};
pub use model::{FirewallModel, FirewallOutcome, FirewallXdpVerdict};
pub use rule::{FirewallRule, PortRange, RuleAction, RuleError};

use crate::MapEntry;

/// Longest prefix match on the source address: gives a class.
pub const SRC_PREFIXES: &str = "src_prefixes";
/// Longest prefix match on the destination address: gives a class.
pub const DST_PREFIXES: &str = "dst_prefixes";
/// Class of each source port.
pub const SPORT_CLASSES: &str = "sport_classes";
/// Class of each destination port.
pub const DPORT_CLASSES: &str = "dport_classes";
/// Rules of each class of source addresses.
pub const SRC_SETS: &str = "src_sets";
/// Rules of each class of destination addresses.
pub const DST_SETS: &str = "dst_sets";
/// Rules of each class of source ports.
pub const SPORT_SETS: &str = "sport_sets";
/// Rules of each class of destination ports.
pub const DPORT_SETS: &str = "dport_sets";
/// Rules of each protocol.
pub const PROTO_SETS: &str = "proto_sets";
/// Actions by rule; the default action stands behind the last rule.
pub const RULES: &str = "rules";
/// Per rule and CPU: packets and bytes, as two `u64`.
pub const COUNTERS: &str = "counters";
/// Per CPU: one [`FirewallStats`].
pub const STATS: &str = "stats";
/// Policies.
pub const SETTINGS: &str = "settings";
/// The devmap that gives the port opposite.
pub const EGRESS: &str = "egress";

/// Capacity of the object's maps, in rules.
pub const MAX_RULES: usize = 8192;
/// Capacity of the object's maps, in classes of one port field, including the class of packets without ports.
pub const MAX_PORT_CLASSES: usize = 4096;
/// The index in [`RULES`] and [`COUNTERS`] for packets that no rule matches.
pub const DEFAULT_RULE: u32 = MAX_RULES as u32;
/// Capacity of [`EGRESS`], in pairs of ports.
pub const MAX_PORTS: usize = 64;

/// Destination of accepted packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AcceptTarget {
    /// Up the stack: a host's firewall.
    #[default]
    Stack,
    /// Out of the port that they came in by.
    Hairpin,
    /// Out of the second port of the pair whose first they came in by.
    Ports(Vec<(u32, u32)>),
}

/// Treatment of fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FragmentHandling {
    /// All are dropped.
    #[default]
    Drop,
    /// Those without ports are accepted; the first one is matched with the rules.
    Accept,
    /// Those without ports match the rules that admit every port.
    Classify,
}

/// Everything that the firewall is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallConfig {
    /// The rules; of those that match, the first counts.
    pub rules: Vec<FirewallRule>,
    /// For packets that no rule matches.
    pub default: RuleAction,
    /// For accepted packets.
    pub forward: AcceptTarget,
    /// For IPv4 fragments.
    pub fragments: FragmentHandling,
    /// For frames that are neither IPv4 nor ARP; ARP always goes to the stack.
    pub non_ipv4: RuleAction,
}

/// A configuration that the maps cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FirewallError {
    /// More entries than a map holds.
    #[error("{count} {what} are more than the firewall's {limit}")]
    TooMany {
        /// Kind of the entries.
        what: &'static str,
        /// Number given.
        count: usize,
        /// Number that fits.
        limit: usize,
    },
    /// A line of a file of rules.
    #[error("line {line}: {error}")]
    Line {
        /// Counted from one.
        line: usize,
        /// Error in it.
        error: RuleError,
    },
}

impl FirewallConfig {
    /// Everything to write into the maps of a freshly loaded object.
    pub fn entries(&self) -> Result<Vec<MapEntry>, FirewallError> {
        at_most("rules", self.rules.len(), MAX_RULES)?;
        let mut entries = compile::tables(&self.rules)?;
        for (index, rule) in self.rules.iter().enumerate() {
            entries.push(action_entry(index as u32, rule.action));
        }
        entries.push(action_entry(DEFAULT_RULE, self.default));
        if let AcceptTarget::Ports(pairs) = &self.forward {
            at_most("pairs of ports", pairs.len(), MAX_PORTS)?;
            for (from, to) in pairs {
                entries.push(MapEntry::new(EGRESS, from.to_ne_bytes(), to.to_ne_bytes()));
            }
        }
        entries.push(MapEntry::new(SETTINGS, 0u32.to_ne_bytes(), self.settings()));
        Ok(entries)
    }

    /// `struct fw_settings`.
    fn settings(&self) -> Vec<u8> {
        let forward = match self.forward {
            AcceptTarget::Stack => 0u32,
            AcceptTarget::Hairpin => 1,
            AcceptTarget::Ports(_) => 2,
        };
        let fragments = match self.fragments {
            FragmentHandling::Drop => 0u32,
            FragmentHandling::Accept => 1,
            FragmentHandling::Classify => 2,
        };
        [forward, fragments, self.non_ipv4.code(), 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Reads rules from a text, one a line in the form of [`FirewallRule`]; empty lines and those that start
    /// with `#` are left out. Everything but the rules stays as it is.
    pub fn read_rules(&mut self, text: &str) -> Result<(), FirewallError> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        self.rules = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, text)| text.parse().map_err(|error| FirewallError::Line { line, error }))
            .collect::<Result<_, _>>()?;
        at_most("rules", self.rules.len(), MAX_RULES)
    }
}

fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), FirewallError> {
    if count > limit { Err(FirewallError::TooMany { what, count, limit }) } else { Ok(()) }
}

fn action_entry(index: u32, action: RuleAction) -> MapEntry {
    MapEntry::new(RULES, index.to_ne_bytes(), action.code().to_ne_bytes())
}

/// Counters of one CPU: `struct fw_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirewallStats {
    /// All frames.
    pub received: u64,
    /// Those accepted, by a rule or a policy.
    pub accepted: u64,
    /// Those dropped, by a rule, a policy or as malformed.
    pub dropped: u64,
    /// Those that the stack shall reject.
    pub rejected: u64,
    /// Of the dropped, those malformed.
    pub malformed: u64,
    /// IPv4 fragments, dropped or not.
    pub fragments: u64,
    /// Neither IPv4 nor ARP.
    pub not_ipv4: u64,
}

impl FirewallStats {
    /// From one CPU's value of [`STATS`]; `None` if it is too short.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let word = |n: usize| -> Option<u64> {
            Some(u64::from_ne_bytes(value.get(8 * n..8 * n + 8)?.try_into().ok()?))
        };
        Some(Self {
            received: word(0)?,
            accepted: word(1)?,
            dropped: word(2)?,
            rejected: word(3)?,
            malformed: word(4)?,
            fragments: word(5)?,
            not_ipv4: word(6)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rules_and_says_where_they_are_wrong() {
        let mut config = FirewallConfig::default();
        config.read_rules("# comment\n\naccept tcp 10.0.0.0/8 any 0.0.0.0/0 80-443\n").unwrap();
        assert_eq!(config.rules.len(), 1);
        let error = config.read_rules("drop any 0.0.0.0/0 any 0.0.0.0/0 any\nallow\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }

    #[test]
    fn too_many_rules_are_refused() {
        let rule: FirewallRule = "drop any 0.0.0.0/0 any 0.0.0.0/0 any".parse().unwrap();
        let config = FirewallConfig { rules: vec![rule; MAX_RULES + 1], ..FirewallConfig::default() };
        assert!(matches!(config.entries(), Err(FirewallError::TooMany { count: 8193, .. })));
    }

    #[test]
    fn settings_stand_as_in_the_header() {
        let config = FirewallConfig {
            forward: AcceptTarget::Hairpin,
            non_ipv4: RuleAction::Reject,
            ..FirewallConfig::default()
        };
        assert_eq!(config.settings(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }
}
