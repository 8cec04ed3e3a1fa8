//! A set of 64-bit values, as the kernel's verifier describes a scalar register.

use super::{Tnum, VerifierRules};

/// Known bits and four intervals: of the whole value, unsigned and signed, and of its low half, unsigned and
/// signed.
///
/// The intervals are inclusive and never empty, and have been told all that the others know
/// ([`Scalar::sync`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scalar {
    pub(super) bits: Tnum,
    pub(super) u64: (u64, u64),
    pub(super) s64: (i64, i64),
    pub(super) u32: (u32, u32),
    pub(super) s32: (i32, i32),
}

/// Narrows an interval.
pub(super) fn meet<T: Ord + Copy>(range: &mut (T, T), min: T, max: T) {
    range.0 = range.0.max(min);
    range.1 = range.1.min(max);
}

/// The interval, if it is one in the other signedness too.
fn ordered<T: Ord>(min: T, max: T) -> Option<(T, T)> {
    (min <= max).then_some((min, max))
}

impl Scalar {
    /// Every value.
    pub const UNKNOWN: Scalar = Scalar {
        bits: Tnum::UNKNOWN,
        u64: (0, u64::MAX),
        s64: (i64::MIN, i64::MAX),
        u32: (0, u32::MAX),
        s32: (i32::MIN, i32::MAX),
    };

    /// Exactly this value.
    pub const fn constant(value: u64) -> Scalar {
        Scalar {
            bits: Tnum::constant(value),
            u64: (value, value),
            s64: (value as i64, value as i64),
            u32: (value as u32, value as u32),
            s32: (value as i32, value as i32),
        }
    }

    /// Values from `min` to `max`, unsigned; `min <= max`.
    pub fn range(min: u64, max: u64) -> Scalar {
        let whole = Scalar { u64: (min, max.max(min)), ..Scalar::UNKNOWN };
        whole.sync().unwrap_or(Scalar::UNKNOWN)
    }

    /// Values from `min` to `max`, signed; `min <= max`.
    pub fn signed_range(min: i64, max: i64) -> Scalar {
        let whole = Scalar { s64: (min, max.max(min)), ..Scalar::UNKNOWN };
        whole.sync().unwrap_or(Scalar::UNKNOWN)
    }

    /// Values of these known bits.
    pub fn known_bits(bits: Tnum) -> Scalar {
        Scalar { bits, ..Scalar::UNKNOWN }.sync().unwrap_or(Scalar::UNKNOWN)
    }

    /// Set of the results of a zero-extending load of this many bits (8 to 64).
    pub fn of_width(bits: u32) -> Scalar {
        let max = u64::MAX >> (64 - bits);
        Scalar {
            bits: Tnum::range(0, max),
            u64: (0, max),
            s64: if bits < 64 { (0, max as i64) } else { Scalar::UNKNOWN.s64 },
            u32: (0, max as u32),
            s32: if bits < 32 { (0, max as i32) } else { Scalar::UNKNOWN.s32 },
        }
    }

    /// The known bits.
    pub const fn bits(&self) -> Tnum {
        self.bits
    }

    /// Least and greatest value, unsigned.
    pub const fn unsigned(&self) -> (u64, u64) {
        self.u64
    }

    /// Least and greatest value, signed.
    pub const fn signed(&self) -> (i64, i64) {
        self.s64
    }

    /// Least and greatest low half, unsigned.
    pub const fn unsigned32(&self) -> (u32, u32) {
        self.u32
    }

    /// Least and greatest low half, signed.
    pub const fn signed32(&self) -> (i32, i32) {
        self.s32
    }

    /// The only value, if there is only one.
    pub const fn as_constant(&self) -> Option<u64> {
        self.bits.as_constant()
    }

    /// Returns true if the upper half is known to be zero.
    pub const fn fits_u32(&self) -> bool {
        self.u64.1 <= u32::MAX as u64
    }

