//! From a module after its passes to machine code for maps that exist: LLVM's IR, LLVM, linking.

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::SecondaryMap;
use millstream_ir::{Func, Function, Map, Module, Table};
use millstream_plan::{CompiledSchedule, Schedule, TraversalCaching, TraversalReport};

use super::{CompileTimings, LlvmIrText, NativeError, NativeOptions};
use crate::batch_reordering;
use crate::crash::CodeDebugInfo;
use crate::emit::{CodegenUnit, MapCodegenInfo, ProgramExport, TableSearch, emit, reachable};
use crate::image::LineTable;
use crate::llvm::{LlvmCompiler, ObjectFile};
use crate::prefetch::{self, LookupHandling};
use crate::program::{CodeOwner, NativeProgram};
use crate::traversal_cache::{CacheCode, LookupStability, TraversalMaps, insert, traversals};
use millstream_native_runtime::helpers;
use millstream_native_runtime::packet::DescriptorLayout;

/// Properties of the supported maps of a module.
pub(super) type KnownMaps = SecondaryMap<Map, Option<MapCodegenInfo>>;

/// More code that an engine may get for its maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VariantSupport {
    /// None.
    #[default]
    None,
    /// Code that is exchanged for the engine's own ([`super::NativeEngine::exchange`]).
    Exchanged,
    /// The same, and code that workers take up while they run ([`super::NativeEngine::open_code_slot`]). Packets'
    /// descriptors have room for notes of all look-ups that a schedule may prefetch for.
    Installed,
}

/// Functions that others call.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryPoints<'f> {
    /// The program that batches run.
    Batch(Func),
    /// Functions of a pipeline, at least one. Each takes the state of a packet, its first byte and its end.
    Stages(&'f [Func]),
}

impl EntryPoints<'_> {
    fn first(self) -> Option<Func> {
        match self {
            EntryPoints::Batch(entry) => Some(entry),
            EntryPoints::Stages(stages) => stages.first().copied(),
        }
    }

    pub(super) fn stages(&self) -> &[Func] {
        match self {
            EntryPoints::Batch(_) => &[],
            EntryPoints::Stages(stages) => stages,
        }
    }
}

/// Properties of an engine that its code depends on.
pub(super) struct CodeTarget {
    pub(super) known: KnownMaps,
    pub(super) layout: DescriptorLayout,
    pub(super) matches: Arc<Vec<(Table, TableSearch)>>,
    /// Stability of the maps of the program, for caches of traversals.
    pub(super) stability: Arc<SecondaryMap<Map, LookupStability>>,
    /// Number of the code among all code for the same maps.
    pub(super) number: u64,
}

/// A module after the passes, and its functions with a part in its code.
pub(super) struct CodeSource<'m> {
    pub(super) module: &'m Module,
    pub(super) entries: EntryPoints<'m>,
    /// Programs that tail calls reach.
    pub(super) others: &'m [Func],
    /// The path to look-ups that are fetched for.
    pub(super) slice: Option<&'m Function>,
}

/// Machine code that is not yet linked.
pub(super) struct GeneratedCode {
    pub(super) schedule: CompiledSchedule,
    pub(super) object: ObjectFile,
    /// Loops over a batch, then programs that tail calls reach.
    pub(super) symbols: Vec<String>,
    pub(super) loops: usize,
    /// Names of places in the code.
    pub(super) names: Vec<String>,
    pub(super) timings: CompileTimings,
    pub(super) texts: Option<LlvmIrText>,
    compiler: LlvmCompiler,
}

