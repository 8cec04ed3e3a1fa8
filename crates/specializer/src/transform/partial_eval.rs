//! Copies parts of a function while evaluating what is known in them.
//!
//! The copy goes block by block in reverse postorder, so that each block is reached from all its forward
//! edges before it is copied: a block without any is dead in this copy, a parameter that all edges agree on
//! is known. A part that is copied once more (a region) is what one place dominates; its edges to other
//! blocks lead into the copy around it.
//!
//! Invariant: the copy computes what the source would, as long as [`MapContents`] speaks the truth. Source
//! values are never re-computed in an order that the source did not have: what the kernel's verifier learnt
//! stays with the value it was learnt of.

mod chained_calls;
mod indexed;
mod table_loop_decisions;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, DomTree, Function, Inst, KeyPiece, Map, MemFlags, Module, Op, Prov,
    Size, Type, Value, ValueDef, Width,
};
use millstream_isa::MapType;
use millstream_isa::semantics::eval;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::error::TransformError;
use super::eval::{
    AbstractValue, AssumedResults, LookupValue, LookupValueId, MergeId, MergedField, MergedFields,
    ValueAddress, ValueBytes, arithmetic, read,
};
use super::plan::{KeyTest, MapContents, SitePlan, SpecializationPlan, TransformReport};
use super::site::lookup;
use super::{GuardCheck, SiteId};

/// Steps into regions within regions; beyond it lookups stay as they are.
const DEPTH: usize = 8;

/// Knowledge about each value of the source.
pub(crate) type AbstractEnv = Vec<AbstractValue>;

/// Plans by lookup instruction of the source and the map that stands for the inner map.
pub(super) type InnerSitePlans<'a> = FxHashMap<(Inst, Map), &'a SitePlan>;

/// One copy of a part of the source.
pub(super) struct CopiedRegion {
    root: Block,
    /// True if the root itself is copied whole and not only its end.
    whole: bool,
    /// Blocks copied so far or led to, with what their edges bring.
    blocks: FxHashMap<Block, (Block, Vec<Vec<AbstractValue>>)>,
}

/// Several values with one copy.
pub(super) struct MergePoint {
    pub(super) head: Block,
}

/// A test, as seen by the code that it stands before.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolvedKeyTest<'p> {
    pub(super) plan: &'p KeyTest,
    /// The lookup whose key is tested.
    pub(super) lookup: Inst,
    /// The word.
    pub(super) word: Option<Value>,
}

/// The function that is copied, and facts about it.
pub(super) struct OriginalFunction<'a> {
    pub(super) src: &'a Function,
    pub(super) module: &'a Module,
    pub(super) cfg: Cfg,
    pub(super) dom: DomTree,
}

/// Plans for the lookups of the source, and what they were made of.
pub(super) struct EvaluationPlans<'a> {
    pub(super) plan: &'a SpecializationPlan,
    pub(super) contents: &'a dyn MapContents,
    /// Plans by lookup instruction of the source.
    pub(super) sites: FxHashMap<Inst, &'a SitePlan>,
    /// Plans for lookups in inner maps.
    pub(super) within: InnerSitePlans<'a>,
    /// Tests that stand before lookups.
    pub(super) tests: FxHashMap<Inst, Vec<ResolvedKeyTest<'a>>>,
}

/// Results of lookups in the copy.
#[derive(Default)]
pub(super) struct CopiedLookups {
    pub(super) known: PrimaryMap<LookupValueId, LookupValue>,
    pub(super) merges: PrimaryMap<MergeId, MergePoint>,
    pub(super) fields: MergedFields,
}

/// Lookups that must be made, whatever is known of their results.
pub(super) struct AddressNeeds<'a> {
    /// Lookups that must be made, since the address of the entry is needed.
    pub(super) addressed: &'a FxHashSet<Inst>,
    /// Lookups found to be so.
    pub(super) missing: Vec<Inst>,
}

