//! Facts about values: ranges and known bits, from their types and from the operations that define them.
//!
//! Facts are of the kernel's domain ([`millstream_isa::absint`]) and come from the definition alone, not from
//! branches: so the verifier knows them too, of the same value. A rewrite gives a value another definition
//! but never another meaning, so that facts found before stay true.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Function, Op, Value, Width};
use millstream_isa::absint::{AbstractDomain, Scalar};
use millstream_isa::semantics::{self, Domain};
use smallvec::SmallVec;

use crate::rewrite::ValueSubst;

/// Number of definitions that are followed.
const DEPTH: u32 = 6;

/// Facts found so far, as one verifier knows them.
pub(crate) struct VerifierFacts {
    domain: AbstractDomain,
    known: SecondaryMap<Value, Option<Scalar>>,
}

impl VerifierFacts {
    /// No facts yet, of a verifier with this domain.
    pub(crate) fn new(domain: AbstractDomain) -> VerifierFacts {
        VerifierFacts { domain, known: SecondaryMap::new() }
    }

    /// The domain of the verifier.
    pub(crate) fn domain(&self) -> AbstractDomain {
        self.domain
    }

    /// Facts about an integer; a value that may be a pointer has none.
    pub(crate) fn of(&mut self, func: &Function, subst: &ValueSubst, value: Value) -> Scalar {
        self.follow(func, subst, value, DEPTH)
    }

    /// Looks anew at a value that has been given another definition.
    pub(crate) fn forget(&mut self, value: Value) {
        self.known[value] = None;
    }

    fn follow(&mut self, func: &Function, subst: &ValueSubst, value: Value, depth: u32) -> Scalar {
        let value = subst.resolve(value);
        if let Some(known) = self.known[value] {
            return known;
        }
        let Some(bits) = func.types[value].int_bits() else { return Scalar::UNKNOWN };
        let typed = Scalar::of_width(bits);
        let Some(inst) = func.def_inst(value).filter(|_| depth > 0) else { return typed };
        let data = &func.insts[inst];
        if !matches!(
            data.op,
            Op::Const { .. }
                | Op::Alu { .. }
                | Op::Neg { .. }
                | Op::Zext {}
                | Op::Sext { .. }
                | Op::Swap { .. }
                | Op::Select {}
        ) {
            return typed;
        }
        let args: SmallVec<[Scalar; 3]> =
            data.args.iter().map(|&arg| self.follow(func, subst, arg, depth - 1)).collect();
        let known = evaluate(self.domain, &data.op, &args)
            .and_then(|s| self.domain.intersect(&s, &typed))
            .unwrap_or(typed);
        if depth == DEPTH {
            self.known[value] = Some(known);
        }
        known
    }
}

/// Facts about the result of an operation, from the facts about its operands.
pub(crate) fn evaluate(mut domain: AbstractDomain, op: &Op, args: &[Scalar]) -> Option<Scalar> {
    let d = &mut domain;
    Some(match (op, args) {
        (Op::Const { value }, _) => Scalar::constant(*value as u64),
        (Op::Alu { op, width }, [a, b]) => semantics::alu(d, *op, *width, a, b),
        (Op::Neg { width }, [a]) => d.neg(*width, a),
        (Op::Zext {}, [a]) => semantics::mov(d, Width::W32, a),
        (Op::Sext { bits, width }, [a]) => semantics::movsx(d, *width, u32::from(*bits), a),
        (Op::Swap { kind, bits }, [a]) => d.swap(*kind, u32::from(*bits), a),
        (Op::Cmp { cond, width }, [a, b]) => {
            let holds = semantics::cond(d, *cond, *width, a, b);
            let (one, zero) = (Scalar::constant(1), Scalar::constant(0));
            d.select(64, &holds, &one, &zero)
        }
        (Op::Select {}, [_, a, b]) => a.join(b),
        _ => return None,
    })
}

/// Returns true if `new` implies every fact of `old`.
pub(crate) fn implies_facts(new: &Scalar, old: &Scalar) -> bool {
    let ((a, b), (c, d)) = (new.unsigned(), old.unsigned());
    let ((e, f), (g, h)) = (new.signed(), old.signed());
    let (new, old) = (new.bits(), old.bits());
    c <= a && b <= d && g <= e && f <= h && new.mask() & !old.mask() == 0
}
