//! Twins of longest-prefix maps whose values are larger than a word, at work in the kernel.

use millstream_kernel::testing;
use millstream_programs::MapEntry;
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specializer::policy::Tier;
use millstream_specializer::variant::VariantCompiler;

use crate::offline::{Offline, prepared};

/// Looks up an address that is assembled byte by byte. Writes a word of the value, and one at an offset given
/// by the packet, into the packet.
const PROGRAM: &str = "
    r6 = *(u32 *)(r1 + 0)
    r3 = *(u32 *)(r1 + 4)
    r4 = r6
    r4 += 34
    if r4 > r3 goto absent
    r5 = 32
    *(u32 *)(r10 - 8) = r5
    r5 = *(u8 *)(r6 + 30)
    *(u8 *)(r10 - 4) = r5
    r5 = *(u8 *)(r6 + 31)
    *(u8 *)(r10 - 3) = r5
    r5 = *(u8 *)(r6 + 32)
    *(u8 *)(r10 - 2) = r5
    r5 = *(u8 *)(r6 + 33)
    *(u8 *)(r10 - 1) = r5
    r1 = 0 ll
    r2 = r10
    r2 += -8
    call bpf_map_lookup_elem#1
    if r0 == 0 goto absent
    r1 = *(u64 *)(r0 + 8)
    *(u64 *)(r6 + 0) = r1
    r2 = *(u8 *)(r6 + 33)
    r2 &= 7
    r3 = r0
    r3 += r2
    r3 = *(u8 *)(r3 + 16)
    *(u8 *)(r6 + 8) = r3
    COMPARED
    r0 = 3
    exit
absent:
    r0 = 1
    exit";
const MAPS: &str = "prefixes { type = 11, key_size = 8, value_size = 24, max_entries = 4096, fd = 3 }\n";

fn compiler(compared: &str) -> VariantCompiler {
    prepared(&PROGRAM.replace("COMPARED", compared), MAPS)
}

/// Prefixes below 10.0.0.0/8, most of them with values of their own.
fn entries(rng: &mut Rng) -> Vec<MapEntry> {
    let entry = |n: u64| {
        let length = 8 + rng.below(25) as u32;
        let address = [10, rng.below(4) as u8, rng.below(4) as u8, rng.below(256) as u8];
        let key = [length.to_ne_bytes(), address].concat();
        MapEntry::new(
            "prefixes",
            key,
            [rng.next_u64(), n % 100, rng.next_u64()].map(u64::to_ne_bytes).concat(),
        )
    };
    (0..2_000).map(entry).collect()
}

fn frames(rng: &mut Rng) -> Vec<Vec<u8>> {
    let frame = |_| {
        let mut frame: Vec<u8> = (0..64).map(|_| rng.below(256) as u8).collect();
        frame[30..33].copy_from_slice(&[
            10 + u8::from(rng.below(9) == 0),
            rng.below(4) as u8,
            rng.below(4) as u8,
        ]);
        frame
    };
    (0..400).map(frame).collect()
}

#[test]
fn twins_of_larger_values_answer_as_their_maps() {
    if !testing::require() {
        return;
    }
    let (compiler, mut rng) = (compiler("r0 = 3"), Rng::new(11));
    let plane = Offline::new(&compiler, &entries(&mut rng));
    let frames = frames(&mut rng);
    let (profiles, samples) = plane.profile(&frames);
    for valid in [true, false] {
        let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a twin");
        assert_eq!((made.twins.maps().count(), made.report.sites.len()), (1, 1));
        let judged = plane.compare(&made, &samples, valid, samples.len()).expect("replayed");
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.varies.is_empty(), "{judged:?}");
        assert!(judged.packets >= samples.len(), "{judged:?}");
    }
}

#[test]
fn there_are_none_where_addresses_of_values_are_compared() {
    let compares = "if r3 == r0 goto absent";
    let twins = |program: &str| {
        compiler(program).sites().iter().filter_map(|s| compiler(program).twin(s.map)).count()
    };
    assert_eq!((twins("r0 = 3"), twins(compares), twins("r3 = *(u8 *)(r6 + 1)")), (1, 0, 1));
}
