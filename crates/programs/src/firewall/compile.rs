//! From rules to classes and rule sets: the aggregated bit vectors that the data plane intersects.
//!
//! Invariant: for every value of a field, the set of its class holds exactly the rules that admit it. This is
//! what the tests check, field by field and value by value.

use std::collections::{BTreeSet, HashMap};

use super::{
    DPORT_CLASSES, DPORT_SETS, DST_PREFIXES, DST_SETS, FirewallError, FirewallRule, MAX_PORT_CLASSES,
    MAX_RULES, PROTO_SETS, PortRange, SPORT_CLASSES, SPORT_SETS, SRC_PREFIXES, SRC_SETS, at_most,
};
use crate::{Ipv4Prefix, MapEntry};

const WORDS: usize = MAX_RULES / 64;
const SUMMARY_WORDS: usize = WORDS / 64;

/// Rules by index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RuleSet {
    words: Vec<u64>,
}

impl RuleSet {
    /// The rules for which the predicate holds.
    fn of(rules: &[FirewallRule], admits: impl Fn(&FirewallRule) -> bool) -> Self {
        let mut words = vec![0u64; WORDS];
        for (index, _) in rules.iter().enumerate().filter(|(_, rule)| admits(rule)) {
            words[index / 64] |= 1 << (index % 64);
        }
        Self { words }
    }

