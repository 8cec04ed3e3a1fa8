//! From a lowered program to an object.

use millstream_bpf::lower::{LoweredFunction, lower};
use millstream_ir::{Func, Linkage, Map, MapDecl, Module};
use millstream_isa::MapType;
use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_p4_lower::{LowerOptions, LoweredProgram, PRIORITY_MAP, Pipeline};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use rustc_hash::FxHashMap;

use crate::bounds::{bound_loops, bound_offsets, check_packet, compare_counters};
use crate::elf_file::{ObjectFile, write_object};
use crate::entry::{EntryParts, entry_program};
use crate::error::KernelBuildError;
use crate::frames::MOST_PAYLOAD;
use crate::hook::KernelHook;
use crate::lookups::expand_lookups;
use crate::memory::{PacketMemory, state_parameter};
use crate::refusals::{check_constructs, check_loops};
use crate::tuple_search::{ENTRY_PREFIX, MASK_BYTES, MOST_MASKS, TupleMaps};

/// Most states that a parser with loops enters: the verifier follows each of them.
const MOST_STEPS: u64 = 64;
/// Interfaces that have a port.
const MOST_PORTS: u32 = 1024;
/// Passes that rely on addresses which this crate changes afterwards, or make them harder to follow.
const LEFT_OUT: [&str; 2] = ["cursors", "packet-checks"];

/// Choices for the lowering of programs that become kernel objects.
pub fn lower_options() -> LowerOptions {
    LowerOptions { keeps_output: true, most_steps: MOST_STEPS, traces: false, has_ciphers: false }
}

/// An object, and how its maps stand for those of the program.
#[derive(Clone, Debug)]
pub struct KernelObject {
    /// ELF file.
    pub bytes: Vec<u8>,
    /// Hook of its program.
    pub hook: KernelHook,
    /// Name of its program.
    pub program: String,
    /// Names of its maps, by the map of the lowered program.
    pub(crate) names: FxHashMap<Map, String>,
    pub(crate) tuples: FxHashMap<Map, TupleMaps>,
    pub(crate) memory: PacketMemory,
    pub(crate) ports: Map,
    pub(crate) devices: Map,
}

/// Makes an object with one program of this name, from a program that was lowered with [`lower_options`].
///
/// # Errors
/// [`KernelBuildError`]: a construct that the kernel cannot do, or a limit.
pub fn build_program(
    lowered: &LoweredProgram,
    name: &str,
    hook: KernelHook,
) -> Result<KernelObject, KernelBuildError> {
    build_without(lowered, name, hook, &[])
}

/// Like [`build_program`], but without these passes, as far as an object can be made without them: to measure
/// their effect, and to prove that they change nothing.
///
/// # Errors
/// [`KernelBuildError`]: a construct that the kernel cannot do, or a limit.
pub fn build_without(
    lowered: &LoweredProgram,
    name: &str,
    hook: KernelHook,
    passes: &[&str],
) -> Result<KernelObject, KernelBuildError> {
    let pipeline = &lowered.pipeline;
    let mut module = lowered.module.clone();
    let tuples = add_tuple_maps(&mut module);
    let memory_map = add_map(&mut module, "p4_packet", MapType::PERCPU_ARRAY, (4, 8), 1);
    let mut memory = PacketMemory::new(memory_map, &pipeline.state);
    prepare(pipeline, &mut module, memory_map)?;
    memory.reserve(stages(pipeline).into_iter().map(|stage| &module.funcs[stage]));
    let mut session = PassSession::new(TargetInfo::bpf(3).on(KernelRange::since(VerifierGeneration::V6_1)));
    session.disabled.extend(LEFT_OUT.iter().chain(passes).map(|&pass| pass.to_owned()));
    PassPipeline::default_o2().run(&mut module, &mut session)?;
    finish(pipeline, &mut module, &mut memory, &tuples)?;
    module.maps[memory_map].value_size = memory.value_size()?;
    let ports = add_map(&mut module, "p4_ports", MapType::HASH, (4, 4), MOST_PORTS);
    let kind = match hook {
        KernelHook::Xdp => MapType::DEVMAP_HASH,
        KernelHook::Tc => MapType::HASH,
    };
    let devices = add_map(&mut module, "p4_devices", kind, (4, 4), MOST_PORTS);
    let payload = match hook {
        KernelHook::Xdp => memory_map,
        KernelHook::Tc => add_map(&mut module, "p4_payload", MapType::PERCPU_ARRAY, (4, MOST_PAYLOAD), 1),
    };
    let parts = EntryParts { pipeline, hook, memory, ports, devices, payload };
    let entry = entry_program(name, &parts)?;
    let entry = module.funcs.push(entry);
    let code = lower_all(&module)?;
    let file = ObjectFile { module: &module, pipeline, hook, entry, code: &code };
    let (bytes, names) = write_object(&file)?;
    Ok(KernelObject { bytes, hook, program: name.to_owned(), names, tuples, memory, ports, devices })
}

