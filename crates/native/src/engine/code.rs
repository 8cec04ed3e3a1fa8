//! From a module to machine code: choice of the program, the passes, its maps, and LLVM.

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::SecondaryMap;
use millstream_bpf::module::{LiftedModule, func, makes_tail_calls};
use millstream_interp::{MapConfig, MapKind};
use millstream_ir::{Func, Function, Linkage, Module, Op};
use millstream_isa::helpers::id;
use millstream_object::{LineInfo, Object};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};

use super::variant::{VariantBuilder, VariantTarget};
use super::{CompileTimings, EngineMaps, LlvmIrText, NativeError, NativeOptions};
use crate::batch_reordering;
use crate::classifier::{self, ExpandedTables};
use crate::emit::{CodegenUnit, MapCodegenInfo, ProgramExport, emit, is_program, reachable};
use crate::fields::DescriptorFieldSet;
use crate::image::{HASHES, ImageMapSpec, InitialMapEntry};
use crate::llvm::{LlvmCompiler, ObjectFile};
use crate::prefetch::{self, LookupHandling};
use crate::runtime::helpers;
use crate::runtime::index::{HashTemplate, MOST_KEY};
use crate::runtime::maps::NativeMap;
use crate::runtime::packet::DescriptorLayout;
use crate::runtime::region::{AddressAllocator, ExternalMemory, FixedAddressBox};
use crate::runtime::sharing::SeqlockMap;
use crate::runtime::worker_epochs::WorkerEpochs;
use crate::templates::{TableHints, TableTemplate};
use millstream_plan::{CompiledSchedule, PrefetchPolicy, nearest};

/// `BPF_PROG_TYPE_XDP`.
pub(super) const XDP: u32 = 6;

/// Compiled code that is not yet linked.
pub(super) struct CompiledCode {
    pub(super) maps: EngineMaps,
    pub(super) epochs: Arc<WorkerEpochs>,
    pub(super) shapes: Vec<ImageMapSpec>,
    /// Initial contents of the maps that implement match tables.
    pub(super) initial: Vec<InitialMapEntry>,
    pub(super) layout: DescriptorLayout,
    pub(super) templates: Vec<TableTemplate>,
    pub(super) schedule: CompiledSchedule,
    pub(super) compiler: LlvmCompiler,
    pub(super) object: ObjectFile,
    /// Loops over a batch, then programs that tail calls reach.
    pub(super) symbols: Vec<String>,
    pub(super) loops: usize,
    /// Names of places in the code.
    pub(super) names: Vec<String>,
    pub(super) timings: CompileTimings,
    pub(super) texts: Option<LlvmIrText>,
    /// Compiler of more code for the same maps, if the engine is to have some.
    pub(super) variants: Option<VariantBuilder>,
}

/// The program with this name, or the only one of type XDP.
pub(super) fn choose(object: &Object, name: Option<&str>) -> Result<Func, NativeError> {
    let all = || object.programs.iter();
    let xdp: Vec<_> = all().filter(|p| p.kind.program_type.0 == XDP).collect();
    let names = || xdp.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    let chosen = match name {
        Some(name) => xdp.iter().find(|p| p.name == name),
        None if xdp.len() == 1 => xdp.first(),
        None => None,
    };
    match (chosen, name) {
        (Some(program), _) => Ok(func(program.func)),
        _ if xdp.is_empty() => Err(NativeError::Choose(format!("{:?} has no XDP program", object.name))),
        (None, Some(name)) => {
            Err(NativeError::Choose(format!("no XDP program {name:?}; there are: {}", names())))
        }
        (None, None) => Err(NativeError::Choose(format!("several XDP programs, choose one: {}", names()))),
    }
}

/// XDP programs of an object, in the order of their functions.
pub(super) fn reached_order(object: &Object) -> Vec<Func> {
    let mut all: Vec<Func> =
        object.programs.iter().filter(|p| p.kind.program_type.0 == XDP).map(|p| func(p.func)).collect();
    all.sort_unstable();
    all
}

/// The programs that a map of programs may hold: all of the module's XDP programs, if any function makes tail
/// calls.
pub(super) fn reached_by_tail_calls(module: &Module) -> Vec<Func> {
    if !module.funcs.values().any(makes_tail_calls) {
        return Vec::new();
    }
    let xdp = Linkage::Program { prog_type: XDP };
    module.funcs.keys().filter(|&f| is_program(module, f) && module.funcs[f].linkage == xdp).collect()
}

/// Layout of descriptors for a program that is not compiled.
pub(super) fn layout(
    mut module: Module,
    entry: Func,
    options: &NativeOptions,
) -> Result<DescriptorLayout, NativeError> {
    let expanded = optimize(&mut module, options)?;
    let entry = EntryPoints::Batch(entry);
    let place = MapPlacement::New(&mut AddressAllocator::Anywhere);
    Ok(CodegenInput::of(&module, entry, options, place, &expanded)?.layout)
}

