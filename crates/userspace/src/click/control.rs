//! `--control SOCKET`: handlers of a running configuration, and its replacement by another one.
//! docs/click.md.
//!
//! The protocol is that of Click's `ControlSocket`. Each client has a thread; the worker executes the
//! requests between batches, when no packet is under way. The client's thread compiles a new configuration,
//! so that the worker only takes over state.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use miette::{IntoDiagnostic, Result, miette};
use millstream_adapt::{EngineAdaptation, PacketModel};
use millstream_built::hot_swap::carry_settings;
use millstream_built::printing::PrintOutput;
use millstream_built::script::{IdleOutcome, ScriptEnvironment, ScriptRunner};
use millstream_built::{fill, handlers, queueing};
use millstream_click::{
    Ablations, ClickProgram, DropCounter, HandlerAccess, HandlerWriters, STATE, SourceEnd,
};
use millstream_console::adapt_args::AdaptArgs;
use millstream_native::{ClockSource, NativeEngine, NativeOptions};
use millstream_native_io::idle_sources::IdleSources;
use millstream_native_io::timed::TimedQueues;
use signal_hook::flag;

use super::ClickRunArgs;
use super::config_input::ConfigSource;
use crate::adapt::engine_adaptation;
use crate::clients::{ClientConnection, ClientLine};
use crate::listening_socket::ListeningSocket;
use crate::native::control::clients;
use crate::native::metrics::{self, EngineMetrics};
use crate::native::stats::LiveStats;
use crate::output::{StderrWriter, StdoutWriter};
use crate::sample::answer as sample;

/// Time limit for the farewell to a client that ends the run.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest line of a client, in bytes.
const LONGEST: u64 = 1 << 20;

/// Commands of clients.
const COMMANDS: &str = "READ, READDATA, WRITE, WRITEDATA, CHECKREAD, CHECKWRITE, SWAP, QUIT";

/// Handlers of the process itself.
const CRASHES: &str = "crashes";
const STATS: &str = "stats";

/// Request of a client.
enum HandlerCommand {
    Read(String),
    /// The handler, and the value to write.
    Write(String),
    /// Checks that a handler can be read or, if `true`, written.
    Check(String, bool),
    /// A compiled configuration, and its name.
    Swap(Box<(ClickProgram, NativeEngine)>),
}

/// Result of a request: a text, or an error number of the protocol and its reason.
type HandlerResult = Result<String, (u32, String)>;

/// A client's request, and the channel for the answer.
struct HandlerRequest {
    wish: HandlerCommand,
    answer: Sender<HandlerResult>,
    /// Closed when the client has got the answer.
    told: Receiver<()>,
}

/// Options of configurations that replace the running one.
pub(super) struct SwapOptions {
    /// Options for the compiler; `None` if no configuration may be loaded.
    pub(super) compile: Option<(NativeOptions, Ablations)>,
    /// True if the handler `hotconfig` takes the text of one.
    pub(super) hotconfig: bool,
}

/// Answer to a client for whom there is no place.
const FULL: &[u8] = b"Click::ControlSocket/1.3\r\n530 too many are connected\r\n";

/// Requests of all clients.
pub(super) struct HandlerSocket {
    requests: Vec<Receiver<HandlerRequest>>,
    figures: Option<metrics::MetricsRequests>,
    _socket: Option<ListeningSocket>,
}

impl HandlerSocket {
    /// Listens at sockets, and answers requests for metrics.
    pub(super) fn open(
        (path, ports): (Option<&Path>, Vec<TcpListener>),
        metrics: Option<TcpListener>,
        engine: &NativeEngine,
        swaps: SwapOptions,
    ) -> Result<HandlerSocket> {
        let (mut requests, mut socket) = (Vec::new(), None);
        let swaps = Arc::new(swaps);
        if let Some(path) = path {
            let swaps = Arc::clone(&swaps);
            let listen = move |listener: &_, send: &_| listen(listener, send, &swaps);
            let (received, bound) = clients(path, listen)?;
            requests.push(received);
            socket = Some(bound);
        }
        for listener in ports {
            let (send, received) = mpsc::channel();
            let swaps = Arc::clone(&swaps);
            thread::spawn(move || {
                crate::clients::serve_tcp(&listener, FULL, move |client| talk(client, &send, &swaps));
            });
            requests.push(received);
        }
        let figures = metrics.map(|listener| metrics::open(listener, engine.stats()));
        Ok(HandlerSocket { requests, figures, _socket: socket })
    }

