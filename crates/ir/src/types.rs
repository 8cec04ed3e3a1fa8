//! Types of values.

use crate::entities::Map;

/// Provenance of a pointer: the kind of memory that it points to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Prov {
    /// The program's context (`struct xdp_md`, `struct __sk_buff`, ...).
    Ctx,
    /// Packet data.
    Packet,
    /// The end of packet data: only for comparison.
    PacketEnd,
    /// Packet metadata in front of the data.
    PacketMeta,
    /// A stack object of this function or of a caller.
    Stack,
    /// A value of this map, known not to be null.
    MapValue(Map),
    /// A value of this map, or null.
    MapValueOrNull(Map),
    /// The map object itself.
    Map(Map),
    /// A function, for callbacks.
    Func,
    /// A kernel object whose type the kernel knows by BTF.
    Btf,
    /// Memory that a helper handed out (ring buffer record, dynptr slice, ...), maybe null.
    Mem,
}

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A truth value, 0 or 1.
    I1,
    /// An 8-bit integer, held zero-extended.
    I8,
    /// A 16-bit integer, held zero-extended.
    I16,
    /// A 32-bit integer, held zero-extended.
    I32,
    /// A 64-bit integer.
    I64,
    /// A pointer.
    Ptr(Prov),
    /// A 64-bit word, integer or pointer: nothing is known.
    Any,
}

impl Type {
    /// Width of an integer type in bits; `None` for pointers and unknown words.
    pub const fn int_bits(self) -> Option<u32> {
        Some(match self {
            Type::I1 => 1,
            Type::I8 => 8,
            Type::I16 => 16,
            Type::I32 => 32,
            Type::I64 => 64,
            Type::Ptr(_) | Type::Any => return None,
        })
    }

    /// The narrowest integer type that holds `bits` bits.
    pub const fn int(bits: u32) -> Type {
        match bits {
            0..=1 => Type::I1,
            2..=8 => Type::I8,
            9..=16 => Type::I16,
            17..=32 => Type::I32,
            _ => Type::I64,
        }
    }

    /// Returns true if this is an integer type.
    pub const fn is_int(self) -> bool {
        self.int_bits().is_some()
    }

    /// The provenance, if this is a pointer.
    pub const fn prov(self) -> Option<Prov> {
        match self {
            Type::Ptr(p) => Some(p),
            _ => None,
        }
    }

    /// The least type that holds values of both.
    pub fn join(self, other: Type) -> Type {
        if self == other {
            return self;
        }
        match (self, other) {
            (Type::Ptr(Prov::MapValue(a)), Type::Ptr(Prov::MapValueOrNull(b)))
            | (Type::Ptr(Prov::MapValueOrNull(a)), Type::Ptr(Prov::MapValue(b)))
                if a == b =>
            {
                Type::Ptr(Prov::MapValueOrNull(a))
            }
            _ => match (self.int_bits(), other.int_bits()) {
                (Some(a), Some(b)) => Type::int(a.max(b)),
                _ => Type::Any,
            },
        }
    }
}
