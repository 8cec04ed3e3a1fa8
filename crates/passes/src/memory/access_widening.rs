//! Facts needed for the merging of accesses: memory that allows wider accesses, and effects between two
//! places.

use millstream_ir::{Function, Inst, Linkage, MapDecl, Op, Prov, Type, Value};

use super::address::AddressRoot;
use super::alias::{AliasClasses, MemoryAccess};
use crate::manager::PassContext;

/// Map types whose values are plain memory. Socket maps and the like hand out kernel objects.
const PLAIN_VALUES: [u32; 13] = [1, 2, 5, 6, 9, 10, 11, 19, 21, 24, 28, 29, 32];

/// Returns true if memory at this address may be accessed at any size; the context and kernel objects may
/// not.
pub(crate) fn is_plain_memory(
    func: &Function,
    classes: &AliasClasses,
    base: Value,
    cx: &PassContext<'_>,
) -> bool {
    let plain = |decl: Option<&MapDecl>| decl.is_some_and(|m| PLAIN_VALUES.contains(&m.kind));
    match (classes.addresses.of(base).root, func.types[base]) {
        (AddressRoot::Slot(_) | AddressRoot::Global(_), _) => true,
        (_, Type::Ptr(Prov::Packet | Prov::PacketMeta | Prov::Mem)) => true,
        (_, Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map))) => plain(cx.info.maps.get(map)),
        _ => false,
    }
}

/// Returns true if an access lies in `cb`, the scratch words of `struct __sk_buff`, which may be accessed at
/// any aligned size (`bpf_skb_is_valid_access` of `net/core/filter.c`, since Linux 4.11).
pub(crate) fn is_scratch(func: &Function, access: &MemoryAccess) -> bool {
    const SOCKET_FILTER: u32 = 1;
    const SCHED_CLS: u32 = 3;
    const SCHED_ACT: u32 = 4;
    const CB: std::ops::RangeInclusive<i64> = 48..=68;
    let skb = matches!(func.linkage, Linkage::Program { prog_type: SOCKET_FILTER | SCHED_CLS | SCHED_ACT });
    let (lo, bytes) = (access.addr.offset, i64::from(access.size.bytes()));
    let ctx = matches!(access.addr.root, AddressRoot::Value(v) if func.types[v] == Type::Ptr(Prov::Ctx));
    skb && ctx && CB.contains(&lo) && CB.contains(&(lo + bytes)) && lo % bytes == 0
}

/// Returns true if an access of `bytes` at this place may be made: the stack demands alignment.
pub(crate) fn is_aligned(func: &Function, access: &MemoryAccess, bytes: u32, cx: &PassContext<'_>) -> bool {
    match access.addr.root {
        AddressRoot::Slot(slot) => {
            let data = &func.slots[slot];
            let fixed = data.fixed.is_none_or(|f| i64::from(f).rem_euclid(i64::from(bytes)) == 0);
            data.align >= bytes && fixed && access.addr.offset.rem_euclid(i64::from(bytes)) == 0
        }
        _ => !cx.target().strict_alignment,
    }
}

/// Returns true if an instruction may write a byte of the access.
pub(crate) fn may_write(func: &Function, classes: &AliasClasses, inst: Inst, access: &MemoryAccess) -> bool {
    let op = &func.insts[inst].op;
    match op {
        Op::Load { .. } => false,
        _ if op.effects().is_removable() => false,
        Op::Store { .. } => classes.access(func, inst).is_none_or(|a| classes.may_alias(&a, access)),
        _ => true,
    }
}

/// Returns true if an instruction may read or write a byte of the access.
pub(crate) fn may_touch(func: &Function, classes: &AliasClasses, inst: Inst, access: &MemoryAccess) -> bool {
    let op = &func.insts[inst].op;
    match op {
        _ if op.effects().is_pure() => false,
        Op::Load { .. } | Op::Store { .. } => {
            classes.access(func, inst).is_none_or(|a| classes.may_alias(&a, access))
        }
        _ => true,
    }
}
