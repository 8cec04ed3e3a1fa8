//! The primitive operations on [`Scalar`]s.
//!
//! Each of the four intervals and the known bits are computed apart, then synchronised, as the verifier does.
//! An interval that may wrap is given up.

use super::{Scalar, Tnum, VerifierRules};
use crate::semantics::{ConcreteDomain, Domain, Prim};

/// The zero extension of the low `bits` bits.
pub(super) fn truncate(knowledge: VerifierRules, bits: u32, a: &Scalar) -> Scalar {
    let out = match bits {
        64 => return *a,
        32 => Scalar {
            bits: a.bits.truncate(32),
            u64: (u64::from(a.u32.0), u64::from(a.u32.1)),
            s64: (i64::MIN, i64::MAX),
            u32: a.u32,
            s32: a.s32,
        },
        _ => {
            let keep = u64::MAX >> (64 - bits);
            let same = a.u64.0 & !keep == a.u64.1 & !keep;
            let range = if same { (a.u64.0 & keep, a.u64.1 & keep) } else { (0, keep) };
            Scalar { bits: a.bits.truncate(bits), u64: range, ..Scalar::UNKNOWN }
        }
    };
    out.sync_by(knowledge).unwrap_or(Scalar::UNKNOWN)
}

/// Returns true if the verifier computes the operation at all. Of others it knows not even that a 32-bit one
/// clears the upper half.
fn is_tracked(knowledge: VerifierRules, op: Prim, a: &Scalar, b: &Scalar) -> bool {
    let constant = |x: &Scalar| x.as_constant().is_some();
    match op {
        Prim::Add | Prim::Sub | Prim::And => true,
        // A constant operand is made the second one where it is not.
        Prim::Mul | Prim::Or | Prim::Xor => knowledge.variable_bitwise || constant(a) || constant(b),
        Prim::Shl | Prim::LShr | Prim::AShr => constant(b),
        Prim::UDiv | Prim::URem | Prim::SDiv | Prim::SRem => false,
    }
}

pub(super) fn prim(knowledge: VerifierRules, op: Prim, bits: u32, a: &Scalar, b: &Scalar) -> Scalar {
    if let (Some(a), Some(b)) = (a.as_constant(), b.as_constant()) {
        return Scalar::constant(ConcreteDomain.prim(op, bits, &a, &b));
    }
    if !is_tracked(knowledge, op, a, b) {
        return Scalar::UNKNOWN;
    }
    let out = match op {
        Prim::Add => add(knowledge, a, b),
        Prim::Sub => sub(knowledge, a, b),
        Prim::Mul if knowledge.signed_products => mul(a, b),
        Prim::Mul => unsigned_mul(a, b),
        Prim::And => bitwise(a.bits.and(b.bits), |range, other| (0, range.1.min(other.1)), a, b),
        Prim::Or => bitwise(a.bits.or(b.bits), |range, other| (range.0.max(other.0), u64::MAX), a, b),
        Prim::Xor => bitwise(a.bits.xor(b.bits), |_, _| (0, u64::MAX), a, b),
        Prim::Shl | Prim::LShr | Prim::AShr => match b.as_constant() {
            Some(count) => shift(op, bits, a, count as u32),
            None => Scalar::UNKNOWN,
        },
        Prim::UDiv | Prim::URem | Prim::SDiv | Prim::SRem => Scalar::UNKNOWN,
    };
    let out = out.sync_by(knowledge).unwrap_or(Scalar::UNKNOWN);
    if bits == 64 { out } else { truncate(knowledge, bits, &out) }
}

/// An interval of sums or differences: kept if neither end wraps, or both do and the verifier knows what that
/// means.
fn unless_split<T>(
    knowledge: VerifierRules,
    (min, low): (T, bool),
    (max, high): (T, bool),
    all: (T, T),
) -> (T, T) {
    let kept = if knowledge.wrapped_sums { low == high } else { !low && !high };
    if kept { (min, max) } else { all }
}

/// A signed interval: given up if an end wraps.
fn unless_wrapped<T>((min, low): (T, bool), (max, high): (T, bool), all: (T, T)) -> (T, T) {
    if low || high { all } else { (min, max) }
}

const ALL: Scalar = Scalar::UNKNOWN;

fn add(k: VerifierRules, a: &Scalar, b: &Scalar) -> Scalar {
    Scalar {
        bits: a.bits.add(b.bits),
        u64: unless_split(k, a.u64.0.overflowing_add(b.u64.0), a.u64.1.overflowing_add(b.u64.1), ALL.u64),
        s64: unless_wrapped(a.s64.0.overflowing_add(b.s64.0), a.s64.1.overflowing_add(b.s64.1), ALL.s64),
        u32: unless_split(k, a.u32.0.overflowing_add(b.u32.0), a.u32.1.overflowing_add(b.u32.1), ALL.u32),
        s32: unless_wrapped(a.s32.0.overflowing_add(b.s32.0), a.s32.1.overflowing_add(b.s32.1), ALL.s32),
    }
}

