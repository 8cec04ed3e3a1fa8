//! Counterexamples: the inputs of two programs, and the observable in which they then differed.

use std::fmt;
use std::time::{Duration, Instant};

use millstream_object::{FuncId, Object};

use crate::explore::Explorer;
use crate::place::{self, Place};
use crate::program::{Context, MapInfo, Program};
use crate::replay::{Difference, Entry, Scene, Stage, hex};

/// A run of two programs that shows that they differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counterexample {
    /// The first observable that differs.
    pub observable: String,
    /// Its value after the first program.
    pub first: String,
    /// Its value after the second program.
    pub second: String,
    /// The packet.
    pub packet: Vec<u8>,
    /// Bytes of the context, by offset; packet pointers apart, all others are zero.
    pub context: Vec<(usize, u8)>,
    /// Entries of maps, by the map's name. All other maps are empty, or have the contents given in the
    /// object.
    pub entries: Vec<(String, Entry)>,
    /// The clock, in nanoseconds.
    pub time: u64,
    /// The state of the random generator.
    pub seed: u64,
    /// Process that runs the program: the results of `bpf_get_current_pid_tgid` and
    /// `bpf_get_current_uid_gid`.
    pub process: [u64; 2],
    /// Source of the counterexample.
    pub origin: Origin,
    /// Places where the first and the second program made the difference, if known.
    pub places: [Option<Place>; 2],
    /// Their slots.
    slots: [Option<usize>; 2],
}

/// Source of a counterexample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was made up.
    MadeUp,
    /// A solver.
    Solver,
}

impl Counterexample {
    /// Names the source lines of the two programs.
    pub(crate) fn locate(&mut self, programs: [(&Object, FuncId); 2]) {
        for (n, (object, func)) in programs.into_iter().enumerate() {
            self.places[n] = self.slots[n].map(|slot| place::with_line(object, func, slot));
        }
    }

    /// Returns true if these two programs differ on it.
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
            process: self.process,
        };
        stage.compare(&scene, &mut Vec::new()).is_some()
    }
}

/// Limits of the search for one.
pub(crate) struct Search {
    pub(crate) tries: usize,
    pub(crate) seed: u64,
    pub(crate) time: Duration,
}

impl Search {
    /// Searches made-up packets and tables.
    ///
    /// # Errors
    /// If the programs cannot be run at all, with the reason.
    pub(crate) fn made_up(
        &self,
        maps: &[MapInfo],
        programs: [&Program; 2],
    ) -> Result<Option<Counterexample>, String> {
        let stage = Stage::new(maps, programs)?;
        let mut explorer = Explorer::new(&stage, programs, self.seed);
        let deadline = Instant::now() + self.time;
        let found = match explorer.fill(Scene::default()) {
            Some(found) => Some(longer(&mut explorer, found, programs[0].context, self.tries, deadline)),
            None => explorer.search(self.tries, deadline),
        };
        Ok(found.map(|(scene, difference)| shown(&stage, Origin::MadeUp, scene, difference)))
    }

    /// Tries a solver's scene first, and then others.
    ///
    /// # Errors
    /// If the programs cannot be run at all, with the reason.
    pub(crate) fn from(
        &self,
        scene: Scene,
        maps: &[MapInfo],
        programs: [&Program; 2],
    ) -> Result<Option<Counterexample>, String> {
        let deadline = Instant::now() + self.time;
        let stage = Stage::new(maps, programs)?;
        let mut explorer = Explorer::new(&stage, programs, self.seed);
        if let Some(found) = explorer.fill(scene) {
            let (scene, difference) = longer(&mut explorer, found, programs[0].context, 0, deadline);
            return Ok(Some(shown(&stage, Origin::Solver, scene, difference)));
        }
        let found = explorer.search(self.tries, deadline);
        Ok(found.map(|(scene, difference)| shown(&stage, Origin::MadeUp, scene, difference)))
    }
}

/// Bytes of an Ethernet header: the kernel's test runs take no packet that is shorter.
const SHORTEST: usize = 14;
/// Made-up scenes to try before a packet that no test run takes is kept.
const LONGER: usize = 256;

