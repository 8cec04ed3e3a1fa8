//! Lookups: results that are known without a call, and code for each of the values that a lookup may find.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Inst, KeyLayout, KeyPiece, Map, MemFlags, Op, Prov, Size, SwapKind, Type,
    Value, Width,
};
use millstream_isa::helpers::id;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use cranelift_entity::EntityRef;

use super::abstract_key::{AbstractKey, KeyKnown, KeySource, constant_pieces, key_bytes};
use super::cache_layout::whole_words;
use super::decision_tree::DecisionCase;
use super::eval::{AbstractValue, LookupValue, MergeId, MergedField, ValueAddress, ValueBytes, read};
use super::matcher::{KeyGroup, KeyMatcher, MatchMethod, full_length, groups, indices};
use super::partial_eval::{
    AbstractEnv, BlockContinuation, CopyPosition, MergePoint, PartialEvaluator, is_single, pieces_of,
    too_deep,
};
use super::perfect_hash::PerfectHashLayout;
use super::plan::{LookupEntry, LookupPlan, SitePlan, SiteReport};
use super::shadow_table::{ShadowCapacity, TrieAccess};
use super::site::{LookupInst, LookupKey};
use super::stack_key::{self, StoredPiece};
use super::{decision_tree, fixed_length_prefixes, key_tests, lpm, partial_deopt};

/// Copies of what follows one lookup.
const COPIES: usize = 64;

/// A twin, as seen by the code of one lookup.
enum ShadowAccess {
    Trie(TrieAccess),
    Rows(Map, PerfectHashLayout),
    /// With the pieces of the shortened key.
    OneLength(Map, PerfectHashLayout, SmallVec<[AbstractValue; 4]>),
}

/// A lookup that a twin is to answer.
struct ShadowLookup<'k> {
    inst: Inst,
    map: Map,
    key: &'k AbstractKey,
    /// Block in which the lookup is made because the twin is out of date, if the code tests for that.
    made: Option<Block>,
}

