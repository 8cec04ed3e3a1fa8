//! Packets without names: addresses are exchanged by a function that keeps common prefixes, and contents are zero.
//!
//! The function is that of Crypto-PAn (Xu, Fan, Ammar and Moon, 2002): each bit is changed or not, as decided by a
//! block cipher from the bits in front of it. Who does not know the key cannot undo it, but common prefixes, ports,
//! lengths and the order of packets remain, from which somebody who knows parts of the traffic may learn.

use std::ops::Range;

use aes::Aes128;
use aes::cipher::{BlockEncrypt as _, KeyInit as _, generic_array::GenericArray};
use rustc_hash::FxHashMap;

use crate::checksum;
use crate::headers::{FramePlaces, NetworkKind, TCP, UDP};

/// Secret that determines the new addresses.
#[derive(Clone)]
pub struct AnonymizerKey(pub [u8; 32]);

/// Exchanges addresses, and clears what packets carry.
pub struct PacketAnonymizer {
    cipher: Aes128,
    /// Bits behind those of an address.
    pad: [u8; 16],
    known: FxHashMap<Box<[u8]>, Box<[u8]>>,
}

impl std::fmt::Debug for PacketAnonymizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketAnonymizer").finish_non_exhaustive()
    }
}

impl PacketAnonymizer {
    /// An anonymizer with this key.
    pub fn new(key: &AnonymizerKey) -> PacketAnonymizer {
        let (first, second) = key.0.split_at(16);
        let cipher = Aes128::new(GenericArray::from_slice(first));
        let mut pad = GenericArray::clone_from_slice(second);
        cipher.encrypt_block(&mut pad);
        PacketAnonymizer { cipher, pad: pad.into(), known: FxHashMap::default() }
    }

    /// The new address of up to 16 bytes for an address.
    pub fn address(&mut self, address: &[u8]) -> Vec<u8> {
        if let Some(known) = self.known.get(address) {
            return known.to_vec();
        }
        let mut new = address.to_vec();
        for bit in 0..8 * address.len().min(16) {
            // The bits in front of this one, and those of the pad behind them.
            let mut block = self.pad;
            for (at, byte) in address.iter().enumerate().take(bit / 8 + 1) {
                let kept = (bit - 8 * at).min(8);
                let mask = !(0xffu16 >> kept) as u8;
                block[at] = byte & mask | block[at] & !mask;
            }
            let mut block = GenericArray::from(block);
            self.cipher.encrypt_block(&mut block);
            new[bit / 8] ^= (block[0] >> 7) << (7 - bit % 8);
        }
        self.known.insert(address.into(), new.clone().into());
        new
    }

    /// Removes names from a frame: new addresses, new Ethernet addresses of the same kind, and zeros behind the
    /// headers. Checksums are right.
    pub fn anonymize(&mut self, frame: &mut [u8]) {
        let Some(places) = FramePlaces::find(frame) else { return frame.fill(0) };
        for at in [0, 6] {
            self.replace_station(frame, at);
        }
        for range in places.addresses.iter().flatten() {
            let new = self.address(&frame[range.clone()]);
            frame[range.clone()].copy_from_slice(&new);
        }
        match places.kind {
            NetworkKind::Ipv4 => {
                let header = usize::from(frame[places.network] & 0xf) * 4;
                // Options may have addresses; 1 is an option without effect.
                frame[places.network + 20..places.network + header].fill(1);
                clear(frame, payload(frame, &places, places.network + header));
            }
            NetworkKind::Ipv6 => clear(frame, payload(frame, &places, places.network + 40)),
            NetworkKind::Arp => {
                for at in [places.network + 8, places.network + 18] {
                    self.replace_station(frame, at);
                }
                clear(frame, places.end..frame.len());
            }
            NetworkKind::Other => clear(frame, places.network..frame.len()),
        }
        checksum::renew(frame, &places);
    }

