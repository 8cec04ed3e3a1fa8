//! Random frames that get past the checks of packet programs.
//!
//! Addresses and ports come from small pools, so that the same ones meet again in tables and in later
//! packets; headers are mostly right, often at the edge of being right, and sometimes cut or disturbed.
//! Constants that the program itself compares with are strewn in.

use millstream_programs::packet::checksum;
use millstream_rng::Rng;

/// Longest frame, before a program adds to it: one page of a test run takes no more.
const LONGEST: usize = 1514;
/// Greatest nesting depth of headers.
const DEEPEST: usize = 3;

const PORTS: [u16; 20] = [
    80, 443, 53, 22, 8080, 4789, 6081, 6080, 9886, 5555, 123, 67, 1024, 9999, 7999, 50_000, 51_820, 0, 1,
    65_535,
];
const PROTOCOLS: [u8; 14] = [6, 17, 1, 58, 4, 41, 47, 50, 51, 132, 0, 43, 44, 59];
const ETHERTYPES: [u16; 8] = [0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x8847, 0x88cc, 0x0060];

/// Values from which frames and tables are made.
#[derive(Debug)]
pub(super) struct FuzzValues {
    v4: Vec<[u8; 4]>,
    v6: Vec<[u8; 16]>,
    macs: Vec<[u8; 6]>,
    /// Constants of the program under test, as it compares with them.
    constants: Vec<i32>,
}