    /// Executes the pending requests of clients; returns `false` to end.
    pub(super) fn serve(
        &self,
        at_work: &mut ActiveConfiguration,
        engine: &mut NativeEngine,
        queues: &mut TimedQueues,
    ) -> bool {
        for answer in self.figures.iter().flat_map(Receiver::try_iter) {
            // The requester may have given up.
            let _ = answer.send(at_work.figures(engine));
        }
        let requests = self.requests.iter().flat_map(Receiver::try_iter);
        for HandlerRequest { wish, answer, told } in requests {
            let stops = matches!(&wish, HandlerCommand::Write(text) if text.split_whitespace().next() == Some("stop"));
            let outcome = match wish {
                HandlerCommand::Read(name) => at_work.read(engine, &name),
                HandlerCommand::Write(_) if stops => Ok(String::new()),
                HandlerCommand::Write(text) => at_work.write(engine, &text),
                HandlerCommand::Check(name, write) => at_work.check(&name, write),
                HandlerCommand::Swap(new) => at_work.swap((engine, queues), *new),
            };
            // A client that has gone needs no answer.
            let _ = answer.send(outcome);
            if stops {
                // The process may end as soon as this returns.
                let _ = told.recv_timeout(FAREWELL);
                return false;
            }
        }
        true
    }
}

/// The running configuration.
pub(super) struct ActiveConfiguration {
    pub(super) program: ClickProgram,
    /// Configurations that ran before it.
    pub(super) swaps: u32,
    /// Drops of earlier configurations for reasons that this one does not have.
    pub(super) left: Vec<(DropCounter, u64)>,
    scripts: ScriptRunner,
    /// Signals that start scripts.
    signals: Vec<SignalScript>,
    /// Tables that clients have written.
    written: BTreeSet<String>,
    /// Actions for the end of sources that were carried out.
    ended: BTreeSet<usize>,
    /// Outputs of printing elements.
    printing: Arc<PrintOutput>,
    /// Crashes of earlier processes, if this one is supervised.
    pub(super) crashes: Option<u32>,
    /// True if scripts print to standard error, since standard output has the result.
    aside: bool,
    /// Specialization of the engine.
    pub(super) adaptation: EngineAdaptation,
}

/// A script that signals start.
struct SignalScript {
    script: usize,
    /// Set by each signal.
    is_raised: Arc<AtomicBool>,
    /// True if signals have their usual effect again.
    is_over: Arc<AtomicBool>,
}

impl SignalScript {
    /// Registers the signals of all scripts that have some.
    fn register(scripts: &ScriptRunner) -> io::Result<Vec<SignalScript>> {
        let mut all = Vec::new();
        for (script, signals) in scripts.signal_scripts() {
            let (is_raised, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
            for signal in signals {
                flag::register_conditional_default(signal, Arc::clone(&is_over))?;
                flag::register(signal, Arc::clone(&is_raised))?;
            }
            all.push(SignalScript { script, is_raised, is_over });
        }
        Ok(all)
    }
}

impl ActiveConfiguration {
    /// The configuration that `engine` will run, adapted if that is wanted.
    pub(super) fn new(
        program: ClickProgram,
        engine: &mut NativeEngine,
        args: &ClickRunArgs,
        adapt: AdaptArgs,
    ) -> Result<ActiveConfiguration> {
        let mut adaptation = engine_adaptation(adapt);
        adaptation.begin(engine, PacketModel::Graph).into_diagnostic()?;
        let scripts = ScriptRunner::new(&program);
        let printing = PrintOutput::open(&program).into_diagnostic()?;
        engine.listen(printing.listener());
        let (left, written, ended) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let signals = SignalScript::register(&scripts).into_diagnostic()?;
        Ok(ActiveConfiguration {
            program,
            swaps: 0,
            left,
            scripts,
            signals,
            written,
            ended,
            printing,
            crashes: args.watch.crashed(),
            aside: args.json,
            adaptation,
        })
    }

