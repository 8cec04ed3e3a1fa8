//! From a module to machine code: choice of the program, the passes, its maps, and LLVM.

use std::sync::Arc;
use std::time::Instant;

use cranelift_entity::SecondaryMap;
use millstream_bpf::module::{LiftedModule, func, makes_tail_calls};
use millstream_interp::{MapConfig, MapKind};
use millstream_ir::{Func, Function, Linkage, Map, Module, Op};
use millstream_isa::helpers::id;
use millstream_object::{LineInfo, Object};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};

use super::generate::{
    CodeSource, CodeTarget, EntryPoints, GeneratedCode, KnownMaps, VariantSupport, generate, way,
};
use super::{EngineMaps, NativeError, NativeOptions};
use crate::classifier::{self, ExpandedTables};
use crate::emit::{MapCodegenInfo, ProgramExport, is_program};
use crate::image::{HASHES, ImageMapSpec, InitialMapEntry};
use crate::templates::{TableHints, TableTemplate};
use crate::traversal_cache::{self, LookupStability, TraversalMaps};
use millstream_native_runtime::fields::DescriptorFieldSet;
use millstream_native_runtime::index::{HashTemplate, MOST_KEY};
use millstream_native_runtime::maps::NativeMap;
use millstream_native_runtime::packet::DescriptorLayout;
use millstream_native_runtime::region::{AddressAllocator, ExternalMemory, FixedAddressBox};
use millstream_native_runtime::sharing::SeqlockMap;
use millstream_native_runtime::worker_epochs::WorkerEpochs;
use millstream_plan::{PrefetchPolicy, Schedule, TraversalCaching, nearest};

/// `BPF_PROG_TYPE_XDP`.
pub(super) const XDP: u32 = 6;

/// Compiled code that is not yet linked, with its maps.
pub(super) struct CompiledCode {
    pub(super) maps: EngineMaps,
    pub(super) epochs: Arc<WorkerEpochs>,
    pub(super) shapes: Vec<ImageMapSpec>,
    /// Initial contents of the maps that implement match tables.
    pub(super) initial: Vec<InitialMapEntry>,
    pub(super) layout: DescriptorLayout,
    pub(super) templates: Vec<TableTemplate>,
    pub(super) generated: GeneratedCode,
    /// Source of more code for the same maps, if the engine is to have some.
    pub(super) variants: Option<VariantSource>,
}

/// A program before the passes, with what code for its maps depends on.
pub(super) struct VariantSource {
    pub(super) module: Module,
    pub(super) target: CodeTarget,
    /// Initial contents of its maps.
    pub(super) initial: Vec<InitialMapEntry>,
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
    Ok(CodegenInput::of(&module, entry, options, &mut AddressAllocator::Anywhere, &expanded)?.layout)
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
    known: KnownMaps,
    /// Programs that tail calls reach.
    others: Vec<Func>,
    /// The path to look-ups that are fetched for.
    slice: Option<Function>,
    layout: DescriptorLayout,
    stability: SecondaryMap<Map, LookupStability>,
}

impl CodegenInput {
    /// Makes the maps and lays out descriptors.
    fn of(
        module: &Module,
        entries: EntryPoints<'_>,
        options: &NativeOptions,
        place: &mut AddressAllocator,
        expanded: &ExpandedTables,
    ) -> Result<CodegenInput, NativeError> {
        let (tables, tries) = (&options.tables, &options.tries);
        let said = TableHints { tables, tries, prefixes: &options.facts.prefixes, absent: &expanded.absent };
        let (mut shapes, mut templates): (Vec<ImageMapSpec>, _) = (Vec::new(), expanded.templates.clone());
        let shared: Vec<&str> = options.lent.iter().map(|(name, _)| name.as_str()).collect();
        let stability = traversal_cache::stability(module, &shared);
        let has_caches = TraversalMaps::of(module).is_some();
        for (at, (number, map)) in module.maps.iter().enumerate() {
            let (shape, chosen) = ImageMapSpec::of(at, map, &said);
            let is_counted = has_caches && stability[number] != LookupStability::Changing;
            shapes.push(ImageMapSpec { is_counted, ..shape });
            templates.extend(chosen);
        }
        pinned(&shapes, tables, "hash table", &HASHES)?;
        roomy(&shapes)?;
        pinned(&shapes, tries, "trie", &[MapKind::LpmTrie])?;
        let epochs = Arc::new(WorkerEpochs::new(options.workers));
        let mut maps = make_maps(&shapes, options.seed, &epochs, place)?;
        lend(&mut maps, &shapes, &options.lent, options.workers)?;
        let changed = changed(module);
        let mut known = SecondaryMap::new();
        for (at, map) in module.maps.keys().zip(&mut maps) {
            let guarded = options.workers > 1 && changed[at];
            known[at] = map.as_mut().map(|map| MapCodegenInfo { guarded, ..info(map, options) });
        }
        let known = fetched(&known, module, &options.schedule)?;
        let (others, slice, fields) = match entries {
            EntryPoints::Batch(entry) => {
                let others = reached_by_tail_calls(module);
                let fields = DescriptorFieldSet::of(module, others.iter().copied().chain([entry]));
                (others, way(module, entry, &known), fields)
            }
            EntryPoints::Stages(_) => (Vec::new(), None, DescriptorFieldSet::NONE),
        };
        let layout = lay_out(fields, &known, slice.is_some(), options);
        Ok(CodegenInput { maps, epochs, shapes, templates, known, others, slice, layout, stability })
    }
}

