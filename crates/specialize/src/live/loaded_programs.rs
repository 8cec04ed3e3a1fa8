//! Programs of a session: the object's own, as compiled, and the one that profiles.

use std::collections::BTreeSet;

use millstream_kernel::{KernelError, KernelMap, KernelProgram};
use millstream_loader::Session;
use millstream_object::FuncId;
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::transform::{LookupSite, SiteId};
use millstream_specializer::variant::VariantCompiler;

use super::generations::LoadedVariant;
use super::step::{SessionStep, StepCallback};
use super::tail_calls::{ProgArrayContents, ProgArrays, TailCallChain};
use crate::caches::EntryCaches;
use crate::inner_maps::InnerMaps;
use crate::map_users::OwnPrograms;
use crate::shadow_tables::ShadowTables;

/// The variant that profiles.
#[derive(Debug)]
pub(super) struct ProfilingVariant {
    pub(super) program: KernelProgram,
    /// The lookups whose keys it records.
    pub(super) sites: Vec<SiteId>,
    pub(super) chain: TailCallChain,
}

/// The object's programs in the kernel, and the compiler and loader of more.
#[derive(Debug)]
pub(super) struct LoadedPrograms<'c> {
    pub(super) compiler: &'c VariantCompiler,
    pub(super) loader: Session<'c>,
    pub(super) original: KernelProgram,
    /// The other programs of the object, which tail calls reach.
    pub(super) others: Vec<(FuncId, KernelProgram)>,
    pub(super) profiling: Option<ProfilingVariant>,
    pub(super) ours: OwnPrograms,
    /// Program arrays.
    pub(super) arrays: ProgArrays,
    /// Programs of the object that tail calls were found to reach, now or before: whoever exchanges them may
    /// put them back.
    pub(super) reached: BTreeSet<FuncId>,
}

impl LoadedPrograms<'_> {
    /// A program of the object as clang compiled it: the one that is attached, or one that tail calls may
    /// reach.
    pub(super) fn program(&self, name: &str) -> Option<KernelProgram> {
        let object = self.compiler.object();
        let func = object.programs.iter().find(|p| p.name == name)?.func;
        let other = self.others.iter().find(|(f, _)| *f == func).map(|(_, program)| program);
        other.or((func == self.compiler.program()).then_some(&self.original))?.try_clone().ok()
    }

    /// Program array with the slot of the standby variant, if the kernel has any.
    pub(super) fn standby_slot(&self) -> Option<&KernelMap> {
        self.compiler.standby().and_then(|at| self.loader.map(at))
    }

    /// Gives programs that are loaded from now on the twins and caches of a variant, and the arrays that go
    /// with them.
    pub(super) fn load_beside(&mut self, active: &LoadedVariant) -> Result<(), KernelError> {
        put_beside(&mut self.loader, self.compiler, &active.twins, &active.caches, &active.insides)?;
        self.call_as_before(active)
    }

    /// Makes programs that are loaded from now on call through the arrays of this variant.
    fn call_as_before(&mut self, active: &LoadedVariant) -> Result<(), KernelError> {
        for (of, place) in active.chain.placed() {
            if let Some(array) = self.arrays.place_of(*of) {
                self.loader.replace_map(array, place.try_clone()?);
            }
        }
        Ok(())
    }

    /// Returns true if the arrays hold what a chain was made for, or if the chain could follow them.
    pub(super) fn keeps_up(
        &self,
        chain: &mut TailCallChain,
        dirty: &DirtyKeys,
        steps: &StepCallback,
    ) -> bool {
        if !self.arrays.is_touched(dirty) {
            return true;
        }
        let Ok(held) = self.arrays.read() else { return false };
        steps.at(SessionStep::Slots);
        chain.refill(self.compiler, held)
    }

    /// Returns true if a lookup belongs to the program, or to one that was found to be reached.
    pub(super) fn is_reached(&self, site: &LookupSite) -> bool {
        let of = |func: &FuncId| millstream_bpf::module::func(*func) == site.func;
        of(&self.compiler.program()) || self.reached.iter().any(of)
    }

    /// Records the programs that the arrays lead to, and the attached program itself if it is in a slot,
    /// because somebody may call it there.
    pub(super) fn note_reached(&mut self, held: &ProgArrayContents) {
        let first = self.compiler.program();
        self.reached.append(&mut held.reached(self.compiler));
        if held.slots().any(|(.., func)| func == Some(first)) {
            self.reached.insert(first);
        }
    }
}

/// Gives programs that a session loads from now on these twins and caches, and the maps that they name.
pub(super) fn put_beside(
    session: &mut Session<'_>,
    compiler: &VariantCompiler,
    twins: &ShadowTables,
    caches: &EntryCaches,
    insides: &InnerMaps,
) -> Result<(), KernelError> {
    let twins = twins.maps().map(|(of, map)| (compiler.twin(of), map));
    for (place, map) in twins.chain(caches.maps().map(|(of, map)| (compiler.cache(of), map))) {
        if let Some(place) = place {
            session.replace_map(place, map.try_clone()?);
        }
    }
    for (place, map) in insides.maps() {
        session.replace_map(place, map.try_clone()?);
    }
    Ok(())
}
