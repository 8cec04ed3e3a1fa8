//! Keys that are looked up, as the instrumented variant recorded them.

use std::collections::HashMap;

use millstream_kernel::{KernelError, KernelMap, possible_cpus};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{LookupSite, ProfileSketch, SiteId};

/// Empties the sketch.
///
/// # Errors
/// Errors of the kernel.
pub fn clear(sketch: &KernelMap) -> Result<(), KernelError> {
    let entries = sketch.info().max_entries;
    let keys: Vec<u8> = (0..entries).flat_map(u32::to_ne_bytes).collect();
    sketch.update_batch(&keys, &vec![0; sketch.value_len()? * entries as usize])
}

/// Reads the sketch: for each of `sites`, in the order in which they were instrumented, `slots` slots.
///
/// # Errors
/// Errors of the kernel.
pub fn read(sketch: &KernelMap, sites: &[&LookupSite], slots: u32) -> Result<Vec<SiteProfile>, KernelError> {
    let cpus = possible_cpus()?;
    let stride = sketch.value_len()? / cpus;
    let mut found: Vec<(u64, HashMap<Vec<u8>, u64>)> = vec![(0, HashMap::new()); sites.len()];
    let entries = sketch.entries()?;
    for (key, value) in entries.iter() {
        let Ok(index) = <[u8; 4]>::try_from(key).map(u32::from_ne_bytes) else { continue };
        let Some((site, (total, keys))) = sites
            .get((index / slots) as usize)
            .and_then(|s| Some((s, found.get_mut((index / slots) as usize)?)))
        else {
            continue;
        };
        for slot in value.chunks_exact(stride) {
            let (came, held) = ProfileSketch::read(slot, site.key_size);
            *total += came;
            for (key, count) in held {
                *keys.entry(key).or_default() += count;
            }
        }
    }
    Ok(sites.iter().zip(found).map(|(site, (total, keys))| profile(site.id, total, keys)).collect())
}

fn profile(site: SiteId, total: u64, keys: HashMap<Vec<u8>, u64>) -> SiteProfile {
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    SiteProfile { site, total, keys }
}
