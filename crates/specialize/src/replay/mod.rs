//! The judge: is a candidate the same as the original, and faster, on packets that were just seen?
//!
//! Packets that the instrumented variant kept are replayed by test runs, on the original twice and the
//! candidate once, in turn. Each has maps of its own in place of all that programs write (`sandbox`), filled
//! from the live ones at one moment; clocks and random numbers give all sides the same answers, and outgoing
//! effects are recorded (`replay_stubs`). If the original does the same twice and the candidate does not, in
//! verdict, packet, context, records or final contents of the maps, and does not again when everything is
//! repeated, the candidate differs. Then both are timed on these packets, interleaved, by the laboratory's
//! harness (`times`).
//!
//! A test run has everything in its caches and predicts every branch: its result is confirmed on live traffic
//! by `live::make`, which also watches later. The time that copies of entries save when a lookup misses the
//! processor's caches is not seen at all: a variant with such copies that is slower here is put on trial
//! there (`live::admission`).
//!
//! Invariant: judging changes nothing that others can see. A variant that cannot be judged in that way is not
//! ([`ReplayError`]), and is left to live traffic.

pub mod mismatch;
mod replay_stubs;
pub mod sample;
mod sandbox;
mod times;

use std::collections::BTreeSet;

use millstream_ir as ir;
use millstream_isa::MapType;
use millstream_kernel::{KernelMap, TestRun};
use millstream_lab::differential::compare::{self as compared, ObservedDifference, RunComparison, RunTriple};
use millstream_lab::os;
use millstream_lab::os::monotonic_ns;
use millstream_lab::stats::RatioEstimate;
use millstream_loader::Session;
use millstream_object::{FuncId, LinkedProgram, MapId};
use millstream_rng::Rng;

use millstream_specializer::transform::{EntryCache, PacketKind};
use millstream_specializer::variant::VariantCompiler;
use mismatch::ReplayMismatch;
use sample::PacketSample;
use sandbox::{InitialMapState, ReplaySandbox};

/// Packets that are replayed before a variant is installed.
const REPLAYED: usize = 512;
/// Repetitions in which a difference must show.
const CONFIRMATIONS: usize = 2;
/// Time between two packets, by the clocks that programs see.
const STEP_NS: u64 = 1_000;

/// A program that does nothing: `r0 = 2; exit`.
const PASSES: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

/// Inputs of a judgement.
#[derive(Debug)]
pub struct ReplayCase<'c, 's> {
    /// The compiler that made the candidate.
    pub compiler: &'c VariantCompiler,
    /// The live maps.
    pub session: &'s Session<'c>,
    /// The object's programs that run now, with their ids.
    pub programs: &'s [(FuncId, u32)],
    /// Maps on which it may have been specialised.
    pub specialised: BTreeSet<ir::Map>,
    /// Its code.
    pub candidate: &'s LinkedProgram,
    /// The code of the programs that belong to it, called by tail calls.
    pub callees: Vec<(FuncId, &'s LinkedProgram)>,
    /// The object's program arrays, and the placeholders of those through which the candidate calls.
    pub arrays: Vec<(MapId, MapId)>,
    /// Its twins, by the placeholders that they replace.
    pub twins: Vec<(MapId, &'s KernelMap)>,
    /// The inner maps that it names, by the placeholders that they replace.
    pub insides: Vec<(MapId, &'s KernelMap)>,
    /// Its caches: each side begins with empty ones.
    pub caches: Vec<EntryCache>,
    /// Value of the guard's token while it may run.
    pub token: u64,
    /// Packets.
    pub samples: &'s [PacketSample],
    /// CPU to run it all on: best one that handles few packets, for it is kept busy.
    pub cpu: usize,
    /// Callback that stops judging if something else must be done first.
    pub goes_on: ContinueCheck<'s>,
}

/// Callback that is asked now and then if judging is to go on.
#[derive(Clone, Copy)]
pub struct ContinueCheck<'f>(pub &'f (dyn Fn() -> bool + Sync));

impl std::fmt::Debug for ContinueCheck<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GoesOn").field(&(self.0)()).finish()
    }
}

impl ContinueCheck<'_> {
    fn check(self) -> Result<(), ReplayError> {
        if (self.0)() { Ok(()) } else { Err(ReplayError::Interrupted) }
    }
}

