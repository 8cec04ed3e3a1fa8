//! A data plane in the kernel, for tests that hold it against its model.

use std::collections::HashMap;

use millstream_kernel::{Map, Program, TestRun, UpdateMode, testing};
use millstream_loader::{Loader, Session};
use millstream_object::Object;
use millstream_programs::MapEntry;

/// `XDP_DROP`.
pub(crate) const DROP: u32 = 1;
/// `XDP_PASS`.
pub(crate) const PASS: u32 = 2;
/// `XDP_TX`.
pub(crate) const TX: u32 = 3;
/// `XDP_REDIRECT`.
#[allow(dead_code, reason = "not every data plane redirects")]
pub(crate) const REDIRECT: u32 = 4;

/// A loaded data plane.
pub(crate) struct Plane<'a> {
    session: Session<'a>,
    program: Program,
}

/// The object, or `None` where BPF is not permitted.
pub(crate) fn object(program: &millstream_programs::Program) -> Option<Object> {
    testing::require().then(|| Object::parse(program.name, program.object).expect("our own object"))
}

impl<'a> Plane<'a> {
    /// Loads the object and fills its maps.
    pub(crate) fn load(object: &'a Object, entries: &[MapEntry]) -> Self {
        let session = Loader::new(object).prepare().expect("maps");
        let func = object.programs[0].func;
        let program = session.load(func, &object.link(func).expect("linked")).expect("accepted");
        let plane = Self { session, program };
        plane.apply(entries);
        plane
    }

    /// Writes entries, those of one map at once.
    pub(crate) fn apply(&self, entries: &[MapEntry]) {
        let mut by_map: HashMap<&str, (Vec<u8>, Vec<u8>)> = HashMap::new();
        for entry in entries {
            let (keys, values) = by_map.entry(entry.map).or_default();
            keys.extend(&entry.key);
            values.extend(&entry.value);
        }
        for (name, (keys, values)) in by_map {
            self.map(name).update_batch(&keys, &values).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Overwrites one entry.
    #[allow(dead_code, reason = "not every test does")]
    pub(crate) fn set(&self, map: &str, key: u32, value: &[u8]) {
        self.map(map).update(&key.to_ne_bytes(), value, UpdateMode::Any).expect(map);
    }

    /// Verdict, and the frame as it leaves.
    pub(crate) fn run(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let out = self.program.test_run(&TestRun::packet(frame)).expect("a test run");
        (out.retval, out.data)
    }

    /// The sum over all CPUs of the 64-bit words of an array's entry.
    pub(crate) fn sums(&self, map: &str, key: u32) -> Vec<u64> {
        let map = self.map(map);
        let value = map.lookup(&key.to_ne_bytes()).expect("readable").expect("there");
        let words: Vec<u64> =
            value.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().expect("eight"))).collect();
        let per_cpu = (map.info().value_size as usize).div_ceil(8);
        (0..per_cpu).map(|n| words.iter().skip(n).step_by(per_cpu).sum()).collect()
    }

    fn map(&self, name: &str) -> &Map {
        self.session.map_by_name(name).unwrap_or_else(|| panic!("no map {name}"))
    }
}
