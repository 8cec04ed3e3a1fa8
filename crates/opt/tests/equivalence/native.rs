//! The program as native code in userspace, with maps of its own.

use millstream_isa::MapType;
use millstream_native::{ClockSource, NativeEngine, NativeOptions, PacketBatch};
use millstream_object::Object;
use millstream_programs::MapEntry;

use crate::variant::{Contents, INGRESS};

pub(crate) struct Native {
    engine: NativeEngine,
    batch: PacketBatch,
    cpu: usize,
}

impl Native {
    /// `cpu` is where the kernel's programs run: their copies of per-CPU values are compared.
    pub(crate) fn load(object: &Object, function: &str, cpu: usize) -> Self {
        let mut engine =
            NativeEngine::of_object(object, Some(function), &NativeOptions::default()).expect("compiled");
        engine.set_clock(ClockSource::Fixed(0));
        Native { engine, batch: PacketBatch::new(1).expect("memory"), cpu }
    }

    pub(crate) fn apply(&mut self, entries: &[MapEntry]) {
        for entry in entries {
            let map = self.engine.map(entry.map).expect("the object's map");
            let mut value = entry.value.clone();
            // In the kernel their values carry a program's id as well.
            if MapType(map.spec().kind as u32).is_devmap() {
                value[..4].copy_from_slice(&INGRESS.to_ne_bytes());
            }
            assert_eq!(map.update(&entry.key, &value, 0, None), 0, "{}", entry.map);
        }
    }

    pub(crate) fn set_clock(&mut self, now: u64) {
        self.engine.set_clock(ClockSource::Fixed(now));
    }

    /// The verdict, and the frame as the program left it.
    pub(crate) fn run(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        self.batch.clear();
        assert!(self.batch.push(frame, INGRESS), "{} bytes", frame.len());
        self.engine.run(&mut self.batch);
        (self.batch.verdict(0), self.batch.bytes(0).to_vec())
    }

    /// The first map whose contents differ from the kernel's, with an entry that does.
    pub(crate) fn difference(&mut self, kernel: &Contents) -> Option<String> {
        let cpu = self.cpu;
        self.engine.maps().find_map(|map| {
            let spec = map.spec();
            if MapType(spec.kind as u32).is_devmap() || spec.key_size == 0 {
                return None;
            }
            let theirs = kernel.map(map.name())?;
            let ours = map.keys().len();
            if ours != theirs.len() {
                return Some(format!("map {:?}: {ours} and {} entries", map.name(), theirs.len()));
            }
            let size = spec.value_size as usize;
            let start = if spec.kind.is_percpu() { cpu * size.next_multiple_of(8) } else { 0 };
            theirs.iter().find_map(|(key, value)| {
                let (ours, theirs) = (map.get(key), &value[start..start + size]);
                (ours.as_deref() != Some(theirs))
                    .then(|| format!("map {:?}, key {key:02x?}: {ours:02x?} and {theirs:02x?}", map.name()))
            })
        })
    }
}
