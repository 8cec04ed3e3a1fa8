//! Results of the existing rules on a left side: an instance of it as a function, simplified, and its cost.

use std::sync::Arc;

use millstream_ir::{Func, Function, Linkage, MemFlags, Module, Op, Size, Type, Value, Width};
use millstream_passes::rules::{
    CondPat, NAMES, PatternOp, RewriteRule, RuleCondition, RulePattern, RuleReplacement, RuleSet,
};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};

use super::eval::RuleEnv;
use super::lhs::truths;

/// Target for which rules are judged.
pub(crate) const TARGET: TargetInfo = TargetInfo::bpf(4);

/// Rules in the state of being judged by.
pub(crate) struct RuleSimplifier {
    rules: Arc<RuleSet>,
    pipeline: PassPipeline,
}

/// Result of the simplification of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SimplifiedInstance {
    /// Cost of what computes the result.
    pub(crate) cost: u32,
    /// Number of times the last rule of the set was applied.
    pub(crate) last: u64,
}

impl RuleSimplifier {
    pub(crate) fn new(rules: Vec<RewriteRule>) -> RuleSimplifier {
        let names = ["simplify", "dce", "simplify", "dce"];
        let pipeline = PassPipeline::of(names).unwrap_or_else(|_| PassPipeline::default_o2());
        RuleSimplifier { rules: Arc::new(RuleSet::new(rules)), pipeline }
    }

    /// Simplifies a left side with these constants, its values unknown except for the tests.
    pub(crate) fn run(
        &self,
        pattern: &RulePattern,
        tests: &[RuleCondition],
        env: &RuleEnv,
    ) -> Option<SimplifiedInstance> {
        let mut module = Module::default();
        let func = InstanceBuilder::function(pattern, tests, env);
        let id = module.funcs.push(func);
        let mut session = PassSession::new(TARGET);
        session.verify = false;
        session.rules = Some(Arc::clone(&self.rules));
        self.pipeline.run(&mut module, &mut session).ok()?;
        let last = self.rules.rules().len().checked_sub(1);
        let last = session.fired().find(|(rule, _)| Some(*rule) == last).map_or(0, |(_, n)| n);
        Some(SimplifiedInstance { cost: cost(&module, id), last })
    }
}

/// Cost of all that the result needs and that is not kept for other reasons.
fn cost(module: &Module, id: Func) -> u32 {
    let func = &module.funcs[id];
    let (mut kept, mut work) = (Vec::new(), Vec::new());
    for (_, inst) in func.insts_in_order() {
        match func.insts[inst].op {
            Op::Store { .. } => kept.extend(func.insts[inst].args.iter().copied()),
            Op::Return {} => work.extend(func.insts[inst].args.iter().copied()),
            _ => {}
        }
    }
    let mut total = 0;
    while let Some(value) = work.pop() {
        if kept.contains(&value) {
            continue;
        }
        kept.push(value);
        if let Some(inst) = func.def_inst(value) {
            let data = &func.insts[inst];
            total += TARGET.op_cost(&data.op)
                + loaded(data.args.first().and_then(|&v| func.def_op(v)), data.args.len());
            work.extend(data.args.iter().copied());
        }
    }
    total
}

/// A constant on the left of an operation must be loaded.
fn loaded(first: Option<&Op>, operands: usize) -> u32 {
    u32::from(matches!(first, Some(Op::Const { .. })) && operands == 2)
}

/// Cost of a left side with these constants.
pub(crate) fn pattern_cost(pattern: &RulePattern, env: &RuleEnv) -> u32 {
    match pattern {
        RulePattern::Node { head, args, .. } => {
            let wide = |arg: &RulePattern| match arg {
                RulePattern::Const(i) => TARGET.const_cost(env.consts[*i] as i64),
                RulePattern::Number(n) => TARGET.const_cost(*n),
                node => pattern_cost(node, env),
            };
            let first = matches!(args.first(), Some(RulePattern::Const(_) | RulePattern::Number(_)));
            TARGET.op_cost(&op(*head, env))
                + u32::from(first && args.len() == 2)
                + args.iter().map(wide).sum::<u32>()
        }
        _ => 0,
    }
}

/// Cost of a right side, constants being immediates.
pub(crate) fn build_cost(build: &RuleReplacement) -> u32 {
    let env = RuleEnv { values: [0; NAMES], consts: [0; NAMES], width: Width::W64 };
    match build {
        RuleReplacement::Node(head, args) => {
            let first = matches!(args.first(), Some(RuleReplacement::Const(_)));
            TARGET.op_cost(&op(*head, &env))
                + u32::from(first && args.len() == 2)
                + args.iter().map(build_cost).sum::<u32>()
        }
        RuleReplacement::Not(inner) => build_cost(inner),
        _ => 0,
    }
}

