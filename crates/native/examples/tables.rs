//! Look-ups at random in a large table: the plain loop over a batch beside those that fetch ahead. Figures for `bench/README.md`.
//!
//!     cargo run --release -p millstream-native --example tables -- hash|cuckoo [ENTRIES]
//!     cargo run --release -p millstream-native --example tables -- prefixes FILE
//!
//! Hash tables have keys of 16 bytes, and an index by open addressing or of cuckoo buckets; FILE has IPv6 prefixes, one a line (others are left out), and addresses are drawn
//! below them. Time is that of batches of 64 in the program; variants take turns, and the medians of their rounds are
//! printed as JSON.

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::Ipv6Addr;
use std::process::ExitCode;
use std::time::Instant;

use common::{look_up, word};
use millstream_interp::MapKind;
use millstream_ir::{Func, MapDecl, Module};
use millstream_native::{Ahead, Batch, Engine, Options, Pattern, Template};
use millstream_programs::rng::Rng;

/// `BPF_F_NO_PREALLOC` and `BPF_F_RDONLY_PROG`.
const TRIE: u32 = 1 | 1 << 7;
/// More than 512 MiB with the index.
const USUAL_ENTRIES: u64 = 12_000_000;
const USUAL_CUCKOO: u64 = 16_000_000;
const BATCH: usize = 64;
const BATCHES: usize = 4_000;
const ROUNDS: usize = 11;

/// A table, its entries, and keys that are looked up.
struct Table {
    kind: MapKind,
    flags: u32,
    template: Option<Template>,
    entries: Vec<Vec<u8>>,
    /// Draws a key.
    draw: fn(&[Vec<u8>], &mut Rng) -> Vec<u8>,
}

/// The value of the key that the packet begins with, or 1 if it is not there.
fn program(table: &Table) -> (Module, Func) {
    let declaration = MapDecl {
        name: "table".into(),
        kind: table.kind as u32,
        key_size: table.entries[0].len() as u32,
        value_size: 8,
        max_entries: table.entries.len() as u32,
        flags: table.flags,
        global: None,
        inner: None,
    };
    look_up(declaration, |at, _, value| word(at, value))
}

fn engine(table: &Table, ahead: Ahead) -> Result<Engine, millstream_native::Error> {
    let (module, func) = program(table);
    let tables = table.template.map(|template| ("table".to_owned(), template)).into_iter().collect();
    let mut engine = Engine::of_module(module, func, &Options { ahead, tables, ..Options::default() })?;
    if let Some(map) = engine.map("table") {
        for key in &table.entries {
            map.update(key, &2u64.to_le_bytes(), 0, None);
        }
    }
    Ok(engine)
}

/// Nanoseconds a packet of one round: the median of its batches.
fn round(engine: &mut Engine, batch: &mut Batch, table: &Table, rng: &mut Rng) -> f64 {
    let (mut times, mut found) = (Vec::with_capacity(BATCHES), 0);
    for _ in 0..BATCHES {
        batch.clear();
        for _ in 0..BATCH {
            let mut frame = (table.draw)(&table.entries, rng);
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

fn hash(entries: u64, template: Template) -> Table {
    let mut rng = Rng::new(5);
    let key = |rng: &mut Rng| [rng.next_u64().to_le_bytes(), rng.next_u64().to_le_bytes()].concat();
    let entries = (0..entries).map(|_| key(&mut rng)).collect();
    let draw = |entries: &[Vec<u8>], rng: &mut Rng| entries[rng.below(entries.len() as u64) as usize].clone();
    Table { kind: MapKind::Hash, flags: 0, template: Some(template), entries, draw }
}

fn prefixes(text: &str) -> Table {
    let entry = |line: &str| {
        let (address, bits) = line.trim().split_once('/')?;
        let (address, bits) = (address.parse::<Ipv6Addr>().ok()?, bits.parse::<u32>().ok()?);
        Some([&bits.to_le_bytes()[..], &address.octets()].concat())
    };
    let draw = |entries: &[Vec<u8>], rng: &mut Rng| {
        let mut key = entries[rng.below(entries.len() as u64) as usize].clone();
        let bits = u32::from_le_bytes([key[0], key[1], key[2], key[3]]);
        for (at, byte) in key[4..].iter_mut().enumerate() {
            let kept = bits.saturating_sub(8 * at as u32).min(8);
            *byte |= (rng.below(256) as u32 & (0xff >> kept)) as u8;
        }
        key[..4].copy_from_slice(&128u32.to_le_bytes());
        key
    };
    let entries = text.lines().filter_map(entry).collect();
    Table { kind: MapKind::LpmTrie, flags: TRIE, template: None, entries, draw }
}

fn table(args: &[String]) -> Result<Table, String> {
    let number = |count: &String| count.parse().map_err(|e| format!("{count}: {e}"));
    match args {
        [kind] if kind == "hash" => Ok(hash(USUAL_ENTRIES, Template::Open)),
        [kind] if kind == "cuckoo" => Ok(hash(USUAL_CUCKOO, Template::Cuckoo)),
        [kind, count] if kind == "hash" => Ok(hash(number(count)?, Template::Open)),
        [kind, count] if kind == "cuckoo" => Ok(hash(number(count)?, Template::Cuckoo)),
        [kind, path] if kind == "prefixes" => {
            let table = prefixes(&std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?);
            if table.entries.is_empty() { Err(format!("{path}: no IPv6 prefix")) } else { Ok(table) }
        }
        _ => Err("expected `hash [ENTRIES]`, `cuckoo [ENTRIES]` or `prefixes FILE`".into()),
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

fn measure(table: &Table) -> Result<(), String> {
    let ahead = |packets, pattern| Ahead { packets, pattern, from: 0, always: true };
    let variants = [
        ("plain", ahead(0, Pattern::Pipelined)),
        ("pipelined 2", ahead(2, Pattern::Pipelined)),
        ("pipelined 4", ahead(4, Pattern::Pipelined)),
        ("pipelined 8", ahead(8, Pattern::Pipelined)),
        ("pipelined 16", ahead(16, Pattern::Pipelined)),
        ("groups of 16", ahead(16, Pattern::Grouped)),
        ("stage by stage", ahead(BATCH as u32, Pattern::Grouped)),
    ];
    let mut engines = Vec::new();
    for (_, ahead) in &variants {
        engines.push(engine(table, *ahead).map_err(|e| e.to_string())?);
    }
    let mut batch = Batch::new(BATCH).map_err(|e| e.to_string())?;
    let mut rng = Rng::new(9);
    let mut times = vec![Vec::new(); variants.len()];
    for turn in 0..ROUNDS {
        for step in 0..variants.len() {
            let at = (turn + step) % variants.len();
            times[at].push(round(&mut engines[at], &mut batch, table, &mut rng));
        }
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    println!("{{\n  \"entries\": {},", table.entries.len());
    for (at, ((name, _), ns)) in variants.iter().zip(&medians).enumerate() {
        let comma = if at + 1 == variants.len() { "" } else { "," };
        println!("  \"{name}\": {{\"ns\": {ns:.1}, \"ratio\": {:.2}}}{comma}", medians[0] / ns);
    }
    println!("}}");
    Ok(())
}
