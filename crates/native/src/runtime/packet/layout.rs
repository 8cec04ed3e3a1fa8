//! Where the fields of descriptors lie: a layout for each program.
//!
//! Those that nobody looks at have no place. The others lie one behind the other, first those that are written when a packet comes, so that a burst
//! is written front to back, then those that the code writes itself. A descriptor is as long as that, and the next one follows.
//!
//! Invariant: a context that goes where it cannot be followed ([`Fields::FIXED`]) begins as `struct xdp_md`.

use serde::{Deserialize, Serialize};

use crate::fields::Fields;

/// A field of a descriptor, a word of 32 bits each; in the order in which they lie. The first six are those of `struct xdp_md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The address of the packet's first byte.
    Data,
    /// That of the byte behind its last one.
    End,
    /// That of its metadata; in graphs of the first byte that it may begin at.
    Meta,
    /// The interface, or the source of a graph, that it came by.
    Ingress,
    /// The queue of that.
    Queue,
    /// The interface that it leaves by: 0.
    Egress,
    /// The address where its buffer begins.
    Start,
    /// Whether it is a graph's: there is no metadata.
    Open,
    /// Where it is redirected to: interface or key.
    Target,
    /// What the program returned, cut to 32 bits.
    Verdict,
    /// Which packet of the batch it was, or is a copy of.
    Origin,
}

/// All fields, their names, and which set has each. Where a packet lies is in all of them.
const ALL: [(Field, &str, Fields); 11] = [
    (Field::Data, "data", Fields::NONE),
    (Field::End, "end", Fields::NONE),
    (Field::Meta, "room in front", Fields::ROOM),
    (Field::Ingress, "ingress", Fields::INGRESS),
    (Field::Queue, "queue", Fields::QUEUE),
    (Field::Egress, "egress", Fields::FIXED),
    (Field::Start, "buffer", Fields::ROOM),
    (Field::Open, "of a graph", Fields::ROOM),
    (Field::Target, "target", Fields::TARGET),
    (Field::Verdict, "verdict", Fields::VERDICT),
    (Field::Origin, "origin", Fields::ORIGIN),
];

/// Bytes of a field.
pub(crate) const WORD: usize = size_of::<u32>();
/// Words of the longest descriptor.
pub(crate) const LONGEST: usize = 16;
/// Look-ups that code notes in a packet how far it has fetched for, at most.
pub(crate) const WALKS: usize = 4;
const _: () = assert!(ALL.len() + WALKS <= LONGEST, "all fields are a cache line at most");
/// The place of a field that is not there.
const ABSENT: u8 = u8::MAX;

impl Field {
    /// The field at this place of `struct xdp_md`, in bytes.
    pub fn of_context(offset: i32) -> Option<Field> {
        match offset {
            0 => Some(Field::Data),
            4 => Some(Field::End),
            8 => Some(Field::Meta),
            12 => Some(Field::Ingress),
            16 => Some(Field::Queue),
            20 => Some(Field::Egress),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Whether it is written when a packet comes; else by code, or once.
    pub fn is_received(self) -> bool {
        !matches!(self, Field::Egress | Field::Verdict | Field::Origin)
    }
}

/// Where fields lie in descriptors of a program's packets, in words, and how long these are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    fields: Fields,
    words: [u8; ALL.len()],
    /// How far fetching ahead has come for it, a word for each of so many look-ups: for code only, which believes nothing of it.
    ahead: u8,
    walks: u8,
    stride: u8,
    /// 2^32 by the bytes of a descriptor, rounded up.
    inverse: u32,
    /// Whether it is that of [`Layout::packed`].
    packed: bool,
    /// Copies that a packet of it becomes at most; 0 if that is not known.
    copies: u32,
}

impl Layout {
    /// With all fields, at the places of `struct xdp_md` those that it has.
    pub const WHOLE: Layout = Layout::packed(Fields::ALL, WALKS as u8);

    /// Of these fields and no others, with room for notes of so many look-ups.
    pub(crate) const fn packed(fields: Fields, walks: u8) -> Layout {
        let mut words = [ABSENT; ALL.len()];
        let (mut field, mut at) = (0, 0);
        while field < ALL.len() {
            if fields.has(ALL[field].2) {
                words[field] = at;
                at += 1;
            }
            field += 1;
        }
        Layout::of_places(fields, words, (at, walks), at + walks, true)
    }

    const fn of_places(
        fields: Fields,
        words: [u8; ALL.len()],
        (ahead, walks): (u8, u8),
        stride: u8,
        packed: bool,
    ) -> Layout {
        let inverse = (1u64 << 32).div_ceil(stride as u64 * WORD as u64) as u32;
        Layout { fields, words, ahead, walks, stride, inverse, packed, copies: 0 }
    }

