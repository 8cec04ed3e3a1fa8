//! Scripts of a configuration, executed between batches, when no packet is under way.
//!
//! Time is the run's time, which elements use, too. If only scripts can go on (no more packets, or none that
//! may come by itself), time jumps to the first script's deadline ([`ScriptRunner::idle`]), and packets that
//! the script releases are run.
//!
//! Invariant: a script that does not block for 1,000 jumps is ended, so that packets are never held up for
//! long. A script that loops without end while no packet comes is ended, too.

mod expressions;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use millstream_click::{
    ClickProgram, Handler, JumpTarget, Script, ScriptKind, ScriptStep, seconds_text, signal_number, unquoted,
};
use millstream_native::NativeEngine;
use millstream_rng::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::handlers::{self, HandlerError};
use expressions::{compute, is_true, split};

/// Jumps without a pause after which a script is ended, as in Click.
const MOST_JUMPS: u32 = 1000;
/// Largest random number, without bounds: RAND_MAX of the C library.
const RANDOM_MAX: u64 = 0x7fff_ffff;
/// Functions that need the script.
const FUNCTIONS: [&str; 7] = ["get", "set", "shift", "readable", "writable", "random", "kill"];
/// Functions that only scripts may call.
const PRIVATE: [&str; 3] = ["cat", "catq", "kill"];
/// Depth of nesting: scripts that run each other, and handlers in handlers.
const DEEPEST: u32 = 16;

/// Execution state of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ScriptState {
    Runs,
    /// Until this time.
    Waits(Duration),
    /// Until so many further steps have been requested.
    Pauses(u64),
    Done,
}

/// A script under way.
struct ScriptRun {
    script: Script,
    at: usize,
    state: ScriptState,
    variables: BTreeMap<String, String>,
    /// Run-once instructions that have been executed.
    begun: BTreeSet<usize>,
    /// Instructions whose error was reported.
    told: BTreeSet<usize>,
    /// Variables that are handlers, too.
    exported: BTreeSet<String>,
    /// True if no signal starts it any more.
    is_over: bool,
    value: String,
    /// True if a variable has changed since the last backward jump.
    changed: bool,
    /// Backward jumps while only scripts could go on, since the last packet.
    rounds: u32,
}

/// All scripts of a configuration.
pub struct ScriptRunner {
    all: Vec<ScriptRun>,
    /// Requests to stop that no script has handled.
    stops: u64,
    /// True if the run is to end.
    ended: bool,
    /// True if only scripts can go on.
    is_idle: bool,
    /// Total of the jumps in time, where the run's clock does not jump itself.
    leapt: Duration,
    depth: u32,
    /// Scripts that code calls.
    calls: Vec<CallCounter>,
    /// Numbers of the function `random`, the same in every run.
    random: Rng,
}

/// A script that code calls, and its number of runs so far.
struct CallCounter {
    /// Offset, in the state, of the counter of its calls.
    due: u32,
    script: usize,
    done: u64,
    /// The array for values of runs, if packets wait for them, and its number of entries.
    results: Option<(String, u32)>,
    /// Offset, in the state, of the time that the variable `t` has.
    time: Option<u32>,
}

/// Result of [`ScriptRunner::idle`], when only scripts can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdleOutcome {
    /// Scripts have gone on, or will at their time: there may be packets again.
    Again,
    /// Nothing: no script waits for anything that comes by itself.
    Over,
}

/// Environment of scripts.
pub struct ScriptEnvironment<'s> {
    /// The configuration that runs.
    pub program: &'s ClickProgram,
    /// Its engine.
    pub engine: &'s mut NativeEngine,
    /// The time, since 1970.
    pub now: Duration,
    /// Output of scripts.
    pub out: &'s mut dyn Write,
    /// Error messages of scripts.
    pub errors: &'s mut dyn Write,
}

impl ScriptRunner {
    /// Scripts of a program, each at its first instruction.
    pub fn new(program: &ClickProgram) -> ScriptRunner {
        let run = |script: &Script| ScriptRun {
            at: 0,
            state: if script.kind.is_called() { ScriptState::Done } else { ScriptState::Runs },
            variables: BTreeMap::new(),
            begun: BTreeSet::new(),
            told: BTreeSet::new(),
            exported: BTreeSet::new(),
            is_over: false,
            value: String::new(),
            changed: false,
            rounds: 0,
            script: script.clone(),
        };
        let calls = program.calls.iter().map(|call| CallCounter {
            due: call.due,
            script: call.script,
            done: 0,
            results: call.results.clone(),
            time: call.time,
        });
        let all = program.scripts.iter().map(run).collect();
        ScriptRunner {
            all,
            stops: 0,
            ended: false,
            is_idle: false,
            leapt: Duration::ZERO,
            depth: 0,
            calls: calls.collect(),
            random: Rng::new(1),
        }
    }

