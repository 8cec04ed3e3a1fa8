//! Hot keys of look-ups, as the instrumented form of the program has recorded them.

use std::collections::HashMap;

use millstream_native::NativeEngine;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::ProfileSketch;

use crate::program::{AdaptableProgram, SLOTS};

/// Empties the sketch.
pub(crate) fn clear(program: &AdaptableProgram, engine: &mut NativeEngine) {
    let none = vec![0; program.sketch_map().value_size as usize];
    let keys: Vec<[u8; 4]> = (0..program.sketch_map().max_entries).map(u32::to_ne_bytes).collect();
    let entries = keys.iter().map(|key| (&key[..], Some(&none[..])));
    engine.apply_entries(program.sketch().as_u32() as usize, entries);
}

/// Reads the sketch.
pub(crate) fn read(program: &AdaptableProgram, engine: &mut NativeEngine) -> Vec<SiteProfile> {
    let Some(sketch) = engine.map_at(program.sketch()) else { return Vec::new() };
    let profile = |(number, site): (u32, &millstream_specializer::transform::LookupSite)| {
        let (mut total, mut keys) = (0, HashMap::<Vec<u8>, u64>::new());
        for slot in number * SLOTS..(number + 1) * SLOTS {
            let Some(value) = sketch.get(&slot.to_ne_bytes()) else { continue };
            let (lookups, held) = ProfileSketch::read(&value, site.key_size);
            total += lookups;
            held.into_iter().for_each(|(key, count)| *keys.entry(key).or_default() += count);
        }
        let mut keys: Vec<_> = keys.into_iter().filter(|(_, count)| *count > 0).collect();
        keys.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        SiteProfile { site: site.id, total, keys }
    };
    (0..).zip(program.sites()).map(profile).collect()
}
