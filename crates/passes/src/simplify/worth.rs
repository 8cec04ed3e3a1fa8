//! Worth of a rule of a store, where it matches.
//!
//! The instructions that go must cost more than those that come, other users counted. And with
//! [`Target::keep_verifier_facts`] the verifier must know as much of the new value as it did of the old one,
//! for it may be an offset into memory further down.
//!
//! [`Target::keep_verifier_facts`]: crate::Target::keep_verifier_facts

use millstream_ir::{Inst, Op, Type, Value};
use millstream_isa::absint::Scalar;
use smallvec::SmallVec;

use super::facts::{as_telling, evaluate};
use super::matcher::Bindings;
use super::rule::{Build, Head, Rule};
use super::{Simplifier, narrower, op_of};

impl Simplifier<'_, '_> {
    /// Returns true if the rule makes the function cheaper here, and hides nothing from the verifier.
    pub(super) fn worthwhile(&mut self, inst: Inst, rule: &Rule, env: &Bindings) -> bool {
        let result = self.func.result(inst);
        if self.built(&rule.build, env, result.is_none()) >= env.freed {
            return false;
        }
        if result.is_none() || !self.cx.target().keep_verifier_facts {
            return true;
        }
        let telling = self.hides_nothing(inst, rule, env);
        if let (Build::Value(i), true) = (&rule.build, telling) {
            let new = self.known(0, &rule.build, env);
            self.narrow(env.values[*i], &new);
        }
        telling
    }

    /// Returns true if each verifier that will see the code knows as much of the new value as it did of the
    /// old one.
    pub(super) fn hides_nothing(&mut self, inst: Inst, rule: &Rule, env: &Bindings) -> bool {
        let Some(result) = self.func.result(inst) else { return true };
        (0..self.facts.len()).all(|verifier| {
            let old = self.facts[verifier].of(self.func, &self.subst, result);
            let new = self.known(verifier, &rule.build, env);
            as_telling(&new, &old)
        })
    }

    /// Cost of the instructions that the rule makes.
    fn built(&self, build: &Build, env: &Bindings, branch: bool) -> u32 {
        match build {
            Build::Node(Head::Cmp(..), args) if branch => {
                self.cx.target().costs.branch + self.all_built(args, env)
            }
            Build::Node(head, args) => {
                self.cx.target().op_cost(&op_of(*head, env)) + self.all_built(args, env)
            }
            Build::Not(inner) => self.built(inner, env, branch),
            Build::Value(_) | Build::Const(_) | Build::Truth(_) => 0,
        }
    }

    fn all_built(&self, args: &[Build], env: &Bindings) -> u32 {
        args.iter().map(|arg| self.built(arg, env, false)).sum()
    }

    /// Facts of one of the verifiers about the value that the rule makes.
    fn known(&mut self, verifier: usize, build: &Build, env: &Bindings) -> Scalar {
        match build {
            Build::Value(i) => match env.values[*i] {
                Some(value) => self.facts[verifier].of(self.func, &self.subst, value),
                None => Scalar::UNKNOWN,
            },
            Build::Const(expr) => Scalar::constant(env.eval(expr)),
            Build::Truth(_) | Build::Not(_) => Scalar::range(0, 1),
            Build::Node(head, args) => {
                let args: SmallVec<[Scalar; 3]> =
                    args.iter().map(|arg| self.known(verifier, arg, env)).collect();
                evaluate(self.facts[verifier].domain(), &op_of(*head, env), &args).unwrap_or(Scalar::UNKNOWN)
            }
        }
    }

    /// Writes the known facts about a value into its type, so that it can stand where a narrow one stood.
    fn narrow(&mut self, value: Option<Value>, known: &Scalar) {
        let Some(value) = value else { return };
        if matches!(self.func.def_op(value), Some(Op::Alu { .. })) {
            let bits = known.unsigned().1.checked_ilog2().map_or(1, |n| n + 1);
            self.func.types[value] = narrower(self.func.types[value], Type::int(bits));
        }
    }
}
