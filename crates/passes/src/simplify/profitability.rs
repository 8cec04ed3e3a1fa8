//! Worth of a rule of a store, where it matches.
//!
//! The instructions that go must cost more than those that come, other users counted. And with
//! [`TargetInfo::keep_verifier_facts`] the verifier must know as much of the new value as it did of the old
//! one, for it may be an offset into memory further down.
//!
//! [`TargetInfo::keep_verifier_facts`]: crate::TargetInfo::keep_verifier_facts

use millstream_ir::{Inst, Op, Type, Value};
use millstream_isa::absint::Scalar;
use smallvec::SmallVec;

use super::facts::{evaluate, implies_facts};
use super::matcher::RuleBindings;
use super::rule::{PatternOp, RewriteRule, RuleReplacement};
use super::{InstSimplifier, narrower, op_of};

impl InstSimplifier<'_, '_> {
    /// Returns true if the rule makes the function cheaper here, and hides nothing from the verifier.
    pub(super) fn is_profitable(&mut self, inst: Inst, rule: &RewriteRule, env: &RuleBindings) -> bool {
        let result = self.func.result(inst);
        if self.built(&rule.build, env, result.is_none()) >= env.freed {
            return false;
        }
        if result.is_none() || !self.cx.target().keep_verifier_facts {
            return true;
        }
        let telling = self.preserves_verifier_facts(inst, rule, env);
        if let (RuleReplacement::Value(i), true) = (&rule.build, telling) {
            let new = self.known(0, &rule.build, env);
            self.narrow(env.values[*i], &new);
        }
        telling
    }

    /// Returns true if each verifier that will see the code knows as much of the new value as it did of the
    /// old one.
    pub(super) fn preserves_verifier_facts(
        &mut self,
        inst: Inst,
        rule: &RewriteRule,
        env: &RuleBindings,
    ) -> bool {
        let Some(result) = self.func.result(inst) else { return true };
        (0..self.facts.len()).all(|verifier| {
            let old = self.facts[verifier].of(self.func, &self.subst, result);
            let new = self.known(verifier, &rule.build, env);
            implies_facts(&new, &old)
        })
    }

    /// Cost of the instructions that the rule makes.
    fn built(&self, build: &RuleReplacement, env: &RuleBindings, branch: bool) -> u32 {
        match build {
            RuleReplacement::Node(PatternOp::Cmp(..), args) if branch => {
                self.cx.target().costs.branch + self.all_built(args, env)
            }
            RuleReplacement::Node(head, args) => {
                self.cx.target().op_cost(&op_of(*head, env)) + self.all_built(args, env)
            }
            RuleReplacement::Not(inner) => self.built(inner, env, branch),
            RuleReplacement::Value(_) | RuleReplacement::Const(_) | RuleReplacement::Truth(_) => 0,
        }
    }

    fn all_built(&self, args: &[RuleReplacement], env: &RuleBindings) -> u32 {
        args.iter().map(|arg| self.built(arg, env, false)).sum()
    }

    /// Facts of one of the verifiers about the value that the rule makes.
    fn known(&mut self, verifier: usize, build: &RuleReplacement, env: &RuleBindings) -> Scalar {
        match build {
            RuleReplacement::Value(i) => match env.values[*i] {
                Some(value) => self.facts[verifier].of(self.func, &self.subst, value),
                None => Scalar::UNKNOWN,
            },
            RuleReplacement::Const(expr) => Scalar::constant(env.eval(expr)),
            RuleReplacement::Truth(_) | RuleReplacement::Not(_) => Scalar::range(0, 1),
            RuleReplacement::Node(head, args) => {
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
