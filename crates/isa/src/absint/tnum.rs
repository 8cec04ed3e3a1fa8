//! Tristate numbers: which bits of a value are known.
//!
//! Source: the algebra of `kernel/bpf/tnum.c`.

/// A set of 64-bit values by bits: those of `mask` are unknown, the others are those of `value`.
///
/// `value & mask == 0` always.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tnum {
    value: u64,
    mask: u64,
}

impl Tnum {
    /// Nothing is known.
    pub const UNKNOWN: Tnum = Tnum { value: 0, mask: u64::MAX };

    /// The bits of `value` outside of `mask` are known.
    pub const fn new(value: u64, mask: u64) -> Tnum {
        Tnum { value: value & !mask, mask }
    }

    /// Exactly this value.
    pub const fn constant(value: u64) -> Tnum {
        Tnum { value, mask: 0 }
    }

    /// Bits that all values from `min` to `max` have in common.
    pub const fn range(min: u64, max: u64) -> Tnum {
        let differ = 64 - (min ^ max).leading_zeros();
        if differ > 63 {
            return Tnum::UNKNOWN;
        }
        Tnum::new(min, (1 << differ) - 1)
    }

    /// The known bits that are set; also the least value.
    pub const fn value(self) -> u64 {
        self.value
    }

    /// The unknown bits.
    pub const fn mask(self) -> u64 {
        self.mask
    }

    /// The greatest value.
    pub const fn max(self) -> u64 {
        self.value | self.mask
    }

    /// The only value, if there is only one.
    pub const fn as_constant(self) -> Option<u64> {
        if self.mask == 0 { Some(self.value) } else { None }
    }

    /// Returns true if `x` is in the set.
    pub const fn contains(self, x: u64) -> bool {
        x & !self.mask == self.value
    }

    /// Sum.
    pub const fn add(self, b: Tnum) -> Tnum {
        let masks = self.mask.wrapping_add(b.mask);
        let values = self.value.wrapping_add(b.value);
        let carries = masks.wrapping_add(values) ^ values;
        Tnum::new(values, carries | self.mask | b.mask)
    }

    /// Difference.
    pub const fn sub(self, b: Tnum) -> Tnum {
        let values = self.value.wrapping_sub(b.value);
        let high = values.wrapping_add(self.mask);
        let low = values.wrapping_sub(b.mask);
        Tnum::new(values, (high ^ low) | self.mask | b.mask)
    }

    /// Bitwise and.
    pub const fn and(self, b: Tnum) -> Tnum {
        let set = self.value & b.value;
        Tnum::new(set, (self.max() & b.max()) & !set)
    }

    /// Bitwise or.
    pub const fn or(self, b: Tnum) -> Tnum {
        let set = self.value | b.value;
        Tnum::new(set, (self.mask | b.mask) & !set)
    }

    /// Bitwise exclusive or.
    pub const fn xor(self, b: Tnum) -> Tnum {
        Tnum::new(self.value ^ b.value, self.mask | b.mask)
    }

    /// Left shift by a constant below 64.
    pub const fn shl(self, count: u32) -> Tnum {
        Tnum { value: self.value << count, mask: self.mask << count }
    }

    /// Logical right shift by a constant below 64.
    pub const fn shr(self, count: u32) -> Tnum {
        Tnum { value: self.value >> count, mask: self.mask >> count }
    }

    /// Arithmetic right shift by a constant below `bits`, 32 or 64; of 32 the result is zero-extended.
    pub const fn sar(self, count: u32, bits: u32) -> Tnum {
        if bits == 32 {
            let (value, mask) = (self.value as i32 >> count, self.mask as i32 >> count);
            return Tnum::new(value as u32 as u64, mask as u32 as u64);
        }
        Tnum::new((self.value as i64 >> count) as u64, (self.mask as i64 >> count) as u64)
    }

    /// Product: the known bits of each operand's partial products.
    pub const fn mul(self, b: Tnum) -> Tnum {
        let known = self.value.wrapping_mul(b.value);
        let (mut a, mut b) = (self, b);
        let mut unknown = Tnum::constant(0);
        while a.value != 0 || a.mask != 0 {
            if a.value & 1 != 0 {
                unknown = unknown.add(Tnum { value: 0, mask: b.mask });
            } else if a.mask & 1 != 0 {
                unknown = unknown.add(Tnum { value: 0, mask: b.max() });
            }
            a = a.shr(1);
            b = b.shl(1);
        }
        Tnum::constant(known).add(unknown)
    }

    /// Values in both sets; `None` if a known bit differs.
    pub const fn intersect(self, b: Tnum) -> Option<Tnum> {
        if (self.value ^ b.value) & !self.mask & !b.mask != 0 {
            return None;
        }
        Some(Tnum::new(self.value | b.value, self.mask & b.mask))
    }

    /// Values in either set.
    pub const fn union(self, b: Tnum) -> Tnum {
        let mask = self.mask | b.mask | (self.value ^ b.value);
        Tnum::new(self.value, mask)
    }

    /// The low `bits` bits, zero-extended; `bits` is 1 to 64.
    pub const fn truncate(self, bits: u32) -> Tnum {
        let keep = u64::MAX >> (64 - bits);
        Tnum { value: self.value & keep, mask: self.mask & keep }
    }

    /// The low 32 bits of `low`, the high ones of `self`.
    pub const fn with_low32(self, low: Tnum) -> Tnum {
        let high = !(u32::MAX as u64);
        let low = low.truncate(32);
        Tnum { value: self.value & high | low.value, mask: self.mask & high | low.mask }
    }
}
