//! A function's frame: registers and stack.

use std::rc::Rc;

use millstream_isa::absint::Scalar;
use millstream_isa::{Operand, Reg, Size};

use super::register::{RegisterValue, StateComparison, VerifierRegister};
use super::rules::WalkRules;

/// Bytes of a frame.
pub(super) const FRAME: i64 = 512;

/// A byte of the stack that holds no part of a spilled register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StackByte {
    /// Never written.
    Unwritten,
    /// Some value.
    Misc,
    /// Zero.
    Zero,
}

/// Eight bytes of the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum StackSlot {
    Bytes([StackByte; 8]),
    /// A register, stored by its low bytes: this many. Of the bytes above, those that are zero, a bit each.
    Spill(VerifierRegister, u8, u8),
}

/// One function on a path.
#[derive(Clone, Debug)]
pub(super) struct VerifierFrame {
    pub(super) func: u32,
    /// Its next line; in callers, the line behind the call.
    pub(super) line: usize,
    pub(super) regs: [VerifierRegister; 11],
    /// Slots from the frame's upper end downwards; paths and kept states share them until one writes.
    pub(super) stack: Rc<Vec<StackSlot>>,
    /// For a callback: the arguments of the helper that calls it.
    pub(super) outer: Option<Box<[VerifierRegister; 5]>>,
}

/// The slot of an offset from the frame's upper end.
pub(super) fn slot_of(off: i64) -> Option<usize> {
    (-FRAME..0).contains(&off).then(|| ((-off - 1) / 8) as usize)
}

/// The slots of an access, one bit each.
pub(super) fn slots_of(off: i64, bytes: i64) -> u64 {
    let end = off.saturating_add(bytes).min(0);
    let first = off.max(-FRAME).div_euclid(8) * 8;
    (first..end).step_by(8).filter_map(slot_of).fold(0, |bits, n| bits | 1 << n)
}

impl VerifierFrame {
    pub(super) fn new(func: u32) -> VerifierFrame {
        VerifierFrame {
            func,
            line: 0,
            regs: [VerifierRegister::UNINIT; 11],
            stack: Rc::default(),
            outer: None,
        }
    }

    pub(super) fn get(&self, r: Reg) -> VerifierRegister {
        self.regs[r.index()]
    }

    pub(super) fn set(&mut self, r: Reg, to: VerifierRegister) {
        self.regs[r.index()] = to;
    }

    /// Changes the registers and spilled registers that are selected.
    pub(super) fn change(
        &mut self,
        is_selected: impl Fn(&VerifierRegister) -> bool,
        mut change: impl FnMut(&mut VerifierRegister),
    ) {
        self.regs.iter_mut().filter(|reg| is_selected(reg)).for_each(&mut change);
        let selected = |slot: &StackSlot| matches!(slot, StackSlot::Spill(reg, ..) if is_selected(reg));
        let Some(first) = self.stack.iter().position(selected) else { return };
        for slot in &mut Rc::make_mut(&mut self.stack)[first..] {
            if let StackSlot::Spill(reg, ..) = slot
                && is_selected(reg)
            {
                change(reg);
            }
        }
    }

    /// Marks all numbers as precise (`mark_all_scalars_precise`).
    pub(super) fn mark_all(&mut self) {
        self.change(|v| v.is_number() && !v.precise, |v| v.precise = true);
    }

    fn slot_mut(&mut self, n: usize) -> &mut StackSlot {
        let stack = Rc::make_mut(&mut self.stack);
        if stack.len() <= n {
            stack.resize(n + 1, StackSlot::Bytes([StackByte::Unwritten; 8]));
        }
        &mut stack[n]
    }

    /// Stores a value; an address in pieces becomes bytes. Returns true if the slot holds the register now.
    pub(super) fn store(
        &mut self,
        rules: &WalkRules,
        off: i64,
        size: Size,
        (value, src): (VerifierRegister, Operand),
    ) -> bool {
        let Some(n) = slot_of(off) else { return false };
        let aligned = off.rem_euclid(8) == 0;
        let described = rules.spills_all_numbers
            || match src {
                Operand::Reg(_) => value.scalar() != Scalar::UNKNOWN,
                Operand::Imm(_) => true,
            } && value.scalar().as_constant() != Some(0);
        let spilled = aligned && if value.is_number() { described } else { size == Size::Dw };
        if spilled {
            let mut kept = value;
            if size != Size::Dw {
                let fits = value.scalar().unsigned().1 < 1 << size.bits();
                if !fits {
                    let low =
                        value.scalar().as_constant().map(|k| Scalar::constant(k & ((1 << size.bits()) - 1)));
                    kept = VerifierRegister::number(low.unwrap_or(Scalar::of_width(size.bits())));
                }
            }
            let slot = self.slot_mut(n);
            let above = u8::MAX.checked_shl(size.bytes()).unwrap_or(0);
            *slot = StackSlot::Spill(kept, size.bytes() as u8, zeros_of(slot) & above);
            return true;
        }
        let byte = match value.scalar().as_constant() {
            Some(0) if value.is_number() => StackByte::Zero,
            _ => StackByte::Misc,
        };
        self.fill(off, i64::from(size.bytes()), byte);
        false
    }

