//! Global value numbering: a pure operation on the same operands as one that dominates it takes that one's
//! result.
//!
//! Two computations become one value, which suits the verifier best: a check of the one blesses the other.
//! Loads are not touched (memory passes merge them), nor `ctx + constant`, which must stay next to its
//! access.

use millstream_ir::{AluOp, Block, Cfg, DomTree, Function, Inst, Op, Prov, Type, Value};
use millstream_isa::helpers::{Helper, HelperEffects};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{ValueSubst, fits, swapped};

const NAME: &str = "gvn";

/// Merges equal computations.
pub(crate) struct Gvn;

impl FuncPass for Gvn {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "merge computations of the same value"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let mut numbering = ValueNumbering {
            constants: FxHashMap::default(),
            seen: FxHashMap::default(),
            subst: ValueSubst::default(),
            dom: &dom,
        };
        let mut work = vec![func.entry()];
        while let Some(block) = work.pop() {
            numbering.block(func, block, cx);
            work.extend(dom.children(block).iter().rev());
        }
        numbering.subst.apply(func)
    }
}

/// An operation with its operands in normal order.
#[derive(PartialEq, Eq, Hash)]
struct ExpressionKey {
    op: Op,
    args: SmallVec<[Value; 3]>,
}

struct ValueNumbering<'a> {
    // One value stands for all constants of the same number in keys. The constants themselves stay apart:
    // each is made where its user wants it, and a merged one would occupy a register from the first to the
    // last use.
    constants: FxHashMap<i64, Value>,
    // In preorder of the dominator tree one entry a key is enough: it dominates, or its subtree is done.
    seen: FxHashMap<ExpressionKey, (Value, Block)>,
    subst: ValueSubst,
    dom: &'a DomTree,
}

impl ValueNumbering<'_> {
    fn block(&mut self, func: &Function, block: Block, cx: &mut PassContext<'_>) {
        for &inst in &func.blocks[block].insts {
            let Some(value) = func.result(inst) else { continue };
            if !is_repeatable(func, inst) {
                continue;
            }
            let key = self.key(func, inst);
            let earlier = self.seen.get(&key).filter(|(_, at)| self.dom.dominates(*at, block)).map(|e| e.0);
            match earlier {
                Some(known) if fits(func.types[known], func.types[value]) && cx.fuel(NAME) => {
                    self.subst.insert(value, known);
                }
                Some(_) => {}
                None => {
                    self.seen.insert(key, (value, block));
                }
            }
        }
    }

    fn operand(&mut self, func: &Function, value: Value) -> Value {
        let value = self.subst.resolve(value);
        match func.as_const(value) {
            Some(c) => *self.constants.entry(c).or_insert(value),
            None => value,
        }
    }

    fn key(&mut self, func: &Function, inst: Inst) -> ExpressionKey {
        let data = &func.insts[inst];
        let mut op = data.op.clone();
        let mut args: SmallVec<[Value; 3]> = data.args.iter().map(|&v| self.operand(func, v)).collect();
        match &mut op {
            Op::Alu { op: AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor, .. } => {
                args.sort_unstable()
            }
            Op::Cmp { cond, .. } if args[0] > args[1] => {
                *cond = swapped(*cond);
                args.swap(0, 1);
            }
            _ => {}
        }
        ExpressionKey { op, args }
    }
}

/// Returns true if equal operands give an equal result, wherever in the function.
fn is_repeatable(func: &Function, inst: Inst) -> bool {
    let data = &func.insts[inst];
    match data.op {
        Op::Undef {} | Op::Const { .. } => false,
        Op::Alu { .. } => !data.args.iter().any(|&v| func.types[v] == Type::Ptr(Prov::Ctx)),
        // Pure helpers: facts about the CPU or task that cannot change while the program runs.
        Op::Helper { id } => Helper::get(id).is_some_and(|h| {
            let steady = h.effects == HelperEffects::PURE || h.effects == HelperEffects::FASTCALL;
            steady && h.args.is_empty()
        }),
        _ => data.op.effects().is_pure(),
    }
}
