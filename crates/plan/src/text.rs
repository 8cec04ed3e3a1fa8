//! The text form of plans: `KEY: VALUE`, one a line, between a title and `end`.

use std::fmt;
use std::str::FromStr;

use crate::plan::{Plan, PlanGain, PlanSettings};
use crate::schedule::nearest;

/// First line: the format.
const TITLE: &str = "millstream plan ";
/// Format that is read and written.
const FORMAT: u32 = 1;
/// Last line, without which the text was cut.
const END: &str = "end";

/// Reason why a text is not a plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct PlanError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

/// Keys of lines, except those of schedules.
const KEYS: [&str; 13] = [
    "program", "hash", "version", "machine", "traffic", "goal", "tried", "gain", "why", "template",
    "without", "workers", "stages",
];
/// Keys that every plan has.
const NEEDED: [&str; 4] = ["program", "hash", "version", "machine"];
/// Keys that may come several times.
const REPEATED: [&str; 3] = ["why", "template", "without"];

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { origin, gain, why, settings } = self;
        let line = |text: &str| text.replace(char::is_control, " ").trim().to_owned();
        writeln!(f, "{TITLE}{FORMAT}")?;
        writeln!(
            f,
            "# Settings that change speed and not behaviour; what is not here, the compiler decides."
        )?;
        writeln!(f, "program: {}", line(&origin.program.name))?;
        writeln!(f, "hash: {:016x}", origin.program.hash)?;
        writeln!(f, "version: {}", line(&origin.version))?;
        writeln!(f, "machine: {}", line(&origin.machine))?;
        for (key, value) in [("traffic", &origin.traffic), ("goal", &origin.goal)] {
            if !value.is_empty() {
                writeln!(f, "{key}: {}", line(value))?;
            }
        }
        writeln!(f, "tried: {}", origin.trials)?;
        if let Some(gain) = gain {
            writeln!(f, "gain: {gain}")?;
        }
        why.iter().try_for_each(|why| writeln!(f, "why: {}", line(why)))?;
        settings.schedule.iter().try_for_each(|(key, value)| writeln!(f, "{key}: {value}"))?;
        for (table, template) in &settings.templates {
            writeln!(f, "template: {}={}", line(table), line(template))?;
        }
        settings.without.iter().try_for_each(|name| writeln!(f, "without: {}", line(name)))?;
        for (key, number) in [("workers", settings.workers), ("stages", settings.stages)] {
            if let Some(number) = number {
                writeln!(f, "{key}: {number}")?;
            }
        }
        writeln!(f, "{END}")
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let at = |line: usize, message: String| PlanError { line, message };
        let mut lines = text.lines().zip(1..);
        let title = lines.next().map_or("", |(line, _)| line).trim_end();
        match title.strip_prefix(TITLE).map(str::parse::<u32>) {
            Some(Ok(FORMAT)) => {}
            Some(Ok(other)) => {
                return Err(at(1, format!("format {other} is not known; this version reads {FORMAT}")));
            }
            _ => return Err(at(1, format!("not a plan: it begins with `{TITLE}{FORMAT}`"))),
        }
        let (mut reader, mut last, mut ended) = (PlanReader::default(), 1, false);
        for (line, number) in lines {
            last = number;
            let line = line.trim();
            match line {
                "" => {}
                _ if line.contains(char::is_control) => {
                    return Err(at(number, "there is a control character".to_owned()));
                }
                _ if line.starts_with('#') => {}
                _ if ended => return Err(at(number, format!("nothing follows `{END}`"))),
                END => ended = true,
                _ => reader.read(line).map_err(|message| at(number, message))?,
            }
        }
        if !ended {
            return Err(at(last, format!("the plan ends without `{END}`: it was cut")));
        }
        reader.finish().map_err(|message| at(last, message))
    }
}

/// A plan that is being read.
#[derive(Default)]
struct PlanReader {
    plan: Plan,
    /// Keys so far.
    seen: Vec<String>,
}

