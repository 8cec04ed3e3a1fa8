//! A packet in the code: its descriptor, its bounds and its annotations, all of them values.
//!
//! Annotations are not memory: an annotation that one element sets and another reads is a value on the edge
//! between them, so that constants are folded, and unused ones disappear.

use millstream_ir::{Prov, Size, Type, Value};

/// An annotation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Annotation {
    /// The network header; meaningful if [`Annotation::HasNetwork`].
    Network,
    /// True if the network header was set.
    HasNetwork,
    /// The paint.
    Paint,
    /// The destination address, in host order.
    Destination,
    /// True if `FixIPSrc` is to set the source.
    FixSource,
    /// Packet type that the link layer gave it: [`HOST`], [`BROADCAST`], [`MULTICAST`].
    Cast,
    /// Offset of the parameter problem.
    Parameter,
    /// Rounds that it has made in the graph; constant if there is no cycle.
    Rounds,
    /// The word behind [`Annotation::Destination`] in a destination of IPv6; each has 32 bits.
    Destination2,
    /// The third word.
    Destination3,
    /// The last word.
    Destination4,
    /// The tag of a VLAN, in host order; 0 for none.
    Tag,
    /// Bytes that were taken away in front, for somebody to give them back.
    Skipped,
    /// The aggregate that it belongs to; 0 for none.
    Aggregate,
    /// One nanosecond more than its time, which may be negative; 0 for the time at which it came.
    Time,
    /// Bytes that were cut off behind.
    Cut,
}

/// The four words of a destination of IPv6.
pub const DESTINATION6: [Annotation; 4] =
    [Annotation::Destination, Annotation::Destination2, Annotation::Destination3, Annotation::Destination4];

/// To this host, or not known.
pub const HOST: i64 = 0;
/// To all.
pub const BROADCAST: i64 = 1;
/// To a group.
pub const MULTICAST: i64 = 2;

/// Number of annotations.
pub const NOTES: usize = 16;

/// Annotations that are kept together while a packet waits, whatever a configuration reads: the first so many.
pub const USUAL_NOTES: usize = Annotation::Time as usize;

/// Their names, in order.
pub const NOTE_NAMES: [&str; NOTES] = [
    "network header",
    "has network header",
    "paint",
    "destination",
    "fix source",
    "link-layer cast",
    "parameter problem",
    "rounds",
    "destination, second word",
    "destination, third word",
    "destination, last word",
    "VLAN tag",
    "skipped bytes",
    "aggregate",
    "time",
    "bytes cut off",
];

/// The place of the first one in [`TYPES`].
pub const FIRST_NOTE: usize = 3;

/// Types of the values that make a packet, in the order of [`PacketValues::values`].
pub const TYPES: [Type; FIRST_NOTE + NOTES] = [
    Type::Ptr(Prov::Ctx),
    Type::Ptr(Prov::Packet),
    Type::Ptr(Prov::PacketEnd),
    Type::Ptr(Prov::Packet),
    Type::I1,
    Type::I64,
    Type::I64,
    Type::I1,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
    Type::I64,
];

/// Sizes of annotations in memory, by the values that they have: of [`Annotation::Network`] the distance from
/// the packet's first byte, which `MarkIPHeader` may set beyond the packet; [`Annotation::Rounds`] ends at
/// 65,536.
pub const NOTE_SIZES: [Size; NOTES] = [
    Size::W,
    Size::B,
    Size::B,
    Size::W,
    Size::B,
    Size::B,
    Size::H,
    Size::H,
    Size::W,
    Size::W,
    Size::W,
    Size::H,
    Size::H,
    Size::W,
    Size::Dw,
    Size::W,
];

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketValues {
    /// Its descriptor.
    pub handle: Value,
    /// The first byte.
    pub data: Value,
    /// Behind the last.
    pub end: Value,
    /// Its annotations.
    pub notes: [Value; NOTES],
}

impl PacketValues {
    /// Of its values in order.
    ///
    /// # Panics
    /// If there are not as many as [`TYPES`].
    pub fn of(values: &[Value]) -> PacketValues {
        let notes = values[FIRST_NOTE..].try_into().expect("as many values as a packet has");
        PacketValues { handle: values[0], data: values[1], end: values[2], notes }
    }

    /// Its values.
    pub fn values(&self) -> [Value; FIRST_NOTE + NOTES] {
        let mut all = [self.handle; 3 + NOTES];
        (all[1], all[2]) = (self.data, self.end);
        all[FIRST_NOTE..].copy_from_slice(&self.notes);
        all
    }

    /// An annotation.
    pub fn note(&self, note: Annotation) -> Value {
        self.notes[note as usize]
    }

    /// The words of its destination of IPv6.
    pub fn destination6(&self) -> [Value; 4] {
        DESTINATION6.map(|note| self.note(note))
    }

    /// With a destination of IPv6.
    pub fn bound_for(self, words: [Value; 4]) -> PacketValues {
        DESTINATION6.into_iter().zip(words).fold(self, |packet, (note, word)| packet.with(note, word))
    }

    /// With other bounds.
    pub fn bounded(self, data: Value, end: Value) -> PacketValues {
        PacketValues { data, end, ..self }
    }

    /// With an annotation set.
    pub fn with(mut self, note: Annotation, value: Value) -> PacketValues {
        self.notes[note as usize] = value;
        self
    }
}
