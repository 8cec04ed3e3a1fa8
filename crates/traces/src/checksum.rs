//! Internet checksums (RFC 1071), changed step by step (RFC 1624) or made anew.

use crate::headers::{FramePlaces, NetworkKind, TCP, UDP, word};

/// Ones' complement sum of words; an odd last byte is the high one of a word.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)));
    words.fold(sum, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

/// A checksum after `old` bytes became `new` ones, both of an even number at an even place.
pub(crate) fn updated(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let sum = add(u32::from(!checksum), new);
    let removed: Vec<u8> = old.iter().map(|byte| !byte).collect();
    !(add(sum, &removed) as u16)
}

/// Place of the checksum in the transport header of a frame, if there is one that counts.
pub(crate) fn transport_place(frame: &[u8], places: &FramePlaces) -> Option<usize> {
    let at = places.transport.filter(|_| places.has_ports)?;
    match places.protocol {
        TCP => Some(at + 16).filter(|at| at + 2 <= places.end),
        // Zero means that there is none.
        UDP => Some(at + 6).filter(|at| word(frame, *at) != Some(0)),
        _ => None,
    }
}

/// Puts a checksum into a frame.
pub(crate) fn put(frame: &mut [u8], at: usize, checksum: u16) {
    if let Some(bytes) = frame.get_mut(at..at + 2) {
        bytes.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Makes the checksums of a frame's headers anew.
pub(crate) fn renew(frame: &mut [u8], places: &FramePlaces) {
    if places.kind == NetworkKind::Ipv4 {
        let end = places.network + usize::from(frame[places.network] & 0xf) * 4;
        put(frame, places.network + 10, 0);
        let sum = !(add(0, &frame[places.network..end]) as u16);
        put(frame, places.network + 10, sum);
    }
    let (Some(at), Some(transport), Some(addresses)) =
        (transport_place(frame, places), places.transport, &places.addresses)
    else {
        return;
    };
    put(frame, at, 0);
    let length = (places.end - transport) as u32;
    let mut sum = add(0, &frame[transport..places.end]);
    sum = addresses.iter().fold(sum, |sum, range| add(sum, &frame[range.clone()]));
    sum = add(sum, &length.to_be_bytes());
    sum = add(sum, &[0, places.protocol]);
    let checksum = !(sum as u16);
    // A checksum of UDP that is zero is sent as its complement.
    let is_none = checksum == 0 && places.protocol == UDP;
    put(frame, at, if is_none { 0xffff } else { checksum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_checksum_is_that_of_the_changed_bytes() {
        let whole = |bytes: &[u8]| !(add(0, bytes) as u16);
        let (old, new) = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 0xff, 0xfe, 5, 6, 7, 8]);
        assert_eq!(updated(whole(&old), &old[2..4], &new[2..4]), whole(&new));
    }
}
