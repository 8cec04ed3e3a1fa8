//! Spreading of packets over workers, by flow.
//!
//! A flow is the packets with the same addresses and, for whole packets of TCP, UDP, SCTP and DCCP, the same
//! ports, whichever end sends. (Fragments except the first have no ports: they are identified by their
//! addresses.) Packets of neither version of IP are identified by their Ethernet addresses. So both
//! directions of a connection have one worker, and each worker has its packets in the order of arrival.
//!
//! Receive-side scaling of network cards computes Toeplitz' hash with a key that, made symmetric, leaves 16
//! of its bits (Woo and Park, 2012). Our software hash sorts and multiplies the ends, so that every bit
//! counts.

/// `ETH_P_IP`, `ETH_P_IPV6`, and the tags that may be in front of them.
const IP: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Maximum number of tags that are skipped.
const MOST_TAGS: usize = 4;
/// TCP, UDP, DCCP, SCTP: the header begins with the ports.
const WITH_PORTS: [u8; 4] = [6, 17, 33, 132];
/// Odd, with about as many ones as zeros.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of the worker that a packet belongs to, below `workers`.
pub fn worker_of(frame: &[u8], workers: u32) -> u32 {
    ((u64::from(flow_hash(frame)) * u64::from(workers)) >> 32) as u32
}

/// A hash of a packet's flow, the same for both directions.
pub fn flow_hash(frame: &[u8]) -> u32 {
    let (kind, network) = network(frame);
    let ends = match kind {
        IP => ip(network),
        IPV6 => ipv6(network),
        _ => None,
    };
    ends.or_else(|| Some((number(frame.get(..6)?), number(frame.get(6..12)?), u64::from(kind))))
        .map_or(0, mixed)
}

/// Two ends, and further fields that identify the flow.
type SteeringKey = (u64, u64, u64);

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * u128::from(MULTIPLIER);
    product as u64 ^ (product >> 64) as u64
}

fn mixed((a, b, more): SteeringKey) -> u32 {
    let mixed = [a.max(b), more].into_iter().fold(fold(MULTIPLIER, a.min(b)), fold);
    (mixed >> 32) as u32
}

/// The type of the payload of an Ethernet frame, behind its tags, and its bytes.
fn network(frame: &[u8]) -> (u16, &[u8]) {
    let mut at = 12;
    for _ in 0..=MOST_TAGS {
        let kind = frame.get(at..at + 2).map_or(0, |kind| number(kind) as u16);
        if !TAGS.contains(&kind) {
            return (kind, frame.get(at + 2..).unwrap_or_default());
        }
        at += 4;
    }
    (0, &[])
}

/// An address with a port, if there is one: ends with different addresses are ordered by these, whatever the
/// ports.
fn end(address: u64, port: u64) -> u64 {
    address << 16 | port
}

fn ports(protocol: u8, transport: Option<&[u8]>) -> (u64, u64) {
    match transport {
        Some([a, b, c, d, ..]) if WITH_PORTS.contains(&protocol) => (number(&[*a, *b]), number(&[*c, *d])),
        _ => (0, 0),
    }
}

fn ip(header: &[u8]) -> Option<SteeringKey> {
    let fixed = header.get(..20)?;
    let length = usize::from(fixed[0] & 15) * 4;
    let first = number(&fixed[6..8]) & 0x1fff == 0;
    let (from, to) = ports(fixed[9], header.get(length.max(20)..).filter(|_| first));
    Some((end(number(&fixed[12..16]), from), end(number(&fixed[16..20]), to), u64::from(fixed[9])))
}

/// Ports directly behind the header only: extension headers are not skipped.
fn ipv6(header: &[u8]) -> Option<SteeringKey> {
    let fixed = header.get(..40)?;
    let (from, to) = ports(fixed[6], header.get(40..));
    let address = |at: usize| fold(number(&fixed[at..at + 8]), number(&fixed[at + 8..at + 16])) >> 16;
    Some((end(address(8), from), end(address(24), to), u64::from(fixed[6])))
}

/// The part of a repeated list of packets that one worker has.
#[derive(Debug)]
pub(super) struct WorkerShare {
    /// Positions in the list, ascending.
    places: Vec<u32>,
    /// Number of packets in the list, and in all.
    length: u64,
    count: u64,
    /// The next of `places`, and the number of the list's first packet in this round.
    next: usize,
    base: u64,
}