impl PlanReader {
    fn read(&mut self, line: &str) -> Result<(), String> {
        let (key, value) = line.split_once(':').ok_or_else(|| format!("`{line}` is not KEY: VALUE"))?;
        let (key, value) = (key.trim(), value.trim());
        if self.seen.iter().any(|seen| seen == key) && !REPEATED.contains(&key) {
            return Err(format!("{key} is set twice"));
        }
        self.seen.push(key.to_owned());
        let Plan { origin, gain, why, settings } = &mut self.plan;
        match key {
            "program" => value.clone_into(&mut origin.program.name),
            "hash" => {
                origin.program.hash = u64::from_str_radix(value, 16)
                    .map_err(|_| format!("hash: {value}: not a hexadecimal number"))?;
            }
            "version" => value.clone_into(&mut origin.version),
            "machine" => value.clone_into(&mut origin.machine),
            "traffic" => value.clone_into(&mut origin.traffic),
            "goal" => value.clone_into(&mut origin.goal),
            "tried" => {
                origin.trials = value.parse().map_err(|_| format!("tried: {value}: not a number"))?;
            }
            "gain" => *gain = Some(read_gain(value)?),
            "why" => why.push(value.to_owned()),
            _ => return read_setting(settings, key, value),
        }
        Ok(())
    }

    fn finish(self) -> Result<Plan, String> {
        match NEEDED.iter().find(|key| !self.seen.iter().any(|seen| seen == *key)) {
            None => Ok(self.plan),
            Some(key) => Err(format!("there is no line `{key}: ...`")),
        }
    }
}

fn read_setting(settings: &mut PlanSettings, key: &str, value: &str) -> Result<(), String> {
    let number = || {
        let number = value.parse().ok().filter(|n| (1..=PlanSettings::MOST_WORKERS).contains(n));
        number.ok_or_else(|| format!("{key}: {value}: not a number from 1 to {}", PlanSettings::MOST_WORKERS))
    };
    match key {
        "template" => {
            let (table, template) = value
                .rsplit_once('=')
                .map(|(table, template)| (table.trim(), template.trim()))
                .filter(|(table, template)| !table.is_empty() && !template.is_empty())
                .ok_or_else(|| format!("template: {value}: not TABLE=TEMPLATE"))?;
            if settings.templates.insert(table.to_owned(), template.to_owned()).is_some() {
                return Err(format!("template: {table} has two"));
            }
        }
        "without" if value.is_empty() => return Err("without: nothing is named".to_owned()),
        "without" => {
            settings.without.insert(value.to_owned());
        }
        "workers" => settings.workers = Some(number()?),
        "stages" => settings.stages = Some(number()?),
        _ => {
            let known = crate::schedule::KEYS;
            if !known.contains(&key) {
                let all: Vec<&str> = KEYS.iter().chain(&known).copied().collect();
                let near = nearest(key, &all).map(|near| format!("; did you mean `{near}`?"));
                let all = || format!("; there are {}", all.join(", "));
                return Err(format!("there is no {key:?} in plans{}", near.unwrap_or_else(all)));
            }
            settings.schedule.set(key, value)?;
        }
    }
    Ok(())
}

/// Reads `FACTOR (LOW to HIGH)`.
fn read_gain(text: &str) -> Result<PlanGain, String> {
    let read = || {
        let (factor, rest) = text.split_once('(')?;
        let (low, high) = rest.strip_suffix(')')?.split_once(" to ")?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
        Some(PlanGain { factor: number(factor)?, interval: [number(low)?, number(high)?] })
    };
    read().ok_or_else(|| format!("gain: {text}: not FACTOR (LOW to HIGH)"))
}

#[cfg(test)]
mod tests {
    use millstream_rng::Rng;

    use super::*;
    use crate::plan::{PlanMismatch, PlanOrigin, ProgramIdentity};
    use crate::schedule::{Schedule, SchedulePattern};

