//! Layout of descriptors: the offsets of their fields, for each program.
//!
//! Fields that nobody accesses have no place. The others are contiguous: first those that are written when a
//! packet is received, so that a burst is written front to back, then those that the code writes itself. A
//! descriptor has no padding, and the next one follows.
//!
//! Invariant: if a context escapes ([`DescriptorFieldSet::FIXED`]) the layout begins as `struct xdp_md`.

use serde::{Deserialize, Serialize};

use crate::fields::DescriptorFieldSet;

/// A field of a descriptor, a word of 32 bits each, in order of their offsets. The first six are those of
/// `struct xdp_md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DescriptorField {
    /// The address of the packet's first byte.
    Data,
    /// The address of the byte behind its last one.
    End,
    /// The address of its metadata; in graphs that of the first byte that it may begin at.
    Meta,
    /// The interface, or the source of a graph, from which it was received.
    Ingress,
    /// The queue of that interface.
    Queue,
    /// The outgoing interface: 0.
    Egress,
    /// The address of its buffer.
    Start,
    /// Set if it is a graph's: there is no metadata.
    Open,
    /// Redirect target: interface or key.
    Target,
    /// The program's verdict, truncated to 32 bits.
    Verdict,
    /// Number in the batch of the packet, or of the original of a copy.
    Origin,
}

/// All fields, their names, and the set of each. The packet's location is in all sets.
const ALL: [(DescriptorField, &str, DescriptorFieldSet); 11] = [
    (DescriptorField::Data, "data", DescriptorFieldSet::NONE),
    (DescriptorField::End, "end", DescriptorFieldSet::NONE),
    (DescriptorField::Meta, "headroom start", DescriptorFieldSet::ROOM),
    (DescriptorField::Ingress, "ingress", DescriptorFieldSet::INGRESS),
    (DescriptorField::Queue, "queue", DescriptorFieldSet::QUEUE),
    (DescriptorField::Egress, "egress", DescriptorFieldSet::FIXED),
    (DescriptorField::Start, "buffer", DescriptorFieldSet::ROOM),
    (DescriptorField::Open, "resizable", DescriptorFieldSet::ROOM),
    (DescriptorField::Target, "target", DescriptorFieldSet::TARGET),
    (DescriptorField::Verdict, "verdict", DescriptorFieldSet::VERDICT),
    (DescriptorField::Origin, "origin", DescriptorFieldSet::ORIGIN),
];

/// Bytes of a field.
pub const WORD: usize = size_of::<u32>();
/// Maximum number of words of a descriptor.
pub(crate) const LONGEST: usize = 16;
/// Maximum number of look-ups for which code notes the progress of fetching in a descriptor.
pub(crate) const WALKS: usize = 4;
const _: () = assert!(ALL.len() + WALKS <= LONGEST, "all fields are a cache line at most");
/// Index of a missing field.
const ABSENT: u8 = u8::MAX;

impl DescriptorField {
    /// The field at this offset of `struct xdp_md`, in bytes.
    pub fn of_context(offset: i32) -> Option<DescriptorField> {
        match offset {
            0 => Some(DescriptorField::Data),
            4 => Some(DescriptorField::End),
            8 => Some(DescriptorField::Meta),
            12 => Some(DescriptorField::Ingress),
            16 => Some(DescriptorField::Queue),
            20 => Some(DescriptorField::Egress),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Returns true if it is written when a packet is received; the others are written by code, or once.
    pub fn is_received(self) -> bool {
        !matches!(self, DescriptorField::Egress | DescriptorField::Verdict | DescriptorField::Origin)
    }
}

/// Layout of the descriptors of a program's packets: indices of fields, in words, and the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DescriptorLayout {
    fields: DescriptorFieldSet,
    words: [u8; ALL.len()],
    /// Notes of the progress of fetching ahead, a word for each of this many look-ups: only for code, which
    /// does not trust them.
    ahead: u8,
    walks: u8,
    stride: u8,
    /// 2^32 divided by the bytes of a descriptor, rounded up.
    inverse: u32,
    /// True if it is that of [`DescriptorLayout::packed`].
    packed: bool,
    /// Maximum number of copies that a packet becomes; 0 if unknown.
    copies: u32,
}

impl DescriptorLayout {
    /// All fields, those of `struct xdp_md` at their offsets.
    pub const WHOLE: DescriptorLayout = DescriptorLayout::packed(DescriptorFieldSet::ALL, WALKS as u8);

