//! Abstract interpretation: what is known of a value.
//!
//! [`Scalar`] is modelled after what the kernel's verifier tracks, no finer: what it proves of a value, the verifier
//! proves of the same value. [`Abstract`] makes it a domain of [`semantics`](crate::semantics), [`refine()`] learns from
//! a branch. The one exception is constants: an operation on constants gives one even where the verifier gives up
//! (division), because whoever uses that puts the constant into the program.
//!
//! Source: `kernel/bpf/verifier.c` (`adjust_scalar_min_max_vals`, `reg_bounds_sync`, `regs_refine_cond_op`).

mod prim;
mod refine;
mod scalar;
mod tnum;

pub use refine::refine;
pub use scalar::Scalar;
pub use tnum::Tnum;

use crate::semantics::{Domain, Pred, Prim};

/// The abstract domain. A vector narrower than 64 bits is the [`Scalar`] of its zero extension; a truth value is
/// `None` where it is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Abstract;

/// Least and greatest value of a vector of `bits` bits, signed.
fn signed(bits: u32, a: &Scalar) -> (i64, i64) {
    match bits {
        64 => a.signed(),
        32 => (i64::from(a.signed32().0), i64::from(a.signed32().1)),
        _ => {
            let (min, max) = a.unsigned();
            let half = 1u64 << (bits - 1);
            if max < half {
                (min as i64, max as i64)
            } else if min >= half {
                (min as i64 - (1 << bits), max as i64 - (1 << bits))
            } else {
                (-(half as i64), half as i64 - 1)
            }
        }
    }
}

impl Domain for Abstract {
    type V = Scalar;
    type B = Option<bool>;

    fn constant(&mut self, bits: u32, value: u64) -> Scalar {
        Scalar::constant(value & (u64::MAX >> (64 - bits)))
    }

    fn prim(&mut self, op: Prim, bits: u32, a: &Scalar, b: &Scalar) -> Scalar {
        prim::prim(op, bits, a, b)
    }

    fn compare(&mut self, pred: Pred, bits: u32, a: &Scalar, b: &Scalar) -> Option<bool> {
        let ((umin, umax), (vmin, vmax)) = (a.unsigned(), b.unsigned());
        let ((smin, smax), (tmin, tmax)) = (signed(bits, a), signed(bits, b));
        let (always, never) = match pred {
            Pred::Eq => {
                let same = a.as_constant().is_some() && a.as_constant() == b.as_constant();
                (same, a.intersect(b).is_none())
            }
            Pred::Ult => (umax < vmin, umin >= vmax),
            Pred::Ule => (umax <= vmin, umin > vmax),
            Pred::Slt => (smax < tmin, smin >= tmax),
            Pred::Sle => (smax <= tmin, smin > tmax),
        };
        if always {
            Some(true)
        } else if never {
            Some(false)
        } else {
            None
        }
    }

    fn not(&mut self, a: &Option<bool>) -> Option<bool> {
        a.map(|a| !a)
    }

    fn select(&mut self, _bits: u32, c: &Option<bool>, then: &Scalar, other: &Scalar) -> Scalar {
        match c {
            Some(true) => *then,
            Some(false) => *other,
            None => then.join(other),
        }
    }

    fn truncate(&mut self, _from: u32, to: u32, a: &Scalar) -> Scalar {
        prim::truncate(to, a)
    }

    fn zero_extend(&mut self, _from: u32, _to: u32, a: &Scalar) -> Scalar {
        *a
    }

    fn sign_extend(&mut self, from: u32, to: u32, a: &Scalar) -> Scalar {
        let (min, max) = signed(from, a);
        let wide = match a.as_constant() {
            Some(_) => Scalar::constant(min as u64),
            None => Scalar::signed_range(min, max),
        };
        prim::truncate(to, &wide)
    }
}