/// Returns true if all constants that a right side computes are immediates.
pub(crate) fn affordable(build: &RuleReplacement, env: &RuleEnv, width: Width) -> bool {
    match build {
        RuleReplacement::Const(expr) => width == Width::W32 || TARGET.const_cost(env.expr(expr) as i64) == 0,
        RuleReplacement::Node(head, args) => {
            args.iter().all(|arg| affordable(arg, env, env.width(head.width())))
        }
        RuleReplacement::Not(inner) => affordable(inner, env, width),
        RuleReplacement::Value(_) | RuleReplacement::Truth(_) => true,
    }
}

fn op(head: PatternOp, env: &RuleEnv) -> Op {
    let cond = |c| if let CondPat::Fixed(cond) = c { cond } else { millstream_ir::Cond::Eq };
    head.op(|w| env.width(w), cond)
}

struct InstanceBuilder<'e> {
    func: Function,
    env: &'e RuleEnv,
    values: [Option<Value>; NAMES],
}

impl InstanceBuilder<'_> {
    fn function(pattern: &RulePattern, tests: &[RuleCondition], env: &RuleEnv) -> Function {
        let mut func = Function::new("instance", Linkage::Static);
        let block = func.add_block();
        let mut builder = InstanceBuilder { func, env, values: [None; NAMES] };
        let memory = builder.func.add_param(block, Type::Any);
        let (mut named, mut consts) = ([false; NAMES], [false; NAMES]);
        super::lhs::names(pattern, &mut named, &mut consts);
        let truths = truths(pattern);
        for i in (0..NAMES).filter(|&i| named[i]) {
            builder.value(i, truths[i], tests, memory);
        }
        let result = builder.node(pattern, Width::W64);
        builder.func.at_end(block).effect(Op::Return {}, [result], []);
        builder.func
    }

    /// A value with exactly the facts that the tests state; the instructions that make it are kept.
    fn value(&mut self, i: usize, truth: bool, tests: &[RuleCondition], memory: Value) {
        let block = self.func.entry();
        let mut ty = if truth { Type::I1 } else { Type::I64 };
        let mut masks = Vec::new();
        for test in tests {
            match test {
                RuleCondition::Bits(k, n) if *k == i => {
                    ty = Type::int((self.env.expr(n) as u32).clamp(1, 64))
                }
                RuleCondition::Zeros(k, m) if *k == i => {
                    masks.push((millstream_ir::AluOp::And, !self.env.expr(m)))
                }
                RuleCondition::Ones(k, m) if *k == i => {
                    masks.push((millstream_ir::AluOp::Or, self.env.expr(m)))
                }
                RuleCondition::AtLeast(k, m) if *k == i => {
                    masks.push((millstream_ir::AluOp::Or, self.env.expr(m)))
                }
                RuleCondition::AtMost(k, m) if *k == i => {
                    let most = self.env.expr(m);
                    let low = most.checked_add(1).map_or(u64::MAX, |n| (1 << n.ilog2()) - 1);
                    masks.push((millstream_ir::AluOp::And, low));
                }
                RuleCondition::Disjoint(k, _) if *k == i => {
                    masks.push((millstream_ir::AluOp::And, 0x5555_5555_5555_5555));
                }
                RuleCondition::Disjoint(_, k) if *k == i => {
                    masks.push((millstream_ir::AluOp::And, 0xaaaa_aaaa_aaaa_aaaa));
                }
                _ => {}
            }
        }
        let mut value = self.func.add_param(block, ty);
        for (op, mask) in masks {
            let mut cursor = self.func.at_end(block);
            let mask = cursor.iconst(mask as i64);
            value = cursor.value(Op::Alu { op, width: Width::W64 }, [value, mask], Type::I64);
            let store = Op::Store { size: Size::Dw, offset: 0, flags: MemFlags::default() };
            cursor.effect(store.clone(), [memory, value], []);
            cursor.effect(store, [memory, value], []);
        }
        self.values[i] = Some(value);
    }

    fn node(&mut self, pattern: &RulePattern, width: Width) -> Value {
        let block = self.func.entry();
        let constant = |func: &mut Function, c: u64| {
            let c = if width == Width::W32 { i64::from(c as i32) } else { c as i64 };
            func.at_end(block).iconst(c)
        };
        match pattern {
            RulePattern::Value(i) => match self.values[*i] {
                Some(value) => value,
                None => constant(&mut self.func, 0),
            },
            RulePattern::Const(i) => constant(&mut self.func, self.env.consts[*i]),
            RulePattern::Number(n) => constant(&mut self.func, *n as u64),
            RulePattern::Node { head, args, .. } => {
                let width = self.env.width(head.width());
                let args: Vec<Value> = args.iter().map(|arg| self.node(arg, width)).collect();
                let op = op(*head, self.env);
                let ty = match &op {
                    Op::Cmp { .. } => Type::I1,
                    Op::Zext {} | Op::Alu { width: Width::W32, .. } | Op::Neg { width: Width::W32 } => {
                        Type::I32
                    }
                    Op::Sext { width: Width::W32, .. } => Type::I32,
                    Op::Swap { bits, .. } => Type::int(u32::from(*bits)),
                    _ => Type::I64,
                };
                self.func.at_end(block).value(op, args, ty)
            }
        }
    }
}