    /// Writes bytes of unknown contents, or zeros.
    pub(super) fn fill(&mut self, off: i64, bytes: i64, byte: StackByte) {
        for at in off.max(-FRAME)..(off + bytes).min(0) {
            let Some(n) = slot_of(at) else { continue };
            let slot = self.slot_mut(n);
            let mut own = bytes_of(*slot);
            own[at.rem_euclid(8) as usize] = byte;
            *slot = StackSlot::Bytes(own);
        }
    }

    /// Returns true if a slot holds a spilled register of this size, and no more.
    pub(super) fn holds(&self, off: i64, size: Size) -> bool {
        let slot = slot_of(off).filter(|_| off.rem_euclid(8) == 0).and_then(|n| self.stack.get(n));
        matches!(slot, Some(StackSlot::Spill(_, bytes, _)) if u32::from(*bytes) == size.bytes())
    }

    /// The value that a load gives, and true if it is that of a spilled register.
    pub(super) fn load(
        &self,
        rules: &WalkRules,
        off: i64,
        size: Size,
        signed: bool,
    ) -> (VerifierRegister, bool) {
        let plain = if signed { signed_load(size) } else { Scalar::of_width(size.bits()) };
        let unknown = (VerifierRegister::number(plain), false);
        let Some(slot) = slot_of(off).and_then(|n| self.stack.get(n)) else { return unknown };
        match slot {
            StackSlot::Spill(reg, bytes, _) => {
                let whole = off.rem_euclid(8) == 0 && u32::from(*bytes) == size.bytes();
                if whole && !signed {
                    return (VerifierRegister { precise: false, ..*reg }, true);
                }
                if !rules.spills_all_numbers {
                    return unknown;
                }
                let part = off.rem_euclid(8) == 0 && u32::from(*bytes) > size.bytes() && reg.is_number();
                let fits = reg.scalar().unsigned().1 < 1u64 << size.bits().min(63);
                if part && fits && !signed {
                    return (VerifierRegister { precise: false, ..*reg }, true);
                }
                let inside = off.rem_euclid(8) + i64::from(size.bytes()) <= i64::from(*bytes);
                match reg.scalar().as_constant() {
                    Some(0) if reg.is_number() && inside => {
                        (VerifierRegister::number(Scalar::constant(0)), true)
                    }
                    _ => (unknown.0, inside),
                }
            }
            StackSlot::Bytes(bytes) => {
                let first = off.rem_euclid(8) as usize;
                let read = bytes.iter().skip(first).take(size.bytes() as usize);
                let zero = read.clone().all(|b| *b == StackByte::Zero);
                if zero { (VerifierRegister::number(Scalar::constant(0)), false) } else { unknown }
            }
        }
    }
}

/// The bytes of a slot when it is written in part.
fn bytes_of(slot: StackSlot) -> [StackByte; 8] {
    match slot {
        StackSlot::Bytes(bytes) => bytes,
        StackSlot::Spill(_, size, _) => {
            std::array::from_fn(
                |n| if n < usize::from(size) { StackByte::Misc } else { StackByte::Unwritten },
            )
        }
    }
}

/// The bytes of a slot that are zero and no part of a register, a bit each.
fn zeros_of(slot: &StackSlot) -> u8 {
    match slot {
        StackSlot::Bytes(bytes) => {
            bytes.iter().enumerate().fold(0, |bits, (n, b)| bits | u8::from(*b == StackByte::Zero) << n)
        }
        StackSlot::Spill(_, _, zeros) => *zeros,
    }
}

pub(super) fn signed_load(size: Size) -> Scalar {
    let half = 1i64 << (size.bits() - 1);
    if size == Size::Dw { Scalar::UNKNOWN } else { Scalar::signed_range(-half, half - 1) }
}

/// A number of which nothing is known.
static UNKNOWN: VerifierRegister =
    VerifierRegister { value: RegisterValue::Number(Scalar::UNKNOWN), ..VerifierRegister::UNINIT };

/// The number in a slot of whose eight bytes nothing is known.
fn as_number(slot: &StackSlot) -> Option<&VerifierRegister> {
    match slot {
        StackSlot::Spill(reg, 8, _) if reg.is_number() => Some(reg),
        StackSlot::Bytes(bytes) if bytes.iter().all(|b| *b != StackByte::Zero) => Some(&UNKNOWN),
        _ => None,
    }
}

/// Returns true if a slot of an older state covers the new one (`stacksafe`).
pub(super) fn is_slot_covered(
    comparison: &mut StateComparison<'_>,
    old: &StackSlot,
    new: Option<&StackSlot>,
) -> bool {
    let none = StackSlot::Bytes([StackByte::Unwritten; 8]);
    let new = new.unwrap_or(&none);
    if comparison.rules.spills_all_numbers
        && let (Some(a), Some(b)) = (as_number(old), as_number(new))
    {
        return comparison.is_covered(a, b);
    }
    // Whoever may read bytes that were never written is safe with any bytes, but for zeros.
    let zeros = zeros_of(old) & !zeros_of(new) == 0;
    match (old, new) {
        (StackSlot::Spill(a, m, _), StackSlot::Spill(b, n, _)) => {
            zeros && m <= n && comparison.is_covered(a, b)
        }
        (StackSlot::Bytes(_), _) => zeros,
        (StackSlot::Spill(..), StackSlot::Bytes(_)) => false,
    }
}
