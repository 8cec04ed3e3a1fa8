//! Which memory an access may touch: alias classes.
//!
//! Each stack object, the packet, the values of each map and the context are classes of their own; everything
//! else is one more. A stack object whose address is only ever the base of accesses or the argument of a
//! helper that does not keep it is *private*: nothing touches it through an unknown address.
//!
//! Values of a map that is the template of inner maps count as unknown memory, since the inner map may be any
//! map. Map values, global data and unknown memory are taken to change at every call, atomic and lock, as C
//! compilers take them; read-only global data never changes.

use cranelift_entity::SecondaryMap;
use millstream_ir::{
    AluOp, Function, GlobalData, Inst, Map, Op, Prov, Size, Slot, Type, Value, Width, op_group,
};
use millstream_isa::helpers::{ArgKind, Helper, HelperEffects};
use rustc_hash::FxHashMap;

use super::address::{AddressRoot, ResolvedAddresses, RootedAddress};
use crate::effects::ModuleInfo;

/// A number below [`AliasClasses::LIMIT`].
pub(crate) type AliasClass = u32;

/// A set of classes, one bit each.
pub(crate) type ClassSet = u64;

/// Stack objects that an address may point into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum StackPointee {
    /// None that this function owns, or only through memory that escaped.
    #[default]
    Elsewhere,
    /// This one.
    One(Slot),
    /// Any of them.
    Any,
}

const ROUNDS: u32 = 64;

/// Alias classes of a function.
pub(crate) struct AliasClasses {
    /// Resolved addresses.
    pub(crate) addresses: ResolvedAddresses,
    pointee: SecondaryMap<Value, StackPointee>,
    escaped: SecondaryMap<Slot, bool>,
    slot_class: SecondaryMap<Slot, AliasClass>,
    map_class: FxHashMap<Map, AliasClass>,
    all_slots: ClassSet,
    private: ClassSet,
    constant: ClassSet,
    maps: ClassSet,
    count: u32,
}

/// A memory access through an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoryAccess {
    /// Address; the displacement included.
    pub(crate) addr: RootedAddress,
    /// Bytes.
    pub(crate) size: Size,
    /// The class that the bytes belong to.
    pub(crate) class: AliasClass,
}

impl MemoryAccess {
    /// Reports whether this and another access of the same root share a byte; `None` if the roots differ.
    pub(crate) fn overlaps(&self, other: &MemoryAccess) -> Option<bool> {
        (self.addr.root == other.addr.root).then(|| {
            let (a, b) = (self.addr.offset, other.addr.offset);
            a < b + i64::from(other.size.bytes()) && b < a + i64::from(self.size.bytes())
        })
    }

    /// Returns true if all bytes of `other`, which has the same root, are among those of this one.
    pub(crate) fn covers(&self, other: &MemoryAccess) -> bool {
        self.addr.root == other.addr.root
            && self.addr.offset <= other.addr.offset
            && other.addr.offset + i64::from(other.size.bytes())
                <= self.addr.offset + i64::from(self.size.bytes())
    }
}

impl AliasClasses {
    /// The most classes; what comes later shares [`AliasClasses::OTHER`].
    pub(crate) const LIMIT: u32 = 64;
    /// Changes at every call: no memory, but the moment after which values live in scarcer registers.
    pub(crate) const CALLS: AliasClass = 0;
    /// Unknown memory.
    pub(crate) const OTHER: AliasClass = 1;
    /// The packet and its metadata.
    pub(crate) const PACKET: AliasClass = 2;
    /// The context.
    pub(crate) const CTX: AliasClass = 3;

    /// Classifies the memory of a function.
    pub(crate) fn new(func: &Function, info: &ModuleInfo<'_>) -> AliasClasses {
        let mut this = AliasClasses {
            addresses: ResolvedAddresses::new(func),
            pointee: SecondaryMap::with_capacity(func.defs.len()),
            escaped: SecondaryMap::new(),
            slot_class: SecondaryMap::with_default(Self::OTHER),
            map_class: FxHashMap::default(),
            all_slots: 0,
            private: 0,
            constant: 0,
            maps: 0,
            count: 4,
        };
        this.follow(func);
        this.find_escapes(func);
        this.number(func, info);
        this
    }

    /// Number of classes.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Stack objects that a value may point into.
    pub(crate) fn pointee(&self, value: Value) -> StackPointee {
        self.pointee[value]
    }

    /// Returns true if unknown code may access the object.
    pub(crate) fn is_escaped(&self, slot: Slot) -> bool {
        self.escaped[slot]
    }

    fn follow(&mut self, func: &Function) {
        for _ in 0..ROUNDS {
            let mut changed = false;
            for (_, inst) in func.insts_in_order() {
                changed |= self.follow_inst(func, inst);
            }
            if !changed {
                return;
            }
        }
        // Differences of addresses that feed each other may never settle.
        func.defs.keys().for_each(|v| self.pointee[v] = StackPointee::Any);
    }

