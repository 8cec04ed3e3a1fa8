//! Hoisting of common address arithmetic: a sum that both sides of a branch compute is computed before it, once.
//!
//! Only a constant added to a pointer moves, and addresses of maps' values: the verifier knows as much of them before
//! the branch as behind it. A variable part stays behind the check that bounds it, a pointer that may be null behind the
//! test, and addresses in the context next to their access.

use millstream_ir::{AluOp, Block, Cfg, Function, Inst, Op, Prov, Type, Value, Width};
use smallvec::SmallVec;

use crate::manager::{Ctx, FuncPass};
use crate::rewrite::Subst;

const NAME: &str = "hoist";

/// Hoists addresses.
pub(crate) struct Hoist;

impl FuncPass for Hoist {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "compute addresses that both sides of a branch need before it"
    }

    fn run(&self, func: &mut Function, cx: &mut Ctx<'_>) -> bool {
        let cfg = Cfg::new(func);
        let mut subst = Subst::default();
        // From the ends up: what was hoisted may go on.
        for &block in cfg.rpo.iter().rev() {
            let Some([first, second]) = sides(func, &cfg, block) else { continue };
            for inst in func.blocks[first].insts.clone() {
                let Some(sum) = address(func, inst) else { continue };
                let twin = func.blocks[second].insts.iter().copied().find(|&i| address(func, i) == Some(sum));
                let Some(twin) = twin else { continue };
                let (Some(value), Some(other)) = (func.result(inst), func.result(twin)) else { continue };
                if func.types[value] == func.types[other] && cx.fuel(NAME) {
                    func.blocks[first].insts.retain(|&i| i != inst);
                    func.blocks[second].insts.retain(|&i| i != twin);
                    place(func, block, inst, sum);
                    subst.insert(other, value);
                }
            }
        }
        subst.apply(func)
    }
}

/// The two targets of a block that no other block leads to.
fn sides(func: &Function, cfg: &Cfg, block: Block) -> Option<[Block; 2]> {
    let targets: SmallVec<[Block; 2]> = func.targets(block).iter().map(|t| t.block).collect();
    let [first, second] = targets[..] else { return None };
    let own = |b: Block| cfg.preds[b].len() == 1;
    (first != second && own(first) && own(second)).then_some([first, second])
}

/// A base and a constant.
fn address(func: &Function, inst: Inst) -> Option<(Value, i64)> {
    let data = &func.insts[inst];
    let Op::Alu { op: AluOp::Add, width: Width::W64 } = data.op else { return None };
    let (base, constant) = (data.args[0], func.as_const(data.args[1])?);
    let movable = matches!(
        func.types[base],
        Type::Ptr(Prov::Packet | Prov::PacketMeta | Prov::Stack | Prov::MapValue(_))
    );
    movable.then_some((base, constant))
}

/// Puts the sum before the end of a block, with a constant of its own.
fn place(func: &mut Function, block: Block, inst: Inst, (base, constant): (Value, i64)) {
    let at = func.blocks[block].insts.len() - 1;
    let constant = func.at(block, at).iconst(constant);
    func.insts[inst].args = SmallVec::from_slice(&[base, constant]);
    func.blocks[block].insts.insert(at + 1, inst);
}