/// Use that the copy makes of tables at present.
pub(super) struct CopyMode {
    /// Off while the original is copied as it is.
    pub(super) active: bool,
    /// True if tables may have changed since the packet read the token: nothing more is taken from them.
    pub(super) late: bool,
    /// True if lookups stay as they are.
    pub(super) plain: bool,
}

/// Entries of caches, and counts of writers, in the copy.
#[derive(Default)]
pub(super) struct CacheState {
    /// Entries whose key is known: their map, and the offset of the bucket in which writers of the key are
    /// counted.
    pub(super) buckets: FxHashMap<Value, (Map, Value)>,
    /// Numbers of the slots that cached entries occupy, among those of the CPU.
    pub(super) slots: FxHashMap<Value, Value>,
    /// Blocks in which a copied value is looked up after all, and the block in which it was a copy.
    pub(super) backs: FxHashMap<Block, Block>,
    /// Counts of writers, by the map that they write.
    pub(super) counted: FxHashMap<Inst, Map>,
    /// Writes of the copy that nobody can see.
    pub(super) traceless: FxHashSet<Inst>,
}

/// The state of copying.
pub(crate) struct PartialEvaluator<'a> {
    pub(super) original: OriginalFunction<'a>,
    pub(super) plans: EvaluationPlans<'a>,
    /// Results of later lookups, as implied by tests that were made.
    pub(super) assumed: AssumedResults,
    pub(super) out: Function,
    /// Predecessors of the blocks of the copy.
    pub(super) preds: SecondaryMap<Block, SmallVec<[Block; 2]>>,
    pub(super) lookups: CopiedLookups,
    pub(super) regions: Vec<CopiedRegion>,
    pub(super) addresses: AddressNeeds<'a>,
    pub(super) mode: CopyMode,
    pub(super) report: TransformReport,
    /// Instructions of the copy up to which lookups are split.
    pub(super) limit: usize,
    /// The token as the packet found it, if anything depends on its lower half.
    pub(super) token: Option<Value>,
    /// Branches that are decided in the turn of a loop that is being copied, and whether they are taken.
    pub(super) forced: FxHashMap<Inst, bool>,
    pub(super) caching: CacheState,
    /// The block of the source whose instructions are being copied.
    pub(super) source: Block,
    pub(super) loc: u32,
}

/// A place in the copy.
#[derive(Clone, Copy)]
pub(crate) struct CopyPosition {
    /// The source block.
    pub(super) block: Block,
    /// Position of the next instruction in it.
    pub(super) next: usize,
    /// The block of the copy.
    pub(super) out: Block,
}

/// Continuation of a block.
pub(crate) enum BlockContinuation {
    /// Goes on in this block of the copy.
    On(Block),
    /// Cannot be reached, or has been copied.
    Done,
}

impl<'a> PartialEvaluator<'a> {
    pub(super) fn check_reducible(cfg: &Cfg, dom: &DomTree) -> Result<(), TransformError> {
        for &block in &cfg.rpo {
            let back = |p: &&Block| cfg.rpo_index[**p] >= cfg.rpo_index[block];
            if cfg.preds[block].iter().filter(back).any(|&p| !dom.dominates(block, p)) {
                return Err(TransformError::Irreducible);
            }
        }
        Ok(())
    }

    /// Copies from `at` on everything that its block dominates.
    pub(super) fn region(&mut self, at: CopyPosition, env: AbstractEnv) {
        self.region_of(at, at.next == 0, env);
    }

    /// Copies one turn of a loop from its header on, and the code that follows. The back edge leads to the
    /// copy of the header around it.
    pub(super) fn turn_of(&mut self, at: CopyPosition, env: AbstractEnv) {
        self.region_of(at, false, env);
    }

