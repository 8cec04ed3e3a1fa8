//! Headers between controller and program (`@controller_header`). Source: P4Runtime specification 1.4,
//! section 16.1.

use millstream_p4runtime::entities::{EntityError, canonical_bytes};
use millstream_p4runtime::proto::config::v1::P4Info;
use millstream_p4runtime::proto::v1::{PacketIn, PacketMetadata, PacketOut};
use num_bigint::BigUint;

/// Fields of a header: id and width.
type HeaderFields = Vec<(u32, u32)>;

/// Headers of packets from and to controllers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControllerHeaders {
    packet_in: HeaderFields,
    packet_out: HeaderFields,
}

fn total_bits(fields: &[(u32, u32)]) -> u64 {
    fields.iter().map(|(_, bits)| u64::from(*bits)).sum()
}

impl ControllerHeaders {
    /// Reads P4Info.
    pub(crate) fn new(info: &P4Info) -> ControllerHeaders {
        let fields = |name: &str| {
            let header = info
                .controller_packet_metadata
                .iter()
                .find(|header| header.preamble.as_ref().is_some_and(|preamble| preamble.name == name));
            let metadata = header.into_iter().flat_map(|header| &header.metadata);
            metadata.map(|field| (field.id, field.bitwidth.unsigned_abs())).collect()
        };
        ControllerHeaders { packet_in: fields("packet_in"), packet_out: fields("packet_out") }
    }

    /// Tells if the program has one of the headers.
    pub(crate) fn is_used(&self) -> bool {
        !self.packet_in.is_empty() || !self.packet_out.is_empty()
    }

    /// Bytes of a controller's packet: the header, and the payload. Fields that are left out are zero.
    pub(crate) fn encode(&self, packet: &PacketOut) -> Result<Vec<u8>, EntityError> {
        let mut header = BigUint::ZERO;
        for metadata in &packet.metadata {
            if !self.packet_out.iter().any(|(id, _)| *id == metadata.metadata_id) {
                let message = format!("`packet_out` has no field with the id {}", metadata.metadata_id);
                return Err(EntityError::invalid(message));
            }
        }
        for (id, bits) in &self.packet_out {
            let given: Vec<&PacketMetadata> =
                packet.metadata.iter().filter(|metadata| metadata.metadata_id == *id).collect();
            let value = match given[..] {
                [] => BigUint::ZERO,
                [one] => BigUint::from_bytes_be(&canonical_bytes(&one.value, *bits)?),
                _ => return Err(EntityError::invalid(format!("the field {id} is given twice"))),
            };
            header = (header << *bits) | value;
        }
        let size = total_bits(&self.packet_out).div_ceil(8);
        let padding = size * 8 - total_bits(&self.packet_out);
        let digits = (header << padding).to_bytes_be();
        let mut bytes = vec![0; size as usize];
        let shown = digits.len().min(bytes.len());
        let at = bytes.len() - shown;
        bytes[at..].copy_from_slice(&digits[digits.len() - shown..]);
        bytes.extend_from_slice(&packet.payload);
        Ok(bytes)
    }

    /// Packet for controllers: the header's fields, and the rest. A packet without the whole header is the
    /// payload.
    pub(crate) fn decode(&self, data: &[u8]) -> PacketIn {
        let total = total_bits(&self.packet_in);
        let size = total.div_ceil(8) as usize;
        let Some((header, payload)) = data.split_at_checked(size) else {
            return PacketIn { payload: data.to_vec(), metadata: Vec::new() };
        };
        let number = BigUint::from_bytes_be(header);
        let mut left = size as u64 * 8;
        let fields = self.packet_in.iter().map(|(id, bits)| {
            left -= u64::from(*bits);
            let value = (&number >> left) & ((BigUint::from(1u8) << *bits) - 1u8);
            PacketMetadata { metadata_id: *id, value: value.to_bytes_be() }
        });
        PacketIn { metadata: fields.collect(), payload: payload.to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_controllers_have_their_header_in_front() {
        let headers = ControllerHeaders { packet_in: vec![(1, 9), (2, 7)], packet_out: vec![(1, 9), (2, 7)] };
        let metadata = vec![PacketMetadata { metadata_id: 1, value: vec![1, 2] }];
        let packet = PacketOut { payload: vec![0xaa], metadata };
        let bytes = headers.encode(&packet).unwrap();
        assert_eq!(bytes, [0x81, 0x00, 0xaa]);
        let read = headers.decode(&bytes);
        assert_eq!(read.payload, [0xaa]);
        assert_eq!(read.metadata[0].value, [1, 2]);
        assert_eq!(headers.decode(&[1]).payload, [1]);
        let wide = PacketMetadata { metadata_id: 2, value: vec![0x80] };
        assert!(headers.encode(&PacketOut { payload: Vec::new(), metadata: vec![wide] }).is_err());
    }
}
