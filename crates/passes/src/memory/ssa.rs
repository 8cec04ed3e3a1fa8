//! Construction of SSA form for variables that live in memory: pruned, by iterated dominance frontiers
//! (Cytron et al., "Efficiently Computing Static Single Assignment Form").

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, Cfg, DomTree, Function, Op, Type, Value};
use smallvec::SmallVec;

/// Definitions and uses of a variable.
#[derive(Clone, Debug, Default)]
pub(crate) struct SsaVariable {
    /// Blocks that write it.
    pub(crate) defs: Vec<Block>,
    /// Blocks that read it before they write it.
    pub(crate) exposed: Vec<Block>,
}

/// The variables for which a block has parameters, in the order of the parameters appended.
pub(crate) type PhiPlacement = SecondaryMap<Block, Vec<(u32, Value)>>;

/// Dominance frontiers of all reachable blocks.
pub(crate) fn frontiers(cfg: &Cfg, dom: &DomTree) -> SecondaryMap<Block, SmallVec<[Block; 2]>> {
    let mut all: SecondaryMap<Block, SmallVec<[Block; 2]>> = SecondaryMap::new();
    for &join in cfg.rpo.iter().filter(|&&b| cfg.preds[b].len() > 1) {
        for &pred in &cfg.preds[join] {
            let mut at = pred;
            while Some(at) != dom.idom(join) {
                if !all[at].contains(&join) {
                    all[at].push(join);
                }
                match dom.idom(at) {
                    Some(up) => at = up,
                    None => break,
                }
            }
        }
    }
    all
}

/// Appends block parameters where values of the variables meet.
///
/// The entry must have no predecessor: its parameters are the function's.
pub(crate) fn place(
    func: &mut Function,
    cfg: &Cfg,
    dom: &DomTree,
    variables: &[SsaVariable],
) -> PhiPlacement {
    let frontiers = frontiers(cfg, dom);
    let mut joins = PhiPlacement::new();
    // Marks carry the number of the variable, so that nothing is cleared in between.
    let mut live: SecondaryMap<Block, u32> = SecondaryMap::with_default(u32::MAX);
    let mut placed: SecondaryMap<Block, u32> = SecondaryMap::with_default(u32::MAX);
    let mut defines: SecondaryMap<Block, u32> = SecondaryMap::with_default(u32::MAX);
    for (number, variable) in variables.iter().enumerate() {
        let mark = number as u32;
        variable.defs.iter().for_each(|&b| defines[b] = mark);
        let mut work = variable.exposed.clone();
        while let Some(block) = work.pop() {
            if live[block] != mark {
                live[block] = mark;
                work.extend(cfg.preds[block].iter().copied().filter(|&p| defines[p] != mark));
            }
        }
        let mut work = variable.defs.clone();
        while let Some(block) = work.pop() {
            for &join in &frontiers[block] {
                if placed[join] != mark && live[join] == mark {
                    placed[join] = mark;
                    let param = func.add_param(join, Type::Any);
                    joins[join].push((mark, param));
                    work.push(join);
                }
            }
        }
    }
    joins
}

/// Gives the new parameters their arguments. `out` are the variables' values at the end of each block; where
/// there is none the value is undefined.
pub(crate) fn add_phi_args(
    func: &mut Function,
    cfg: &Cfg,
    joins: &PhiPlacement,
    out: &SecondaryMap<Block, Vec<Option<Value>>>,
) {
    let mut undef = None;
    for &block in &cfg.rpo {
        let Some(term) = func.terminator(block) else { continue };
        for t in 0..func.insts[term].targets.len() {
            let target = func.insts[term].targets[t].block;
            for &(variable, _) in &joins[target] {
                let value = match out[block][variable as usize] {
                    Some(value) => value,
                    None => *undef.get_or_insert_with(|| undefined(func)),
                };
                func.insts[term].targets[t].args.push(value);
            }
        }
    }
    // Branches in unreachable blocks need their arguments as well.
    for i in 0..func.layout.len() {
        let block = func.layout[i];
        let Some(term) = func.terminator(block).filter(|_| !cfg.is_reachable(block)) else { continue };
        for t in 0..func.insts[term].targets.len() {
            for _ in 0..joins[func.insts[term].targets[t].block].len() {
                let value = *undef.get_or_insert_with(|| undefined(func));
                func.insts[term].targets[t].args.push(value);
            }
        }
    }
    type_params(func, cfg, joins);
}

/// An undefined word at the function's entry.
pub(crate) fn undefined(func: &mut Function) -> Value {
    let entry = func.entry();
    func.at(entry, 0).value(Op::Undef {}, [], Type::Any)
}

/// Types the new parameters by what reaches them; an undefined word takes any type.
fn type_params(func: &mut Function, cfg: &Cfg, joins: &PhiPlacement) {
    let mut open: SecondaryMap<Value, bool> = SecondaryMap::new();
    for &block in &cfg.rpo {
        joins[block].iter().for_each(|&(_, param)| open[param] = true);
    }
    let mut changed = true;
    while changed {
        changed = false;
        for &block in &cfg.rpo {
            for t in 0..func.targets(block).len() {
                let target = func.targets(block)[t].clone();
                let old = func.blocks[target.block].params.len() - joins[target.block].len();
                for (i, &(_, param)) in joins[target.block].iter().enumerate() {
                    let arg = target.args[old + i];
                    if open[arg] || matches!(func.def_op(arg), Some(Op::Undef {})) {
                        continue;
                    }
                    let (from, to) = (func.types[arg], func.types[param]);
                    let new = if open[param] { from } else { to.join(from) };
                    if open[param] || new != to {
                        open[param] = false;
                        func.types[param] = new;
                        changed = true;
                    }
                }
            }
        }
    }
}