impl PartialEvaluator<'_> {
    /// Copies a lookup, or uses its known result instead.
    pub(super) fn lookup(
        &mut self,
        inst: Inst,
        looked: &LookupInst<'_>,
        mut at: CopyPosition,
        env: &mut AbstractEnv,
    ) -> BlockContinuation {
        let map = looked.map;
        if let Some(found) = self.assumed.get(&inst).filter(|_| !self.mode.late).cloned() {
            let key = self.key(inst, looked, at, env);
            return self.found(inst, map, found, &key, at, env);
        }
        if key_tests::is_dead_lookup(self, inst, at.block, env) {
            self.report.needless += 1;
            self.define(inst, AbstractValue::Const(0), env);
            return BlockContinuation::On(at.out);
        }
        let key = self.key(inst, looked, at, env);
        match (&key.known, &key.given) {
            _ if self.mode.late => {}
            (KeyKnown::Constant(bytes), _) => {
                if let Some(found) = self.plans.contents.lookup(map, bytes)
                    && self.can_be_named(map, found.as_deref())
                {
                    self.report.folded_lookups += 1;
                    return self.found(inst, map, found, &key, at, env);
                }
            }
            (KeyKnown::Merged(merge, keys), _) => {
                if let Some(flow) = self.found_merged(inst, map, *merge, keys, at, env) {
                    return flow;
                }
            }
            (KeyKnown::No, KeySource::Values(..) | KeySource::Stack(..)) => {
                let may = !self.mode.plain && !too_deep(&self.regions);
                if may {
                    match key_tests::tested(self, inst, looked, &key, at, env) {
                        Some(out) => at.out = out,
                        None => {
                            self.define(inst, AbstractValue::Const(0), env);
                            return BlockContinuation::On(at.out);
                        }
                    }
                }
                let site = self.planned(inst, map).filter(|_| may);
                if let Some(site) = site
                    && let Some(flow) = self.split(inst, map, site, &key, at, env)
                {
                    return flow;
                }
            }
            (KeyKnown::No, KeySource::Pointer(_)) => {}
        }
        let result = self.residual_lookup(inst, map, &key, at.out);
        let abs = if !self.mode.late && self.plans.plan.fields.iter().any(|f| f.map == map) {
            let address = ValueAddress::Held(result);
            AbstractValue::Ptr(
                self.lookups.known.push(LookupValue {
                    map,
                    origin: inst,
                    bytes: ValueBytes::Unknown,
                    address,
                }),
                0,
            )
        } else {
            AbstractValue::Val(result)
        };
        self.define(inst, abs, env);
        BlockContinuation::On(at.out)
    }

    pub(super) fn define(&self, inst: Inst, abs: AbstractValue, env: &mut AbstractEnv) {
        if let Some(result) = self.original.src.result(inst) {
            env[result.index()] = abs;
        }
    }

    fn key(
        &mut self,
        inst: Inst,
        looked: &LookupInst<'_>,
        at: CopyPosition,
        env: &AbstractEnv,
    ) -> AbstractKey {
        let size = self.original.module.maps[looked.map].key_size;
        let (given, known) = match looked.key {
            LookupKey::Values(layout) => {
                let args: SmallVec<[AbstractValue; 4]> =
                    self.original.src.insts[inst].args.iter().map(|v| env[v.index()]).collect();
                let known = self.assembled(layout, &args, size);
                (KeySource::Values(layout.clone(), args), known)
            }
            LookupKey::Pointer(p) => {
                let abs = env[p.index()];
                if self.planned(inst, looked.map).is_some()
                    && let AbstractValue::Val(pointer) = abs
                    && let Some(pieces) = stack_key::on_stack(
                        self.original.src,
                        (&self.original.cfg, &self.original.dom),
                        at.block,
                        inst,
                        size,
                    )
                {
                    self.read_back(pointer, &pieces, size, at.out, env)
                } else {
                    (KeySource::Pointer(abs), self.pointed_at(abs, size))
                }
            }
        };
        let object = looked.object.map(|o| env[o.index()]);
        // The result for a known key depends on the map.
        let known = known.filter(|_| object.is_none()).unwrap_or(KeyKnown::No);
        AbstractKey { given, known, object }
    }

    /// A key on the stack, read where its pieces are not known.
    fn read_back(
        &mut self,
        pointer: Value,
        pieces: &[StoredPiece],
        size: u32,
        out: Block,
        env: &AbstractEnv,
    ) -> (KeySource, Option<KeyKnown>) {
        let piece = |StoredPiece { piece, value }: &StoredPiece| match value.map(|v| env[v.index()]) {
            Some(known @ (AbstractValue::Val(_) | AbstractValue::Const(_))) => known,
            _ => {
                let flags = MemFlags::default();
                let op = Op::Load { size: piece.size, sext: false, offset: i32::from(piece.offset), flags };
                AbstractValue::Val(self.value(out, op, &[pointer], Type::int(piece.size.bits())))
            }
        };
        let args: SmallVec<[AbstractValue; 4]> = pieces.iter().map(piece).collect();
        let layout = stack_key::layout(pieces);
        let known = self.assembled(&layout, &args, size);
        (KeySource::Stack(AbstractValue::Val(pointer), layout, args), known)
    }

    /// A key of which all pieces are constant, or follow from the way to merged values.
    fn assembled(&self, layout: &KeyLayout, args: &[AbstractValue], size: u32) -> Option<KeyKnown> {
        if layout.iter().map(|p| p.size.bytes()).sum::<u32>() != size {
            return None;
        }
        let field = |abs: &AbstractValue| match abs {
            AbstractValue::Val(v) => self.lookups.fields.of_value.get(v).copied(),
            _ => None,
        };
        let merged = args.iter().find_map(field).and_then(|f| match &self.lookups.known[f.known].bytes {
            ValueBytes::Merged(merge, all) => Some((*merge, all.len())),
            _ => None,
        });
        let (merge, count) = merged.map_or((None, 1), |(m, n)| (Some(m), n));
        let mut keys = Vec::with_capacity(count);
        for n in 0..count {
            let value = |at: usize| match &args[at] {
                AbstractValue::Const(c) => Some(*c),
                other => self.field_of(field(other)?, n),
            };
            keys.push(key_bytes(layout, size, value)?);
        }
        match merge {
            Some(merge) => Some(KeyKnown::Merged(merge, keys)),
            None => keys.pop().map(KeyKnown::Constant),
        }
    }

    /// A field of the n-th of merged values.
    fn field_of(&self, field: MergedField, n: usize) -> Option<i64> {
        match &self.lookups.known[field.known].bytes {
            ValueBytes::Merged(_, all) => read(all.get(n)?, field.offset, field.size, field.sext),
            ValueBytes::One(bytes) => read(bytes, field.offset, field.size, field.sext),
            ValueBytes::Unknown | ValueBytes::There | ValueBytes::Copy(_) | ValueBytes::Held(_) => None,
        }
    }

    /// A key in the value of a map that is known.
    fn pointed_at(&self, abs: AbstractValue, size: u32) -> Option<KeyKnown> {
        let AbstractValue::Ptr(id, at) = abs else { return None };
        let start = u32::try_from(at).ok()?;
        let range = start..start.checked_add(size)?;
        let known = &self.lookups.known[id];
        if !self.plans.contents.constant(known.map, range.clone()) {
            return None;
        }
        let part = |bytes: &Vec<u8>| bytes.get(range.start as usize..range.end as usize).map(<[u8]>::to_vec);
        match &known.bytes {
            ValueBytes::Unknown | ValueBytes::There | ValueBytes::Copy(_) | ValueBytes::Held(_) => None,
            ValueBytes::One(bytes) => Some(KeyKnown::Constant(part(bytes)?)),
            ValueBytes::Merged(merge, all) => {
                Some(KeyKnown::Merged(*merge, all.iter().map(part).collect::<Option<_>>()?))
            }
        }
    }

    /// The result of a lookup is known.
    fn found(
        &mut self,
        inst: Inst,
        map: Map,
        found: Option<Vec<u8>>,
        key: &AbstractKey,
        at: CopyPosition,
        env: &mut AbstractEnv,
    ) -> BlockContinuation {
        let Some(bytes) = found else {
            self.define(inst, AbstractValue::Const(0), env);
            return BlockContinuation::On(at.out);
        };
        let (address, out) = self.address_of(inst, map, &bytes, key, at, env);
        let known = self.lookups.known.push(LookupValue {
            map,
            origin: inst,
            bytes: ValueBytes::One(bytes),
            address,
        });
        self.define(inst, AbstractValue::Ptr(known, 0), env);
        BlockContinuation::On(out)
    }

    /// Returns true if code can do without a lookup with this result: in a map of maps, only if a map stands
    /// for the inner one.
    fn can_be_named(&self, map: Map, found: Option<&[u8]>) -> bool {
        !self.is_outer(map) || found.is_none_or(|value| self.plans.plan.inside(map, value).is_some())
    }

    fn is_outer(&self, map: Map) -> bool {
        self.original.module.maps[map].inner.is_some()
    }

    /// Finds the source of the address of a value that is known to exist; also returns the block to continue
    /// in.
    ///
    /// A lookup made for the address alone may still find nothing, if the map is changed just then: that path
    /// is copied too.
    fn address_of(
        &mut self,
        inst: Inst,
        map: Map,
        value: &[u8],
        key: &AbstractKey,
        at: CopyPosition,
        env: &AbstractEnv,
    ) -> (ValueAddress, Block) {
        if let Some(inside) = self.plans.plan.inside(map, value) {
            return (ValueAddress::Inside(inside), at.out);
        }
        if is_single(self.original.module, map) {
            return (ValueAddress::Direct, at.out);
        }
        if !self.addresses.addressed.contains(&inst) {
            return (ValueAddress::None, at.out);
        }
        let value = self.residual_lookup(inst, map, key, at.out);
        let (absent, on) = (self.new_block(), self.new_block());
        let zero = self.value(at.out, Op::Const { value: 0 }, &[], Type::I64);
        let op = Op::Branch { cond: Cond::Eq, width: Width::W64 };
        let targets = [BlockCall::new(absent), BlockCall::new(on)];
        self.emit(at.out, op, &[value, zero], &targets, Type::Any);
        let mut without = env.clone();
        self.define(inst, AbstractValue::Const(0), &mut without);
        self.region(CopyPosition { next: at.next + 1, out: absent, ..at }, without);
        (ValueAddress::Held(value), on)
    }

    fn found_merged(
        &mut self,
        inst: Inst,
        map: Map,
        merge: MergeId,
        keys: &[Vec<u8>],
        at: CopyPosition,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        if self.is_outer(map) {
            return None;
        }
        let found: Option<Vec<Option<Vec<u8>>>> =
            keys.iter().map(|k| self.plans.contents.lookup(map, k)).collect();
        let found = found?;
        if found.iter().all(Option::is_none) {
            self.define(inst, AbstractValue::Const(0), env);
            return Some(BlockContinuation::On(at.out));
        }
        let values: Vec<Vec<u8>> = found.into_iter().collect::<Option<_>>()?;
        if self.addresses.addressed.contains(&inst) && !is_single(self.original.module, map) {
            return None;
        }
        let address =
            if is_single(self.original.module, map) { ValueAddress::Direct } else { ValueAddress::None };
        let known = self.lookups.known.push(LookupValue {
            map,
            origin: inst,
            bytes: ValueBytes::Merged(merge, values),
            address,
        });
        self.define(inst, AbstractValue::Ptr(known, 0), env);
        self.report.folded_lookups += 1;
        Some(BlockContinuation::On(at.out))
    }

    /// The lookup itself.
    pub(super) fn residual_lookup(&mut self, inst: Inst, map: Map, key: &AbstractKey, out: Block) -> Value {
        let result = self.original.src.result(inst);
        let ty = result.map_or(Type::Ptr(Prov::MapValueOrNull(map)), |v| self.original.src.types[v]);
        let size = self.original.module.maps[map].key_size;
        let (layout, args) = match (&key.known, &key.given) {
            (_, KeySource::Stack(abs, ..) | KeySource::Pointer(abs)) if key.object.is_some() => {
                return self.pointer_lookup(map, key.object, *abs, ty, out);
            }
            (KeyKnown::Constant(bytes), _) => constant_pieces(bytes),
            (_, KeySource::Values(layout, args)) => (layout.clone(), args.clone()),
            (_, KeySource::Stack(abs, ..)) => return self.pointer_lookup(map, None, *abs, ty, out),
            (_, KeySource::Pointer(abs)) => match self.loaded_pieces(*abs, size, out) {
                Some(parts) => parts,
                None => return self.pointer_lookup(map, None, *abs, ty, out),
            },
        };
        let args: SmallVec<[Value; 4]> = args.iter().map(|&a| self.materialize(a, out)).collect();
        self.value(out, Op::MapLookup { map, key: layout }, &args, ty)
    }

    /// A key in a value that is known, but not where: as the fields that it consists of.
    fn loaded_pieces(
        &mut self,
        abs: AbstractValue,
        size: u32,
        out: Block,
    ) -> Option<(KeyLayout, SmallVec<[AbstractValue; 4]>)> {
        let pieces = pieces_of(size);
        let mut args = SmallVec::new();
        for &KeyPiece { offset, size } in &pieces {
            let offset = i32::from(offset);
            let load = Op::Load { size, sext: false, offset, flags: MemFlags::default() };
            let alike = self.alike(abs, offset, size, false);
            let copied = alike.or_else(|| self.copied(abs, &load, Type::int(size.bits()), out));
            args.push(copied.or_else(|| self.load(abs, offset, size, false))?);
        }
        Some((pieces, args))
    }

    /// A lookup by helper, the key in memory; the map may be an inner one.
    fn pointer_lookup(
        &mut self,
        map: Map,
        object: Option<AbstractValue>,
        key: AbstractValue,
        ty: Type,
        out: Block,
    ) -> Value {
        let address = match object {
            Some(object) => self.materialize(object, out),
            None => self.value(out, Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map))),
        };
        let key = self.materialize(key, out);
        self.value(out, Op::Helper { id: id::MAP_LOOKUP_ELEM }, &[address, key], ty)
    }

    /// Code for the entries that the plan names. `None` if the plan does not suit the site: nothing is
    /// emitted then.
    fn split(
        &mut self,
        inst: Inst,
        map: Map,
        site: &SitePlan,
        key: &AbstractKey,
        at: CopyPosition,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        let (KeySource::Values(layout, args) | KeySource::Stack(_, layout, args)) = &key.given else {
            return None;
        };
        let whole = match &site.lookup {
            LookupPlan::Cached => return self.cached(inst, map, site, key, (layout, args), at, env),
            LookupPlan::Empty => {
                self.define(inst, AbstractValue::Const(0), env);
                return Some(BlockContinuation::On(at.out));
            }
            LookupPlan::Whole(_) => true,
            LookupPlan::Walked => return None,
            LookupPlan::Hot(_) | LookupPlan::Twin { .. } | LookupPlan::OneLength { .. } => false,
        };
        let decl = &self.original.module.maps[map];
        let (entries, twin) = match &site.lookup {
            LookupPlan::Whole(entries) | LookupPlan::Hot(entries) => (entries.as_slice(), None),
            LookupPlan::Twin { map: twin, hot } => (hot.as_slice(), Some((*twin, None))),
            LookupPlan::OneLength { map: twin, length } => (&[][..], Some((*twin, Some(*length)))),
            LookupPlan::Empty | LookupPlan::Cached | LookupPlan::Walked => return None,
        };
        let twin = match twin {
            Some(_) if self.addresses.addressed.contains(&inst) => return None,
            Some((twin, length)) => {
                let sides = self.plans.plan.guard.map_or(1, |g| g.sides);
                Some((twin, ShadowCapacity::of(decl, &self.original.module.maps[twin], sides, length)?))
            }
            None => None,
        };
        let twin = match twin {
            Some((map, ShadowCapacity::Trie { groups, value_size })) => {
                let pieces = full_length(decl, layout, args)?;
                Some(ShadowAccess::Trie(TrieAccess {
                    map,
                    groups,
                    word: self.joined(&pieces, at.out),
                    value_size,
                }))
            }
            Some((map, ShadowCapacity::Rows(shape))) if whole_words(layout) => {
                Some(ShadowAccess::Rows(map, shape))
            }
            Some((map, ShadowCapacity::OneLength(shape, length))) if whole_words(layout) => {
                let words =
                    fixed_length_prefixes::shortened(self, layout, args, (decl.key_size, length), at.out)?;
                Some(ShadowAccess::OneLength(map, shape, words))
            }
            Some(_) => return None,
            None => None,
        };
        let matcher = KeyMatcher::new(decl, layout, args, whole, entries, self.plans.plan.budget.tests)?;
        let asked = twin.as_ref().and_then(|_| partial_deopt::emit_deopt_test(self, map, at.out));
        let at = asked.map_or(at, |[in_step, _]| CopyPosition { out: in_step, ..at });
        let mut report = SiteReport { entries: matcher.entries.len() as u32, ..SiteReport::default() };
        let groups = groups(&matcher.entries);
        let leaves = self.leaves(inst, map, key, &groups, at, env, &mut report);
        let default = self.new_block();
        self.comparisons(&matcher, &groups, &leaves, at.out, default);
        self.note(site, report);
        // Misses are those of keys that were expected.
        let counts = !whole && (twin.is_none() || !entries.is_empty());
        let default = if counts { self.count_miss(site.site, default) } else { default };
        let made = asked.map(|[_, made]| made);
        if let Some(twin) = twin {
            let asked = ShadowLookup { inst, map, key, made };
            let at = CopyPosition { out: default, ..at };
            if let Some(found) = self.in_twin(&twin, &asked, (layout, args), at, env) {
                return Some(BlockContinuation::On(found));
            }
        }
        if let Some(made) = made {
            self.emit(made, Op::Jump {}, &[], &[BlockCall::new(default)], Type::Any);
        }
        // Keys without a leaf: absent for certain, or to be looked up.
        let abs = match whole && report.dropped == 0 {
            true => AbstractValue::Const(0),
            false => AbstractValue::Val(self.residual_lookup(inst, map, key, default)),
        };
        self.define(inst, abs, env);
        Some(BlockContinuation::On(default))
    }

    /// A lookup in a twin; returns the block to continue in if it finds something. `None` if the key is not
    /// known in pieces.
    fn in_twin(
        &mut self,
        twin: &ShadowAccess,
        asked: &ShadowLookup<'_>,
        (layout, args): (&KeyLayout, &[AbstractValue]),
        at: CopyPosition,
        env: &mut AbstractEnv,
    ) -> Option<Block> {
        let &ShadowLookup { inst, map, key, made } = asked;
        let words = match twin {
            ShadowAccess::Trie(_) => Vec::new(),
            ShadowAccess::Rows(_, shape) => self.key_words(layout, args, shape.row.key, at.out)?,
            ShadowAccess::OneLength(_, shape, pieces) => {
                self.key_words(layout, pieces, shape.row.key, at.out)?
            }
        };
        let [held, found, absent] = std::array::from_fn(|_| self.new_block());
        let (value, ty) = match *twin {
            ShadowAccess::Trie(trie) => {
                let cell = self.out.add_param(held, Type::I32);
                self.trie(trie, at.out, held, absent);
                match trie.has_values() {
                    true => (self.value_in_trie(trie, map, cell, held), Type::Ptr(Prov::MapValue(map))),
                    false => (cell, Type::I32),
                }
            }
            ShadowAccess::Rows(twin, shape) | ShadowAccess::OneLength(twin, shape, _) => {
                (self.rows(twin, shape, &words, [at.out, held, absent]), Type::Ptr(Prov::MapValue(twin)))
            }
        };
        let it = self.out.add_param(found, ty);
        self.emit(held, Op::Jump {}, &[], &[BlockCall::with(found, [value])], Type::Any);
        if let Some(made) = made {
            let (entry, there) = partial_deopt::emit_map_lookup(
                self,
                inst,
                map,
                key,
                absent,
                CopyPosition { out: made, ..at },
                env,
            );
            let entry = self.as_in_twin(twin, entry, ty, there);
            self.emit(there, Op::Jump {}, &[], &[BlockCall::with(found, [entry])], Type::Any);
        }
        let mut without = env.clone();
        self.define(inst, AbstractValue::Const(0), &mut without);
        self.region(CopyPosition { next: at.next + 1, out: absent, ..at }, without);
        let (bytes, address) = match twin {
            ShadowAccess::Trie(trie) if trie.has_values() => (ValueBytes::There, ValueAddress::Held(it)),
            ShadowAccess::Trie(_) => (ValueBytes::Held(it), ValueAddress::None),
            ShadowAccess::Rows(..) | ShadowAccess::OneLength(..) => {
                (ValueBytes::Copy(it), ValueAddress::None)
            }
        };
        let known = self.lookups.known.push(LookupValue { map, origin: inst, bytes, address });
        self.define(inst, AbstractValue::Ptr(known, 0), env);
        Some(found)
    }

    /// An entry of the map itself, as a twin would give it.
    fn as_in_twin(&mut self, twin: &ShadowAccess, entry: Value, ty: Type, out: Block) -> Value {
        match twin {
            ShadowAccess::Trie(trie) if trie.has_values() => entry,
            ShadowAccess::Trie(_) => {
                let load = Op::Load { size: Size::W, sext: false, offset: 0, flags: MemFlags::default() };
                self.value(out, load, &[entry], Type::I32)
            }
            // Where the row would begin.
            ShadowAccess::Rows(_, shape) | ShadowAccess::OneLength(_, shape, _) => {
                let before = self.constant(-i64::from(shape.row.value_at()), out);
                self.value(out, Op::Alu { op: AluOp::Add, width: Width::W64 }, &[entry, before], ty)
            }
        }
    }

    /// The word that pieces make, the lowest first.
    fn joined(&mut self, pieces: &[(KeyPiece, AbstractValue)], out: Block) -> Value {
        let mut word: Option<Value> = None;
        let first = pieces.first().map_or(0, |(p, _)| p.offset);
        for &(piece, abs) in pieces {
            let mut part = self.materialize(abs, out);
            if piece.size != Size::W {
                // Stores take the lowest bytes of what may be more.
                let mask = i64::from(u32::MAX >> (32 - piece.size.bits()));
                let mask = self.value(out, Op::Const { value: mask }, &[], Type::I64);
                part =
                    self.value(out, Op::Alu { op: AluOp::And, width: Width::W32 }, &[part, mask], Type::I32);
            }
            let by = 8 * i64::from(piece.offset - first);
            if by > 0 {
                let by = self.value(out, Op::Const { value: by }, &[], Type::I64);
                part = self.value(out, Op::Alu { op: AluOp::Lsh, width: Width::W32 }, &[part, by], Type::I32);
            }
            let or = Op::Alu { op: AluOp::Or, width: Width::W32 };
            word = Some(match word {
                Some(word) => self.value(out, or, &[word, part], Type::I32),
                None => part,
            });
        }
        word.unwrap_or_else(|| self.value(out, Op::Undef {}, &[], Type::I32))
    }

    pub(super) fn note(&mut self, site: &SitePlan, new: SiteReport) {
        match self.report.sites.iter_mut().find(|(id, _)| *id == site.site) {
            Some((_, sum)) => {
                sum.entries = sum.entries.max(new.entries);
                sum.copies += new.copies;
                sum.merged += new.merged;
                sum.dropped += new.dropped;
            }
            None => self.report.sites.push((site.site, new)),
        }
    }

    /// Targets of the groups: a copy of the code after the lookup for each of the hottest, one for the rest.
    /// `None` for groups that are left to the real lookup.
    #[allow(clippy::too_many_arguments)] // one lookup's circumstances
    fn leaves(
        &mut self,
        inst: Inst,
        map: Map,
        key: &AbstractKey,
        groups: &[KeyGroup<'_>],
        at: CopyPosition,
        env: &AbstractEnv,
        report: &mut SiteReport,
    ) -> Vec<Option<Block>> {
        let mut leaves = vec![None; groups.len()];
        let mut heat: u64 = groups.iter().map(|g| g.heat + 1).sum();
        let limit = self.limit;
        let mut rest = Vec::new();
        for (n, group) in groups.iter().enumerate() {
            let made = self.out.insts.len();
            if n >= COPIES || made >= limit {
                rest.push(n);
                continue;
            }
            // Nested copies may use the share of this group.
            let share = (limit - made) as u128 * u128::from(group.heat + 1) / u128::from(heat.max(1));
            heat -= (group.heat + 1).min(heat);
            self.limit = made + (share as usize).max((limit - made) / (2 * (groups.len() - n)));
            leaves[n] = Some(self.leaf(inst, map, key, group, at, env));
            self.limit = limit;
            report.copies += 1;
        }
        let mergeable = |n: &usize| groups[*n].value.is_some();
        // Calls with one of several maps are slower, each by a table of functions, than with one that is
        // known.
        let keeps_lookup = self.is_outer(map)
            || self.addresses.addressed.contains(&inst) && !is_single(self.original.module, map);
        let (merged, dropped): (Vec<usize>, Vec<usize>) =
            rest.into_iter().partition(|n| mergeable(n) && !keeps_lookup);
        report.merged = merged.iter().map(|&n| groups[n].entries.len() as u32).sum();
        report.dropped = dropped.iter().map(|&n| groups[n].entries.len() as u32).sum();
        if !merged.is_empty() {
            self.merge(inst, map, groups, &merged, at, env, &mut leaves);
        }
        leaves
    }

    /// A copy of what follows for one value.
    fn leaf(
        &mut self,
        inst: Inst,
        map: Map,
        key: &AbstractKey,
        group: &KeyGroup<'_>,
        at: CopyPosition,
        env: &AbstractEnv,
    ) -> Block {
        let start = self.new_block();
        let at = CopyPosition { out: start, ..at };
        let mut env = env.clone();
        let Some(value) = group.value else {
            self.define(inst, AbstractValue::Const(0), &mut env);
            self.region(CopyPosition { next: at.next + 1, ..at }, env);
            return start;
        };
        let (address, out) = self.address_of(inst, map, value, key, at, &env);
        let known = LookupValue { map, origin: inst, bytes: ValueBytes::One(value.to_vec()), address };
        let known = self.lookups.known.push(known);
        self.define(inst, AbstractValue::Ptr(known, 0), &mut env);
        self.region(CopyPosition { next: at.next + 1, out, ..at }, env);
        start
    }

    /// One copy of what follows for several values, whose fields are its parameters.
    #[allow(clippy::too_many_arguments)] // one lookup's circumstances
    fn merge(
        &mut self,
        inst: Inst,
        map: Map,
        groups: &[KeyGroup<'_>],
        merged: &[usize],
        at: CopyPosition,
        env: &AbstractEnv,
        leaves: &mut [Option<Block>],
    ) {
        let head = self.new_block();
        let merge = self.lookups.merges.push(MergePoint { head });
        let values = merged.iter().map(|&n| groups[n].value.unwrap_or_default().to_vec()).collect();
        let address =
            if is_single(self.original.module, map) { ValueAddress::Direct } else { ValueAddress::None };
        let known = LookupValue { map, origin: inst, bytes: ValueBytes::Merged(merge, values), address };
        let known = self.lookups.known.push(known);
        let mut env = env.clone();
        self.define(inst, AbstractValue::Ptr(known, 0), &mut env);
        // No room is left: lookups inside stay as they are unless their keys are known.
        let limit = std::mem::replace(&mut self.limit, 0);
        self.region(CopyPosition { next: at.next + 1, out: head, ..at }, env);
        self.limit = limit;
        let starts: Vec<Block> = merged.iter().map(|_| self.new_block()).collect();
        self.lead_to(head, &starts);
        merged.iter().zip(starts).for_each(|(&group, start)| leaves[group] = Some(start));
    }

    /// From a block for each of merged values to their common copy, with the fields that this one takes.
    pub(super) fn lead_to(&mut self, head: Block, starts: &[Block]) {
        let fields: Vec<Option<MergedField>> = self.out.blocks[head]
            .params
            .iter()
            .map(|p| self.lookups.fields.of_value.get(p).copied())
            .collect();
        for (n, &start) in starts.iter().enumerate() {
            let args: Vec<Value> = fields
                .iter()
                .map(|f| {
                    let value = f.and_then(|f| self.field_of(f, n)).unwrap_or(0);
                    self.value(start, Op::Const { value }, &[], Type::I64)
                })
                .collect();
            self.emit(start, Op::Jump {}, &[], &[BlockCall::with(head, args)], Type::Any);
        }
    }

    /// Comparisons that lead each entry to its leaf.
    fn comparisons(
        &mut self,
        matcher: &KeyMatcher<'_>,
        groups: &[KeyGroup<'_>],
        leaves: &[Option<Block>],
        out: Block,
        default: Block,
    ) {
        let by_value: FxHashMap<Option<&[u8]>, Option<Block>> =
            groups.iter().zip(leaves).map(|(g, leaf)| (g.value, *leaf)).collect();
        let target = |entry: &LookupEntry| by_value.get(&entry.value.as_deref()).copied().flatten();
        let words = decision_tree::words(self, &matcher.words, out);
        if let MatchMethod::Prefixes = matcher.how {
            let prefixes = matcher.entries.iter().map(|e| (*e, target(e).unwrap_or(default)));
            let intervals = lpm::intervals(prefixes, default);
            let (word, size) = words[0];
            let op = Op::Swap { kind: SwapKind::ToBe, bits: size.bits() as u8 };
            let word = self.value(out, op, &[word], Type::int(size.bits()));
            return decision_tree::intervals(self, (word, size), &intervals, out);
        }
        let rows = matcher.entries.iter().filter_map(|e| {
            let key = matcher
                .pieces
                .iter()
                .map(|p| read(&e.key, u32::from(p.offset), p.size, false).unwrap_or(0) as u64);
            Some(DecisionCase { key: key.collect(), heat: e.heat, target: target(e)? })
        });
        let mut rows: Vec<DecisionCase> = rows.collect();
        if let MatchMethod::Indices = matcher.how {
            rows.sort_by_key(|r| r.key[0]);
            let intervals = indices(&rows, default);
            return decision_tree::intervals(self, words[0], &intervals, out);
        }
        let mut seen = rustc_hash::FxHashSet::default();
        rows.retain(|r| seen.insert(r.key.clone()));
        decision_tree::exact(self, &words, rows, out, default);
    }
}
