//! Shadow mode: the original beside its variants, each on maps of its own, while tables and traffic are drawn
//! to make them differ. All five data planes.
//!
//! CI compares some packets; `bench/run.sh shadow` as many as the bar says (`MILLSTREAM_SHADOW`).

use std::collections::BTreeMap;
use std::time::Instant;

use millstream_kernel::testing;
use millstream_lab::workload::{BuiltinWorkload, Workload};
use millstream_programs::packet::checksum;
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{BALANCER, FIREWALL, MapEntry, NAT, ROUTER, SWITCH};
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::replay::sample::PacketSample;
use millstream_specializer::policy::Tier;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::DeoptMap;
use serde::Serialize;

use crate::bars::{asked, keep};
use crate::offline::{INGRESS, Offline, compiler};

/// Packets for one drawing of the tables, the least and the most; a fifth of them are different.
const ROUND: [u64; 2] = [20_000, 500_000];
/// In one of this many rounds the guard turns all packets away.
const TURNED_AWAY: u64 = 4;

/// Result of the comparison for one data plane.
#[derive(Debug, Default, Serialize)]
struct Compared {
    program: &'static str,
    packets: u64,
    rounds: u64,
    /// Rounds in which the guard turned all packets away.
    turned_away: u64,
    /// Rounds with a twin, by tier in which they were made.
    twins: u64,
    thorough: u64,
    /// Rounds with a stand-in variant, in which tables without a twin change, too.
    standby: u64,
    /// Rounds in which tables changed and their twins were behind.
    behind: u64,
    /// Caches, over all rounds.
    caches: u64,
    /// Sites that were specialised, over all rounds.
    sites: u64,
    differences: u64,
    /// Outputs in which the original differed from itself.
    varies: Vec<String>,
    seconds: f64,
}

/// Tables near those that were generated: entries gone, come, and exchanged, keys that differ in a bit.
fn drawn(entries: &[MapEntry], rng: &mut Rng) -> Vec<MapEntry> {
    let mut by_map: BTreeMap<&str, Vec<&MapEntry>> = BTreeMap::new();
    entries.iter().for_each(|e| by_map.entry(e.map).or_default().push(e));
    let mut all = Vec::new();
    for (map, held) in by_map {
        let any = |rng: &mut Rng| held[rng.below(held.len() as u64) as usize];
        for entry in &held {
            match rng.below(10) {
                0 => {}
                1 => all.push(MapEntry { value: any(rng).value.clone(), ..(*entry).clone() }),
                2 if map != "settings" && entry.key.len() > 4 => {
                    all.push((*entry).clone());
                    let mut near = (*entry).clone();
                    let at = rng.below(near.key.len() as u64 - 4) as usize + 4;
                    near.key[at] ^= 1 << rng.below(8);
                    all.push(near);
                }
                _ => all.push((*entry).clone()),
            }
        }
    }
    all
}

