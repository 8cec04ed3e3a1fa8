//! The P4 programs of `programs/p4`, with the tests beside them, on all executions.

use std::fmt::Write as _;

use millstream_kernel::testing;
use millstream_rng::Rng;
use serde_json::Value;

use crate::common::Files;
use crate::{file, json, millstream};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/p4");

/// Tests that did not pass, with their executions and reasons.
fn remarks(report: &Value) -> Vec<String> {
    let tests = report["tests"].as_array().unwrap().iter();
    let others = tests.filter(|test| test["verdict"] != "passed");
    others.map(|test| format!("{} {} {}", test["on"], test["file"], test["reason"])).collect()
}

#[test]
fn the_programs_pass_their_tests_interpreted_and_natively() {
    let report =
        json(&millstream(&["p4", "test", PROGRAMS, "--on", "interpreter,optimized,native", "--json"]));
    assert_eq!(remarks(&report), [""; 0]);
    assert!(report["passed"].as_u64().unwrap() >= 33, "{report:#}");
}

#[test]
fn the_programs_pass_their_tests_in_the_kernel_but_for_one_that_copies_packets() {
    if !testing::require() {
        return;
    }
    let report = json(&millstream(&["p4", "test", PROGRAMS, "--on", "xdp,tc", "--json"]));
    let refused = remarks(&report);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    for reason in refused {
        assert!(reason.contains("bridge.stf") && reason.contains("multicast"), "{reason}");
    }
}

/// A rule of the firewall: value and mask of each key, and its verdict.
struct Rule {
    keys: [(u32, u32); 7],
    priority: usize,
    allows: bool,
}

/// Names and widths of the firewall's keys, in the order of a packet's values.
const KEYS: [(&str, u32); 7] = [
    ("port", 9),
    ("source", 32),
    ("destination", 32),
    ("protocol", 8),
    ("source_port", 16),
    ("destination_port", 16),
    ("flags", 8),
];
/// Rules, of as many sets of masks as a kernel program's table may have.
const RULES: usize = 3000;
const MASKS: u64 = 48;
const PACKETS: usize = 300;

/// Values of a packet, from few, so that rules meet packets.
fn values(random: &mut Rng) -> [u32; 7] {
    let mut below = |bound: u64| random.below(bound) as u32;
    let protocol = [6, 17, 1][below(3) as usize];
    let (source, destination) = (0x0a00_0000 + (below(8) << 16) + below(64), 0x0a10_0000 + below(256));
    let mut values = [1 + below(8), source, destination, protocol, 1024 + below(4), 80 + below(8), 0];
    match protocol {
        6 => values[6] = below(32),
        17 => {}
        _ => (values[4], values[5]) = (0, 0),
    }
    values
}

fn mask(random: &mut Rng, width: u32) -> u32 {
    let all = u32::MAX >> (32 - width);
    match random.below(4) {
        0 | 1 => 0,
        2 => all,
        _ => all & !(all >> random.below(u64::from(width))),
    }
}

/// Masks of a rule that looks at three keys at least, so that none meets all packets.
fn masks_of_rule(random: &mut Rng) -> [u32; 7] {
    loop {
        let masks = KEYS.map(|(_, width)| mask(random, width));
        if masks.iter().filter(|mask| **mask != 0).count() >= 3 {
            return masks;
        }
    }
}

fn rules(random: &mut Rng) -> Vec<Rule> {
    let masks: Vec<[u32; 7]> = (0..MASKS).map(|_| masks_of_rule(random)).collect();
    let rule = |priority| {
        let (values, masks) = (values(random), masks[random.below(MASKS) as usize]);
        let keys = std::array::from_fn(|at| (values[at] & masks[at], masks[at]));
        Rule { keys, priority, allows: random.below(2) == 0 }
    };
    (1..=RULES).map(rule).collect()
}

/// Verdict of the rule of the highest priority; packets that no rule meets are denied.
fn is_allowed(rules: &[Rule], packet: &[u32; 7]) -> bool {
    let meets = |rule: &&Rule| rule.keys.iter().zip(packet).all(|((value, mask), own)| own & mask == *value);
    rules.iter().filter(meets).max_by_key(|rule| rule.priority).is_some_and(|rule| rule.allows)
}

fn frame(values: &[u32; 7]) -> String {
    let [_, source, destination, protocol, from, to, flags] = values;
    let header = match protocol {
        6 => format!("{from:04x}{to:04x}000000010000000250{flags:02x}040000000000"),
        17 => format!("{from:04x}{to:04x}00080000"),
        _ => "0800000000000000".to_owned(),
    };
    let length = 20 + header.len() / 2 + 20;
    let ip = format!("4500{length:04x}0000000040{protocol:02x}0000{source:08x}{destination:08x}");
    format!("0800000002220800000001110800{ip}{header}{}", "5a".repeat(20))
}

fn firewall_test() -> String {
    let mut random = Rng::new(25);
    let rules = rules(&mut random);
    let mut text = "add bridge destination:0x080000000222 forward(port:2)\n".to_owned();
    for rule in &rules {
        let _ = write!(text, "add rules {}", rule.priority);
        for ((name, width), (value, mask)) in KEYS.iter().zip(&rule.keys).filter(|(_, (_, mask))| *mask != 0)
        {
            let bit = |at: u32| match (mask >> at & 1, value >> at & 1) {
                (0, _) => '*',
                (_, 0) => '0',
                _ => '1',
            };
            let bits: String = (0..*width).rev().map(bit).collect();
            let _ = write!(text, " {name}:0b{bits}");
        }
        let _ = writeln!(text, " {}()", if rule.allows { "allow" } else { "deny" });
    }
    let mut allowed = 0;
    for _ in 0..PACKETS {
        let packet = values(&mut random);
        let frame = frame(&packet);
        let _ = writeln!(text, "packet {} {frame}", packet[0]);
        if is_allowed(&rules, &packet) {
            allowed += 1;
            let _ = writeln!(text, "expect 2 {frame} $");
        }
    }
    assert!((PACKETS / 50..PACKETS * 49 / 50).contains(&allowed), "{allowed}");
    text
}

#[test]
fn a_firewall_with_thousands_of_ternary_entries_decides_as_a_list_of_rules_does() {
    let files = Files::new("p4-firewall");
    let test = file(&files, "rules.stf", &firewall_test());
    let program = format!("{PROGRAMS}/firewall.p4");
    let kernel = if testing::require() { ",xdp,tc" } else { "" };
    let on = format!("interpreter,native{kernel}");
    let report = json(&millstream(&["p4", "test", "--program", &program, &test, "--on", &on, "--json"]));
    assert_eq!(remarks(&report), [""; 0]);
}