fn add_map(module: &mut Module, name: &str, kind: MapType, sizes: (u32, u32), max_entries: u32) -> Map {
    module.maps.push(MapDecl {
        name: name.to_owned(),
        kind: kind.0,
        key_size: sizes.0,
        value_size: sizes.1,
        max_entries,
        flags: 0,
        global: None,
        inner: None,
    })
}

/// Makes two maps of each map with priorities. The map itself stays as a description, and is not written.
fn add_tuple_maps(module: &mut Module) -> FxHashMap<Map, TupleMaps> {
    let tables: Vec<(Map, MapDecl)> = module.maps.iter().map(|(map, decl)| (map, decl.clone())).collect();
    let mut tuples = FxHashMap::default();
    for (map, decl) in tables.into_iter().filter(|(_, decl)| decl.kind == PRIORITY_MAP) {
        let words = decl.key_size.next_multiple_of(8);
        let masks = add_map(
            module,
            &format!("{}.masks", decl.name),
            MapType::ARRAY,
            (4, MASK_BYTES + words),
            MOST_MASKS,
        );
        let sizes = (ENTRY_PREFIX + words, decl.value_size + 8);
        // Ranges take several entries.
        let size = decl.max_entries.saturating_mul(2).max(MOST_MASKS);
        let entries = add_map(module, &decl.name, MapType::HASH, sizes, size);
        tuples.insert(map, TupleMaps { masks, entries, priority: decl.value_size });
    }
    tuples
}

fn stages(pipeline: &Pipeline) -> Vec<Func> {
    pipeline.stages.iter().map(|stage| stage.func).collect()
}

/// Checks the functions, and makes them subprograms that are fit for the passes.
fn prepare(pipeline: &Pipeline, module: &mut Module, memory: Map) -> Result<(), KernelBuildError> {
    for (_, decl) in module.maps.iter_mut() {
        if decl.kind == MapType::LPM_TRIE.0 {
            decl.flags |= millstream_kernel::map_flags::NO_PREALLOC;
        }
    }
    for stage in stages(pipeline) {
        let func = &mut module.funcs[stage];
        check_constructs(pipeline, func)?;
        func.linkage = Linkage::Static;
        let largest = func.slots.values().map(|slot| slot.size).max().unwrap_or(0);
        bound_loops(func, largest.max(pipeline.state.size));
        state_parameter(func, memory);
    }
    Ok(())
}

/// Gives the functions what the verifier wants to see, after the passes.
fn finish(
    pipeline: &Pipeline,
    module: &mut Module,
    memory: &mut PacketMemory,
    tuples: &FxHashMap<Map, TupleMaps>,
) -> Result<(), KernelBuildError> {
    for stage in stages(pipeline) {
        let mut func = module.funcs[stage].clone();
        if let Some(state) = state_parameter(&mut func, memory.map) {
            memory.take_slots(&mut func, state);
        }
        expand_lookups(module, &mut func, tuples);
        module.funcs[stage] = func;
    }
    for stage in stages(pipeline) {
        let func = &mut module.funcs[stage];
        check_packet(func);
        bound_offsets(func, memory.mask());
        compare_counters(func);
        check_loops(pipeline, func)?;
    }
    Ok(())
}

fn lower_all(module: &Module) -> Result<Vec<(Func, LoweredFunction)>, KernelBuildError> {
    module.funcs.iter().map(|(id, func)| Ok((id, lower(func)?))).collect()
}