    fn follow_inst(&mut self, func: &Function, inst: Inst) -> bool {
        let data = &func.insts[inst];
        let mut changed = false;
        if let Some(result) = data.result.expand() {
            let new = match data.op {
                Op::StackAddr { slot, .. } => StackPointee::One(slot),
                Op::Alu { op: AluOp::Add, width: Width::W64 } => {
                    join(self.pointee[data.args[0]], self.pointee[data.args[1]])
                }
                // The difference of two addresses is a number.
                Op::Alu { op: AluOp::Sub, width: Width::W64 } => match self.pointee[data.args[1]] {
                    StackPointee::Elsewhere => self.pointee[data.args[0]],
                    _ => StackPointee::Elsewhere,
                },
                Op::Select {} => join(self.pointee[data.args[1]], self.pointee[data.args[2]]),
                // Other arithmetic, and all memory, lets an address escape: `keeps_private`.
                op_group!(constant) | op_group!(arithmetic) | op_group!(access) => StackPointee::Elsewhere,
                op_group!(table) | op_group!(call) | op_group!(packet) => StackPointee::Elsewhere,
                op_group!(terminator) => StackPointee::Elsewhere,
            };
            changed |= new != self.pointee[result];
            self.pointee[result] = new;
        }
        for target in &data.targets {
            for (&arg, &param) in target.args.iter().zip(&func.blocks[target.block].params) {
                let new = join(self.pointee[param], self.pointee[arg]);
                changed |= new != self.pointee[param];
                self.pointee[param] = new;
            }
        }
        changed
    }