    /// The same fields in another order, with gaps: any, by this number. Where they are fixed they stay.
    pub(crate) fn shuffled(fields: Fields, walks: u8, seed: u64) -> Layout {
        let packed = Layout::packed(fields, walks);
        if fields.has(Fields::FIXED) {
            return packed;
        }
        let mut state = seed;
        let mut below = |bound: u8| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(bound)) as u8
        };
        let stride = packed.stride + below(LONGEST as u8 + 1 - packed.stride);
        // The notes are one behind the other.
        let ahead = below(stride + 1 - walks);
        let mut free: Vec<u8> = (0..stride).filter(|at| !(ahead..ahead + walks).contains(at)).collect();
        let words = packed
            .words
            .map(|at| if at == ABSENT { at } else { free.swap_remove(below(free.len() as u8).into()) });
        Layout::of_places(fields, words, (ahead, walks), stride, false)
    }

    /// The same, of packets that become so many copies at most.
    pub(crate) fn copying(self, copies: u32) -> Layout {
        Layout { copies, ..self }
    }

    /// Copies that a packet becomes at most; 0 if that is not known.
    pub(crate) fn copies(&self) -> u32 {
        self.copies
    }

    /// The fields that it has.
    pub fn fields(&self) -> Fields {
        self.fields
    }

    /// Whether fields lie one behind the other, in their order.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed
    }

    /// Words of a descriptor.
    #[inline(always)]
    pub(crate) const fn words(&self) -> usize {
        self.stride as usize
    }

    /// Bytes from a descriptor to the next one.
    pub fn stride(&self) -> usize {
        self.words() * WORD
    }

    /// Where a field lies, in bytes from the beginning of its descriptor; `None` if there is none.
    pub fn offset(&self, field: Field) -> Option<usize> {
        let at = self.words[field as usize];
        (at != ABSENT).then_some(usize::from(at) * WORD)
    }

    /// Where a packet's first byte and its end are said.
    pub(crate) fn bounds(&self) -> [usize; 2] {
        [Field::Data, Field::End].map(|field| usize::from(self.words[field as usize]) * WORD)
    }

    /// Fields that there are, and where each lies, in bytes; in their order.
    pub fn places(&self) -> impl Iterator<Item = (Field, usize)> + '_ {
        ALL.iter().filter_map(|&(field, ..)| Some((field, self.offset(field)?)))
    }

    /// Where notes of look-ups are, in bytes, and how many there are.
    pub fn notes(&self) -> (usize, usize) {
        (usize::from(self.ahead) * WORD, self.walks.into())
    }

    /// The number of the descriptor that begins so many bytes behind the first one.
    #[inline(always)]
    pub(crate) fn number(&self, bytes: usize) -> usize {
        // Exact, since what rounding adds to a number of descriptors is below one as long as these are fewer than 2^26.
        ((bytes as u64).wrapping_mul(u64::from(self.inverse)) >> 32) as usize
    }

    /// A field of a descriptor; 0 if there is none.
    #[inline(always)]
    pub(crate) fn get(&self, words: &[u32], field: Field) -> u32 {
        match self.words[field as usize] {
            ABSENT => 0,
            at => words[usize::from(at)],
        }
    }

    /// Writes a field of a descriptor, if there is one.
    #[inline(always)]
    pub(crate) fn set(&self, words: &mut [u32], field: Field, value: u32) {
        match self.words[field as usize] {
            ABSENT => {}
            at => words[usize::from(at)] = value,
        }
    }
}

/// How a program's layout is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Descriptors {
    /// By the fields that it looks at.
    #[default]
    Packed,
    /// [`Layout::WHOLE`], for whatever program.
    Whole,
    /// The fields that it looks at, in an order and with gaps by this number: what programs do does not depend on it.
    Shuffled(u64),
}

impl Descriptors {
    pub(crate) fn layout(self, fields: Fields, walks: usize) -> Layout {
        let walks = walks.min(WALKS) as u8;
        match self {
            Descriptors::Packed => Layout::packed(fields, walks),
            Descriptors::Whole => Layout::WHOLE,
            Descriptors::Shuffled(seed) => Layout::shuffled(fields, walks, seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_looks_at_has_no_place_and_the_rest_no_gap() {
        for bits in 0..=Fields::ALL.bits() {
            for walks in 0..=WALKS as u8 {
                let layout = Layout::packed(Fields::of_bits(bits), walks);
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
        assert_eq!(Layout::packed(Fields::NONE, 0).stride(), 8);
    }

    #[test]
    fn what_cannot_be_followed_begins_as_the_kernels_context() {
        for layout in [Layout::WHOLE, Layout::shuffled(Fields::ALL, 2, 7)] {
            for offset in (0..24).step_by(4) {
                let field = Field::of_context(offset).expect("a field of `struct xdp_md`");
                assert_eq!(layout.offset(field), Some(offset as usize));
            }
        }
    }

    #[test]
    fn in_any_order_each_field_has_a_place_of_its_own() {
        let fields = Fields::of_bits(Fields::ALL.bits() ^ Fields::FIXED.bits());
        let mut others = 0;
        for seed in 0..200 {
            let layout = Layout::shuffled(fields, 3, seed);
            let (notes, walks) = layout.notes();
            let notes = (0..walks).map(|at| notes + at * WORD);
            let mut all: Vec<usize> = layout.places().map(|(_, offset)| offset).chain(notes).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 13, "{layout:?}");
            assert!(all[12] + WORD <= layout.stride() && layout.stride() <= LONGEST * WORD);
            others += usize::from(layout.words != Layout::packed(fields, 3).words);
        }
        assert!(others > 190);
    }

    #[test]
    fn descriptors_are_numbered_by_where_they_begin() {
        for fields in [Fields::NONE, Fields::ROOM, Fields::ALL] {
            for walks in 0..=WALKS as u8 {
                let layout = Layout::packed(fields, walks);
                for number in (0..300).chain([4095, 65_536, (1 << 20) - 1]) {
                    assert_eq!(layout.number(number * layout.stride()), number);
                }
            }
        }
    }
}
