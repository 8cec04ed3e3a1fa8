//! Twins of maps in memory that programs read.
//!
//! Each generation that has twins gets maps of its own for them. Such a map has room for two sides of the twin. Packets
//! read the one whose token is in the guard; when the twinned map has changed, the other is written and its token is put
//! there. So a generation follows its maps without new code, and every packet sees one state of them: the token that it
//! reads at entry decides, once.
//!
//! Invariant: a side is written only while its token is not in the guard and, since it was, a grace period has passed. A
//! packet that found it there is no longer under way then.

use std::collections::BTreeMap;

use millstream_ir::Map;
use millstream_kernel::{Error, Map as KernelMap, MapSpec, MapType, Mapping, grace_period, map_flags};

use crate::contents::Tables;
use crate::policy::twin_of;
use crate::transform::Twin;
use crate::variant::SIDES;

/// The least room, in groups.
const LEAST: u32 = 16;

/// The twins of a generation.
#[derive(Debug, Default)]
pub struct Twins {
    held: BTreeMap<Map, Held>,
    /// The side that packets read.
    side: u32,
    /// Packets may be under way that read the other side.
    used: bool,
}

#[derive(Debug)]
struct Held {
    map: KernelMap,
    memory: Mapping,
    groups: u32,
    /// What has been written to each side.
    sides: [Option<Twin>; SIDES as usize],
}

/// Why the other side was not written.
#[derive(Debug, thiserror::Error)]
pub enum Unwritten {
    /// A map has outgrown its twin, or holds what no twin can.
    #[error("a map no longer fits its twin")]
    Room,
    /// No grace period can be had.
    #[error(transparent)]
    Kernel(#[from] Error),
}

impl Twins {
    /// Memory for these twins, written to the first side, with room to grow.
    ///
    /// # Errors
    /// What the kernel refuses, such as memory.
    pub fn new(twins: BTreeMap<Map, Twin>) -> Result<Twins, Error> {
        let held = twins.into_iter().map(|(of, twin)| Ok((of, Held::new(twin)?)));
        Ok(Twins { held: held.collect::<Result<_, Error>>()?, side: 0, used: false })
    }

    /// The maps with the twins, by what they are twins of.
    pub fn maps(&self) -> impl Iterator<Item = (Map, &KernelMap)> {
        self.held.iter().map(|(of, held)| (*of, &held.map))
    }

    /// For how many groups each has room.
    pub fn rooms(&self) -> impl Iterator<Item = (Map, u32)> {
        self.held.iter().map(|(of, held)| (*of, held.groups))
    }

    /// The side that packets read.
    pub fn side(&self) -> u32 {
        self.side
    }

    /// Writes the side that packets do not read; gives its number, and how many bytes were written. Waits for a grace period
    /// if there was none since packets read it.
    ///
    /// # Errors
    /// If a table does not fit; the side is then not to be used.
    pub fn write(&mut self, tables: &Tables) -> Result<(u32, usize), Unwritten> {
        let new: Option<Vec<(Map, Twin)>> = tables.iter().map(|(of, t)| Some((*of, twin_of(t)?))).collect();
        let new = new.ok_or(Unwritten::Room)?;
        let fits = |(of, twin): &(Map, Twin)| self.held.get(of).is_some_and(|h| twin.groups() <= h.groups);
        if new.len() != self.held.len() || !new.iter().all(fits) {
            return Err(Unwritten::Room);
        }
        self.settle()?;
        let side = (self.side + 1) % SIDES;
        let mut written = 0;
        for (of, twin) in new {
            if let Some(held) = self.held.get_mut(&of) {
                written += held.write(side, twin);
            }
        }
        Ok((side, written))
    }

    /// The guard has been given the other side's token.
    pub fn turn(&mut self) {
        self.side = (self.side + 1) % SIDES;
        self.used = true;
    }

    /// Waits until no packet is under way that reads the other side.
    ///
    /// # Errors
    /// If no grace period can be had.
    pub fn settle(&mut self) -> Result<(), Error> {
        if self.used {
            grace_period()?;
            self.used = false;
        }
        Ok(())
    }
}

impl Held {
    fn new(twin: Twin) -> Result<Held, Error> {
        let groups =
            (twin.groups() + twin.groups() / 4).max(LEAST).next_power_of_two().min(Twin::MOST_GROUPS);
        let map = KernelMap::create(&MapSpec {
            name: "ms.twin",
            map_type: MapType::ARRAY,
            key_size: 4,
            value_size: SIDES * Twin::size(groups),
            max_entries: 1,
            flags: map_flags::MMAPABLE,
            ..MapSpec::default()
        })?;
        let memory = map.mmap(true)?;
        let mut held = Held { map, memory, groups, sides: [const { None }; SIDES as usize] };
        held.write(0, twin);
        Ok(held)
    }

    fn write(&mut self, side: u32, twin: Twin) -> usize {
        let start = (side * Twin::size(self.groups)) as usize;
        let slot = &mut self.sides[side as usize];
        let mut written = 0;
        twin.changes(slot.as_ref(), |at, bytes| {
            self.memory.write(start + at, bytes);
            written += bytes.len();
        });
        *slot = Some(twin);
        written
    }
}