    /// Only these fields, with room for notes of this many look-ups.
    pub(crate) const fn packed(fields: DescriptorFieldSet, walks: u8) -> DescriptorLayout {
        let mut words = [ABSENT; ALL.len()];
        let (mut field, mut at) = (0, 0);
        while field < ALL.len() {
            if fields.has(ALL[field].2) {
                words[field] = at;
                at += 1;
            }
            field += 1;
        }
        DescriptorLayout::of_places(fields, words, (at, walks), at + walks, true)
    }

    const fn of_places(
        fields: DescriptorFieldSet,
        words: [u8; ALL.len()],
        (ahead, walks): (u8, u8),
        stride: u8,
        packed: bool,
    ) -> DescriptorLayout {
        let inverse = (1u64 << 32).div_ceil(stride as u64 * WORD as u64) as u32;
        DescriptorLayout { fields, words, ahead, walks, stride, inverse, packed, copies: 0 }
    }

    /// The same fields in another order, with gaps, determined by this number. Fixed fields stay.
    pub(crate) fn shuffled(fields: DescriptorFieldSet, walks: u8, seed: u64) -> DescriptorLayout {
        let packed = DescriptorLayout::packed(fields, walks);
        if fields.has(DescriptorFieldSet::FIXED) {
            return packed;
        }
        let mut state = seed;
        let mut below = |bound: u8| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(bound)) as u8
        };
        let stride = packed.stride + below(LONGEST as u8 + 1 - packed.stride);
        // The notes are contiguous.
        let ahead = below(stride + 1 - walks);
        let mut free: Vec<u8> = (0..stride).filter(|at| !(ahead..ahead + walks).contains(at)).collect();
        let words = packed
            .words
            .map(|at| if at == ABSENT { at } else { free.swap_remove(below(free.len() as u8).into()) });
        DescriptorLayout::of_places(fields, words, (ahead, walks), stride, false)
    }

    /// The same, for packets that become at most this many copies.
    pub fn copying(self, copies: u32) -> DescriptorLayout {
        DescriptorLayout { copies, ..self }
    }

    /// Maximum number of copies that a packet becomes; 0 if unknown.
    pub(crate) fn copies(&self) -> u32 {
        self.copies
    }

    /// The fields that it has.
    pub fn fields(&self) -> DescriptorFieldSet {
        self.fields
    }

    /// Returns true if fields are contiguous, in their order.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed
    }

    /// Words of a descriptor.
    #[inline(always)]
    pub const fn words(&self) -> usize {
        self.stride as usize
    }

    /// Bytes from one descriptor to the next.
    pub fn stride(&self) -> usize {
        self.words() * WORD
    }

    /// Offset of a field in its descriptor, in bytes; `None` if it is missing.
    pub fn offset(&self, field: DescriptorField) -> Option<usize> {
        let at = self.words[field as usize];
        (at != ABSENT).then_some(usize::from(at) * WORD)
    }

    /// Offsets of the fields with a packet's first byte and its end.
    pub fn bounds(&self) -> [usize; 2] {
        [DescriptorField::Data, DescriptorField::End]
            .map(|field| usize::from(self.words[field as usize]) * WORD)
    }

    /// Fields of the layout, and the offset of each, in bytes; in their order.
    pub fn places(&self) -> impl Iterator<Item = (DescriptorField, usize)> + '_ {
        ALL.iter().filter_map(|&(field, ..)| Some((field, self.offset(field)?)))
    }

    /// Offset of the notes of look-ups, in bytes, and their number.
    pub fn notes(&self) -> (usize, usize) {
        (usize::from(self.ahead) * WORD, self.walks.into())
    }

    /// The number of the descriptor that begins this many bytes behind the first one.
    #[inline(always)]
    pub fn number(&self, bytes: usize) -> usize {
        // Exact: the rounding error for a number of descriptors is below one as long as there are fewer than
        // 2^26.
        ((bytes as u64).wrapping_mul(u64::from(self.inverse)) >> 32) as usize
    }

    /// A field of a descriptor; 0 if it is missing.
    #[inline(always)]
    pub(crate) fn get(&self, words: &[u32], field: DescriptorField) -> u32 {
        match self.words[field as usize] {
            ABSENT => 0,
            at => words[usize::from(at)],
        }
    }

    /// Writes a field of a descriptor, if it exists.
    #[inline(always)]
    pub(crate) fn set(&self, words: &mut [u32], field: DescriptorField, value: u32) {
        match self.words[field as usize] {
            ABSENT => {}
            at => words[usize::from(at)] = value,
        }
    }
}

