//! Verdict on a mutant: refuted, proven to be the same, or undecided; and a check of that verdict.

use std::collections::BTreeMap;
use std::time::Instant;

use millstream_object::{FuncId, Object};
use millstream_prove::{CounterexampleSource, ProofLimits, ProofVerdict, Solver, differ, prove};

use crate::mutate::{CLASSES, Rng, mutant};

/// Checks for each mutant.
pub(crate) struct Plan<'a> {
    pub(crate) solver: Option<&'a Solver>,
    pub(crate) limits: ProofLimits,
    /// Packets tried on a mutant that is said to be equivalent.
    pub(crate) tries: usize,
}

/// Verdicts on mutants.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) made: usize,
    /// Refuted by a packet that was made up.
    pub(crate) by_run: usize,
    /// Refuted by a solver's scene.
    pub(crate) by_solver: usize,
    pub(crate) equivalent: usize,
    /// Undecided, by reason.
    pub(crate) undecided: BTreeMap<String, usize>,
    /// Mutants made of each class, and refuted, equivalent, undecided.
    pub(crate) classes: BTreeMap<String, [usize; 4]>,
    /// Counterexamples that did not reproduce the difference.
    pub(crate) not_replayed: Vec<String>,
    /// Mutants said to be equivalent although a packet tells them apart.
    pub(crate) wrong: Vec<String>,
    pub(crate) seconds: f64,
}

impl Tally {
    /// Adds another tally.
    pub(crate) fn add(&mut self, other: Tally) {
        self.made += other.made;
        self.by_run += other.by_run;
        self.by_solver += other.by_solver;
        self.equivalent += other.equivalent;
        for (reason, n) in other.undecided {
            *self.undecided.entry(reason).or_default() += n;
        }
        for (class, counts) in other.classes {
            let all = self.classes.entry(class).or_default();
            all.iter_mut().zip(counts).for_each(|(a, b)| *a += b);
        }
        self.not_replayed.extend(other.not_replayed);
        self.wrong.extend(other.wrong);
        self.seconds += other.seconds;
    }
}

/// A change to a program, which can be reproduced by anybody who has the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// A number of [`CLASSES`].
    pub(crate) class: usize,
    pub(crate) seed: u64,
}

impl Change {
    /// The `attempt`th change tried for mutant `number`; another class is tried if one fits nothing in a
    /// program.
    pub(crate) fn new(number: u64, attempt: u64) -> Change {
        let class = ((number + attempt / 20) % CLASSES.len() as u64) as usize;
        let mixed = (number << 16 | attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Change { class, seed: mixed ^ mixed >> 29 }
    }

    /// The object with the change, and a description of it.
    pub(crate) fn made(self, object: &Object, func: FuncId) -> Option<(Object, String)> {
        mutant(object, func, CLASSES[self.class], &mut Rng::new(self.seed))
    }
}

/// Judges a mutant of a program.
pub(crate) fn judge(object: &Object, func: FuncId, change: Change, plan: &Plan<'_>) -> Tally {
    let mut tally = Tally::default();
    let Some((changed, what)) = change.made(object, func) else { return tally };
    let start = Instant::now();
    tally.made = 1;
    let pair = ((object, func), (&changed, func));
    let at = match prove(pair.0, pair.1, plan.solver, &plan.limits).verdict {
        ProofVerdict::Equivalent => {
            tally.equivalent = 1;
            if let Some(found) = differ(pair.0, pair.1, plan.tries, change.seed) {
                tally.wrong.push(format!("{what}: proven equivalent, but\n{found}"));
            }
            2
        }
        ProofVerdict::Differs(found) => {
            match found.origin {
                CounterexampleSource::MadeUp => tally.by_run = 1,
                CounterexampleSource::Solver => tally.by_solver = 1,
            }
            if !found.shows(pair.0, pair.1) {
                tally.not_replayed.push(what);
            }
            1
        }
        ProofVerdict::Unknown { reason } => {
            tally.undecided.insert(summary(&reason), 1);
            if std::env::var_os("MILLSTREAM_VERBOSE").is_some() {
                eprintln!("undecided: {} {what}: {reason}", object.name);
            }
            3
        }
    };
    let counts = tally.classes.entry(format!("{:?}", CLASSES[change.class])).or_default();
    counts[0] += 1;
    counts[at] += 1;
    tally.seconds = start.elapsed().as_secs_f64();
    tally
}

/// A reason without the details of one program.
fn summary(reason: &str) -> String {
    for common in [
        "the solver sees a difference that no run of the two has shown",
        "ran out of time",
        "the time was over",
        "more terms than the limit",
        "no solver at hand",
    ] {
        if reason.contains(common) {
            return common.to_owned();
        }
    }
    let words = |c: char| c.is_ascii_digit() || c == '"';
    reason.split(words).next().unwrap_or(reason).trim().to_owned()
}
