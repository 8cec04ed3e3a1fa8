//! Random contents of maps, and keys that a program asks for.
//!
//! A table that no packet hits tests nothing. So the program is first run by the interpreter on the packets
//! to come, the keys that it looked up in vain are put into the tables, and again, since a found entry leads
//! to further look-ups.

use millstream_interp::{ContextKind, bytecode::BytecodeInterpreter};
use millstream_isa::MapType;
use millstream_kernel::{KernelMap, UpdateMode};
use millstream_loader::Session;
use millstream_object::MapId;
use millstream_rng::Rng;

use super::frames::FuzzValues;
use crate::error::Result;
use crate::machine::{InterpreterModel, model};

/// Entries a map that are drawn at random.
const DRAWN: u64 = 32;
/// Entries a map that are put where the program looked, in one go.
const LEARNT: usize = 64;
/// Rounds in which the program is run to find the keys that it looks up.
const GOES: usize = 4;
/// The loopback, which leads nowhere and is there everywhere.
const LOOPBACK: u32 = 1;
/// Instructions that one packet may take in the interpreter.
const FUEL: u64 = 1 << 20;

/// An entry of a map, by the object's number of it.
#[derive(Clone, Debug)]
pub(super) struct TableEntry {
    pub(super) map: usize,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// Writes entries. The kernel refuses an entry, such as one more than a map holds, for all replicas alike.
pub(super) fn write(session: &Session<'_>, entries: &[TableEntry]) {
    for entry in entries {
        let Some(map) = session.map(MapId(entry.map as u32)) else { continue };
        if let Err(e) = map.update_all_cpus(&entry.key, &entry.value, UpdateMode::Any) {
            tracing::trace!("{e}");
        }
    }
}

/// Random entries for all maps that user space fills.
pub(super) fn draw(session: &Session<'_>, pool: &FuzzValues, rng: &mut Rng) -> Vec<TableEntry> {
    let mut all = Vec::new();
    for (at, map) in filled(session) {
        let count = DRAWN.min(u64::from(map.info().max_entries));
        for n in 0..count {
            let key = if is_array(map.info().map_type) {
                let far = rng.below(u64::from(map.info().max_entries)) as u32;
                if n < count / 2 { n as u32 } else { far }.to_ne_bytes().to_vec()
            } else {
                key(map, pool, rng)
            };
            all.push(TableEntry { map: at, key, value: value(map, pool, rng) });
        }
    }
    all
}

/// Adds entries under the keys that the program looks up on these packets, and appends them to `entries`.
/// Returns the number of executions of each of its slots; nothing if the interpreter does not model what the
/// program needs.
///
/// # Errors
/// If the maps cannot be read.
pub(super) fn learn(
    session: &Session<'_>,
    slots: &[u64],
    packets: &[Vec<u8>],
    kind: ContextKind,
    (pool, rng): (&FuzzValues, &mut Rng),
    entries: &mut Vec<TableEntry>,
) -> Result<Vec<u64>> {
    let mut visits = vec![0; slots.len()];
    for _ in 0..GOES {
        let Some(InterpreterModel { mut machine, program, maps }) = model(session, slots, kind)? else {
            return Ok(Vec::new());
        };
        machine.visits = std::mem::take(&mut visits);
        machine.maps.missed = Some(Vec::new());
        let interpreter = BytecodeInterpreter::new(std::slice::from_ref(&program));
        for packet in packets {
            machine.fuel = FUEL;
            machine.reset(packet);
            // A packet that the interpreter cannot finish has told its first keys all the same.
            let _ = interpreter.run_context(&mut machine, 0);
        }
        visits = std::mem::take(&mut machine.visits);
        let found = asked_for(machine.maps.missed.unwrap_or_default(), &maps, session, (pool, rng));
        if found.is_empty() {
            break;
        }
        write(session, &found);
        entries.extend(found);
    }
    Ok(visits)
}

/// Entries for some of the missed keys. The others stay missing, for programs that test for a missing entry.
fn asked_for(
    missed: Vec<(millstream_interp::MapId, Vec<u8>)>,
    maps: &[Option<millstream_interp::MapId>],
    session: &Session<'_>,
    (pool, rng): (&FuzzValues, &mut Rng),
) -> Vec<TableEntry> {
    let mut all: Vec<TableEntry> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (at, map) in filled(session).filter(|(_, map)| !is_array(map.info().map_type)) {
        let mut room = LEARNT.min(map.info().max_entries as usize / 2);
        for (id, key) in &missed {
            if maps[at] != Some(*id) || room == 0 || !seen.insert((at, key.clone())) || rng.below(4) == 0 {
                continue;
            }
            room -= 1;
            all.push(TableEntry { map: at, key: key.clone(), value: value(map, pool, rng) });
        }
    }
    all
}

/// The maps that user space fills, by the object's number. Not global data, nor what takes descriptors.
fn filled<'s>(session: &'s Session<'_>) -> impl Iterator<Item = (usize, &'s KernelMap)> {
    session.object().maps.iter().enumerate().filter(|(_, m)| !m.origin.is_global()).filter_map(|(at, _)| {
        let map = session.map(MapId(at as u32))?;
        let kind = map.info().map_type;
        let takes = is_array(kind)
            || matches!(
                kind,
                MapType::HASH
                    | MapType::PERCPU_HASH
                    | MapType::LRU_HASH
                    | MapType::LRU_PERCPU_HASH
                    | MapType::LPM_TRIE
                    | MapType::DEVMAP_HASH
            );
        takes.then_some((at, map))
    })
}

fn is_array(kind: MapType) -> bool {
    matches!(kind, MapType::ARRAY | MapType::PERCPU_ARRAY | MapType::DEVMAP)
}

fn key(map: &KernelMap, pool: &FuzzValues, rng: &mut Rng) -> Vec<u8> {
    let size = map.info().key_size as usize;
    if map.info().map_type == MapType::LPM_TRIE {
        let bits = 8 * (size as u64 - 4);
        let length = if rng.below(2) == 0 { bits } else { rng.below(bits + 1) } as u32;
        return [length.to_ne_bytes().to_vec(), fields(pool, rng, size - 4)].concat();
    }
    fields(pool, rng, size)
}

fn value(map: &KernelMap, pool: &FuzzValues, rng: &mut Rng) -> Vec<u8> {
    let size = map.info().value_size as usize;
    if map.info().map_type.is_devmap() {
        let mut value = LOOPBACK.to_ne_bytes().to_vec();
        value.resize(size, 0);
        return value;
    }
    fields(pool, rng, size)
}

/// Bytes made of fields of usual sizes, each where it would be aligned.
fn fields(pool: &FuzzValues, rng: &mut Rng, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let fits =
            |n: usize| n <= size - bytes.len() && bytes.len().is_multiple_of(n.min(4) & n.wrapping_neg());
        let sizes: Vec<usize> = [1, 2, 4, 6, 8, 16].into_iter().filter(|&n| fits(n)).collect();
        // The larger ones oftener: a key of five bytes is an address and a protocol.
        let largest = sizes.len() as u64;
        let chosen = sizes[rng.below(largest).max(rng.below(largest)) as usize];
        bytes.extend(pool.field(rng, chosen));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_fill_what_is_asked_for() {
        let mut rng = Rng::new(3);
        let pool = FuzzValues::new(&mut rng, Vec::new());
        for size in 1..100 {
            assert_eq!(fields(&pool, &mut rng, size).len(), size);
        }
    }
}
