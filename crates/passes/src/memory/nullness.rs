//! `array-lookups`: the code that a program runs when a lookup finds nothing never runs where the lookup is
//! in an array and the index is below its size.
//!
//! An array has at least one entry, so that index 0 is always found; other indices count only where maps have
//! the sizes that the object says ([`crate::TargetInfo::map_sizes_hold`]). The verifier wants the
//! result tested all the same. So the test stays, and its null side becomes the shortest way that the
//! verifier knows to be good: one that the function took from there anyway, to a place that both sides reach.
//! If the verifier finds out for itself that a constant index is in bounds
//! ([`crate::TargetInfo::elides_null_checks`]), the test goes as well.
//!
//! Invariant: an edge is only ever moved to a block whose dominators also dominate the test, and constants
//! that it passes are ones that the function passed to that place before. Nor is it moved past writes to the
//! stack where a verifier wants to see these before a read, nor past what takes or gives back a lock, a reference
//! or an iterator, also on a way that is never taken.

use cranelift_entity::SecondaryMap;
use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, DomTree, Function, Inst, Op, Prov, Size, Slot, Type, Value, ValueDef,
    Width,
};
use millstream_isa::MapType;
use millstream_isa::generation::VerifierGeneration;
use millstream_isa::helpers::{Helper, HelperEffects, id};
use rustc_hash::{FxHashMap, FxHashSet};

use super::alias::{AliasClasses, MemoryAccess};
use super::memory_ssa::MemorySsa;
use crate::manager::{FuncPass, PassContext};
use crate::rewrite::make_jump;
use crate::scalar::{propagated_facts, remove_unreachable};

const NAME: &str = "array-lookups";

/// Number of parameters through which a value is followed to its constants.
const DEPTH: u32 = 4;

/// The pass.
pub(crate) struct ArrayLookups;

impl FuncPass for ArrayLookups {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "drop what is done where an array has no entry but always has one"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let found = find(func, &cfg, &dom, cx);
        if found.is_empty() {
            return false;
        }
        let target = cx.target();
        let unwritten =
            !target.keep_verifier_facts || target.kernels.all(VerifierGeneration::reads_unwritten_stack);
        let mut changed = false;
        for &block in &cfg.rpo {
            let Some(test) = NullCheck::of(func, block) else { continue };
            let Some(&evident) = found.get(&test.value) else { continue };
            if evident {
                if cx.fuel(NAME) {
                    let target = func.insts[test.term].targets[1 - test.null].clone();
                    make_jump(func, test.term, target);
                    changed = true;
                }
            } else if let Some(landing) = NullTarget::find(func, &cfg, &dom, block, &test, unwritten)
                && cx.fuel(NAME)
            {
                landing.apply(func, block, &test);
                changed = true;
            }
        }
        if changed {
            remove_unreachable(func);
        }
        changed
    }
}

/// Results of lookups that always find something, and whether the verifier knows.
fn find(func: &Function, cfg: &Cfg, dom: &DomTree, cx: &PassContext<'_>) -> FxHashMap<Value, bool> {
    let mut found = FxHashMap::default();
    if !func.insts_in_order().any(|(_, i)| entries(func, i, cx).is_some()) {
        return found;
    }
    let facts = propagated_facts(cx.target().domain(), func);
    let classes = AliasClasses::new(func, &cx.info);
    let mut versions = MemorySsa::new(func, cfg, dom, &classes, &cx.info);
    let mut stores: SecondaryMap<Inst, Option<MemoryAccess>> = SecondaryMap::with_capacity(func.insts.len());
    for &block in &cfg.rpo {
        let mut now = versions.enter(block, dom, &classes);
        for &inst in &func.blocks[block].insts {
            if let Some((result, entries)) = entries(func, inst, cx) {
                let key = func.insts[inst].args[1];
                let access = MemoryAccess {
                    addr: classes.addresses.of(key),
                    size: Size::W,
                    class: classes.of_pointer(func, key),
                };
                let store = versions.find(&access, now[access.class as usize], &stores).store;
                let whole = store.filter(|&s| stores[s] == Some(access));
                let index = whole.map(|s| func.insts[s].args[1]);
                if let Some(index) = index.filter(|&i| facts[i].is_some_and(|f| f.unsigned().1 < entries)) {
                    let whole = is_aligned(func, &access);
                    let seen = |c: i64| whole || c == 0;
                    let evident =
                        cx.target().elides_null_checks && is_constant(func, cfg, index, DEPTH, &seen);
                    found.insert(result, evident);
                }
            }
            let plain = matches!(func.insts[inst].op, Op::Store { .. });
            if plain {
                stores[inst] = classes.plain_access(func, inst);
            }
            versions.step(&mut now, classes.changed(func, inst, &cx.info), inst, plain);
        }
        versions.leave(block, now);
    }
    found
}

