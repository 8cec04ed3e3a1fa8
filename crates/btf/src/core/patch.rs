//! Putting a resolved value into an instruction.

use super::ResolvedRelo;
use millstream_isa::RawInsn;
use thiserror::Error;

/// The helper number that a poisoned instruction calls; the verifier's message for it, `invalid func
/// unknown#195896080`, is what libbpf's tools look for.
pub const POISON: i32 = 0xbad_2310;

const CLASS: u8 = 0x07;
const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_ALU64: u8 = 0x07;
const SOURCE_REGISTER: u8 = 0x08;
const SIZE: u8 = 0x18;
const LD_IMM64: u8 = 0x18;
const CALL: u8 = 0x85;

/// Why an instruction cannot take a value. Instructions are counted in slots.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The relocation lies outside the program.
    #[error("CO-RE relocation of instruction {0}, beyond the end")]
    OutOfRange(usize),
    /// The instruction has no constant that could be relocated.
    #[error("CO-RE relocation of instruction {at}, whose opcode {code:#04x} has no such constant")]
    BadInsn {
        /// The instruction.
        at: usize,
        /// Its opcode.
        code: u8,
    },
    /// The value in the instruction contradicts the program's own types.
    #[error("instruction {at} holds {found:#x}, its CO-RE relocation expects {expected:#x}")]
    Unexpected {
        /// The instruction.
        at: usize,
        /// The value that it holds.
        found: u64,
        /// The value that it should hold.
        expected: u64,
    },
    /// The offset does not fit in the instruction.
    #[error("instruction {at} cannot hold offset {value}")]
    OffsetTooLarge {
        /// The instruction.
        at: usize,
        /// The offset.
        value: u64,
    },
    /// The field's size does not exist for instructions, or is not the one the instruction has.
    #[error("instruction {at} accesses {found} bytes; the field has {original} as compiled, {target} here")]
    BadSize {
        /// The instruction.
        at: usize,
        /// Bytes that it accesses.
        found: u32,
        /// Size of the field as compiled.
        original: u32,
        /// Size of the field on the target.
        target: u32,
    },
}

/// Writes a value into instruction `at`, or poisons it. Constants of arithmetic, 64-bit constants, and
/// offsets of loads and stores can be relocated; a load's or store's size follows the field's where that is
/// safe, and the instruction is poisoned where it is not.
pub fn patch(insns: &mut [RawInsn], at: usize, r: &ResolvedRelo) -> Result<(), PatchError> {
    let insn = *insns.get(at).ok_or(PatchError::OutOfRange(at))?;
    let Some(value) = r.value else { return poison(insns, at) };
    let check = |found: u64| match r.check && found != r.original {
        true => Err(PatchError::Unexpected { at, found, expected: r.original }),
        false => Ok(()),
    };
    match insn.code & CLASS {
        CLASS_ALU | CLASS_ALU64 if insn.code & SOURCE_REGISTER == 0 => {
            check(i64::from(insn.imm) as u64)?;
            insns[at].imm = value as i32;
        }
        CLASS_LDX | CLASS_ST | CLASS_STX => {
            check(i64::from(insn.off) as u64)?;
            let off = i16::try_from(value).map_err(|_| PatchError::OffsetTooLarge { at, value })?;
            if r.access.is_some_and(|a| !a.adjustable) {
                return poison(insns, at);
            }
            insns[at].off = off;
            insns[at].code = resized(insn.code, at, r)?;
        }
        CLASS_LD if insn.code == LD_IMM64 && insn.src == 0 => {
            let next = insns.get(at + 1).ok_or(PatchError::OutOfRange(at + 1))?;
            check(u64::from(insn.imm as u32) | u64::from(next.imm as u32) << 32)?;
            insns[at].imm = value as i32;
            insns[at + 1].imm = (value >> 32) as i32;
        }
        _ => return Err(PatchError::BadInsn { at, code: insn.code }),
    }
    Ok(())
}

/// The opcode with the size of the target's field.
fn resized(code: u8, at: usize, r: &ResolvedRelo) -> Result<u8, PatchError> {
    let Some(a) = r.access.filter(|a| a.original != a.target) else { return Ok(code) };
    let found = match code & SIZE {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    };
    let bits = match a.target {
        4 => Some(0x00),
        2 => Some(0x08),
        1 => Some(0x10),
        8 => Some(0x18),
        _ => None,
    };
    let bad = PatchError::BadSize { at, found, original: a.original, target: a.target };
    match bits {
        Some(bits) if found == a.original => Ok(code & !SIZE | bits),
        _ => Err(bad),
    }
}

/// Both slots of a 64-bit constant are replaced: the second slot by itself would be no instruction.
fn poison(insns: &mut [RawInsn], at: usize) -> Result<(), PatchError> {
    let slots = if insns[at].code == LD_IMM64 { 2 } else { 1 };
    let end = at + slots;
    let places = insns.get_mut(at..end).ok_or(PatchError::OutOfRange(end - 1))?;
    places.fill(RawInsn { code: CALL, dst: 0, src: 0, off: 0, imm: POISON });
    Ok(())
}
