//! Maps inside maps of maps that the code of a variant names: put in their places before it is loaded.
//!
//! Which map is inside is in the code as the entry of any other table is: writing it revokes ([`crate::guard`]), before the kernel
//! applies it. What the maps hold is looked up, so they may be written. A map that was taken out stays as long as code names it, or did last:
//! by the kernel, which holds the maps of a program, and by us, so that its number is given to no other.
//!
//! Invariant: a place stands for the map whose number the map of maps had, and no other place does.

use millstream_kernel::{Error, Map};
use millstream_object::MapId;

use crate::transform::Plan;
use crate::variant::{Compiler, object_map};

/// The maps inside that a variant names, by their places.
#[derive(Debug, Default)]
pub struct Insides(Vec<(MapId, Map)>);

impl Insides {
    /// Those of a plan, but for maps of the object, which stand for themselves.
    ///
    /// # Errors
    /// If one is gone by now, or the kernel refuses.
    pub fn open(compiler: &Compiler, plan: &Plan) -> Result<Insides, Error> {
        let mut places: Vec<(MapId, u32)> = plan.inside.iter().map(|i| (object_map(i.place), i.id)).collect();
        places.retain(|(place, _)| compiler.is_own(*place));
        places.sort_unstable();
        places.dedup();
        let open = |(place, id)| Ok((place, Map::from_id(id)?));
        Ok(Insides(places.into_iter().map(open).collect::<Result<_, Error>>()?))
    }

    /// The maps, and in whose place each is put.
    pub fn maps(&self) -> impl Iterator<Item = (MapId, &Map)> {
        self.0.iter().map(|(place, map)| (*place, map))
    }
}
