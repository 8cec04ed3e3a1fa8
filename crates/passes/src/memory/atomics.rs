//! `atomic-adds`: a value of a map that is loaded, added to and stored back becomes an atomic addition in
//! place: one instruction for three, but one that takes the machine some twenty cycles.
//!
//! So it is done only where slots count more than time ([`TargetInfo::slots_first`](crate::TargetInfo)), and
//! only in maps with a value for each CPU: in others, other CPUs see the order of atomic operations.

use cranelift_entity::SecondaryMap;
use millstream_ir::{
    AluOp, AtomicOp, Cfg, DomTree, Function, Inst, Op, Prov, Size, Type, Value, ValueDef, Width,
};

use super::address::AddressRoot;
use super::alias::{AliasClasses, MemoryAccess};
use super::memory_ssa::{MemorySsa, MemoryVersion};
use crate::manager::{FuncPass, PassContext};

const NAME: &str = "atomic-adds";
/// `BPF_MAP_TYPE_PERCPU_HASH`, `BPF_MAP_TYPE_PERCPU_ARRAY` and `BPF_MAP_TYPE_LRU_PERCPU_HASH`.
const PER_CPU: [u32; 3] = [5, 6, 10];

/// The pass.
pub(crate) struct AtomicAdds;

impl FuncPass for AtomicAdds {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "add in place to values of maps, where slots count more than time"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        if !cx.target().slots_first {
            return false;
        }
        let sums = find(func, cx);
        let mut changed = false;
        for (store, op, addend) in sums {
            if cx.fuel(NAME) {
                let data = &mut func.insts[store];
                data.op = op;
                data.args[1] = addend;
                changed = true;
            }
        }
        changed
    }
}

/// Stores of the former contents of their place plus something: the store, the operation in its place, and
/// the addend.
fn find(func: &Function, cx: &PassContext<'_>) -> Vec<(Inst, Op, Value)> {
    let cfg = Cfg::new(func);
    let dom = DomTree::new(func, &cfg);
    let classes = AliasClasses::new(func, &cx.info);
    let mut versions = MemorySsa::new(func, &cfg, &dom, &classes, &cx.info);
    let mut stores: SecondaryMap<Inst, Option<MemoryAccess>> = SecondaryMap::with_capacity(func.insts.len());
    let mut read: SecondaryMap<Inst, Option<(MemoryAccess, MemoryVersion)>> = SecondaryMap::new();
    let uses = func.use_counts();
    let mut sums = Vec::new();
    for &block in &cfg.rpo {
        let mut now = versions.enter(block, &dom, &classes);
        for &inst in &func.blocks[block].insts {
            let plain = matches!(func.insts[inst].op, Op::Store { .. });
            if let Some(access) = classes.plain_access(func, inst).filter(|a| is_own(func, a, cx)) {
                let version = versions.find(&access, now[access.class as usize], &stores).version;
                if plain {
                    let here = |i: Inst| read[i] == Some((access, version));
                    sums.extend(sum(func, inst, &uses, here).map(|(op, addend)| (inst, op, addend)));
                    stores[inst] = Some(access);
                } else {
                    read[inst] = Some((access, version));
                }
            } else if plain {
                stores[inst] = classes.plain_access(func, inst);
            }
            versions.step(&mut now, classes.changed(func, inst, &cx.info), inst, plain);
        }
        versions.leave(block, now);
    }
    sums
}

/// Returns true if an access is to a value that each CPU has for itself, aligned as atomic operations must
/// be.
fn is_own(func: &Function, access: &MemoryAccess, cx: &PassContext<'_>) -> bool {
    let AddressRoot::Value(root) = access.addr.root else { return false };
    let Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map)) = func.types[root] else { return false };
    let looked_up = match func.defs[root] {
        ValueDef::Inst(inst) => matches!(func.insts[inst].op, Op::Helper { .. }),
        ValueDef::Param(..) => false,
    };
    let own = cx.info.maps.get(map).is_some_and(|m| PER_CPU.contains(&m.kind));
    own && looked_up && access.addr.offset % i64::from(access.size.bytes()) == 0
}

/// The atomic operation that a store can become, and its addend, if it stores a sum with a value that `here`
/// has loaded.
fn sum(
    func: &Function,
    store: Inst,
    uses: &SecondaryMap<Value, u32>,
    here: impl Fn(Inst) -> bool,
) -> Option<(Op, Value)> {
    let data = &func.insts[store];
    let Op::Store { size: size @ (Size::W | Size::Dw), offset, .. } = data.op else { return None };
    let once = |v: Value| func.def_inst(v).filter(|_| uses[v] == 1);
    let add = &func.insts[once(data.args[1])?];
    let Op::Alu { op: AluOp::Add, width } = add.op else { return None };
    if width == Width::W32 && size == Size::Dw {
        return None;
    }
    let loads = |v: Value| once(v).is_some_and(|i| matches!(func.insts[i].op, Op::Load { .. }) && here(i));
    let addend = match (add.args[0], add.args[1]) {
        (a, b) if loads(a) => b,
        (a, b) if loads(b) => a,
        _ => return None,
    };
    func.types[addend].is_int().then_some((Op::Atomic { op: AtomicOp::Add, size, offset }, addend))
}