    /// Replaces an Ethernet address: by a local one, unless it is a group's, whose first byte stays.
    fn replace_station(&mut self, frame: &mut [u8], at: usize) {
        let Some(station) = frame.get(at..at + 6).filter(|station| station.iter().any(|byte| *byte != 0xff))
        else {
            return;
        };
        let is_none = station.iter().all(|byte| *byte == 0);
        let mut new = self.address(station);
        if !is_none {
            new[0] = if station[0] & 1 == 1 { station[0] } else { 0x02 };
            frame[at..at + 6].copy_from_slice(&new);
        }
    }
}

fn clear(frame: &mut [u8], range: Range<usize>) {
    if let Some(bytes) = frame.get_mut(range) {
        bytes.fill(0);
    }
}

/// Contents of a packet: all behind the transport header, or behind the network header if there is no known one.
fn payload(frame: &[u8], places: &FramePlaces, network_end: usize) -> Range<usize> {
    let header = match (places.transport.filter(|_| places.has_ports), places.protocol) {
        (Some(at), UDP) => at + 8,
        // Options of TCP have times, which tell machines apart.
        (Some(at), TCP) => at + 20,
        _ => network_end,
    };
    header.min(frame.len())..frame.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymizer() -> PacketAnonymizer {
        PacketAnonymizer::new(&AnonymizerKey(std::array::from_fn(|at| (at * 7 + 1) as u8)))
    }

    fn common_bits(a: &[u8], b: &[u8]) -> u32 {
        let differing = a.iter().zip(b).enumerate().find(|(_, (a, b))| a != b);
        differing.map_or(8 * a.len() as u32, |(at, (a, b))| 8 * at as u32 + (a ^ b).leading_zeros())
    }

    /// The example of Crypto-PAn's authors: its sample key and the first lines of its sample trace.
    #[test]
    fn addresses_are_those_of_the_reference_implementation() {
        let key = [
            21, 34, 23, 141, 51, 164, 207, 128, 19, 10, 91, 22, 73, 144, 125, 16, 216, 152, 143, 131, 121,
            121, 101, 39, 98, 87, 76, 45, 42, 132, 34, 2,
        ];
        let mut anonymizer = PacketAnonymizer::new(&AnonymizerKey(key));
        for (address, expected) in [
            ([128, 11, 68, 132], [135, 242, 180, 132]),
            ([129, 118, 74, 4], [134, 136, 186, 123]),
            ([130, 132, 252, 244], [133, 68, 164, 234]),
            ([141, 223, 7, 43], [141, 167, 8, 160]),
        ] {
            assert_eq!(anonymizer.address(&address), expected);
        }
    }

    #[test]
    fn common_prefixes_stay_and_nothing_else() {
        let mut anonymizer = anonymizer();
        let mut rng = millstream_rng::Rng::new(3);
        for _ in 0..200 {
            let one = rng.next_u32();
            let other = one ^ rng.next_u32() >> rng.below(32);
            let [new_one, new_other] = [one, other].map(|address| anonymizer.address(&address.to_be_bytes()));
            let before = common_bits(&one.to_be_bytes(), &other.to_be_bytes());
            assert_eq!(common_bits(&new_one, &new_other), before);
        }
        let long: Vec<Vec<u8>> =
            [1, 2].map(|last| anonymizer.address(&[&[7; 15][..], &[last]].concat())).into();
        assert_eq!(common_bits(&long[0], &long[1]), 126);
    }

    #[test]
    fn headers_stay_and_contents_are_cleared() {
        let mut frame = vec![0xaa; 80];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..34].copy_from_slice(&[0x45, 0, 0, 66, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..38].copy_from_slice(&[0, 80, 1, 2]);
        let before = frame.clone();
        let mut anonymizer = anonymizer();
        anonymizer.anonymize(&mut frame);
        assert_eq!((frame.len(), &frame[12..24], &frame[34..38]), (80, &before[12..24], &before[34..38]));
        assert!(frame[54..].iter().all(|byte| *byte == 0));
        assert!(frame[26..34] != before[26..34] && frame[..12] != before[..12]);
        assert_eq!(common_bits(&frame[26..30], &frame[30..34]), 30);
        // What is cut, or no frame, does not fail.
        for length in 0..80 {
            anonymizer.anonymize(&mut before[..length].to_vec());
        }
    }
}
