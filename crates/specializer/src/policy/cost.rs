//! Cost of lookups, and of the code in front of them: enough to choose between them. Nanoseconds on a current
//! server; `lab` can measure them. The chosen code is measured before it stays.

use millstream_isa::MapType;

use crate::transform::LookupEntry;

/// Hot keys of a site at most.
pub(crate) const HOT: usize = 48;
/// One comparison of a word with a constant, not equal.
const COMPARE: f64 = 0.5;
/// A branch that goes the other way than predicted.
const MISPREDICTED: f64 = 7.0;
/// Gain if the code behind a lookup knows the result.
const KNOWN: f64 = 2.0;
/// Margin by which code must be better than the lookup, because predictions err.
const MARGIN: f64 = 1.0;

/// Cost of a lookup in a map with so many entries, for keys of the traffic.
pub(crate) fn lookup(kind: MapType, entries: usize) -> f64 {
    let by_size = |steps: [(usize, f64); 3], last: f64| {
        steps.into_iter().find(|(most, _)| entries <= *most).map_or(last, |(_, ns)| ns)
    };
    match kind {
        MapType::ARRAY | MapType::PERCPU_ARRAY => 1.5,
        // Machine code, too, followed by calls through a table of functions if the map is not known.
        MapType::ARRAY_OF_MAPS => 6.0,
        MapType::LPM_TRIE => by_size([(64, 50.0), (4_096, 100.0), (65_536, 300.0)], 700.0),
        _ => by_size([(1_024, 18.0), (16_384, 30.0), (131_072, 80.0)], 150.0),
    }
}

/// A lookup in a twin.
pub(crate) const TWIN: f64 = 6.0;
/// A lookup in a cache that has the key.
pub(crate) const CACHE: f64 = 8.0;
/// The guard at the entry of a variant.
pub(crate) const GUARD: f64 = 1.0;

/// Cost of a lookup with these keys compared one by one before code that takes `behind`, less the gain of
/// knowing the result.
pub(crate) fn compare_cost(shares: &[f64], behind: f64) -> f64 {
    steps(shares).last().map_or(behind, |(spent, left)| spent + left * behind)
}

/// Cost up to each of the keys, and the part of the lookups that go on after it.
fn steps(shares: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    // Part of the lookups that come this far; cost of those that were answered on the way.
    let (mut left, mut spent) = (1.0f64, 0.0);
    shares.iter().map(move |share| {
        let share = share.min(left);
        let surprised = share.min(left - share);
        spent += left * COMPARE + surprised * MISPREDICTED - share * KNOWN;
        left -= share;
        (spent, left)
    })
}

/// Number of the hottest keys that pay if they are compared one by one before code that takes `behind`.
/// `shares` are the shares of the lookups of each key, hottest first; the rest are keys of which nothing is
/// known.
pub(crate) fn worthwhile(shares: &[f64], behind: f64) -> usize {
    let mut best = (0, behind - MARGIN);
    for (n, (spent, left)) in steps(shares).enumerate() {
        if spent + left * behind < best.1 {
            best = (n + 1, spent + left * behind);
        }
    }
    best.0
}

/// Gain of comparing a word of the key with so many values before each lookup, if a part `missed` of the
/// lookups has none of them and is then spared `saved`.
pub(crate) fn key_test_gain(missed: f64, values: usize, saved: f64) -> f64 {
    // A key without any of the values is compared with all of them; one with a value, with half of them.
    let compared = values as f64 * COMPARE * (1.0 + missed) / 2.0;
    missed * saved - compared - missed.min(1.0 - missed) * MISPREDICTED
}

/// Gain of knowing without a lookup, which takes `lookup`, that nothing would be found.
pub(crate) fn spared(lookup: f64) -> f64 {
    lookup + KNOWN
}

/// Returns true if this gain exceeds the error of predictions.
pub(crate) fn pays(gained: f64) -> bool {
    gained > MARGIN
}

/// Cost of a binary search among so many entries, less the gain of knowing the result.
pub(crate) fn searched(entries: usize) -> f64 {
    // The half cannot be predicted.
    (entries.max(1) as f64).log2() * (COMPARE + MISPREDICTED / 2.0) - KNOWN
}

