//! `dead-functions`: empties static functions that nothing refers to any more. An empty function is not
//! emitted.
//!
//! Maps stay, since loaders find them by name; so do global functions, which other programs may replace or
//! call, and hidden ones, which other files linked with this one may call.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Func, Linkage, Module, Op};

use crate::manager::{ModulePass, PassSession};

const NAME: &str = "dead-functions";

/// The pass.
pub(crate) struct DeadFunctions;

impl ModulePass for DeadFunctions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "remove static functions that nothing refers to"
    }

    fn run(&self, module: &mut Module, session: &mut PassSession) -> bool {
        let live = reachable(module);
        let ids: Vec<Func> = module.funcs.keys().collect();
        let mut changed = false;
        for id in ids {
            let func = &mut module.funcs[id];
            if !live[id] && !func.layout.is_empty() && session.fuel(NAME) {
                func.layout.clear();
                changed = true;
            }
        }
        changed
    }
}

/// Functions that a program or a global function refers to, directly or not.
fn reachable(module: &Module) -> SecondaryMap<Func, bool> {
    let mut live: SecondaryMap<Func, bool> = SecondaryMap::new();
    let mut work: Vec<Func> =
        module.funcs.iter().filter(|(_, f)| f.linkage != Linkage::Static).map(|(id, _)| id).collect();
    work.iter().for_each(|&id| live[id] = true);
    while let Some(id) = work.pop() {
        let func = &module.funcs[id];
        for (_, inst) in func.insts_in_order() {
            let (Op::Call { func: to } | Op::FuncAddr { func: to }) = func.insts[inst].op else { continue };
            if !live[to] {
                live[to] = true;
                work.push(to);
            }
        }
    }
    live
}
