//! Look-ups as code find the contents of tables, for all kinds of maps and sizes of keys, while entries come
//! and go; and the tables have the same contents as the interpreter's maps.

mod common;

use common::{look_up, word};
use millstream_interp::{MapConfig, MapId, MapKind, MapSet};
use millstream_ir::{Func, MapDecl, MemFlags, Module, Op, Size};
use millstream_native::{
    HashTemplate, LpmTemplate, NativeEngine, NativeOptions, PacketBatch, PrefetchPolicy, Schedule,
};
use millstream_rng::Rng;

const VALUE: usize = 8;
/// Offset in the packet of the value found; the key is at the beginning.
const FOUND: i32 = 64;
const ENTRIES: u32 = 64;
const STEPS: usize = 600;

/// A program that looks up the key at the beginning of the packet: verdict 2 and the value behind it, or 1.
fn program(kind: MapKind, key_size: u32) -> (Module, Func) {
    let table = MapDecl {
        name: "table".into(),
        kind: kind as u32,
        key_size,
        value_size: VALUE as u32,
        max_entries: ENTRIES,
        flags: 0,
        global: None,
        inner: None,
    };
    look_up(table, |at, packet, value| {
        let word = word(at, value);
        let store = Op::Store { size: Size::Dw, offset: FOUND, flags: MemFlags::default() };
        at.effect(store, [packet, word], []);
        at.iconst(2)
    })
}

/// The template of a table.
#[derive(Clone, Copy)]
enum Made {
    Hash(HashTemplate),
    Trie(LpmTemplate),
}

/// A table in native code and in the interpreter.
struct Pair {
    engine: NativeEngine,
    batch: PacketBatch,
    maps: MapSet,
    id: MapId,
    key_size: usize,
}

impl Pair {
    fn new(kind: MapKind, key_size: u32, schedule: &str, template: Option<Made>) -> Pair {
        let (module, func) = program(kind, key_size);
        let schedule = schedule.parse().expect("a schedule");
        let mut options = NativeOptions { schedule, ..NativeOptions::default() };
        match template {
            Some(Made::Hash(template)) => options.tables.push(("table".to_owned(), template)),
            Some(Made::Trie(trie)) => options.tries.push(("table".to_owned(), trie)),
            None => {}
        }
        let engine = NativeEngine::of_module(module, func, &options).expect("compiled");
        let mut maps = MapSet::default();
        let spec = MapConfig { kind, key_size, value_size: VALUE as u32, max_entries: ENTRIES, flags: 0 };
        let id = maps.add(spec, 1).expect("room");
        Pair { engine, batch: PacketBatch::new(8).expect("memory"), maps, id, key_size: key_size as usize }
    }

    fn table(&mut self) -> &mut millstream_native::NativeMap {
        self.engine.map("table").expect("there")
    }

    fn update(&mut self, key: &[u8], value: &[u8], flags: u64) {
        let expected = self.maps.set(self.id, key, value, flags).err().unwrap_or(0);
        assert_eq!(self.table().update(key, value, flags, Some(0)), expected, "update {key:02x?} {flags}");
    }

    fn delete(&mut self, key: &[u8]) {
        let expected = self.maps.delete(self.id, key);
        assert_eq!(self.table().delete(key), expected, "delete {key:02x?}");
    }

    /// Looks keys up in native code, all in one batch.
    fn look(&mut self, keys: &[Vec<u8>]) {
        self.batch.clear();
        for key in keys {
            let mut frame = key.clone();
            frame.resize(FOUND as usize + VALUE, 0);
            assert!(self.batch.push(&frame, 1));
        }
        self.engine.run(&mut self.batch);
        for (at, key) in keys.iter().enumerate() {
            let found =
                (self.batch.verdict(at) == 2).then(|| self.batch.bytes(at)[FOUND as usize..].to_vec());
            assert_eq!(found, self.longest(key), "look-up of {key:02x?}");
        }
    }

