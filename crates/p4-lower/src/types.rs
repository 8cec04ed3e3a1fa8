//! Types of values at run time, with their layout in memory.
//!
//! Scalars have the size of the next power of two in bytes, in the byte order of the host; those wider than
//! 64 bits are words, least significant first. Aggregates are aligned to 8 bytes and padded to a multiple of
//! 8. A header begins with its validity (one byte), a stack with the index of its next element (32 bits), a
//! varbit with its length in bits (32 bits), behind which its bytes follow in packet order. A stack has one
//! element more than declared: accesses outside of the stack go there. Members of a union do not overlap.

use std::rc::Rc;

use millstream_ir::Size;
use millstream_p4::{NominalId, Symbol};

/// Largest object in memory, in bytes.
pub(crate) const LARGEST_OBJECT: u32 = 1 << 20;

/// A type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RuntimeType {
    Void,
    Bool,
    /// Width and sign.
    Bits(u32, bool),
    /// Largest width.
    Varbit(u32),
    /// A number without a width.
    Integer,
    Text,
    /// Errors and enumerations without values: an index of 32 bits.
    Enumeration(Option<NominalId>),
    Struct(Rc<RecordType>),
    Header(Rc<RecordType>),
    Union(Rc<RecordType>),
    Stack(Rc<RuntimeType>, u32),
    /// Externs, parsers, controls, packages, with type arguments.
    Object(NominalId, Vec<RuntimeType>),
    /// Sets of values, results of tables, and what has no value of its own.
    Other,
}

/// A struct, tuple, header or union.
#[derive(Debug)]
pub(crate) struct RecordType {
    /// Declaration; tuples have none.
    pub(crate) nominal: Option<NominalId>,
    pub(crate) fields: Vec<RecordField>,
    /// Bytes.
    pub(crate) size: u32,
}

impl PartialEq for RecordType {
    fn eq(&self, other: &RecordType) -> bool {
        self.nominal == other.nominal
            && self.fields.len() == other.fields.len()
            && self.fields.iter().zip(&other.fields).all(|(a, b)| a.field_type == b.field_type)
    }
}

/// A field.
#[derive(Clone, Debug)]
pub(crate) struct RecordField {
    pub(crate) name: Symbol,
    pub(crate) field_type: RuntimeType,
    /// Bytes from the start of the record.
    pub(crate) offset: u32,
}

impl RecordType {
    /// Lays fields out behind `start` bytes.
    pub(crate) fn new(
        nominal: Option<NominalId>,
        start: u32,
        fields: impl IntoIterator<Item = (Symbol, RuntimeType)>,
    ) -> RecordType {
        let mut offset = start;
        let mut list = Vec::new();
        for (name, field_type) in fields {
            offset = offset.next_multiple_of(field_type.align());
            let size = field_type.size();
            list.push(RecordField { name, field_type, offset });
            offset = offset.saturating_add(size).min(LARGEST_OBJECT * 2);
        }
        RecordType { nominal, fields: list, size: offset.next_multiple_of(8).max(8) }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&RecordField> {
        self.fields.iter().find(|field| &*field.name == name)
    }
}

/// Bytes of the header of a stack or varbit in front of its contents.
pub(crate) const PREFIX: u32 = 8;

impl RuntimeType {
    pub(crate) fn tuple(elements: impl IntoIterator<Item = RuntimeType>) -> RuntimeType {
        let fields = elements.into_iter().enumerate().map(|(n, t)| (Symbol::from(format!("f{n}")), t));
        RuntimeType::Struct(Rc::new(RecordType::new(None, 0, fields)))
    }

    /// Width of a scalar in bits.
    pub(crate) fn width(&self) -> Option<u32> {
        match self {
            RuntimeType::Bool => Some(1),
            RuntimeType::Bits(width, _) => Some(*width),
            RuntimeType::Enumeration(_) => Some(32),
            _ => None,
        }
    }

    pub(crate) fn is_scalar(&self) -> bool {
        self.width().is_some()
    }

    pub(crate) fn is_signed(&self) -> bool {
        matches!(self, RuntimeType::Bits(_, true))
    }

    /// Words of a scalar.
    pub(crate) fn words(&self) -> usize {
        words_of(self.width().unwrap_or(0))
    }

    /// Bytes in memory.
    pub(crate) fn size(&self) -> u32 {
        match self {
            RuntimeType::Bool => 1,
            RuntimeType::Bits(width, _) => scalar_size(*width),
            RuntimeType::Enumeration(_) => 4,
            RuntimeType::Varbit(width) => PREFIX + width.div_ceil(8).next_multiple_of(8),
            RuntimeType::Struct(record) | RuntimeType::Header(record) | RuntimeType::Union(record) => {
                record.size
            }
            RuntimeType::Stack(element, count) => {
                let all = element_size(element).saturating_mul(count.saturating_add(1));
                PREFIX.saturating_add(all).min(LARGEST_OBJECT * 2)
            }
            _ => 0,
        }
    }

    pub(crate) fn align(&self) -> u32 {
        match self {
            RuntimeType::Bool => 1,
            RuntimeType::Bits(width, _) => scalar_size(*width).clamp(1, 8),
            RuntimeType::Enumeration(_) => 4,
            _ => 8,
        }
    }

    /// The record of an aggregate.
    pub(crate) fn record(&self) -> Option<&Rc<RecordType>> {
        match self {
            RuntimeType::Struct(record) | RuntimeType::Header(record) | RuntimeType::Union(record) => {
                Some(record)
            }
            _ => None,
        }
    }

    /// Bits in a packet or another byte string, varbits at their largest.
    pub(crate) fn packed_bits(&self) -> u32 {
        match self {
            RuntimeType::Varbit(width) => *width,
            RuntimeType::Stack(element, count) => element.packed_bits().saturating_mul(*count),
            RuntimeType::Union(record) => {
                record.fields.iter().map(|f| f.field_type.packed_bits()).max().unwrap_or(0)
            }
            other => match other.record() {
                Some(record) => {
                    record.fields.iter().fold(0u32, |sum, f| sum.saturating_add(f.field_type.packed_bits()))
                }
                None => other.width().unwrap_or(0),
            },
        }
    }
}

/// Words of a scalar of this width.
pub(crate) fn words_of(width: u32) -> usize {
    width.div_ceil(64).max(1) as usize
}

/// Distance of elements of a stack.
pub(crate) fn element_size(element: &RuntimeType) -> u32 {
    element.size().next_multiple_of(8)
}

fn scalar_size(width: u32) -> u32 {
    match width {
        0..=8 => 1,
        9..=16 => 2,
        17..=32 => 4,
        _ => 8 * width.div_ceil(64),
    }
}

/// Size of the memory access of a scalar of one word.
pub(crate) fn access_size(width: u32) -> Size {
    match width {
        0..=8 => Size::B,
        9..=16 => Size::H,
        17..=32 => Size::W,
        _ => Size::Dw,
    }
}
