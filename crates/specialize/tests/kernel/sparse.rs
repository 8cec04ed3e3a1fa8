//! Arrays most of whose entries are alike: runs of indices become code, at work in the kernel.

use millstream_kernel::{UpdateMode, testing};
use millstream_programs::MapEntry;
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::LookupPlan;
use millstream_specializer::variant::VariantCompiler;

use crate::offline::{Offline, prepared};

/// Looks up a port, and writes the result into the packet.
const PROGRAM: &str = "
    r6 = *(u32 *)(r1 + 0)
    r3 = *(u32 *)(r1 + 4)
    r4 = r6
    r4 += 38
    if r4 > r3 goto absent
    r5 = *(u16 *)(r6 + 36)
    *(u32 *)(r10 - 4) = r5
    r1 = 0 ll
    r2 = r10
    r2 += -4
    call bpf_map_lookup_elem#1
    if r0 == 0 goto absent
    r1 = *(u64 *)(r0 + 0)
    *(u64 *)(r6 + 0) = r1
    r0 = 3
    exit
absent:
    r0 = 1
    exit";
const PORTS: u32 = 4_096;
/// Values that only few ports have.
const SPECIAL: [(u32, u64); 6] = [(22, 7), (80, 8), (81, 8), (82, 8), (443, 9), (PORTS - 1, 10)];

fn compiler() -> VariantCompiler {
    let maps = format!("ports {{ type = 2, key_size = 4, value_size = 8, max_entries = {PORTS}, fd = 3 }}\n");
    prepared(PROGRAM, &maps)
}

/// Frames for ports: one in `special` for a special one, some for ports that the array does not have.
fn frames(special: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(5);
    let frame = |_| {
        let port = match rng.below(special) {
            0 => SPECIAL[rng.below(6) as usize].0,
            _ => rng.below(u64::from(PORTS) + 8) as u32,
        };
        let mut frame = vec![0; 64];
        frame[36..38].copy_from_slice(&(port as u16).to_ne_bytes());
        frame
    };
    (0..4_000).map(frame).collect()
}

fn entries() -> Vec<MapEntry> {
    let entry = |(port, value): (u32, u64)| {
        MapEntry::new("ports", port.to_ne_bytes().to_vec(), value.to_ne_bytes().to_vec())
    };
    SPECIAL.map(entry).to_vec()
}

#[test]
fn an_array_with_few_entries_that_differ_becomes_code() {
    if !testing::require() {
        return;
    }
    let compiler = compiler();
    let mut plane = Offline::new(&compiler, &entries());
    let frames = frames(200);
    let (profiles, samples) = plane.profile(&frames);
    let mut lookups = Vec::new();
    let made = plane
        .variant(&profiles, Tier::Thorough, |plan| {
            lookups = plan.sites.iter().map(|site| site.lookup.clone()).collect();
        })
        .expect("a variant");
    assert!(
        matches!(&lookups[..], [LookupPlan::Whole(all)] if all.entries.len() == PORTS as usize),
        "{lookups:?}"
    );
    for valid in [true, false] {
        let judged = plane.compare(&made, &samples, valid, samples.len()).expect("replayed");
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.varies.is_empty(), "{judged:?}");
    }
    let [before, after] = plane.map_calls(&made, &frames);
    assert!(before == 1.0 && after == 0.0, "{after} of {before} lookups");
}

#[test]
fn an_array_whose_lookups_nobody_foresees_stays() {
    if !testing::require() {
        return;
    }
    let compiler = compiler();
    let plane = Offline::new(&compiler, &[]);
    let ports = plane.session.map_by_name("ports").expect("the map");
    for port in 0..PORTS {
        let value = u64::from(port % 7).to_ne_bytes();
        ports.update(&port.to_ne_bytes(), &value, UpdateMode::Any).expect("an entry");
    }
    let (profiles, _) = plane.profile(&frames(200));
    let mut sites = 0;
    let made = plane.variant(&profiles, Tier::Thorough, |plan| sites = plan.sites.len());
    assert!(made.is_none() || sites == 0, "{sites}");
}