/// Has LLVM compile; if there is an export, for others to link.
pub(super) fn generate(
    source: &CodeSource<'_>,
    target: &CodeTarget,
    options: &NativeOptions,
    export: Option<&ProgramExport>,
) -> Result<GeneratedCode, NativeError> {
    let &CodeSource { module, entries, others, slice } = source;
    let Some(entry) = entries.first() else {
        return Err(NativeError::Choose("the pipeline has no function".to_owned()));
    };
    let mut timings = CompileTimings::default();
    let start = Instant::now();
    let reads = |map| target.known[map].as_ref().is_some_and(|info| info.only_reads);
    let independent = &batch_reordering::independent(module, reachable(module, entry, others), &reads);
    let (cached, lookups) = match entries {
        EntryPoints::Batch(entry) => with_caches(module, entry, target, &options.schedule),
        EntryPoints::Stages(_) => (None, TraversalReport::default()),
    };
    let module = cached.as_ref().unwrap_or(module);
    let unit = CodegenUnit {
        module,
        maps: &target.known,
        entry,
        stages: entries.stages(),
        others,
        schedule: &options.schedule,
        layout: target.layout,
        independent,
        shared: options.workers > 1 || !options.lent.is_empty(),
        slice,
        matches: &target.matches,
        table: export,
        // Whoever links code with others has debug information of their own.
        located: export.is_none(),
    };
    let text = emit(&unit)?;
    timings.emit = start.elapsed();

    let compiler = LlvmCompiler::new(&helpers::symbols(), options.cpu.name())?;
    let start = Instant::now();
    let object = compiler.compile(&text, &options.llvm_passes, options.keep_text)?;
    timings.llvm = start.elapsed();
    timings.bytes = object.bytes.len();
    let texts = object.text.clone().map(|after| LlvmIrText { before: text, after });

    let schedule = CompiledSchedule { lookups, ..unit.in_force() };
    let (symbols, loops) = (unit.symbols(), unit.loops().len());
    let functions = module.funcs.values().map(|func| format!("function `{}`", func.name));
    let names = functions.chain(options.facts.places.iter().cloned()).collect();
    Ok(GeneratedCode { schedule, object, symbols, loops, names, timings, texts, compiler })
}

/// The module with caches of traversals in front of look-ups, if the schedule has some; and the report, also of those
/// that there could be.
fn with_caches(
    module: &Module,
    entry: Func,
    target: &CodeTarget,
    schedule: &Schedule,
) -> (Option<Module>, TraversalReport) {
    let (groups, lookups) = traversals(module, entry, &target.stability, schedule.traversals);
    let maps = TraversalMaps::of(module).filter(|_| schedule.traversals != TraversalCaching::Off);
    let Some(maps) = maps.filter(|_| !groups.is_empty()) else { return (None, lookups) };
    let declared = maps.entries.first().map_or(1, |entries| module.maps[*entries].max_entries);
    let code = CacheCode { maps: &maps, flows: schedule.flows.min(declared), number: target.number };
    let mut cached = module.clone();
    insert(&mut cached, entry, &groups, &code);
    (Some(cached), lookups)
}

impl GeneratedCode {
    /// Links it into this process. Returns the addresses of its symbols, and the owner of their memory.
    pub(super) fn link(&self) -> Result<(Vec<usize>, CodeOwner), NativeError> {
        let symbols: Vec<&str> = self.symbols.iter().map(String::as_str).collect();
        let (code, addresses) = self.compiler.link(&self.object, &symbols)?;
        Ok((addresses, CodeOwner::Linked { _code: code }))
    }

    /// Links it into this process as a program of batches, and adds the time for it.
    pub(super) fn link_program(&mut self) -> Result<NativeProgram, NativeError> {
        let start = Instant::now();
        let (addresses, owner) = self.link()?;
        let (lines, first) = LineTable::of_object(&self.object.bytes, &self.symbols[0])?;
        let names = std::mem::take(&mut self.names);
        let described = CodeDebugInfo { start: (addresses[0] as u64).wrapping_sub(first), lines, names };
        let program = NativeProgram::new(&addresses, self.loops, owner).with_debug_info(described);
        self.timings.link = start.elapsed();
        Ok(program)
    }
}

/// The path to look-ups in maps that are fetched for.
pub(super) fn way(module: &Module, entry: Func, maps: &KnownMaps) -> Option<Function> {
    prefetch::slice(&module.funcs[entry], &|map| match &maps[map] {
        Some(info) if info.ahead => LookupHandling::Fetched,
        Some(info) if info.only_reads => LookupHandling::Made,
        _ => LookupHandling::Left,
    })
}