    fn region_of(&mut self, at: CopyPosition, whole: bool, mut env: AbstractEnv) {
        self.regions.push(CopiedRegion { root: at.block, whole, blocks: FxHashMap::default() });
        self.block(at, &mut env);
        let first = self.original.cfg.rpo_index[at.block] as usize + 1;
        for i in first..self.original.cfg.rpo.len() {
            let block = self.original.cfg.rpo[i];
            if !self.original.dom.dominates(at.block, block) {
                continue;
            }
            let Some(region) = self.regions.last() else { break };
            let Some((out, incoming)) = region.blocks.get(&block) else { continue };
            let mut out = *out;
            let is_header = self.is_header(block);
            let entered = agreement(incoming);
            let needed = self.addresses_needed(incoming, (!is_header).then_some(&entered));
            self.addresses.missing.extend(needed);
            self.bind(block, out, &entered, &mut env);
            if is_header {
                // What goes round is not known yet.
                out = table_loop_decisions::emit_loop_decisions(self, block, out, &env).unwrap_or(out);
                self.bind(block, out, &[], &mut env);
            }
            self.block(CopyPosition { block, next: 0, out }, &mut env);
        }
        self.regions.pop();
    }

    /// The parameters of a block are the values on which all edges agree, or the parameters of its copy.
    fn bind(&self, block: Block, out: Block, agreed: &[Option<AbstractValue>], env: &mut AbstractEnv) {
        for (n, &param) in self.original.src.blocks[block].params.iter().enumerate() {
            let held = AbstractValue::Val(self.out.blocks[out].params[n]);
            env[param.index()] = agreed.get(n).copied().flatten().unwrap_or(held);
        }
    }

    /// From now on the innermost copy of a block around this place is another one, to which no edge leads
    /// yet.
    pub(super) fn leads_to(&mut self, block: Block, out: Block) {
        if let Some(region) = self.regions.last_mut() {
            region.blocks.insert(block, (out, Vec::new()));
        }
    }

    /// Lookups whose results come by different edges into one parameter, and so must have an address.
    fn addresses_needed(
        &self,
        incoming: &[Vec<AbstractValue>],
        agreed: Option<&Vec<Option<AbstractValue>>>,
    ) -> Vec<Inst> {
        let merged = |n: usize| agreed.is_none_or(|a| a.get(n).copied().flatten().is_none());
        let each = incoming.iter().flat_map(|edge| edge.iter().enumerate());
        each.filter(|(n, _)| merged(*n)).filter_map(|(_, abs)| self.without_address(*abs)).collect()
    }

    /// The lookup, if this is its result and its address is not available.
    fn without_address(&self, abs: AbstractValue) -> Option<Inst> {
        let (AbstractValue::Ptr(id, _) | AbstractValue::In(id, ..)) = abs else { return None };
        let known = &self.lookups.known[id];
        matches!(known.address, ValueAddress::None | ValueAddress::Back { .. }).then_some(known.origin)
    }

    fn is_header(&self, block: Block) -> bool {
        self.original.cfg.preds[block]
            .iter()
            .any(|&p| self.original.cfg.rpo_index[p] >= self.original.cfg.rpo_index[block])
    }

    /// A new block of the copy, in layout order.
    pub(super) fn new_block(&mut self) -> Block {
        self.out.add_block()
    }

    /// Blocks are laid out in the order in which they are filled.
    pub(super) fn laid_out(&mut self, out: Block) {
        if let Some(p) = self.out.layout.iter().rposition(|&b| b == out) {
            self.out.layout.remove(p);
        }
        self.out.layout.push(out);
    }

    fn block(&mut self, at: CopyPosition, env: &mut AbstractEnv) {
        let CopyPosition { block, next, mut out } = at;
        self.laid_out(out);
        for i in next..self.original.src.blocks[block].insts.len() {
            let inst = self.original.src.blocks[block].insts[i];
            self.loc = self.original.src.insts[inst].loc;
            match self.inst(inst, CopyPosition { block, next: i, out }, env) {
                BlockContinuation::On(block) => out = block,
                BlockContinuation::Done => return,
            }
        }
    }

