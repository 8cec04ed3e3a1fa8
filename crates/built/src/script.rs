//! Scripts of a configuration, carried out between batches, when no packet is under way.
//!
//! Invariant: a script that does not block for 1,000 jumps is ended, so that packets are never held up for long. Behind the last packet
//! no time passes: waits end at once, and a script that would go back ends.

mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use millstream_click::{Goal, Program, Script, ScriptKind, Step, unquoted};
use millstream_native::Engine;

use crate::handlers;
use words::{compute, is_true, split};

/// Jumps without a pause after which a script is ended, as in Click.
const MOST_JUMPS: u32 = 1000;
/// Scripts that run each other, and handlers in handlers.
const DEEPEST: u32 = 16;

/// Where a script is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Runs,
    /// Until this time.
    Waits(Duration),
    /// Until it has been stepped on so often.
    Pauses(u64),
    Done,
}

/// A script under way.
struct Run {
    script: Script,
    at: usize,
    state: State,
    variables: BTreeMap<String, String>,
    /// Instructions that are carried out once.
    begun: BTreeSet<usize>,
    /// Instructions whose mistake has been told.
    told: BTreeSet<usize>,
    value: String,
}

/// All scripts of a configuration.
#[derive(Default)]
pub struct Scripts {
    all: Vec<Run>,
    /// Requests to stop that no script has taken notice of.
    stops: u64,
    /// The run is to end.
    ended: bool,
    /// There are no more packets.
    ending: bool,
    depth: u32,
}

/// What scripts work with.
pub struct Surroundings<'s> {
    /// The configuration that runs.
    pub program: &'s Program,
    /// Its engine.
    pub engine: &'s mut Engine,
    /// The time, since 1970.
    pub now: Duration,
    /// What they print.
    pub out: &'s mut dyn Write,
    /// What they say of mistakes.
    pub errors: &'s mut dyn Write,
}

