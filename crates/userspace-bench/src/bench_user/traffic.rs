//! Packets of a measurement: frames, their order and sizes.

use millstream_programs::packet::{ETHERTYPE_IPV4, ETHERTYPE_VLAN, TCP, UDP, checksum};

/// Frames and their order, which is repeated.
pub(crate) struct TrafficPattern {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) order: Vec<u32>,
    pub(crate) description: String,
}

impl TrafficPattern {
    /// Mean length of a frame over the order, in bytes.
    pub(crate) fn mean_length(&self) -> f64 {
        let bytes: usize =
            self.order.iter().filter_map(|&at| self.frames.get(at as usize)).map(Vec::len).sum();
        bytes as f64 / self.order.len().max(1) as f64
    }

    /// The same traffic with frames padded to at least so many bytes.
    pub(crate) fn lengthened(&self, bytes: usize) -> TrafficPattern {
        let frames = self.frames.iter().map(|frame| lengthened(frame, bytes)).collect();
        TrafficPattern { frames, order: self.order.clone(), description: self.description.clone() }
    }
}

/// A frame with more payload and with correct lengths and checksums of IPv4, UDP and TCP. A frame that is
/// long enough stays as it is.
fn lengthened(frame: &[u8], bytes: usize) -> Vec<u8> {
    let mut longer = frame.to_vec();
    if bytes > frame.len() {
        longer.resize(bytes, 0);
        mend(&mut longer);
    }
    longer
}

/// Fixes lengths and checksums for the frame's length if it is IPv4 and not a fragment; leaves any other
/// frame alone.
fn mend(frame: &mut [u8]) -> Option<()> {
    let word = |frame: &[u8], at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let ip = match word(frame, 12)? {
        ETHERTYPE_IPV4 => 14,
        ETHERTYPE_VLAN if word(frame, 16)? == ETHERTYPE_IPV4 => 18,
        _ => return None,
    };
    let header = usize::from(*frame.get(ip)? & 0x0f) * 4;
    let (transport, total) = (ip + header, frame.len() - ip);
    if header < 20 || transport + 8 > frame.len() || word(frame, ip + 6)? & 0x3fff != 0 {
        return None;
    }
    frame[ip + 2..ip + 4].copy_from_slice(&(total as u16).to_be_bytes());
    frame[ip + 10..ip + 12].fill(0);
    let sum = checksum(&frame[ip..transport], 0);
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    let (protocol, length) = (frame[ip + 9], (frame.len() - transport) as u16);
    let at = match protocol {
        UDP => {
            frame[transport + 4..transport + 6].copy_from_slice(&length.to_be_bytes());
            transport + 6
        }
        TCP if transport + 20 <= frame.len() => transport + 16,
        _ => return None,
    };
    frame[at..at + 2].fill(0);
    let addresses =
        frame[ip + 12..ip + 20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let pseudo = addresses.sum::<u32>() + u32::from(protocol) + u32::from(length);
    // Zero on the wire says that there is no checksum (RFC 768); in TCP both are the same number.
    let sum = match checksum(&frame[transport..], pseudo) {
        0 => 0xffff,
        sum => sum,
    };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use millstream_programs::packet::{EthernetFrame, TransportHeader};

    use super::*;

    #[test]
    fn longer_frames_are_what_they_would_have_been_made() {
        let transports =
            [TransportHeader::Udp { src: 7, dst: 9 }, TransportHeader::Tcp { src: 7, dst: 9, flags: 16 }];
        for (transport, vlan) in transports.into_iter().flat_map(|t| [(t.clone(), None), (t, Some(5))]) {
            let short = EthernetFrame { transport, vlan, ..EthernetFrame::default() };
            let long = EthernetFrame { length: 700, ..short.clone() };
            assert_eq!(lengthened(&short.to_bytes(), 700), long.to_bytes());
        }
    }

    #[test]
    fn frames_that_are_long_enough_or_no_datagrams_keep_their_bytes() {
        let frame = EthernetFrame { length: 100, ..EthernetFrame::default() }.to_bytes();
        assert_eq!(lengthened(&frame, 64), frame);
        let fragment = EthernetFrame { fragment: 0x2000, ..EthernetFrame::default() }.to_bytes();
        let other = vec![0x77; 60];
        for frame in [fragment, other] {
            let longer = lengthened(&frame, 90);
            assert_eq!((longer.len(), &longer[..frame.len()]), (90, &frame[..]));
        }
    }
}
