//! Frames that are almost right: what traffic of a table looks like after something has happened to it.

use millstream_programs::packet::checksum;
use millstream_rng::Rng;

const ETH: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// Earlier frames.
#[derive(Default)]
pub(crate) struct Seen {
    /// The frame before this one.
    pub(crate) last: Vec<u8>,
    /// The latest that the program sent.
    pub(crate) sent: Vec<u8>,
}

/// A frame like `frame`, like an answer to one that the program has sent, or a fragment that follows another.
pub(crate) fn disturbed(frame: &[u8], seen: &Seen, rng: &mut Rng) -> Vec<u8> {
    if let Some(next) = next_fragment(&seen.last).filter(|_| rng.below(2) == 0) {
        return next;
    }
    let mut out =
        if !seen.sent.is_empty() && rng.below(4) == 0 { turned_round(&seen.sent) } else { frame.to_vec() };
    for _ in 0..[0, 1, 1, 1, 2, 3][rng.below(6) as usize] {
        disturb(&mut out, rng);
    }
    if rng.below(8) != 0 {
        mend(&mut out);
    }
    // The kernel wants a link-layer header, and takes what fits in a page.
    out.resize(out.len().clamp(ETH, 3000), 0);
    out
}

fn disturb(frame: &mut Vec<u8>, rng: &mut Rng) {
    match rng.below(18) {
        0 => {
            frame.truncate(ETH + rng.below(64) as usize);
            if rng.below(2) == 0 {
                set_length(frame);
            }
        }
        1 => frame.resize(frame.len() + rng.below(1600) as usize, 0xa5),
        2 => tag(frame, rng),
        3 => random_byte(frame, 0, 12, rng),
        4 => random_byte(frame, 12, 2, rng),
        5 => random_byte(frame, ETH, 28, rng),
        6 => random_byte(frame, ETH + 20, 60, rng),
        7 => addresses(frame, rng),
        8 => *frame = icmp_error(frame, rng),
        9 => *frame = echo(frame, rng),
        10 => extend(frame, rng),
        11 => grow(frame, 1380 + rng.below(220) as usize),
        12 => known_field(frame, rng),
        13 => flags(frame, rng),
        14 | 15 => fragment(frame, rng),
        16 => long_header(frame, rng),
        _ => swap_ends(frame),
    }
}

fn random_byte(frame: &mut [u8], from: usize, len: usize, rng: &mut Rng) {
    if let Some(byte) = frame.get_mut(from + rng.below(len as u64) as usize) {
        *byte = match rng.below(3) {
            0 => *byte ^ 1 << rng.below(8),
            1 => [0, 1, 4, 0x7f, 0xff][rng.below(5) as usize],
            _ => rng.next_u32() as u8,
        };
    }
}

/// The place of the IP header, and true if it is IPv6's; `None` if the frame is not IP, or shorter than its
/// header.
fn ip(frame: &[u8]) -> Option<(usize, bool)> {
    let mut at = 12;
    while matches!(frame.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8]) {
        at += 4;
    }
    let version_6 = match *frame.get(at..at + 2)?.first_chunk()? {
        IPV4 => false,
        IPV6 => true,
        _ => return None,
    };
    (frame.len() >= at + 2 + header(version_6)).then_some((at + 2, version_6))
}

const fn header(version_6: bool) -> usize {
    if version_6 { 40 } else { 20 }
}

/// Pushes one to three tags.
fn tag(frame: &mut Vec<u8>, rng: &mut Rng) {
    let vlan = [7, 10, 20, 30, 0, 4095][rng.below(6) as usize];
    for _ in 0..[1, 1, 1, 2, 3][rng.below(5) as usize] {
        let outer = if rng.below(4) == 0 { [0x88, 0xa8] } else { [0x81, 0] };
        frame.splice(12..12, [outer[0], outer[1], (vlan >> 8) as u8 | (rng.below(2) << 5) as u8, vlan as u8]);
    }
}

