//! Search spaces: knobs and their values.

use millstream_plan::PlanSettings;
use millstream_rng::Rng;

/// A setting that varies. Names are those of a schedule's keys, `template TABLE`, `without`, `workers` and
/// `stages`; tests have others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TuningKnob {
    /// Its name.
    pub name: String,
    /// Values; numbers are in ascending order, so that neighbours are alike.
    pub values: Vec<String>,
    /// Number of the value that the compiler takes by itself.
    pub usual: usize,
}

impl TuningKnob {
    /// A knob whose default is one of its values, or else the first one.
    pub fn new<V: Into<String>>(
        name: impl Into<String>,
        values: impl IntoIterator<Item = V>,
        usual: &str,
    ) -> TuningKnob {
        let values: Vec<String> = values.into_iter().map(Into::into).collect();
        let usual = values.iter().position(|value| value == usual).unwrap_or(0);
        TuningKnob { name: name.into(), values, usual }
    }
}

/// Prefix of the names of knobs that choose a table's template.
const TEMPLATE: &str = "template ";
/// Value of knobs that leave the choice to the compiler.
const UNSET: &str = "unset";

/// One number of a value for each knob.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Candidate(Vec<usize>);

/// All knobs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchSpace {
    /// The knobs. Those with one value do not vary.
    pub knobs: Vec<TuningKnob>,
}

