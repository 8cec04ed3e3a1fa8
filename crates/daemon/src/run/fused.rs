//! `millstream run --fuse`: one program of a chain, for as long as the chain stays as it is.
//!
//! The chain on the interface is made one program, on which a session runs in the place of the dispatcher's entry.
//! A thread compares the chain with what was fused. At a difference it lets the dispatcher run, before all else; then
//! the session ends, and the chain is made one program anew, if it can be.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use miette::miette;
use millstream_bundle::BundlePolicy;
use millstream_lab::os;
use millstream_specialize::chain::{ChainError, ChainState, FusedChain, LiveChain, NamedObject};
use millstream_specialize::report::SessionReport;
use millstream_specialize::{DetachPolicy, LiveError, LiveSession, variant_compiler};

use super::{ReportPrinter, RunArgs, advice, check_maps, index, pins, settings, warn_if_down};
use crate::exit::Exit;
use crate::program_object;

/// Interval between two looks at the chain.
const TICK: Duration = Duration::from_millis(10);

/// Reason why a fused program could not run, or no longer.
#[derive(Debug, thiserror::Error)]
enum FusedError {
    /// The chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The session.
    #[error(transparent)]
    Session(#[from] LiveError),
    /// The fused object: message and advice.
    #[error("{0}")]
    Object(String, String),
}

/// Runs the command.
pub(super) fn run(args: &RunArgs, policy: &BundlePolicy) -> Result<ExitCode, miette::Report> {
    let [dev] = args.dev.as_slice() else {
        return Err(miette!(help = "start one for each", "--fuse is for the chain of one interface"));
    };
    let mut objects = Vec::new();
    for path in std::iter::once(&args.object).chain(&args.chain.more) {
        let object = program_object::read(path, policy)?.object;
        objects.push(NamedObject { name: path.display().to_string(), object });
    }
    let ifindex = index(dev)?;
    os::catch_interrupts();
    warn_if_down(dev, ifindex);
    let mut printer = ReportPrinter::new(args.json);
    let mut has_run = false;
    while !os::interrupted() {
        let before = ChainState::of(ifindex).ok();
        let error = match once(args, ifindex, &objects, &mut printer) {
            Ok(true) => {
                has_run = true;
                continue;
            }
            Ok(false) => break,
            Err(error) => error,
        };
        // A chain that could be fused before may be so again.
        if !has_run || !is_of_chain(&error) {
            return Ok(ended(args, dev, &error).into());
        }
        printer.print(&SessionReport::Unfused { reason: error.to_string() });
        if !wait_for_change(ifindex, before.as_ref()) {
            break;
        }
    }
    Ok(Exit::Done.into())
}

/// Runs a session on the chain as it is now. Returns true if the chain has changed, false if the user has ended it.
fn once(
    args: &RunArgs,
    ifindex: u32,
    objects: &[NamedObject],
    printer: &mut ReportPrinter,
) -> Result<bool, FusedError> {
    let chain = LiveChain::find(ifindex, objects)?;
    let (object, fused) = chain.fuse()?;
    let name = object.programs.first().map(|p| p.name.clone());
    let unsuited = |e: &dyn std::fmt::Display| {
        FusedError::Object(
            format!("the fused program: {e}"),
            "`millstream fuse` writes it to a file".to_owned(),
        )
    };
    let compiler = variant_compiler(&object, name.as_deref()).map_err(|e| unsuited(&e))?;
    let compiler = compiler.without_standby_slot();
    check_maps(&object, &args.exclude, &args.approximate_lru)
        .map_err(|(message, help)| FusedError::Object(message, help))?;
    let mut settings = settings(args);
    settings.chain = Some(fused.clone());
    let mut live = LiveSession::load(&compiler, settings)?;
    let (before, programs) = (chain.state().clone(), chain.programs().to_vec());
    // Whoever unloads a component finds that nobody else holds it.
    drop(chain);
    // The chain may have changed while it was compiled.
    if ChainState::of(ifindex).map_err(ChainError::from)? != before {
        return Ok(true);
    }
    if let Some((dispatcher, components)) = programs.split_first() {
        let (dispatcher, components) = (dispatcher.clone(), components.to_vec());
        printer.print(&SessionReport::Fused { dispatcher, components });
    }
    let watch = ChainWatch { ifindex, before: &before, fused: &fused, stop: AtomicBool::new(false) };
    let (outcome, change) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch.run());
        let outcome = attend(&mut live, ifindex, &watch.stop, printer);
        watch.stop.store(true, Ordering::SeqCst);
        (outcome, watching.join().unwrap_or(None))
    });
    let ended = outcome.and_then(|()| live.finish(DetachPolicy::Restored));
    match (change, ended) {
        // The place was taken from the session, which is no error of it.
        (Some(reason), _) => {
            printer.print(&SessionReport::Unfused { reason });
            Ok(true)
        }
        (None, ended) => {
            printer.print(&ended?);
            Ok(false)
        }
    }
}

fn attend(
    live: &mut LiveSession<'_>,
    ifindex: u32,
    stop: &AtomicBool,
    printer: &mut ReportPrinter,
) -> Result<(), LiveError> {
    printer.print(&live.attach(&[ifindex])?);
    live.run(stop, &mut |report| printer.print(report))
}

/// Compares the chain with the one that was fused, while a session runs.
struct ChainWatch<'c> {
    ifindex: u32,
    before: &'c ChainState,
    fused: &'c FusedChain,
    stop: AtomicBool,
}

impl ChainWatch<'_> {
    /// Watches until the session is to end, and makes it end. Returns the difference, if there is one; the
    /// dispatcher runs then.
    fn run(&self) -> Option<String> {
        loop {
            // The last look comes after the session's end, which may be due to a difference.
            let is_last = self.stop.load(Ordering::SeqCst);
            let reason = match ChainState::of(self.ifindex) {
                Ok(now) if now == *self.before => None,
                Ok(now) => Some(now.difference(self.before)),
                Err(error) => Some(error.to_string()),
            };
            if reason.is_some() {
                self.fused.close();
            }
            if is_last || reason.is_some() || os::interrupted() {
                self.stop.store(true, Ordering::SeqCst);
                return reason;
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Waits until the chain is another one. Returns false if the user ends it before.
fn wait_for_change(ifindex: u32, before: Option<&ChainState>) -> bool {
    while !os::interrupted() {
        match ChainState::of(ifindex) {
            Ok(now) if Some(&now) == before => std::thread::sleep(TICK),
            _ => return true,
        }
    }
    false
}

/// Returns true if another chain may have no such error.
fn is_of_chain(error: &FusedError) -> bool {
    match error {
        // A program of it has just left.
        FusedError::Chain(ChainError::Kernel(e)) => e.errno() == Some(libc::ENOENT),
        FusedError::Chain(ChainError::Empty) => false,
        FusedError::Chain(_) | FusedError::Object(..) => true,
        FusedError::Session(_) => false,
    }
}

/// Prints why the command ends, with advice.
fn ended(args: &RunArgs, dev: &str, error: &FusedError) -> Exit {
    let (lines, exit) = match error {
        FusedError::Session(error) => advice::on(dev, &pins(args), error),
        FusedError::Chain(error) => advice::on_chain(dev, error),
        FusedError::Object(_, help) => (vec![help.clone()], Exit::Input),
    };
    errln!("{dev}: {error}");
    lines.iter().for_each(|line| errln!("  {line}"));
    exit
}