    fn sample() -> Plan {
        let mut settings = PlanSettings { workers: Some(2), ..PlanSettings::default() };
        for (key, value) in [("batch", "128"), ("pattern", "groups"), ("fetch", "a b+c"), ("trials", "off")] {
            settings.schedule.set(key, value).unwrap();
        }
        settings.templates.insert("rt/routes".to_owned(), "packed".to_owned());
        settings.templates.insert("a = b".to_owned(), "cuckoo".to_owned());
        settings.without.insert("descriptors".to_owned());
        let program = ProgramIdentity { name: "router.click".to_owned(), hash: 0xabc };
        let origin = PlanOrigin {
            program,
            version: "0.1.0".to_owned(),
            machine: "a processor, 2 processors".to_owned(),
            traffic: "1024 flows".to_owned(),
            goal: "throughput".to_owned(),
            trials: 57,
        };
        let gain = Some(PlanGain { factor: 1.25, interval: [1.2, 1.3125] });
        Plan { origin, gain, why: vec!["batch: less per batch".to_owned()], settings }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let plans = [sample(), Plan { gain: None, settings: PlanSettings::default(), ..sample() }];
        for plan in plans {
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        let schedule = sample().settings.schedule.apply(&Schedule::default());
        assert_eq!((schedule.batch, schedule.pattern), (128, SchedulePattern::Groups));
        assert_eq!(schedule.distance, Schedule::default().distance, "what is unset stays");
    }

    #[test]
    fn no_key_of_a_plan_is_one_of_a_schedule() {
        assert!(!KEYS.iter().any(|key| crate::schedule::KEYS.contains(key)));
    }

    #[test]
    fn damage_is_an_error_with_its_line() {
        let text = sample().to_string();
        let changed = |from: &str, to: &str| text.replacen(from, to, 1).parse::<Plan>().unwrap_err();
        for (from, to, line, said) in [
            ("plan 1", "plan 9", 1, "format 9 is not known"),
            ("millstream plan", "another text", 1, "not a plan"),
            ("hash: 0", "hash: x", 4, "not a hexadecimal number"),
            ("batch: 128", "batch: 0", 12, "from 1 to 4096"),
            ("batch: 128", "bacth: 128", 12, "did you mean `batch`?"),
            ("pattern: groups", "batch: 64", 13, "batch is set twice"),
            ("gain: 1.25 (", "gain: fast (", 10, "not FACTOR"),
            ("workers: 2", "workers: 65", 19, "from 1 to 64"),
            ("template: a = b=cuckoo", "template: none", 16, "not TABLE=TEMPLATE"),
            ("without: descriptors", "without descriptors", 18, "is not KEY: VALUE"),
            ("end\n", "", 19, "it was cut"),
            ("end\n", "end\nbatch: 3\n", 21, "nothing follows"),
            ("version: 0.1.0\n", "", 19, "there is no line `version"),
        ] {
            let error = changed(from, to);
            assert!(error.line == line && error.message.contains(said), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn random_damage_is_an_error_or_another_plan_and_never_a_panic() {
        let (text, mut rng) = (sample().to_string().into_bytes(), Rng::new(1));
        for _ in 0..5000 {
            let mut damaged = text.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(damaged.len() as u64) as usize;
                match rng.below(3) {
                    0 => damaged[at] = rng.below(256) as u8,
                    1 => drop(damaged.remove(at)),
                    _ => damaged.truncate(at.max(8)),
                }
            }
            if let Ok(plan) = String::from_utf8_lossy(&damaged).parse::<Plan>() {
                assert_eq!(plan.to_string().parse(), Ok(plan), "what is read can be written");
            }
        }
    }

    #[test]
    fn a_plan_of_another_program_version_or_machine_says_so() {
        let plan = sample();
        let machine = &plan.origin.machine;
        assert_eq!(plan.mismatches(0xabc, "0.1.0", machine), []);
        let all = plan.mismatches(1, "0.2.0", "another");
        assert!(matches!(
            all[..],
            [PlanMismatch::Program { .. }, PlanMismatch::Version { .. }, PlanMismatch::Machine { .. }]
        ));
    }
}
