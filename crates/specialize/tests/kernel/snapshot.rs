//! Cached knowledge about maps, and its invalidation.

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, MapSpec, UpdateMode, map_flags, testing};
use millstream_programs::{FIREWALL, firewall};
use millstream_specialize::map_users::{MapRejection, by_kind, is_constant};
use millstream_specialize::snapshot::{MapSnapshot, Revalidation};
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::snapshot::SnapshotReader;

use crate::offline::{Offline, compiler};

const SETS: &str = "sport_sets";

#[test]
fn fields_that_all_entries_share_are_watched_by_what_they_are() {
    if !testing::require() {
        return;
    }
    let compiler = compiler(&FIREWALL);
    let config = firewall::generate(firewall::RuleSetKind::AccessList, 450, 1);
    let it = Offline::new(&compiler, &config.entries().unwrap());
    let (&map, source) =
        it.sources.iter().find(|(m, _)| compiler.declaration(**m).name == SETS).expect("a source");
    let observed = MapSnapshot::new(&it.sources);
    let read = compiler.bytes_read(map);
    let equal = observed.equal(map, &read).expect("readable");
    // No rule beyond the 4,096th: the second word of all summaries is 0.
    let inside =
        |(at, run): &(u32, Vec<u8>)| *at <= 8 && at + run.len() as u32 >= 16 && run[8 - *at as usize] == 0;
    assert!(equal.iter().any(inside), "{equal:?}");
    let record = observed.into_record();
    let key = 7u32.to_ne_bytes();
    let touched = |key: Option<&[u8; 4]>| {
        let mut dirty = DirtyKeys::default();
        dirty.note(map, key.map(|k| k.to_vec()));
        dirty
    };
    let same = |dirty: &DirtyKeys| matches!(record.present(&it.sources, dirty), Revalidation::Same);
    let mut value = source.map.lookup(&key).unwrap().expect("an array");
    value[0] ^= 1;
    source.map.update(&key, &value, UpdateMode::Any).unwrap();
    assert!(same(&touched(Some(&key))) && same(&touched(None)), "that field was not the same in all");
    value[9] = 1;
    source.map.update(&key, &value, UpdateMode::Any).unwrap();
    assert!(same(&DirtyKeys::default()), "nobody said that it was written");
    assert!(!same(&touched(Some(&key))) && !same(&touched(None)) && !same(&DirtyKeys::everything()));
    let other = 8u32.to_ne_bytes();
    assert!(same(&touched(Some(&other))), "another key was written");
}

#[test]
fn constants_are_maps_that_nobody_can_write() {
    if !testing::require() {
        return;
    }
    let made = |flags| {
        KernelMap::create(&MapSpec {
            name: "constants",
            map_type: MapType::ARRAY,
            key_size: 4,
            value_size: 8,
            max_entries: 1,
            flags,
            ..MapSpec::default()
        })
        .unwrap()
    };
    let (mappable, to_programs) = (map_flags::MMAPABLE, map_flags::RDONLY_PROG);
    for (flags, constant) in [(mappable, false), (mappable | to_programs, true)] {
        let map = made(flags);
        assert!(
            !is_constant(&map) && by_kind(&map, false) == Some(MapRejection::Mappable),
            "it can still be written"
        );
        map.freeze().unwrap();
        assert_eq!(is_constant(&map), constant);
        assert_eq!(by_kind(&map, false).is_none(), constant);
    }
}
