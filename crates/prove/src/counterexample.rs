//! Counterexamples: what two programs were run on, and where they then differed.

use std::fmt;
use std::time::{Duration, Instant};

use millstream_object::{FuncId, Object};

use crate::explore::Explorer;
use crate::program::{MapInfo, Program};
use crate::replay::{Difference, Entry, Scene, Stage, hex};

/// A run of two programs that shows that they differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counterexample {
    /// The first observable that differs.
    pub observable: String,
    /// What the first program leaves there.
    pub first: String,
    /// What the second leaves.
    pub second: String,
    /// The packet.
    pub packet: Vec<u8>,
    /// Bytes of the context, by offset; packet pointers apart, all others are zero.
    pub context: Vec<(usize, u8)>,
    /// Entries of maps, by the map's name. All other maps are empty, or as the object has them.
    pub entries: Vec<(String, Entry)>,
    /// The clock, in nanoseconds.
    pub time: u64,
    /// The state of the random generator.
    pub seed: u64,
}

impl Counterexample {
    /// Whether it shows that these two programs differ.
    pub fn shows(&self, a: (&Object, FuncId), b: (&Object, FuncId)) -> bool {
        let Ok((maps, programs)) = crate::check::pair(a, b) else { return false };
        let Ok(stage) = Stage::new(&maps.0, [&programs[0], &programs[1]]) else { return false };
        let entries = self
            .entries
            .iter()
            .filter_map(|(name, entry)| Some((maps.0.iter().position(|m| m.name == *name)?, entry.clone())));
        let scene = Scene {
            packet: self.packet.clone(),
            context: self.context.clone(),
            entries: entries.collect(),
            time: self.time,
            seed: self.seed,
        };
        stage.compare(&scene, &mut Vec::new()).is_some()
    }
}

/// How long to look for one.
pub(crate) struct Search {
    pub(crate) tries: usize,
    pub(crate) seed: u64,
    pub(crate) time: Duration,
}

impl Search {
    /// On packets and tables that are made up.
    ///
    /// # Errors
    /// Why the programs cannot be run at all.
    pub(crate) fn made_up(
        &self,
        maps: &[MapInfo],
        programs: [&Program; 2],
    ) -> Result<Option<Counterexample>, String> {
        self.from(Scene::default(), maps, programs)
    }

    /// On a scene first, and then on others.
    ///
    /// # Errors
    /// Why the programs cannot be run at all.
    pub(crate) fn from(
        &self,
        scene: Scene,
        maps: &[MapInfo],
        programs: [&Program; 2],
    ) -> Result<Option<Counterexample>, String> {
        let deadline = Instant::now() + self.time;
        let stage = Stage::new(maps, programs)?;
        let mut explorer = Explorer::new(&stage, programs, self.seed);
        let found = explorer.fill(scene).or_else(|| explorer.search(self.tries, deadline));
        Ok(found.map(|(scene, difference)| shown(scene, difference, maps)))
    }
}

fn shown(scene: Scene, difference: Difference, maps: &[MapInfo]) -> Counterexample {
    let name = |(map, entry): (usize, Entry)| (maps[map].name.clone(), entry);
    Counterexample {
        observable: difference.observable,
        first: difference.first,
        second: difference.second,
        packet: scene.packet,
        context: scene.context,
        entries: scene.entries.into_iter().map(name).collect(),
        time: scene.time,
        seed: scene.seed,
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} and {}", self.observable, self.first, self.second)?;
        writeln!(f, "  packet ({} bytes): {}", self.packet.len(), hex(&self.packet))?;
        if !self.context.is_empty() {
            let bytes: Vec<String> = self.context.iter().map(|(at, b)| format!("{at}: {b:#04x}")).collect();
            writeln!(f, "  context: {}", bytes.join(", "))?;
        }
        for (map, (key, value)) in &self.entries {
            writeln!(f, "  map {map:?}: {} -> {}", hex(key), hex(value))?;
        }
        write!(f, "  clock: {} ns, random state: {:#x}", self.time, self.seed)
    }
}
