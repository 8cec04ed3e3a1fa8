//! Results of the existing rules on a left side: an instance of it as a function, simplified, and its cost.

use std::sync::Arc;

use millstream_ir::{Func, Function, Linkage, MemFlags, Module, Op, Size, Type, Value, Width};
use millstream_passes::rules::{Build, CondPat, Head, NAMES, Pattern, Rule, RuleSet, Test};
use millstream_passes::{Pipeline, Session, Target};

use super::eval::Env;
use super::sample::truths;

/// Target for which rules are judged.
pub(crate) const TARGET: Target = Target::bpf(4);

/// Rules in the state of being judged by.
pub(crate) struct Simplifier {
    rules: Arc<RuleSet>,
    pipeline: Pipeline,
}

/// Result of the simplification of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Simplified {
    /// Cost of what computes the result.
    pub(crate) cost: u32,
    /// Number of times the last rule of the set was applied.
    pub(crate) last: u64,
}

impl Simplifier {
    pub(crate) fn new(rules: Vec<Rule>) -> Simplifier {
        let names = ["simplify", "dce", "simplify", "dce"];
        let pipeline = Pipeline::of(names).unwrap_or_else(|_| Pipeline::default_o2());
        Simplifier { rules: Arc::new(RuleSet::new(rules)), pipeline }
    }

    /// Simplifies a left side with these constants, its values unknown except for the tests.
    pub(crate) fn run(&self, pattern: &Pattern, tests: &[Test], env: &Env) -> Option<Simplified> {
        let mut module = Module::default();
        let func = Builder::function(pattern, tests, env);
        let id = module.funcs.push(func);
        let mut session = Session::new(TARGET);
        session.verify = false;
        session.rules = Some(Arc::clone(&self.rules));
        self.pipeline.run(&mut module, &mut session).ok()?;
        let last = self.rules.rules().len().checked_sub(1);
        let last = session.fired().find(|(rule, _)| Some(*rule) == last).map_or(0, |(_, n)| n);
        Some(Simplified { cost: cost(&module, id), last })
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
pub(crate) fn pattern_cost(pattern: &Pattern, env: &Env) -> u32 {
    match pattern {
        Pattern::Node { head, args, .. } => {
            let wide = |arg: &Pattern| match arg {
                Pattern::Const(i) => TARGET.const_cost(env.consts[*i] as i64),
                Pattern::Number(n) => TARGET.const_cost(*n),
                node => pattern_cost(node, env),
            };
            let first = matches!(args.first(), Some(Pattern::Const(_) | Pattern::Number(_)));
            TARGET.op_cost(&op(*head, env))
                + u32::from(first && args.len() == 2)
                + args.iter().map(wide).sum::<u32>()
        }
        _ => 0,
    }
}

/// Cost of a right side, constants being immediates.
pub(crate) fn build_cost(build: &Build) -> u32 {
    let env = Env { values: [0; NAMES], consts: [0; NAMES], width: Width::W64 };
    match build {
        Build::Node(head, args) => {
            let first = matches!(args.first(), Some(Build::Const(_)));
            TARGET.op_cost(&op(*head, &env))
                + u32::from(first && args.len() == 2)
                + args.iter().map(build_cost).sum::<u32>()
        }
        Build::Not(inner) => build_cost(inner),
        _ => 0,
    }
}

/// Returns true if all constants that a right side computes are immediates.
pub(crate) fn affordable(build: &Build, env: &Env, width: Width) -> bool {
    match build {
        Build::Const(expr) => width == Width::W32 || TARGET.const_cost(env.expr(expr) as i64) == 0,
        Build::Node(head, args) => args.iter().all(|arg| affordable(arg, env, env.width(head.width()))),
        Build::Not(inner) => affordable(inner, env, width),
        Build::Value(_) | Build::Truth(_) => true,
    }
}

fn op(head: Head, env: &Env) -> Op {
    let cond = |c| if let CondPat::Fixed(cond) = c { cond } else { millstream_ir::Cond::Eq };
    head.op(|w| env.width(w), cond)
}

struct Builder<'e> {
    func: Function,
    env: &'e Env,
    values: [Option<Value>; NAMES],
}

impl Builder<'_> {
    fn function(pattern: &Pattern, tests: &[Test], env: &Env) -> Function {
        let mut func = Function::new("instance", Linkage::Static);
        let block = func.add_block();
        let mut builder = Builder { func, env, values: [None; NAMES] };
        let memory = builder.func.add_param(block, Type::Any);
        let (mut named, mut consts) = ([false; NAMES], [false; NAMES]);
        super::shape::names(pattern, &mut named, &mut consts);
        let truths = truths(pattern);
        for i in (0..NAMES).filter(|&i| named[i]) {
            builder.value(i, truths[i], tests, memory);
        }
        let result = builder.node(pattern, Width::W64);
        builder.func.at_end(block).effect(Op::Return {}, [result], []);
        builder.func
    }

    /// A value with exactly the facts that the tests state; the instructions that make it are kept.
    fn value(&mut self, i: usize, truth: bool, tests: &[Test], memory: Value) {
        let block = self.func.entry();
        let mut ty = if truth { Type::I1 } else { Type::I64 };
        let mut masks = Vec::new();
        for test in tests {
            match test {
                Test::Bits(k, n) if *k == i => ty = Type::int((self.env.expr(n) as u32).clamp(1, 64)),
                Test::Zeros(k, m) if *k == i => masks.push((millstream_ir::AluOp::And, !self.env.expr(m))),
                Test::Ones(k, m) if *k == i => masks.push((millstream_ir::AluOp::Or, self.env.expr(m))),
                Test::AtLeast(k, m) if *k == i => masks.push((millstream_ir::AluOp::Or, self.env.expr(m))),
                Test::AtMost(k, m) if *k == i => {
                    let most = self.env.expr(m);
                    let low = most.checked_add(1).map_or(u64::MAX, |n| (1 << n.ilog2()) - 1);
                    masks.push((millstream_ir::AluOp::And, low));
                }
                Test::Disjoint(k, _) if *k == i => {
                    masks.push((millstream_ir::AluOp::And, 0x5555_5555_5555_5555));
                }
                Test::Disjoint(_, k) if *k == i => {
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

    fn node(&mut self, pattern: &Pattern, width: Width) -> Value {
        let block = self.func.entry();
        let constant = |func: &mut Function, c: u64| {
            let c = if width == Width::W32 { i64::from(c as i32) } else { c as i64 };
            func.at_end(block).iconst(c)
        };
        match pattern {
            Pattern::Value(i) => match self.values[*i] {
                Some(value) => value,
                None => constant(&mut self.func, 0),
            },
            Pattern::Const(i) => constant(&mut self.func, self.env.consts[*i]),
            Pattern::Number(n) => constant(&mut self.func, *n as u64),
            Pattern::Node { head, args, .. } => {
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