impl WorkerShare {
    /// Share of each worker in a list, of which `count` packets are taken in all.
    pub(super) fn all<'f>(
        frames: impl Iterator<Item = &'f [u8]>,
        count: u64,
        workers: u32,
    ) -> Vec<WorkerShare> {
        let new = |_| WorkerShare { places: Vec::new(), length: 0, count, next: 0, base: 0 };
        let mut shares: Vec<WorkerShare> = (0..workers.max(1)).map(new).collect();
        let mut length = 0;
        for (at, frame) in frames.enumerate() {
            let worker = if workers > 1 { worker_of(frame, workers) } else { 0 };
            shares[worker as usize].places.push(at as u32);
            length += 1;
        }
        shares.iter_mut().for_each(|share| share.length = length);
        shares
    }

    /// Position in the list of the packet that comes so many packets later in this round, or its last one's.
    pub(super) fn later(&self, packets: usize) -> Option<u32> {
        self.places.get(self.next + packets).or(self.places.last()).copied()
    }

    /// The next packet: its position in the list, and its number among all; `None` if its number is `until`
    /// or more.
    pub(super) fn next_below(&mut self, until: u64) -> Option<(u32, u64)> {
        if self.next == self.places.len() {
            (self.next, self.base) = (0, self.base + self.length);
        }
        let place = *self.places.get(self.next)?;
        let number = self.base + u64::from(place);
        if number >= self.count.min(until) {
            return None;
        }
        self.next += 1;
        Some((place, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame between two ends, with this many VLAN tags.
    fn frame(from: (u32, u16), to: (u32, u16), protocol: u8, tags: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 7]);
        }
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([from.0.to_be_bytes(), to.0.to_be_bytes()].concat());
        frame.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
        frame.extend([0; 20]);
        frame
    }

    #[test]
    fn both_directions_and_all_packets_of_a_flow_have_one_worker() {
        let (a, b) = ((0x0a00_0001, 1234), (0xc000_0201, 80));
        let there = flow_hash(&frame(a, b, 6, 0));
        assert_eq!(there, flow_hash(&frame(b, a, 6, 0)));
        assert_eq!(there, flow_hash(&frame(a, b, 6, 2)), "tags do not count");
        assert_ne!(there, flow_hash(&frame((a.0, 1235), b, 6, 0)));
        assert_ne!(there, flow_hash(&frame((a.0, b.1), (b.0, a.1), 6, 0)), "ports belong to their addresses");
        assert_ne!(there, flow_hash(&frame(a, b, 17, 0)));
        let icmp = |port| flow_hash(&frame((a.0, port), b, 1, 0));
        assert_eq!(icmp(1), icmp(2), "there are no ports in ICMP");
        for cut in 0..there.leading_zeros() as usize + 60 {
            let whole = frame(a, b, 6, 1);
            worker_of(&whole[..cut.min(whole.len())], 3);
        }
    }

    #[test]
    fn flows_are_spread_evenly() {
        let mut counts = [0; 4];
        for host in 0..64 {
            for port in 0..64 {
                let frame = frame((0x0a00_0000 + host, 1024 + port), (0xc000_0201, 53), 17, 0);
                counts[worker_of(&frame, 4) as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (900..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn shares_are_all_packets_once_in_order() {
        let frames: Vec<Vec<u8>> = (0..50).map(|n| frame((n, 5), (9, 9), 17, 0)).collect();
        for workers in [1, 3] {
            let mut shares = WorkerShare::all(frames.iter().map(Vec::as_slice), 120, workers);
            let mut seen = Vec::new();
            for (worker, share) in shares.iter_mut().enumerate() {
                let mut last = None;
                while let Some((place, number)) = share.next_below(u64::MAX) {
                    assert!(last.is_none_or(|last| last < number));
                    assert_eq!(u64::from(place), number % 50);
                    assert!(workers == 1 || worker_of(&frames[place as usize], workers) as usize == worker);
                    last = Some(number);
                    seen.push(number);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..120).collect::<Vec<u64>>());
        }
        assert!(
            WorkerShare::all(std::iter::empty(), 7, 2)
                .iter_mut()
                .all(|share| share.next_below(u64::MAX).is_none())
        );
    }
}
