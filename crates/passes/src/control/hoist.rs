//! Hoisting of common address arithmetic: an address that both sides of a branch compute is computed before
//! it, once.
//!
//! A constant added to a pointer moves, and the address of a map or of global data: the verifier knows as
//! much of them before the branch as behind it. The latter moves only where neither side calls before: it
//! would have to be saved. A variable part stays behind the check that bounds it, a pointer that may be null
//! behind the test, and addresses in the context next to their access.

use millstream_ir::{AluOp, Block, Cfg, Function, Inst, Map, Op, Prov, Type, Value, Width};
use smallvec::SmallVec;

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::ValueSubst;

const NAME: &str = "hoist";

/// Hoists addresses.
pub(crate) struct HoistAddresses;

impl FuncPass for HoistAddresses {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "compute addresses that both sides of a branch need before it"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        let mut subst = ValueSubst::default();
        // From the ends up: a hoisted instruction may go on.
        for &block in cfg.rpo.iter().rev() {
            let Some([first, second]) = sides(func, &cfg, block) else { continue };
            for (inst, address) in addresses(func, first) {
                let mut others = addresses(func, second).into_iter();
                let Some((twin, _)) = others.find(|&(_, other)| other == address) else { continue };
                let (Some(value), Some(other)) = (func.result(inst), func.result(twin)) else { continue };
                if func.types[value] == func.types[other] && cx.fuel(NAME) {
                    func.blocks[first].insts.retain(|&i| i != inst);
                    func.blocks[second].insts.retain(|&i| i != twin);
                    place(func, block, inst, address);
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

/// Address that the same instruction computes on both sides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HoistedAddress {
    /// A base and a constant.
    Sum(Value, i64),
    /// A map.
    Map(Map),
    /// A byte of global data.
    Global(Map, u32),
}

/// The addresses that a block computes and that may be computed before it.
fn addresses(func: &Function, block: Block) -> Vec<(Inst, HoistedAddress)> {
    let mut called = false;
    let mut found = Vec::new();
    for &inst in &func.blocks[block].insts {
        let data = &func.insts[inst];
        called |= data.op.effects().calls;
        let address = match data.op {
            Op::Alu { op: AluOp::Add, width: Width::W64 } => sum(func, inst),
            Op::MapAddr { map } if !called => Some(HoistedAddress::Map(map)),
            Op::MapValueAddr { map, offset } if !called => Some(HoistedAddress::Global(map, offset)),
            _ => None,
        };
        found.extend(address.map(|address| (inst, address)));
    }
    found
}

fn sum(func: &Function, inst: Inst) -> Option<HoistedAddress> {
    let args = &func.insts[inst].args;
    let (base, constant) = (args[0], func.as_const(args[1])?);
    let movable = matches!(
        func.types[base],
        Type::Ptr(Prov::Packet | Prov::PacketMeta | Prov::Stack | Prov::MapValue(_))
    );
    movable.then_some(HoistedAddress::Sum(base, constant))
}

/// Puts the address before the end of a block, with a constant of its own.
fn place(func: &mut Function, block: Block, inst: Inst, address: HoistedAddress) {
    let mut at = func.blocks[block].insts.len() - 1;
    if let HoistedAddress::Sum(base, constant) = address {
        let constant = func.at(block, at).iconst(constant);
        func.insts[inst].args = SmallVec::from_slice(&[base, constant]);
        at += 1;
    }
    func.blocks[block].insts.insert(at, inst);
}