    /// Returns true if there are no scripts.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Executes the scripts that are due. Returns `false` to end the run.
    ///
    /// # Errors
    /// If what they print cannot be written.
    pub fn run_due(&mut self, around: &mut ScriptEnvironment<'_>) -> io::Result<bool> {
        self.called(around)?;
        for at in 0..self.all.len() {
            match self.all[at].state {
                ScriptState::Waits(until) if until <= self.now(around) => {
                    self.all[at].state = ScriptState::Runs
                }
                // A request to stop ends a wait for a time, too.
                ScriptState::Pauses(_) | ScriptState::Waits(_)
                    if self.all[at].script.kind == ScriptKind::Driver && self.stops > 0 =>
                {
                    self.stops -= 1;
                    self.all[at].state = ScriptState::Runs;
                }
                _ => {}
            }
            if self.all[at].state == ScriptState::Runs {
                self.go(at, around)?;
            }
        }
        Ok(!self.ended)
    }

    /// The time that scripts see.
    fn now(&self, around: &ScriptEnvironment<'_>) -> Duration {
        around.now + self.leapt
    }

    /// Earliest time at which a waiting script goes on.
    pub fn next_deadline(&self) -> Option<Duration> {
        let until =
            |run: &ScriptRun| if let ScriptState::Waits(until) = run.state { Some(until) } else { None };
        self.all.iter().filter_map(until).min()
    }

    /// Notes that packets come, or may come by themselves.
    pub fn mark_busy(&mut self) {
        if std::mem::take(&mut self.is_idle) {
            self.all.iter_mut().for_each(|run| run.rounds = 0);
        }
    }

    /// Notes that only scripts can go on.
    pub fn mark_idle(&mut self) {
        self.is_idle = true;
    }

    /// Only scripts can go on. Time jumps to the first script's deadline: here if `leaps`, else by the run's
    /// own clock. If no script waits for a time, scripts of type `DRIVER` that wait for a stop request get
    /// one.
    ///
    /// # Errors
    /// If what they print cannot be written.
    pub fn idle(&mut self, around: &mut ScriptEnvironment<'_>, leaps: bool) -> io::Result<IdleOutcome> {
        self.is_idle = true;
        if self.ended {
            return Ok(IdleOutcome::Over);
        }
        let now = self.now(around);
        match self.next_deadline() {
            Some(due) if leaps => self.leapt += due.saturating_sub(now),
            Some(due) if due > now => return Ok(IdleOutcome::Again),
            Some(_) => {}
            None => {
                let pauses = |run: &ScriptRun| {
                    run.script.kind == ScriptKind::Driver && matches!(run.state, ScriptState::Pauses(_))
                };
                if !self.all.iter().any(pauses) {
                    return Ok(IdleOutcome::Over);
                }
                self.stops += 1;
            }
        }
        self.run_due(around)?;
        Ok(IdleOutcome::Again)
    }

    /// Runs scripts that code has called.
    fn called(&mut self, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        if self.calls.is_empty() {
            return Ok(());
        }
        let state = handlers::state(around.engine);
        for at in 0..self.calls.len() {
            let due = handlers::number(&state, self.calls[at].due);
            while self.calls[at].done < due {
                self.call(at, around)?;
            }
        }
        Ok(())
    }

    /// Runs a script that code has called, and passes its value on.
    fn call(&mut self, at: usize, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        let CallCounter { script, done, results, time, .. } = &mut self.calls[at];
        let (script, number, results, time) = (*script, *done, results.clone(), *time);
        *done += 1;
        let run = &mut self.all[script];
        run.value.clear();
        run.is_over = false;
        if let Some(time) = time {
            let time = handlers::number(&handlers::state(around.engine), time) as i64;
            run.variables.insert("t".to_owned(), seconds_text(time));
        }
        self.run(script, &[], around)?;
        let Some((array, entries)) = results else { return Ok(()) };
        let run = &self.all[script];
        let output: i64 = match run.value.trim() {
            _ if run.is_over => -1,
            "" => 0,
            value => value.parse().unwrap_or(-1),
        };
        let place = (number % u64::from(entries.max(1))) as u32;
        if let Some(map) = around.engine.map(&array) {
            // Entries of arrays always exist, so the update cannot fail.
            map.update(&place.to_ne_bytes(), &output.to_le_bytes(), 0, None);
        }
        Ok(())
    }