/// Reason why a variant cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It was told to stop.
    #[error("it was interrupted")]
    Interrupted,
    /// No packets.
    #[error("no packet was kept")]
    NoPackets,
    /// An effect on the outside cannot be contained.
    #[error("it calls {0}, which no replay can keep to itself")]
    Effect(String),
    /// A map that programs write and that cannot be copied.
    #[error("map {0:?} of type {1} cannot be copied")]
    Map(String, MapType),
    /// A map is too large to be copied.
    #[error("map {0:?} holds too much to be copied")]
    Large(String),
    /// A program array holds programs of others.
    #[error("program array {0:?} holds programs that are not the object's")]
    Foreign(String),
    /// A program could not be prepared for a replay.
    #[error("{0}")]
    Program(String),
    /// The object.
    #[error(transparent)]
    Loader(#[from] millstream_loader::Error),
    /// A program is not accepted in the form that is replayed.
    #[error("a replay's program: {0}")]
    Load(#[from] millstream_loader::ProgramError),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::KernelError),
    /// The laboratory.
    #[error(transparent)]
    Lab(#[from] millstream_lab::Error),
    /// No CPU to stay on.
    #[error("staying on one CPU: {0}")]
    Cpu(std::io::Error),
}

/// Result of judging.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplayResult {
    /// Packets that were replayed.
    pub packets: usize,
    /// Observables in which the original differs from itself, and which were not compared.
    pub varies: BTreeSet<String>,
    /// Result of comparing the two.
    pub finding: ReplayVerdict,
}

/// Result of comparing the two.
#[derive(Clone, PartialEq, Debug)]
pub enum ReplayVerdict {
    /// They differ.
    Different(Box<ReplayMismatch>),
    /// They do the same; time of the candidate over the original's, `None` if test runs cannot tell.
    Same(Option<RatioEstimate>),
}

/// Judges a candidate.
///
/// The ids of the programs that are loaded for it are given to `ours`, because they hold maps that others
/// watch.
///
/// # Errors
/// [`ReplayError`].
pub fn judge(case: &ReplayCase<'_, '_>, ours: &mut dyn FnMut(u32)) -> Result<ReplayResult, ReplayError> {
    on_one_cpu(case.cpu, || {
        let (mut judgement, replay) = replay(case, REPLAYED, ours)?;
        if let ReplayVerdict::Same(time) = &mut judgement.finding {
            case.goes_on.check()?;
            let ratio = times::ratio(case, &replay.sides, &replay.samples, case.cpu);
            case.goes_on.check()?;
            *time =
                ratio.inspect_err(|e| tracing::debug!("not timed by test runs: {}", e.error_chain())).ok();
        }
        Ok(judgement)
    })
}

/// Compares only, on so many packets or a few more: the samples are repeated until there are as many.
///
/// # Errors
/// [`ReplayError`].
pub fn compare(case: &ReplayCase<'_, '_>, packets: usize) -> Result<ReplayResult, ReplayError> {
    on_one_cpu(case.cpu, || Ok(replay(case, packets, &mut |_| ())?.0))
}

/// Runs `f` on one CPU, because values of each CPU are compared.
fn on_one_cpu<R>(cpu: usize, f: impl FnOnce() -> Result<R, ReplayError>) -> Result<R, ReplayError> {
    os::on_cpu(cpu, f).map_err(ReplayError::Cpu)?
}

fn replay<'c, 's, 'r>(
    case: &'r ReplayCase<'c, 's>,
    packets: usize,
    ours: &'r mut dyn FnMut(u32),
) -> Result<(ReplayResult, ReplayRun<'c, 's, 'r>), ReplayError> {
    let mut replay = ReplayRun::new(case, ours)?;
    let finding = match replay.difference(packets)? {
        Some(difference) => ReplayVerdict::Different(Box::new(difference)),
        None => ReplayVerdict::Same(None),
    };
    let varies = std::mem::take(&mut replay.varies);
    Ok((ReplayResult { packets: replay.packets, varies, finding }, replay))
}

/// Packets going through the original twice and the candidate once.
struct ReplayRun<'c, 's, 'r> {
    case: &'r ReplayCase<'c, 's>,
    moment: InitialMapState,
    original: LinkedProgram,
    samples: Vec<PacketSample>,
    /// The original, the same again, the candidate.
    sides: [ReplaySandbox<'c>; 3],
    ours: &'r mut dyn FnMut(u32),
    time: u64,
    packets: usize,
    varies: BTreeSet<String>,
}

/// A difference, and its position.
struct FirstDifference {
    /// Number of packets before it.
    after: usize,
    observable: ObservedDifference,
}

impl<'c, 's, 'r> ReplayRun<'c, 's, 'r> {
    fn new(case: &'r ReplayCase<'c, 's>, ours: &'r mut dyn FnMut(u32)) -> Result<Self, ReplayError> {
        if case.samples.is_empty() {
            return Err(ReplayError::NoPackets);
        }
        let moment = InitialMapState::take(case)?;
        let compiler = case.compiler;
        let original = compiler.object().link(compiler.program()).map_err(millstream_loader::Error::from)?;
        let sides = sides(case, &moment, &original, ours)?;
        let (samples, time) = (case.samples.to_vec(), monotonic_ns());
        let (packets, varies) = (0, BTreeSet::new());
        Ok(ReplayRun { case, moment, original, samples, sides, ours, time, packets, varies })
    }

