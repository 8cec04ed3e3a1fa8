//! Values and their places: scalars in words, aggregates in memory.

use millstream_ir::{AluOp, Cond, Size, Value};

use crate::emitter::{Address, AddressBase, Emitter};
use crate::types::{PREFIX, RuntimeType, access_size, element_size};

/// Largest object that is copied without a loop, in bytes.
const STRAIGHT_COPY: u32 = 512;

/// An object in memory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: Address,
    pub(crate) value_type: RuntimeType,
}

/// Number, boolean, error or member of an enumeration.
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) words: Vec<Value>,
    pub(crate) value_type: RuntimeType,
}

impl Scalar {
    pub(crate) fn width(&self) -> u32 {
        self.value_type.width().unwrap_or(0)
    }

    pub(crate) fn bits(words: Vec<Value>, width: u32) -> Scalar {
        Scalar { words, value_type: RuntimeType::Bits(width, false) }
    }

    pub(crate) fn truth(value: Value) -> Scalar {
        Scalar { words: vec![value], value_type: RuntimeType::Bool }
    }
}

/// Value of an expression.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Nothing,
    Scalar(Scalar),
    /// An aggregate, or a varbit.
    Memory(Place),
    /// Hit, and number of the action that ran, of an applied table.
    Applied {
        table: usize,
        hit: Value,
        action: Value,
    },
}

/// Target of an assignment.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Memory(Place),
    /// Bits of a scalar: lowest bit and width.
    Bits(Place, u32, u32),
    /// Bits of a scalar from a position that is not known: lowest bit and width.
    BitsAt(Place, Value, u32),
    Ignored,
}

impl Target {
    /// Type of a target that is a scalar.
    pub(crate) fn value_type(&self) -> RuntimeType {
        match self {
            Target::Memory(place) => place.value_type.clone(),
            Target::Bits(_, _, width) | Target::BitsAt(_, _, width) => RuntimeType::Bits(*width, false),
            Target::Ignored => RuntimeType::Other,
        }
    }
}

impl Place {
    pub(crate) fn new(address: Address, value_type: RuntimeType) -> Place {
        Place { address, value_type }
    }

    /// A field of a struct, header or union.
    pub(crate) fn field(&self, name: &str) -> Option<Place> {
        let field = self.value_type.record()?.field(name)?;
        Some(Place::new(self.address.plus(field.offset), field.field_type.clone()))
    }

    pub(crate) fn field_at(&self, index: usize) -> Option<Place> {
        let field = self.value_type.record()?.fields.get(index)?;
        Some(Place::new(self.address.plus(field.offset), field.field_type.clone()))
    }

    /// All fields in order.
    pub(crate) fn fields(&self) -> Vec<Place> {
        let count = self.value_type.record().map_or(0, |record| record.fields.len());
        (0..count).filter_map(|index| self.field_at(index)).collect()
    }

    /// An element of a stack whose index is known.
    pub(crate) fn element(&self, index: u32) -> Option<Place> {
        let RuntimeType::Stack(element, count) = &self.value_type else { return None };
        let offset = PREFIX + index * element_size(element);
        (index < *count).then(|| Place::new(self.address.plus(offset), (**element).clone()))
    }

    /// All elements of a stack.
    pub(crate) fn elements(&self) -> Vec<Place> {
        let RuntimeType::Stack(_, count) = &self.value_type else { return Vec::new() };
        (0..*count).filter_map(|index| self.element(index)).collect()
    }

    /// Tells if two objects certainly share no byte.
    pub(crate) fn is_disjoint(&self, other: &Place) -> bool {
        let (a, b) = (self.address, other.address);
        match (a.base, b.base) {
            (AddressBase::Slot(_), AddressBase::Pointer(_))
            | (AddressBase::Pointer(_), AddressBase::Slot(_)) => false,
            (AddressBase::Pointer(left), AddressBase::Pointer(right)) if left != right => false,
            (left, right) if left != right => true,
            _ => {
                let end = |p: &Place| i64::from(p.address.offset) + i64::from(p.value_type.size());
                end(self) <= i64::from(b.offset) || end(other) <= i64::from(a.offset)
            }
        }
    }
}

impl Emitter {
    /// A new object, zeroed.
    pub(crate) fn variable(&mut self, value_type: RuntimeType) -> Place {
        let slot = self.slot(value_type.size().next_multiple_of(8));
        let place = Place::new(Address::slot(slot), value_type);
        self.clear(&place);
        place
    }