    /// Ends the run: executes the final instructions of scripts of type `DRIVER`. Others end where they are.
    ///
    /// # Errors
    /// If what they print cannot be written.
    pub fn finish(&mut self, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        if !self.ended {
            self.is_idle = true;
            self.ask_to_stop(around)?;
            while self.idle(around, true)? == IdleOutcome::Again {}
        }
        Ok(())
    }

    /// Returns true if the run is to end.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Requests the end of the run. Scripts of type `DRIVER` decide on it, if there are any.
    ///
    /// # Errors
    /// If what they print cannot be written.
    pub fn ask_to_stop(&mut self, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        self.stop();
        self.run_due(around).map(|_| ())
    }

    /// Runs the script with this number from its beginning, for another script or an element.
    ///
    /// # Errors
    /// If what it prints cannot be written.
    pub fn run_script(&mut self, script: usize, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        if script < self.all.len() { self.run(script, &[], around) } else { Ok(()) }
    }

    /// Scripts that signals start, and the numbers of these.
    pub fn signal_scripts(&self) -> Vec<(usize, Vec<i32>)> {
        let of_signals = |(_, run): &(usize, &ScriptRun)| run.script.kind == ScriptKind::Signal;
        let found = self.all.iter().enumerate().filter(of_signals);
        found.map(|(at, run)| (at, run.script.signals.clone())).collect()
    }

    /// Runs a script that a signal starts. Returns `false` if no signal is to start it again.
    ///
    /// # Errors
    /// If what it prints cannot be written.
    pub fn run_for_signal(&mut self, script: usize, around: &mut ScriptEnvironment<'_>) -> io::Result<bool> {
        self.run_script(script, around)?;
        Ok(self.all.get(script).is_some_and(|run| !run.is_over))
    }

