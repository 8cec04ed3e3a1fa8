//! A candidate that differs, as a file: everything needed to reproduce it.

use std::io;
use std::path::{Path, PathBuf};

use millstream_lab::differential::compare::{ObservedDifference, SortedEntries};
use millstream_object::MapId;
use serde::Serialize;

use super::ReplayCase;
use super::sample::PacketSample;
use super::sandbox::CopiedMap;

/// The version of the files.
pub const SCHEMA: u32 = 1;
/// Entries written for a map, at most.
const ENTRIES: usize = 4096;
/// Packets written, at most: the last ones.
const PACKETS: usize = 1024;

/// A candidate that differs from the original. Bytes are in hexadecimal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReplayMismatch {
    schema: u32,
    /// The program.
    program: String,
    /// The difference, the original's result first.
    pub observable: ObservedDifference,
    /// The packets up to the one that showed it.
    packets: Vec<MismatchPacket>,
    /// Contents of the maps before.
    maps: Vec<MismatchMap>,
    /// The code of the candidate, a slot each.
    candidate: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct MismatchPacket {
    packet: String,
    context: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct MismatchMap {
    name: String,
    /// Number of its entries; not all need be here.
    entries: usize,
    contents: Vec<(String, String)>,
}

impl ReplayMismatch {
    pub(super) fn new(
        case: &ReplayCase<'_, '_>,
        observable: ObservedDifference,
        packets: Vec<PacketSample>,
        copied: &[CopiedMap],
    ) -> ReplayMismatch {
        let object = case.compiler.object();
        let name = |id: MapId| object.maps[id.index()].name.clone();
        let mut maps: Vec<MismatchMap> = copied.iter().map(|c| table(c.name(object), &c.contents)).collect();
        for &map in &case.specialised {
            let id = millstream_specializer::variant::object_map(map);
            let held = case.session.map(id).and_then(|m| m.entries().ok());
            if let Some(held) = held.filter(|_| !maps.iter().any(|t| t.name == name(id))) {
                let contents = held.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
                maps.push(table(name(id), &contents));
            }
        }
        let skipped = packets.len().saturating_sub(PACKETS);
        let packet = |s: &PacketSample| MismatchPacket {
            packet: hex::encode(&s.packet),
            context: hex::encode(&s.context),
        };
        ReplayMismatch {
            schema: SCHEMA,
            program: case.compiler.described().name.clone(),
            observable,
            packets: packets[skipped..].iter().map(packet).collect(),
            maps,
            candidate: case.candidate.insns.iter().map(|i| hex::encode(i.to_bytes())).collect(),
        }
    }

    /// Writes a new file into a directory, which is created; returns its path.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self, directory: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(directory)?;
        let text = serde_json::to_string_pretty(self)?;
        for n in 0u32.. {
            let path = directory.join(format!("difference-{}-{n}.json", self.program));
            match std::fs::File::create_new(&path) {
                Ok(mut file) => {
                    io::Write::write_all(&mut file, text.as_bytes())?;
                    return Ok(path);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

fn table(name: String, contents: &SortedEntries) -> MismatchMap {
    let shown = contents.iter().take(ENTRIES).map(|(k, v)| (hex::encode(k), hex::encode(v))).collect();
    MismatchMap { name, entries: contents.len(), contents: shown }
}