    /// Returns true if `x` is in the set.
    pub fn contains(&self, x: u64) -> bool {
        let within = |(min, max): (u64, u64)| min <= x && x <= max;
        self.bits.contains(x)
            && within(self.u64)
            && (self.s64.0..=self.s64.1).contains(&(x as i64))
            && (self.u32.0..=self.u32.1).contains(&(x as u32))
            && (self.s32.0..=self.s32.1).contains(&(x as i32))
    }

    /// The least set that contains both.
    pub fn join(&self, b: &Scalar) -> Scalar {
        Scalar {
            bits: self.bits.union(b.bits),
            u64: (self.u64.0.min(b.u64.0), self.u64.1.max(b.u64.1)),
            s64: (self.s64.0.min(b.s64.0), self.s64.1.max(b.s64.1)),
            u32: (self.u32.0.min(b.u32.0), self.u32.1.max(b.u32.1)),
            s32: (self.s32.0.min(b.s32.0), self.s32.1.max(b.s32.1)),
        }
    }

    /// A set that contains both, where `b` is a later state of `self` in a loop: a bound that moved goes to
    /// its extreme, so that a chain of these ends.
    pub fn widen(&self, b: &Scalar) -> Scalar {
        let join = self.join(b);
        let low = |moved: bool, bound: u64| if moved { 0 } else { bound };
        let keep = |same: bool, bound: i64, extreme: i64| if same { bound } else { extreme };
        Scalar {
            bits: join.bits,
            u64: (
                low(join.u64.0 != self.u64.0, join.u64.0),
                if join.u64.1 == self.u64.1 { join.u64.1 } else { u64::MAX },
            ),
            s64: (
                keep(join.s64.0 == self.s64.0, join.s64.0, i64::MIN),
                keep(join.s64.1 == self.s64.1, join.s64.1, i64::MAX),
            ),
            u32: (
                if join.u32.0 == self.u32.0 { join.u32.0 } else { 0 },
                if join.u32.1 == self.u32.1 { join.u32.1 } else { u32::MAX },
            ),
            s32: (
                if join.s32.0 == self.s32.0 { join.s32.0 } else { i32::MIN },
                if join.s32.1 == self.s32.1 { join.s32.1 } else { i32::MAX },
            ),
        }
    }

    /// Values in both sets; `None` if there is certainly none.
    pub fn intersect(&self, b: &Scalar) -> Option<Scalar> {
        self.meet_all(b)?.sync()
    }

    /// Each part of two sets intersected by itself; `None` if a known bit differs.
    pub(super) fn meet_all(&self, b: &Scalar) -> Option<Scalar> {
        let mut out = *self;
        out.bits = self.bits.intersect(b.bits)?;
        meet(&mut out.u64, b.u64.0, b.u64.1);
        meet(&mut out.s64, b.s64.0, b.s64.1);
        meet(&mut out.u32, b.u32.0, b.u32.1);
        meet(&mut out.s32, b.s32.0, b.s32.1);
        Some(out)
    }

    /// Refines every part by the facts of the others, by the rules of a verifier; `None` if that leaves
    /// nothing.
    pub(super) fn sync_by(self, knowledge: VerifierRules) -> Option<Scalar> {
        if knowledge.joint_bounds { self.sync() } else { self.sync_apart() }
    }

    /// `reg_bounds_sync` of kernels before 6.8: the value and its low half tell each other nothing but known
    /// bits.
    fn sync_apart(mut self) -> Option<Scalar> {
        if self == Scalar::UNKNOWN {
            return Some(self);
        }
        if let Some(value) = self.bits.as_constant() {
            return self.contains(value).then(|| Scalar::constant(value));
        }
        self.bounds_from_bits();
        self.deduce_sign32();
        self.deduce64();
        if self.is_empty() {
            return None;
        }
        let low = Tnum::range(u64::from(self.u32.0), u64::from(self.u32.1));
        let low = self.bits.truncate(32).intersect(low)?;
        self.bits = self.bits.intersect(Tnum::range(self.u64.0, self.u64.1))?.with_low32(low);
        self.bounds_from_bits();
        (!self.is_empty()).then_some(self)
    }

