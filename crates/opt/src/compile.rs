//! One way through the compiler: a pipeline, then the best form of each function.

use std::collections::BTreeSet;
use std::io::Write as _;

use cranelift_entity::EntityRef;
use millstream_bpf::lower::{self, BlockOrder, CodeLimits, LowerError, LoweredFunction, LoweringStrategy};
use millstream_bpf::module::{LiftedModule, new_function};
use millstream_ir::Func;
use millstream_isa::Insn;
use millstream_object::{FuncId, InitialValue, NewFunction, Object, RelocKind};
use millstream_passes::{DumpHook, Fuel, PassPipeline, PassSession, TargetInfo};

use crate::candidate_selector::{CandidateRank, CandidateSelector};
use crate::contract;
use crate::report;
use crate::trace::PassRecorder;
use crate::{FunctionOutcome, FunctionReport, LoweringChoice, OptError, OptimizationResult, OptimizeOptions};

/// Passes that only ever make code shorter.
const SHORTENING: &[&str] =
    &["simplify-cfg", "split-stack", "mem2reg", "params", "gvn", "dce", "simplify-cfg"];

/// Passes that move functions into their callers and remove them.
const INLINING: &[&str] = &["inline", "dead-functions"];

/// A function of this many slots is not lowered in all ways that there are.
const LONG: usize = 500;

/// Functions to be made, and what their forms are chosen by.
pub(crate) enum FunctionSelection<'a> {
    /// All but these, which have no code in the lifted module; each in its shortest form.
    Without(&'a BTreeSet<u32>),
    /// Those that a judge wants, in the forms that it likes best.
    Judged(&'a CandidateSelector<'a>),
}

impl FunctionSelection<'_> {
    fn includes(&self, function: u32) -> bool {
        match self {
            FunctionSelection::Without(others) => !others.contains(&function),
            FunctionSelection::Judged(judge) => judge.includes(function),
        }
    }
}

/// Optimizes functions of an object in one way.
pub(crate) fn compile_object(
    object: &Object,
    lifted: &LiftedModule,
    options: &OptimizeOptions,
    inline: bool,
    selected: &FunctionSelection<'_>,
) -> Result<OptimizationResult, OptError> {
    let target = options.target(object);
    let mut session = PassSession::new(target.clone());
    session.verify = options.verify_ir;
    session.rules.clone_from(&options.rules);
    session.fuel = options.fuel.map_or_else(Fuel::unlimited, Fuel::limited);
    for &number in &options.skip {
        session.fuel = session.fuel.skip(number);
    }
    let recorder = options.record.then(PassRecorder::default);
    session.dump_after = match &recorder {
        Some(recorder) => Some(recorder.hook()),
        None => options.dump_after.clone().map(dump_hook),
    };
    let mut start = lifted.clone();
    if let FunctionSelection::Judged(judge) = selected {
        session.disabled.extend(judge.left_out.map(str::to_owned));
        let others = start.module.funcs.iter_mut().filter(|(id, _)| !judge.includes(id.as_u32()));
        others.for_each(|(_, f)| f.layout.clear());
    }
    let begin = |form: &LiftedModule| recorder.iter().for_each(|r| r.begin(&form.module));
    begin(&start);
    if inline {
        PassPipeline::of(INLINING.iter().copied())?.run(&mut start.module, &mut session)?;
    }
    let pipeline = match options.passes.as_slice() {
        [] => PassPipeline::default_o2(),
        names => PassPipeline::of(names.iter().map(String::as_str))?,
    };
    let mut first = start.clone();
    pipeline.run(&mut first.module, &mut session)?;
    let promoted = match options.passes.is_empty() {
        true => {
            begin(&start);
            promoted(start, &pipeline, &mut session)?
        }
        false => None,
    };
    let mut forms = CandidateModules { object, lifted, target, inline, first, promoted, less: Vec::new() };
    let mut out = object.clone();
    let mut functions = Vec::with_capacity(object.functions.len());
    for i in 0..object.functions.len() {
        let id = FuncId(i as u32);
        functions.push(match selected {
            _ if !selected.includes(id.0) => forms.untouched(id),
            FunctionSelection::Judged(judge) => forms.judged(&mut out, id, options, judge)?,
            FunctionSelection::Without(_) => forms.replace(&mut out, id, options)?,
        });
    }
    keep_what_is_called(object, &out, &mut functions);
    remove(object, &mut out, &mut functions);
    for function in contract::changed_contracts(object, &out) {
        restore(object, &mut out, function as usize, &mut functions);
    }
    session.dump_after = None;
    Ok(OptimizationResult {
        object: out,
        functions,
        passes: report::passes(&session),
        rewrites: session.fuel.requested(),
        inline,
        touched: recorder.map(|r| r.finish(&lifted.lines)).unwrap_or_default(),
        fuel: session.fuel,
    })
}

