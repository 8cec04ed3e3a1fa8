//! `forward`: a load of bytes that were just stored or loaded becomes that value; a store of the value that
//! is there already goes.
//!
//! A value is reused only where no call lies between: across one, keeping it alive costs a saved register or
//! a spill, no less than the load. Constants are reused everywhere.
//!
//! Nothing is forwarded from a store to a field of the context, which may keep only a part of the value, or to
//! the memory of an arena: a page that is not mapped takes no store and is read as zero (`kernel/bpf/arena.c`).

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Block, Cfg, DomTree, Function, Inst, Op, Size, Type, Value, Width};
use millstream_isa::MapType;
use rustc_hash::FxHashMap;

use super::address::AddressRoot;
use super::alias::{AliasClasses, MemoryAccess};
use super::memory_ssa::{AvailableValue, MemorySsa, MemoryVersion};
use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{ValueSubst, fits};

const NAME: &str = "forward";

/// The pass.
pub(crate) struct StoreForwarding;

impl FuncPass for StoreForwarding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "replace loads by values that were stored or loaded before, and drop stores of what is there"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let classes = AliasClasses::new(func, &cx.info);
        let versions = MemorySsa::new(func, &cfg, &dom, &classes, &cx.info);
        let is_arena = |kind| MapType(kind) == MapType::ARENA;
        let casts = |func: &Function| {
            func.insts_in_order().any(|(_, inst)| matches!(func.insts[inst].op, Op::AddrSpaceCast { .. }))
        };
        let mut state = ForwardingState {
            classes,
            versions,
            dom,
            has_arena: cx.info.maps.values().any(|m| is_arena(m.kind)) || casts(func),
            stores: SecondaryMap::with_capacity(func.insts.len()),
            calls_at: SecondaryMap::with_capacity(func.insts.len()),
            known: FxHashMap::default(),
            subst: ValueSubst::default(),
            changed: false,
        };
        for &block in &cfg.rpo {
            state.block(func, block, cx);
        }
        state.subst.apply(func);
        state.changed
    }
}

/// Bytes at a version of their class, with the version of calls: the key of a known value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct VersionedLocation {
    root: AddressRoot,
    offset: i64,
    size: Size,
    sext: bool,
    version: MemoryVersion,
    calls: MemoryVersion,
}

struct ForwardingState {
    classes: AliasClasses,
    versions: MemorySsa,
    dom: DomTree,
    /// Unknown memory may be that of an arena.
    has_arena: bool,
    stores: SecondaryMap<Inst, Option<MemoryAccess>>,
    // The version of calls at each store.
    calls_at: SecondaryMap<Inst, MemoryVersion>,
    known: FxHashMap<VersionedLocation, AvailableValue>,
    subst: ValueSubst,
    changed: bool,
}

impl ForwardingState {
    fn block(&mut self, func: &mut Function, block: Block, cx: &mut PassContext<'_>) {
        let mut now = self.versions.enter(block, &self.dom, &self.classes);
        let insts = std::mem::take(&mut func.blocks[block].insts);
        for inst in insts {
            let access = self.classes.plain_access(func, inst).map(|a| self.current(a));
            let keep = match (&func.insts[inst].op, access) {
                (Op::Load { .. }, Some(access)) => !self.load(func, block, inst, access, &now, cx),
                (Op::Store { .. }, Some(access)) => !self.is_idle_store(func, block, inst, access, &now, cx),
                _ => true,
            };
            if !keep {
                self.changed = true;
                continue;
            }
            func.blocks[block].insts.push(inst);
            let set = self.classes.changed(func, inst, &cx.info);
            let plain_store = matches!(func.insts[inst].op, Op::Store { .. });
            if plain_store {
                // A store that must stay as it is may have another displacement in the end.
                self.stores[inst] = access;
                self.calls_at[inst] = now[AliasClasses::CALLS as usize];
            }
            self.versions.step(&mut now, set, inst, plain_store);
        }
        self.versions.leave(block, now);
    }

    /// The access with its root replaced by the value forwarded for it.
    fn current(&self, access: MemoryAccess) -> MemoryAccess {
        match access.addr.root {
            AddressRoot::Value(root) => {
                let now = self.classes.addresses.of(self.subst.resolve(root));
                MemoryAccess { addr: now.plus(access.addr.offset), ..access }
            }
            _ => access,
        }
    }

    fn key(&self, access: MemoryAccess, sext: bool, now: &[MemoryVersion]) -> VersionedLocation {
        let found = self.versions.find(&access, now[access.class as usize], &self.stores);
        let (root, offset, size) = (access.addr.root, access.addr.offset, access.size);
        let calls = now[AliasClasses::CALLS as usize];
        VersionedLocation { root, offset, size, sext, version: found.version, calls }
    }

