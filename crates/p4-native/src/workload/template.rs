//! A packet, and the bits of it that the keys of tables are made of.

use std::sync::Arc;

use millstream_ir::Map;
use millstream_p4_lower::LoweredProgram;
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchError, SwitchExecutor};

/// Bytes of usual packets, without the frame check sequence: 64 and, of IPv6, 78 (APSys'17, section 3.1).
const LENGTHS: [usize; 2] = [64, 78];
/// Longest packet whose bits are tried.
const MOST_BYTES: usize = 256;

/// Bits of a packet and of a table's key that are equal: positions from the first bit of the first byte.
struct KeyBits {
    map: Map,
    /// Bit of the packet, bit of the key.
    pairs: Vec<(usize, usize)>,
}

/// A packet with the places of keys.
pub(super) struct PacketTemplate {
    pub(super) packet: Vec<u8>,
    keys: Vec<KeyBits>,
}

fn bit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 != 0)
}

fn set_bit(bytes: &mut [u8], at: usize, value: bool) {
    if let Some(byte) = bytes.get_mut(at / 8) {
        let mask = 1 << (7 - at % 8);
        *byte = if value { *byte | mask } else { *byte & !mask };
    }
}

/// Usual packets: UDP over IPv4 and over IPv6.
fn usual_packets() -> Vec<Vec<u8>> {
    let mut v4 = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    v4.extend([0x45, 0, 0, 50, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 30, 0, 0]);
    let sum: u32 = v4[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    v4[24..26].copy_from_slice(&(!(sum as u16).wrapping_add((sum >> 16) as u16)).to_be_bytes());
    v4.resize(LENGTHS[0], 0);
    let mut v6 = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 17, 64];
    for host in [1, 2] {
        v6.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    v6.extend([0, 7, 0, 9, 0, 24, 0, 0]);
    v6.resize(LENGTHS[1], 0);
    vec![v4, v6]
}

impl PacketTemplate {
    /// The packet, or that of the usual ones by which most of the maps are looked up in; and the number of a map in
    /// which there is no look-up.
    pub(super) fn find(
        program: &Arc<LoweredProgram>,
        maps: &[Map],
        packet: Option<Vec<u8>>,
    ) -> Result<(PacketTemplate, Option<usize>), SwitchError> {
        let mut switch = Switch::new(Arc::clone(program), InterpreterExecutor::new(Arc::clone(program)))?;
        switch.executor().record_lookups(true);
        let mut best: Option<(PacketTemplate, Option<usize>)> = None;
        for packet in packet.map_or_else(usual_packets, |packet| vec![packet]) {
            let template = PacketTemplate::of(&mut switch, maps, packet)?;
            let missing = template.keys.iter().position(|key| key.pairs.is_empty());
            if missing.is_none() || best.is_none() {
                best = Some((template, missing));
            }
        }
        Ok(best.unwrap_or((PacketTemplate { packet: Vec::new(), keys: Vec::new() }, Some(0))))
    }

    fn of(
        switch: &mut Switch<InterpreterExecutor>,
        maps: &[Map],
        packet: Vec<u8>,
    ) -> Result<PacketTemplate, SwitchError> {
        let base = looked_up(switch, maps, &packet)?;
        let mut keys: Vec<KeyBits> =
            maps.iter().map(|map| KeyBits { map: *map, pairs: Vec::new() }).collect();
        for at in 0..8 * packet.len().min(MOST_BYTES) {
            let mut changed = packet.clone();
            set_bit(&mut changed, at, !bit(&packet, at));
            let found = looked_up(switch, maps, &changed)?;
            for ((base, found), key) in base.iter().zip(&found).zip(&mut keys) {
                let (Some(base), Some(found)) = (base, found) else { continue };
                let mut differing = (0..8 * base.len()).filter(|at| bit(base, *at) != bit(found, *at));
                if let (Some(in_key), None) = (differing.next(), differing.next()) {
                    key.pairs.push((at, in_key));
                }
            }
        }
        Ok(PacketTemplate { packet, keys })
    }

    /// Writes a key of a table into a packet.
    pub(super) fn put(&self, packet: &mut [u8], map: Map, key: &[u8]) {
        for (in_packet, in_key) in
            self.keys.iter().filter(|bits| bits.map == map).flat_map(|bits| &bits.pairs)
        {
            set_bit(packet, *in_packet, bit(key, *in_key));
        }
    }
}

/// Keys of the first look-ups of a packet in these maps.
fn looked_up(
    switch: &mut Switch<InterpreterExecutor>,
    maps: &[Map],
    packet: &[u8],
) -> Result<Vec<Option<Vec<u8>>>, SwitchError> {
    switch.receive(0, packet)?;
    switch.events.clear();
    let found = switch.executor().take_lookups();
    Ok(maps.iter().map(|map| Some(found.iter().find(|lookup| lookup.map == *map)?.key.clone())).collect())
}
