//! Loads a data plane and runs it on packets by `BPF_PROG_TEST_RUN`.
//!
//! A test run's packets come in at interface 1, the loopback. A devmap entry must name an interface that
//! exists, so all of them lead there: a test run tells that a packet was redirected, and by the counters
//! where to.

use std::collections::HashMap;

use millstream_kernel::{KernelProgram, TestRun, testing};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::Object;
use millstream_programs::MapEntry;

/// The interface at which packets of test runs come in.
pub(crate) const INGRESS: u32 = 1;

/// Verdict of a program on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Aborted,
    Drop,
    Pass,
    Tx,
    Redirect,
}

/// A loaded data plane.
pub(crate) struct Rig {
    session: Session<'static>,
    program: KernelProgram,
}

impl Rig {
    /// Loads the program and writes the entries; `None`, with the reason printed, where BPF is not permitted.
    pub(crate) fn new(
        data_plane: &millstream_programs::DataPlaneProgram,
        entries: &[MapEntry],
    ) -> Option<Self> {
        if !testing::require() {
            return None;
        }
        let object: &'static Object =
            Box::leak(Box::new(Object::parse(data_plane.name, data_plane.object).expect("our own object")));
        let session = ObjectLoader::new(object).prepare().expect("maps");
        let func = object.programs.iter().find(|p| p.name == data_plane.function).expect("its program").func;
        let linked = object.link(func).expect("it links");
        let program = session.load(func, &linked).expect("the verifier accepts it");
        let rig = Self { session, program };
        rig.apply(entries);
        Some(rig)
    }

    /// Writes entries into the maps, all entries of one map at once.
    pub(crate) fn apply(&self, entries: &[MapEntry]) {
        let mut by_map: HashMap<&str, (Vec<u8>, Vec<u8>)> = HashMap::new();
        for entry in entries {
            let (keys, values) = by_map.entry(entry.map).or_default();
            let mut value = entry.value.clone();
            if entry.map == "tx_ports" {
                value[..4].copy_from_slice(&INGRESS.to_ne_bytes());
            }
            keys.extend(&entry.key);
            values.extend(value);
        }
        for (name, (keys, values)) in by_map {
            self.map(name).update_batch(&keys, &values).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    /// The map of this name.
    pub(crate) fn map(&self, name: &str) -> &millstream_kernel::KernelMap {
        self.session.map_by_name(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    /// One packet: the verdict, and the frame as the program left it.
    pub(crate) fn run(&self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let out = self.program.test_run(&TestRun::packet(frame)).expect("a test run");
        let verdict = match out.retval {
            0 => Verdict::Aborted,
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::Tx,
            4 => Verdict::Redirect,
            other => panic!("{other} is no verdict"),
        };
        (verdict, out.data)
    }

    /// The sums over CPUs of the 64-bit words of an array's element.
    pub(crate) fn sums(&self, map: &str, key: u32) -> Vec<u64> {
        let map = self.map(map);
        let all = map.lookup(&key.to_ne_bytes()).expect("a look-up").expect("an array's element");
        let words: Vec<u64> =
            all.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().expect("eight"))).collect();
        let per_cpu = (map.info().value_size as usize).div_ceil(8);
        (0..per_cpu).map(|n| words.iter().skip(n).step_by(per_cpu).sum()).collect()
    }

    /// One of [`Rig::sums`].
    pub(crate) fn sum(&self, map: &str, key: u32, word: usize) -> u64 {
        self.sums(map, key)[word]
    }
}