    /// Copies one instruction.
    fn inst(&mut self, inst: Inst, at: CopyPosition, env: &mut AbstractEnv) -> BlockContinuation {
        self.source = at.block;
        if self.mode.active
            && let Some(mut looked) =
                lookup(self.original.module, self.original.src, &self.original.cfg, inst)
        {
            if let Some(place) = looked.object.and_then(|object| self.named(env[object.index()]))
                && self.plans.within.contains_key(&(inst, place))
            {
                (looked.map, looked.object) = (place, None);
            }
            if looked.object.is_none() || self.plans.sites.contains_key(&inst) {
                return self.lookup(inst, &looked, at, env);
            }
        }
        let data = &self.original.src.insts[inst];
        let args: SmallVec<[AbstractValue; 4]> = data.args.iter().map(|v| env[v.index()]).collect();
        if data.op.is_terminator() {
            self.terminator(inst, &args, at, env);
            return BlockContinuation::Done;
        }
        let ty = data.result.expand().map_or(Type::Any, |v| self.original.src.types[v]);
        let known = match &data.op {
            Op::Load { size, sext, offset, flags } if self.mode.active && *flags == MemFlags::default() => {
                let alike = self.alike(args[0], *offset, *size, *sext);
                let copied = alike.or_else(|| self.copied(args[0], &data.op, ty, at.out));
                copied.or_else(|| self.load(args[0], *offset, *size, *sext))
            }
            op @ Op::Load { .. } => self.copied(args[0], op, ty, at.out),
            Op::MapValueAddr { map, offset } if self.mode.active && !self.mode.late => {
                self.global(inst, *map, *offset)
            }
            op => arithmetic(op, &args)
                .or_else(|| indexed::further(self, op, &args).filter(|_| self.mode.active)),
        };
        let result = data.result.expand();
        if let (Op::Load { flags, .. }, Some(result)) = (&data.op, result)
            && *flags == MemFlags::default()
            && let Some((abs, flow)) = indexed::indexed(self, args[0], &data.op, at)
        {
            env[result.index()] = abs;
            return flow;
        }
        match (known, result) {
            (Some(abs), Some(result)) => env[result.index()] = abs,
            _ if self.go_back(&args, at) => return BlockContinuation::Done,
            _ => {
                chained_calls::call_on(self, inst, &args, at.out);
                let value = self.counted_residual(inst, &args, at.out);
                if let (Some(result), Some(value)) = (result, value) {
                    env[result.index()] = AbstractValue::Val(value);
                }
            }
        }
        BlockContinuation::On(at.out)
    }