    /// Returns true if there is work to do between batches.
    pub(super) fn has_scripts(&self) -> bool {
        !self.scripts.is_empty() || !self.program.ends.is_empty()
    }

    /// Runs the scripts that are due, and the actions for sources that have ended; returns `false` to end the
    /// run. If only scripts can go on, time jumps: here if `leaps`, else by the run's clock.
    pub(super) fn scripts(
        &mut self,
        engine: &mut NativeEngine,
        attention: &IdleSources,
        leaps: bool,
    ) -> io::Result<bool> {
        if attention.is_busy() {
            self.scripts.mark_busy();
        } else if attention.is_idle() {
            self.scripts.mark_idle();
        }
        self.answer_signals(engine)?;
        let due = self.scripts.next_deadline();
        if !self.scripted(engine, ScriptRunner::run_due)? {
            return Ok(false);
        }
        // A script that went on may have written handlers that let packets go.
        if self.scripts.next_deadline() != due {
            attention.reset();
        }
        // Scripts may have sent signals, which come before time goes on.
        self.answer_signals(engine)?;
        for at in 0..self.program.ends.len() {
            let SourceEnd { source, script } = self.program.ends[at];
            if attention.flows(source) {
                self.ended.remove(&at);
            }
            if let Some(script) = script
                && attention.has_ended(source)
                && self.ended.insert(at)
            {
                self.scripted(engine, |scripts, around| scripts.run_script(script, around))?;
            }
        }
        if !attention.is_idle() {
            return Ok(!self.scripts.has_ended());
        }
        // All sources have ended, and one of them was to end the run.
        let stops = |(at, end): (usize, &SourceEnd)| {
            (end.script.is_none() && attention.has_ended(end.source) && !self.ended.contains(&at))
                .then_some(at)
        };
        let next = match self.program.ends.iter().enumerate().find_map(stops) {
            Some(at) => {
                self.ended.insert(at);
                self.scripted(engine, ScriptRunner::ask_to_stop)?;
                IdleOutcome::Again
            }
            None => self.scripted(engine, |scripts, around| scripts.idle(around, leaps))?,
        };
        match next {
            IdleOutcome::Again => attention.reset(),
            IdleOutcome::Over => attention.hold(false),
        }
        Ok(!self.scripts.has_ended())
    }