/// The result of a lookup in an array, and how many entries that is known to have.
fn entries(func: &Function, inst: Inst, cx: &PassContext<'_>) -> Option<(Value, u64)> {
    let data = &func.insts[inst];
    let Op::Helper { id: id::MAP_LOOKUP_ELEM } = data.op else { return None };
    let Some(Op::MapAddr { map }) = func.def_op(*data.args.first()?) else { return None };
    let decl = cx.info.maps.get(*map)?;
    let array = MapType(decl.kind).is_array() && decl.key_size == 4;
    let entries = if cx.target().map_sizes_hold { u64::from(decl.max_entries.max(1)) } else { 1 };
    array.then_some((data.result.expand()?, entries))
}

/// Returns true if an access is to the start of eight bytes of the stack, so that the verifier keeps a number
/// that is stored there.
fn is_aligned(func: &Function, access: &MemoryAccess) -> bool {
    access.addr.slot().is_some_and(|slot| {
        // Objects without a fixed place are aligned to eight bytes.
        let base = func.slots[slot].fixed.unwrap_or(0);
        (i64::from(base) + access.addr.offset) % 8 == 0
    })
}

/// Returns true if a value is, on every path, a constant that the verifier sees if it follows that path.
fn is_constant(func: &Function, cfg: &Cfg, value: Value, depth: u32, seen: &dyn Fn(i64) -> bool) -> bool {
    match func.defs[value] {
        ValueDef::Inst(inst) => matches!(func.insts[inst].op, Op::Const { value } if seen(value)),
        ValueDef::Param(block, n) if depth > 0 && block != func.entry() => {
            let edges = cfg.preds[block].iter().flat_map(|&p| func.targets(p));
            let mut args = edges.filter(|t| t.block == block).filter_map(|t| t.args.get(usize::from(n)));
            args.all(|&a| is_constant(func, cfg, a, depth - 1, seen))
        }
        ValueDef::Param(..) => false,
    }
}

/// A branch on whether a value is null.
struct NullCheck {
    term: Inst,
    value: Value,
    /// Which side is taken if it is.
    null: usize,
}

impl NullCheck {
    fn of(func: &Function, block: Block) -> Option<NullCheck> {
        let term = func.terminator(block)?;
        let data = &func.insts[term];
        let null = match data.op {
            Op::Branch { cond: Cond::Eq, width: Width::W64 } => 0,
            Op::Branch { cond: Cond::Ne, width: Width::W64 } => 1,
            _ => return None,
        };
        let zero = func.as_const(data.args[1]) == Some(0);
        (zero && data.targets[0] != data.targets[1]).then_some(NullCheck { term, value: data.args[0], null })
    }
}

/// New destination of the null side of a test.
enum NullTarget {
    /// To a block that both sides reach, with these arguments.
    Join(Block, Vec<BlockArg>),
    /// Out, with this constant.
    Return(i64),
}

/// An argument for a block.
#[derive(Clone, Copy)]
enum BlockArg {
    Value(Value),
    Constant(i64),
}