    /// The name of the inner map, if this is the address of one that has a name.
    fn named(&self, object: AbstractValue) -> Option<Map> {
        match object {
            AbstractValue::Ptr(id, 0) => match self.lookups.known[id].address {
                ValueAddress::Inside(place) => Some(place),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the plan for a lookup in this map.
    pub(super) fn planned(&self, inst: Inst, map: Map) -> Option<&'a SitePlan> {
        self.plans.within.get(&(inst, map)).or_else(|| self.plans.sites.get(&inst)).copied()
    }

    /// Emits the instruction itself.
    pub(super) fn residual(&mut self, inst: Inst, args: &[AbstractValue], out: Block) -> Option<Value> {
        let args: SmallVec<[Value; 4]> = args.iter().map(|&a| self.materialize(a, out)).collect();
        let data = &self.original.src.insts[inst];
        let ty = data.result.expand().map_or(Type::Any, |v| self.original.src.types[v]);
        let new = self.emit(out, data.op.clone(), &args, &[], ty);
        self.out.result(new)
    }

    /// The same, between counts where it writes a map that has a cache.
    fn counted_residual(&mut self, inst: Inst, args: &[AbstractValue], out: Block) -> Option<Value> {
        let counts = self.counts(inst, args);
        counts.iter().for_each(|(cache, bucket)| self.count_writer(cache, *bucket, true, out));
        let value = self.residual(inst, args, out);
        counts.iter().for_each(|(cache, bucket)| self.count_writer(cache, *bucket, false, out));
        value
    }

    fn terminator(&mut self, inst: Inst, args: &[AbstractValue], at: CopyPosition, env: &AbstractEnv) {
        let (data, out) = (&self.original.src.insts[inst], at.out);
        let decided = match data.op {
            Op::Branch { .. } if self.forced.contains_key(&inst) => self.forced.get(&inst).copied(),
            Op::Branch { cond, width } if self.mode.active => self.decide(cond, width, args),
            _ => None,
        };
        if let Some(taken) = decided {
            let target = self.edge(&data.targets[usize::from(!taken)], out, env);
            self.emit(out, Op::Jump {}, &[], &[target], Type::Any);
            return;
        }
        if self.go_back(args, at) {
            return;
        }
        let args: SmallVec<[Value; 4]> = args.iter().map(|&a| self.materialize(a, out)).collect();
        let targets: SmallVec<[BlockCall; 2]> = data.targets.iter().map(|t| self.edge(t, out, env)).collect();
        self.emit(out, data.op.clone(), &args, &targets, Type::Any);
    }

    /// Evaluates a branch: true if it is taken, `None` if that is not known.
    fn decide(&self, cond: Cond, width: Width, args: &[AbstractValue]) -> Option<bool> {
        match args {
            &[AbstractValue::Const(a), AbstractValue::Const(b)] => {
                Some(eval::cond(cond, width, a as u64, b as u64))
            }
            &[AbstractValue::Ptr(p, _), AbstractValue::Const(0)]
            | &[AbstractValue::Const(0), AbstractValue::Ptr(p, _)]
                if width == Width::W64 =>
            {
                match (cond, &self.lookups.known[p].bytes) {
                    (_, ValueBytes::Unknown) => None,
                    (Cond::Eq, _) => Some(false),
                    (Cond::Ne, _) => Some(true),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// An edge of the copy: to the innermost region that has the block.
    fn edge(&mut self, target: &BlockCall, out: Block, env: &AbstractEnv) -> BlockCall {
        let abs: Vec<AbstractValue> = target.args.iter().map(|v| env[v.index()]).collect();
        let header = self.is_header(target.block);
        let args = abs.iter().zip(&self.original.src.blocks[target.block].params);
        let args: SmallVec<[Value; 4]> = args
            .map(|(&a, &param)| match self.without_address(a) {
                // Whether it is needed is seen when all edges are known.
                Some(_) if !header => self.value(out, Op::Undef {}, &[], self.original.src.types[param]),
                _ => self.materialize(a, out),
            })
            .collect();
        let has = |r: &CopiedRegion| {
            self.original.dom.dominates(r.root, target.block) && (r.root != target.block || r.whole)
        };
        // The outermost region is the whole function, so there is always one.
        let index = self.regions.iter().rposition(has).unwrap_or(0);
        if !self.regions[index].blocks.contains_key(&target.block) {
            let block = self.out.add_block();
            for &p in &self.original.src.blocks[target.block].params {
                self.out.add_param(block, self.original.src.types[p]);
            }
            self.regions[index].blocks.insert(target.block, (block, Vec::new()));
        }
        let Some((block, incoming)) = self.regions[index].blocks.get_mut(&target.block) else {
            return BlockCall::new(out);
        };
        incoming.push(abs);
        BlockCall { block: *block, args }
    }

    /// The result of a load that is the same for all entries of the map.
    pub(super) fn alike(
        &mut self,
        base: AbstractValue,
        offset: i32,
        size: Size,
        sext: bool,
    ) -> Option<AbstractValue> {
        let AbstractValue::Ptr(id, at) = base else { return None };
        let offset = u32::try_from(at.checked_add(i64::from(offset))?).ok()?;
        let end = offset.checked_add(size.bytes())?;
        let map = self.lookups.known[id].map;
        let field = |f: &&super::plan::FieldConstant| {
            f.map == map && f.offset <= offset && end <= f.offset + f.bytes.len() as u32
        };
        let field = self.plans.plan.fields.iter().find(field)?;
        let value = read(&field.bytes, offset - field.offset, size, sext)?;
        self.report.folded_loads += 1;
        Some(AbstractValue::Const(value))
    }

    /// The result of a load, if known.
    pub(super) fn load(
        &mut self,
        base: AbstractValue,
        offset: i32,
        size: Size,
        sext: bool,
    ) -> Option<AbstractValue> {
        let AbstractValue::Ptr(id, at) = base else { return None };
        let offset = u32::try_from(at.checked_add(i64::from(offset))?).ok()?;
        let end = offset.checked_add(size.bytes())?;
        let map = self.lookups.known[id].map;
        if !self.plans.contents.constant(map, offset..end) {
            return None;
        }
        let value = match &self.lookups.known[id].bytes {
            ValueBytes::Unknown | ValueBytes::There | ValueBytes::Copy(_) => return None,
            ValueBytes::Held(value) if offset == 0 && size == Size::W => AbstractValue::Val(*value),
            ValueBytes::Held(_) => return None,
            ValueBytes::One(bytes) => AbstractValue::Const(read(bytes, offset, size, sext)?),
            ValueBytes::Merged(merge, all) => {
                let merge = *merge;
                let values: Option<Vec<i64>> = all.iter().map(|b| read(b, offset, size, sext)).collect();
                let values = values?;
                match values.first() {
                    Some(&first) if values.iter().all(|&v| v == first) => AbstractValue::Const(first),
                    _ => AbstractValue::Val(self.field(merge, MergedField { known: id, offset, size, sext })),
                }
            }
        };
        self.report.folded_loads += 1;
        Some(value)
    }

    /// The parameter that holds a field of merged values.
    pub(super) fn field(&mut self, merge: MergeId, field: MergedField) -> Value {
        if let Some(&v) = self.lookups.fields.by_field.get(&field) {
            return v;
        }
        let ty = if field.sext { Type::I64 } else { Type::int(field.size.bits()) };
        let value = self.out.add_param(self.lookups.merges[merge].head, ty);
        self.lookups.fields.by_field.insert(field, value);
        self.lookups.fields.of_value.insert(value, field);
        value
    }

    /// Global data whose contents are known.
    fn global(&mut self, inst: Inst, map: Map, offset: u32) -> Option<AbstractValue> {
        let bytes = self.plans.contents.lookup(map, &[0; 4])??;
        let known =
            LookupValue { map, origin: inst, bytes: ValueBytes::One(bytes), address: ValueAddress::Direct };
        Some(AbstractValue::Ptr(self.lookups.known.push(known), i64::from(offset)))
    }

    /// Materialises a known value in the copy.
    pub(super) fn materialize(&mut self, abs: AbstractValue, out: Block) -> Value {
        match abs {
            AbstractValue::Val(v) => v,
            AbstractValue::Const(value) => self.value(out, Op::Const { value }, &[], Type::I64),
            AbstractValue::Ptr(id, at) => self.address(id, at, out),
            AbstractValue::In(id, at, by) => {
                let base = self.address(id, at, out);
                let ty = Type::Ptr(Prov::MapValue(self.lookups.known[id].map));
                self.value(out, Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, by], ty)
            }
            AbstractValue::None => self.value(out, Op::Undef {}, &[], Type::Any),
        }
    }

    fn address(&mut self, id: LookupValueId, at: i64, out: Block) -> Value {
        let LookupValue { map, origin, address, .. } = self.lookups.known[id];
        let ty = Type::Ptr(Prov::MapValue(map));
        match (address, u32::try_from(at)) {
            (ValueAddress::Direct, Ok(offset)) if offset < self.original.module.maps[map].value_size => {
                self.value(out, Op::MapValueAddr { map, offset }, &[], ty)
            }
            (ValueAddress::None | ValueAddress::Back { .. }, _) => {
                self.addresses.missing.push(origin);
                self.value(out, Op::Undef {}, &[], Type::Any)
            }
            (address, _) => {
                let base = match address {
                    ValueAddress::Held(v) => v,
                    ValueAddress::Inside(map) => {
                        self.value(out, Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)))
                    }
                    _ => self.value(out, Op::MapValueAddr { map, offset: 0 }, &[], ty),
                };
                if at == 0 {
                    return base;
                }
                let by = self.value(out, Op::Const { value: at }, &[], Type::I64);
                self.value(out, Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, by], ty)
            }
        }
    }

    pub(super) fn value(&mut self, out: Block, op: Op, args: &[Value], ty: Type) -> Value {
        let inst = self.emit(out, op, args, &[], ty);
        match self.out.result(inst) {
            Some(v) => v,
            None => self.out.defs.push(ValueDef::Inst(inst)),
        }
    }

    pub(super) fn emit(
        &mut self,
        out: Block,
        op: Op,
        args: &[Value],
        targets: &[BlockCall],
        ty: Type,
    ) -> Inst {
        targets.iter().for_each(|target| self.preds[target.block].push(out));
        let inst = self.out.make_inst(op, args.iter().copied(), targets.iter().cloned(), ty);
        self.out.insts[inst].loc = self.loc;
        self.out.blocks[out].insts.push(inst);
        inst
    }

    /// Counts a lookup whose key is not among the hot ones, per CPU; returns the block to continue in.
    pub(super) fn count_miss(&mut self, site: SiteId, out: Block) -> Block {
        let Some(map) = self.plans.plan.guard.and_then(|g| g.misses) else { return out };
        let (count, on) = (self.new_block(), self.new_block());
        let number = self.constant(site.0.into(), out);
        let key = [KeyPiece { offset: 0, size: Size::W }].into_iter().collect();
        let lookup = Op::MapLookup { map, key };
        let address = self.value(out, lookup, &[number], Type::Ptr(Prov::MapValueOrNull(map)));
        let zero = self.constant(0, out);
        let branch = Op::Branch { cond: Cond::Eq, width: Width::W64 };
        self.emit(out, branch, &[address, zero], &[BlockCall::new(on), BlockCall::new(count)], Type::Any);
        let load = Op::Load { size: Size::Dw, sext: false, offset: 0, flags: MemFlags::default() };
        let before = self.value(count, load, &[address], Type::I64);
        let one = self.constant(1, count);
        let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
        let after = self.value(count, add, &[before, one], Type::I64);
        let store = Op::Store { size: Size::Dw, offset: 0, flags: MemFlags::default() };
        self.emit(count, store, &[address, after], &[], Type::Any);
        self.emit(count, Op::Jump {}, &[], &[BlockCall::new(on)], Type::Any);
        on
    }

    pub(super) fn guard_word(&mut self, guard: &GuardCheck, offset: u32, out: Block) -> Value {
        let map = guard.map;
        self.value(out, Op::MapValueAddr { map, offset }, &[], Type::Ptr(Prov::MapValue(map)))
    }

    pub(super) fn constant(&mut self, value: i64, out: Block) -> Value {
        self.value(out, Op::Const { value }, &[], Type::I64)
    }
}

/// For each parameter, the value on which all edges agree.
fn agreement(incoming: &[Vec<AbstractValue>]) -> Vec<Option<AbstractValue>> {
    let Some((first, rest)) = incoming.split_first() else { return Vec::new() };
    let same = |n: usize, abs: AbstractValue| rest.iter().all(|other| other.get(n) == Some(&abs));
    first.iter().enumerate().map(|(n, &abs)| same(n, abs).then_some(abs)).collect()
}

/// The pieces of a key in memory, the widest first.
pub(super) fn pieces_of(size: u32) -> SmallVec<[KeyPiece; 2]> {
    let mut pieces = SmallVec::new();
    let mut at = 0;
    while at < size {
        let piece = Size::ALL.into_iter().rev().find(|s| s.bytes() <= size - at).unwrap_or(Size::B);
        pieces.push(KeyPiece { offset: at as u16, size: piece });
        at += piece.bytes();
    }
    pieces
}

/// Returns true if a lookup can find only one value: the map is an array of one entry.
pub(super) fn is_single(module: &Module, map: Map) -> bool {
    module.maps[map].kind == MapType::ARRAY.0 && module.maps[map].max_entries == 1
}

/// Returns true if regions are nested too deep for a further one.
pub(super) fn too_deep(regions: &[CopiedRegion]) -> bool {
    regions.len() > DEPTH
}
