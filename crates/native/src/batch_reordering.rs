//! Packets of a batch class by class: which programs allow it, and the definition of a class.
//!
//! If packets alternate between different paths through a program, branches are mispredicted and code is
//! fetched alternately. Sorted into classes, packets of one path run one after the other ([`crate::emit`]
//! sorts, [`millstream_plan::BatchReordering`] names the criterion).
//!
//! Invariant: a program that runs in this order gives each packet the same result as in arrival order, and
//! leaves the same contents in all maps; packets of a flow (as `millstream-native-io` steers them) stay in order.
//! Classes depend only on what all packets of a flow have in common. [`independent`] checks that no packet
//! sees what another one has left: programs may change maps only by adding to numbers that they read for no
//! other purpose. Only the sum counts then, and that does not depend on the order.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, AtomicOp, Func, Function, Inst, Map, Module, Op, Prov, Type, Value, Width};
use millstream_isa::Size;
use millstream_isa::helpers::id;

/// Helpers that access nothing but their packet, or nothing at all.
const OWN: [i32; 10] = [
    id::GET_SMP_PROCESSOR_ID,
    id::REDIRECT,
    id::CSUM_DIFF,
    id::XDP_ADJUST_HEAD,
    id::REDIRECT_MAP,
    id::XDP_ADJUST_META,
    id::XDP_ADJUST_TAIL,
    id::XDP_GET_BUFF_LEN,
    id::XDP_LOAD_BYTES,
    id::XDP_STORE_BYTES,
];

/// Checks that packets may run in another order; the error is a sentence that says why not. `reads` reports
/// whether look-ups in a map leave no trace in it.
pub(crate) fn independent(
    module: &Module,
    funcs: impl IntoIterator<Item = Func>,
    reads: &dyn Fn(Map) -> bool,
) -> Result<(), String> {
    let mut found = MapAccesses::default();
    for id in funcs {
        let func = &module.funcs[id];
        let sums = ReadModifyWrites::of(func);
        for (_, inst) in func.insts_in_order() {
            found.look_at(func, &sums, inst, reads).map_err(|why| format!("`{}` {why}", func.name))?;
        }
    }
    let name = |map: &Map| &module.maps[*map].name;
    match found.read.iter().find(|map| found.added.contains_key(map)) {
        Some(map) => Err(format!("packets look at what others have counted in {:?}", name(map))),
        None => Ok(()),
    }
}

/// Accesses of a program to the values of maps.
#[derive(Default)]
struct MapAccesses {
    /// Maps whose values are read.
    read: BTreeSet<Map>,
    /// Maps whose values are added to, with the size of the numbers.
    added: BTreeMap<Map, Size>,
}