/// Puts a global function whose contract has changed, and all functions that it refers to, back as they were.
fn restore(object: &Object, out: &mut Object, function: usize, reports: &mut [FunctionReport]) {
    for n in contract::reachable_functions(object, function) {
        out.functions[n] = object.functions[n].clone();
        let report = &mut reports[n];
        report.after = report.before;
        if !matches!(report.outcome, FunctionOutcome::NotUnderstood(_)) {
            report.outcome =
                if n == function { FunctionOutcome::Marked } else { FunctionOutcome::NothingToDo };
        }
    }
}

/// Keeps functions that were to go, for they were put into their callers, where a function that was left as
/// it was still refers to them; and what these refer to in turn. They stay as they were.
fn keep_what_is_called(object: &Object, out: &Object, functions: &mut [FunctionReport]) {
    let initial = |(_, value): &(u32, InitialValue)| match value {
        InitialValue::Program(id) => Some(id.index()),
        InitialValue::Map(_) => None,
    };
    let mut called: Vec<usize> = out.maps.iter().flat_map(|m| m.initial.iter().filter_map(initial)).collect();
    let stays = |f: &FunctionReport| f.outcome != FunctionOutcome::Removed;
    let mut work: Vec<usize> = (0..functions.len()).filter(|&i| stays(&functions[i])).collect();
    loop {
        while let Some(i) = work.pop() {
            called.extend(out.functions[i].relocs.iter().filter_map(|r| match r.kind {
                RelocKind::Call(id) | RelocKind::FuncAddr(id) if id.index() != i => Some(id.index()),
                _ => None,
            }));
        }
        for i in std::mem::take(&mut called) {
            if functions.get(i).is_some_and(|f| !stays(f)) {
                functions[i].outcome = FunctionOutcome::NothingToDo;
                functions[i].after = object.functions[i].insns.len();
                work.push(i);
            }
        }
        if work.is_empty() {
            return;
        }
    }
}

/// Removes the functions that nothing refers to any more, callers before callees. Those that refer to one
/// another in a circle stay as they were.
fn remove(object: &Object, out: &mut Object, functions: &mut [FunctionReport]) {
    let removed = |f: &FunctionReport| f.outcome == FunctionOutcome::Removed;
    let mut left: Vec<usize> = (0..functions.len()).filter(|&i| removed(&functions[i])).collect();
    loop {
        let before = left.len();
        left.retain(|&i| out.remove_function(FuncId(i as u32)).is_err());
        if left.len() == before {
            break;
        }
    }
    for i in left {
        functions[i].outcome = FunctionOutcome::NothingToDo;
        functions[i].after = object.functions[i].insns.len();
    }
}

/// A module after promotion of spilled addresses and then the pipeline, with the functions that have such.
fn promoted(
    mut form: LiftedModule,
    pipeline: &PassPipeline,
    session: &mut PassSession,
) -> Result<Option<(LiftedModule, BTreeSet<Func>)>, OptError> {
    PassPipeline::of(["simplify-cfg"])?.run(&mut form.module, session)?;
    let sizes = |form: &LiftedModule| -> Vec<(Func, usize)> {
        form.module.funcs.iter().map(|(id, f)| (id, f.insts_in_order().count())).collect()
    };
    let before = sizes(&form);
    if !PassPipeline::of(["promote-spills"])?.run(&mut form.module, session)? {
        return Ok(None);
    }
    // The spilled values are no longer stored.
    let changed = before.into_iter().zip(sizes(&form)).filter(|(was, is)| was != is).map(|((id, _), _)| id);
    let changed = changed.collect();
    pipeline.run(&mut form.module, session)?;
    Ok(Some((form, changed)))
}

