use super::*;

fn map(kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> (MapSet, MapId) {
    let mut maps = MapSet::default();
    let id = maps.add(MapConfig { kind, key_size, value_size, max_entries, flags: 0 }, 2).unwrap();
    (maps, id)
}

#[test]
fn arrays_are_full_from_the_start() {
    let (mut maps, id) = map(MapKind::Array, 4, 8, 3);
    assert_eq!(maps.get(id, &[2, 0, 0, 0]), Some(vec![0; 8]));
    assert_eq!(maps.lookup(id, &[3, 0, 0, 0], 0), None);
    assert_eq!(maps.set(id, &[3, 0, 0, 0], &[1; 8], BPF_ANY), Err(E2BIG));
    assert_eq!(maps.set(id, &[0; 4], &[1; 8], BPF_NOEXIST), Err(EEXIST));
    assert_eq!(maps.delete(id, &[0; 4]), EINVAL);
}

#[test]
fn hash_flags_and_capacity() {
    let (mut maps, id) = map(MapKind::Hash, 1, 1, 2);
    assert_eq!(maps.set(id, b"a", b"1", BPF_EXIST), Err(ENOENT));
    assert_eq!(maps.set(id, b"a", b"1", BPF_NOEXIST), Ok(()));
    assert_eq!(maps.set(id, b"a", b"2", BPF_NOEXIST), Err(EEXIST));
    assert_eq!(maps.set(id, b"a", b"2", 3), Err(EINVAL));
    assert_eq!(maps.set(id, b"b", b"3", BPF_ANY), Ok(()));
    assert_eq!(maps.set(id, b"c", b"4", BPF_ANY), Err(E2BIG));
    assert_eq!(maps.set(id, b"b", b"5", BPF_ANY), Ok(()));
    assert_eq!(maps.entries(id), [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"5".to_vec())]);
    assert_eq!(maps.delete(id, b"a"), 0);
    assert_eq!(maps.delete(id, b"a"), ENOENT);
}

#[test]
fn a_replaced_value_stays_readable_at_its_old_address() {
    let (mut maps, id) = map(MapKind::Hash, 1, 1, 2);
    maps.set(id, b"a", b"1", BPF_ANY).unwrap();
    let old = maps.lookup(id, b"a", 0).unwrap();
    maps.set(id, b"a", b"2", BPF_ANY).unwrap();
    assert_eq!(maps.value_at(id, old, 1, false).unwrap(), b"1");
    assert_eq!(maps.get(id, b"a").unwrap(), b"2");
}

#[test]
fn lru_evicts_the_least_recently_used() {
    let (mut maps, id) = map(MapKind::LruHash, 1, 1, 2);
    maps.set(id, b"a", b"1", BPF_ANY).unwrap();
    maps.set(id, b"b", b"2", BPF_ANY).unwrap();
    maps.lookup(id, b"a", 0).unwrap();
    maps.set(id, b"c", b"3", BPF_ANY).unwrap();
    assert_eq!(maps.keys(id).len(), 2);
    assert!(maps.get(id, b"b").is_none() && maps.get(id, b"a").is_some());
}

#[test]
fn percpu_values_are_apart() {
    let (mut maps, id) = map(MapKind::PercpuHash, 1, 4, 2);
    assert_eq!(maps.update(id, b"a", &[7; 4], BPF_ANY, Some(1)), 0);
    assert_eq!(maps.get(id, b"a").unwrap(), [0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 0, 0, 0, 0]);
    let (zero, one) = (maps.lookup(id, b"a", 0).unwrap(), maps.lookup(id, b"a", 1).unwrap());
    assert_ne!(zero, one);
    assert_eq!(maps.lookup(id, b"a", 2), None);
}

#[test]
fn the_longest_prefix_wins() {
    let (mut maps, id) = map(MapKind::LpmTrie, 8, 1, 3);
    let key = |len: u8, a: [u8; 4]| [len, 0, 0, 0, a[0], a[1], a[2], a[3]];
    maps.set(id, &key(0, [0; 4]), b"d", BPF_ANY).unwrap();
    maps.set(id, &key(8, [10, 9, 9, 9]), b"a", BPF_ANY).unwrap();
    maps.set(id, &key(23, [10, 1, 2, 0]), b"b", BPF_ANY).unwrap();
    assert_eq!(maps.set(id, &key(24, [10, 1, 2, 0]), b"b", BPF_ANY), Err(ENOSPC));
    assert_eq!(maps.set(id, &key(33, [0; 4]), b"x", BPF_ANY), Err(EINVAL));
    let mut at = |key: [u8; 8]| {
        let offset = maps.lookup(id, &key, 0)?;
        maps.value_at(id, offset, 1, false).map(|v| v[0])
    };
    assert_eq!(at(key(32, [10, 1, 3, 1])), Some(b'b'));
    assert_eq!(at(key(32, [10, 1, 4, 1])), Some(b'a'));
    assert_eq!(at(key(8, [10, 1, 2, 0])), Some(b'a'));
    assert_eq!(at(key(32, [11, 0, 0, 0])), Some(b'd'));
    assert_eq!(at(key(33, [10, 0, 0, 0])), None);
    assert_eq!(maps.delete(id, &key(0, [1, 2, 3, 4])), 0);
    assert_eq!(maps.delete(id, &key(0, [0; 4])), ENOENT);
}

#[test]
fn queues_and_stacks() {
    for (kind, first) in [(MapKind::Queue, b"1"), (MapKind::Stack, b"2")] {
        let (mut maps, id) = map(kind, 0, 1, 2);
        assert_eq!((maps.push(id, b"1", 0), maps.push(id, b"2", 0), maps.push(id, b"3", 0)), (0, 0, E2BIG));
        assert_eq!(maps.pop(id, false).as_deref(), Some(&first[..]));
        assert_eq!(maps.push(id, b"3", BPF_EXIST), 0);
        assert!(maps.pop(id, true).is_some() && maps.pop(id, true).is_some() && maps.pop(id, true).is_none());
    }
}

#[test]
fn beyond_a_value_there_is_nothing() {
    let (mut maps, id) = map(MapKind::Array, 4, 6, 3);
    let first = maps.lookup(id, &[0; 4], 0).unwrap();
    assert!(maps.value_at(id, first + 2, 4, true).is_some());
    assert!(maps.value_at(id, first + 3, 4, true).is_none());
    assert!(maps.value_at(id, first + 8, 1, true).is_none());
    let last = maps.lookup(id, &[2, 0, 0, 0], 0).unwrap();
    assert!(maps.value_at(id, last - 1, 1, true).is_none());
}

#[test]
fn read_only_maps_are_read_only_to_programs() {
    let mut maps = MapSet::default();
    let spec = MapConfig { kind: MapKind::Array, key_size: 4, value_size: 4, max_entries: 1, flags: 1 << 7 };
    let id = maps.add(spec, 1).unwrap();
    maps.set(id, &[0; 4], &[1; 4], 0).unwrap();
    assert!(maps.value_at(id, 0, 4, false).is_some() && maps.value_at(id, 0, 4, true).is_none());
}
