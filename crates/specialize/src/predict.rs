//! Cost of lookups in the very maps that a plan replaces, on this host.
//!
//! A lookup is timed by test runs of a small program that makes nothing but lookups of keys of the traffic:
//! kind and size of the map, and the share of it in the caches, are in the time.
//! [`gain_ns`](millstream_specializer::gain::gain_ns) predicts the gain of a plan from these times.

use std::os::fd::{AsFd, AsRawFd};

use millstream_isa::{MapType, asm, encode_all};
use millstream_kernel::{
    KernelError, KernelMap, KernelProgram, MapSpec, ProgramSpec, ProgramType, TestRun, UpdateMode,
};
use millstream_specializer::profile::SiteProfile;

/// Lookups of one run of the program.
const LOOKUPS: usize = 16;
/// Keys that take turns, a power of two.
const KEYS: usize = 512;
/// Runs of the program in a test run, and test runs of which the least counts.
const RUNS: (u32, usize) = (500, 5);

/// Reason why a lookup cannot be timed.
#[derive(Debug, thiserror::Error)]
pub enum LookupTimingError {
    /// No keys.
    #[error("no key is known")]
    NoKeys,
    /// A lookup would count as use of the entry, and so change which entry is evicted first.
    #[error("lookups in a map of this type are noted in it")]
    Noted,
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The program.
    #[error("the program that looks up: {0}")]
    Program(String),
}

/// Measures a lookup of these keys, which take turns, in nanoseconds. The ids of the programs are given to
/// `ours`.
///
/// # Errors
/// [`LookupTimingError`].
pub fn lookup_ns(
    map: &KernelMap,
    keys: &[Vec<u8>],
    ours: &mut dyn FnMut(u32),
) -> Result<f64, LookupTimingError> {
    let size = map.info().key_size as usize;
    if keys.is_empty() || size == 0 {
        return Err(LookupTimingError::NoKeys);
    }
    if matches!(map.info().map_type, MapType::LRU_HASH | MapType::LRU_PERCPU_HASH) {
        return Err(LookupTimingError::Noted);
    }
    let stride = size.next_multiple_of(8);
    let value_size = (8 + stride * KEYS) as u32;
    let spec =
        MapSpec { map_type: MapType::ARRAY, key_size: 4, value_size, max_entries: 1, ..MapSpec::default() };
    let state = KernelMap::create(&MapSpec { name: "ms.keys", ..spec })?;
    let mut bytes = vec![0; value_size as usize];
    for (n, key) in keys.iter().filter(|k| k.len() == size).cycle().take(KEYS).enumerate() {
        bytes[8 + n * stride..][..size].copy_from_slice(key);
    }
    state.update(&[0; 4], &bytes, UpdateMode::Any)?;
    let mut of = |act: &str| time(&text(&state, stride, map, act), ours);
    let (without, with) = (of("r0 = 0")?, of("call map_lookup_elem")?);
    Ok(((with - without) / LOOKUPS as f64).max(0.0))
}

/// Text of a program that takes one key after the other and does something with it.
fn text(state: &KernelMap, stride: usize, map: &KernelMap, act: &str) -> String {
    let at = |offset: usize| format!("map[fd:{}][0]+{offset}", state.as_fd().as_raw_fd());
    let fd = map.as_fd().as_raw_fd();
    let one = format!(
        "r2 = r7\nr2 &= {}\nr2 *= {stride}\nr1 = {}\nr2 += r1\nr1 = map[fd:{fd}]\n{act}\nr7 += 1\n",
        KEYS - 1,
        at(8)
    );
    let begin = format!("r6 = {}\nr7 = *(u64 *)(r6 +0)\n", at(0));
    begin + &one.repeat(LOOKUPS) + "*(u64 *)(r6 +0) = r7\nr0 = 0\nexit"
}

/// Measures a run, in nanoseconds.
fn time(text: &str, ours: &mut dyn FnMut(u32)) -> Result<f64, LookupTimingError> {
    let insns = asm::assemble(text).map_err(|e| LookupTimingError::Program(e.to_string()))?;
    let slots: Vec<u64> = encode_all(&insns).iter().map(|r| u64::from_ne_bytes(r.to_bytes())).collect();
    // Unlike XDP programs, these are run without waiting for grace periods.
    let spec = ProgramSpec {
        name: "ms_lookups",
        program_type: ProgramType::SOCKET_FILTER,
        insns: &slots,
        license: "GPL",
        ..ProgramSpec::default()
    };
    let program = KernelProgram::load(&spec).map_err(|e| LookupTimingError::Program(e.to_string()))?;
    ours(program.id()?);
    let run = TestRun { repeat: RUNS.0, data_room: 64, ..TestRun::packet(&[0; 64]) };
    let mut best = u32::MAX;
    for _ in 0..RUNS.1 {
        best = best.min(program.test_run(&run)?.duration_ns);
    }
    Ok(best.into())
}

/// Chooses keys to time a site's lookups with: those of its traffic, else some of the map's.
///
/// # Errors
/// Errors of the kernel.
pub fn keys(map: &KernelMap, profile: &SiteProfile) -> Result<Vec<Vec<u8>>, KernelError> {
    if !profile.keys.is_empty() {
        return Ok(profile.keys.iter().take(KEYS).map(|(key, _)| key.clone()).collect());
    }
    let mut keys: Vec<Vec<u8>> = Vec::new();
    while keys.len() < KEYS {
        let Some(next) = map.next_key(keys.last().map(Vec::as_slice))? else { break };
        keys.push(next);
    }
    if map.info().map_type == MapType::LPM_TRIE {
        // Packets look up whole addresses.
        let bits = 8 * (map.info().key_size - 4);
        keys.iter_mut().for_each(|key| key[..4].copy_from_slice(&bits.to_ne_bytes()));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use millstream_kernel::testing;

    use super::*;

    #[test]
    fn lookups_take_what_they_take() {
        if !testing::require() {
            return;
        }
        let map = |map_type, name| {
            let spec = MapSpec {
                name,
                map_type,
                key_size: 4,
                value_size: 8,
                max_entries: 50_000,
                ..MapSpec::default()
            };
            let map = KernelMap::create(&spec).expect("a map");
            let keys: Vec<u8> = (0u32..50_000).flat_map(u32::to_ne_bytes).collect();
            map.update_batch(&keys, &vec![1; 8 * 50_000]).expect("filled");
            map
        };
        let keys: Vec<Vec<u8>> = (0..512u32).map(|n| (n * 97).to_ne_bytes().to_vec()).collect();
        let mut programs = 0;
        let mut ns = |map: &KernelMap| lookup_ns(map, &keys, &mut |_| programs += 1).expect("timed");
        let (array, hash) = (ns(&map(MapType::ARRAY, "ms.a")), ns(&map(MapType::HASH, "ms.h")));
        assert!(array < hash && hash > 5.0, "{array} and {hash} ns");
        assert_eq!(programs, 4);
        assert!(matches!(
            lookup_ns(&map(MapType::HASH, "ms.e"), &[], &mut |_| ()),
            Err(LookupTimingError::NoKeys)
        ));
        assert!(matches!(
            lookup_ns(&map(MapType::LRU_HASH, "ms.l"), &keys, &mut |_| ()),
            Err(LookupTimingError::Noted)
        ));
    }
}