    /// Finds a difference that shows each time.
    fn difference(&mut self, packets: usize) -> Result<Option<ReplayMismatch>, ReplayError> {
        if self.samples.iter().any(|s| !s.context.is_empty()) && !self.takes_contexts()? {
            self.samples.iter_mut().for_each(|s| s.context.clear());
        }
        let count = packets.div_ceil(self.samples.len()) * self.samples.len();
        let Some(seen) = self.play(count)? else { return Ok(None) };
        for _ in 0..CONFIRMATIONS {
            self.renew()?;
            match self.play(seen.after + 1)? {
                Some(again) if again.observable.same_place(&seen.observable) => {}
                _ => {
                    self.varies.insert(seen.observable.place());
                    return Ok(None);
                }
            }
        }
        let packets = (0..=seen.after).map(|n| self.samples[n % self.samples.len()].clone()).collect();
        let (case, moment) = (self.case, &self.moment);
        Ok(Some(ReplayMismatch::new(case, seen.observable, packets, moment.copied())))
    }

    /// Returns true if a program of this kind can be run in the context of the first packet. One that names a
    /// device which this thread's namespace does not know (it no longer exists) is left to the kernel.
    fn takes_contexts(&self) -> Result<bool, ReplayError> {
        let program = self.sides[0].session().load_raw(self.case.compiler.program(), &PASSES)?;
        let PacketSample { packet, context } = &self.samples[0];
        let run = || program.test_run(&TestRun { context, ..TestRun::packet(packet) });
        let is_cut = |e: &millstream_kernel::KernelError| e.errno() == Some(libc::EINTR);
        let mut ran = run();
        while ran.as_ref().is_err_and(is_cut) {
            ran = run();
        }
        Ok(ran.is_ok())
    }

    fn renew(&mut self) -> Result<(), ReplayError> {
        self.sides = sides(self.case, &self.moment, &self.original, self.ours)?;
        self.packets = 0;
        Ok(())
    }

    /// Runs so many packets on fresh maps; returns the first difference.
    fn play(&mut self, count: usize) -> Result<Option<FirstDifference>, ReplayError> {
        let mut rng = Rng::new(self.time);
        for after in 0..count {
            let sample = &self.samples[after % self.samples.len()];
            let (time, random) = (self.time + STEP_NS * after as u64, rng.next_u64());
            self.case.goes_on.check()?;
            // The sides take turns in coming first.
            for n in 0..3 {
                self.sides[(n + after) % 3].run(sample, time, random);
            }
            let [a, again, b] = self.sides.each_ref().map(ReplaySandbox::answer);
            self.packets += usize::from(a.output().is_some());
            let outputs = RunTriple { a: a.output(), again: again.output(), b: b.output() };
            let told = RunTriple { a: a.told.as_slice(), again: &again.told, b: &b.told };
            for found in [compared::outputs(outputs), compared::compare_records(told)] {
                if let Some(observable) = self.heed(found) {
                    return Ok(Some(FirstDifference { after, observable }));
                }
            }
        }
        let observable = self.maps_differ()?;
        Ok(observable.map(|observable| FirstDifference { after: count.saturating_sub(1), observable }))
    }

    fn maps_differ(&mut self) -> Result<Option<ObservedDifference>, ReplayError> {
        let [a, again, b] = &self.sides;
        let [a, again, b] =
            [a.contents(&self.moment)?, again.contents(&self.moment)?, b.contents(&self.moment)?];
        let object = self.case.compiler.object();
        let names: Vec<String> = self.moment.copied().iter().map(|copied| copied.name(object)).collect();
        for (n, name) in names.iter().enumerate() {
            let found = compared::maps(name, RunTriple { a: &a[n], again: &again[n], b: &b[n] });
            if let Some(observable) = self.heed(found) {
                return Ok(Some(observable));
            }
        }
        Ok(None)
    }

    fn heed(&mut self, compared: RunComparison) -> Option<ObservedDifference> {
        match compared {
            RunComparison::Same => None,
            RunComparison::Varies(what) => {
                self.varies.insert(what);
                None
            }
            RunComparison::Different(observable) => Some(observable),
        }
    }
}

/// The original twice and the candidate, each with maps of its own.
fn sides<'c>(
    case: &ReplayCase<'c, '_>,
    moment: &InitialMapState,
    original: &LinkedProgram,
    ours: &mut dyn FnMut(u32),
) -> Result<[ReplaySandbox<'c>; 3], ReplayError> {
    let new = |linked, callees| {
        case.goes_on.check()?;
        ReplaySandbox::new(case, moment, linked, callees)
    };
    let sides = [new(original, &[])?, new(original, &[])?, new(case.candidate, &case.callees)?];
    for side in &sides {
        side.ids()?.into_iter().for_each(&mut *ours);
    }
    Ok(sides)
}
