//! Facts that a branch establishes about its operands.

use super::scalar::meet;
use super::{Scalar, Tnum, VerifierRules};
use crate::{Cond, Width};

/// The operands of `if a cond b` where the branch is taken, or not, by the rules since Linux 6.8; `None` if
/// it cannot go that way.
pub(super) fn joint(
    knowledge: VerifierRules,
    cond: Cond,
    width: Width,
    taken: bool,
    a: &Scalar,
    b: &Scalar,
) -> Option<(Scalar, Scalar)> {
    let (mut a, mut b) = (*a, *b);
    match if taken { Some(cond) } else { cond.negated() } {
        Some(Cond::Eq) => equal(width, &mut a, &mut b)?,
        Some(Cond::Ne) => differ(knowledge, width, &mut a, &mut b)?,
        Some(Cond::Lt) => less(width, false, true, &mut a, &mut b)?,
        Some(Cond::Le) => less(width, false, false, &mut a, &mut b)?,
        Some(Cond::Gt) => less(width, false, true, &mut b, &mut a)?,
        Some(Cond::Ge) => less(width, false, false, &mut b, &mut a)?,
        Some(Cond::Slt) => less(width, true, true, &mut a, &mut b)?,
        Some(Cond::Sle) => less(width, true, false, &mut a, &mut b)?,
        Some(Cond::Sgt) => less(width, true, true, &mut b, &mut a)?,
        Some(Cond::Sge) => less(width, true, false, &mut b, &mut a)?,
        Some(Cond::Set) => common(width, true, &mut a, &b)?,
        None => common(width, false, &mut a, &b)?,
    }
    Some((a.sync_by(knowledge)?, b.sync_by(knowledge)?))
}

/// The constant that an operand is at the width of the comparison.
fn constant(width: Width, a: &Scalar) -> Option<u64> {
    match width {
        Width::W64 => a.as_constant(),
        Width::W32 => a.bits.truncate(32).as_constant(),
    }
}

fn equal(width: Width, a: &mut Scalar, b: &mut Scalar) -> Option<()> {
    if width == Width::W64 {
        let both = a.intersect(b)?;
        (*a, *b) = (both, both);
        return Some(());
    }
    let low = a.bits.truncate(32).intersect(b.bits.truncate(32))?;
    let (u32, s32) = (a.u32, a.s32);
    meet(&mut a.u32, b.u32.0, b.u32.1);
    meet(&mut a.s32, b.s32.0, b.s32.1);
    meet(&mut b.u32, u32.0, u32.1);
    meet(&mut b.s32, s32.0, s32.1);
    a.bits = a.bits.with_low32(low);
    b.bits = b.bits.with_low32(low);
    Some(())
}

/// A value that differs from a constant at the end of its interval moves that end.
fn differ(knowledge: VerifierRules, width: Width, a: &mut Scalar, b: &mut Scalar) -> Option<()> {
    match (constant(width, a), constant(width, b)) {
        (Some(x), Some(y)) => return (x != y).then_some(()),
        _ if !knowledge.unequal_ends => {}
        (None, Some(value)) => trim(width, a, value),
        (Some(value), None) => trim(width, b, value),
        (None, None) => {}
    }
    Some(())
}

fn trim(width: Width, a: &mut Scalar, value: u64) {
    if width == Width::W64 {
        trim_ends(&mut a.u64, value, 1);
        trim_ends(&mut a.s64, value as i64, 1);
    } else {
        trim_ends(&mut a.u32, value as u32, 1);
        trim_ends(&mut a.s32, value as i32, 1);
    }
}

fn trim_ends<T>(range: &mut (T, T), value: T, one: T) -> bool
where
    T: PartialEq + Copy + std::ops::AddAssign + std::ops::SubAssign,
{
    // An interval of one value would have been a constant, so no end can overflow here.
    let (low, high) = (range.0 == value, range.1 == value);
    if low && high {
        return false;
    }
    if low {
        range.0 += one;
    }
    if high {
        range.1 -= one;
    }
    true
}

/// `a < b`, or `a <= b`.
fn less(width: Width, signed: bool, strict: bool, a: &mut Scalar, b: &mut Scalar) -> Option<()> {
    match (width, signed) {
        (Width::W64, false) => {
            below(&mut a.u64, &mut b.u64, |x| x.checked_sub(1), |x| x.checked_add(1), strict)
        }
        (Width::W64, true) => {
            below(&mut a.s64, &mut b.s64, |x| x.checked_sub(1), |x| x.checked_add(1), strict)
        }
        (Width::W32, false) => {
            below(&mut a.u32, &mut b.u32, |x| x.checked_sub(1), |x| x.checked_add(1), strict)
        }
        (Width::W32, true) => {
            below(&mut a.s32, &mut b.s32, |x| x.checked_sub(1), |x| x.checked_add(1), strict)
        }
    }
}