/// Makes the export of a program from its maps, their initial contents, and its layout.
pub(super) type ExportBuilder<'d> =
    &'d dyn Fn(&[ImageMapSpec], &[InitialMapEntry], DescriptorLayout) -> ProgramExport;

/// Replaces match tables by code or maps, and runs the passes.
fn optimize(module: &mut Module, options: &NativeOptions) -> Result<ExpandedTables, NativeError> {
    let expanded = classifier::expand(module, &options.classifiers)?;
    run_passes(module, options)?;
    Ok(expanded)
}

/// Runs the passes on the IR.
pub(super) fn run_passes(module: &mut Module, options: &NativeOptions) -> Result<(), NativeError> {
    if options.passes {
        let mut session = PassSession::new(TargetInfo::native());
        session.disabled.extend(options.left_out.iter().cloned());
        PassPipeline::default_o2().run(module, &mut session)?;
    }
    Ok(())
}

/// Inputs of code generation, for a module after its passes.
struct CodegenInput {
    maps: EngineMaps,
    epochs: Arc<WorkerEpochs>,
    shapes: Vec<ImageMapSpec>,
    templates: Vec<TableTemplate>,
    /// Properties of the supported maps.
    known: SecondaryMap<millstream_ir::Map, Option<MapCodegenInfo>>,
    /// Programs that tail calls reach.
    others: Vec<Func>,
    /// The path to look-ups that are fetched for.
    slice: Option<Function>,
    layout: DescriptorLayout,
}

impl CodegenInput {
    /// Makes the maps, unless they exist, and lays out descriptors.
    fn of(
        module: &Module,
        entries: EntryPoints<'_>,
        options: &NativeOptions,
        place: MapPlacement<'_>,
        expanded: &ExpandedTables,
    ) -> Result<CodegenInput, NativeError> {
        let (tables, tries) = (&options.tables, &options.tries);
        let said = TableHints { tables, tries, prefixes: &options.prefixes, absent: &expanded.absent };
        let (mut shapes, mut templates): (Vec<ImageMapSpec>, _) = (Vec::new(), expanded.templates.clone());
        for (at, map) in module.maps.values().enumerate() {
            let (shape, chosen) = ImageMapSpec::of(at, map, &said);
            shapes.push(shape);
            templates.extend(chosen);
        }
        pinned(&shapes, tables, "hash table", &HASHES)?;
        roomy(&shapes)?;
        pinned(&shapes, tries, "trie", &[MapKind::LpmTrie])?;
        let epochs = Arc::new(WorkerEpochs::new(options.workers));
        let mut maps = EngineMaps::new();
        let all = match place {
            MapPlacement::New(place) => {
                maps = make_maps(&shapes, options.seed, &epochs, place)?;
                lend(&mut maps, &shapes, &options.lent, options.workers)?;
                &mut maps
            }
            MapPlacement::Existing(existing) => existing,
        };
        let changed = changed(module);
        named(all, options)?;
        let mut known = SecondaryMap::new();
        for (at, map) in module.maps.keys().zip(all) {
            let guarded = options.workers > 1 && changed[at];
            known[at] = map.as_mut().map(|map| MapCodegenInfo { guarded, ..info(map, options) });
        }
        let (others, slice, fields) = match entries {
            EntryPoints::Batch(entry) => {
                let others = reached_by_tail_calls(module);
                let fields = DescriptorFieldSet::of(module, others.iter().copied().chain([entry]));
                (others, way(module, entry, &known), fields)
            }
            EntryPoints::Stages(_) => (Vec::new(), None, DescriptorFieldSet::NONE),
        };
        let ahead = known.values().flatten().filter(|info: &&MapCodegenInfo| info.ahead).count();
        let layout = options.descriptors.layout(fields, if slice.is_some() { ahead } else { 0 });
        let layout = layout.copying(options.copies);
        Ok(CodegenInput { maps, epochs, shapes, templates, known, others, slice, layout })
    }
}

