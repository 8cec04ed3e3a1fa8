//! Registers as the verifier describes them, and when one description covers another.

use millstream_isa::absint::{Scalar, Tnum};
use rustc_hash::FxHashMap;

use super::rules::WalkRules;

/// Memory or object that a pointer points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PointerTarget {
    /// The program's context.
    Context,
    /// The stack of a frame, counted from the outermost.
    Stack(u8),
    /// A map.
    Map(u32),
    /// A map that was found in this map of maps.
    InnerMap(u32),
    /// A value of a map; of a map of maps: of a map in it.
    MapValue(u32),
    /// The packet, or what precedes it.
    Packet,
    /// The end of the packet.
    PacketEnd,
    /// A function of the program.
    Function(u32),
    /// An object of the kernel, or memory that a helper gave.
    Object,
}

/// The pointer was compared with the end of the packet: it points beyond it.
pub(super) const BEYOND_END: i32 = -2;
/// As before: it points to it, or beyond.
pub(super) const AT_END: i32 = -1;

/// A pointer: its target, constant and variable offset, and for packets the number of bytes known to exist.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct VerifierPointer {
    pub(super) target: PointerTarget,
    /// It may be null.
    pub(super) nullable: bool,
    pub(super) off: i64,
    pub(super) variable: Scalar,
    pub(super) range: i32,
}

impl VerifierPointer {
    pub(super) fn to(target: PointerTarget) -> VerifierPointer {
        VerifierPointer { target, nullable: false, off: 0, variable: Scalar::constant(0), range: 0 }
    }

    /// The constant distance from the target's base, if the variable part is 0.
    pub(super) fn fixed(&self) -> Option<i64> {
        self.variable.as_constant().map(|k| self.off.wrapping_add(k as i64))
    }
}

/// Contents of a register.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum RegisterValue {
    /// Never written, or overwritten by a call.
    Uninit,
    /// A number.
    Number(Scalar),
    /// A pointer.
    Pointer(VerifierPointer),
}

/// A register or a spilled one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct VerifierRegister {
    pub(super) value: RegisterValue,
    /// Name that copies of a number, or pointers with one base, share; 0 for none.
    pub(super) id: u32,
    /// Distance from the number that has the name.
    pub(super) delta: i32,
    /// The exact number counts. Set in kept states only.
    pub(super) precise: bool,
}

impl VerifierRegister {
    pub(super) const UNINIT: VerifierRegister =
        VerifierRegister { value: RegisterValue::Uninit, id: 0, delta: 0, precise: false };

    pub(super) fn number(value: Scalar) -> VerifierRegister {
        VerifierRegister { value: RegisterValue::Number(value), ..VerifierRegister::UNINIT }
    }

    pub(super) fn pointer(pointer: VerifierPointer, id: u32) -> VerifierRegister {
        VerifierRegister { value: RegisterValue::Pointer(pointer), id, ..VerifierRegister::UNINIT }
    }

    /// The number; everything for a pointer.
    pub(super) fn scalar(&self) -> Scalar {
        match self.value {
            RegisterValue::Number(x) => x,
            _ => Scalar::UNKNOWN,
        }
    }

    pub(super) fn as_pointer(&self) -> Option<VerifierPointer> {
        if let RegisterValue::Pointer(p) = self.value { Some(p) } else { None }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self.value, RegisterValue::Number(_))
    }
}

/// Correspondence of the names of an older state and a newer one.
#[derive(Default)]
struct IdMap {
    new_of: FxHashMap<u32, u32>,
    old_of: FxHashMap<u32, u32>,
    /// Numbers without a name that were compared.
    own: u32,
}

impl IdMap {
    fn matches(&mut self, old: u32, new: u32) -> bool {
        if (old == 0) != (new == 0) {
            return false;
        }
        old == 0
            || *self.new_of.entry(old).or_insert(new) == new && *self.old_of.entry(new).or_insert(old) == old
    }

    /// The same for numbers: the older one may have no name, and a newer one without has one of its own
    /// (`check_scalar_ids`).
    fn matches_number(&mut self, old: u32, new: u32) -> bool {
        if new == 0 {
            self.own += 1;
        }
        old == 0 || self.matches(old, if new == 0 { u32::MAX - self.own } else { new })
    }
}

/// Returns true if every number of `new` is one of `old`, as the verifier compares them.
pub(super) fn is_within(new: &Scalar, old: &Scalar) -> bool {
    let inside =
        |new: Tnum, old: Tnum| new.mask() & !old.mask() == 0 && new.value() & !old.mask() == old.value();
    let within = |new: (u64, u64), old: (u64, u64)| old.0 <= new.0 && new.1 <= old.1;
    let signed = |new: (i64, i64), old: (i64, i64)| old.0 <= new.0 && new.1 <= old.1;
    let low = |x: (u32, u32)| (u64::from(x.0), u64::from(x.1));
    let low_signed = |x: (i32, i32)| (i64::from(x.0), i64::from(x.1));
    inside(new.bits(), old.bits())
        && within(new.unsigned(), old.unsigned())
        && signed(new.signed(), old.signed())
        && within(low(new.unsigned32()), low(old.unsigned32()))
        && signed(low_signed(new.signed32()), low_signed(old.signed32()))
}

/// A comparison of an older state with a newer one.
pub(super) struct StateComparison<'a> {
    pub(super) rules: &'a WalkRules,
    /// All numbers count, and not only those that are precise.
    pub(super) whole: bool,
    ids: IdMap,
}

impl StateComparison<'_> {
    pub(super) fn new(rules: &WalkRules, whole: bool) -> StateComparison<'_> {
        StateComparison { rules, whole, ids: IdMap::default() }
    }

    /// Returns true if the verifier takes a register of the older state for one that covers the new one
    /// (`regsafe`).
    pub(super) fn is_covered(&mut self, old: &VerifierRegister, new: &VerifierRegister) -> bool {
        match (&old.value, &new.value) {
            (RegisterValue::Uninit, _) => true,
            (RegisterValue::Number(a), RegisterValue::Number(b)) => {
                let mut is_linked = || {
                    !self.rules.names_numbers
                        || old.id == 0
                        || old.delta == new.delta && self.ids.matches_number(old.id, new.id)
                };
                // Names of numbers that do not count are not entered in the map.
                !(old.precise || self.whole) || is_within(b, a) && is_linked()
            }
            (RegisterValue::Pointer(a), RegisterValue::Pointer(b)) => {
                a.target == b.target
                    && a.nullable == b.nullable
                    && a.off == b.off
                    && (a.range == b.range || 0 <= a.range && a.range < b.range)
                    && is_within(&b.variable, &a.variable)
                    && self.ids.matches(old.id, new.id)
            }
            _ => false,
        }
    }
}
