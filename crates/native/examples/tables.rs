//! Random look-ups in a large table: the plain loop over a batch beside the loops that fetch ahead. Figures
//! for `bench/README.md`.
//!
//!     cargo run --release -p millstream-native --example tables -- hash|robin-hood|cuckoo [ENTRIES]
//!     cargo run --release -p millstream-native --example tables -- keys \
//!         open|robin-hood|cuckoo|open-keys|robin-hood-keys|cuckoo-keys|open-slots|robin-hood-slots|cuckoo-slots \
//!         BYTES ENTRIES
//!     cargo run --release -p millstream-native --example tables -- prefixes|packed FILE
//!     cargo run --release -p millstream-native --example tables -- drawn \
//!         multibit|packed|lengths|list BYTES ENTRIES LENGTH[,LENGTH...]
//!
//! Hash tables have keys of 16 bytes, and an index with open addressing or cuckoo buckets. FILE has IPv6
//! prefixes, one per line (other lines are ignored); they become a trie of nodes with a word for each place,
//! or a packed one, and addresses are drawn below them. `keys` has keys of BYTES bytes. `drawn` generates
//! prefixes of addresses of BYTES bytes, with the given lengths in equal numbers. Times are those of batches
//! of 64 in the program; variants take turns. The medians of their rounds are printed as JSON, together with
//! how much of each table the system has put into large pages.

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::HashSet;
use std::net::Ipv6Addr;
use std::process::ExitCode;
use std::time::Instant;

use common::{look_up, word};
use millstream_interp::MapKind;
use millstream_ir::{Func, MapDecl, Module};
use millstream_native::{HashTemplate, LpmTemplate, NativeEngine, NativeOptions, PacketBatch, Schedule};
use millstream_rng::Rng;

/// `BPF_F_NO_PREALLOC` and `BPF_F_RDONLY_PROG`.
const TRIE: u32 = 1 | 1 << 7;
/// More than 512 MiB with the index.
const USUAL_ENTRIES: u64 = 12_000_000;
const USUAL_CUCKOO: u64 = 16_000_000;
const BATCH: usize = 64;
const BATCHES: usize = 4_000;
const ROUNDS: usize = 11;

/// A table, its entries, and the keys to look up.
struct BenchTable {
    kind: MapKind,
    flags: u32,
    template: Option<HashTemplate>,
    trie: Option<LpmTemplate>,
    keys: BenchKeys,
}

/// The keys of a table.
enum BenchKeys {
    /// This many keys, computed from their number: memory is for tables, and their large pages, too.
    Numbered(u64),
    /// This many keys of this many bytes.
    Sized(u64, usize),
    /// Prefixes.
    Prefixes(Vec<Vec<u8>>),
}

impl BenchKeys {
    fn len(&self) -> u64 {
        match self {
            BenchKeys::Numbered(count) | BenchKeys::Sized(count, _) => *count,
            BenchKeys::Prefixes(all) => all.len() as u64,
        }
    }

    /// The key of an entry.
    fn get(&self, at: u64) -> Vec<u8> {
        match self {
            BenchKeys::Numbered(_) => {
                let mut rng = Rng::new(at + 1);
                [rng.next_u64().to_le_bytes(), rng.next_u64().to_le_bytes()].concat()
            }
            // Odd, so that no two are alike.
            BenchKeys::Sized(_, bytes) => {
                let mut key = (at as u32).wrapping_mul(0x9e37_79b1).to_le_bytes().to_vec();
                let mut rng = Rng::new(at + 1);
                while key.len() < *bytes {
                    key.extend(rng.next_u64().to_le_bytes());
                }
                key.truncate(*bytes);
                key
            }
            BenchKeys::Prefixes(all) => all[at as usize].clone(),
        }
    }

    /// A key to look up: that of some entry, or an address below some prefix.
    fn draw(&self, rng: &mut Rng) -> Vec<u8> {
        let mut key = self.get(rng.below(self.len()));
        if matches!(self, BenchKeys::Prefixes(_)) {
            let bits = u32::from_le_bytes([key[0], key[1], key[2], key[3]]);
            for (at, byte) in key[4..].iter_mut().enumerate() {
                let kept = bits.saturating_sub(8 * at as u32).min(8);
                *byte |= (rng.below(256) as u32 & (0xff >> kept)) as u8;
            }
            let all = 8 * (key.len() as u32 - 4);
            key[..4].copy_from_slice(&all.to_le_bytes());
        }
        key
    }
}

/// The value of the key that the packet begins with, or 1 if it is not there.
fn program(table: &BenchTable) -> (Module, Func) {
    let declaration = MapDecl {
        name: "table".into(),
        kind: table.kind as u32,
        key_size: table.keys.get(0).len() as u32,
        value_size: 8,
        max_entries: table.keys.len() as u32,
        flags: table.flags,
        global: None,
        inner: None,
    };
    look_up(declaration, |at, _, value| word(at, value))
}