/// Maps of the code to make.
pub(super) enum MapPlacement<'m> {
    /// New ones, at these addresses.
    New(&'m mut AddressAllocator),
    /// Those of other code of the same module.
    Existing(&'m mut EngineMaps),
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

    fn stages(&self) -> &[Func] {
        match self {
            EntryPoints::Batch(_) => &[],
            EntryPoints::Stages(stages) => stages,
        }
    }
}

/// Runs the passes, makes the maps, and has LLVM compile; if `described`, makes code for others to link.
pub(super) fn make_code(
    mut module: Module,
    entries: EntryPoints<'_>,
    options: &NativeOptions,
    place: MapPlacement<'_>,
    described: Option<ExportBuilder<'_>>,
) -> Result<CompiledCode, NativeError> {
    let mut timings = CompileTimings::default();
    let Some(entry) = entries.first() else {
        return Err(NativeError::Choose("the pipeline has no function".to_owned()));
    };
    let start = Instant::now();
    let expanded = classifier::expand(&mut module, &options.classifiers)?;
    let before = (options.is_adaptable && entries.stages().is_empty()).then(|| module.clone());
    run_passes(&mut module, options)?;
    timings.passes = start.elapsed();
    let CodegenInput { maps, epochs, shapes, templates, known, others, slice, layout } =
        CodegenInput::of(&module, entries, options, place, &expanded)?;
    let ExpandedTables { initial, matches, .. } = expanded;

    let start = Instant::now();
    let (slice, shared) = (slice.as_ref(), options.workers > 1 || !options.lent.is_empty());
    let reads = |map| known[map].as_ref().is_some_and(|info: &MapCodegenInfo| info.only_reads);
    let independent = &batch_reordering::independent(&module, reachable(&module, entry, &others), &reads);
    let table = described.map(|described| described(&shapes, &initial, layout));
    let table = table.as_ref();
    // Whoever links code with others has debug information of their own.
    let located = table.is_none();
    let (module, maps_known) = (&module, &known);
    let unit = CodegenUnit {
        module,
        maps: maps_known,
        entry,
        stages: entries.stages(),
        others: &others,
        schedule: &options.schedule,
        layout,
        independent,
        shared,
        slice,
        matches: &matches,
        table,
        located,
    };
    let text = emit(&unit)?;
    timings.emit = start.elapsed();

    let compiler = LlvmCompiler::new(&helpers::symbols(), options.cpu.name())?;
    let start = Instant::now();
    let object = compiler.compile(&text, &options.llvm_passes, options.keep_text)?;
    timings.llvm = start.elapsed();
    timings.bytes = object.bytes.len();
    let texts = object.text.clone().map(|after| LlvmIrText { before: text, after });

    let (symbols, loops, schedule) = (unit.symbols(), unit.loops().len(), unit.in_force());
    let functions = module.funcs.values().map(|func| format!("function `{}`", func.name));
    let names = functions.chain(options.places.iter().cloned()).collect();
    let variants = before.map(|before| {
        let made = VariantTarget { known, layout, matches, initial: initial.clone() };
        VariantBuilder::new(before, entry, options.clone(), made)
    });
    Ok(CompiledCode {
        maps,
        epochs,
        shapes,
        initial,
        layout,
        templates,
        schedule,
        compiler,
        object,
        symbols,
        loops,
        names,
        timings,
        texts,
        variants,
    })
}

/// Names of the source places in line records.
pub(super) fn places(object: &Object, lifted: &LiftedModule) -> Vec<String> {
    let place = |line: &LineInfo| match &object.btf {
        Some(btf) => {
            let file = btf.str(line.file).rsplit('/').next().unwrap_or_default();
            format!("{file}:{}: {}", line.line, btf.str(line.text).trim())
        }
        None => "the program".to_owned(),
    };
    lifted.lines.iter().map(place).collect()
}

/// Checks that all maps whose template is pinned exist, and are of these kinds.
fn pinned<T>(
    shapes: &[ImageMapSpec],
    tables: &[(String, T)],
    what: &str,
    kinds: &[MapKind],
) -> Result<(), NativeError> {
    let is_one =
        |shape: &&ImageMapSpec| MapKind::from_number(shape.kind).is_some_and(|kind| kinds.contains(&kind));
    let there = || shapes.iter().filter(is_one).map(|shape| shape.name.as_str());
    match tables.iter().find(|(name, _)| !there().any(|known| known == name)) {
        None => Ok(()),
        Some((name, _)) => Err(NativeError::Choose(format!(
            "there is no {what} {name:?}; there are: {}",
            there().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// Checks that the places of hash tables have room for their keys.
fn roomy(shapes: &[ImageMapSpec]) -> Result<(), NativeError> {
    let has_none = |shape: &&ImageMapSpec| shape.template.has_keys() && !HashTemplate::fits(shape.key_size);
    match shapes.iter().find(has_none) {
        None => Ok(()),
        Some(ImageMapSpec { name, key_size, template, .. }) => Err(NativeError::Choose(format!(
            "hash table {name:?} has keys of {key_size} bytes, and places of `{}` room for {MOST_KEY} at \
             most; `{}` has hashes in its places, `{}` neither",
            template.name(),
            template.with_hashes().name(),
            template.with_slots().name()
        ))),
    }
}

/// Checks that all tables named by a schedule exist, and are of a kind whose look-ups can be fetched for.
fn named(maps: &mut EngineMaps, options: &NativeOptions) -> Result<(), NativeError> {
    let PrefetchPolicy::Tables(names) = &options.schedule.fetch else { return Ok(()) };
    let there: Vec<String> = maps
        .iter_mut()
        .flatten()
        .map(|map| map.get_mut())
        .filter(|map| options.inline_lookups && map.inline().is_some() && map.lookup_bytes().is_some())
        .map(|map| map.name().to_owned())
        .collect();
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    let Some(unknown) = names.iter().find(|name| !there.contains(&name.as_str())) else { return Ok(()) };
    let near = nearest(unknown, &there).map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default();
    Err(NativeError::Choose(format!(
        "fetch={unknown}: there is no such table whose look-ups can be fetched for{near}; there are: {}",
        there.join(", ")
    )))
}

/// Maps that the programs of a module insert into or remove from; all of them, if that is unknown.
fn changed(module: &Module) -> SecondaryMap<millstream_ir::Map, bool> {
    let mut changed = SecondaryMap::with_default(false);
    for func in module.funcs.values() {
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            match data.op {
                Op::MapUpdate { map, .. } | Op::MapDelete { map, .. } => changed[map] = true,
                Op::Helper { id: id::MAP_UPDATE_ELEM | id::MAP_DELETE_ELEM } => {
                    match data.args.first().and_then(|&map| func.def_op(map)) {
                        Some(Op::MapAddr { map }) => changed[*map] = true,
                        _ => return SecondaryMap::with_default(true),
                    }
                }
                _ => {}
            }
        }
    }
    changed
}

/// Empty maps.
pub(super) fn make_maps(
    shapes: &[ImageMapSpec],
    seed: u64,
    epochs: &Arc<WorkerEpochs>,
    place: &mut AddressAllocator,
) -> Result<EngineMaps, NativeError> {
    let numbered = shapes.iter().zip(1..);
    numbered.map(|(shape, number)| make(shape, seed.wrapping_mul(number), epochs, place)).collect()
}

/// Replaces the arrays of these names by arrays in shared memory.
fn lend(
    maps: &mut EngineMaps,
    shapes: &[ImageMapSpec],
    lent: &[(String, ExternalMemory)],
    workers: u32,
) -> Result<(), NativeError> {
    pinned(shapes, lent, "array", &[MapKind::Array])?;
    for (name, lent) in lent {
        let named = maps.iter_mut().flatten().map(|map| map.get_mut()).find(|map| map.name() == name);
        let Some(map) = named else { continue };
        let over = NativeMap::over(name, map.spec(), workers, lent);
        let short =
            || NativeError::Choose(format!("array {name:?} is longer than the memory that it is to have"));
        *map = over.ok_or_else(short)?;
    }
    Ok(())
}

/// An empty map; `None` for an unsupported type.
fn make(
    shape: &ImageMapSpec,
    seed: u64,
    epochs: &Arc<WorkerEpochs>,
    place: &mut AddressAllocator,
) -> Result<Option<FixedAddressBox<SeqlockMap>>, NativeError> {
    let Some(kind) = MapKind::from_number(shape.kind) else { return Ok(None) };
    let ImageMapSpec { key_size, value_size, max_entries, flags, .. } = *shape;
    let spec = MapConfig { kind, key_size, value_size, max_entries, flags };
    let workers = epochs.workers();
    let map = NativeMap::new(&shape.name, spec, workers, (seed, shape.template, shape.trie), place).and_then(
        |mut map| {
            if workers > 1 {
                map.share(epochs);
            }
            FixedAddressBox::new(SeqlockMap::new(map, workers), place)
        },
    );
    map.map(Some).map_err(|source| NativeError::Memory { map: shape.name.clone(), source })
}

/// The path to look-ups in maps that are fetched for.
pub(super) fn way(
    module: &Module,
    entry: Func,
    maps: &SecondaryMap<millstream_ir::Map, Option<MapCodegenInfo>>,
) -> Option<Function> {
    prefetch::slice(&module.funcs[entry], &|map| match &maps[map] {
        Some(info) if info.ahead => LookupHandling::Fetched,
        Some(info) if info.only_reads => LookupHandling::Made,
        _ => LookupHandling::Left,
    })
}

fn info(map: &mut FixedAddressBox<SeqlockMap>, options: &NativeOptions) -> MapCodegenInfo {
    let address = map.address();
    let map = map.get_mut();
    let inline = map.inline().filter(|_| options.inline_lookups);
    let lookup_bytes = map.lookup_bytes();
    MapCodegenInfo {
        ahead: inline.is_some()
            && lookup_bytes.is_some_and(|bytes| options.schedule.fetches(map.name(), bytes).0),
        lookup_bytes: lookup_bytes.unwrap_or(0),
        inline,
        targets: map.targets(),
        first_value: map.first_value(),
        only_reads: map.lookup_only_reads(),
        key_size: map.spec().key_size,
        value_size: map.value_size() as u32,
        guarded: false,
        own: map.own(),
        address,
    }
}
