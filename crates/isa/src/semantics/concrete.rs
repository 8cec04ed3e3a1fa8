//! The domain of plain integers.

use super::{Domain, Pred, Prim};

/// Bit vectors as `u64`, with all bits above the width zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConcreteDomain;

/// The low `bits` bits set.
const fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// The value of a vector of `bits` bits in two's complement.
const fn signed(bits: u32, a: u64) -> i64 {
    (a << (64 - bits)) as i64 >> (64 - bits)
}

impl Domain for ConcreteDomain {
    type V = u64;
    type B = bool;

    #[inline]
    fn constant(&mut self, bits: u32, value: u64) -> u64 {
        value & mask(bits)
    }

    #[inline]
    fn prim(&mut self, op: Prim, bits: u32, a: &u64, b: &u64) -> u64 {
        let (a, b) = (*a, *b);
        let (sa, sb) = (signed(bits, a), signed(bits, b));
        let value = match op {
            Prim::Add => a.wrapping_add(b),
            Prim::Sub => a.wrapping_sub(b),
            Prim::Mul => a.wrapping_mul(b),
            Prim::UDiv => a.checked_div(b).unwrap_or(u64::MAX),
            Prim::URem => a.checked_rem(b).unwrap_or(a),
            Prim::SDiv if sb == 0 => u64::MAX,
            Prim::SDiv => sa.wrapping_div(sb) as u64,
            Prim::SRem if sb == 0 => a,
            Prim::SRem => sa.wrapping_rem(sb) as u64,
            Prim::And => a & b,
            Prim::Or => a | b,
            Prim::Xor => a ^ b,
            Prim::Shl => a.wrapping_shl(b as u32),
            Prim::LShr => a.wrapping_shr(b as u32),
            Prim::AShr => sa.wrapping_shr(b as u32) as u64,
        };
        value & mask(bits)
    }

    #[inline]
    fn compare(&mut self, pred: Pred, bits: u32, a: &u64, b: &u64) -> bool {
        match pred {
            Pred::Eq => a == b,
            Pred::Ult => a < b,
            Pred::Ule => a <= b,
            Pred::Slt => signed(bits, *a) < signed(bits, *b),
            Pred::Sle => signed(bits, *a) <= signed(bits, *b),
        }
    }

    #[inline]
    fn not(&mut self, a: &bool) -> bool {
        !a
    }

    #[inline]
    fn select(&mut self, _bits: u32, c: &bool, then: &u64, other: &u64) -> u64 {
        if *c { *then } else { *other }
    }

    #[inline]
    fn truncate(&mut self, _from: u32, to: u32, a: &u64) -> u64 {
        a & mask(to)
    }

    #[inline]
    fn zero_extend(&mut self, _from: u32, _to: u32, a: &u64) -> u64 {
        *a
    }

    #[inline]
    fn sign_extend(&mut self, from: u32, to: u32, a: &u64) -> u64 {
        signed(from, *a) as u64 & mask(to)
    }
}

/// The semantics at plain integers: what constant folding calls.
pub mod eval {
    use super::ConcreteDomain;
    use crate::{AluOp, Cond, SwapKind, Width};

    /// See [`alu`](crate::semantics::alu).
    #[inline]
    pub fn alu(op: AluOp, width: Width, a: u64, b: u64) -> u64 {
        crate::semantics::alu(&mut ConcreteDomain, op, width, &a, &b)
    }

    /// See [`cond`](crate::semantics::cond).
    #[inline]
    pub fn cond(cond: Cond, width: Width, a: u64, b: u64) -> bool {
        crate::semantics::cond(&mut ConcreteDomain, cond, width, &a, &b)
    }

    /// See [`neg`](crate::semantics::neg).
    #[inline]
    pub fn neg(width: Width, a: u64) -> u64 {
        crate::semantics::neg(&mut ConcreteDomain, width, &a)
    }

    /// See [`mov`](crate::semantics::mov).
    #[inline]
    pub fn mov(width: Width, a: u64) -> u64 {
        crate::semantics::mov(&mut ConcreteDomain, width, &a)
    }

