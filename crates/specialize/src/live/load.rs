//! Loading of a session: the object, the guard, and the maps that variants may be specialised on.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_ir::Map as IrMap;
use millstream_kernel::{KernelProgram, ProgramType};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::FuncId;
use millstream_specializer::variant::{VariantCompiler, is_alike};
use rustc_hash::FxHashMap;

use super::LiveError;
use super::churn::ChurnTracker;
use super::error::explain;
use super::generations::Generations;
use super::guarded_program::{GuardedProgram, ProgramTimes};
use super::loaded_programs::LoadedPrograms;
use super::schedule::SessionSchedule;
use super::session_hook::SessionHook;
use super::session_tables::SessionTables;
use super::settings::SessionSettings;
use super::tail_calls::{self, ProgArrays};
use super::write_tracker::WriteTracker;
use crate::adopt::{self, AdoptionScope};
use crate::chain::FusedChain;
use crate::guard::Guard;
use crate::inherited_maps::InheritedMaps;
use crate::map_users::OwnPrograms;
use crate::pins::PinDir;
use crate::snapshot::{SpecializableMap, cacheable, nested, sources};
use crate::stats::ProgramTimer;

/// Loads object and guard.
///
/// # Errors
/// [`LiveError`].
pub(super) fn load(
    compiler: &VariantCompiler,
    settings: SessionSettings,
) -> Result<GuardedProgram<'_>, LiveError> {
    let mut guard = Guard::attach()?;
    let pins = PinDir::new(&settings.pins);
    let claim = pins.claim()?;
    let lent = InheritedMaps::find(compiler, &pins, &settings)?;
    let mut programs = load_programs(compiler, &lent, &guard, settings.chain.as_ref())?;
    check(&programs.original, &settings)?;
    if settings.which == AdoptionScope::Same {
        lent.adopted
            .iter()
            .try_for_each(|(ifindex, present)| adopt::same(&programs.original, present, *ifindex))?;
    }
    let tables = find_tables(&mut programs, &settings, &mut guard)?;
    let clock = if settings.measure { ProgramTimer::calibrate() } else { ProgramTimer::default() };
    Ok(GuardedProgram {
        programs,
        tables,
        hook: SessionHook::new(pins, claim, lent.keep),
        writes: WriteTracker::new(guard),
        generations: Generations::default(),
        schedule: SessionSchedule::new(),
        times: ProgramTimes::new(clock),
        settings,
    })
}

/// Loads the program, and those that tail calls may reach, with the maps that are taken over.
fn load_programs<'c>(
    compiler: &'c VariantCompiler,
    lent: &InheritedMaps,
    guard: &Guard,
    chain: Option<&FusedChain>,
) -> Result<LoadedPrograms<'c>, LiveError> {
    let mut loader = ObjectLoader::new(compiler.object());
    for (name, map) in &lent.maps {
        loader = loader.reuse_map(name, map.try_clone()?)?;
    }
    // The object's other programs may be for other kernels; those that can be called are loaded, too.
    let name = &compiler.object().functions[compiler.program().index()].name;
    let loader = loader.reuse_map(compiler.guard_name(), guard.state().try_clone()?)?;
    let mut loader = loader.only(name)?.with_program_arrays();
    if let Some(chain) = chain {
        loader = loader.extending(name, Arc::clone(&chain.place))?;
    }
    let (chosen, session) = (loader.chosen(), loader.prepare()?);
    let mut others = load_all(compiler, &session, &chosen)?;
    // Arrays that existed before belong to their owner, so they are not filled.
    let is_new = |name: &str| !lent.maps.iter().any(|(there, _)| there == name);
    tail_calls::fill_new(compiler, &session, &others, is_new)?;
    let at = others.iter().position(|(f, _)| *f == compiler.program()).ok_or(LiveError::LeftOut)?;
    let mut ours = OwnPrograms::new(guard.programs());
    for (_, program) in &others {
        ours.insert_original(program)?;
    }
    for (tag, maps) in chain.iter().flat_map(|chain| &chain.programs) {
        ours.insert_copied(*tag, maps.clone());
    }
    Ok(LoadedPrograms {
        compiler,
        loader: session,
        original: others.remove(at).1,
        others,
        profiling: None,
        ours,
        arrays: ProgArrays::default(),
        reached: BTreeSet::new(),
    })
}