    /// `struct fw_rule_set`.
    fn encode(&self) -> Vec<u8> {
        let mut summary = [0u64; SUMMARY_WORDS];
        for (at, _) in self.words.iter().enumerate().filter(|&(_, &word)| word != 0) {
            summary[at / 64] |= 1 << (at % 64);
        }
        summary.iter().chain(&self.words).flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// Entries of all maps that classification reads.
pub(super) fn tables(rules: &[FirewallRule]) -> Result<Vec<MapEntry>, FirewallError> {
    let mut entries = Vec::new();
    addresses(rules, |rule| rule.src, SRC_PREFIXES, SRC_SETS, &mut entries);
    addresses(rules, |rule| rule.dst, DST_PREFIXES, DST_SETS, &mut entries);
    ports("classes of source ports", rules, |rule| rule.src_ports, SPORT_CLASSES, SPORT_SETS, &mut entries)?;
    ports(
        "classes of destination ports",
        rules,
        |rule| rule.dst_ports,
        DPORT_CLASSES,
        DPORT_SETS,
        &mut entries,
    )?;
    for protocol in 0..=255u8 {
        let set = RuleSet::of(rules, |rule| rule.protocol.is_none_or(|p| p == protocol));
        entries.push(set_entry(PROTO_SETS, protocol.into(), &set));
    }
    Ok(entries)
}

fn set_entry(map: &'static str, class: u32, set: &RuleSet) -> MapEntry {
    MapEntry::new(map, class.to_ne_bytes(), set.encode())
}

/// Each distinct prefix is a class. Its set holds the rules with prefixes that contain it. Class 0 is for
/// addresses in no prefix.
fn addresses(
    rules: &[FirewallRule],
    field: impl Fn(&FirewallRule) -> Ipv4Prefix,
    prefix_map: &'static str,
    set_map: &'static str,
    entries: &mut Vec<MapEntry>,
) {
    let distinct: BTreeSet<Ipv4Prefix> = rules.iter().map(&field).collect();
    entries.push(set_entry(set_map, 0, &RuleSet::of(rules, |_| false)));
    for (class, prefix) in (1u32..).zip(distinct) {
        let covers =
            |outer: Ipv4Prefix| outer.length() <= prefix.length() && outer.contains(prefix.address());
        entries.push(set_entry(set_map, class, &RuleSet::of(rules, |rule| covers(field(rule)))));
        let mut key = u32::from(prefix.length()).to_ne_bytes().to_vec();
        key.extend(prefix.address().octets());
        entries.push(MapEntry::new(prefix_map, key, class.to_ne_bytes()));
    }
}

/// Ports that the same rules admit are one class. Class 0 is for packets without ports, and for the ports
/// that only rules for every port admit.
fn ports(
    what: &'static str,
    rules: &[FirewallRule],
    field: impl Fn(&FirewallRule) -> PortRange,
    class_map: &'static str,
    set_map: &'static str,
    entries: &mut Vec<MapEntry>,
) -> Result<(), FirewallError> {
    let mut sets = vec![RuleSet::of(rules, |rule| field(rule) == PortRange::ANY)];
    let mut classes: HashMap<RuleSet, u32> = HashMap::from([(sets[0].clone(), 0)]);
    // Only where a range starts or has ended does the set change.
    let starts: BTreeSet<u32> = rules
        .iter()
        .map(&field)
        .flat_map(|r| [u32::from(r.first), u32::from(r.last) + 1])
        .chain([0])
        .collect();
    let mut class = 0;
    for port in 0..=u16::MAX {
        if starts.contains(&port.into()) {
            let set = RuleSet::of(rules, |rule| field(rule).contains(port));
            class = *classes.entry(set).or_insert_with_key(|set| {
                sets.push(set.clone());
                sets.len() as u32 - 1
            });
        }
        entries.push(MapEntry::new(class_map, u32::from(port).to_ne_bytes(), class.to_ne_bytes()));
    }
    at_most(what, sets.len(), MAX_PORT_CLASSES)?;
    entries.extend((0u32..).zip(&sets).map(|(class, set)| set_entry(set_map, class, set)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{RuleSetKind, generate};
    use super::*;

    fn word(bytes: &[u8]) -> u32 {
        u32::from_ne_bytes(bytes[..4].try_into().unwrap())
    }

    /// The map's values by their keys' first word.
    fn values<'a>(entries: &'a [MapEntry], map: &str) -> HashMap<u32, &'a [u8]> {
        entries.iter().filter(|e| e.map == map).map(|e| (word(&e.key), e.value.as_slice())).collect()
    }

    fn assert_set(value: &[u8], rules: &[FirewallRule], admits: impl Fn(&FirewallRule) -> bool) {
        let words: Vec<u64> =
            value.chunks(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect();
        let (summary, words) = words.split_at(SUMMARY_WORDS);
        for (index, rule) in rules.iter().enumerate() {
            assert_eq!(words[index / 64] >> (index % 64) & 1 == 1, admits(rule), "{index}: {rule}");
        }
        for (at, word) in words.iter().enumerate() {
            assert_eq!(summary[at / 64] >> (at % 64) & 1 == 1, *word != 0, "summary of word {at}");
        }
    }

    #[test]
    fn every_port_has_the_set_of_the_rules_that_admit_it() {
        let rules = generate(RuleSetKind::Firewall, 450, 3).rules;
        let entries = tables(&rules).unwrap();
        let (classes, sets) = (values(&entries, DPORT_CLASSES), values(&entries, DPORT_SETS));
        assert_eq!(classes.len(), 65536);
        for port in (0..=u16::MAX).step_by(7) {
            let class = word(classes[&u32::from(port)]);
            assert_set(sets[&class], &rules, |rule| rule.dst_ports.contains(port));
        }
        assert_set(sets[&0], &rules, |rule| rule.dst_ports == PortRange::ANY);
    }

    #[test]
    fn every_prefix_has_the_set_of_the_rules_that_contain_it() {
        let rules = generate(RuleSetKind::AccessList, 450, 3).rules;
        let entries = tables(&rules).unwrap();
        let sets = values(&entries, SRC_SETS);
        let mut seen = 0;
        for entry in entries.iter().filter(|e| e.map == SRC_PREFIXES) {
            let address: [u8; 4] = entry.key[4..].try_into().unwrap();
            let prefix = Ipv4Prefix::new(address.into(), word(&entry.key) as u8);
            // The last address of the prefix may be in longer ones; their rules do not count here.
            assert_set(sets[&word(&entry.value)], &rules, |rule| {
                rule.src.length() <= prefix.length() && rule.src.contains(prefix.nth(u32::MAX))
            });
            seen += 1;
        }
        assert_eq!(seen, sets.len() - 1);
    }
}