/// Layout of descriptors with these fields: with room for notes of the look-ups that are fetched for if there is a
/// path to them, and of those that variants may fetch for.
pub(super) fn lay_out(
    fields: DescriptorFieldSet,
    known: &KnownMaps,
    has_slice: bool,
    options: &NativeOptions,
) -> DescriptorLayout {
    let is_noted = |info: &&MapCodegenInfo| match options.variants {
        VariantSupport::Installed => info.can_fetch(),
        _ => has_slice && info.ahead,
    };
    let notes = known.values().flatten().filter(is_noted).count();
    options.descriptors.layout(fields, notes).copying(options.facts.copies)
}

/// Properties of maps, with the look-ups that a schedule fetches for.
pub(super) fn fetched(
    known: &KnownMaps,
    module: &Module,
    schedule: &Schedule,
) -> Result<KnownMaps, NativeError> {
    let mut by_schedule = KnownMaps::new();
    let mut names = Vec::new();
    for (map, decl) in module.maps.iter() {
        let (Some(info), name) = (&known[map], &decl.name) else { continue };
        if info.can_fetch() {
            names.push(name.as_str());
        }
        let ahead = info.can_fetch() && schedule.fetches(name, info.lookup_bytes).0;
        by_schedule[map] = Some(MapCodegenInfo { ahead, ..*info });
    }
    let PrefetchPolicy::Tables(wanted) = &schedule.fetch else { return Ok(by_schedule) };
    let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) else {
        return Ok(by_schedule);
    };
    let near = nearest(unknown, &names).map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default();
    Err(NativeError::Choose(format!(
        "fetch={unknown}: there is no such table whose look-ups can be fetched for{near}; there are: {}",
        names.join(", ")
    )))
}

/// Runs the passes, makes the maps, and has LLVM compile; if `described`, makes code for others to link.
pub(super) fn make_code(
    mut module: Module,
    entries: EntryPoints<'_>,
    options: &NativeOptions,
    place: &mut AddressAllocator,
    described: Option<ExportBuilder<'_>>,
) -> Result<CompiledCode, NativeError> {
    let start = Instant::now();
    let expanded = classifier::expand(&mut module, &options.classifiers)?;
    let has_variants = options.variants != VariantSupport::None && entries.stages().is_empty();
    let is_cached = options.schedule.traversals != TraversalCaching::Off;
    let may_be = options.lookups.traversals && options.variants != VariantSupport::None;
    if entries.stages().is_empty() && (is_cached || may_be) {
        traversal_cache::declare(&mut module, options.schedule.flows);
    }
    let before = has_variants.then(|| module.clone());
    run_passes(&mut module, options)?;
    let passes = start.elapsed();
    let CodegenInput { maps, epochs, shapes, templates, known, others, slice, layout, stability } =
        CodegenInput::of(&module, entries, options, place, &expanded)?;
    let ExpandedTables { initial, matches, .. } = expanded;
    let export = described.map(|described| described(&shapes, &initial, layout));
    let target =
        CodeTarget { known, layout, matches: Arc::new(matches), stability: Arc::new(stability), number: 0 };
    let source = CodeSource { module: &module, entries, others: &others, slice: slice.as_ref() };
    let mut generated = generate(&source, &target, options, export.as_ref())?;
    generated.timings.passes = passes;
    let variants = before.map(|module| VariantSource { module, target, initial: initial.clone() });
    Ok(CompiledCode { maps, epochs, shapes, initial, layout, templates, generated, variants })
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
            if shape.is_counted {
                map.count_writes(epochs);
            }
            FixedAddressBox::new(SeqlockMap::new(map, workers), place)
        },
    );
    map.map(Some).map_err(|source| NativeError::Memory { map: shape.name.clone(), source })
}

/// Properties of a map, without the schedule.
fn info(map: &mut FixedAddressBox<SeqlockMap>, options: &NativeOptions) -> MapCodegenInfo {
    let address = map.address();
    let map = map.get_mut();
    let inline = map.inline().filter(|_| options.lookups.inline);
    let lookup_bytes = map.lookup_bytes();
    MapCodegenInfo {
        ahead: false,
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
