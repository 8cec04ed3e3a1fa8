//! The specialised variant: a guard, then a copy of the function for what is known, then the original.

use cranelift_entity::{EntityRef, PrimaryMap};
use millstream_ir::{
    Block, BlockCall, Cfg, Cond, DomTree, Func, Function, Inst, MemFlags, Module, Op, Prov, Size, Type,
    Value, Width,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::copy::{At, Copier, Env};
use super::error::TransformError;
use super::eval::{Abs, Fields};
use super::plan::{Contents, Fallback, Guard, Lookup, Plan, Report, SitePlan, Unknown};
use super::site::sites;
use super::twin::Twin;

const TAIL_CALL: i32 = 12;
const ARRAY: u32 = 2;

/// Replaces a prepared function by its variant for a plan.
///
/// # Errors
/// If the plan does not fit the module, or the function cannot be copied in parts. Nothing has changed then.
pub fn specialize(
    module: &mut Module,
    func: Func,
    plan: &Plan,
    contents: &dyn Contents,
) -> Result<Report, TransformError> {
    let by_inst = check(module, func, plan)?;
    let src = &module.funcs[func];
    let cfg = Cfg::new(src);
    let dom = DomTree::new(src, &cfg);
    Copier::check_reducible(&cfg, &dom)?;
    let mut addressed = FxHashSet::default();
    // Each round finds at least one more lookup that must be made, and there are only so many.
    let (out, report) = loop {
        let mut copier = Copier {
            src,
            module,
            cfg: cfg.clone(),
            dom: dom.clone(),
            plan,
            contents,
            sites: by_inst.clone(),
            out: shell(src),
            known: PrimaryMap::new(),
            merges: PrimaryMap::new(),
            fields: Fields::default(),
            regions: Vec::new(),
            addressed: &addressed,
            missing: Vec::new(),
            active: true,
            report: Report::default(),
            limit: plan.budget.code,
            loc: u32::MAX,
        };
        copier.variant();
        let missing = std::mem::take(&mut copier.missing);
        if missing.is_empty() {
            break (copier.out, copier.report);
        }
        addressed.extend(missing);
    };
    module.funcs[func] = out;
    Ok(report)
}

/// Whether the plan fits the module; the sites by their instructions.
fn check<'p>(
    module: &Module,
    func: Func,
    plan: &'p Plan,
) -> Result<FxHashMap<Inst, &'p SitePlan>, TransformError> {
    if let Some(guard) = &plan.guard {
        let unfit = |what| Err(TransformError::UnfitMap { map: guard.map, what });
        match module.maps.get(guard.map) {
            Some(d) if d.kind != ARRAY || d.max_entries != 1 => return unfit("it is no array of one entry"),
            Some(d) if guard.offset % 8 != 0 || guard.offset.saturating_add(8) > d.value_size => {
                return unfit("the version does not lie in its value");
            }
            Some(_) => {}
            None => return unfit("it does not exist"),
        }
    }
    let all = sites(module, func);
    let mut by_inst = FxHashMap::default();
    for site in &plan.sites {
        let found = all.iter().find(|s| s.id == site.site).ok_or(TransformError::NoSuchSite(site.site))?;
        let decl = &module.maps[found.map];
        if let Lookup::Twin { map, .. } = site.lookup
            && module.maps.get(map).and_then(Twin::room).is_none()
        {
            return Err(TransformError::UnfitMap { map, what: "it has no room for a twin" });
        }
        if let Lookup::Hot(entries) | Lookup::Whole(entries) | Lookup::Twin { hot: entries, .. } =
            &site.lookup
        {
            if !found.is_comparable() {
                return Err(TransformError::NotComparable(site.site));
            }
            let fits = |size: usize, want: u32| size == want as usize;
            let fit = entries.iter().all(|e| {
                let value = e.value.as_ref().is_none_or(|v| fits(v.len(), decl.value_size));
                fits(e.key.len(), decl.key_size) && value
            });
            if !fit {
                return Err(TransformError::EntrySize(site.site));
            }
        }
        by_inst.insert(found.inst, site);
    }
    Ok(by_inst)
}

/// The function without its code.
fn shell(src: &Function) -> Function {
    let mut out = Function::new(src.name.clone(), src.linkage.clone());
    out.returns = src.returns;
    out.slots = src.slots.clone();
    out.locs = src.locs.clone();
    out
}

impl Copier<'_> {
    /// Fills `out` with guard, specialised copy and original.
    fn variant(&mut self) {
        let entry = self.out.add_block();
        let root = self.src.entry();
        let mut env: Env = vec![Abs::None; self.src.defs.len()];
        for &param in &self.src.blocks[root].params {
            let value = self.out.add_param(entry, self.src.types[param]);
            env[param.index()] = Abs::Val(value);
        }
        let plan = self.plan;
        let Some(guard) = &plan.guard else {
            self.region(At { block: root, next: 0, out: entry }, env);
            return;
        };
        let (fast, stale) = (self.out.add_block(), self.out.add_block());
        self.guard(guard, entry, fast, stale);
        self.region(At { block: root, next: 0, out: fast }, env.clone());
        let stale = self.tail_call(stale);
        self.active = false;
        self.contents = &Unknown;
        self.region(At { block: root, next: 0, out: stale }, env);
    }

    fn guard(&mut self, guard: &Guard, entry: Block, fast: Block, stale: Block) {
        let Guard { map, offset, version } = *guard;
        let ty = Type::Ptr(Prov::MapValue(map));
        let address = self.value(entry, Op::MapValueAddr { map, offset }, &[], ty);
        let load = Op::Load { size: Size::Dw, sext: false, offset: 0, flags: volatile() };
        let now = self.value(entry, load, &[address], Type::I64);
        let expected = self.value(entry, Op::Const { value: version as i64 }, &[], Type::I64);
        let op = Op::Branch { cond: Cond::Ne, width: Width::W64 };
        let targets = [BlockCall::new(stale), BlockCall::new(fast)];
        self.emit(entry, op, &[now, expected], &targets, Type::Any);
    }

    /// Leaves for the original, if that is how; the block in which to go on where that fails.
    fn tail_call(&mut self, stale: Block) -> Block {
        let Fallback::TailCall { map, index } = self.plan.fallback else { return stale };
        let Some(&ctx) = self.out.blocks[self.out.entry()].params.first() else { return stale };
        let array = self.value(stale, Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)));
        let index = self.value(stale, Op::Const { value: i64::from(index) }, &[], Type::I64);
        let args: [Value; 3] = [ctx, array, index];
        self.value(stale, Op::Helper { id: TAIL_CALL }, &args, Type::Any);
        stale
    }
}

/// The guard's word changes under the program.
fn volatile() -> MemFlags {
    MemFlags { core: None, volatile: true }
}
