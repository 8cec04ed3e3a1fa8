//! Functions and maps of other modules, taken into the one of the graph.
//!
//! Invariant: functions and maps are copied, with new numbers in the module: functions behind those that are
//! there, and maps, too, named `ELEMENT.MAP`. The functions read only the fields of the context that a
//! graph's packets have: their bounds and where they came in.

use std::collections::BTreeMap;

use millstream_ir::{Func, Function, InstData, Linkage, Map, Module, Op, Prov, Type, op_group};
use millstream_isa::helpers::id;

/// A packet program from elsewhere.
#[derive(Clone, Debug)]
pub struct BpfElementProgram {
    /// Its module.
    pub module: Module,
    /// The program: takes a context and gives a verdict.
    pub program: Func,
    /// Initial contents of its maps: key and value.
    pub contents: Vec<(Map, Vec<u8>, Vec<u8>)>,
}

/// Reads a program of a file, by its name or that of its section; without either, the only program of the
/// file.
pub type ReadObject<'r> = dyn Fn(&str, Option<&str>) -> Result<BpfElementProgram, String> + 'r;

/// Types of a program's context and verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramHook {
    /// `struct xdp_md`, `enum xdp_action`.
    Xdp,
    /// `struct __sk_buff`, `TC_ACT_*`.
    Tc,
}

const XDP: u32 = 6;
const SCHED_CLS: u32 = 3;
const SCHED_ACT: u32 = 4;

impl ProgramHook {
    /// The hook of a program.
    fn of(func: &Function) -> Option<ProgramHook> {
        match func.linkage {
            Linkage::Program { prog_type: XDP } => Some(ProgramHook::Xdp),
            Linkage::Program { prog_type: SCHED_CLS | SCHED_ACT } => Some(ProgramHook::Tc),
            _ => None,
        }
    }

    /// Offset in the descriptor of a graph's packet of the field at this offset of the context. There is no
    /// metadata: it ends where it begins.
    fn field(self, offset: i32) -> Option<i32> {
        match (self, offset) {
            (ProgramHook::Xdp, 0 | 4 | 12 | 16 | 20) => Some(offset),
            (ProgramHook::Xdp, 8) | (ProgramHook::Tc, 76 | 140) => Some(0),
            (ProgramHook::Tc, 80) => Some(4),
            (ProgramHook::Tc, 36 | 40) => Some(12),
            _ => None,
        }
    }
}

/// Takes a program with all that it can reach into a module: gives its new number and its hook.
pub(crate) fn merge(
    module: &mut Module,
    element: &str,
    foreign: &BpfElementProgram,
) -> Result<(Func, ProgramHook), String> {
    let from = &foreign.module;
    let program = from.funcs.get(foreign.program).ok_or("it has no such program")?;
    let hook = ProgramHook::of(program).ok_or("it is neither an XDP nor a TC program")?;
    let first_map = module.maps.len();
    let map = |map: Map| Map::from_u32((first_map + map.as_u32() as usize) as u32);
    for decl in from.maps.values() {
        let mut decl = decl.clone();
        decl.name = format!("{element}.{}", decl.name);
        decl.inner = decl.inner.map(map);
        module.maps.push(decl);
    }
    let mut numbers = BTreeMap::new();
    for (at, func) in reachable(from, foreign.program).into_iter().enumerate() {
        numbers.insert(func, Func::from_u32((module.funcs.len() + at) as u32));
    }
    let mut order: Vec<(&Func, &Func)> = numbers.iter().collect();
    order.sort_by_key(|(_, new)| **new);
    for (old, _) in order {
        let mut func = from.funcs[*old].clone();
        func.name = format!("{element}.{}", func.name);
        func.linkage = Linkage::Static;
        adopt(&mut func, hook, &map, &numbers)?;
        module.funcs.push(func);
    }
    Ok((numbers[&foreign.program], hook))
}

/// Functions that a program can reach, itself first.
fn reachable(module: &Module, program: Func) -> Vec<Func> {
    let mut found = vec![program];
    let mut at = 0;
    while let Some(&func) = found.get(at) {
        let func = &module.funcs[func];
        for (_, inst) in func.insts_in_order() {
            if let Op::Call { func } | Op::FuncAddr { func } = func.insts[inst].op
                && !found.contains(&func)
            {
                found.push(func);
            }
        }
        at += 1;
    }
    found
}

/// Gives a function the numbers that maps and functions have here.
fn adopt(
    func: &mut Function,
    hook: ProgramHook,
    map: &dyn Fn(Map) -> Map,
    numbers: &BTreeMap<Func, Func>,
) -> Result<(), String> {
    for value in func.defs.keys() {
        if let Type::Ptr(prov) = &mut func.types[value]
            && let Prov::Map(m) | Prov::MapValue(m) | Prov::MapValueOrNull(m) = prov
        {
            *m = map(*m);
        }
    }
    let contexts: Vec<bool> = func.insts.values().map(|data| reads_context(func, data)).collect();
    for (data, context) in func.insts.values_mut().zip(contexts) {
        match &mut data.op {
            Op::MapAddr { map: m }
            | Op::MapValueAddr { map: m, .. }
            | Op::MapLookup { map: m, .. }
            | Op::MapUpdate { map: m, .. }
            | Op::MapDelete { map: m, .. } => *m = map(*m),
            Op::Call { func } | Op::FuncAddr { func } => *func = numbers[func],
            Op::CoreConst { local, .. } => data.op = Op::Const { value: *local },
            Op::Load { offset, flags, .. } => {
                flags.core = None;
                if context {
                    *offset = hook.field(*offset).ok_or_else(|| {
                        format!("it reads byte {offset} of its context, which packets here do not have")
                    })?;
                }
            }
            Op::Store { flags, .. } => flags.core = None,
            Op::Helper { id: id::TAIL_CALL } => return Err("it makes tail calls".into()),
            Op::Kfunc { .. } | Op::ExternAddr { .. } | Op::TableMatch { .. } => {
                return Err("it uses kernel functions or variables".into());
            }
            Op::Const { .. } | Op::Undef {} | Op::StackAddr { .. } | Op::Verdict { .. } => {}
            Op::Helper { .. } | Op::CallIndirect {} => {}
            op_group!(arithmetic) | op_group!(access) | op_group!(packet) | op_group!(terminator) => {}
        }
    }
    Ok(())
}

fn reads_context(func: &Function, data: &InstData) -> bool {
    matches!(data.op, Op::Load { .. })
        && data.args.first().is_some_and(|&value| func.types[value] == Type::Ptr(Prov::Ctx))
}