    /// Carries out a script until it blocks or ends.
    fn go(&mut self, at: usize, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        if self.depth == DEEPEST {
            return writeln!(
                around.errors,
                "{}: scripts run each other too deeply",
                self.all[at].script.element
            );
        }
        self.depth += 1;
        let mut jumps = 0;
        while self.all[at].state == ScriptState::Runs {
            let place = self.all[at].at;
            let Some(step) = self.all[at].script.steps.get(place).cloned() else {
                self.done(at);
                break;
            };
            self.all[at].at += 1;
            self.step(at, place, step, around)?;
            if self.all[at].at <= place && self.all[at].state == ScriptState::Runs {
                jumps += 1;
                if self.is_idle && !self.goes_round(at, place) {
                    self.done(at);
                }
            }
            if jumps == MOST_JUMPS {
                let name = self.declaration(at, around.program);
                writeln!(around.errors, "{name}: too many jumps, giving up")?;
                self.done(at);
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Name and class of a script, as Click's messages have them.
    fn declaration(&self, at: usize, program: &ClickProgram) -> String {
        let element = &self.all[at].script.element;
        let is_class = |h: &&Handler| h.element == *element && h.name == "class";
        let class = program.handlers.iter().find(is_class).and_then(|h| h.access.fixed_text());
        format!("{element} :: {}", class.unwrap_or("Script"))
    }

    /// Returns true if a script that has jumped back while only scripts can go on may terminate: a variable
    /// has changed, and the loop has an exit. A loop that does not wait is ended for its many jumps.
    fn goes_round(&mut self, at: usize, place: usize) -> bool {
        let run = &mut self.all[at];
        let round = run.script.steps.get(run.at..=place).unwrap_or_default();
        let waits = |step: &ScriptStep| matches!(step, ScriptStep::Wait(_) | ScriptStep::Pause(_));
        let ways_out = |step: &ScriptStep| matches!(step, ScriptStep::Goto(_, Some(_)));
        let (waits, way_out) = (round.iter().any(waits), round.iter().any(ways_out));
        run.rounds += 1;
        let changed = std::mem::take(&mut run.changed);
        !waits || changed && way_out && run.rounds < MOST_JUMPS
    }

    /// Ends a script. The run ends with one of the type `DRIVER`.
    fn done(&mut self, at: usize) {
        self.all[at].state = ScriptState::Done;
        self.ended |= self.all[at].script.kind == ScriptKind::Driver;
    }

    /// Requests the end of the run: scripts of the type `DRIVER` decide, if there are any.
    fn stop(&mut self) {
        let driver =
            |run: &ScriptRun| run.script.kind == ScriptKind::Driver && run.state != ScriptState::Done;
        if self.all.iter().any(driver) {
            self.stops += 1;
        } else {
            self.ended = true;
        }
    }

    /// Executes the instruction at a place.
    fn step(
        &mut self,
        at: usize,
        place: usize,
        step: ScriptStep,
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<()> {
        match step {
            ScriptStep::Set { name, text, unquoted: plain, once, exported } => {
                if !once || self.all[at].begun.insert(place) {
                    let value = self.expand(at, place, &text, around)?;
                    let value = if plain { unquoted(&value) } else { value };
                    let run = &mut self.all[at];
                    run.changed |= run.variables.get(&name) != Some(&value);
                    if exported {
                        run.exported.insert(name.clone());
                    }
                    run.variables.insert(name, value);
                }
            }
            ScriptStep::Print { text, unquoted: plain, line, file } => {
                let handler = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '@');
                let expanded = self.expand(at, place, &text, around)?;
                let said = match handler {
                    true => self.read(at, place, &with_quotes(expanded, plain), around)?,
                    false => Some(unquoted(&expanded)),
                };
                // A handler that could not be read gives no line.
                let Some(mut said) = said else { return Ok(()) };
                if line && !said.ends_with('\n') {
                    said.push('\n');
                }
                match file {
                    Some((name, append)) => self.print_to(&name, append, &said)?,
                    None => {
                        around.out.write_all(said.as_bytes())?;
                        around.out.flush()?;
                    }
                }
            }
            ScriptStep::Read(text, plain) => {
                let text = with_quotes(self.expand(at, place, &text, around)?, plain);
                if let Some(value) = self.read(at, place, &text, around)? {
                    let name = expressions::first(&text).0;
                    let is_own = name != "now" && !name.contains('.') && self.is_function(name);
                    let element =
                        if is_own { format!("{}.", self.all[at].script.element) } else { String::new() };
                    writeln!(around.errors, "{element}{name}:\n{value}\n")?;
                }
            }
            ScriptStep::Write(text, plain) => {
                let text = with_quotes(self.expand(at, place, &text, around)?, plain);
                self.write(at, place, &text, around)?;
            }
            ScriptStep::Wait(text) => {
                let text = self.expand(at, place, &text, around)?;
                match millstream_click::arguments::time(&text) {
                    Some(nanoseconds) => {
                        let until = self.now(around) + Duration::from_nanos(nanoseconds);
                        self.all[at].state = ScriptState::Waits(until);
                    }
                    None => self.mistake(at, place, &format!("`{text}` is no time"), around)?,
                }
            }
            ScriptStep::Pause(text) => {
                let count = self.expand(at, place, &text, around)?.parse().unwrap_or(1);
                let driver = self.all[at].script.kind == ScriptKind::Driver;
                let taken = if driver { count.min(self.stops) } else { 0 };
                self.stops -= taken;
                if count > taken {
                    self.all[at].state = ScriptState::Pauses(count - taken);
                }
            }
            ScriptStep::Goto(goal, condition) => {
                let goes = match condition {
                    Some(text) => is_true(&self.expand(at, place, &text, around)?),
                    None => true,
                };
                if goes {
                    self.leap(at, goal, around)?;
                }
            }
            ScriptStep::Return(text, plain) => {
                let value = self.expand(at, place, &text, around)?;
                self.all[at].value = if plain { unquoted(&value) } else { value };
                self.done(at);
            }
            ScriptStep::Error(message) => {
                writeln!(around.errors, "{}: {message}", self.all[at].script.element)?;
                self.done(at);
            }
        }
        Ok(())
    }

    /// Writes a text to a file, appended or in place of its contents.
    fn print_to(&self, name: &str, append: bool, text: &str) -> io::Result<()> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{name}: {e}"));
        let mut options = std::fs::OpenOptions::new();
        options.create(true).write(true).append(append).truncate(!append);
        options.open(name).and_then(|mut file| file.write_all(text.as_bytes())).map_err(named)
    }

    fn leap(&mut self, at: usize, goal: JumpTarget, around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        match goal {
            JumpTarget::Step(to) => {
                self.all[at].at = to;
                return Ok(());
            }
            JumpTarget::Stop => {
                // The script that asks ends, whatever its type.
                self.all[at].state = ScriptState::Done;
                self.stop();
            }
            JumpTarget::Error => {
                writeln!(around.errors, "{}: ends with an error", self.all[at].script.element)?
            }
            JumpTarget::Exit => self.all[at].is_over = true,
            JumpTarget::End => {}
        }
        self.done(at);
        Ok(())
    }

    /// Reports an error, once for each instruction.
    fn mistake(
        &mut self,
        at: usize,
        place: usize,
        what: &str,
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<()> {
        match self.all[at].told.insert(place) {
            true => writeln!(around.errors, "{}: {what}", self.all[at].script.element),
            false => Ok(()),
        }
    }

    /// Reports that a handler did not take a value, in Click's words, once for each instruction.
    fn unfit(
        &mut self,
        at: usize,
        place: usize,
        (handler, why): (&str, &str),
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<()> {
        if !self.all[at].told.insert(place) {
            return Ok(());
        }
        let script = self.declaration(at, around.program);
        writeln!(around.errors, "While calling '{handler}' from '{script}':\n  {why}")
    }

    /// Index of the script `NAME` if a handler is `NAME.WHAT`, or of the script itself for `WHAT` alone.
    fn script(&self, at: usize, handler: &str, what: &str) -> Option<usize> {
        if handler == what {
            return Some(at);
        }
        let element = handler.strip_suffix(what)?.strip_suffix('.')?;
        let near = scopes(&self.all[at].script.element, element);
        near.iter().find_map(|name| self.all.iter().position(|run| run.script.element == *name))
    }

    /// Value of a handler, which may have arguments behind its name; `None` if there is no such handler.
    fn read(
        &mut self,
        at: usize,
        place: usize,
        text: &str,
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<Option<String>> {
        let (name, argument) = expressions::first(text);
        if name == "now" {
            let now = self.now(around);
            return Ok(Some(format!("{}.{:06}", now.as_secs(), now.subsec_micros())));
        }
        if let Some(other) = self.script(at, name, "run") {
            let arguments = split(argument);
            self.run(other, &arguments, around)?;
            return Ok(Some(std::mem::take(&mut self.all[other].value)));
        }
        // Every script has the functions that compute, and handlers for what it exports.
        if let Some((other, own)) = self.of_script(at, name) {
            match self.script_function(other, own, argument, around) {
                Some(Ok(value)) => return Ok(Some(value)),
                Some(Err(why)) => {
                    self.mistake(at, place, &why, around)?;
                    return Ok(None);
                }
                None => {}
            }
            if self.all[other].script.kind == ScriptKind::Proxy {
                self.run_proxy(other, (own, argument, false), around)?;
                return Ok(Some(std::mem::take(&mut self.all[other].value)));
            }
        }
        let near = scopes(&self.all[at].script.element, name);
        let mut failure = None;
        for near in near {
            match handlers::read(around.program, around.engine, &format!("{near} {argument}")) {
                Ok(value) => return Ok(Some(value)),
                Err(e) if is_nowhere(&e, &near) => {}
                Err(other) => failure = failure.or(Some(other.to_string())),
            }
        }
        let why = failure.unwrap_or_else(|| format!("there is no handler `{name}` to read"));
        self.mistake(at, place, &why, around)?;
        Ok(None)
    }

    /// The script that a handler belongs to, and the name of the handler in it; the script itself for a name
    /// without an element.
    fn of_script<'n>(&self, at: usize, handler: &'n str) -> Option<(usize, &'n str)> {
        let Some((element, own)) = handler.rsplit_once('.') else { return Some((at, handler)) };
        let near = scopes(&self.all[at].script.element, element);
        let found = near.iter().find_map(|name| self.all.iter().position(|run| run.script.element == *name));
        found.map(|script| (script, own))
    }

    /// Returns true if a function of scripts has this name.
    fn is_function(&self, name: &str) -> bool {
        FUNCTIONS.contains(&name) || compute(name, "").is_some()
    }

    /// Value of a function of a script, or of an exported variable; an error if the argument does not fit.
    fn script_function(
        &mut self,
        at: usize,
        name: &str,
        argument: &str,
        around: &ScriptEnvironment<'_>,
    ) -> Option<Result<String, String>> {
        let words = split(argument);
        let variable = words.first().map_or("args", String::as_str);
        let unknown = || format!("undefined variable '{variable}'");
        match name {
            "get" => Some(self.all[at].variables.get(variable).cloned().ok_or_else(unknown)),
            "set" => {
                let value = expressions::first(argument).1.trim().to_owned();
                self.all[at].variables.insert(variable.to_owned(), value);
                Some(Ok(String::new()))
            }
            "shift" => {
                let Some(value) = self.all[at].variables.get_mut(variable) else {
                    return Some(Err(unknown()));
                };
                let (first, rest) = expressions::first(value);
                let (first, rest) = (first.to_owned(), rest.trim_start().to_owned());
                *value = rest;
                Some(Ok(first))
            }
            "readable" | "writable" => {
                let is_there = |word: &String| {
                    let near = scopes(&self.all[at].script.element, word);
                    near.iter().any(|near| handlers::check(around.program, near, name == "writable").is_ok())
                };
                Some(Ok(words.iter().all(is_there).to_string()))
            }
            "random" => Some(self.random(&words)),
            "kill" => Some(kill(&words)),
            _ => match self.all[at].exported.contains(name) {
                true => self.all[at].variables.get(name).cloned().map(Ok),
                false => compute(name, argument),
            },
        }
    }

    /// A random number: below the one that is given, or between the two.
    fn random(&mut self, words: &[String]) -> Result<String, String> {
        let wrong = || "random: expected at most two numbers, in order".to_owned();
        let bounds: Option<Vec<u64>> = words.iter().map(|word| word.parse().ok()).collect();
        let (low, high) = match bounds.as_deref() {
            Some([]) => (0, RANDOM_MAX),
            Some([end]) if *end > 0 => (0, end - 1),
            Some([low, high]) if low <= high => (*low, *high),
            _ => return Err(wrong()),
        };
        let number = match (high - low).checked_add(1) {
            Some(count) => low + self.random.below(count),
            None => self.random.next_u64(),
        };
        Ok(number.to_string())
    }

    /// Runs a script of the type `PROXY` for a handler, which may be written.
    fn run_proxy(
        &mut self,
        at: usize,
        (handler, argument, is_write): (&str, &str, bool),
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<()> {
        let variables = &mut self.all[at].variables;
        variables.insert("0".to_owned(), handler.to_owned());
        variables.insert("write".to_owned(), is_write.to_string());
        self.run(at, &split(argument), around)
    }

    /// Value of a handler that a script has, for clients and the command line: `None` if no script has it.
    ///
    /// # Errors
    /// If what the script prints cannot be written; the inner error says that the argument does not fit.
    pub fn read_handler(
        &mut self,
        text: &str,
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<Option<Result<String, String>>> {
        let (name, argument) = expressions::first(text);
        let Some((element, own)) = name.rsplit_once('.') else { return Ok(None) };
        let Some(at) = self.all.iter().position(|run| run.script.element == element) else { return Ok(None) };
        // These read files, and are for scripts alone.
        if PRIVATE.contains(&own) {
            return Ok(None);
        }
        if own == "run" {
            self.run(at, &split(argument), around)?;
            return Ok(Some(Ok(std::mem::take(&mut self.all[at].value))));
        }
        Ok(self.script_function(at, own, argument, around))
    }

    /// Writes a handler.
    fn write(
        &mut self,
        at: usize,
        place: usize,
        text: &str,
        around: &mut ScriptEnvironment<'_>,
    ) -> io::Result<()> {
        let (name, rest) = expressions::first(text);
        let mut status = 0;
        if name == "stop" {
            self.stop();
        } else if let Some(other) = self.script(at, name, "run") {
            self.run(other, &split(rest), around)?;
        } else if let Some(other) = self.script(at, name, "step") {
            self.advance(other, rest.trim().parse().unwrap_or(1));
        } else if let Some((other, "set")) = self.of_script(at, name) {
            let (variable, value) = expressions::first(rest);
            self.all[other].variables.insert(variable.to_owned(), value.trim().to_owned());
        } else if let Some((other, own)) =
            self.of_script(at, name).filter(|(other, _)| self.all[*other].script.kind == ScriptKind::Proxy)
        {
            self.run_proxy(other, (own, rest, true), around)?;
        } else {
            let near = scopes(&self.all[at].script.element, name);
            let value = unquoted(rest.trim());
            let mut failure = None;
            let mut write = |name: &String| {
                match handlers::write(around.program, around.engine, &format!("{name} {value}")) {
                    Ok(()) => return true,
                    Err(e) if is_nowhere(&e, name) => {}
                    Err(other) => failure = failure.take().or(Some(other)),
                }
                false
            };
            if !near.iter().any(&mut write) {
                status = 1;
                match failure {
                    Some(HandlerError::Unfit { name, why }) => {
                        self.unfit(at, place, (&name, &why), around)?
                    }
                    other => {
                        let unknown = || format!("there is no handler `{name}` to write");
                        let why = other.map_or_else(unknown, |error| error.to_string());
                        self.mistake(at, place, &why, around)?;
                    }
                }
            }
        }
        self.all[at].variables.insert("?".to_owned(), status.to_string());
        Ok(())
    }

    /// Runs a script from its beginning, unless it is under way.
    fn run(&mut self, at: usize, arguments: &[String], around: &mut ScriptEnvironment<'_>) -> io::Result<()> {
        let run = &mut self.all[at];
        if run.state != ScriptState::Done {
            return Ok(());
        }
        (run.at, run.state) = (0, ScriptState::Runs);
        run.variables.insert("args".to_owned(), arguments.join(" "));
        run.variables.insert("#".to_owned(), arguments.len().to_string());
        for (number, argument) in (1..).zip(arguments) {
            run.variables.insert(number.to_string(), argument.clone());
        }
        self.go(at, around)
    }

    /// Advances a script past its wait or pause, so many times.
    fn advance(&mut self, at: usize, count: u64) {
        let run = &mut self.all[at];
        run.state = match run.state {
            ScriptState::Pauses(left) if left > count => ScriptState::Pauses(left - count),
            ScriptState::Pauses(_) | ScriptState::Waits(_) => ScriptState::Runs,
            other => other,
        };
    }

    /// A text with variables and handlers replaced, except in single quotes.
    fn expand(
        &mut self,
        at: usize,
        place: usize,
        text: &str,
        around: &mut ScriptEnvironment<'_>,
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
            } else if let Some(inner) = expressions::parenthesized(&rest[1..]) {
                let name = self.expand(at, place, inner, around)?;
                (inner.len() + 3, self.read(at, place, &name, around)?.unwrap_or_default())
            } else {
                let (name, length) = expressions::variable(&rest[1..]);
                let value = match name {
                    "$" => Some(std::process::id().to_string()),
                    name => self.all[at].variables.get(name).cloned(),
                };
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

/// Sends a signal, which the first word names, to processes.
fn kill(words: &[String]) -> Result<String, String> {
    let (signal, processes) = words.split_first().ok_or("kill: expected a signal and processes")?;
    let signal = signal_number(signal).and_then(Signal::from_named_raw);
    let signal = signal.ok_or_else(|| format!("kill: there is no signal {:?}", words[0]))?;
    for process in processes {
        // Groups of processes, which are below one, are not meant.
        let number = process.parse().ok().filter(|number: &i32| *number > 0).and_then(Pid::from_raw);
        let number = number.ok_or_else(|| format!("kill: {process:?} is no process"))?;
        kill_process(number, signal).map_err(|e| format!("kill {process}: {e}"))?;
    }
    Ok(String::new())
}

/// A handler and its argument, without the argument's quotes if `plain`.
fn with_quotes(text: String, plain: bool) -> String {
    match text.split_once(char::is_whitespace) {
        Some((name, argument)) if plain => format!("{name} {}", unquoted(argument.trim())),
        _ => text,
    }
}

/// Returns true if no element has this name.
fn is_nowhere(error: &HandlerError, name: &str) -> bool {
    match error {
        HandlerError::NoElement { .. } => true,
        HandlerError::Unknown { .. } => !name.contains('.'),
        _ => false,
    }
}

/// Candidates for a name in an element: in the compound elements around it, innermost first.
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