fn engine(table: &BenchTable, schedule: &str) -> Result<NativeEngine, millstream_native::NativeError> {
    let (module, func) = program(table);
    let mut schedule: Schedule = schedule.parse().unwrap_or_default();
    (schedule.from, schedule.trials) = (0, false);
    let name = || "table".to_owned();
    let tables = table.template.map(|template| (name(), template)).into_iter().collect();
    let tries = table.trie.map(|trie| (name(), trie)).into_iter().collect();
    let mut engine = NativeEngine::of_module(
        module,
        func,
        &NativeOptions { schedule, tables, tries, ..NativeOptions::default() },
    )?;
    if let Some(map) = engine.map("table") {
        for at in 0..table.keys.len() {
            map.update(&table.keys.get(at), &2u64.to_le_bytes(), 0, None);
        }
    }
    Ok(engine)
}

/// Nanoseconds per packet of one round: the median of its batches.
fn round(engine: &mut NativeEngine, batch: &mut PacketBatch, table: &BenchTable, rng: &mut Rng) -> f64 {
    let (mut times, mut found) = (Vec::with_capacity(BATCHES), 0);
    for _ in 0..BATCHES {
        batch.clear();
        for _ in 0..BATCH {
            let mut frame = table.keys.draw(rng);
            frame.resize(64, 0);
            batch.push(&frame, 1);
        }
        let start = Instant::now();
        engine.run(batch);
        times.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
        found += (0..batch.len()).filter(|&at| batch.verdict(at) == 2).count();
    }
    assert_eq!(found, BATCHES * BATCH, "every key is there");
    median(&mut times)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn hash(entries: u64, template: HashTemplate) -> BenchTable {
    BenchTable {
        kind: MapKind::Hash,
        flags: 0,
        template: Some(template),
        trie: None,
        keys: BenchKeys::Numbered(entries),
    }
}

fn prefixes(text: &str, trie: LpmTemplate) -> BenchTable {
    let entry = |line: &str| {
        let (address, bits) = line.trim().split_once('/')?;
        let (address, bits) = (address.parse::<Ipv6Addr>().ok()?, bits.parse::<u32>().ok()?);
        Some([&bits.to_le_bytes()[..], &address.octets()].concat())
    };
    routes(text.lines().filter_map(entry).collect(), trie)
}

fn routes(prefixes: Vec<Vec<u8>>, trie: LpmTemplate) -> BenchTable {
    let keys = BenchKeys::Prefixes(prefixes);
    BenchTable { kind: MapKind::LpmTrie, flags: TRIE, template: None, trie: Some(trie), keys }
}

/// This many distinct prefixes, which take the lengths in turn, of addresses of this many bytes.
fn drawn(bytes: usize, entries: u64, lengths: &[u32], trie: LpmTemplate) -> BenchTable {
    let (mut rng, mut seen) = (Rng::new(5), HashSet::new());
    let mut prefix = |at: u64| loop {
        let bits = lengths[at as usize % lengths.len()];
        let mut key = bits.to_le_bytes().to_vec();
        let kept = |byte: u32| bits.saturating_sub(8 * byte).min(8);
        key.extend((0..bytes as u32).map(|byte| rng.below(256) as u8 & !(0xffu32 >> kept(byte)) as u8));
        if seen.insert(key.clone()) {
            return key;
        }
    };
    let all = (0..entries).map(&mut prefix).collect();
    routes(all, trie)
}

fn index(name: &str) -> Result<HashTemplate, String> {
    let all = HashTemplate::ALL;
    let named = all.into_iter().find(|template| template.name() == name);
    named.ok_or_else(|| format!("`{name}` is none of {}", all.map(HashTemplate::name).join(", ")))
}

fn table(args: &[String]) -> Result<BenchTable, String> {
    let number = |count: &String| count.parse().map_err(|e| format!("{count}: {e}"));
    match args {
        [kind] if kind == "hash" => Ok(hash(USUAL_ENTRIES, HashTemplate::Open)),
        [kind] if kind == "robin-hood" => Ok(hash(USUAL_ENTRIES, HashTemplate::RobinHood)),
        [kind] if kind == "cuckoo" => Ok(hash(USUAL_CUCKOO, HashTemplate::Cuckoo)),
        [kind, count] if kind == "hash" => Ok(hash(number(count)?, HashTemplate::Open)),
        [kind, count] if kind == "robin-hood" => Ok(hash(number(count)?, HashTemplate::RobinHood)),
        [kind, count] if kind == "cuckoo" => Ok(hash(number(count)?, HashTemplate::Cuckoo)),
        [kind, template, bytes, count] if kind == "keys" => {
            let (bytes, count) = (number(bytes)?, number(count)?);
            if !(1..=60).contains(&bytes) || count == 0 || count > 1 << (8 * bytes).min(31) {
                return Err(format!("there are not {count} keys of {bytes} bytes, or these are not 1 to 60"));
            }
            let keys = BenchKeys::Sized(count, bytes as usize);
            Ok(BenchTable { keys, ..hash(count, index(template)?) })
        }
        [kind, path] if kind == "prefixes" || kind == "packed" => {
            let trie = if kind == "packed" { LpmTemplate::Packed } else { LpmTemplate::Multibit };
            let table = prefixes(&std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?, trie);
            if table.keys.len() == 0 { Err(format!("{path}: no IPv6 prefix")) } else { Ok(table) }
        }
        [kind, trie, bytes, count, lengths] if kind == "drawn" => {
            let trie = match trie.as_str() {
                "multibit" => LpmTemplate::Multibit,
                "packed" => LpmTemplate::Packed,
                "lengths" => LpmTemplate::Lengths,
                "list" => LpmTemplate::List,
                other => return Err(format!("`{other}` is not multibit, packed, lengths or list")),
            };
            let lengths: Result<Vec<u32>, _> = lengths.split(',').map(str::parse).collect();
            let lengths = lengths.map_err(|e| e.to_string())?;
            Ok(drawn(number(bytes)? as usize, number(count)?, &lengths, trie))
        }
        _ => Err("expected `hash [ENTRIES]`, `robin-hood [ENTRIES]`, `cuckoo [ENTRIES]`, \
            `keys TEMPLATE BYTES ENTRIES`, `prefixes FILE`, `packed FILE` or \
            `drawn multibit|packed|lengths|list BYTES ENTRIES LENGTHS`"
            .into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match table(&args).and_then(|table| measure(&table)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Megabytes of memory of this process, and how many of these are in large pages.
fn memory() -> Result<[f64; 2], String> {
    const SMAPS: &str = "/proc/self/smaps_rollup";
    let text = std::fs::read_to_string(SMAPS).map_err(|e| format!("{SMAPS}: {e}"))?;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok().map(|kilobytes| kilobytes / 1024.0)
    };
    ["Rss:", "AnonHugePages:"]
        .map(of)
        .into_iter()
        .collect::<Option<Vec<f64>>>()
        .and_then(|both| both.try_into().ok())
        .ok_or_else(|| format!("{SMAPS}: no sizes"))
}

fn measure(table: &BenchTable) -> Result<(), String> {
    let variants = [
        ("plain", "fetch=nothing,pattern=packets"),
        ("by default", "pattern=fit"),
        ("pipelined 4", "pattern=packets,distance=4"),
        ("pipelined 8", "pattern=packets,distance=8"),
        ("pipelined 16", "pattern=packets,distance=16"),
        ("stage by stage", "pattern=groups,sub-batch=all"),
        ("stage by stage, unrolled", "pattern=groups,sub-batch=all,unroll=4"),
        ("groups of 16", "pattern=groups,sub-batch=16"),
        ("pipelined groups of 8", "pattern=pipelined-groups,sub-batch=8"),
        ("pipelined groups of 16", "pattern=pipelined-groups,sub-batch=16"),
    ];
    let (mut engines, mut large) = (Vec::new(), Vec::new());
    // Memory that the first engine takes beside its table must not be counted with that table.
    drop(engine(&drawn(4, 1, &[8], LpmTemplate::Multibit), variants[0].1).map_err(|e| e.to_string())?);
    for (_, schedule) in &variants {
        let [before, large_before] = memory()?;
        engines.push(engine(table, schedule).map_err(|e| e.to_string())?);
        let [after, large_after] = memory()?;
        large.push((large_after - large_before) / (after - before).max(1.0));
    }
    let mut batch = PacketBatch::new(BATCH).map_err(|e| e.to_string())?;
    let mut rng = Rng::new(9);
    let mut times = vec![Vec::new(); variants.len()];
    for turn in 0..ROUNDS {
        for step in 0..variants.len() {
            let at = (turn + step) % variants.len();
            times[at].push(round(&mut engines[at], &mut batch, table, &mut rng));
        }
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    println!("{{\n  \"entries\": {},", table.keys.len());
    for (at, ((name, _), ns)) in variants.iter().zip(&medians).enumerate() {
        let comma = if at + 1 == variants.len() { "" } else { "," };
        println!(
            "  \"{name}\": {{\"ns\": {ns:.1}, \"ratio\": {:.2}, \"in_large_pages\": {:.2}}}{comma}",
            medians[0] / ns,
            large[at]
        );
    }
    println!("}}");
    Ok(())
}