impl FuzzValues {
    pub(super) fn new(rng: &mut Rng, constants: Vec<i32>) -> FuzzValues {
        let mut v4 =
            vec![[127, 0, 0, 1], [224, 0, 0, 251], [255; 4], [0; 4], [10, 0, 0, 1], [169, 254, 0, 1]];
        v4.extend((0..6).map(|_| [10, rng.below(2) as u8, rng.below(2) as u8, rng.below(250) as u8 + 1]));
        let mut v6 = vec![[0; 16], [0; 16]];
        v6[0][15] = 1;
        v6.extend((0..6).map(|n| {
            let mut address: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n + 1];
            match n {
                0 => address[..2].copy_from_slice(&[0xfe, 0x80]),
                1 => address[..2].copy_from_slice(&[0xff, 0x02]),
                _ => address[7] = rng.below(3) as u8,
            }
            address
        }));
        let macs = vec![[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0xff; 6], [1, 0x80, 0xc2, 0, 0, 0], [0; 6]];
        FuzzValues { v4, v6, macs, constants }
    }

    /// Bytes for a field of this size in a key or a value, as a program may have put them there.
    pub(super) fn field(&self, rng: &mut Rng, size: usize) -> Vec<u8> {
        match (size, rng.below(4)) {
            (_, 0) => number(rng, size, 4),
            (2, 1) => pick(rng, &PORTS).to_be_bytes().to_vec(),
            (4, 1) => pick(rng, &self.v4).to_vec(),
            (6, 1 | 2) => pick(rng, &self.macs).to_vec(),
            (16, 1 | 2) => pick(rng, &self.v6).to_vec(),
            (1, 1) => vec![pick(rng, &PROTOCOLS)],
            (1 | 2 | 4, 2) if !self.constants.is_empty() => {
                pick(rng, &self.constants).to_le_bytes()[..size].to_vec()
            }
            _ => (0..size).map(|_| rng.next_u32() as u8).collect(),
        }
    }

    /// A frame.
    pub(super) fn frame(&self, rng: &mut Rng) -> Vec<u8> {
        let mut frame = self.ethernet(rng, 0);
        if rng.below(10) == 0 {
            frame.truncate(14 + rng.below(frame.len() as u64 - 13) as usize);
        }
        let head = frame.len().min(90);
        for _ in 0..rng.below(16).saturating_sub(11) {
            let at = rng.below(head as u64) as usize;
            frame[at] = rng.next_u32() as u8;
        }
        if rng.below(4) == 0 && !self.constants.is_empty() {
            let size = 1 << rng.below(3);
            let at = rng.below((head - size) as u64 + 1) as usize;
            let constant = pick(rng, &self.constants).to_le_bytes();
            frame[at..at + size].copy_from_slice(&constant[..size]);
        }
        frame.resize(frame.len().clamp(14, LONGEST), 0);
        frame
    }

    fn ethernet(&self, rng: &mut Rng, depth: usize) -> Vec<u8> {
        let mut frame = [pick(rng, &self.macs), pick(rng, &self.macs)].concat();
        for _ in 0..rng.below(12).saturating_sub(9) {
            frame.extend(pick(rng, &[0x8100u16, 0x8100, 0x88a8]).to_be_bytes());
            frame.extend((rng.below(4) as u16 | (rng.below(8) as u16) << 13).to_be_bytes());
        }
        let (ethertype, rest) = match rng.below(20) {
            0..10 => (0x0800, self.ipv4(rng, depth)),
            10..17 => (0x86dd, self.ipv6(rng, depth)),
            17..19 => (0x0806, self.arp(rng)),
            _ => (pick(rng, &ETHERTYPES), random_bytes(rng, 60)),
        };
        frame.extend(ethertype.to_be_bytes());
        frame.extend(rest);
        frame
    }

    fn arp(&self, rng: &mut Rng) -> Vec<u8> {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, rng.below(3) as u8];
        arp.extend(pick(rng, &self.macs));
        arp.extend(pick(rng, &self.v4));
        arp.extend(pick(rng, &self.macs));
        arp.extend(pick(rng, &self.v4));
        arp
    }

    fn ipv4(&self, rng: &mut Rng, depth: usize) -> Vec<u8> {
        let words = if rng.below(7) == 0 { rng.below(16) as u8 } else { 5 };
        let options = 4 * usize::from(words.saturating_sub(5));
        let (source, destination) = (pick(rng, &self.v4), pick(rng, &self.v4));
        let sums = [&source[..], &destination].concat();
        let (protocol, payload) = self.transport(rng, depth, &sums, false);
        let total = match rng.below(10) {
            0 => rng.below(1600) as u16,
            _ => (20 + options + payload.len()) as u16,
        };
        let fragment = match rng.below(8) {
            0 => rng.next_u32() as u16,
            1 => 0x2000,
            2..5 => 0x4000,
            _ => 0,
        };
        let mut ip = vec![0x40 | words, rng.below(4) as u8 * 0x2e];
        ip.extend(total.to_be_bytes());
        ip.extend((rng.next_u32() as u16).to_be_bytes());
        ip.extend(fragment.to_be_bytes());
        ip.extend([pick(rng, &[64, 64, 64, 1, 0, 2, 255]), protocol, 0, 0]);
        ip.extend(source);
        ip.extend(destination);
        ip.extend((0..options).map(|_| rng.below(4) as u8));
        let sum = if rng.below(10) == 0 { rng.next_u32() as u16 } else { checksum(&ip, 0) };
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend(payload);
        ip
    }

    fn ipv6(&self, rng: &mut Rng, depth: usize) -> Vec<u8> {
        let (source, destination) = (pick(rng, &self.v6), pick(rng, &self.v6));
        let sums = [&source[..], &destination].concat();
        let (mut next, mut payload) = self.transport(rng, depth, &sums, true);
        for _ in 0..rng.below(10).saturating_sub(7) {
            let kind = pick(rng, &[0, 60, 43, 44, 51]);
            let mut header = vec![next, rng.below(2) as u8];
            header.extend(random_bytes(rng, 6));
            header.resize(if kind == 44 { 8 } else { 8 * (usize::from(header[1]) + 1) }, 0);
            header.extend(payload);
            (next, payload) = (kind, header);
        }
        let mut ip = vec![0x60 | rng.below(2) as u8, rng.below(3) as u8 * 0x10, 0, rng.below(3) as u8];
        let length = if rng.below(10) == 0 { rng.next_u32() as u16 } else { payload.len() as u16 };
        ip.extend(length.to_be_bytes());
        ip.extend([next, pick(rng, &[64, 64, 64, 1, 0, 2, 255])]);
        ip.extend(source);
        ip.extend(destination);
        ip.extend(payload);
        ip
    }

    /// Protocol number, and header with payload. `addresses` is what their checksum covers.
    fn transport(&self, rng: &mut Rng, depth: usize, addresses: &[u8], v6: bool) -> (u8, Vec<u8>) {
        let deeper = depth < DEEPEST;
        let (protocol, mut bytes, sum_at) = match rng.below(20) {
            0..8 => (6, self.tcp(rng), Some(16)),
            8..14 => (17, self.udp(rng, depth), Some(6)),
            14..16 if v6 => (58, self.icmp(rng, depth, &[1, 2, 3, 4, 128, 129, 133, 134, 135, 136]), Some(2)),
            14..16 => (1, self.icmp(rng, depth, &[0, 3, 5, 8, 11, 12]), Some(2)),
            16 if deeper => (4, self.ipv4(rng, depth + 1), None),
            17 if deeper => (41, self.ipv6(rng, depth + 1), None),
            18 if deeper => (47, self.gre(rng, depth), None),
            _ => (pick(rng, &PROTOCOLS), random_bytes(rng, 80), None),
        };
        if let Some(at) = sum_at.filter(|_| rng.below(3) > 0) {
            let pseudo = [addresses, &[0, protocol], &(bytes.len() as u16).to_be_bytes()].concat();
            let covered = if protocol == 1 { bytes.clone() } else { [pseudo, bytes.clone()].concat() };
            let sum = checksum(&covered, 0);
            bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        (protocol, bytes)
    }

    fn tcp(&self, rng: &mut Rng) -> Vec<u8> {
        let mut tcp = ports(rng);
        tcp.extend(rng.next_u64().to_be_bytes());
        let words = if rng.below(4) == 0 { rng.below(16) as u8 } else { 5 };
        tcp.extend([words << 4, pick(rng, &[0x10, 0x02, 0x12, 0x18, 0x11, 0x04, 0x01, 0xff, 0])]);
        tcp.extend([0xff, 0xff, 0, 0, 0, 0]);
        for _ in 0..words.saturating_sub(5) {
            tcp.extend(pick(
                rng,
                &[[1, 1, 1, 1], [2, 4, 5, 0xb4], [1, 3, 3, 7], [8, 10, 0, 0], [0; 4], [4, 2, 1, 1]],
            ));
        }
        tcp.extend(self.payload(rng));
        tcp
    }

    fn udp(&self, rng: &mut Rng, depth: usize) -> Vec<u8> {
        let mut udp = ports(rng);
        let payload = match rng.below(8) {
            0 if depth < DEEPEST => {
                [vec![8, 0, 0, 0, 0, 0, rng.below(4) as u8, 0], self.ethernet(rng, depth + 1)].concat()
            }
            1 if depth < DEEPEST => self.ipv4(rng, depth + 1),
            2 if depth < DEEPEST => self.ipv6(rng, depth + 1),
            _ => self.payload(rng),
        };
        let length = if rng.below(10) == 0 { rng.below(100) as u16 } else { 8 + payload.len() as u16 };
        udp.extend(length.to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(payload);
        udp
    }

    /// Messages about another packet carry it.
    fn icmp(&self, rng: &mut Rng, depth: usize, kinds: &[u8]) -> Vec<u8> {
        let mut icmp = vec![pick(rng, kinds), rng.below(6) as u8, 0, 0];
        icmp.extend([0, rng.below(3) as u8, 5, rng.below(256) as u8]);
        icmp.extend(match rng.below(3) {
            0 if depth < DEEPEST => self.ipv4(rng, depth + 1),
            1 if depth < DEEPEST => self.ipv6(rng, depth + 1),
            _ => self.payload(rng),
        });
        icmp
    }

    fn gre(&self, rng: &mut Rng, depth: usize) -> Vec<u8> {
        let (kind, inner) = match rng.below(3) {
            0 => (0x0800, self.ipv4(rng, depth + 1)),
            1 => (0x86dd, self.ipv6(rng, depth + 1)),
            _ => (0x6558u16, self.ethernet(rng, depth + 1)),
        };
        let mut gre = vec![pick(rng, &[0, 0, 0x20, 0x30, 0x80]), 0];
        gre.extend(kind.to_be_bytes());
        gre.extend(inner);
        gre
    }

    fn payload(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.below(8) {
            0 => Vec::new(),
            1 => b"GET /index.html HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
            // A question of the domain name system.
            2 => b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01"
                .to_vec(),
            // A long header of QUIC with its connection ids, and a short one.
            3 => [
                &[0xc3, 0, 0, 0, 1, 8][..],
                &rng.next_u64().to_be_bytes(),
                &[8],
                &rng.next_u64().to_be_bytes(),
            ]
            .concat(),
            4 => [&[0x43][..], &rng.next_u64().to_be_bytes(), &[0; 20]].concat(),
            5 => vec![0; rng.below(1200) as usize],
            _ => random_bytes(rng, 64),
        }
    }
}

fn ports(rng: &mut Rng) -> Vec<u8> {
    [pick(rng, &PORTS).to_be_bytes(), pick(rng, &PORTS).to_be_bytes()].concat()
}

/// A number below `bound`, mostly in the host's byte order.
fn number(rng: &mut Rng, size: usize, bound: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let at = if rng.below(4) == 0 { size - 1 } else { 0 };
    bytes[at] = rng.below(bound) as u8;
    bytes
}

fn random_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.next_u32() as u8).collect()
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_of_many_kinds_and_fit_a_test_run() {
        let mut rng = Rng::new(7);
        let pool = FuzzValues::new(&mut rng, vec![0x1234]);
        let frames: Vec<Vec<u8>> = (0..2000).map(|_| pool.frame(&mut rng)).collect();
        assert!(frames.iter().all(|f| (14..=LONGEST).contains(&f.len())));
        let share = |holds: &dyn Fn(&[u8]) -> bool| frames.iter().filter(|f| holds(f)).count();
        let tcp = |f: &[u8]| f.len() > 54 && f[12..14] == [8, 0] && f[14] == 0x45 && f[23] == 6;
        assert!(share(&tcp) > 200);
        let right = |f: &[u8]| tcp(f) && checksum(&f[14..34], 0) == 0;
        assert!(share(&right) * 10 > share(&tcp) * 6, "most headers have their checksum");
        assert!(share(&|f| f[12..14] == [0x86, 0xdd]) > 400);
        assert!(share(&|f| f[12..14] == [0x81, 0]) > 50);
        assert!(share(&|f| f.windows(2).any(|w| w == [0x34, 0x12])) > 50, "the program's constant");
    }

    #[test]
    fn fields_have_the_size_asked() {
        let mut rng = Rng::new(7);
        let pool = FuzzValues::new(&mut rng, Vec::new());
        for size in 1..20 {
            assert!((0..50).all(|_| pool.field(&mut rng, size).len() == size));
        }
    }
}
