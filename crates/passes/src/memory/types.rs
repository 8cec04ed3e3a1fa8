//! Types that become known once memory has become values.

use cranelift_entity::SecondaryMap;
use millstream_bpf::ctx::field;
use millstream_ir::{AluOp, Cfg, Function, Inst, Linkage, Op, Prov, Type, Value, Width};

const ROUNDS: u32 = 4;

/// Retypes sums and block parameters of which nothing was known, by what they are made of.
pub(crate) fn refine_types(func: &mut Function, cfg: &Cfg) {
    for _ in 0..ROUNDS {
        let mut changed = false;
        for &block in &cfg.rpo {
            for i in 0..func.blocks[block].insts.len() {
                changed |= refine_inst(func, func.blocks[block].insts[i]);
            }
        }
        changed |= refine_params(func, cfg);
        if !changed {
            return;
        }
    }
}

fn refine_inst(func: &mut Function, inst: Inst) -> bool {
    let data = &func.insts[inst];
    let Some(result) = data.result.expand().filter(|&r| func.types[r] == Type::Any) else { return false };
    let ty = |i: usize| func.types[data.args[i]];
    let new = match data.op {
        Op::Alu { op: AluOp::Add, width: Width::W64 } => match (ty(0), ty(1)) {
            (pointer @ Type::Ptr(_), offset) | (offset, pointer @ Type::Ptr(_)) if offset.is_int() => pointer,
            (a, b) if a.is_int() && b.is_int() => Type::I64,
            _ => return false,
        },
        Op::Alu { op: AluOp::Sub, width: Width::W64 } => match (ty(0), ty(1)) {
            (pointer @ Type::Ptr(_), offset) if offset.is_int() => pointer,
            (Type::Ptr(_), Type::Ptr(_)) => Type::I64,
            (a, b) if a.is_int() && b.is_int() => Type::I64,
            _ => return false,
        },
        Op::Select {} => ty(1).join(ty(2)),
        // A context that came out of memory: its packet pointers can be told only now.
        Op::Load { size, offset, .. } if ty(0) == Type::Ptr(Prov::Ctx) => match func.linkage {
            Linkage::Program { prog_type } => field(prog_type, offset, size).map_or(Type::Any, Type::Ptr),
            _ => return false,
        },
        _ => return false,
    };
    let changed = new != Type::Any;
    if changed {
        func.types[result] = new;
    }
    changed
}

/// Types parameters that are [`Type::Any`] by the join of their arguments, where all of those are known.
fn refine_params(func: &mut Function, cfg: &Cfg) -> bool {
    let mut joined: SecondaryMap<Value, Option<Type>> = SecondaryMap::new();
    for &block in &cfg.rpo {
        for target in func.targets(block) {
            for (&arg, &param) in target.args.iter().zip(&func.blocks[target.block].params) {
                if arg == param || matches!(func.def_op(arg), Some(Op::Undef {})) {
                    continue;
                }
                let ty = func.types[arg];
                joined[param] = Some(joined[param].map_or(ty, |t| t.join(ty)));
            }
        }
    }
    let mut changed = false;
    for &block in cfg.rpo.iter().skip(1) {
        for i in 0..func.blocks[block].params.len() {
            let param = func.blocks[block].params[i];
            if let (Type::Any, Some(new)) = (func.types[param], joined[param]) {
                changed |= new != Type::Any;
                func.types[param] = new;
            }
        }
    }
    changed
}