    /// See [`movsx`](crate::semantics::movsx).
    #[inline]
    pub fn movsx(width: Width, bits: u32, a: u64) -> u64 {
        crate::semantics::movsx(&mut ConcreteDomain, width, bits, &a)
    }

    /// See [`swap`](crate::semantics::swap).
    #[inline]
    pub fn swap(kind: SwapKind, bits: u32, a: u64) -> u64 {
        crate::semantics::swap(&mut ConcreteDomain, kind, bits, &a)
    }
}

#[cfg(test)]
mod tests {
    use super::eval;
    use crate::{AluOp, Cond, SwapKind, Width};

    const W32: Width = Width::W32;
    const W64: Width = Width::W64;

    #[test]
    fn division_by_zero_is_defined() {
        assert_eq!(eval::alu(AluOp::Div, W64, 7, 0), 0);
        assert_eq!(eval::alu(AluOp::SDiv, W32, u64::MAX, 0), 0);
        assert_eq!(eval::alu(AluOp::Mod, W64, u64::MAX, 0), u64::MAX);
        assert_eq!(eval::alu(AluOp::Mod, W32, u64::MAX, 1 << 32), 0xffff_ffff);
        assert_eq!(eval::alu(AluOp::SMod, W64, 9, 0), 9);
    }

    #[test]
    fn the_least_value_by_minus_one_does_not_trap() {
        let least = i64::MIN as u64;
        assert_eq!(eval::alu(AluOp::SDiv, W64, least, u64::MAX), least);
        assert_eq!(eval::alu(AluOp::SMod, W64, least, u64::MAX), 0);
        assert_eq!(eval::alu(AluOp::SDiv, W32, 0x8000_0000, 0xffff_ffff), 0x8000_0000);
    }

    #[test]
    fn signed_division_rounds_to_zero() {
        assert_eq!(eval::alu(AluOp::SDiv, W64, -13i64 as u64, 4), -3i64 as u64);
        assert_eq!(eval::alu(AluOp::SMod, W64, -13i64 as u64, 4), -1i64 as u64);
        assert_eq!(eval::alu(AluOp::SMod, W64, 13, -4i64 as u64), 1);
    }

    #[test]
    fn shift_counts_are_masked_to_the_width() {
        assert_eq!(eval::alu(AluOp::Lsh, W32, 1, 33), 2);
        assert_eq!(eval::alu(AluOp::Lsh, W64, 1, 65), 2);
        assert_eq!(eval::alu(AluOp::Arsh, W32, 0x8000_0000, 31), 0xffff_ffff);
        assert_eq!(eval::alu(AluOp::Rsh, W32, u64::MAX, 4), 0x0fff_ffff);
    }

    #[test]
    fn moves_extend_as_told() {
        assert_eq!(eval::mov(W32, u64::MAX), 0xffff_ffff);
        assert_eq!(eval::movsx(W32, 8, 0x80), 0xffff_ff80);
        assert_eq!(eval::movsx(W64, 16, 0x8000), 0xffff_ffff_ffff_8000);
        assert_eq!(eval::neg(W32, 1), 0xffff_ffff);
        assert_eq!(eval::neg(W64, 1), u64::MAX);
    }

    #[test]
    fn byte_order() {
        let x = 0x0102_0304_0506_0708;
        assert_eq!(eval::swap(SwapKind::ToBe, 16, x), 0x0807);
        assert_eq!(eval::swap(SwapKind::ToLe, 16, x), 0x0708);
        assert_eq!(eval::swap(SwapKind::Swap, 32, x), 0x0807_0605);
        assert_eq!(eval::swap(SwapKind::Swap, 64, x), x.swap_bytes());
    }

    #[test]
    fn conditions_look_at_their_width() {
        assert!(eval::cond(Cond::Eq, W32, 1 << 32, 0));
        assert!(!eval::cond(Cond::Eq, W64, 1 << 32, 0));
        assert!(eval::cond(Cond::Slt, W32, 0x8000_0000, 0));
        assert!(!eval::cond(Cond::Slt, W64, 0x8000_0000, 0));
        assert!(eval::cond(Cond::Set, W64, 6, 2) && !eval::cond(Cond::Set, W64, 6, 1));
    }
}