impl NullTarget {
    /// Finds a landing for a test. `unwritten` says whether the verifier lets the stack be read on a way on
    /// which nobody wrote it. If not, a null side that writes to the stack goes to no place where that may be
    /// read.
    fn find(
        func: &Function,
        cfg: &Cfg,
        dom: &DomTree,
        block: Block,
        test: &NullCheck,
        unwritten: bool,
    ) -> Option<NullTarget> {
        let [null, there] = [test.null, 1 - test.null].map(|side| func.insts[test.term].targets[side].block);
        let (behind_null, behind) = (reachable(func, null), reachable(func, there));
        let joins = cfg.rpo.iter().copied().filter(|&j| {
            let after = cfg.rpo_index[j] > cfg.rpo_index[block];
            let both = behind_null[j] && behind[j];
            let reached = after && both && dom.idom(j).is_some_and(|up| dom.dominates(up, block));
            reached && (unwritten || !loses_stack(func, null, j)) && !may_balance(func, null, Some(j))
        });
        for join in joins {
            let view = NullBranch { func, cfg, dom, block, null, join };
            let args: Option<Vec<BlockArg>> =
                (0..func.blocks[join].params.len()).map(|n| view.argument(n)).collect();
            if let Some(args) = args {
                return (!is_there(func, test, join, &args)).then_some(NullTarget::Join(join, args));
            }
        }
        let ends = |within: &SecondaryMap<Block, bool>| -> Vec<Option<i64>> {
            let blocks = cfg.rpo.iter().filter(|&&b| within[b]);
            blocks.filter_map(|&b| func.terminator(b)).filter_map(|t| returned(func, t)).collect()
        };
        let (without, with) = (ends(&behind_null), ends(&behind));
        let constant = with.iter().chain(&without).copied().flatten().next()?;
        let insts = &func.blocks[null].insts;
        let short = insts.len() <= 2 && insts.last().and_then(|&t| returned(func, t)) == Some(Some(constant));
        let leaves = !short && without.iter().all(Option::is_some) && !may_balance(func, null, None);
        leaves.then_some(NullTarget::Return(constant))
    }

    fn apply(self, func: &mut Function, block: Block, test: &NullCheck) {
        let loc = func.insts[test.term].loc;
        let target = match self {
            NullTarget::Join(join, args) => {
                let before = func.blocks[block].insts.len() - 1;
                let mut cursor = func.at(block, before);
                cursor.loc = loc;
                let args = args.into_iter().map(|arg| match arg {
                    BlockArg::Value(value) => value,
                    BlockArg::Constant(c) => cursor.iconst(c),
                });
                BlockCall::with(join, args.collect::<Vec<_>>())
            }
            NullTarget::Return(constant) => {
                let end = func.add_block();
                let mut cursor = func.at_end(end);
                cursor.loc = loc;
                let value = cursor.iconst(constant);
                cursor.effect(Op::Return {}, [value], []);
                BlockCall::new(end)
            }
        };
        func.insts[test.term].targets[test.null] = target;
    }
}

/// Objects of the stack that instructions access.
#[derive(Default)]
struct AccessedSlots {
    slots: FxHashSet<Slot>,
    /// Any object may be among them.
    any: bool,
}

impl AccessedSlots {
    fn add(&mut self, func: &Function, address: Value) {
        let mut address = address;
        while let Some(inst) = func.def_inst(address) {
            let data = &func.insts[inst];
            match data.op {
                Op::StackAddr { slot, .. } => {
                    self.slots.insert(slot);
                    return;
                }
                Op::Alu { op: AluOp::Add | AluOp::Sub, .. } => address = data.args[0],
                _ => break,
            }
        }
        self.any |= matches!(func.types[address], Type::Ptr(Prov::Stack) | Type::Any);
    }

    fn meets(&self, other: &AccessedSlots) -> bool {
        let (some, others) = (self.any || !self.slots.is_empty(), other.any || !other.slots.is_empty());
        (self.any && others) || (other.any && some) || !self.slots.is_disjoint(&other.slots)
    }
}

/// Returns true if bytes of the stack that may be written on the way from one block to another may be read
/// behind that.
fn loses_stack(func: &Function, from: Block, to: Block) -> bool {
    let (mut written, mut read) = (AccessedSlots::default(), AccessedSlots::default());
    for block in behind(func, from, Some(to)) {
        for &inst in &func.blocks[block].insts {
            let data = &func.insts[inst];
            match data.op {
                Op::Store { .. } | Op::StoreRelease { .. } => written.add(func, data.args[0]),
                Op::Helper { id } if Helper::get(id).is_some_and(|h| !h.writes_memory()) => {}
                Op::Helper { .. } | Op::Kfunc { .. } | Op::Call { .. } | Op::CallIndirect {} => {
                    data.args.iter().for_each(|&arg| written.add(func, arg));
                }
                _ => {}
            }
        }
    }
    for block in behind(func, to, None) {
        for &inst in &func.blocks[block].insts {
            let data = &func.insts[inst];
            match data.op {
                Op::Store { .. } | Op::StoreRelease { .. } => {}
                _ if data.op.is_terminator() => {}
                _ if data.op.effects().is_pure() => {}
                _ => data.args.iter().for_each(|&arg| read.add(func, arg)),
            }
        }
    }
    written.meets(&read)
}