/// Cost of a search in code for an entry of a map that has these.
pub(crate) fn whole(kind: MapType, entries: &[LookupEntry]) -> f64 {
    if matches!(kind, MapType::ARRAY | MapType::ARRAY_OF_MAPS) {
        among_runs(entries)
    } else {
        searched(entries.len())
    }
}

/// Cost of a search among runs of consecutive indices of an array with one value each, the hottest first,
/// less the gain of knowing the result. The entropy of the shares gives the mispredictions.
fn among_runs(entries: &[LookupEntry]) -> f64 {
    let index = |entry: &&LookupEntry| entry.key.first_chunk().map(|key| u32::from_ne_bytes(*key));
    let mut sorted: Vec<&LookupEntry> = entries.iter().collect();
    sorted.sort_by_key(index);
    // Entries that nobody looked up may still be looked up.
    let unseen = 1.0 / sorted.len().max(1) as f64;
    let heat = sorted.chunk_by(|a, b| a.value == b.value);
    let heat: Vec<f64> = heat.map(|run| run.iter().map(|e| e.heat as f64 + unseen).sum()).collect();
    let total: f64 = heat.iter().sum();
    let open: f64 = heat.iter().map(|h| h / total).map(|share| -share * share.log2()).sum();
    let first = if heat.len() > 1 { COMPARE } else { 0.0 };
    first + open * (COMPARE + MISPREDICTED / 2.0) - KNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_keys_as_pay() {
        let trie = lookup(MapType::LPM_TRIE, 2_592);
        assert_eq!(worthwhile(&[0.9, 0.05], trie), 2);
        // No key is hot.
        assert_eq!(worthwhile(&[0.0001; 100], lookup(MapType::HASH, 10_000)), 0);
        let even = [0.02; 48];
        assert!(worthwhile(&even, 700.0) == 48 && worthwhile(&even, 18.0) == 0);
        // The machine code of an array's lookup is as short as a comparison.
        let array = lookup(MapType::ARRAY, 4_096);
        assert_eq!(worthwhile(&[0.6, 0.3], array), 0);
        assert_eq!(worthwhile(&[0.99], array), 1);
    }

    #[test]
    fn misses_are_tested_for_where_they_are_many() {
        let hash = spared(lookup(MapType::HASH, 10_000));
        assert!(pays(key_test_gain(0.5, 1, hash)) && pays(key_test_gain(0.2, 2, hash)));
        assert!(!pays(key_test_gain(0.01, 1, hash)) && !pays(key_test_gain(0.0, 1, hash)));
        // A twin is as fast as a branch that cannot be predicted.
        assert!(!pays(key_test_gain(0.5, 1, spared(TWIN))) && pays(key_test_gain(0.95, 1, spared(TWIN))));
    }

    #[test]
    fn small_maps_become_code() {
        let pays = |kind, entries| searched(entries) < lookup(kind, entries);
        assert!(pays(MapType::HASH, 10) && pays(MapType::LPM_TRIE, 2_592) && !pays(MapType::HASH, 4_096));
    }

    #[test]
    fn an_array_pays_where_most_of_it_is_alike_or_hot() {
        let array = |heat: [u64; 2]| -> Vec<LookupEntry> {
            let entry = |n: u32| {
                let special = n % 100 == 50;
                let value = Some(vec![u8::from(special)]);
                LookupEntry { key: n.to_ne_bytes().to_vec(), value, heat: heat[usize::from(special)] }
            };
            (0..400).map(entry).collect()
        };
        let behind = lookup(MapType::ARRAY, 400);
        assert!(among_runs(&array([0, 0])) > behind, "nine runs, and nobody knows which");
        assert!(among_runs(&array([0, 1_000])) > behind);
        let once = |n: usize| {
            let mut entries = array([0, 0]);
            entries[n].heat = 1_000;
            among_runs(&entries)
        };
        assert!(once(10) < behind && once(150) < behind);
        assert!(among_runs(&array([0, 0])[..50]) < 0.0);
    }
}
