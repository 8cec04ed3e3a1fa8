//! A peer's tables and frames as files, for `millstream native`: the same content that is measured in the
//! kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use millstream_programs::traffic::FlowLocality;
use serde::Serialize;

use super::tables::PeerProgram;
use super::{DRAWS, PeersError, SEED};

/// Ports that packets come in by, and another: `--ifindex` of `millstream native`, and the next one.
const PORTS: [u32; 2] = [1, 2];

/// An entry as `bpftool -j map dump` has it.
#[derive(Serialize)]
struct BpftoolEntry {
    key: Vec<String>,
    value: Vec<String>,
}

/// Description of the written files, as printed.
#[derive(Serialize)]
struct FileManifest {
    schema: u32,
    peer: &'static str,
    workload: String,
    /// File of each map.
    maps: BTreeMap<&'static str, String>,
    /// Entries of maps whose size the peer leaves to its loader.
    max_entries: BTreeMap<&'static str, u32>,
    /// Capture file of the frames, in the order in which they are sent.
    frames: String,
}

/// Writes a file a map and a capture file into a directory, and prints which.
pub(crate) fn write(peer: &PeerProgram, directory: &Path) -> Result<(), PeersError> {
    let load = (peer.workload)(PORTS, FlowLocality::HIGH)?;
    if !load.kernel.is_empty() {
        return Err("its tables are the kernel's: there is nothing to be written".into());
    }
    fs::create_dir_all(directory)?;
    let mut tables: BTreeMap<&'static str, Vec<BpftoolEntry>> = BTreeMap::new();
    let text = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:#04x}")).collect();
    for entry in &load.theirs {
        let (key, value) = (text(&entry.key), text(&entry.value));
        tables.entry(entry.map).or_default().push(BpftoolEntry { key, value });
    }
    let path = |name: &str| directory.join(name).display().to_string();
    let mut maps = BTreeMap::new();
    for (map, entries) in tables {
        let file = path(&format!("{map}.json"));
        fs::write(&file, serde_json::to_string(&entries)?)?;
        maps.insert(map, file);
    }
    let order = load.flows.sequence(SEED, DRAWS);
    let frames = path("frames.pcap");
    fs::write(&frames, capture(order.iter().map(|&flow| &load.flows.packets[flow as usize][..])))?;
    let written = FileManifest {
        schema: 1,
        peer: peer.name,
        workload: super::described(&load),
        maps,
        max_entries: peer.sizes.iter().copied().collect(),
        frames,
    };
    println!("{}", serde_json::to_string_pretty(&written)?);
    Ok(())
}

/// A classic capture file of Ethernet frames, without times (draft-ietf-opsawg-pcap).
fn capture<'f>(frames: impl Iterator<Item = &'f [u8]>) -> Vec<u8> {
    const HEADER: [u32; 6] = [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65_535, 1];
    let mut out: Vec<u8> = HEADER.iter().flat_map(|word| word.to_le_bytes()).collect();
    for frame in frames {
        let length = frame.len() as u32;
        out.extend([0, 0, length, length].iter().flat_map(|word: &u32| word.to_le_bytes()));
        out.extend(frame);
    }
    out
}
