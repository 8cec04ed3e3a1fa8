//! Copies of lookups: their keys, as far as they are known, and results that are known without a call.

use millstream_ir::{
    Block, BlockCall, Cond, Inst, KeyLayout, KeyPiece, Map, MemFlags, Op, Prov, Type, Value, Width,
};
use millstream_isa::helpers::id;
use smallvec::SmallVec;

use cranelift_entity::EntityRef;

use super::abstract_key::{AbstractKey, KeyKnown, KeySource, constant_pieces, key_bytes};
use super::eval::{AbstractValue, LookupValue, MergeId, MergedField, ValueAddress, ValueBytes, read};
use super::key_tests;
use super::partial_eval::{
    AbstractEnv, BlockContinuation, CopyPosition, PartialEvaluator, is_single, pieces_of, too_deep,
};
use super::plan::SiteReport;
use super::planned_lookup::PlannedLookup;
use super::site::{LookupInst, LookupKey, SiteId};
use super::stack_key::{self, StoredPiece};

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
                if let Some(plan) = self.planned(inst, map).filter(|_| may)
                    && let KeySource::Values(layout, args) | KeySource::Stack(_, layout, args) = &key.given
                {
                    let lookup = PlannedLookup { site: plan.site, inst, map, key: &key, layout, args, at };
                    if let Some(flow) = plan.lookup.specialization().emit(self, &lookup, env) {
                        return flow;
                    }
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

    pub(super) fn is_outer(&self, map: Map) -> bool {
        self.original.module.maps[map].inner.is_some()
    }

    /// Finds the source of the address of a value that is known to exist; also returns the block to continue
    /// in.
    ///
    /// A lookup made for the address alone may still find nothing, if the map is changed just then: that path
    /// is copied too.
    pub(super) fn address_of(
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

    /// Adds to the report of a site.
    pub(super) fn note(&mut self, site: SiteId, new: SiteReport) {
        match self.report.sites.iter_mut().find(|(id, _)| *id == site) {
            Some((_, sum)) => {
                sum.entries = sum.entries.max(new.entries);
                sum.copies += new.copies;
                sum.merged += new.merged;
                sum.dropped += new.dropped;
            }
            None => self.report.sites.push((site, new)),
        }
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
}