/// Link-layer addresses of groups, of the bridge, of no station.
fn addresses(frame: &mut [u8], rng: &mut Rng) {
    const SPECIAL: [[u8; 6]; 5] =
        [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [1, 0x80, 0xc2, 0, 0, 0], [0; 6], [2, 0, 0, 0, 0, 0x77]];
    let at = 6 * rng.below(2) as usize;
    frame[at..at + 6].copy_from_slice(&SPECIAL[rng.below(5) as usize]);
}

/// Values that programs look for, in the IP header or as EtherType.
fn known_field(frame: &mut [u8], rng: &mut Rng) {
    if rng.below(6) == 0 {
        let ether = [0x0806u16, 0x86dd, 0x0800, 0x88cc, 0x0100, 0x88a8][rng.below(6) as usize];
        frame[12..14].copy_from_slice(&ether.to_be_bytes());
        return;
    }
    let Some((at, version_6)) = ip(frame) else { return };
    if version_6 {
        let (offset, value) =
            [(6, 0), (6, 6), (6, 17), (6, 44), (6, 58), (6, 59), (7, 1), (0, 0x50), (40, 128)]
                [rng.below(9) as usize];
        if let Some(byte) = frame.get_mut(at + offset) {
            *byte = value;
        }
        return;
    }
    let choices: [(usize, &[u8]); 14] = [
        (0, &[0x46]),
        (0, &[0x44]),
        (0, &[0x55]),
        (8, &[1]),
        (8, &[0]),
        (9, &[1]),
        (9, &[6]),
        (9, &[17]),
        (9, &[47]),
        (2, &[0, 20]),
        (2, &[0, 0]),
        (16, &[224, 0, 0, 5]),
        (16, &[255, 255, 255, 255]),
        (12, &[127, 0, 0, 1]),
    ];
    let (offset, value) = choices[rng.below(14) as usize];
    frame[at + offset..at + offset + value.len()].copy_from_slice(value);
}

/// TCP's flags, or the same byte of another transport.
fn flags(frame: &mut [u8], rng: &mut Rng) {
    let Some((at, version_6)) = ip(frame) else { return };
    if let Some(byte) = frame.get_mut(at + header(version_6) + 13) {
        *byte = [1, 2, 4, 0x10, 0x11, 0x12, 0x14, 0x18][rng.below(8) as usize];
    }
}

fn fragment(frame: &mut Vec<u8>, rng: &mut Rng) {
    match ip(frame) {
        Some((at, false)) => {
            let field = [0x2000u16, 0x2000, 0x2001, 0xb9, 0x4000, 0x20ff][rng.below(6) as usize];
            frame[at + 6..at + 8].copy_from_slice(&field.to_be_bytes());
        }
        Some((at, true)) => {
            let next = frame[at + 6];
            frame[at + 6] = 44;
            frame.splice(at + 40..at + 40, [next, 0, 0, rng.below(3) as u8, 0, 0, 0, 1]);
            set_length(frame);
        }
        None => {}
    }
}

/// The fragment after a first one.
fn next_fragment(frame: &[u8]) -> Option<Vec<u8>> {
    let (at, version_6) = ip(frame)?;
    if version_6 || frame[at + 6..at + 8] != [0x20, 0] {
        return None;
    }
    let mut out = frame.to_vec();
    out[at + 6..at + 8].copy_from_slice(&[0, 0xb9]);
    mend(&mut out);
    Some(out)
}

/// Puts a long header in the place of QUIC's short one.
fn long_header(frame: &mut Vec<u8>, rng: &mut Rng) {
    let Some((at, version_6)) = ip(frame) else { return };
    let payload = at + header(version_6) + 8;
    if frame.len() <= payload {
        return;
    }
    let version = [[0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf], [0; 4]][rng.below(3) as usize];
    let mut long = vec![0xc0 | (rng.below(4) << 4) as u8];
    long.extend(version);
    long.push([0, 8, 20][rng.below(3) as usize]);
    frame.splice(payload..payload + 1, long);
    set_length(frame);
}

