//! Questions about words: a small front end to terms and solver for claims that are not about programs.
//!
//! A [`SmtQuery`] is a domain of `isa::semantics`: its variables go through the very functions that define
//! instructions. Its questions can be exported as SMT-LIB, so that anybody can ask them again.

use std::time::Duration;

use millstream_isa::semantics::{Domain, Pred, Prim};

use crate::ProofLimits;
use crate::solver::{self, Solver, SolverAnswer, SolverError, SolverSession};
use crate::term::{Sort, TermId, TermPool};

/// Most terms kept from one question to the next; beyond that all are forgotten.
const MOST_KEPT: usize = 100_000;

/// A bit vector of a query.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BitVecTerm(TermId);

/// A truth value of a query.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BoolTerm(TermId);

/// Variables, assumptions about them, and terms over them; one question after the other.
#[derive(Debug)]
pub struct SmtQuery {
    terms: TermPool,
    variables: Vec<(String, TermId)>,
    assumed: Vec<TermId>,
    solver: Option<Solver>,
    session: Option<SolverSession>,
    limits: ProofLimits,
}

/// Result of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryResult {
    /// It holds for all values. `form` is true if the normal form alone proved it, without a solver.
    Proven {
        /// True if no solver was needed.
        form: bool,
    },
    /// It fails, for example for these values of the variables.
    Refuted(Vec<(String, u64)>),
    /// Not decided, with the reason.
    Undecided(String),
}

impl SmtQuery {
    /// A query without variables and assumptions. Without a solver, only the normal form decides claims. Of
    /// the limits, those of time, memory and terms apply, for each question.
    pub fn new(solver: Option<&Solver>, limits: &ProofLimits) -> SmtQuery {
        SmtQuery {
            terms: TermPool::new(limits.terms),
            variables: Vec::new(),
            assumed: Vec::new(),
            solver: solver.cloned(),
            session: None,
            limits: limits.clone(),
        }
    }

    /// Begins the next question: words and truth values of the last one must not be used any more.
    pub fn begin(&mut self) {
        self.variables.clear();
        self.assumed.clear();
        if self.terms.len() > MOST_KEPT {
            self.terms = TermPool::new(self.limits.terms);
            self.session = None;
        }
    }

    /// A variable of `bits` bits, of which nothing is known.
    pub fn variable(&mut self, name: &str, bits: u32) -> BitVecTerm {
        let t = self.terms.var(name, Sort::Bits(bits as u8));
        self.variables.push((name.to_owned(), t));
        BitVecTerm(t)
    }

    /// Adds an assumption.
    pub fn assume(&mut self, truth: BoolTerm) {
        self.assumed.push(truth.0);
    }

    /// Equality of two vectors of one width.
    pub fn equal(&mut self, a: BitVecTerm, b: BitVecTerm) -> BoolTerm {
        BoolTerm(self.terms.equal(a.0, b.0))
    }

    /// Decides if the claim follows from the assumptions.
    ///
    /// # Errors
    /// If the solver cannot be used.
    pub fn decide(&mut self, claim: BoolTerm) -> Result<QueryResult, SolverError> {
        self.decide_within(claim, self.limits.time)
    }

    /// Like [`SmtQuery::decide`], in at most this time.
    ///
    /// # Errors
    /// If the solver cannot be used.
    pub fn decide_within(&mut self, claim: BoolTerm, time: Duration) -> Result<QueryResult, SolverError> {
        let whole = self.implication(claim);
        if self.terms.is_full() {
            self.terms = TermPool::new(self.limits.terms);
            self.session = None;
            return Ok(QueryResult::Undecided("too many terms".into()));
        }
        if self.terms.known(whole) == Some(true) {
            return Ok(QueryResult::Proven { form: true });
        }
        let session = match (&mut self.session, &self.solver) {
            (Some(session), _) => session,
            (none, Some(solver)) => none.insert(solver.start(&self.limits)?),
            (_, None) => return Ok(QueryResult::Undecided("no solver to ask".into())),
        };
        let wanted: Vec<TermId> = self.variables.iter().map(|(_, t)| *t).collect();
        Ok(match session.valid(&self.terms, whole, &wanted, time.min(self.limits.time))? {
            SolverAnswer::Valid => QueryResult::Proven { form: false },
            SolverAnswer::Unknown(why) => QueryResult::Undecided(why),
            SolverAnswer::Refuted(model) => {
                let value = |(name, t): &(String, TermId)| (name.clone(), model.get(t).copied().unwrap_or(0));
                QueryResult::Refuted(self.variables.iter().map(value).collect())
            }
        })
    }

    /// The question whether the claim follows, as SMT-LIB: it does if the answer is `unsat`.
    pub fn smt(&mut self, claim: BoolTerm) -> String {
        let whole = self.implication(claim);
        solver::question(&self.terms, whole)
    }