    /// Runs the scripts whose signals have come.
    fn answer_signals(&mut self, engine: &mut NativeEngine) -> io::Result<()> {
        for at in 0..self.signals.len() {
            if self.signals[at].is_raised.swap(false, Ordering::Relaxed) {
                let script = self.signals[at].script;
                let again =
                    self.scripted(engine, |scripts, around| scripts.run_for_signal(script, around))?;
                self.signals[at].is_over.store(!again, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Earliest time at which a waiting script goes on, in nanoseconds of the run's clock.
    pub(super) fn due(&self) -> Option<u64> {
        self.scripts.next_deadline().map(|due| u64::try_from(due.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs the final instructions of scripts when there are no more packets, and flushes the files of
    /// printing elements.
    pub(super) fn finish(&mut self, engine: &mut NativeEngine) -> io::Result<()> {
        self.adaptation.finish();
        self.scripted(engine, ScriptRunner::finish)?;
        self.printing.finish()
    }

    fn scripted<T>(
        &mut self,
        engine: &mut NativeEngine,
        what: impl FnOnce(&mut ScriptRunner, &mut ScriptEnvironment<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let (mut out, mut errors, mut aside) = (StdoutWriter, StderrWriter, StderrWriter);
        let out: &mut dyn Write = if self.aside { &mut aside } else { &mut out };
        let now = match engine.clock() {
            ClockSource::Fixed(now) => Duration::from_nanos(now),
            ClockSource::System => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        };
        let mut around = ScriptEnvironment { program: &self.program, engine, now, out, errors: &mut errors };
        what(&mut self.scripts, &mut around)
    }

    /// Value of a handler.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub(super) fn read_handler(&mut self, engine: &mut NativeEngine, name: &str) -> Result<String> {
        self.read(engine, name).map_err(|(_, why)| miette!("{why}"))
    }

    fn read(&mut self, engine: &mut NativeEngine, name: &str) -> HandlerResult {
        if name == CRASHES {
            return Ok(self.crashes.unwrap_or(0).to_string());
        }
        if name == sample::REQUEST {
            return serde_json::to_string(&sample::SampleAnswer::take(engine.sampler()))
                .map_err(|e| (511, e.to_string()));
        }
        if name == STATS {
            return serde_json::to_string(&LiveStats::of(engine.stats(), self.adaptation.status()))
                .map_err(|e| (511, e.to_string()));
        }
        let own = self.scripted(engine, |scripts, around| scripts.read_handler(name, around));
        match own.map_err(|e| (530, e.to_string()))? {
            Some(value) => value.map_err(|why| (530, why)),
            None => handlers::read(&self.program, engine, name).map_err(refused),
        }
    }

    /// Counters and drops of elements, and sizes of maps.
    fn figures(&self, engine: &mut NativeEngine) -> EngineMetrics {
        let state = handlers::state(engine);
        let of = |drop: &DropCounter| {
            (drop.element.clone(), drop.reason.to_string(), handlers::number(&state, drop.offset))
        };
        let gone =
            self.left.iter().map(|(drop, packets)| (drop.element.clone(), drop.reason.to_string(), *packets));
        let counted = self.program.handlers.iter().filter_map(|handler| {
            let HandlerAccess::Number(offset) = handler.access else { return None };
            Some((handler.element.clone(), handler.name.to_string(), handlers::number(&state, offset)))
        });
        EngineMetrics {
            dropped: self.program.drops.iter().map(of).chain(gone).collect(),
            counted: counted.collect(),
            ..EngineMetrics::of_maps(engine)
        }
    }

    fn write(&mut self, engine: &mut NativeEngine, text: &str) -> HandlerResult {
        handlers::write(&self.program, engine, text).map_err(refused)?;
        self.written.extend(handlers::table_of(&self.program, text).map(str::to_owned));
        Ok(String::new())
    }

    fn check(&self, name: &str, write: bool) -> HandlerResult {
        if [CRASHES, STATS, sample::REQUEST, "stop"].contains(&name) {
            return Ok(String::new());
        }
        handlers::check(&self.program, name, write).map(|()| String::new()).map_err(refused)
    }

    /// Replaces this configuration by another one, which takes over what it can of its state.
    fn swap(
        &mut self,
        (engine, queues): (&mut NativeEngine, &mut TimedQueues),
        (program, mut new): (ClickProgram, NativeEngine),
    ) -> HandlerResult {
        if (&program.sources, &program.targets) != (&self.program.sources, &self.program.targets) {
            return Err((520, "it has other devices and files, or in another order".into()));
        }
        if program.devices != self.program.devices {
            return Err((
                520,
                "its devices have other addresses or headers than those of the one that runs".into(),
            ));
        }
        if queues.is_empty() && !program.waits.servers.is_empty() {
            return Err((
                520,
                "packets would wait for elements of time, and do not in the one that runs".into(),
            ));
        }
        if program.waits.senders != self.program.waits.senders {
            return Err((520, "its sources send at other times than those of the one that runs".into()));
        }
        let scripts = ScriptRunner::new(&program);
        let signals = SignalScript::register(&scripts).map_err(|e| (520, e.to_string()))?;
        fill(&mut new, &program.code.entries).map_err(|e| (520, e.to_string()))?;
        self.printing.replace(&program).map_err(|e| (520, e.to_string()))?;
        new.listen(self.printing.listener());
        new.adopt(engine, &[STATE]);
        let mut state = handlers::state(&mut new);
        self.left.extend(program.import_state(&mut state, &self.program, &handlers::state(engine)));
        handlers::set_state(&mut new, &state);
        carry_settings((&program, &mut new), (&self.program, engine), &self.written);
        // Limits are those of the new configuration, but count from the source's start in the old one.
        for gate in &program.gates {
            let old = self.program.gates.iter().find(|old| old.source == gate.source);
            let base = old.map_or(0, |old| handlers::setting(engine, old.base));
            handlers::set_setting(&mut new, gate.base, base);
        }
        if let Err(error) = self.adaptation.begin(&mut new, PacketModel::Graph) {
            tracing::warn!("the new configuration is not adapted: {error}");
        }
        *engine = new;
        // Waiting packets for which the new configuration has no such queue or element are dropped, and
        // reported.
        let spec = queueing::queue_spec(&program, engine);
        let reason = Cow::Borrowed("swapped_away");
        let gone = queues.reconfigure(&spec).into_iter();
        self.left.extend(
            gone.map(|(element, packets)| {
                (DropCounter { element, reason: reason.clone(), offset: 0 }, packets)
            }),
        );
        (self.scripts, self.signals) = (scripts, signals);
        self.ended.clear();
        self.program = program;
        self.swaps += 1;
        Ok(String::new())
    }
}

/// Error number of the protocol, and its reason.
fn refused(error: handlers::HandlerError) -> (u32, String) {
    let number = match &error {
        // Clients of Click know these two texts.
        handlers::HandlerError::NoElement { name, .. } => return (510, format!("No element named '{name}'")),
        handlers::HandlerError::Unknown { name, .. } => return (511, format!("No handler named '{name}'")),
        handlers::HandlerError::Unfit { .. } => 520,
        handlers::HandlerError::Unreadable(_)
        | handlers::HandlerError::Unwritable(_)
        | handlers::HandlerError::Constant(_) => 530,
    };
    (number, error.to_string())
}

fn listen(listener: &UnixListener, send: &Sender<HandlerRequest>, swaps: &Arc<SwapOptions>) {
    let (send, swaps) = (send.clone(), Arc::clone(swaps));
    crate::clients::serve(listener, FULL, move |client| talk(client, &send, &swaps));
}

/// Talks to one client until it goes.
fn talk(client: &mut ClientConnection, send: &Sender<HandlerRequest>, swaps: &SwapOptions) -> io::Result<()> {
    client.write_all(b"Click::ControlSocket/1.3\r\n")?;
    while let Some(line) = client.read_line(LONGEST)? {
        let ClientLine::Whole(line) = line else {
            return client.write_all(b"500 the line is too long\r\n");
        };
        let line = String::from_utf8_lossy(&line);
        let (command, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
        let name = rest.split_whitespace().next().unwrap_or("").to_owned();
        let (wish, what) = match command.to_ascii_uppercase().as_str() {
            "" => continue,
            "QUIT" => return client.write_all(b"200 Goodbye!\r\n"),
            "READ" => (Ok(HandlerCommand::Read(rest.to_owned())), "Read handler"),
            "READDATA" => (text_behind(rest, client)?.map(HandlerCommand::Read), "Read handler"),
            "WRITE" if name == "hotconfig" && swaps.hotconfig => (hotconfig(rest, swaps), "Write handler"),
            "WRITE" => (Ok(HandlerCommand::Write(rest.to_owned())), "Write handler"),
            "WRITEDATA" => (text_behind(rest, client)?.map(HandlerCommand::Write), "Write handler"),
            "CHECKREAD" => (Ok(HandlerCommand::Check(rest.to_owned(), false)), "CHECKREAD handler"),
            "CHECKWRITE" => (Ok(HandlerCommand::Check(rest.to_owned(), true)), "CHECKWRITE handler"),
            "SWAP" => (compiled(rest, swaps), "Swap"),
            _ => (Err((501, format!("there is no command {command:?}: {COMMANDS}"))), ""),
        };
        let (_telling, told) = mpsc::channel();
        let outcome = wish.and_then(|wish| {
            let (answer, answered) = mpsc::channel();
            let gone = |()| (530, "the run has ended".to_owned());
            send.send(HandlerRequest { wish, answer, told }).map_err(|_| gone(()))?;
            answered.recv().map_err(|_| gone(()))?
        });
        let answer = match outcome {
            Ok(text) if what.starts_with("Read") => {
                format!("200 {what} '{name}' OK\r\nDATA {}\r\n{text}", text.len())
            }
            Ok(_) => format!("200 {what} '{name}' OK\r\n"),
            Err((number, why)) if name == "hotconfig" => {
                format!("{number}-{what} '{name}' error:\r\n{}", lines(number, &why))
            }
            Err((number, why)) => format!("{number} {}\r\n", why.replace(['\r', '\n'], " ")),
        };
        client.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// `HANDLER N` and the N bytes behind the line: returns the handler and the bytes. The inner error is the
/// answer to a malformed request.
fn text_behind(rest: &str, client: &mut ClientConnection) -> io::Result<Result<String, (u32, String)>> {
    let wrong = || Ok(Err((500, format!("expected HANDLER N and N bytes, N at most {LONGEST}"))));
    let Some((name, length)) = rest.trim().split_once(char::is_whitespace) else { return wrong() };
    let Some(length) = length.trim().parse().ok().filter(|length: &u64| *length <= LONGEST) else {
        return wrong();
    };
    let bytes = client.read_exactly(length as usize)?;
    Ok(Ok(format!("{name} {}", String::from_utf8_lossy(&bytes))))
}

/// Lines of an answer, each with its number; all but the last are continued.
fn lines(number: u32, text: &str) -> String {
    let count = text.lines().count();
    let line =
        |(at, line): (usize, &str)| format!("{number}{}{line}\r\n", if at + 1 < count { '-' } else { ' ' });
    text.lines().enumerate().map(line).collect()
}

/// Compiles the configuration that a write of `hotconfig` has behind the handler's name.
fn hotconfig(text: &str, swaps: &SwapOptions) -> Result<HandlerCommand, (u32, String)> {
    let (_, text) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let source = ConfigSource { plain: true, ..ConfigSource::of_text(text) };
    compile(&source, swaps)
}

/// Compiles a configuration with its variables.
fn compiled(text: &str, swaps: &SwapOptions) -> Result<HandlerCommand, (u32, String)> {
    let mut words = text.split_whitespace().map(str::to_owned);
    let conf = words.next().ok_or((500, "SWAP wants a file".to_owned()))?;
    let variables: Vec<String> = words.collect();
    compile(&ConfigSource::of_file(Path::new(&conf), &variables), swaps)
}

/// Compiles a configuration that is to replace the running one.
fn compile(source: &ConfigSource, swaps: &SwapOptions) -> Result<HandlerCommand, (u32, String)> {
    let (options, general) =
        swaps.compile.as_ref().ok_or((520, "what was built ahead of time is not replaced".to_owned()))?;
    let made = (HandlerWriters::Anybody, *general);
    let program = super::compile_to_ir(source, options.workers, made).map_err(|e| (520, e.to_string()))?;
    let options = NativeOptions { facts: super::facts(&program), ..options.clone() };
    let engine = NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options);
    let engine = engine.map_err(|e| (520, e.to_string()))?;
    Ok(HandlerCommand::Swap(Box::new((program, engine))))
}