    /// Result of a program's look-up of a key in the interpreter's map.
    fn longest(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        if self.maps.spec(self.id).expect("there").kind != MapKind::LpmTrie {
            return self.maps.get(self.id, key);
        }
        let most = u32::from_le_bytes(key[..4].try_into().expect("four"));
        (0..=most).rev().find_map(|bits| {
            let mut shorter = key.to_vec();
            shorter[..4].copy_from_slice(&bits.to_le_bytes());
            self.maps.get(self.id, &shorter)
        })
    }

    fn same_entries(&mut self) {
        let expected = self.maps.entries(self.id);
        let table = self.table();
        let mut keys = table.keys();
        keys.sort_unstable();
        let entries: Vec<_> =
            keys.into_iter().map(|k| (k.clone(), table.get(&k).expect("its own key"))).collect();
        assert_eq!(table.len(), entries.len());
        assert_eq!(entries, expected);
    }
}

/// A random key out of few, so that keys repeat.
fn key(kind: MapKind, size: usize, rng: &mut Rng) -> Vec<u8> {
    match kind {
        MapKind::Array | MapKind::PercpuArray => (rng.below(80) as u32).to_le_bytes().to_vec(),
        MapKind::LpmTrie => {
            let bits = 8 * (size - 4) as u64;
            let mut key = vec![0; size];
            for byte in &mut key[4..] {
                *byte = [0, 0x80, 0xc0, 0xff][rng.below(4) as usize];
            }
            let length = if rng.below(2) == 0 { bits } else { rng.below(bits + 1) };
            key[..4].copy_from_slice(&(length as u32).to_le_bytes());
            key
        }
        _ => {
            let mut key = vec![0; size];
            let at = rng.below(size as u64) as usize;
            key[at] = rng.below(8) as u8;
            key
        }
    }
}

/// Look-ups without fetching, and fetched ahead in each order of packets and stages.
const SCHEDULES: [&str; 8] = [
    "",
    "fetch=nothing,unroll=3",
    "from=0,trials=off,pattern=packets,distance=2",
    "from=0,trials=off,pattern=packets,distance=1,unroll=2",
    "from=0,trials=off,pattern=groups,sub-batch=2",
    "from=0,trials=off,pattern=groups,sub-batch=all,unroll=3",
    "from=0,trials=off,pattern=pipelined-groups,sub-batch=1",
    "from=0,trials=off,pattern=pipelined-groups,sub-batch=3,unroll=2,headers=0",
];

/// By each schedule, hash tables and tries by each template.
fn check(kind: MapKind, key_size: u32, most: usize) {
    let keys = [HashTemplate::OpenKeys, HashTemplate::RobinHoodKeys, HashTemplate::CuckooKeys];
    let templates: Vec<Option<Made>> = match kind {
        MapKind::Hash | MapKind::PercpuHash | MapKind::LruHash => {
            let all =
                HashTemplate::ALL.into_iter().filter(|template| key_size <= 4 || !keys.contains(template));
            all.map(|template| Some(Made::Hash(template))).collect()
        }
        MapKind::LpmTrie => {
            [LpmTemplate::Multibit, LpmTemplate::Packed, LpmTemplate::Lengths, LpmTemplate::List]
                .map(|trie| Some(Made::Trie(trie)))
                .to_vec()
        }
        _ => vec![None],
    };
    for schedule in SCHEDULES {
        for &template in &templates {
            check_fetched(kind, key_size, most, schedule, template);
        }
    }
}

fn check_fetched(kind: MapKind, key_size: u32, most: usize, schedule: &str, template: Option<Made>) {
    let mut pair = Pair::new(kind, key_size, schedule, template);
    let mut rng = Rng::new(u64::from(key_size));
    for step in 0..STEPS {
        let new = key(kind, pair.key_size, &mut rng);
        let room = pair.maps.keys(pair.id).len() < most || pair.maps.get(pair.id, &new).is_some();
        match rng.below(5) {
            0..3 if room => pair.update(&new, &rng.next_u64().to_le_bytes(), rng.below(4)),
            3 => pair.delete(&new),
            _ => {
                let keys: Vec<_> = (0..rng.below(9)).map(|_| key(kind, pair.key_size, &mut rng)).collect();
                pair.look(&keys);
            }
        }
        if step % 50 == 0 {
            pair.same_entries();
        }
    }
    pair.same_entries();
}

