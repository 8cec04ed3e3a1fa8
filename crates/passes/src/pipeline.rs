//! Which passes run, in which order.

use std::time::Instant;

use cranelift_entity::SecondaryMap;
use millstream_ir::verify::verify_function;
use millstream_ir::{Func, Function, Module};
use rustc_hash::FxHashMap;

use crate::effects::EffectSummaries;
use crate::effects::ModuleInfo;
use crate::manager::{FuncPass, ModulePass, Pass, PassContext, PassError, PassSession};
use crate::{control, ipo, memory, scalar, simplify, tables};

/// Every pass.
pub fn registry() -> impl Iterator<Item = Pass> {
    [tables::PASSES, scalar::PASSES, simplify::PASSES, control::PASSES, memory::PASSES, ipo::PASSES]
        .into_iter()
        .flatten()
        .copied()
}

/// The pass of this name.
pub fn find(name: &str) -> Option<Pass> {
    registry().find(|pass| pass.name() == name)
}

/// The default order. A pass that would see a function unchanged since its last fruitless run is skipped, so
/// that repetition costs nothing where there is nothing to do.
const DEFAULT: &[&str] = &[
    "lower-tables",
    "simplify-cfg",
    "split-stack",
    "mem2reg",
    "types",
    "params",
    "sccp",
    "simplify",
    "cursors",
    "gvn",
    "forward",
    "array-lookups",
    "dse",
    "merge-loads",
    "merge-stores",
    "packet-checks",
    "sccp",
    "simplify",
    "jump-threading",
    "simplify-cfg",
    "params",
    "gvn",
    "divide",
    "if-convert",
    "simplify",
    "hoist",
    "merge-blocks",
    "simplify-cfg",
    "atomic-adds",
    "dce",
];

/// An ordered list of passes.
#[derive(Clone, Debug)]
pub struct PassPipeline {
    passes: Vec<Pass>,
}

impl PassPipeline {
    /// The default pipeline.
    pub fn default_o2() -> PassPipeline {
        PassPipeline { passes: DEFAULT.iter().filter_map(|name| find(name)).collect() }
    }

    /// A pipeline of passes by name.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<PassPipeline, PassError> {
        let passes = names.into_iter().map(|n| find(n).ok_or_else(|| PassError::Unknown(n.to_string())));
        Ok(PassPipeline { passes: passes.collect::<Result<_, _>>()? })
    }

    /// The passes in order.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Runs the passes over a module; `true` if anything changed.
    ///
    /// # Errors
    /// With [`PassSession::verify`], if a pass has made the IR invalid.
    pub fn run(&self, module: &mut Module, session: &mut PassSession) -> Result<bool, PassError> {
        let mut state = PipelineState::new(module);
        let mut changed = false;
        for &pass in &self.passes {
            if pass.required() || !session.disabled.contains(pass.name()) {
                changed |= state.step(pass, module, session)?;
            }
        }
        Ok(changed)
    }
}

/// State kept between passes.
struct PipelineState {
    summaries: EffectSummaries,
    // Counts changes of a function.
    version: SecondaryMap<Func, u32>,
    // The version at which a pass last found nothing to do.
    settled: FxHashMap<(&'static str, Func), u32>,
}

impl PipelineState {
    fn new(module: &Module) -> PipelineState {
        PipelineState {
            summaries: EffectSummaries::new(module),
            version: SecondaryMap::new(),
            settled: FxHashMap::default(),
        }
    }

    fn step(
        &mut self,
        pass: Pass,
        module: &mut Module,
        session: &mut PassSession,
    ) -> Result<bool, PassError> {
        match pass {
            Pass::Func(pass) => {
                let ids: Vec<Func> = module.funcs.keys().collect();
                let mut changed = false;
                for id in ids {
                    changed |= self.function(pass, id, module, session)?;
                }
                Ok(changed)
            }
            Pass::Module(pass) => self.module(pass, module, session),
        }
    }

    fn module(
        &mut self,
        pass: &dyn ModulePass,
        module: &mut Module,
        session: &mut PassSession,
    ) -> Result<bool, PassError> {
        let start = Instant::now();
        let changed = pass.run(module, session);
        record(session, pass.name(), start);
        if changed {
            self.summaries = EffectSummaries::new(module);
            for (id, func) in &module.funcs {
                self.version[id] += 1;
                dump(session, pass.name(), func);
                verify(session, pass.name(), func, module)?;
            }
        }
        Ok(changed)
    }

    fn function(
        &mut self,
        pass: &dyn FuncPass,
        id: Func,
        module: &mut Module,
        session: &mut PassSession,
    ) -> Result<bool, PassError> {
        let version = self.version[id];
        let func = &mut module.funcs[id];
        if func.layout.is_empty() || self.settled.get(&(pass.name(), id)) == Some(&version) {
            return Ok(false);
        }
        let start = Instant::now();
        let info =
            ModuleInfo::of(&module.maps, &module.tables, &module.externs, &module.cores, &self.summaries);
        let changed = pass.run(func, &mut PassContext { info, session });
        record(session, pass.name(), start);
        if changed {
            self.version[id] += 1;
            dump(session, pass.name(), func);
        } else {
            self.settled.insert((pass.name(), id), version);
        }
        verify(session, pass.name(), &module.funcs[id], module)?;
        Ok(changed)
    }
}

fn verify(
    session: &PassSession,
    pass: &'static str,
    func: &Function,
    module: &Module,
) -> Result<(), PassError> {
    let errors = if session.verify { verify_function(func, module) } else { Vec::new() };
    if errors.is_empty() { Ok(()) } else { Err(PassError::Invalid { pass, errors }) }
}

fn record(session: &mut PassSession, name: &'static str, start: Instant) {
    let stat = session.stats.entry(name).or_default();
    stat.runs += 1;
    stat.time += start.elapsed();
}

fn dump(session: &mut PassSession, name: &'static str, func: &Function) {
    if let Some(hook) = &mut session.dump_after {
        hook(name, func);
    }
}