/// Finds the maps that variants may be specialised on, and makes the guard watch them and the program arrays.
fn find_tables(
    programs: &mut LoadedPrograms<'_>,
    settings: &SessionSettings,
    guard: &mut Guard,
) -> Result<SessionTables, LiveError> {
    let (compiler, session) = (programs.compiler, &programs.loader);
    let (mut sources, mut refused) = sources(compiler, session, &settings.approximate);
    let mut stateful = cacheable(compiler, session);
    refused.retain(|(name, _)| !stateful.keys().any(|m| compiler.declaration(*m).name == *name));
    for sources in [&mut sources, &mut stateful] {
        exclude(&settings.exclude, compiler, sources, &mut refused);
    }
    let mut watched = watch(guard, sources.values_mut().chain(stateful.values_mut()))?;
    let others = programs.others.iter().map(|(f, p)| (*f, p));
    let all: Vec<(FuncId, &KernelProgram)> =
        others.chain([(compiler.program(), &programs.original)]).collect();
    programs.arrays = ProgArrays::new(compiler, session, &settings.exclude, &all, guard)?;
    let nested = nested(compiler, session, &settings.exclude, guard)?;
    let outer = |template: &_| compiler.inner(*template).0;
    let outer = nested.keys().flat_map(outer).map(|map| compiler.object().maps[map.index()].name.clone());
    also_watched(programs.arrays.names().chain(outer), &mut watched, &mut refused);
    Ok(SessionTables {
        sources: Arc::new(sources),
        stateful,
        nested,
        watched,
        refused,
        copies: BTreeSet::new(),
        churn: ChurnTracker::default(),
    })
}

/// Loads these programs, and those that somebody may put into program arrays, as far as this kernel accepts
/// them.
fn load_all(
    compiler: &VariantCompiler,
    session: &Session<'_>,
    chosen: &[FuncId],
) -> Result<Vec<(FuncId, KernelProgram)>, millstream_loader::Error> {
    let (object, mut loaded) = (compiler.object(), Vec::new());
    for &func in chosen {
        let program =
            session.load(func, &object.link(func)?).map_err(|e| millstream_loader::Error::Program {
                name: object.functions[func.index()].name.clone(),
                source: Box::new(e),
            })?;
        loaded.push((func, program));
    }
    let kind = &compiler.described().kind;
    let callable =
        object.programs.iter().filter(|p| !compiler.arrays().is_empty() && is_alike(&p.kind, kind));
    for func in callable.map(|p| p.func) {
        if loaded.iter().any(|(f, _)| *f == func) {
            continue;
        }
        let Ok(linked) = object.link(func) else { continue };
        match session.load(func, &linked) {
            Ok(program) => loaded.push((func, program)),
            Err(e) => tracing::debug!("a program beside it is left out: {}", explain(&e)),
        }
    }
    Ok(loaded)
}

/// Checks that the program is of a kind that is attached to an interface, and that the settings fit such a
/// program.
fn check(program: &KernelProgram, settings: &SessionSettings) -> Result<(), LiveError> {
    match program.info()?.program_type {
        ProgramType::XDP if settings.egress => {
            Err(LiveError::Setting("an XDP program has no way out to be attached to"))
        }
        ProgramType::XDP | ProgramType::SCHED_CLS => Ok(()),
        other => Err(LiveError::Kind(program.name().to_owned(), other)),
    }
}

/// Removes the maps that the operator has excluded.
fn exclude(
    names: &[String],
    compiler: &VariantCompiler,
    sources: &mut FxHashMap<IrMap, SpecializableMap>,
    refused: &mut Vec<(String, String)>,
) {
    sources.retain(|map, _| {
        let name = &compiler.declaration(*map).name;
        let stays = !names.contains(name);
        if !stays && !refused.iter().any(|(of, _)| of == name) {
            refused.push((name.clone(), "it is excluded".to_owned()));
        }
        stays
    });
}

/// Makes the guard watch all maps that may be written; returns their names.
fn watch<'s>(
    guard: &mut Guard,
    sources: impl Iterator<Item = &'s mut SpecializableMap>,
) -> Result<Vec<String>, LiveError> {
    let mut watched = Vec::new();
    for source in sources.filter(|s| !s.is_constant) {
        source.index = guard.watch(&source.map)?;
        watched.push(source.map.info().name.clone());
    }
    watched.sort_unstable();
    // A map can have caches and key tests as well.
    watched.dedup();
    Ok(watched)
}

/// Adds the names of maps that are watched for other reasons than their contents.
fn also_watched(
    names: impl Iterator<Item = String>,
    watched: &mut Vec<String>,
    refused: &mut Vec<(String, String)>,
) {
    for name in names {
        refused.retain(|(map, _)| *map != name);
        if !watched.contains(&name) {
            watched.push(name);
        }
    }
}