    fn implication(&mut self, claim: BoolTerm) -> TermId {
        let mut any = vec![claim.0];
        for i in 0..self.assumed.len() {
            any.push(self.terms.not(self.assumed[i]));
        }
        self.terms.or(&any)
    }
}

impl Domain for SmtQuery {
    type V = BitVecTerm;
    type B = BoolTerm;

    fn constant(&mut self, bits: u32, value: u64) -> BitVecTerm {
        BitVecTerm(self.terms.constant(bits, value))
    }

    fn prim(&mut self, op: Prim, bits: u32, a: &BitVecTerm, b: &BitVecTerm) -> BitVecTerm {
        BitVecTerm(self.terms.prim(op, bits, &a.0, &b.0))
    }

    fn compare(&mut self, pred: Pred, bits: u32, a: &BitVecTerm, b: &BitVecTerm) -> BoolTerm {
        BoolTerm(self.terms.compare(pred, bits, &a.0, &b.0))
    }

    fn not(&mut self, a: &BoolTerm) -> BoolTerm {
        BoolTerm(self.terms.not(a.0))
    }

    fn select(&mut self, bits: u32, c: &BoolTerm, then: &BitVecTerm, other: &BitVecTerm) -> BitVecTerm {
        BitVecTerm(Domain::select(&mut self.terms, bits, &c.0, &then.0, &other.0))
    }

    fn truncate(&mut self, from: u32, to: u32, a: &BitVecTerm) -> BitVecTerm {
        BitVecTerm(self.terms.truncate(from, to, &a.0))
    }

    fn zero_extend(&mut self, from: u32, to: u32, a: &BitVecTerm) -> BitVecTerm {
        BitVecTerm(self.terms.zero_extend(from, to, &a.0))
    }

    fn sign_extend(&mut self, from: u32, to: u32, a: &BitVecTerm) -> BitVecTerm {
        BitVecTerm(self.terms.sign_extend(from, to, &a.0))
    }
}

#[cfg(test)]
mod tests {
    use millstream_isa::semantics::{self, Domain, Pred};
    use millstream_isa::{AluOp, Width};

    use super::{QueryResult, SmtQuery};
    use crate::{ProofLimits, Solver};

    fn query() -> SmtQuery {
        SmtQuery::new(Some(&Solver::new("z3")), &ProofLimits::default())
    }

    #[test]
    fn what_holds_is_proven_and_what_does_not_is_refuted_with_values() {
        let mut q = query();
        let (x, y) = (q.variable("x", 64), q.variable("y", 64));
        let all = semantics::alu(&mut q, AluOp::Or, Width::W64, &x, &y);
        let common = semantics::alu(&mut q, AluOp::And, Width::W64, &x, &y);
        let difference = semantics::alu(&mut q, AluOp::Sub, Width::W64, &all, &common);
        let xor = semantics::alu(&mut q, AluOp::Xor, Width::W64, &x, &y);
        let claim = q.equal(difference, xor);
        assert_eq!(q.decide(claim).unwrap(), QueryResult::Proven { form: false });
        let sum = semantics::alu(&mut q, AluOp::Add, Width::W64, &x, &y);
        let wrong = q.equal(sum, xor);
        let QueryResult::Refuted(values) = q.decide(wrong).unwrap() else { panic!("x + y is not x ^ y") };
        let [(_, a), (_, b)] = values[..] else { panic!("two variables: {values:?}") };
        assert_ne!(a.wrapping_add(b), a ^ b);
    }

    #[test]
    fn a_claim_may_rest_on_what_is_assumed_of_this_question_only() {
        let mut q = query();
        for assume in [true, false] {
            q.begin();
            let (x, limit) = (q.variable("x", 64), q.constant(64, 16));
            if assume {
                let small = q.compare(Pred::Ult, 64, &x, &limit);
                q.assume(small);
            }
            let four = q.constant(64, 4);
            let high = semantics::alu(&mut q, AluOp::Rsh, Width::W64, &x, &four);
            let zero = q.constant(64, 0);
            let claim = q.equal(high, zero);
            let proven = matches!(q.decide(claim).unwrap(), QueryResult::Proven { .. });
            assert_eq!(proven, assume);
        }
    }

    #[test]
    fn a_question_stands_for_itself_as_text() {
        let mut q = SmtQuery::new(None, &ProofLimits::default());
        let (x, y) = (q.variable("x", 64), q.variable("y", 64));
        let product = semantics::alu(&mut q, AluOp::Mul, Width::W32, &x, &y);
        let claim = q.equal(product, x);
        let text = q.smt(claim);
        assert!(text.starts_with("(set-logic QF_BV)") && text.trim_end().ends_with("(check-sat)"), "{text}");
        assert_eq!(q.decide(claim).unwrap(), QueryResult::Undecided("no solver to ask".into()));
    }
}