    /// Sets an object to zero: headers become invalid, stacks empty.
    pub(crate) fn clear(&mut self, place: &Place) {
        let size = place.value_type.size();
        let zero = self.constant(0);
        if size > STRAIGHT_COPY {
            return self.word_loop(size, |e, offset| {
                let at = e.moved(place.address, offset);
                e.store(at, Size::Dw, zero);
            });
        }
        for (offset, size) in chunks(size) {
            self.store(place.address.plus(offset), size, zero);
        }
    }

    /// Copies an object to another one of equal layout.
    pub(crate) fn copy(&mut self, from: &Place, to: &Place) {
        let size = to.value_type.size();
        if from.address == to.address || size == 0 {
            return;
        }
        if size > STRAIGHT_COPY {
            return self.word_loop(size, |e, offset| {
                let (source, target) = (e.moved(from.address, offset), e.moved(to.address, offset));
                let word = e.load(source, Size::Dw);
                e.store(target, Size::Dw, word);
            });
        }
        let parts: Vec<(u32, Size)> = chunks(size).collect();
        let loaded: Vec<Value> =
            parts.iter().map(|(offset, size)| self.load(from.address.plus(*offset), *size)).collect();
        for ((offset, size), value) in parts.into_iter().zip(loaded) {
            self.store(to.address.plus(offset), size, value);
        }
    }

    /// Address that is moved by a number of bytes that is not known.
    pub(crate) fn moved(&mut self, address: Address, bytes: Value) -> Address {
        let base = self.pointer(address);
        Address::pointer(self.offset_pointer(base, bytes))
    }

    /// Runs code for each offset of a word below `size`.
    fn word_loop(&mut self, size: u32, code: impl FnOnce(&mut Emitter, Value)) {
        let end = self.constant(u64::from(size.next_multiple_of(8)));
        self.counted_loop(end, 8, code);
    }

    /// Runs code with each multiple of `step` below `end`.
    pub(crate) fn counted_loop(&mut self, end: Value, step: u64, code: impl FnOnce(&mut Emitter, Value)) {
        let (head, body, behind) = (self.new_block(), self.new_block(), self.new_block());
        let counter = self.parameter(head, millstream_ir::Type::I64);
        let zero = self.constant(0);
        self.jump_with(head, &[zero]);
        self.enter(head);
        self.branch(Cond::Lt, counter, end, body, behind);
        self.enter(body);
        code(self, counter);
        let next = self.alu_with(AluOp::Add, counter, step);
        self.jump_with(head, &[next]);
        self.enter(behind);
    }

    pub(crate) fn load_scalar(&mut self, place: &Place) -> Scalar {
        let width = place.value_type.width().unwrap_or(0);
        let words = match width <= 64 {
            true => vec![self.load(place.address, access_size(width))],
            false => (0..place.value_type.words() as u32)
                .map(|n| self.load(place.address.plus(8 * n), Size::Dw))
                .collect(),
        };
        Scalar { words, value_type: place.value_type.clone() }
    }

    pub(crate) fn store_scalar(&mut self, place: &Place, value: &Scalar) {
        let width = place.value_type.width().unwrap_or(0);
        if width <= 64 {
            return self.store(place.address, access_size(width), value.words[0]);
        }
        for (n, word) in value.words.iter().enumerate() {
            self.store(place.address.plus(8 * n as u32), Size::Dw, *word);
        }
    }

    /// Validity of a header.
    pub(crate) fn validity(&mut self, header: &Place) -> Value {
        match &header.value_type {
            RuntimeType::Union(_) => {
                let mut result = self.truth(false);
                for member in header.fields() {
                    let valid = self.validity(&member);
                    result = self.either(result, valid);
                }
                result
            }
            _ => {
                let byte = self.load(header.address, Size::B);
                self.as_truth(byte)
            }
        }
    }
}

/// Offsets and sizes of accesses that make `size` bytes, largest first.
pub(crate) fn chunks(size: u32) -> impl Iterator<Item = (u32, Size)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let part = match size - at {
            0 => return None,
            1 => Size::B,
            2 | 3 => Size::H,
            4..=7 => Size::W,
            _ => Size::Dw,
        };
        at += part.bytes();
        Some((at - part.bytes(), part))
    })
}