/// Options, or extension headers.
fn extend(frame: &mut Vec<u8>, rng: &mut Rng) {
    match ip(frame) {
        Some((at, false)) => {
            let words = 1 + rng.below(5) as usize;
            frame[at] = 0x40 | (5 + words) as u8;
            frame.splice(at + 20..at + 20, vec![1; 4 * words]);
        }
        Some((at, true)) => {
            for _ in 0..1 + rng.below(5) {
                let next = frame[at + 6];
                frame[at + 6] = [0, 43, 60, 60][rng.below(4) as usize];
                let units = rng.below(3) as usize;
                let mut extension = vec![0; 8 * (units + 1)];
                (extension[0], extension[1]) = (next, units as u8);
                frame.splice(at + 40..at + 40, extension);
            }
        }
        None => {}
    }
    set_length(frame);
}

fn grow(frame: &mut Vec<u8>, length: usize) {
    if let Some((at, _)) = ip(frame) {
        frame.resize(frame.len().max(at + length), 0x5a);
        set_length(frame);
    }
}

/// Makes the IP header's length agree with the frame.
fn set_length(frame: &mut [u8]) {
    let Some((at, version_6)) = ip(frame) else { return };
    let (field, length) = if version_6 { (4, frame.len() - at - 40) } else { (2, frame.len() - at) };
    frame[at + field..at + field + 2].copy_from_slice(&(length as u16).to_be_bytes());
}

/// An ICMP error about the frame, or about the answer to it, to its sender or receiver.
fn icmp_error(frame: &[u8], rng: &mut Rng) -> Vec<u8> {
    let Some((at, version_6)) = ip(frame) else { return frame.to_vec() };
    let mut quoted = frame[at..].to_vec();
    if rng.below(2) == 0 {
        swap_network(&mut quoted, version_6);
    }
    let kept = header(version_6) + [8, 8, 8, 3, 20, 28][rng.below(6) as usize];
    quoted.truncate(kept);
    let kinds: &[u8] = if version_6 { &[1, 2, 3, 4, 5] } else { &[3, 3, 11, 12, 5, 4] };
    let code = [0, 1, 3, 4][rng.below(4) as usize];
    let mut message = vec![kinds[rng.below(kinds.len() as u64) as usize], code, 0, 0, 0, 0, 5, 0xdc];
    message.extend(quoted);
    with_message(frame, at, version_6, message)
}

fn echo(frame: &[u8], rng: &mut Rng) -> Vec<u8> {
    let Some((at, version_6)) = ip(frame) else { return frame.to_vec() };
    let reply = rng.below(2) as u8;
    let kind = if version_6 { 128 + reply } else { 8 * (1 - reply) };
    with_message(frame, at, version_6, vec![kind, 0, 0x12, 0x34, rng.below(4) as u8, 7, 0, 1, 0xde, 0xad])
}

/// The frame's network header with an ICMP message behind it.
fn with_message(frame: &[u8], at: usize, version_6: bool, mut message: Vec<u8>) -> Vec<u8> {
    let mut out = frame[..at + header(version_6)].to_vec();
    if version_6 {
        out[at + 6] = 58;
    } else {
        (out[at], out[at + 9]) = (0x45, 1);
        let sum = checksum(&message, 0);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    out.extend(message);
    set_length(&mut out);
    out
}

/// The frame that the receiver would send back.
fn turned_round(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    swap_ends(&mut out);
    out
}

fn swap_ends(frame: &mut [u8]) {
    frame[..12].rotate_left(6);
    if let Some((at, version_6)) = ip(frame) {
        swap_network(&mut frame[at..], version_6);
    }
}

/// Exchanges addresses and ports.
fn swap_network(packet: &mut [u8], version_6: bool) {
    let (from, size) = if version_6 { (8, 16) } else { (12, 4) };
    packet[from..from + 2 * size].rotate_left(size);
    if let Some(ports) = packet.get_mut(header(version_6)..header(version_6) + 4) {
        ports.rotate_left(2);
    }
}

/// Makes the IPv4 header's checksum right.
fn mend(frame: &mut [u8]) {
    let Some((at, false)) = ip(frame) else { return };
    let end = (at + 4 * usize::from(frame[at] & 15)).clamp(at + 20, frame.len());
    frame[at + 10..at + 12].fill(0);
    let sum = checksum(&frame[at..end], 0);
    frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
}
