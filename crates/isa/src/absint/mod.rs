//! Abstract interpretation: facts about a value.
//!
//! [`Scalar`] is modelled after the facts that the kernel's verifier tracks, no finer: a fact that it proves
//! of a value, the verifier proves of the same value. [`AbstractDomain`] makes it a domain of [`semantics`]
//! and learns from branches. The one exception is constants: an operation on constants gives one even where
//! the verifier gives up (division), because whoever uses that puts the constant into the program.
//!
//! Verifiers differ in their knowledge: [`VerifierRules`] has the rules of one. Questions are of the form
//! "would this verifier know it", never "is it true".
//!
//! Source: `kernel/bpf/verifier.c` (`adjust_scalar_min_max_vals`, `reg_bounds_sync`, `is_branch_taken`,
//! `reg_set_min_max`, since Linux 6.8 `regs_refine_cond_op`) of each generation.

mod knowledge;
mod prim;
mod refine;
mod scalar;
mod tnum;

pub use knowledge::VerifierRules;
pub use scalar::Scalar;
pub use tnum::Tnum;

use crate::semantics::{self, Domain, Pred, Prim};
use crate::{Cond, SwapKind, Width};

/// The abstract domain. A vector narrower than 64 bits is the [`Scalar`] of its zero extension; a truth value
/// is `None` where it is not known.
///
/// By default it is that of Linux 6.18.
#[derive(Clone, Copy, Debug, Default)]
pub struct AbstractDomain {
    /// The rules of the verifier.
    pub knowledge: VerifierRules,
}

impl AbstractDomain {
    /// The domain of a verifier with these rules.
    pub const fn new(knowledge: VerifierRules) -> AbstractDomain {
        AbstractDomain { knowledge }
    }

    /// The operands of `if a cond b` where the branch is taken, or not; `None` if it cannot go that way.
    ///
    /// Both are 64-bit registers; a 32-bit comparison teaches about their low halves.
    pub fn refine(
        mut self,
        cond: Cond,
        width: Width,
        taken: bool,
        a: &Scalar,
        b: &Scalar,
    ) -> Option<(Scalar, Scalar)> {
        if self.knowledge.joint_bounds {
            return refine::joint(self.knowledge, cond, width, taken, a, b);
        }
        // A verifier without joint bounds goes both ways unless the comparison is decided.
        let decided = semantics::cond(&mut self, cond, width, a, b);
        decided.is_none_or(|truth| truth == taken).then(|| refine::refine_pre_6_8(cond, width, taken, a, b))
    }

    /// Values in both sets, as the verifier describes them; `None` if there is certainly none.
    pub fn intersect(self, a: &Scalar, b: &Scalar) -> Option<Scalar> {
        a.meet_all(b)?.sync_by(self.knowledge)
    }

    /// `-a`
    pub fn neg(mut self, width: Width, a: &Scalar) -> Scalar {
        if !self.knowledge.negation && a.as_constant().is_none() {
            return Scalar::UNKNOWN;
        }
        semantics::neg(&mut self, width, a)
    }

    /// A byte order operation on the low `bits` bits.
    pub fn swap(mut self, kind: SwapKind, bits: u32, a: &Scalar) -> Scalar {
        if !self.knowledge.byte_order && a.as_constant().is_none() {
            return Scalar::UNKNOWN;
        }
        semantics::swap(&mut self, kind, bits, a)
    }
}

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

impl Domain for AbstractDomain {
    type V = Scalar;
    type B = Option<bool>;

    fn constant(&mut self, bits: u32, value: u64) -> Scalar {
        Scalar::constant(value & (u64::MAX >> (64 - bits)))
    }

    fn prim(&mut self, op: Prim, bits: u32, a: &Scalar, b: &Scalar) -> Scalar {
        prim::prim(self.knowledge, op, bits, a, b)
    }

    fn compare(&mut self, pred: Pred, bits: u32, a: &Scalar, b: &Scalar) -> Option<bool> {
        let constants = (a.as_constant(), b.as_constant());
        let registers = self.knowledge.compared_registers;
        if !registers && constants.0.is_none() && constants.1.is_none() {
            return None;
        }
        let ((umin, umax), (vmin, vmax)) = (a.unsigned(), b.unsigned());
        let ((smin, smax), (tmin, tmax)) = (signed(bits, a), signed(bits, b));
        let (always, never) = match pred {
            Pred::Eq => {
                let same = constants.0.is_some() && constants.0 == constants.1;
                let differ = match constants {
                    (Some(x), Some(y)) => x != y,
                    _ => registers && a.intersect(b).is_none(),
                };
                (same, differ)
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
        prim::truncate(self.knowledge, to, a)
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
        prim::truncate(self.knowledge, to, &wide)
    }
}