/// Frames near those of the flows and near what tables hold.
fn frame(load: &Workload, rng: &mut Rng) -> Vec<u8> {
    let flows = &load.flows.packets;
    let mut frame = flows[rng.below(flows.len() as u64) as usize].clone();
    for _ in 0..rng.below(4) {
        let at = rng.below(frame.len().min(80) as u64) as usize;
        match rng.below(4) {
            0 => frame[at] ^= 1 << rng.below(8),
            1 => frame[at] = rng.next_u32() as u8,
            // A key of a table, or a part of it, where it may be looked up.
            2 => {
                let key = &load.entries[rng.below(load.entries.len() as u64) as usize].key;
                let from = rng.below(key.len() as u64) as usize;
                let count = (key.len() - from).min(frame.len() - at).min(6);
                frame[at..at + count].copy_from_slice(&key[from..from + count]);
            }
            _ => frame.resize(14 + rng.below(frame.len() as u64 + 40) as usize, 0),
        }
    }
    let header = 14 + 4 * usize::from(frame.get(14).map_or(5, |b| b & 15));
    if rng.below(4) != 0 && (34..=frame.len()).contains(&header) {
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..header], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Profiles that name keys which are not there, besides those that are.
fn beside(profiles: &mut [SiteProfile], rng: &mut Rng) {
    for profile in profiles {
        for (key, _) in profile.keys.iter_mut().take(12) {
            if rng.below(3) == 0 {
                let at = rng.below(key.len() as u64) as usize;
                key[at] ^= 1 << rng.below(8);
            }
        }
    }
}

/// Compares one data plane on this many packets.
fn shadowed(builtin: BuiltinWorkload, packets: u64, seed: u64) -> Compared {
    let start = Instant::now();
    let compiler = compiler(&builtin.program);
    let round = (packets / TURNED_AWAY).clamp(ROUND[0], ROUND[1]) as usize;
    let mut rng = Rng::new(seed);
    let mut found = Compared { program: builtin.program.name, ..Compared::default() };
    while found.packets < packets {
        let locality = [FlowLocality::HIGH, FlowLocality::LOW, FlowLocality::NONE][rng.below(3) as usize];
        let load = builtin.workload([INGRESS, 2], 300, locality).expect("a workload");
        let entries = drawn(&load.entries, &mut rng);
        let mut plane = Offline::new(&compiler, &[]);
        plane.write_if_taken(&entries);
        let frames: Vec<Vec<u8>> = (0..round / 5).map(|_| frame(&load, &mut rng)).collect();
        let (mut profiles, _) = plane.profile(&frames[..2_000]);
        beside(&mut profiles, &mut rng);
        let tier = [Tier::Quick, Tier::Standby, Tier::Thorough][rng.below(3) as usize];
        let Some(made) = plane.variant(&profiles, tier, |_| ()) else { continue };
        let valid = found.rounds % TURNED_AWAY != TURNED_AWAY - 1;
        if !valid {
            // The contents that it was made of hold no more.
            plane.write_if_taken(&drawn(&load.entries, &mut rng));
        }
        let behind: Vec<&DeoptMap> = made.spared.iter().filter(|_| valid && rng.below(2) == 0).collect();
        plane.behind = behind.iter().fold(0, |bits, s| bits | s.behind);
        let loose = made.loose.iter().filter(|_| valid).copied();
        let maps: Vec<_> = behind.iter().map(|s| s.map).chain(loose).collect();
        let names: Vec<&str> = maps.iter().map(|m| compiler.declaration(*m).name.as_str()).collect();
        let mut changed = drawn(&load.entries, &mut rng);
        changed.retain(|entry| names.contains(&entry.map));
        // Values that no entry has, so that fields equal in all entries are equal no more.
        for entry in &mut changed {
            if made.loose.iter().any(|m| compiler.declaration(*m).name == entry.map) && rng.below(2) == 0 {
                let at = rng.below(entry.value.len() as u64) as usize;
                entry.value[at] ^= 1 << rng.below(8);
            }
        }
        plane.write_if_taken(&changed);
        let samples: Vec<PacketSample> =
            frames.into_iter().map(|packet| PacketSample { packet, context: Vec::new() }).collect();
        let judged = plane.compare(&made, &samples, valid, round).expect("replayed");
        if let ReplayVerdict::Different(difference) = &judged.finding {
            found.differences += 1;
            let directory = std::env::temp_dir().join("millstream-shadow");
            eprintln!(
                "{}: {:?}: {:?}",
                builtin.program.name,
                difference.observable,
                difference.write(&directory)
            );
        }
        found
            .varies
            .extend(judged.varies.into_iter().filter(|v| !found.varies.contains(v)).collect::<Vec<_>>());
        found.packets += judged.packets as u64;
        found.rounds += 1;
        found.turned_away += u64::from(!valid);
        found.twins += u64::from(made.twins.maps().next().is_some());
        found.behind += u64::from(!behind.is_empty());
        found.caches += made.caches.len() as u64;
        found.thorough += u64::from(tier == Tier::Thorough);
        found.standby += u64::from(tier == Tier::Standby);
        found.sites += made.report.sites.len() as u64;
    }
    found.seconds = start.elapsed().as_secs_f64();
    found
}

#[test]
fn what_is_made_does_as_the_original_whatever_tables_and_packets_hold() {
    if !testing::require() {
        return;
    }
    let each = asked("MILLSTREAM_SHADOW", 1_000_000).div_ceil(5);
    let sizes = [(ROUTER, 200), (SWITCH, 200), (FIREWALL, 200), (NAT, 300), (BALANCER, 20)];
    let all: Vec<Compared> = sizes
        .into_iter()
        .map(|(program, size)| shadowed(BuiltinWorkload::generated(program, size), each, 11))
        .collect();
    keep("shadow.json", &all);
    for found in &all {
        assert_eq!(found.differences, 0, "{found:?}");
        assert!(found.packets >= each && found.sites > 0 && found.turned_away > 0, "{found:?}");
        assert!(found.varies.is_empty(), "not all was compared: {found:?}");
    }
    assert!(all.iter().any(|found| found.standby > 0), "{all:?}");
    assert!(all.iter().any(|found| found.twins > 0) && all.iter().any(|found| found.behind > 0), "{all:?}");
    assert!(all.iter().filter(|found| found.caches > 0).count() >= 3, "{all:?}");
}
