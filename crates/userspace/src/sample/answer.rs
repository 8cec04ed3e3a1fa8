//! Answer of a running program to a request for samples: what was copied since the request before. Each request asks
//! for the next window, so that the rate is that of the requests.

use millstream_native::PacketSampler;
use serde::{Deserialize, Serialize};

/// Packets of a window.
pub(crate) const WINDOW: u32 = 256;
/// Name of the request.
pub(crate) const REQUEST: &str = "sample";

/// A window of packets that came one behind the other; fewer or none at first, and if few came.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SampleAnswer {
    pub(crate) schema: u32,
    /// Bytes of the packets, in hexadecimal digits.
    pub(crate) packets: Vec<String>,
}

impl SampleAnswer {
    /// Takes the last window, and asks for the next one.
    pub(crate) fn take(sampler: &PacketSampler) -> SampleAnswer {
        let packets = sampler.take().iter().map(|packet| hex::encode(&packet.bytes)).collect();
        sampler.request(WINDOW);
        SampleAnswer { schema: 1, packets }
    }

    /// The bytes of the packets; `None` if a packet is not written in pairs of digits.
    pub(crate) fn frames(&self) -> Option<Vec<Vec<u8>>> {
        self.packets.iter().map(|text| hex::decode(text).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_as_they_were_written() {
        let packets = vec![hex::encode([0, 1, 0xfe, 0xff]), String::new()];
        let answer = SampleAnswer { schema: 1, packets };
        assert_eq!(answer.frames(), Some(vec![vec![0, 1, 0xfe, 0xff], Vec::new()]));
        let wrong = SampleAnswer { schema: 1, packets: vec!["0g".to_owned()] };
        assert_eq!(wrong.frames(), None);
    }
}
