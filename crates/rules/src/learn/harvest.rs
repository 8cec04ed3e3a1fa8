//! Left sides from programs: the arithmetic that remains of them after the passes.
//!
//! Every operation is a root, followed down to its operands' definitions to depth 1, 2 and 3 as long as there
//! are at most four leaves; constants become symbolic, other operands values, whose types give their number
//! of bits.

use millstream_bpf::module::lift_supported;
use millstream_ir::{Function, Inst, Module, Op, Type, Value, Width};
use millstream_object::Object;
use millstream_passes::rules::{CondPat, ConstExpr, NAMES, PatternOp, RuleCondition, RulePattern, WidthPat};
use millstream_passes::{PassPipeline, PassSession};
use rustc_hash::FxHashMap;

use super::instance::TARGET;
use super::lhs::{LeftHandSide, LhsGroup, truths};

/// Deepest left side.
const DEPTH: usize = 3;
/// Most operations of one.
const OPERATIONS: usize = 4;

/// Left sides, with how often each stands in the programs.
#[derive(Clone, Debug, Default)]
pub struct PatternHarvest {
    counts: FxHashMap<LeftHandSide, u64>,
}

impl PatternHarvest {
    /// Adds the arithmetic that the default passes leave of an object's programs. Functions that cannot be
    /// lifted add none.
    pub fn object(&mut self, object: &Object) {
        let lifted = lift_supported(object);
        let mut module = lifted.module;
        let mut session = PassSession::new(TARGET);
        session.verify = false;
        if PassPipeline::default_o2().run(&mut module, &mut session).is_ok() {
            self.module(&module);
        }
    }

    fn module(&mut self, module: &Module) {
        for func in module.funcs.values() {
            let insts: Vec<Inst> = func.insts_in_order().map(|(_, inst)| inst).collect();
            for inst in insts {
                let mut last = None;
                for depth in 1..=DEPTH {
                    let shape = shape(func, inst, depth);
                    if shape.is_some() && shape != last {
                        if let Some(shape) = &shape {
                            *self.counts.entry(shape.clone()).or_default() += 1;
                        }
                        last = shape;
                    }
                }
            }
        }
    }

    /// Left sides that stand at least so often, the most frequent first, each a group with the known facts
    /// and without.
    pub(crate) fn groups(&self, least: u64) -> Vec<LhsGroup> {
        let mut all: Vec<(&LeftHandSide, u64)> = self.counts.iter().map(|(s, n)| (s, *n)).collect();
        all.retain(|(_, n)| *n >= least);
        all.sort_by_cached_key(|(s, n)| (std::cmp::Reverse(*n), format!("{s:?}")));
        let plain = |s: &LeftHandSide| LeftHandSide { tests: Vec::new(), ..s.clone() };
        all.into_iter()
            .map(|(s, _)| if s.tests.is_empty() { vec![s.clone()] } else { vec![plain(s), s.clone()] })
            .collect()
    }

    /// Number of left sides.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// A pattern in the making.
struct PatternReader<'f> {
    func: &'f Function,
    values: Vec<Value>,
    consts: Vec<i64>,
    operations: usize,
}

fn shape(func: &Function, inst: Inst, depth: usize) -> Option<LeftHandSide> {
    let mut reader = PatternReader { func, values: Vec::new(), consts: Vec::new(), operations: 0 };
    let pattern = reader.node(inst, depth)?;
    // The last name is for the constant that is looked for.
    if reader.values.is_empty() || reader.consts.len() >= NAMES {
        return None;
    }
    let truths = truths(&pattern);
    let mut tests = Vec::new();
    for (i, &value) in reader.values.iter().enumerate() {
        match func.types[value].int_bits()? {
            64 => {}
            bits if !truths[i] => tests.push(RuleCondition::Bits(i, ConstExpr::Number(i64::from(bits)))),
            _ => {}
        }
    }
    Some(LeftHandSide { pattern, tests })
}

impl PatternReader<'_> {
    fn node(&mut self, inst: Inst, depth: usize) -> Option<RulePattern> {
        let data = &self.func.insts[inst];
        let fixed = WidthPat::Fixed;
        let head = match data.op {
            Op::Alu { op, width } => PatternOp::Alu(op, fixed(width)),
            Op::Neg { width } => PatternOp::Neg(fixed(width)),
            Op::Zext {} => PatternOp::Zext,
            Op::Sext { bits, width } => PatternOp::Sext(bits, fixed(width)),
            Op::Swap { kind, bits } => PatternOp::Swap(kind, bits),
            Op::Cmp { cond, width } | Op::Branch { cond, width } => {
                PatternOp::Cmp(CondPat::Fixed(cond), fixed(width))
            }
            Op::Select {} => PatternOp::Select,
            _ => return None,
        };
        self.operations += 1;
        if self.operations > OPERATIONS {
            return None;
        }
        let width = match head.width() {
            WidthPat::Fixed(width) => width,
            WidthPat::Var(_) => Width::W64,
        };
        let args: Option<Vec<RulePattern>> =
            data.args.iter().map(|&arg| self.operand(arg, width, depth - 1)).collect();
        Some(RulePattern::Node { head, once: false, args: args? })
    }

    fn operand(&mut self, value: Value, width: Width, depth: usize) -> Option<RulePattern> {
        if let Some(c) = self.func.as_const(value) {
            let c = if width == Width::W32 { i64::from(c as u32) } else { c };
            let i = position(&mut self.consts, c)?;
            return Some(RulePattern::Const(i));
        }
        if let (true, Some(inst)) = (depth > 0, self.func.def_inst(value)) {
            let saved = (self.values.clone(), self.consts.clone(), self.operations);
            if let Some(node) = self.node(inst, depth) {
                return Some(node);
            }
            (self.values, self.consts, self.operations) = saved;
        }
        if !self.func.types[value].is_int() || matches!(self.func.types[value], Type::Any) {
            return None;
        }
        Some(RulePattern::Value(position(&mut self.values, value)?))
    }
}

fn position<T: PartialEq>(list: &mut Vec<T>, item: T) -> Option<usize> {
    if let Some(at) = list.iter().position(|i| *i == item) {
        return Some(at);
    }
    if list.len() == NAMES {
        return None;
    }
    list.push(item);
    Some(list.len() - 1)
}