impl SearchSpace {
    /// Adds a knob that chooses a table's template.
    pub fn add_template<'t>(&mut self, table: &str, templates: impl IntoIterator<Item = &'t str>) {
        let values = std::iter::once(UNSET).chain(templates);
        self.knobs.push(TuningKnob::new(format!("{TEMPLATE}{table}"), values, UNSET));
    }

    /// Adds a knob that leaves out one optimization at most.
    pub fn add_left_out<'t>(&mut self, optimizations: impl IntoIterator<Item = &'t str>) {
        let values = std::iter::once(UNSET).chain(optimizations);
        self.knobs.push(TuningKnob::new("without", values, UNSET));
    }

    /// Number of candidates.
    pub fn size(&self) -> u128 {
        self.knobs.iter().fold(1, |size: u128, knob| size.saturating_mul(knob.values.len().max(1) as u128))
    }

    /// The candidate with the compiler's choices.
    pub fn usual(&self) -> Candidate {
        Candidate(self.knobs.iter().map(|knob| knob.usual).collect())
    }

    /// The candidate nearest to these values: knobs that are not named, or lack the value, have their default.
    pub fn with_values(&self, values: &[(&str, String)]) -> Candidate {
        let of = |knob: &TuningKnob| {
            let wanted = values.iter().find(|(name, _)| *name == knob.name)?;
            knob.values.iter().position(|value| *value == wanted.1)
        };
        self.canonical(Candidate(self.knobs.iter().map(|knob| of(knob).unwrap_or(knob.usual)).collect()))
    }

    /// The candidate with another value of a knob.
    pub fn changed(&self, candidate: &Candidate, knob: usize, value: usize) -> Candidate {
        let mut changed = candidate.clone();
        if let Some(slot) = changed.0.get_mut(knob) {
            *slot = value;
        }
        self.canonical(changed)
    }

    /// Any candidate.
    pub(crate) fn random(&self, rng: &mut Rng) -> Candidate {
        let any = |knob: &TuningKnob| rng.below(knob.values.len().max(1) as u64) as usize;
        self.canonical(Candidate(self.knobs.iter().map(any).collect()))
    }

    /// A candidate with one to three other values, half of them neighbours of the old ones.
    pub(crate) fn mutated(&self, candidate: &Candidate, rng: &mut Rng) -> Candidate {
        let mut mutated = candidate.clone();
        let varied: Vec<usize> =
            (0..self.knobs.len()).filter(|&knob| self.knobs[knob].values.len() > 1).collect();
        if varied.is_empty() {
            return mutated;
        }
        for _ in 0..=rng.below(3) {
            let knob = varied[rng.below(varied.len() as u64) as usize];
            let count = self.knobs[knob].values.len();
            let Some(slot) = mutated.0.get_mut(knob) else { continue };
            *slot = match rng.below(4) {
                0 => (*slot + 1).min(count - 1),
                1 => slot.saturating_sub(1),
                _ => rng.below(count as u64) as usize,
            };
        }
        self.canonical(mutated)
    }

    /// A candidate that has each value from one of two.
    pub(crate) fn crossed(&self, one: &Candidate, other: &Candidate, rng: &mut Rng) -> Candidate {
        let pick = |(a, b): (&usize, &usize)| if rng.below(2) == 0 { *a } else { *b };
        self.canonical(Candidate(one.0.iter().zip(&other.0).map(pick).collect()))
    }

    /// Value of a knob in a candidate.
    pub fn value(&self, candidate: &Candidate, name: &str) -> Option<&str> {
        let at = self.knobs.iter().position(|knob| knob.name == name)?;
        self.knobs[at].values.get(*candidate.0.get(at)?).map(String::as_str)
    }

    /// Number of a knob's value in a candidate.
    pub(crate) fn number(&self, candidate: &Candidate, knob: usize) -> Option<usize> {
        candidate.0.get(knob).copied()
    }

    /// The same candidate with the defaults of the knobs that have no effect in it: distances where packets
    /// are not pipelined, sub-batches where they do not go in groups, flows of caches where there are none.
    pub(crate) fn canonical(&self, mut candidate: Candidate) -> Candidate {
        let mut unused: Vec<&str> = match self.value(&candidate, "pattern") {
            Some("packets") => vec!["sub-batch"],
            Some("groups" | "pipelined-groups") => vec!["distance"],
            _ => Vec::new(),
        };
        if self.value(&candidate, "traversals") == Some("off") {
            unused.push("flows");
        }
        for (slot, knob) in candidate.0.iter_mut().zip(&self.knobs) {
            if unused.contains(&knob.name.as_str()) {
                *slot = knob.usual;
            }
        }
        candidate
    }

    /// The settings of a candidate: those of its values that are not the defaults.
    ///
    /// # Errors
    /// If a knob of a schedule has a value that schedules do not have.
    pub fn settings(&self, candidate: &Candidate) -> Result<PlanSettings, String> {
        let mut settings = PlanSettings::default();
        for (&value, knob) in candidate.0.iter().zip(&self.knobs) {
            let Some(text) = knob.values.get(value).filter(|_| value != knob.usual) else { continue };
            match knob.name.as_str() {
                "without" => drop(settings.without.insert(text.clone())),
                "workers" => settings.workers = text.parse().ok(),
                "stages" => settings.stages = text.parse().ok(),
                name => match name.strip_prefix(TEMPLATE) {
                    Some(table) => drop(settings.templates.insert(table.to_owned(), text.clone())),
                    None => settings.schedule.set(name, text)?,
                },
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> SearchSpace {
        let mut space = SearchSpace {
            knobs: vec![
                TuningKnob::new("batch", ["16", "64", "256"], "64"),
                TuningKnob::new("pattern", ["fit", "packets", "groups"], "fit"),
                TuningKnob::new("distance", ["4", "8"], "8"),
                TuningKnob::new("sub-batch", ["8", "all"], "8"),
                TuningKnob::new("workers", ["1", "2"], "1"),
                TuningKnob::new("traversals", ["off", "whole"], "off"),
                TuningKnob::new("flows", ["256", "4096"], "4096"),
            ],
        };
        space.add_template("routes", ["packed", "list"]);
        space.add_left_out(["lookups"]);
        space
    }

    #[test]
    fn the_default_leaves_everything_to_the_compiler() {
        let space = space();
        assert_eq!(space.settings(&space.usual()), Ok(PlanSettings::default()));
        assert_eq!(space.size(), 3 * 3 * 2 * 2 * 2 * 2 * 2 * 3 * 2);
    }

    #[test]
    fn values_become_settings() {
        let space = space();
        let text = |name, value: &str| (name, value.to_owned());
        let values = [text("batch", "256"), text("template routes", "list"), text("without", "lookups")];
        let settings = space.settings(&space.with_values(&values)).unwrap();
        assert_eq!(settings.summary(), "batch=256 routes=list without lookups");
        assert!(space.with_values(&[text("batch", "57")]) == space.usual(), "no such value");
    }

    #[test]
    fn knobs_without_effect_have_their_defaults() {
        let (space, mut rng) = (space(), Rng::new(3));
        for _ in 0..1000 {
            let one = space.random(&mut rng);
            let other = space.crossed(&space.mutated(&one, &mut rng), &space.random(&mut rng), &mut rng);
            let settings = space.settings(&other).unwrap();
            let (pattern, changed) = (space.value(&other, "pattern"), settings.schedule);
            assert!(pattern != Some("packets") || changed.get("sub-batch").is_none());
            assert!(pattern != Some("groups") || changed.get("distance").is_none());
            assert!(changed.get("traversals").is_some() || changed.get("flows").is_none());
        }
    }
}