/// Looks for a scene that the kernel can run, too, and takes it if one is found soon: the difference for a
/// packet that is too short may be gone for longer ones, which may have another.
fn longer(
    explorer: &mut Explorer<'_>,
    (scene, difference): (Scene, Difference),
    context: Context,
    tries: usize,
    deadline: Instant,
) -> (Scene, Difference) {
    if scene.packet.len() >= SHORTEST || context == Context::Other {
        return (scene, difference);
    }
    let mut padded = scene.clone();
    padded.packet.resize(SHORTEST, 0);
    let found = explorer.fill(padded).or_else(|| explorer.search(tries.min(LONGER), deadline));
    found.unwrap_or((scene, difference))
}

/// Lengths of packets that are tried to make one shorter.
const LENGTHS: [usize; 9] = [SHORTEST, 34, 42, 54, 60, 64, 128, 256, 1500];

/// Shrinks a scene as far as the same observable still differs.
fn smaller(stage: &Stage<'_>, mut scene: Scene, mut difference: Difference) -> (Scene, Difference) {
    let mut attempt = |scene: &mut Scene, change: &dyn Fn(&mut Scene)| {
        let mut candidate = scene.clone();
        change(&mut candidate);
        match stage.compare(&candidate, &mut Vec::new()) {
            Some(found) if found.place == difference.place => {
                (*scene, difference) = (candidate, found);
                true
            }
            _ => false,
        }
    };
    for length in LENGTHS {
        if length < scene.packet.len() && attempt(&mut scene, &|s| s.packet.truncate(length)) {
            break;
        }
    }
    for at in (0..scene.entries.len()).rev() {
        attempt(&mut scene, &|s| {
            s.entries.remove(at);
        });
    }
    attempt(&mut scene, &|s| s.process = [0; 2]);
    for at in (0..scene.context.len()).rev() {
        attempt(&mut scene, &|s| {
            s.context.remove(at);
        });
    }
    (scene, difference)
}

fn shown(stage: &Stage<'_>, origin: Origin, scene: Scene, difference: Difference) -> Counterexample {
    let (scene, difference) = smaller(stage, scene, difference);
    let slots = [0, 1].map(|which| place::slot(stage, which, &scene, &difference.place));
    let name = |(map, entry): (usize, Entry)| (stage.maps[map].name.clone(), entry);
    Counterexample {
        observable: difference.observable,
        first: difference.first,
        second: difference.second,
        packet: scene.packet,
        context: scene.context,
        entries: scene.entries.into_iter().map(name).collect(),
        time: scene.time,
        seed: scene.seed,
        process: scene.process,
        origin,
        places: [None, None],
        slots,
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} and {}", self.observable, self.first, self.second)?;
        for (place, which) in self.places.iter().zip(["first", "second"]) {
            if let Some(place) = place {
                writeln!(f, "  in the {which} by {place}")?;
            }
        }
        let zeros = self.packet.iter().rev().take_while(|b| **b == 0).count();
        let shown = self.packet.len() - if zeros > 16 { zeros } else { 0 };
        let rest = if zeros > 16 { " and zeros" } else { "" };
        writeln!(f, "  packet ({} bytes): {}{rest}", self.packet.len(), hex(&self.packet[..shown]))?;
        if !self.context.is_empty() {
            let bytes: Vec<String> = self.context.iter().map(|(at, b)| format!("{at}: {b:#04x}")).collect();
            writeln!(f, "  context: {}", bytes.join(", "))?;
        }
        for (map, (key, value)) in &self.entries {
            writeln!(f, "  map {map:?}: {} -> {}", hex(key), hex(value))?;
        }
        if self.process != [0; 2] {
            let [thread, user] = self.process;
            writeln!(f, "  pid_tgid: {thread:#x}, uid_gid: {user:#x}")?;
        }
        write!(f, "  clock: {} ns, random state: {:#x}", self.time, self.seed)
    }
}