/// Choice of a program's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LayoutPolicy {
    /// The fields that it accesses, contiguous.
    #[default]
    Packed,
    /// [`DescriptorLayout::WHOLE`], for any program.
    Whole,
    /// The fields that it accesses, in an order and with gaps determined by this number: the behaviour of
    /// programs does not depend on it.
    Shuffled(u64),
}

impl LayoutPolicy {
    /// Layout for a program that accesses these fields, and notes the progress of this many look-ups.
    pub fn layout(self, fields: DescriptorFieldSet, walks: usize) -> DescriptorLayout {
        let walks = walks.min(WALKS) as u8;
        match self {
            LayoutPolicy::Packed => DescriptorLayout::packed(fields, walks),
            LayoutPolicy::Whole => DescriptorLayout::WHOLE,
            LayoutPolicy::Shuffled(seed) => DescriptorLayout::shuffled(fields, walks, seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_looks_at_has_no_place_and_the_rest_no_gap() {
        for bits in 0..=DescriptorFieldSet::ALL.bits() {
            for walks in 0..=WALKS as u8 {
                let layout = DescriptorLayout::packed(DescriptorFieldSet::of_bits(bits), walks);
                let offsets: Vec<usize> = layout.places().map(|(_, offset)| offset).collect();
                let dense: Vec<usize> = (0..offsets.len()).map(|at| at * WORD).collect();
                assert_eq!(offsets, dense, "{layout:?}");
                let end = (offsets.len() * WORD, usize::from(walks));
                assert_eq!((layout.notes(), layout.stride()), (end, end.0 + end.1 * WORD));
                let absent = ALL.iter().filter(|(field, _, of)| {
                    assert_eq!(layout.offset(*field).is_some(), layout.fields().has(*of));
                    layout.offset(*field).is_none()
                });
                assert_eq!(absent.count() + offsets.len(), ALL.len());
            }
        }
        assert_eq!(DescriptorLayout::packed(DescriptorFieldSet::NONE, 0).stride(), 8);
    }

    #[test]
    fn what_cannot_be_followed_begins_as_the_kernels_context() {
        for layout in [DescriptorLayout::WHOLE, DescriptorLayout::shuffled(DescriptorFieldSet::ALL, 2, 7)] {
            for offset in (0..24).step_by(4) {
                let field = DescriptorField::of_context(offset).expect("a field of `struct xdp_md`");
                assert_eq!(layout.offset(field), Some(offset as usize));
            }
        }
    }

    #[test]
    fn in_any_order_each_field_has_a_place_of_its_own() {
        let fields =
            DescriptorFieldSet::of_bits(DescriptorFieldSet::ALL.bits() ^ DescriptorFieldSet::FIXED.bits());
        let mut others = 0;
        for seed in 0..200 {
            let layout = DescriptorLayout::shuffled(fields, 3, seed);
            let (notes, walks) = layout.notes();
            let notes = (0..walks).map(|at| notes + at * WORD);
            let mut all: Vec<usize> = layout.places().map(|(_, offset)| offset).chain(notes).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 13, "{layout:?}");
            assert!(all[12] + WORD <= layout.stride() && layout.stride() <= LONGEST * WORD);
            others += usize::from(layout.words != DescriptorLayout::packed(fields, 3).words);
        }
        assert!(others > 190);
    }

    #[test]
    fn descriptors_are_numbered_by_where_they_begin() {
        for fields in [DescriptorFieldSet::NONE, DescriptorFieldSet::ROOM, DescriptorFieldSet::ALL] {
            for walks in 0..=WALKS as u8 {
                let layout = DescriptorLayout::packed(fields, walks);
                for number in (0..300).chain([4095, 65_536, (1 << 20) - 1]) {
                    assert_eq!(layout.number(number * layout.stride()), number);
                }
            }
        }
    }
}