/// Returns true if the way from one block to another, or to the end, may take or give back something that the
/// verifier wants to be balanced.
fn may_balance(func: &Function, from: Block, to: Option<Block>) -> bool {
    let balanced = HelperEffects::ACQUIRES
        .or(HelperEffects::RELEASES)
        .or(HelperEffects::LOCK)
        .or(HelperEffects::CALLBACK);
    let balances = |op: &Op| match op {
        Op::Kfunc { .. } => true,
        Op::Helper { id } => Helper::get(*id).is_none_or(|h| h.effects.intersects(balanced)),
        _ => false,
    };
    let calls = |op: &Op| matches!(op, Op::Call { .. } | Op::CallIndirect {});
    // A function that is called may give back what this one has taken.
    let takes = func.insts_in_order().any(|(_, inst)| balances(&func.insts[inst].op));
    let way = behind(func, from, to);
    let mut ops = way.iter().flat_map(|&b| &func.blocks[b].insts).map(|&inst| &func.insts[inst].op);
    takes && ops.any(|op| balances(op) || calls(op))
}

/// The blocks that control may reach from one, itself among them, without another.
fn behind(func: &Function, from: Block, but: Option<Block>) -> Vec<Block> {
    let mut seen: SecondaryMap<Block, bool> = SecondaryMap::new();
    let (mut work, mut found) = (vec![from], Vec::new());
    while let Some(block) = work.pop() {
        if Some(block) != but && !std::mem::replace(&mut seen[block], true) {
            found.push(block);
            work.extend(func.targets(block).iter().map(|t| t.block));
        }
    }
    found
}

/// Returns true if the null side goes there already.
fn is_there(func: &Function, test: &NullCheck, join: Block, args: &[BlockArg]) -> bool {
    let now = &func.insts[test.term].targets[test.null];
    let same = |(arg, &value): (&BlockArg, &Value)| match *arg {
        BlockArg::Value(v) => v == value,
        BlockArg::Constant(c) => func.as_const(value) == Some(c),
    };
    now.block == join && args.iter().zip(&now.args).all(same)
}

/// Result of a return, if the terminator is one: a constant or something else.
fn returned(func: &Function, term: Inst) -> Option<Option<i64>> {
    match func.insts[term].op {
        Op::Return {} => Some(func.insts[term].args.first().and_then(|&v| func.as_const(v))),
        _ => None,
    }
}

/// A test at the end of a block, its null side, and a join of both sides.
struct NullBranch<'a> {
    func: &'a Function,
    cfg: &'a Cfg,
    dom: &'a DomTree,
    block: Block,
    null: Block,
    join: Block,
}

impl NullBranch<'_> {
    /// The value that the null side may pass for a parameter of the join: for a number, a constant that the
    /// other side passes; else the value that the null side has passed, if that is known at the test.
    fn argument(&self, n: usize) -> Option<BlockArg> {
        let (mut own, mut other) = (None, None);
        let mut number = true;
        for &pred in &self.cfg.preds[self.join] {
            for target in self.func.targets(pred).iter().filter(|t| t.block == self.join) {
                let arg = target.args[n];
                number &= self.func.types[arg].is_int();
                let constant = self.func.as_const(arg).map(BlockArg::Constant);
                let mine =
                    pred == self.block && self.null == self.join || self.dom.dominates(self.null, pred);
                if mine {
                    let known = self.is_known(arg).then_some(BlockArg::Value(arg));
                    own = own.or(constant).or(known);
                } else {
                    other = other.or(constant);
                }
            }
        }
        other.filter(|_| number).or(own)
    }

    /// Returns true if a value is defined wherever the test is made.
    fn is_known(&self, value: Value) -> bool {
        let home = match self.func.defs[value] {
            ValueDef::Param(home, _) => Some(home),
            ValueDef::Inst(inst) => {
                self.cfg.rpo.iter().copied().find(|&b| self.func.blocks[b].insts.contains(&inst))
            }
        };
        home.is_some_and(|home| self.dom.dominates(home, self.block))
    }
}

/// The blocks that control may reach from one, itself among them.
fn reachable(func: &Function, from: Block) -> SecondaryMap<Block, bool> {
    let mut seen: SecondaryMap<Block, bool> = SecondaryMap::new();
    let mut work = vec![from];
    while let Some(block) = work.pop() {
        if !std::mem::replace(&mut seen[block], true) {
            work.extend(func.targets(block).iter().map(|t| t.block));
        }
    }
    seen
}