fn below<T: Ord + Copy>(
    a: &mut (T, T),
    b: &mut (T, T),
    before: impl Fn(T) -> Option<T>,
    after: impl Fn(T) -> Option<T>,
    strict: bool,
) -> Option<()> {
    let (most, least) = if strict { (before(b.1)?, after(a.0)?) } else { (b.1, a.0) };
    a.1 = a.1.min(most);
    b.0 = b.0.max(least);
    (a.0 <= a.1 && b.0 <= b.1).then_some(())
}

/// `a & b` is not zero (or is), where `b` is a constant.
fn common(width: Width, some: bool, a: &mut Scalar, b: &Scalar) -> Option<()> {
    let Some(mask) = constant(width, b) else { return Some(()) };
    let known = if some {
        if a.bits.max() & mask == 0 {
            return None;
        }
        if !mask.is_power_of_two() {
            return Some(());
        }
        Tnum::new(mask, !mask)
    } else {
        Tnum::new(0, !mask)
    };
    a.bits = a.bits.intersect(known)?;
    if !some {
        // Kernels that have the fix for dead branches keep no ranges here.
        *a = Scalar { bits: a.bits, ..Scalar::UNKNOWN };
    }
    Some(())
}

/// The operands of a comparison that is not decided, where it is true or not, by the rules before Linux 6.8:
/// only of a comparison with a constant anything is learnt, and of equality at full width.
pub(super) fn refine_pre_6_8(
    cond: Cond,
    width: Width,
    taken: bool,
    a: &Scalar,
    b: &Scalar,
) -> (Scalar, Scalar) {
    let effective = if taken { Some(cond) } else { cond.negated() };
    match (constant(width, a), constant(width, b)) {
        (_, Some(value)) => (against(effective, width, a, value), *b),
        (Some(value), None) => (*a, against(effective.map(Cond::swapped), width, b, value)),
        (None, None) if width == Width::W64 && effective == Some(Cond::Eq) => {
            let both = || {
                let mut both = Scalar { u32: a.u32, s32: a.s32, ..a.meet_all(b)? };
                let first = both.sync_by(VerifierRules::LINUX_5_10)?;
                (both.u32, both.s32) = (b.u32, b.s32);
                Some((first, both.sync_by(VerifierRules::LINUX_5_10)?))
            };
            both().unwrap_or((*a, *b))
        }
        (None, None) => (*a, *b),
    }
}

/// A value after a comparison with a constant, `None` standing for no common bits. The bounds of the width
/// that was not compared are made anew.
fn against(cond: Option<Cond>, width: Width, a: &Scalar, value: u64) -> Scalar {
    let mut out = *a;
    let mut other = Scalar::constant(value);
    let less = |signed, strict, a: &mut Scalar, b: &mut Scalar| less(width, signed, strict, a, b);
    let learnt = match cond {
        Some(Cond::Eq) if width == Width::W64 => return Scalar::constant(value),
        Some(Cond::Eq) => {
            out.bits = out.bits.with_low32(Tnum::constant(value));
            out.u32 = (value as u32, value as u32);
            out.s32 = (value as i32, value as i32);
            Some(())
        }
        Some(Cond::Ne) => Some(()),
        Some(Cond::Lt) => less(false, true, &mut out, &mut other),
        Some(Cond::Le) => less(false, false, &mut out, &mut other),
        Some(Cond::Gt) => less(false, true, &mut other, &mut out),
        Some(Cond::Ge) => less(false, false, &mut other, &mut out),
        Some(Cond::Slt) => less(true, true, &mut out, &mut other),
        Some(Cond::Sle) => less(true, false, &mut out, &mut other),
        Some(Cond::Sgt) => less(true, true, &mut other, &mut out),
        Some(Cond::Sge) => less(true, false, &mut other, &mut out),
        Some(Cond::Set) => common(width, true, &mut out, &other),
        None => common(width, false, &mut out, &other),
    };
    if learnt.is_none() {
        out = *a;
    }
    let all = Scalar::UNKNOWN;
    if width == Width::W64 {
        let (s64, u64) = (out.s64, out.u64);
        let s32 = i32::try_from(s64.0).ok().zip(i32::try_from(s64.1).ok());
        let u32 = u32::try_from(u64.0).ok().zip(u32::try_from(u64.1).ok());
        (out.s32, out.u32) = (s32.unwrap_or(all.s32), u32.unwrap_or(all.u32));
    } else if out.bits.max() >> 32 == 0 {
        out.u64 = (u64::from(out.u32.0), u64::from(out.u32.1));
        out.s64 = match out.s32 {
            (min, max) if min >= 0 => (i64::from(min), i64::from(max)),
            _ => (0, i64::from(u32::MAX)),
        };
    } else {
        (out.u64, out.s64) = (all.u64, all.s64);
    }
    out.sync_by(VerifierRules::LINUX_5_10).unwrap_or(*a)
}