#[test]
fn hash_tables_with_keys_of_all_sizes() {
    for size in [1, 2, 3, 4, 6, 8, 11, 12, 16, 20, 37] {
        check(MapKind::Hash, size, usize::MAX);
    }
    for size in [3, 12] {
        check(MapKind::PercpuHash, size, usize::MAX);
    }
}

#[test]
fn a_template_is_for_a_table_of_its_kind_that_is_there() {
    let (module, func) = program(MapKind::LpmTrie, 8);
    let tables = vec![("table".to_owned(), HashTemplate::Cuckoo)];
    let made = NativeEngine::of_module(module, func, &NativeOptions { tables, ..NativeOptions::default() });
    assert!(made.err().expect("a trie").to_string().contains("no hash table \"table\""));
    let (module, func) = program(MapKind::LpmTrie, 8);
    let schedule =
        Schedule { fetch: PrefetchPolicy::Tables(vec!["tabel".to_owned()]), ..Schedule::default() };
    let made = NativeEngine::of_module(module, func, &NativeOptions { schedule, ..NativeOptions::default() });
    assert!(made.err().expect("no such table").to_string().contains("did you mean \"table\"?"));
    let (module, func) = program(MapKind::Hash, 8);
    let tries = vec![("table".to_owned(), LpmTemplate::Packed)];
    let made = NativeEngine::of_module(module, func, &NativeOptions { tries, ..NativeOptions::default() });
    assert!(made.err().expect("a hash table").to_string().contains("no trie \"table\""));
    let (module, func) = program(MapKind::Hash, 5);
    let tables = vec![("table".to_owned(), HashTemplate::CuckooKeys)];
    let made = NativeEngine::of_module(module, func, &NativeOptions { tables, ..NativeOptions::default() });
    let refused = made.err().expect("five bytes").to_string();
    assert!(refused.contains("keys of 5 bytes") && refused.contains("`cuckoo` has hashes"), "{refused}");
    assert!(refused.contains("`cuckoo-slots` neither"), "{refused}");
}

#[test]
fn lru_tables_with_room() {
    for size in [3, 4, 16] {
        check(MapKind::LruHash, size, ENTRIES as usize);
    }
}

#[test]
fn tries_of_short_and_long_addresses() {
    for size in [5, 6, 7, 8, 12, 20] {
        check(MapKind::LpmTrie, size, usize::MAX);
    }
}

#[test]
fn arrays() {
    check(MapKind::Array, 4, usize::MAX);
    check(MapKind::PercpuArray, 4, usize::MAX);
}

#[test]
fn full_lru_tables_keep_what_is_used() {
    let mut pair = Pair::new(MapKind::LruHash, 4, "", None);
    let word = |n: u32| n.to_le_bytes();
    let hot = 7;
    for n in 0..10 * ENTRIES {
        let table = pair.table();
        assert_eq!(table.update(&word(n), &u64::from(n).to_le_bytes(), 0, None), 0);
        assert_eq!(table.len(), (n + 1).min(ENTRIES) as usize);
        assert_eq!(table.get(&word(n)), Some(u64::from(n).to_le_bytes().to_vec()), "the newest is there");
        if n >= hot {
            pair.batch.clear();
            let mut frame = word(hot).to_vec();
            frame.resize(FOUND as usize + VALUE, 0);
            assert!(pair.batch.push(&frame, 1));
            pair.engine.run(&mut pair.batch);
            assert_eq!(pair.batch.verdict(0), 2, "{hot} was used before {n} came");
        }
    }
}
