//! The specialised variant: a guard, then a copy of the function for what is known, then the original.

use cranelift_entity::{EntityRef, SecondaryMap};
use millstream_ir::{
    AluOp, AtomicOp, Block, BlockCall, Cfg, Cond, DomTree, Func, Function, Inst, MapDecl, Module, Op, Prov,
    Size, Type, Value, Width,
};
use millstream_isa::MapType;
use millstream_isa::helpers::id;
use rustc_hash::{FxHashMap, FxHashSet};

use super::entry_cache::count_callees;
use super::error::TransformError;
use super::eval::AbstractValue;
use super::key_tests::check_tests;
use super::lookup_plan::LookupEntry;
use super::partial_eval::{
    AbstractEnv, AddressNeeds, CacheState, CopiedLookups, CopyMode, CopyPosition, EvaluationPlans,
    InnerSitePlans, OriginalFunction, PartialEvaluator,
};
use super::plan::{
    FallbackTailCall, GuardCheck, InnerSitePlan, MapContents, NamedInnerMap, SitePlan, SpecializationPlan,
    TransformReport, UnknownContents,
};
use super::site::{LookupSite, of_shape, sites};
use super::volatile::{volatile, volatile_load};

/// Replaces a prepared function by its variant for a plan.
///
/// # Errors
/// If the plan does not fit the module, or the function cannot be copied in parts. Nothing has changed then.
pub fn specialize(
    module: &mut Module,
    func: Func,
    plan: &SpecializationPlan,
    contents: &dyn MapContents,
) -> Result<TransformReport, TransformError> {
    let all = sites(module, func, plan.first_site);
    let by_inst = check(module, &all, plan)?;
    let within = check_within(module, &all, plan)?;
    let tests = check_tests(module, func, &all, plan)?;
    let src = &module.funcs[func];
    let cfg = Cfg::new(src);
    let dom = DomTree::new(src, &cfg);
    PartialEvaluator::check_reducible(&cfg, &dom)?;
    let mut addressed = FxHashSet::default();
    // Each round finds at least one more lookup that must be made, and there are only so many.
    let (out, report) = loop {
        let mut copier = PartialEvaluator {
            original: OriginalFunction { src, module, cfg: cfg.clone(), dom: dom.clone() },
            plans: EvaluationPlans {
                plan,
                contents,
                sites: by_inst.clone(),
                within: within.clone(),
                tests: tests.clone(),
            },
            assumed: FxHashMap::default(),
            out: shell(src),
            preds: SecondaryMap::new(),
            lookups: CopiedLookups::default(),
            regions: Vec::new(),
            addresses: AddressNeeds { addressed: &addressed, missing: Vec::new() },
            mode: CopyMode { active: true, late: false, plain: false },
            report: TransformReport::default(),
            limit: plan.budget.code,
            token: None,
            forced: FxHashMap::default(),
            source: src.entry(),
            caching: CacheState::default(),
            loc: u32::MAX,
        };
        variant(&mut copier);
        let missing = std::mem::take(&mut copier.addresses.missing);
        if missing.is_empty() {
            break (copier.out, copier.report);
        }
        addressed.extend(missing);
    };
    module.funcs[func] = out;
    plan.caches.iter().for_each(|cache| count_callees(module, cache));
    Ok(report)
}

/// Checks that the plan fits the module; returns the sites by their instructions.
fn check<'p>(
    module: &Module,
    all: &[LookupSite],
    plan: &'p SpecializationPlan,
) -> Result<FxHashMap<Inst, &'p SitePlan>, TransformError> {
    if let Some(guard) = &plan.guard {
        check_guard(module, guard)?;
    }
    if let Some(cache) = plan.caches.iter().find(|c| !c.fits(&module.maps)) {
        return Err(TransformError::UnfitMap { map: cache.place, what: "it has no room for a cache" });
    }
    let unlike = |i: &&NamedInnerMap| {
        let template = module.maps.get(i.outer).and_then(|outer| outer.inner);
        template.is_none_or(|template| !of_shape(module, template).any(|map| map == i.place))
    };
    if let Some(inside) = plan.inside.iter().find(unlike) {
        return Err(TransformError::UnfitMap {
            map: inside.place,
            what: "it is no map that could be inside",
        });
    }
    let mut by_inst = FxHashMap::default();
    for site in &plan.sites {
        let found = all.iter().find(|s| s.id == site.site).ok_or(TransformError::NoSuchSite(site.site))?;
        let decl = &module.maps[found.map];
        site.lookup.specialization().check(module, found, plan)?;
        check_entries(found, site, decl)?;
        let is_named =
            |e: &LookupEntry| e.value.as_ref().is_none_or(|id| plan.inside(found.map, id).is_some());
        if decl.inner.is_some() && !site.lookup.entries().iter().all(is_named) {
            return Err(TransformError::UnfitMap { map: found.map, what: "nothing stands for a map inside" });
        }
        by_inst.insert(found.inst, site);
    }
    Ok(by_inst)
}

