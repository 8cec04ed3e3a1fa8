//! Fields of a packet's state that a switch reads and writes, found by their names once for each program.

use std::ops::Range;

use millstream_p4_lower::{StateField, StateLayout};

/// Declares the fields: variant and name.
macro_rules! switch_fields {
    ($($field:ident = $name:literal,)*) => {
        /// Field of a packet's state that a switch reads or writes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum SwitchField {
            $(#[doc = $name] $field,)*
        }

        /// Names of all fields.
        const NAMES: &[&str] = &[$($name,)*];
    };
}

switch_fields! {
    Accept = "accept",
    AssertionFailed = "engine.assertion_failed",
    CloneEgress = "engine.clone_egress",
    CloneEgressList = "engine.clone_egress_list",
    CloneEgressSession = "engine.clone_egress_session",
    CloneIngress = "engine.clone_ingress",
    CloneIngressList = "engine.clone_ingress_list",
    CloneIngressSession = "engine.clone_ingress_session",
    DeparserOverflow = "engine.deparser_overflow",
    Recirculate = "engine.recirculate",
    RecirculateList = "engine.recirculate_list",
    Rejected = "engine.rejected",
    Resubmit = "engine.resubmit",
    ResubmitList = "engine.resubmit_list",
    TruncatedLength = "engine.truncated_length",
    Truncates = "engine.truncates",
    FilterClone = "standard_metadata.clone",
    FilterClonePort = "standard_metadata.clone_port",
    FilterInputPort = "standard_metadata.input_port",
    FilterOutputAction = "standard_metadata.output_action",
    FilterOutputPort = "standard_metadata.output_port",
    XdpInputPort = "input.input_port",
    XdpOutputAction = "output.output_action",
    XdpOutputPort = "output.output_port",
    DeqQdepth = "standard_metadata.deq_qdepth",
    DeqTimedelta = "standard_metadata.deq_timedelta",
    EgressPort = "standard_metadata.egress_port",
    EgressRid = "standard_metadata.egress_rid",
    EgressSpec = "standard_metadata.egress_spec",
    EgressTimestamp = "standard_metadata.egress_global_timestamp",
    EnqQdepth = "standard_metadata.enq_qdepth",
    EnqTimestamp = "standard_metadata.enq_timestamp",
    IngressPort = "standard_metadata.ingress_port",
    IngressTimestamp = "standard_metadata.ingress_global_timestamp",
    InstanceType = "standard_metadata.instance_type",
    MulticastGroup = "standard_metadata.mcast_grp",
    PacketLength = "standard_metadata.packet_length",
    PsaEgressClass = "egress_input.class_of_service",
    PsaEgressClone = "egress_output.clone",
    PsaEgressCloneSession = "egress_output.clone_session_id",
    PsaEgressDeparserPort = "egress_deparser_input.egress_port",
    PsaEgressDrop = "egress_output.drop",
    PsaEgressInstance = "egress_input.instance",
    PsaEgressParserPath = "egress_parser_input.packet_path",
    PsaEgressParserPort = "egress_parser_input.egress_port",
    PsaEgressPath = "egress_input.packet_path",
    PsaEgressPort = "egress_input.egress_port",
    PsaEgressTimestamp = "egress_input.egress_timestamp",
    PsaIngressClass = "ingress_output.class_of_service",
    PsaIngressClone = "ingress_output.clone",
    PsaIngressCloneSession = "ingress_output.clone_session_id",
    PsaIngressDrop = "ingress_output.drop",
    PsaIngressGroup = "ingress_output.multicast_group",
    PsaIngressParserPath = "ingress_parser_input.packet_path",
    PsaIngressParserPort = "ingress_parser_input.ingress_port",
    PsaIngressPath = "ingress_input.packet_path",
    PsaIngressPort = "ingress_input.ingress_port",
    PsaIngressResubmit = "ingress_output.resubmit",
    PsaIngressTarget = "ingress_output.egress_port",
    PsaIngressTimestamp = "ingress_input.ingress_timestamp",
}

/// Place of a field: its first byte, its bytes, at most 8, and its bits.
#[derive(Clone, Copy, Debug)]
struct FieldPlace {
    from: usize,
    len: usize,
    mask: u64,
}

impl FieldPlace {
    fn new(field: &StateField) -> FieldPlace {
        let len = (field.bits.div_ceil(8) as usize).min(8);
        let mask = if field.bits < 64 { (1 << field.bits) - 1 } else { u64::MAX };
        FieldPlace { from: field.offset as usize, len, mask }
    }

    /// The bits of the field's bytes in a word of 8 bytes.
    fn bytes_mask(self) -> u64 {
        if self.len < 8 { (1 << (8 * self.len)) - 1 } else { u64::MAX }
    }
}

/// Fields of a program's state.
#[derive(Debug)]
pub(crate) struct StateFields {
    /// Places by field; none for a field that the architecture does not have.
    places: Vec<Option<FieldPlace>>,
    /// Bytes that a clone of a packet in egress loses.
    pub(crate) lost_by_clones: Vec<Range<usize>>,
}

impl StateFields {
    pub(crate) fn new(layout: &StateLayout) -> StateFields {
        let place = |name: &&str| layout.field(name).map(FieldPlace::new);
        StateFields { places: NAMES.iter().map(place).collect(), lost_by_clones: lost_by_clones(layout) }
    }

    /// Returns true if the program has the field.
    #[inline]
    pub(crate) fn has(&self, field: SwitchField) -> bool {
        self.places[field as usize].is_some()
    }

    /// Reads a field of up to 64 bits; 0 if there is none.
    #[inline]
    pub(crate) fn get(&self, state: &[u8], field: SwitchField) -> u64 {
        let Some(place) = self.places[field as usize] else { return 0 };
        let bytes = state.get(place.from..).unwrap_or_default();
        if let Some(word) = bytes.first_chunk() {
            return u64::from_le_bytes(*word) & place.bytes_mask();
        }
        let mut word = [0; 8];
        if let Some(bytes) = bytes.get(..place.len) {
            word[..place.len].copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }

    /// Writes a field of up to 64 bits, if there is one.
    #[inline]
    pub(crate) fn put(&self, state: &mut [u8], field: SwitchField, value: u64) {
        let Some(place) = self.places[field as usize] else { return };
        let value = value & place.mask;
        let bytes = state.get_mut(place.from..).unwrap_or_default();
        if let Some(word) = bytes.first_chunk_mut() {
            let others = u64::from_le_bytes(*word) & !place.bytes_mask();
            *word = (others | value).to_le_bytes();
        } else if let Some(bytes) = bytes.get_mut(..place.len) {
            bytes.copy_from_slice(&value.to_le_bytes()[..place.len]);
        }
    }
}

/// Bytes of all scalars but headers, the parser's place, and the port that a packet came from.
fn lost_by_clones(layout: &StateLayout) -> Vec<Range<usize>> {
    let is_kept = |name: &str| {
        name.starts_with("headers") || name == "engine.cursor" || name == "standard_metadata.ingress_port"
    };
    let lost = layout.fields.iter().filter(|field| !is_kept(&field.name));
    let mut ranges: Vec<(usize, usize)> = lost
        .map(|field| (field.offset as usize, (field.offset + field.bits.div_ceil(8)) as usize))
        .filter(|(_, end)| *end <= layout.size as usize)
        .collect();
    ranges.sort_unstable();
    let mut joined: Vec<Range<usize>> = Vec::new();
    for (from, end) in ranges {
        match joined.last_mut() {
            Some(last) if from <= last.end => last.end = last.end.max(end),
            _ => joined.push(from..end),
        }
    }
    joined
}