fn sub(k: VerifierRules, a: &Scalar, b: &Scalar) -> Scalar {
    Scalar {
        bits: a.bits.sub(b.bits),
        u64: unless_split(k, a.u64.0.overflowing_sub(b.u64.1), a.u64.1.overflowing_sub(b.u64.0), ALL.u64),
        s64: unless_wrapped(a.s64.0.overflowing_sub(b.s64.1), a.s64.1.overflowing_sub(b.s64.0), ALL.s64),
        u32: unless_split(k, a.u32.0.overflowing_sub(b.u32.1), a.u32.1.overflowing_sub(b.u32.0), ALL.u32),
        s32: unless_wrapped(a.s32.0.overflowing_sub(b.s32.1), a.s32.1.overflowing_sub(b.s32.0), ALL.s32),
    }
}

/// Least and greatest of the products of ends; `None` if one does not fit.
fn signed_products(a: (i64, i64), b: (i64, i64)) -> Option<(i64, i64)> {
    let products =
        [a.0.checked_mul(b.0)?, a.0.checked_mul(b.1)?, a.1.checked_mul(b.0)?, a.1.checked_mul(b.1)?];
    Some((*products.iter().min()?, *products.iter().max()?))
}

fn mul(a: &Scalar, b: &Scalar) -> Scalar {
    let u64 = a.u64.1.checked_mul(b.u64.1).map(|max| (a.u64.0.wrapping_mul(b.u64.0), max));
    let u32 = a.u32.1.checked_mul(b.u32.1).map(|max| (a.u32.0.wrapping_mul(b.u32.0), max));
    let wide = |range: (i32, i32)| (i64::from(range.0), i64::from(range.1));
    let s32 = signed_products(wide(a.s32), wide(b.s32))
        .and_then(|(min, max)| Some((i32::try_from(min).ok()?, i32::try_from(max).ok()?)));
    Scalar {
        bits: a.bits.mul(b.bits),
        u64: u64.unwrap_or(ALL.u64),
        s64: signed_products(a.s64, b.s64).unwrap_or(ALL.s64),
        u32: u32.unwrap_or(ALL.u32),
        s32: s32.unwrap_or(ALL.s32),
    }
}

/// A product by the rules before Linux 6.14: of operands that are not negative and fit in half of the width.
fn unsigned_mul(a: &Scalar, b: &Scalar) -> Scalar {
    let mut out = Scalar { bits: a.bits.mul(b.bits), ..ALL };
    let small = |x: &Scalar| x.s64.0 >= 0 && x.u64.1 <= u64::from(u32::MAX);
    if small(a) && small(b) {
        out.u64 = (a.u64.0 * b.u64.0, a.u64.1 * b.u64.1);
    }
    let small = |x: &Scalar| x.s32.0 >= 0 && x.u32.1 <= u32::from(u16::MAX);
    if small(a) && small(b) {
        out.u32 = (a.u32.0 * b.u32.0, a.u32.1 * b.u32.1);
    }
    out
}

/// A bitwise operation: the known bits, and unsigned intervals by a rule that holds at any width.
fn bitwise(
    bits: Tnum,
    rule: impl Fn((u64, u64), (u64, u64)) -> (u64, u64),
    a: &Scalar,
    b: &Scalar,
) -> Scalar {
    let wide = |range: (u32, u32)| (u64::from(range.0), u64::from(range.1));
    let low = rule(wide(a.u32), wide(b.u32));
    let u32 = (low.0 as u32, u32::try_from(low.1).unwrap_or(u32::MAX));
    Scalar { bits, u64: rule(a.u64, b.u64), u32, ..ALL }
}

/// A shift by a constant below the width.
fn shift(op: Prim, bits: u32, a: &Scalar, count: u32) -> Scalar {
    match op {
        Prim::Shl => {
            let fits = |max: u64, width: u32| max <= 1u64 << (width - 1 - count);
            let u64 = if fits(a.u64.1, 64) { (a.u64.0 << count, a.u64.1 << count) } else { ALL.u64 };
            let u32 = if count < 32 && fits(u64::from(a.u32.1), 32) {
                (a.u32.0 << count, a.u32.1 << count)
            } else {
                ALL.u32
            };
            Scalar { bits: a.bits.shl(count), u64, u32, ..ALL }
        }
        Prim::LShr => {
            let u32 = if bits == 32 { (a.u32.0 >> count, a.u32.1 >> count) } else { ALL.u32 };
            Scalar { bits: a.bits.shr(count), u64: (a.u64.0 >> count, a.u64.1 >> count), u32, ..ALL }
        }
        _ if bits == 32 => {
            let s32 = (a.s32.0 >> count, a.s32.1 >> count);
            Scalar { bits: a.bits.sar(count, 32), s32, ..ALL }
        }
        _ if bits == 64 => {
            let s64 = (a.s64.0 >> count, a.s64.1 >> count);
            Scalar { bits: a.bits.sar(count, 64), s64, ..ALL }
        }
        _ => ALL,
    }
}