/// Checks that the entries planned for a lookup can be compared with its key, and have the sizes of its map.
fn check_entries(found: &LookupSite, plan: &SitePlan, decl: &MapDecl) -> Result<(), TransformError> {
    let Some(entries) = plan.lookup.specialization().entries() else { return Ok(()) };
    if !found.is_comparable() {
        return Err(TransformError::NotComparable(plan.site));
    }
    let fits = |size: usize, want: u32| size == want as usize;
    let fit = entries.iter().all(|e| {
        let value = e.value.as_ref().is_none_or(|v| fits(v.len(), decl.value_size));
        fits(e.key.len(), decl.key_size) && value
    });
    if fit { Ok(()) } else { Err(TransformError::EntrySize(plan.site)) }
}

/// The plans for lookups in inner maps that have names, by instruction and name.
fn check_within<'p>(
    module: &Module,
    all: &[LookupSite],
    plan: &'p SpecializationPlan,
) -> Result<InnerSitePlans<'p>, TransformError> {
    let mut within = InnerSitePlans::default();
    for InnerSitePlan { place, plan: site } in &plan.within {
        let found = all.iter().find(|s| s.id == site.site).ok_or(TransformError::NoSuchSite(site.site))?;
        let is_named = plan.inside.iter().any(|i| i.place == *place);
        let is_alike = found.is_inner && of_shape(module, found.map).any(|map| map == *place);
        let is_whole = site.lookup.specialization().answers_all();
        if !is_named || !is_alike || !is_whole {
            let what = "no inner map that is looked up there has its name";
            return Err(TransformError::UnfitMap { map: *place, what });
        }
        check_entries(found, site, &module.maps[*place])?;
        within.insert((found.inst, *place), site);
    }
    Ok(within)
}

fn check_guard(module: &Module, guard: &GuardCheck) -> Result<(), TransformError> {
    let unfit = |what| Err(TransformError::UnfitMap { map: guard.map, what });
    let Some(decl) = module.maps.get(guard.map) else { return unfit("it does not exist") };
    if decl.kind != MapType::ARRAY.0 || decl.max_entries != 1 {
        return unfit("it is no array of one entry");
    }
    let standby = guard.stand_in.map(|s| s.offset);
    let mut words = [Some(guard.offset), guard.first_packet, guard.missed, standby].into_iter().flatten();
    if words.any(|at| at % 8 != 0 || at.saturating_add(8) > decl.value_size) {
        return unfit("the version does not lie in its value");
    }
    if !guard.sides.is_power_of_two() {
        return unfit("its sides are not a power of two");
    }
    if let Some(FallbackTailCall { array, .. }) = guard.stand_in
        && module.maps.get(array).is_none_or(|decl| decl.kind != MapType::PROG_ARRAY.0)
    {
        return Err(TransformError::UnfitMap { map: array, what: "it is no program array" });
    }
    Ok(())
}

/// The function without its code.
fn shell(src: &Function) -> Function {
    let mut out = Function::new(src.name.clone(), src.linkage.clone());
    out.returns = src.returns;
    out.slots = src.slots.clone();
    out.locs = src.locs.clone();
    out
}

/// Fills `out` with guard, specialised copy and original.
fn variant(evaluator: &mut PartialEvaluator<'_>) {
    let entry = evaluator.out.add_block();
    let root = evaluator.original.src.entry();
    let mut env: AbstractEnv = vec![AbstractValue::None; evaluator.original.src.defs.len()];
    for &param in &evaluator.original.src.blocks[root].params {
        let value = evaluator.out.add_param(entry, evaluator.original.src.types[param]);
        env[param.index()] = AbstractValue::Val(value);
    }
    let plan = evaluator.plans.plan;
    let Some(guard) = &plan.guard else {
        evaluator.region(CopyPosition { block: root, next: 0, out: entry }, env);
        return;
    };
    let (fast, stale) = (evaluator.out.add_block(), evaluator.out.add_block());
    let (words, now) = check_state(evaluator, guard, entry, fast, stale);
    let (fast, stamp) = stamped(evaluator, guard, words, fast);
    evaluator.region(CopyPosition { block: root, next: 0, out: fast }, env.clone());
    let stale = stand_in(evaluator, guard, now, stale);
    count_missed(evaluator, guard, stale);
    evaluator.mode.active = false;
    evaluator.plans.contents = &UnknownContents;
    evaluator.region(CopyPosition { block: root, next: 0, out: stale }, env);
    // The layout decides what falls through: what is hardly ever done goes last.
    if let Some(stamp) = stamp {
        evaluator.out.layout.retain(|&b| b != stamp);
        evaluator.out.layout.push(stamp);
    }
}