    /// Forwards a value to the load; returns true if the load has been replaced.
    fn load(
        &mut self,
        func: &mut Function,
        block: Block,
        inst: Inst,
        access: MemoryAccess,
        now: &[MemoryVersion],
        cx: &mut PassContext<'_>,
    ) -> bool {
        let Op::Load { sext, .. } = func.insts[inst].op else { return false };
        let Some(result) = func.result(inst) else { return false };
        let key = self.key(access, sext, now);
        let old = func.types[result];
        if let Some(known) = self.known.get(&key).copied()
            && self.dom.dominates(known.block, block)
            && fits(func.types[known.value], old)
            && cx.fuel(NAME)
        {
            self.subst.insert(result, known.value);
            return true;
        }
        if let Some(value) = self.stored_value(func, block, inst, access, now, cx) {
            self.subst.insert(result, value);
            self.known.insert(key, AvailableValue { value, block });
            return true;
        }
        self.known.insert(key, AvailableValue { value: result, block });
        false
    }

    /// The value that the store before a load wrote there, cut to the bytes that the load reads.
    fn stored_value(
        &self,
        func: &mut Function,
        block: Block,
        inst: Inst,
        access: MemoryAccess,
        now: &[MemoryVersion],
        cx: &mut PassContext<'_>,
    ) -> Option<Value> {
        match access.class {
            AliasClasses::CTX => return None,
            AliasClasses::OTHER if self.has_arena => return None,
            _ => {}
        }
        let found = self.versions.find(&access, now[access.class as usize], &self.stores);
        let store = found.store?;
        let written = self.stores[store]?;
        let Op::Load { sext, size, .. } = func.insts[inst].op else { return None };
        let value = self.subst.resolve(func.insts[store].args[1]);
        let at = (access.addr.offset - written.addr.offset) as u32;
        let shift = cx.target().byte_order.shift(written.size.bytes(), at, size.bytes());
        let old = func.types[func.result(inst)?];
        if let Some(c) = func.as_const(value) {
            let part = load_of(c as u64 >> shift, size, sext);
            return cx
                .fuel(NAME)
                .then(|| insert(func, block, inst, Op::Const { value: part }, &[], Type::I64));
        }
        if shift != 0 || self.calls_at[store] != now[AliasClasses::CALLS as usize] {
            return None;
        }
        let (op, ty) = match (size, sext) {
            (Size::Dw, _) => return (fits(func.types[value], old) && cx.fuel(NAME)).then_some(value),
            (_, true) => (Op::Sext { bits: size.bits() as u8, width: Width::W64 }, Type::I64),
            _ if func.types[value].int_bits().is_some_and(|b| b <= size.bits()) => {
                return cx.fuel(NAME).then_some(value);
            }
            (Size::W, _) => (Op::Zext {}, Type::I32),
            _ => (Op::Alu { op: AluOp::And, width: Width::W32 }, Type::int(size.bits())),
        };
        if !fits(ty, old) || !cx.fuel(NAME) {
            return None;
        }
        let mut args = vec![value];
        if let Op::Alu { .. } = op {
            let mask = (1i64 << size.bits()) - 1;
            args.push(insert(func, block, inst, Op::Const { value: mask }, &[], Type::I64));
        }
        Some(insert(func, block, inst, op, &args, ty))
    }

    /// Returns true if a store writes the value that is there already.
    fn is_idle_store(
        &mut self,
        func: &Function,
        block: Block,
        inst: Inst,
        access: MemoryAccess,
        now: &[MemoryVersion],
        cx: &mut PassContext<'_>,
    ) -> bool {
        // Values of maps are left alone: another CPU may have written in between.
        if access.class != AliasClasses::PACKET && !matches!(access.addr.root, AddressRoot::Slot(_)) {
            return false;
        }
        let value = self.subst.resolve(func.insts[inst].args[1]);
        let found = self.versions.find(&access, now[access.class as usize], &self.stores);
        let same_store = found.store.is_some_and(|s| {
            self.stores[s].is_some_and(|w| w.addr == access.addr && w.size == access.size)
                && same(func, self.subst.resolve(func.insts[s].args[1]), value)
        });
        let same_load = || {
            let key = self.key(access, false, now);
            self.known.get(&key).is_some_and(|k| k.value == value && self.dom.dominates(k.block, block))
        };
        (same_store || same_load()) && cx.fuel(NAME)
    }
}

fn same(func: &Function, a: Value, b: Value) -> bool {
    a == b || (func.as_const(a).is_some() && func.as_const(a) == func.as_const(b))
}

/// Result of a load of the low bytes of `bits`.
fn load_of(bits: u64, size: Size, sext: bool) -> i64 {
    let unused = 64 - size.bits();
    let top = bits << unused;
    if sext { (top as i64) >> unused } else { (top >> unused) as i64 }
}

/// Appends an instruction to the block under reconstruction, with the source line of `near`.
fn insert(func: &mut Function, block: Block, near: Inst, op: Op, args: &[Value], ty: Type) -> Value {
    let inst = func.make_inst(op, args.iter().copied(), [], ty);
    func.insts[inst].loc = func.insts[near].loc;
    func.blocks[block].insts.push(inst);
    func.insts[inst].result.expand().expect("the operation has a result")
}
