//! Packets made of the fields of a line.

/// Fields of the IP header.
#[derive(Clone, Default)]
pub(super) struct IpFields {
    pub(super) addresses: [u32; 2],
    pub(super) protocol: u8,
    pub(super) service: u8,
    pub(super) hops: u8,
    pub(super) id: u16,
    /// Flags and offset of a fragment.
    pub(super) fragment: u16,
    pub(super) length: Option<u16>,
    /// Bytes of the IP header, behind whose first 20 are zeros: the end of options.
    pub(super) header_length: u8,
    /// Options of IP, in words.
    pub(super) options: Vec<u8>,
    /// The checksum of the IP header that the line says; right ones take its place.
    pub(super) checksum: u16,
}

/// Fields of the TCP header.
#[derive(Clone, Default)]
pub(super) struct TcpFields {
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) flags: u16,
    /// Options of TCP, in words.
    pub(super) options: Vec<u8>,
    /// Bytes of the TCP header, if the line says them.
    pub(super) header_length: Option<u8>,
    pub(super) window: u16,
    pub(super) urgent: u16,
}

/// Fields of an ICMP message.
#[derive(Clone, Default)]
pub(super) struct IcmpFields {
    pub(super) kind: u8,
    pub(super) code: u8,
    /// The two halves behind the checksum of an ICMP message.
    pub(super) rest: [u16; 2],
}

/// Fields of a packet that is to be made; a header has zeros where nothing is said.
#[derive(Clone, Default)]
pub(super) struct PacketFields {
    pub(super) ip: IpFields,
    pub(super) ports: [u16; 2],
    pub(super) tcp: TcpFields,
    pub(super) udp_length: Option<u16>,
    pub(super) icmp: IcmpFields,
    pub(super) payload: Vec<u8>,
    /// True if the packet ends with the payload, whatever its length.
    pub(super) is_cut: bool,
    /// True if the packet has all bytes of its length, and right checksums.
    pub(super) whole: bool,
}

/// Bytes of an IP header without options, and at most.
pub(super) const HEADER: usize = 20;
pub(super) const LONGEST_HEADER: usize = 60;

impl PacketFields {
    /// The packet, and how many bytes of its length are not there.
    pub(super) fn packet(&self) -> (Vec<u8>, u32) {
        let mut carried = self.transport();
        // A payload is all behind IP, TCP and UDP: of ICMP it is the whole message.
        match self.ip.protocol {
            1 if carried.len() <= self.payload.len() => carried.clone_from(&self.payload),
            1 => carried[..self.payload.len()].copy_from_slice(&self.payload),
            _ => carried.extend_from_slice(&self.payload),
        }
        let header = usize::from(self.ip.header_length).max(HEADER + self.ip.options.len());
        let header = header.clamp(HEADER, LONGEST_HEADER) & !3;
        let length = self.ip.length.map_or(header + carried.len(), usize::from);
        let mut left_out = length.saturating_sub(header + carried.len());
        if self.whole && !self.is_cut {
            carried.resize(carried.len() + std::mem::take(&mut left_out), 0);
        }
        self.complete(&mut carried, left_out);
        carried.truncate(length.saturating_sub(header));
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        let mut packet = vec![0x40 | (header / 4) as u8, self.ip.service];
        packet.extend([length, self.ip.id, self.ip.fragment].map(u16::to_be_bytes).as_flattened());
        packet.extend([self.ip.hops, self.ip.protocol]);
        packet.extend(if self.whole { 0 } else { self.ip.checksum }.to_be_bytes());
        packet.extend(self.ip.addresses.map(u32::to_be_bytes).as_flattened());
        packet.extend(&self.ip.options);
        packet.resize(header, 0);
        if self.whole {
            let sum = complement(&packet, 0);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        packet.extend(carried);
        (packet, left_out as u32)
    }

    /// The transport header, without length and checksum; none in later fragments.
    fn transport(&self) -> Vec<u8> {
        if self.ip.fragment & 0x1fff != 0 {
            return Vec::new();
        }
        let ports = self.ports.map(u16::to_be_bytes).concat();
        match self.ip.protocol {
            6 => {
                let numbers = [self.tcp.sequence, self.tcp.acknowledgement].map(u32::to_be_bytes).concat();
                let mut options = self.tcp.options.clone();
                if let Some(length) = self.tcp.header_length {
                    let length = usize::from(length).clamp(HEADER, LONGEST_HEADER) & !3;
                    options.resize(options.len().max(length - HEADER), 0);
                }
                let words = 5 + options.len() as u16 / 4;
                let rest = [words << 12 | self.tcp.flags, self.tcp.window, 0, self.tcp.urgent]
                    .map(u16::to_be_bytes)
                    .concat();
                [ports, numbers, rest, options].concat()
            }
            17 => [ports, vec![0; 4]].concat(),
            1 => {
                let rest = self.icmp.rest.map(u16::to_be_bytes).concat();
                [vec![self.icmp.kind, self.icmp.code, 0, 0], rest].concat()
            }
            _ => Vec::new(),
        }
    }

    /// Writes the length of UDP, and the checksum of packets that are whole. `left_out` bytes are not there.
    fn complete(&self, carried: &mut [u8], left_out: usize) {
        if self.ip.fragment & 0x1fff != 0 {
            return;
        }
        let length = (carried.len() + left_out) as u32;
        let halves: u32 = self.ip.addresses.iter().map(|address| (address >> 16) + (address & 0xffff)).sum();
        let pseudo = halves + u32::from(self.ip.protocol) + length;
        let (at, start) = match self.ip.protocol {
            6 => (16, pseudo),
            17 => {
                let own = self.udp_length.unwrap_or(length as u16);
                carried[4..6].copy_from_slice(&own.to_be_bytes());
                (6, pseudo)
            }
            1 => (2, 0),
            _ => return,
        };
        if !self.whole {
            return;
        }
        let sum = match complement(carried, start) {
            0 if self.ip.protocol == 17 => u16::MAX,
            sum => sum,
        };
        carried[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The checksum of bytes, on top of a sum. Source: RFC 1071.
fn complement(bytes: &[u8], sum: u32) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    let mut sum = u64::from(sum) + bytes.chunks(2).map(word).sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