/// Compares the token. Returns the address of the guard's words, and the generation that may run.
fn check_state(
    evaluator: &mut PartialEvaluator<'_>,
    guard: &GuardCheck,
    entry: Block,
    fast: Block,
    stale: Block,
) -> (Value, Value) {
    let words = evaluator.guard_word(guard, 0, entry);
    let generation = evaluator.constant(guard.generation.into(), entry);
    let whole = guard.sides > 1 || !evaluator.plans.plan.spared.is_empty();
    let now = if whole {
        let token = evaluator.value(entry, volatile_load(guard.offset), &[words], Type::I64);
        evaluator.token = Some(token);
        evaluator.by(AluOp::Rsh, token, 32, entry)
    } else {
        let offset = guard.offset as i32 + 4;
        let half = Op::Load { size: Size::W, sext: false, offset, flags: volatile() };
        evaluator.value(entry, half, &[words], Type::I32)
    };
    let targets = [BlockCall::new(stale), BlockCall::new(fast)];
    let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
    evaluator.emit(entry, branch, &[now, generation], &targets, Type::Any);
    (words, now)
}

/// Records the time of the first packet: a load and a branch. Returns the block to continue in, and the
/// one that writes.
fn stamped(
    evaluator: &mut PartialEvaluator<'_>,
    guard: &GuardCheck,
    words: Value,
    fast: Block,
) -> (Block, Option<Block>) {
    let Some(offset) = guard.first_packet else { return (fast, None) };
    let (stamp, on) = (evaluator.out.add_block(), evaluator.out.add_block());
    let time = evaluator.value(fast, volatile_load(offset), &[words], Type::I64);
    let zero = evaluator.constant(0, fast);
    let branch = Op::Branch { cond: Cond::Eq, width: Width::W64 };
    let targets = [BlockCall::new(stamp), BlockCall::new(on)];
    evaluator.emit(fast, branch, &[time, zero], &targets, Type::Any);
    let now = evaluator.value(stamp, Op::Helper { id: id::KTIME_GET_NS }, &[], Type::I64);
    let store = Op::Store { size: Size::Dw, offset: offset as i32, flags: volatile() };
    evaluator.emit(stamp, store, &[words, now], &[], Type::Any);
    evaluator.emit(stamp, Op::Jump {}, &[], &[BlockCall::new(on)], Type::Any);
    (on, Some(stamp))
}

fn count_missed(evaluator: &mut PartialEvaluator<'_>, guard: &GuardCheck, stale: Block) {
    let Some(offset) = guard.missed else { return };
    let address = evaluator.guard_word(guard, offset, stale);
    let one = evaluator.constant(1, stale);
    let add = Op::Atomic { op: AtomicOp::Add, size: Size::Dw, offset: 0 };
    evaluator.emit(stale, add, &[address, one], &[], Type::Any);
}

/// Passes the packet to the stand-in generation, if that is the one that may run `now`. Returns the block
/// to continue in if it is not, or if the call fails.
fn stand_in(evaluator: &mut PartialEvaluator<'_>, guard: &GuardCheck, now: Value, stale: Block) -> Block {
    let Some(FallbackTailCall { array, offset }) = guard.stand_in else { return stale };
    let Some(&ctx) = evaluator.out.blocks[evaluator.out.entry()].params.first() else { return stale };
    let (call, on) = (evaluator.out.add_block(), evaluator.out.add_block());
    let words = evaluator.guard_word(guard, offset, stale);
    let half = |at| Op::Load { size: Size::W, sext: false, offset: at, flags: volatile() };
    let generation = evaluator.value(stale, half(4), &[words], Type::I32);
    let branch = Op::Branch { cond: Cond::Eq, width: Width::W64 };
    let targets = [BlockCall::new(call), BlockCall::new(on)];
    evaluator.emit(stale, branch, &[now, generation], &targets, Type::Any);
    // No constant: the kernel would have to change machine code for each program that it puts there.
    let slot = evaluator.value(call, half(0), &[words], Type::I32);
    let array = evaluator.value(call, Op::MapAddr { map: array }, &[], Type::Ptr(Prov::Map(array)));
    let args: [Value; 3] = [ctx, array, slot];
    evaluator.value(call, Op::Helper { id: id::TAIL_CALL }, &args, Type::Any);
    evaluator.emit(call, Op::Jump {}, &[], &[BlockCall::new(on)], Type::Any);
    on
}
