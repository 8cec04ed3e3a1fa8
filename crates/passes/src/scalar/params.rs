//! Redundant block parameters: one that always receives the same value, or itself, is that value; two of one
//! block that always receive the same are one.
//!
//! After it a check of the value is seen wherever the parameter stood, and back ends have fewer moves to
//! make.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, Cfg, Function, Inst, Value};
use rustc_hash::FxHashMap;

use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{ValueSubst, fits, keep_params};

const NAME: &str = "params";

/// Removes redundant block parameters.
pub(crate) struct RedundantParams;

impl FuncPass for RedundantParams {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "replace block parameters that always receive the same value"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut any = false;
        // Each round may make further parameters redundant; chains are short.
        while round(func, cx) {
            any = true;
        }
        any
    }
}

fn round(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let cfg = Cfg::new(func);
    let mut incoming: SecondaryMap<Block, Vec<(Inst, usize)>> = SecondaryMap::new();
    for &block in &cfg.rpo {
        let Some(term) = func.terminator(block) else { continue };
        for (i, target) in func.insts[term].targets.iter().enumerate() {
            incoming[target.block].push((term, i));
        }
    }
    let mut subst = ValueSubst::default();
    let mut dead: SecondaryMap<Value, bool> = SecondaryMap::new();
    for &block in &cfg.rpo[1..] {
        let mut seen: FxHashMap<Vec<Value>, Value> = FxHashMap::default();
        for (index, &param) in func.blocks[block].params.iter().enumerate() {
            let args: Vec<Value> = incoming[block]
                .iter()
                .map(|&(term, target)| subst.resolve(func.insts[term].targets[target].args[index]))
                .collect();
            let same = only_value(&args, param).or_else(|| seen.get(&args).copied());
            match same {
                Some(value) if fits(func.types[value], func.types[param]) && cx.fuel(NAME) => {
                    subst.insert(param, value);
                    dead[param] = true;
                }
                _ => {
                    seen.insert(args, param);
                }
            }
        }
    }
    if subst.apply(func) {
        keep_params(func, |v| !dead[v]);
        return true;
    }
    false
}

/// The one value among `args` beside `param` itself.
fn only_value(args: &[Value], param: Value) -> Option<Value> {
    let mut others = args.iter().copied().filter(|&v| v != param);
    let first = others.next()?;
    others.all(|v| v == first).then_some(first)
}