impl Scripts {
    /// The scripts of a program, at their beginning.
    pub fn new(program: &Program) -> Scripts {
        let run = |script: &Script| Run {
            at: 0,
            state: if script.kind == ScriptKind::Passive { State::Done } else { State::Runs },
            variables: BTreeMap::new(),
            begun: BTreeSet::new(),
            told: BTreeSet::new(),
            value: String::new(),
            script: script.clone(),
        };
        Scripts { all: program.scripts.iter().map(run).collect(), ..Scripts::default() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Carries out what is due; `false` to end the run.
    ///
    /// # Errors
    /// If what they print cannot be written.
    pub fn serve(&mut self, around: &mut Surroundings<'_>) -> io::Result<bool> {
        for at in 0..self.all.len() {
            match self.all[at].state {
                State::Waits(until) if until <= around.now => self.all[at].state = State::Runs,
                State::Pauses(_) if self.all[at].script.kind == ScriptKind::Driver && self.stops > 0 => {
                    self.stops -= 1;
                    self.all[at].state = State::Runs;
                }
                _ => {}
            }
            if self.all[at].state == State::Runs {
                self.go(at, around)?;
            }
        }
        Ok(!self.ended)
    }

    /// Carries out what scripts of the type `DRIVER` have to do when there are no more packets.
    ///
    /// # Errors
    /// If what they print cannot be written.
    pub fn finish(&mut self, around: &mut Surroundings<'_>) -> io::Result<()> {
        self.ending = true;
        for at in 0..self.all.len() {
            let run = &mut self.all[at];
            if run.script.kind == ScriptKind::Driver && run.state != State::Done {
                run.state = State::Runs;
                self.go(at, around)?;
            }
        }
        Ok(())
    }

    /// Carries out a script until it blocks or ends.
    fn go(&mut self, at: usize, around: &mut Surroundings<'_>) -> io::Result<()> {
        if self.depth == DEEPEST {
            return writeln!(
                around.errors,
                "{}: scripts run each other too deeply",
                self.all[at].script.element
            );
        }
        self.depth += 1;
        let mut jumps = 0;
        while self.all[at].state == State::Runs {
            let place = self.all[at].at;
            let Some(step) = self.all[at].script.steps.get(place).cloned() else {
                self.done(at);
                break;
            };
            self.all[at].at += 1;
            self.step(at, place, step, around)?;
            jumps += u32::from(self.all[at].at <= place);
            if jumps > 0 && self.ending {
                self.done(at);
            }
            if jumps == MOST_JUMPS {
                writeln!(
                    around.errors,
                    "{}: goes round without a pause, and is ended",
                    self.all[at].script.element
                )?;
                self.done(at);
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Ends a script. The run ends with one of the type `DRIVER`.
    fn done(&mut self, at: usize) {
        self.all[at].state = State::Done;
        self.ended |= self.all[at].script.kind == ScriptKind::Driver;
    }

    /// Asks for the end of the run: scripts of the type `DRIVER` decide, if there are any.
    fn stop(&mut self) {
        let driver = |run: &Run| run.script.kind == ScriptKind::Driver && run.state != State::Done;
        if self.all.iter().any(driver) {
            self.stops += 1;
        } else {
            self.ended = true;
        }
    }

    /// Carries out one instruction, at a place.
    fn step(&mut self, at: usize, place: usize, step: Step, around: &mut Surroundings<'_>) -> io::Result<()> {
        match step {
            Step::Set { name, text, unquoted: plain, once } => {
                if !once || self.all[at].begun.insert(place) {
                    let value = self.expand(at, place, &text, around)?;
                    let value = if plain { unquoted(&value) } else { value };
                    self.all[at].variables.insert(name, value);
                }
            }
            Step::Print { text, line } => {
                let handler = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '@');
                let expanded = self.expand(at, place, &text, around)?;
                let said = match handler {
                    true => self.read(at, place, &expanded, around)?,
                    false => unquoted(&expanded),
                };
                write!(around.out, "{said}{}", if line { "\n" } else { "" })?;
            }
            Step::Read(text) => {
                let name = self.expand(at, place, &text, around)?;
                let value = self.read(at, place, &name, around)?;
                writeln!(around.errors, "{name}:\n{value}")?;
            }
            Step::Write(text) => {
                let text = self.expand(at, place, &text, around)?;
                self.write(at, place, &text, around)?;
            }
            Step::Wait(text) => {
                let text = self.expand(at, place, &text, around)?;
                match millstream_click::time(&text) {
                    Some(_) if self.ending => {}
                    Some(nanoseconds) => {
                        self.all[at].state = State::Waits(around.now + Duration::from_nanos(nanoseconds));
                    }
                    None => self.mistake(at, place, &format!("`{text}` is no time"), around)?,
                }
            }
            Step::Pause(text) => {
                let count = self.expand(at, place, &text, around)?.parse().unwrap_or(1);
                let driver = self.all[at].script.kind == ScriptKind::Driver;
                let taken = if driver { count.min(self.stops) } else { 0 };
                self.stops -= taken;
                if count > taken && !self.ending {
                    self.all[at].state = State::Pauses(count - taken);
                }
            }
            Step::Goto(goal, condition) => {
                let goes = match condition {
                    Some(text) => is_true(&self.expand(at, place, &text, around)?),
                    None => true,
                };
                if goes {
                    self.leap(at, goal, around)?;
                }
            }
            Step::Return(text) => {
                let value = self.expand(at, place, &text, around)?;
                self.all[at].value = value;
                self.done(at);
            }
            Step::Error(message) => {
                writeln!(around.errors, "{}: {message}", self.all[at].script.element)?;
                self.done(at);
            }
        }
        Ok(())
    }

    fn leap(&mut self, at: usize, goal: Goal, around: &mut Surroundings<'_>) -> io::Result<()> {
        match goal {
            Goal::Step(to) => {
                self.all[at].at = to;
                return Ok(());
            }
            Goal::Stop => {
                // The one that asks has ended, whatever it is.
                self.all[at].state = State::Done;
                self.stop();
            }
            Goal::Error => writeln!(around.errors, "{}: ends with an error", self.all[at].script.element)?,
            Goal::End => {}
        }
        self.done(at);
        Ok(())
    }

    /// Tells of a mistake, once for each instruction.
    fn mistake(
        &mut self,
        at: usize,
        place: usize,
        what: &str,
        around: &mut Surroundings<'_>,
    ) -> io::Result<()> {
        match self.all[at].told.insert(place) {
            true => writeln!(around.errors, "{}: {what}", self.all[at].script.element),
            false => Ok(()),
        }
    }

    /// The place of the script `NAME` if a handler is `NAME.WHAT`, or `WHAT` alone for the script's own.
    fn script(&self, at: usize, handler: &str, what: &str) -> Option<usize> {
        if handler == what {
            return Some(at);
        }
        let element = handler.strip_suffix(what)?.strip_suffix('.')?;
        let near = scopes(&self.all[at].script.element, element);
        near.iter().find_map(|name| self.all.iter().position(|run| run.script.element == *name))
    }

    /// What a handler says, which may have arguments behind its name.
    fn read(
        &mut self,
        at: usize,
        place: usize,
        text: &str,
        around: &mut Surroundings<'_>,
    ) -> io::Result<String> {
        let (name, arguments) = words::first(text);
        let arguments = split(arguments);
        if name == "now" {
            return Ok(format!("{}.{:06}", around.now.as_secs(), around.now.subsec_micros()));
        }
        // Any script computes.
        let own = name.rsplit_once('.').map_or(Some(name), |(element, rest)| {
            let known = self.all.iter().any(|run| run.script.element == element);
            known.then_some(rest)
        });
        if let Some(value) = own.and_then(|name| compute(name, &arguments)) {
            return Ok(value);
        }
        if let Some(other) = self.script(at, name, "run") {
            self.run(other, &arguments, around)?;
            return Ok(std::mem::take(&mut self.all[other].value));
        }
        let near = scopes(&self.all[at].script.element, name);
        let argument = arguments.join(" ");
        let mut failure = None;
        for near in near {
            match handlers::read(around.program, around.engine, &format!("{near} {argument}")) {
                Ok(value) => return Ok(value),
                Err(e) if is_nowhere(&e, &near) => {}
                Err(other) => failure = failure.or(Some(other.to_string())),
            }
        }
        let why = failure.unwrap_or_else(|| format!("there is no handler `{name}` to read"));
        self.mistake(at, place, &why, around)?;
        Ok(String::new())
    }

    /// Writes a handler.
    fn write(
        &mut self,
        at: usize,
        place: usize,
        text: &str,
        around: &mut Surroundings<'_>,
    ) -> io::Result<()> {
        let (name, rest) = words::first(text);
        let mut status = 0;
        if name == "stop" {
            self.stop();
        } else if let Some(other) = self.script(at, name, "run") {
            self.run(other, &split(rest), around)?;
        } else if let Some(other) = self.script(at, name, "step") {
            self.advance(other, rest.trim().parse().unwrap_or(1));
        } else {
            let near = scopes(&self.all[at].script.element, name);
            let value = unquoted(rest.trim());
            let mut failure = None;
            let mut write = |name: &String| {
                match handlers::write(around.program, around.engine, &format!("{name} {value}")) {
                    Ok(()) => return true,
                    Err(e) if is_nowhere(&e, name) => {}
                    Err(other) => failure = failure.take().or(Some(other.to_string())),
                }
                false
            };
            if !near.iter().any(&mut write) {
                status = 1;
                let why = failure.unwrap_or_else(|| format!("there is no handler `{name}` to write"));
                self.mistake(at, place, &why, around)?;
            }
        }
        self.all[at].variables.insert("?".to_owned(), status.to_string());
        Ok(())
    }

    /// Runs a script from its beginning, unless it is under way.
    fn run(&mut self, at: usize, arguments: &[String], around: &mut Surroundings<'_>) -> io::Result<()> {
        let run = &mut self.all[at];
        if run.state != State::Done {
            return Ok(());
        }
        (run.at, run.state) = (0, State::Runs);
        run.variables.insert("args".to_owned(), arguments.join(" "));
        run.variables.insert("#".to_owned(), arguments.len().to_string());
        for (number, argument) in (1..).zip(arguments) {
            run.variables.insert(number.to_string(), argument.clone());
        }
        self.go(at, around)
    }

    /// Goes past what a script waits for, so often.
    fn advance(&mut self, at: usize, count: u64) {
        let run = &mut self.all[at];
        run.state = match run.state {
            State::Pauses(left) if left > count => State::Pauses(left - count),
            State::Pauses(_) | State::Waits(_) => State::Runs,
            other => other,
        };
    }

    /// A text with its variables and handlers replaced, but for those in single quotes.
    fn expand(
        &mut self,
        at: usize,
        place: usize,
        text: &str,
        around: &mut Surroundings<'_>,
    ) -> io::Result<String> {
        if self.depth == DEEPEST {
            return Ok(String::new());
        }
        self.depth += 1;
        let (mut out, mut rest) = (String::new(), text);
        while let Some(next) = rest.find(['$', '\'']) {
            out.push_str(&rest[..next]);
            rest = &rest[next..];
            let (length, value) = if let Some(quoted) = rest.strip_prefix('\'') {
                let length = quoted.find('\'').map_or(rest.len(), |end| end + 2);
                (length, rest[..length].to_owned())
            } else if let Some(inner) = words::parenthesized(&rest[1..]) {
                let name = self.expand(at, place, inner, around)?;
                (inner.len() + 3, self.read(at, place, &name, around)?)
            } else {
                let (name, length) = words::variable(&rest[1..]);
                let value = self.all[at].variables.get(name).cloned();
                (length + 1, value.unwrap_or_else(|| rest[..=length].to_owned()))
            };
            out.push_str(&value);
            rest = &rest[length..];
        }
        self.depth -= 1;
        out.push_str(rest);
        Ok(out)
    }
}

/// Whether a name is none of an element there is.
fn is_nowhere(error: &handlers::Error, name: &str) -> bool {
    match error {
        handlers::Error::NoElement { .. } => true,
        handlers::Error::Unknown { .. } => !name.contains('.'),
        _ => false,
    }
}

/// What a name may mean for an element: within the compound elements around it, innermost first.
fn scopes(element: &str, name: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut scope = element;
    while let Some((outer, _)) = scope.rsplit_once('/') {
        all.push(format!("{outer}/{name}"));
        scope = outer;
    }
    all.push(name.to_owned());
    all
}
