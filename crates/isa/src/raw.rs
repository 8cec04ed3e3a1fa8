//! The 8-byte slot, and what can be wrong with one.

use crate::ByteOrder;
use std::fmt;

/// One 8-byte slot, the kernel's `struct bpf_insn`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RawInsn {
    /// Opcode.
    pub code: u8,
    /// Destination register, 4 bits.
    pub dst: u8,
    /// Source register, 4 bits.
    pub src: u8,
    /// Offset.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl fmt::Debug for RawInsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x} dst={} src={} off={} imm={:#x}", self.code, self.dst, self.src, self.off, self.imm)
    }
}

impl RawInsn {
    /// The slot in the form of a little-endian kernel.
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.off.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.code, self.src << 4 | self.dst & 15, o0, o1, i0, i1, i2, i3]
    }

    /// Reads one little-endian slot.
    pub fn from_bytes(b: [u8; 8]) -> RawInsn {
        RawInsn {
            code: b[0],
            dst: b[1] & 15,
            src: b[1] >> 4,
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// The slot in the form of a kernel of this byte order: see [`RawInsn::from_bytes_in`].
    pub fn to_bytes_in(self, order: ByteOrder) -> [u8; 8] {
        match order {
            ByteOrder::Little => self.to_bytes(),
            ByteOrder::Big => {
                let [o0, o1] = self.off.to_be_bytes();
                let [i0, i1, i2, i3] = self.imm.to_be_bytes();
                [self.with_host(order).code, self.dst << 4 | self.src & 15, o0, o1, i0, i1, i2, i3]
            }
        }
    }

    /// Reads one slot of a program for a machine of this byte order.
    ///
    /// Of a big-endian machine, the slot stands for what it does there: `be16` and its like, which keep the
    /// order of such a machine, are read as `le16`, and the other way round. So registers have the same
    /// semantics whatever the machine is. [`RawInsn::with_host`] gives the names that the machine has.
    pub fn from_bytes_in(b: [u8; 8], order: ByteOrder) -> RawInsn {
        match order {
            ByteOrder::Little => RawInsn::from_bytes(b),
            ByteOrder::Big => {
                let slot = RawInsn {
                    code: b[0],
                    dst: b[1] >> 4,
                    src: b[1] & 15,
                    off: i16::from_be_bytes([b[2], b[3]]),
                    imm: i32::from_be_bytes([b[4], b[5], b[6], b[7]]),
                };
                slot.with_host(order)
            }
        }
    }

    /// Exchanges `le` and `be` of byte order operations if the machine is big-endian.
    pub const fn with_host(self, order: ByteOrder) -> RawInsn {
        const TO_LE: u8 = 0xd4;
        const TO_BE: u8 = 0xdc;
        let code = match (order, self.code) {
            (ByteOrder::Big, TO_LE) => TO_BE,
            (ByteOrder::Big, TO_BE) => TO_LE,
            (_, code) => code,
        };
        RawInsn { code, ..self }
    }

    /// Splits a byte string into slots; `None` if its length is no multiple of 8.
    pub fn slice_from_bytes(bytes: &[u8]) -> Option<Vec<RawInsn>> {
        RawInsn::slice_from_bytes_in(bytes, ByteOrder::Little)
    }

    /// As [`RawInsn::slice_from_bytes`], of a program for a machine of this byte order.
    pub fn slice_from_bytes_in(bytes: &[u8], order: ByteOrder) -> Option<Vec<RawInsn>> {
        let (slots, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then(|| slots.iter().map(|s| RawInsn::from_bytes_in(*s, order)).collect())
    }
}

/// Why a slot is no instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The opcode is not known.
    #[error("slot {at}: unknown opcode {code:#04x} (src {src}, off {off}, imm {imm:#x})")]
    Opcode {
        /// Slot index.
        at: usize,
        /// Opcode byte.
        code: u8,
        /// Source field.
        src: u8,
        /// Offset field.
        off: i16,
        /// Immediate field.
        imm: i32,
    },
    /// A register number above 10.
    #[error("slot {at}: register r{reg} does not exist")]
    Register {
        /// Slot index.
        at: usize,
        /// Offending number.
        reg: u8,
    },
    /// The second slot of `ld_imm64` is missing or is not one.
    #[error("slot {at}: ld_imm64 without its second slot")]
    Truncated {
        /// Slot index.
        at: usize,
    },
    /// A field that must be zero is not.
    #[error("slot {at}: reserved field set in opcode {code:#04x}")]
    Reserved {
        /// Slot index.
        at: usize,
        /// Opcode byte.
        code: u8,
    },
}
