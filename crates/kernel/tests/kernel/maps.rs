//! Map operations against the real kernel.

use crate::common::{array, exit, map, mov, since, xdp};
use millstream_isa::MapType;
use millstream_kernel::{KernelMap, MapSpec, UpdateMode, map_flags, map_ids, possible_cpus, testing};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

#[test]
fn hash_elements_come_and_go() {
    if !testing::require() {
        return;
    }
    let m = map(MapType::HASH, "h", 4, 8, 16, 0);
    assert_eq!(m.lookup(&[1; 4]).unwrap(), None);
    m.update(&[1; 4], &[7; 8], UpdateMode::NoExist).unwrap();
    let twice = m.update(&[1; 4], &[7; 8], UpdateMode::NoExist).unwrap_err();
    assert_eq!(twice.errno(), Some(libc::EEXIST));
    let missing = m.update(&[2; 4], &[7; 8], UpdateMode::Exist).unwrap_err();
    assert_eq!(missing.errno(), Some(libc::ENOENT));
    assert_eq!(m.lookup(&[1; 4]).unwrap(), Some(vec![7; 8]));
    assert_eq!(m.next_key(None).unwrap(), Some(vec![1; 4]));
    assert_eq!(m.next_key(Some(&[1; 4])).unwrap(), None);
    if since(5, 14, "taking an element out of a hash map") {
        assert_eq!(m.lookup_and_delete(&[1; 4]).unwrap(), Some(vec![7; 8]));
        assert!(!m.delete(&[1; 4]).unwrap());
    }
}

#[test]
fn a_short_key_or_value_never_reaches_the_kernel() {
    if !testing::require() {
        return;
    }
    let m = map(MapType::HASH, "h", 4, 8, 16, 0);
    assert!(m.lookup(&[1; 3]).unwrap_err().errno().is_none());
    assert!(m.update(&[1; 4], &[0; 7], UpdateMode::Any).unwrap_err().errno().is_none());
    assert!(m.update_batch(&[1; 8], &[0; 8]).unwrap_err().errno().is_none());
}

/// All elements are read, for every type and number of elements.
fn check_entries(map_type: MapType, flags: u32, n: u32) {
    let percpu = map_type.is_percpu();
    let m = map(map_type, "many", 4, 8, n, flags);
    let mut want = BTreeMap::new();
    let mut keys = Vec::new();
    let mut values = Vec::new();
    for i in 0..n {
        let one = (u64::from(i) * 3).to_ne_bytes();
        let all = if percpu { one.repeat(possible_cpus().unwrap()) } else { one.to_vec() };
        keys.extend(i.to_ne_bytes());
        values.extend(&all);
        want.insert(i.to_ne_bytes().to_vec(), all);
    }
    m.update_batch(&keys, &values).unwrap();
    let entries = m.entries().unwrap();
    assert_eq!(entries.len(), n as usize, "{map_type}");
    let got: BTreeMap<_, _> = entries.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    assert_eq!(got, want, "{map_type}");
}

#[test]
fn whole_maps_are_read() {
    if !testing::require() {
        return;
    }
    for n in [1, 7, 10_000] {
        check_entries(MapType::HASH, 0, n);
        check_entries(MapType::ARRAY, 0, n);
        check_entries(MapType::PERCPU_HASH, 0, n);
        check_entries(MapType::PERCPU_ARRAY, 0, n);
    }
    assert!(map(MapType::HASH, "none", 4, 8, 10, 0).entries().unwrap().is_empty());
}

#[test]
fn an_lpm_trie_is_matched_by_longest_prefix_and_read_whole() {
    if !testing::require() {
        return;
    }
    let m = map(MapType::LPM_TRIE, "lpm", 8, 4, 5000, map_flags::NO_PREALLOC);
    let key = |len: u32, a: [u8; 4]| [&len.to_ne_bytes()[..], &a].concat();
    m.update(&key(8, [10, 0, 0, 0]), &[1; 4], UpdateMode::Any).unwrap();
    m.update(&key(24, [10, 0, 7, 0]), &[2; 4], UpdateMode::Any).unwrap();
    assert_eq!(m.lookup(&key(32, [10, 0, 7, 9])).unwrap(), Some(vec![2; 4]));
    assert_eq!(m.lookup(&key(32, [10, 1, 7, 9])).unwrap(), Some(vec![1; 4]));
    assert_eq!(m.lookup(&key(32, [11, 1, 7, 9])).unwrap(), None);
    for i in 0..4500u32 {
        let [_, _, hi, lo] = i.to_be_bytes();
        m.update(&key(32, [20, 0, hi, lo]), &[3; 4], UpdateMode::Any).unwrap();
    }
    assert_eq!(m.entries().unwrap().len(), 4502);
}