    fn find_escapes(&mut self, func: &Function) {
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            for (index, &arg) in data.args.iter().enumerate() {
                if self.pointee[arg] != StackPointee::Elsewhere && !keeps_private(&data.op, index) {
                    match self.pointee[arg] {
                        StackPointee::One(slot) => self.escaped[slot] = true,
                        _ => func.slots.keys().for_each(|s| self.escaped[s] = true),
                    }
                }
            }
        }
    }

    fn number(&mut self, func: &Function, info: &ModuleInfo<'_>) {
        let templates: Vec<Map> = info.maps.values().filter_map(|m| m.inner).collect();
        let mut maps: Vec<Map> = Vec::new();
        for value in func.defs.keys() {
            if let Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map)) = func.types[value] {
                maps.push(map);
            }
        }
        maps.sort_unstable();
        maps.dedup();
        for map in maps {
            if templates.contains(&map) || self.count == Self::LIMIT / 2 {
                continue;
            }
            let bit = 1 << self.count;
            self.maps |= bit;
            let global = info.maps.get(map).and_then(|m| m.global);
            if matches!(global, Some(GlobalData::Rodata | GlobalData::Kconfig)) {
                self.constant |= bit;
            }
            self.map_class.insert(map, self.count);
            self.count += 1;
        }
        for slot in func.slots.keys().filter(|&s| func.slots[s].size > 0) {
            if self.count == Self::LIMIT {
                // The rest shares the class of unknown memory, which then changes with the stack as well.
                self.all_slots |= 1 << Self::OTHER;
                break;
            }
            let bit = 1 << self.count;
            self.all_slots |= bit;
            self.private |= if self.escaped[slot] { 0 } else { bit };
            self.slot_class[slot] = self.count;
            self.count += 1;
        }
    }

    /// The class of the memory that an address points to.
    pub(crate) fn of_pointer(&self, func: &Function, value: Value) -> AliasClass {
        match self.pointee[value] {
            StackPointee::One(slot) => return self.slot_class[slot],
            StackPointee::Any => return Self::OTHER,
            StackPointee::Elsewhere => {}
        }
        let by_type = match func.types[value] {
            Type::Ptr(Prov::Packet | Prov::PacketMeta) => return Self::PACKET,
            Type::Ptr(Prov::Ctx) => return Self::CTX,
            Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map)) => Some(map),
            _ => None,
        };
        let map = match (by_type, self.addresses.of(value).root) {
            (_, AddressRoot::Global(map)) | (Some(map), _) => map,
            _ => return Self::OTHER,
        };
        self.map_class.get(&map).copied().unwrap_or(Self::OTHER)
    }

    /// The access of a plain load or store; `None` for other operations and for accesses that must stay as
    /// they are.
    pub(crate) fn plain_access(&self, func: &Function, inst: Inst) -> Option<MemoryAccess> {
        let data = &func.insts[inst];
        let plain = match data.op {
            Op::Load { flags, .. } | Op::Store { flags, .. } => !flags.volatile && flags.core.is_none(),
            _ => false,
        };
        if plain { self.access(func, inst) } else { None }
    }

    /// The access of any memory operation.
    pub(crate) fn access(&self, func: &Function, inst: Inst) -> Option<MemoryAccess> {
        let (addr, size) = self.addresses.accessed(func, inst)?;
        Some(MemoryAccess { addr, size, class: self.of_pointer(func, func.insts[inst].args[0]) })
    }

    /// Returns true if two accesses may share a byte.
    pub(crate) fn may_alias(&self, a: &MemoryAccess, b: &MemoryAccess) -> bool {
        if let Some(overlap) = a.overlaps(b) {
            return overlap;
        }
        let reach = |x: &MemoryAccess| match x.addr.root {
            AddressRoot::Value(root) if x.class == Self::OTHER => self.written_with(x.class, root),
            _ if x.class == Self::OTHER => self.shared(),
            _ => 1 << x.class,
        };
        reach(a) & reach(b) != 0
    }

    /// Classes that a write of this one may change; `value` is the address.
    fn written_with(&self, class: AliasClass, value: Value) -> ClassSet {
        let all = self.everything();
        let set = match class {
            Self::OTHER if self.pointee[value] == StackPointee::Any => all | self.all_slots,
            Self::OTHER => all & !self.private | self.all_slots & (1 << Self::OTHER),
            _ if (1 << class) & self.private != 0 => 1 << class,
            _ => 1 << class | 1 << Self::OTHER,
        };
        set & !(1 << Self::CALLS)
    }

    fn everything(&self) -> ClassSet {
        (u64::MAX >> (64 - self.count)) & !self.constant
    }

    /// Classes that called code may change without being given an address of them.
    fn shared(&self) -> ClassSet {
        self.everything() & !self.private
    }

    /// Classes that an instruction may change; [`AliasClasses::CALLS`] is among them for calls.
    pub(crate) fn changed(&self, func: &Function, inst: Inst, info: &ModuleInfo<'_>) -> ClassSet {
        let data = &func.insts[inst];
        let calls = 1 << Self::CALLS;
        match &data.op {
            Op::Store { .. } => self.written_with(self.of_pointer(func, data.args[0]), data.args[0]),
            Op::Atomic { .. }
            | Op::AtomicFetch { .. }
            | Op::CmpXchg { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. } => {
                let own = self.written_with(self.of_pointer(func, data.args[0]), data.args[0]);
                own | (self.maps | 1 << Self::OTHER) & !self.constant
            }
            Op::Helper { id } => calls | self.helper_changes(func, inst, *id),
            Op::Call { func: callee } => {
                let effects = info.summaries.of(*callee);
                let silent = !effects.writes && !effects.calls && !effects.moves_packet;
                calls | if silent { 0 } else { self.shared() }
            }
            Op::LegacyLoad { .. } => calls,
            Op::MapLookup { .. } | Op::MapUpdate { .. } | Op::MapDelete { .. } => {
                calls | (self.maps | 1 << Self::OTHER) & !self.constant
            }
            Op::Kfunc { .. } | Op::CallIndirect {} => calls | self.shared(),
            Op::Emit {} | Op::ClonePacket {} | Op::Hold { .. } | Op::Pull {} | Op::SetBounds {} => {
                calls | self.shared()
            }
            Op::Load { .. } | Op::TableMatch { .. } => 0,
            // Each round of a loop that waits for another processor reads memory again.
            Op::MayGoto {} => (self.maps | 1 << Self::OTHER) & !self.constant,
            op_group!(constant) | op_group!(arithmetic) | op_group!(terminator) => 0,
        }
    }

    fn helper_changes(&self, func: &Function, inst: Inst, id: i32) -> ClassSet {
        let Some(helper) = Helper::get(id) else { return self.shared() };
        let args = &func.insts[inst].args;
        let mut set = self.shared() & (self.maps | self.all_slots | 1 << Self::OTHER);
        if helper.effects.intersects(HelperEffects::WRITES_PACKET.or(HelperEffects::MOVES_PACKET)) {
            set |= 1 << Self::PACKET | 1 << Self::CTX;
        }
        if helper.effects.contains(HelperEffects::CALLBACK) {
            set |= self.shared();
        }
        for (&arg, kind) in args.iter().zip(helper.args) {
            if kind.writes_memory() {
                set |= self.written_with(self.of_pointer(func, arg), arg);
            }
        }
        set
    }
}

fn join(a: StackPointee, b: StackPointee) -> StackPointee {
    match (a, b) {
        (StackPointee::Elsewhere, x) | (x, StackPointee::Elsewhere) => x,
        (StackPointee::One(x), StackPointee::One(y)) if x == y => a,
        _ => StackPointee::Any,
    }
}

/// Returns true if the use of an address as argument `index` leaves nothing behind that could access the
/// object later.
fn keeps_private(op: &Op, index: usize) -> bool {
    match op {
        op if op.is_access() => index == 0,
        // Followed, not lost.
        Op::Alu { op: AluOp::Add | AluOp::Sub, width: Width::W64 } => true,
        Op::Select {} | Op::Cmp { .. } | Op::Branch { .. } => true,
        Op::Helper { id } => Helper::get(*id).is_some_and(|h| {
            let kept = HelperEffects::CALLBACK.or(HelperEffects::ACQUIRES);
            let object = h.args.iter().any(|a| matches!(a, ArgKind::Dynptr | ArgKind::DynptrOut));
            !h.effects.intersects(kept) && !object
        }),
        _ => false,
    }
}