fn dump_hook(wanted: String) -> DumpHook {
    Box::new(move |pass, func| {
        if wanted == "all" || wanted == pass {
            #[expect(clippy::disallowed_methods, reason = "asked for by who develops a pass")]
            let mut errors = std::io::stderr();
            // If standard error is closed, nothing is shown.
            let _ = writeln!(errors, "; after {pass}\n{func}");
        }
    })
}

/// The object's module after more and less optimization.
struct CandidateModules<'a> {
    object: &'a Object,
    /// As lifted.
    lifted: &'a LiftedModule,
    target: TargetInfo,
    inline: bool,
    /// After the whole pipeline.
    first: LiftedModule,
    /// After promotion of spilled addresses and the whole pipeline, where there are such: it does not pay
    /// everywhere.
    promoted: Option<(LiftedModule, BTreeSet<Func>)>,
    /// After parts of it, made when wanted, the most first.
    less: Vec<LiftedModule>,
}

/// Which module code comes from.
#[derive(Clone, Copy)]
enum CandidateKind {
    First,
    Promoted,
    Less(usize),
}

impl CandidateModules<'_> {
    fn lifted(&self, form: CandidateKind) -> &LiftedModule {
        match (form, &self.promoted) {
            (CandidateKind::Less(n), _) => &self.less[n],
            (CandidateKind::Promoted, Some((promoted, _))) => promoted,
            _ => &self.first,
        }
    }

    fn untouched(&self, id: FuncId) -> FunctionReport {
        let function = &self.object.functions[id.index()];
        let slots = function.insns.len();
        let outcome = FunctionOutcome::NothingToDo;
        FunctionReport { name: function.name.clone(), before: slots, after: slots, outcome }
    }

    fn replace(
        &mut self,
        out: &mut Object,
        id: FuncId,
        options: &OptimizeOptions,
    ) -> Result<FunctionReport, OptError> {
        let original = &self.object.functions[id.index()];
        let before = original.insns.len();
        let report = |after, outcome| FunctionReport { name: original.name.clone(), before, after, outcome };
        let func = Func::new(id.index());
        if let Some(why) = self.lifted.left.get(&func) {
            return Ok(report(before, FunctionOutcome::NotUnderstood(why.what.clone())));
        }
        if self.first.module.funcs[func].layout.is_empty() {
            return Ok(report(0, FunctionOutcome::Removed));
        }
        if options.leave.contains(&id.0) {
            return Ok(report(before, FunctionOutcome::Rejected));
        }
        let limits = CodeLimits::of(original, options.goal).on(self.target.kernels);
        let (code, form) = match self.best(func, limits, options)? {
            Ok(best) => best,
            Err(why) => return Ok(report(before, FunctionOutcome::Unsupported(why))),
        };
        if self.is_too_new(&code) {
            let why = "a jump is too far for the version of its instructions".to_owned();
            return Ok(report(before, FunctionOutcome::Unsupported(why)));
        }
        let after = code.slots();
        let new = new_function(self.lifted(form), &code);
        if new.insns == original.insns {
            return Ok(report(before, FunctionOutcome::NothingToDo));
        }
        if after > before && !options.keep_longer && !self.inline {
            return Ok(report(before, FunctionOutcome::NoGain { would_be: after }));
        }
        out.replace_function(id, new)?;
        Ok(report(after, FunctionOutcome::Rewritten))
    }

    /// Returns true if code has long jumps, and the kernels that take the original need not know them.
    fn is_too_new(&self, code: &LoweredFunction) -> bool {
        self.target.isa < 4 && code.insns.iter().any(|i| matches!(i, Insn::Jump { long: true, .. }))
    }

    /// Puts back the form of a function that is best by its judge.
    fn judged(
        &self,
        out: &mut Object,
        id: FuncId,
        options: &OptimizeOptions,
        judge: &CandidateSelector<'_>,
    ) -> Result<FunctionReport, OptError> {
        let original = &self.object.functions[id.index()];
        let (name, before) = (original.name.clone(), original.insns.len());
        let func = Func::new(id.index());
        let outcome = match self.first.module.funcs[func].layout.is_empty() {
            _ if self.lifted.left.contains_key(&func) => FunctionOutcome::NothingToDo,
            true => FunctionOutcome::Removed,
            false if options.leave.contains(&id.0) => FunctionOutcome::Rejected,
            false => FunctionOutcome::Rewritten,
        };
        if outcome == FunctionOutcome::Rewritten {
            let limits = CodeLimits::of(original, options.goal).on(self.target.kernels);
            let mut best: Option<(CandidateRank, NewFunction)> = None;
            let promoted = self.promoted.as_ref().filter(|(_, changed)| changed.contains(&func));
            for lifted in [Some(&self.first), promoted.map(|p| &p.0)].into_iter().flatten() {
                let mut good = |code: &LoweredFunction| {
                    if self.is_too_new(code) {
                        return false;
                    }
                    let new = new_function(lifted, code);
                    if out.replace_function(id, new.clone()).is_err() {
                        return false;
                    }
                    let rank = judge.rank(out, id.0);
                    let better = rank.filter(|rank| best.as_ref().is_none_or(|b| *rank < b.0));
                    best = better.map(|rank| (rank, new)).or(best.take());
                    better.is_some()
                };
                let function = &lifted.module.funcs[func];
                if judge.left_out.is_some() {
                    lower::lower_with(function, LoweringStrategy::default())
                        .iter()
                        .for_each(|code| _ = good(code));
                } else if before < LONG {
                    lower::lower_each(function, limits, &mut good);
                } else {
                    lower::lower_in_each_order(function, limits).iter().for_each(|code| _ = good(code));
                }
            }
            if let Some((_, new)) = best {
                out.replace_function(id, new)?;
            }
        }
        Ok(FunctionReport { name, before, after: out.functions[id.index()].insns.len(), outcome })
    }

    /// The best code of a function, with the form that it comes from.
    fn best(
        &mut self,
        func: Func,
        limits: CodeLimits,
        options: &OptimizeOptions,
    ) -> Result<Result<(LoweredFunction, CandidateKind), String>, OptError> {
        if let Some(&way) = options.ways.get(&func.as_u32()) {
            return self.in_one_way(func, limits, way);
        }
        let lowered = |f: &LiftedModule| lower::lower_within(&f.module.funcs[func], limits, BlockOrder::Best);
        let mut best =
            lowered(&self.first).map(|code| (code, CandidateKind::First)).map_err(|e| e.to_string());
        if let Some((form, _)) = self.promoted.as_ref().filter(|(_, changed)| changed.contains(&func)) {
            best = better(best, lowered(form), CandidateKind::Promoted, limits);
        }
        let good = best.as_ref().is_ok_and(|(code, _)| limits.are_met(code.length()));
        if good || !options.passes.is_empty() || options.fuel.is_some() {
            return Ok(best);
        }
        self.make_less()?;
        for (n, form) in self.less.iter().enumerate() {
            best = better(best, lowered(form), CandidateKind::Less(n), limits);
        }
        Ok(best)
    }

    /// The code of a function made in a given way.
    fn in_one_way(
        &mut self,
        func: Func,
        limits: CodeLimits,
        way: LoweringChoice,
    ) -> Result<Result<(LoweredFunction, CandidateKind), String>, OptError> {
        if way.form > 0 {
            self.make_less()?;
        }
        let form = way.form.checked_sub(1).map_or(CandidateKind::First, CandidateKind::Less);
        let code = lower::lower_within(&self.lifted(form).module.funcs[func], limits, way.order);
        Ok(code.map(|code| (code, form)).map_err(|e| e.to_string()))
    }

    /// The forms that went through less. Functions inlined in the first are inlined in them too, for they
    /// will be removed.
    fn make_less(&mut self) -> Result<(), OptError> {
        if !self.less.is_empty() {
            return Ok(());
        }
        for passes in [SHORTENING, &[]] {
            let ipo = if self.inline { INLINING } else { &[] };
            let names = ipo.iter().chain(passes).copied();
            let mut lifted = self.lifted.clone();
            PassPipeline::of(names)?.run(&mut lifted.module, &mut PassSession::new(self.target.clone()))?;
            self.less.push(lifted);
        }
        Ok(())
    }
}

/// The cheaper one of the best so far and another.
fn better(
    best: Result<(LoweredFunction, CandidateKind), String>,
    other: Result<LoweredFunction, LowerError>,
    form: CandidateKind,
    limits: CodeLimits,
) -> Result<(LoweredFunction, CandidateKind), String> {
    match (other, &best) {
        (Ok(code), Ok((b, _))) if limits.cost(code.length()) >= limits.cost(b.length()) => best,
        (Ok(code), _) => Ok((code, form)),
        (Err(_), _) => best,
    }
}
