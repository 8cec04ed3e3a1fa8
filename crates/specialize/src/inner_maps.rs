//! Inner maps of maps of maps that the code of a variant names: put in their places before it is loaded.
//!
//! The identity of an inner map is in the code like the entry of any other table: a write to it revokes
//! ([`crate::guard`]), before the kernel applies it. The contents of the inner maps are looked up, so they
//! may be written. A map that was taken out stays as long as code names it, or did last: the kernel holds the
//! maps of a program, and the session holds the map, so that its id is given to no other.
//!
//! Invariant: a placeholder stands for the map whose id the map of maps had, and no other placeholder does.

use millstream_kernel::{KernelError, KernelMap};
use millstream_object::MapId;
use millstream_specializer::transform::SpecializationPlan;
use millstream_specializer::variant::{VariantCompiler, object_map};

/// The inner maps that a variant names, by their placeholders.
#[derive(Debug, Default)]
pub struct InnerMaps(Vec<(MapId, KernelMap)>);

impl InnerMaps {
    /// Opens the inner maps of a plan, except maps of the object, which stand for themselves.
    ///
    /// # Errors
    /// If one no longer exists, or the kernel refuses.
    pub fn open(compiler: &VariantCompiler, plan: &SpecializationPlan) -> Result<InnerMaps, KernelError> {
        let mut places: Vec<(MapId, u32)> = plan.inside.iter().map(|i| (object_map(i.place), i.id)).collect();
        places.retain(|(place, _)| compiler.is_own(*place));
        places.sort_unstable();
        places.dedup();
        let open = |(place, id)| Ok((place, KernelMap::from_id(id)?));
        Ok(InnerMaps(places.into_iter().map(open).collect::<Result<_, KernelError>>()?))
    }

    /// The maps, and the placeholder that each replaces.
    pub fn maps(&self) -> impl Iterator<Item = (MapId, &KernelMap)> {
        self.0.iter().map(|(place, map)| (*place, map))
    }
}