#[test]
fn types_without_batches_are_walked() {
    if !testing::require() {
        return;
    }
    let programs = map(MapType::PROG_ARRAY, "progs", 4, 4, 8, 0);
    let p = xdp("p", &[mov(0, 2), exit()]);
    programs.update_fd(&3u32.to_ne_bytes(), p.as_fd()).unwrap();
    let entries = programs.entries().unwrap();
    let (key, value) = entries.iter().next().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!((key, value), (&3u32.to_ne_bytes()[..], &p.id().unwrap().to_ne_bytes()[..]));
}

#[test]
fn inner_maps_are_put_in_by_descriptor_and_read_by_id() {
    if !testing::require() {
        return;
    }
    let template = array("inner", 8, 2, 0);
    let outer = KernelMap::create(&MapSpec {
        name: "outer",
        map_type: MapType::ARRAY_OF_MAPS,
        key_size: 4,
        value_size: 4,
        max_entries: 4,
        inner: Some(&template),
        ..MapSpec::default()
    })
    .unwrap();
    outer.update_fd(&1u32.to_ne_bytes(), template.as_fd()).unwrap();
    assert_eq!(outer.lookup(&1u32.to_ne_bytes()).unwrap(), Some(template.id().to_ne_bytes().to_vec()));
    let wrong = array("wrong", 16, 2, 0);
    assert_eq!(outer.update_fd(&2u32.to_ne_bytes(), wrong.as_fd()).unwrap_err().errno(), Some(libc::EINVAL));
}

#[test]
fn queues_bloom_filters_and_ring_buffers_are_made() {
    if !testing::require() {
        return;
    }
    let q = map(MapType::QUEUE, "q", 0, 4, 4, 0);
    q.update(&[], &[5; 4], UpdateMode::Any).unwrap();
    assert_eq!(q.lookup_and_delete(&[]).unwrap(), Some(vec![5; 4]));
    assert_eq!(q.lookup_and_delete(&[]).unwrap(), None);
    if since(5, 16, "the Bloom filter") {
        map(MapType::BLOOM_FILTER, "bloom", 0, 4, 4, 0);
    }
    map(MapType::RINGBUF, "ring", 0, 0, 4096, 0);
    map(MapType::LRU_HASH, "lru", 4, 4, 64, 0);
    map(MapType::DEVMAP, "dev", 4, 4, 4, 0);
    map(MapType::CPUMAP, "cpu", 4, 4, 1, 0);
    map(MapType::STACK_TRACE, "stack", 4, 80, 4, 0);
}

#[test]
fn per_cpu_values_are_written_to_all() {
    if !testing::require() {
        return;
    }
    let m = map(MapType::PERCPU_ARRAY, "p", 4, 4, 1, 0);
    m.update_all_cpus(&[0; 4], &[9; 4], UpdateMode::Any).unwrap();
    let value = m.lookup(&[0; 4]).unwrap().unwrap();
    assert_eq!(value.len(), 8 * possible_cpus().unwrap());
    assert!(value.chunks(8).all(|cpu| cpu == [9, 9, 9, 9, 0, 0, 0, 0]));
}

#[test]
fn mapped_arrays_and_the_map_are_one_memory() {
    if !testing::require() {
        return;
    }
    let m = array("mm", 12, 4, map_flags::MMAPABLE);
    let mapping = m.mmap(true).unwrap();
    assert_eq!((mapping.stride(), mapping.len()), (16, 64));
    mapping.write(16, b"hello millst");
    assert_eq!(m.lookup(&1u32.to_ne_bytes()).unwrap().unwrap(), b"hello millst");
    mapping.atomic_u64(32).store(77, Ordering::Relaxed);
    assert_eq!(m.lookup(&2u32.to_ne_bytes()).unwrap().unwrap()[0], 77);
    let mut back = [0; 5];
    mapping.read(16, &mut back);
    assert_eq!(&back, b"hello");
    assert_eq!(m.freeze().unwrap_err().errno(), Some(libc::EBUSY), "mapped writable");
    assert!(array("plain", 8, 1, 0).mmap(false).is_err());
}

#[test]
fn a_frozen_map_is_read_only_to_user_space() {
    if !testing::require() {
        return;
    }
    let m = array("ro", 4, 1, map_flags::RDONLY_PROG);
    m.update(&[0; 4], &[3; 4], UpdateMode::Any).unwrap();
    m.freeze().unwrap();
    let refused = m.update(&[0; 4], &[4; 4], UpdateMode::Any).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EPERM));
    assert!(refused.hint().unwrap().contains("frozen"));
    assert_eq!(m.lookup(&[0; 4]).unwrap(), Some(vec![3; 4]));
}

#[test]
fn maps_are_found_by_id() {
    if !testing::require() {
        return;
    }
    let m = array("found_by_id", 4, 3, 0);
    assert!(map_ids().unwrap().contains(&m.id()));
    let again = KernelMap::from_id(m.id()).unwrap();
    assert_eq!(again.info(), m.info());
    assert_eq!((again.info().name.as_str(), again.info().max_entries), ("found_by_id", 3));
    assert_eq!(KernelMap::from_id(u32::MAX).unwrap_err().errno(), Some(libc::ENOENT));
}
