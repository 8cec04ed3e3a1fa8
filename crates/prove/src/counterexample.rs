//! Counterexamples: the inputs of two programs, and the observable in which they then differed.

use std::fmt;
use std::time::{Duration, Instant};

use millstream_interp::MapKeyValue;
use millstream_object::{FuncId, Object};

use crate::explore::InputGenerator;
use crate::localization::{self, InsnLocation};
use crate::program::{ContextLayout, MapSignature, ProofProgram};
use crate::replay::{OutcomeDifference, ReplayHarness, ReplayInput};

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
    pub entries: Vec<(String, MapKeyValue)>,
    /// The clock, in nanoseconds.
    pub time: u64,
    /// The state of the random generator.
    pub seed: u64,
    /// Process that runs the program: the results of `bpf_get_current_pid_tgid` and
    /// `bpf_get_current_uid_gid`.
    pub process: [u64; 2],
    /// Source of the counterexample.
    pub origin: CounterexampleSource,
    /// Places where the first and the second program made the difference, if known.
    pub places: [Option<InsnLocation>; 2],
    /// Their slots.
    slots: [Option<usize>; 2],
}

/// Source of a counterexample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterexampleSource {
    /// It was made up.
    MadeUp,
    /// A solver.
    Solver,
}

impl Counterexample {
    /// Names the source lines of the two programs.
    pub(crate) fn locate(&mut self, programs: [(&Object, FuncId); 2]) {
        for (n, (object, func)) in programs.into_iter().enumerate() {
            self.places[n] = self.slots[n].map(|slot| localization::with_line(object, func, slot));
        }
    }

    /// Returns true if these two programs differ on it.
    pub fn shows(&self, a: (&Object, FuncId), b: (&Object, FuncId)) -> bool {
        let Ok((maps, programs)) = crate::program::pair(a, b) else { return false };
        let Ok(stage) = ReplayHarness::new(&maps.0, [&programs[0], &programs[1]]) else { return false };
        let entries = self
            .entries
            .iter()
            .filter_map(|(name, entry)| Some((maps.0.iter().position(|m| m.name == *name)?, entry.clone())));
        let scene = ReplayInput {
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
pub(crate) struct CounterexampleSearch {
    pub(crate) tries: usize,
    pub(crate) seed: u64,
    pub(crate) time: Duration,
}

impl CounterexampleSearch {
    /// Searches made-up packets and tables.
    ///
    /// # Errors
    /// If the programs cannot be run at all, with the reason.
    pub(crate) fn random_search(
        &self,
        maps: &[MapSignature],
        programs: [&ProofProgram; 2],
    ) -> Result<Option<Counterexample>, String> {
        let stage = ReplayHarness::new(maps, programs)?;
        let mut explorer = InputGenerator::new(&stage, programs, self.seed);
        let deadline = Instant::now() + self.time;
        let found = match explorer.fill(ReplayInput::default()) {
            Some(found) => Some(longer(&mut explorer, found, programs[0].context, self.tries, deadline)),
            None => explorer.search(self.tries, deadline),
        };
        Ok(found.map(|(scene, difference)| shown(&stage, CounterexampleSource::MadeUp, scene, difference)))
    }

    /// Tries a solver's scene first, and then others.
    ///
    /// # Errors
    /// If the programs cannot be run at all, with the reason.
    pub(crate) fn from(
        &self,
        scene: ReplayInput,
        maps: &[MapSignature],
        programs: [&ProofProgram; 2],
    ) -> Result<Option<Counterexample>, String> {
        let deadline = Instant::now() + self.time;
        let stage = ReplayHarness::new(maps, programs)?;
        let mut explorer = InputGenerator::new(&stage, programs, self.seed);
        if let Some(found) = explorer.fill(scene) {
            let (scene, difference) = longer(&mut explorer, found, programs[0].context, 0, deadline);
            return Ok(Some(shown(&stage, CounterexampleSource::Solver, scene, difference)));
        }
        let found = explorer.search(self.tries, deadline);
        Ok(found.map(|(scene, difference)| shown(&stage, CounterexampleSource::MadeUp, scene, difference)))
    }
}

/// Bytes of an Ethernet header: the kernel's test runs take no packet that is shorter.
const SHORTEST: usize = 14;
/// Made-up scenes to try before a packet that no test run takes is kept.
const LONGER: usize = 256;

/// Looks for a scene that the kernel can run, too, and takes it if one is found soon: the difference for a
/// packet that is too short may be gone for longer ones, which may have another.
fn longer(
    explorer: &mut InputGenerator<'_>,
    (scene, difference): (ReplayInput, OutcomeDifference),
    context: ContextLayout,
    tries: usize,
    deadline: Instant,
) -> (ReplayInput, OutcomeDifference) {
    if scene.packet.len() >= SHORTEST || context == ContextLayout::Other {
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
fn smaller(
    stage: &ReplayHarness<'_>,
    mut scene: ReplayInput,
    mut difference: OutcomeDifference,
) -> (ReplayInput, OutcomeDifference) {
    let mut attempt = |scene: &mut ReplayInput, change: &dyn Fn(&mut ReplayInput)| {
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

fn shown(
    stage: &ReplayHarness<'_>,
    origin: CounterexampleSource,
    scene: ReplayInput,
    difference: OutcomeDifference,
) -> Counterexample {
    let (scene, difference) = smaller(stage, scene, difference);
    let slots = [0, 1].map(|which| localization::slot(stage, which, &scene, &difference.place));
    let name = |(map, entry): (usize, MapKeyValue)| (stage.maps[map].name.clone(), entry);
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
        writeln!(f, "  packet ({} bytes): {}{rest}", self.packet.len(), hex::encode(&self.packet[..shown]))?;
        if !self.context.is_empty() {
            let bytes: Vec<String> = self.context.iter().map(|(at, b)| format!("{at}: {b:#04x}")).collect();
            writeln!(f, "  context: {}", bytes.join(", "))?;
        }
        for (map, (key, value)) in &self.entries {
            writeln!(f, "  map {map:?}: {} -> {}", hex::encode(key), hex::encode(value))?;
        }
        if self.process != [0; 2] {
            let [thread, user] = self.process;
            writeln!(f, "  pid_tgid: {thread:#x}, uid_gid: {user:#x}")?;
        }
        write!(f, "  clock: {} ns, random state: {:#x}", self.time, self.seed)
    }
}