    /// Refines every part by the facts of the others; `None` if that leaves nothing.
    ///
    /// The kernel's `reg_bounds_sync`.
    pub fn sync(mut self) -> Option<Scalar> {
        // Most sets are everything or a single value.
        if self == Scalar::UNKNOWN {
            return Some(self);
        }
        if let Some(value) = self.bits.as_constant() {
            return self.contains(value).then(|| Scalar::constant(value));
        }
        self.bounds_from_bits();
        for _ in 0..3 {
            let before = self;
            self.deduce32();
            self.deduce64();
            self.deduce_mixed();
            if self == before {
                break;
            }
        }
        if self.is_empty() {
            return None;
        }
        let low = Tnum::range(u64::from(self.u32.0), u64::from(self.u32.1));
        let whole = self.bits.intersect(Tnum::range(self.u64.0, self.u64.1))?;
        self.bits = whole.with_low32(whole.truncate(32).intersect(low)?);
        self.bounds_from_bits();
        (!self.is_empty()).then_some(self)
    }

    fn is_empty(&self) -> bool {
        self.u64.0 > self.u64.1
            || self.s64.0 > self.s64.1
            || self.u32.0 > self.u32.1
            || self.s32.0 > self.s32.1
    }

    fn bounds_from_bits(&mut self) {
        let (value, mask, max) = (self.bits.value(), self.bits.mask(), self.bits.max());
        let sign = 1u64 << 63;
        meet(&mut self.u64, value, max);
        meet(&mut self.s64, (value | mask & sign) as i64, (value | mask & !sign) as i64);
        let (value, mask, max) = (value as u32, mask as u32, max as u32);
        let sign = 1u32 << 31;
        meet(&mut self.u32, value, max);
        meet(&mut self.s32, (value | mask & sign) as i32, (value | mask & !sign) as i32);
    }

    fn deduce32(&mut self) {
        let (umin, umax) = self.u64;
        let (smin, smax) = self.s64;
        // Where the upper half is fixed, the lower half has the same order as the whole.
        for (min, max) in [(umin, umax), (smin as u64, smax as u64)] {
            if min >> 32 == max >> 32 {
                if let Some((min, max)) = ordered(min as u32, max as u32) {
                    meet(&mut self.u32, min, max);
                }
                if let Some((min, max)) = ordered(min as i32, max as i32) {
                    meet(&mut self.s32, min, max);
                }
            } else if (min >> 32).wrapping_add(1) == max >> 32 && (min as i32) < 0 && max as i32 >= 0 {
                meet(&mut self.s32, min as i32, max as i32);
            }
        }
        self.deduce_sign32();
    }

    fn deduce_sign32(&mut self) {
        if let Some((min, max)) = ordered(self.u32.0 as i32, self.u32.1 as i32) {
            meet(&mut self.s32, min, max);
        }
        if let Some((min, max)) = ordered(self.s32.0 as u32, self.s32.1 as u32) {
            meet(&mut self.u32, min, max);
        }
    }

    fn deduce64(&mut self) {
        if let Some((min, max)) = ordered(self.u64.0 as i64, self.u64.1 as i64) {
            meet(&mut self.s64, min, max);
        }
        if let Some((min, max)) = ordered(self.s64.0 as u64, self.s64.1 as u64) {
            meet(&mut self.u64, min, max);
        }
    }

    fn deduce_mixed(&mut self) {
        let high = !u64::from(u32::MAX);
        let (min, max) = (u64::from(self.u32.0), u64::from(self.u32.1));
        let u64 = (self.u64.0 & high | min, self.u64.1 & high | max);
        meet(&mut self.u64, u64.0, u64.1);
        let s64 = (self.s64.0 as u64 & high | min, self.s64.1 as u64 & high | max);
        meet(&mut self.s64, s64.0 as i64, s64.1 as i64);
        let small = self.s64.0 >= i64::from(i32::MIN) && self.s64.1 <= i64::from(i32::MAX);
        if self.s32.0 >= 0 && small {
            meet(&mut self.s64, i64::from(self.s32.0), i64::from(self.s32.1));
        }
    }
}