impl MapAccesses {
    fn look_at(
        &mut self,
        func: &Function,
        sums: &ReadModifyWrites,
        inst: Inst,
        reads: &dyn Fn(Map) -> bool,
    ) -> Result<(), String> {
        let data = &func.insts[inst];
        let base = data.args.first().map(|&base| func.types[base]);
        let looked_up = |map: Map| match reads(map) {
            true => Ok(()),
            false => Err("looks up where that leaves a trace".to_owned()),
        };
        match (&data.op, base) {
            (
                op,
                Some(Type::Ptr(Prov::Stack | Prov::Packet | Prov::PacketMeta | Prov::PacketEnd | Prov::Ctx)),
            ) if op.is_access() => Ok(()),
            (Op::Load { .. }, Some(Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map)))) => {
                if !sums.loads.contains(&inst) {
                    self.read.insert(map);
                }
                Ok(())
            }
            (
                Op::Store { size, offset, .. },
                Some(Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map))),
            ) if sums.stores.contains(&inst) => self.add(func, data.args[0], (map, *size, *offset)),
            (
                Op::Atomic { op: AtomicOp::Add, size, offset },
                Some(Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map))),
            ) => self.add(func, data.args[0], (map, *size, *offset)),
            (op, _) if op.is_access() => Err(
                "touches what packets share, and not by adding to a number that it looks at for nothing else"
                    .to_owned(),
            ),
            (Op::MapLookup { map, .. }, _) => looked_up(*map),
            (Op::Helper { id: id::MAP_LOOKUP_ELEM }, _) => {
                match data.args.first().and_then(|&map| func.def_op(map)) {
                    Some(Op::MapAddr { map }) => looked_up(*map),
                    _ => Err("looks up in a map that is not known".to_owned()),
                }
            }
            (Op::Helper { id }, _) if OWN.contains(id) => Ok(()),
            (
                Op::Call { .. } | Op::Emit { .. } | Op::SetBounds {} | Op::MayGoto {} | Op::TableMatch { .. },
                _,
            ) => Ok(()),
            (op, _) if op.effects().is_removable() || op.is_terminator() => Ok(()),
            (Op::Helper { id }, _) => Err(format!("calls helper {id}")),
            (op, _) => Err(format!("has {:?}", op.mnemonic())),
        }
    }

    /// Records an addition: all additions to one map have one size, at multiples of it, so that no two
    /// overlap in part.
    fn add(
        &mut self,
        func: &Function,
        base: Value,
        (map, size, offset): (Map, Size, i32),
    ) -> Result<(), String> {
        let bytes = i64::from(size.bytes());
        let whole = place(func, base).is_some_and(|at| (at + i64::from(offset)) % bytes == 0);
        match self.added.insert(map, size) {
            _ if !whole => Err("adds to a number that may lie anywhere in a map's value".to_owned()),
            Some(other) if other != size => Err("adds to one map by numbers of different sizes".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Offset of an address in a map value, if it is a constant.
fn place(func: &Function, mut at: Value) -> Option<i64> {
    let mut sum = 0i64;
    loop {
        let inst = func.def_inst(at)?;
        let data = &func.insts[inst];
        match data.op {
            Op::MapValueAddr { offset, .. } => return Some(sum + i64::from(offset)),
            Op::MapLookup { .. } | Op::Helper { id: id::MAP_LOOKUP_ELEM } => return Some(sum),
            Op::Alu { op: AluOp::Add, width: Width::W64 } => {
                let [a, b] = [data.args[0], data.args[1]];
                let (base, by) = match (func.as_const(a), func.as_const(b)) {
                    (_, Some(by)) => (a, by),
                    (Some(by), _) => (b, by),
                    _ => return None,
                };
                (at, sum) = (base, sum.checked_add(by)?);
            }
            _ => return None,
        }
    }
}

/// Loads and stores that together are one addition to a number in memory.
struct ReadModifyWrites {
    loads: Vec<Inst>,
    stores: Vec<Inst>,
}

impl ReadModifyWrites {
    fn of(func: &Function) -> ReadModifyWrites {
        let mut uses: SecondaryMap<Value, u32> = SecondaryMap::new();
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            let passed = data.targets.iter().flat_map(|target| target.args.iter());
            data.args.iter().chain(passed).for_each(|&value| uses[value] += 1);
        }
        let mut sums = ReadModifyWrites { loads: Vec::new(), stores: Vec::new() };
        for (_, inst) in func.insts_in_order() {
            if let Some(load) = loaded(func, &uses, inst) {
                sums.loads.push(load);
                sums.stores.push(inst);
            }
        }
        sums
    }
}

/// The load of the number that a store writes back after an addition, if neither has another use.
fn loaded(func: &Function, uses: &SecondaryMap<Value, u32>, store: Inst) -> Option<Inst> {
    let data = &func.insts[store];
    let Op::Store { size, offset, flags } = data.op else { return None };
    let (base, sum) = (data.args[0], data.args[1]);
    let add = &func.insts[func.def_inst(sum)?];
    let width = if size == Size::Dw { Width::W64 } else { Width::W32 };
    let adds = matches!(add.op, Op::Alu { op: AluOp::Add, width: w } if w == Width::W64 || w == width);
    if !adds || uses[sum] != 1 || flags.volatile {
        return None;
    }
    add.args.iter().find_map(|&before| {
        let load = func.def_inst(before)?;
        let same =
            matches!(func.insts[load].op, Op::Load { size: s, offset: o, .. } if s == size && o == offset);
        (same && func.insts[load].args[0] == base && uses[before] == 1).then_some(load)
    })
}
