//! `millstream run`: a program on an interface, profiled and specialised while it runs.

pub(crate) mod advice;
mod fused;

pub use advice::session_ended;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::miette;
use millstream_bundle::BundlePolicy;
use millstream_isa::MapType;
use millstream_kernel::{interface, interface_index};
use millstream_lab::os;
use millstream_object::{Object, ObjectMap};
use millstream_specialize::adopt::{self, AdoptionScope};
use millstream_specialize::chain::ChainProgram;
use millstream_specialize::live::details::SlotTarget;
use millstream_specialize::pins::{DEFAULT_PINS, default_pins};
use millstream_specialize::report::{AttachedInterface, SessionReport, VariantVerdict};
use millstream_specialize::{
    DetachPolicy, LiveError, LiveSession, ProfileSettings, SessionSettings, variant_compiler,
};
use millstream_specializer::variant::VariantCompiler;

use crate::exit::Exit;
use crate::program_object::{self, ProgramObject};
use crate::xdp::AttachMode;
use crate::{output, wrap};

/// Flags of `millstream run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The object file, or a bundle: a tar file or a folder
    object: PathBuf,
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    bundle: BundleArgs,
    /// The interface; may be given several times, for one program with one set of maps on all of them
    #[arg(long, value_name = "IFACE", required = true)]
    dev: Vec<String>,
    /// The program, where the object has several
    #[arg(long, value_name = "NAME")]
    prog: Option<String>,
    /// Place in the receive path for an XDP program
    #[arg(long, value_name = "MODE", default_value = "any")]
    mode: AttachMode,
    /// Replace the attached program (XDP, tcx, or a filter of clsact), keep its maps, and give it back at the
    /// end; it must be the object's program, unless `any` may be replaced
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "same")]
    adopt: Option<AdoptArg>,
    /// Attach a TC program to egress instead of ingress
    #[arg(long)]
    egress: bool,
    /// Restore the previous state of the interface at the end (the default)
    #[arg(long)]
    restore: bool,
    /// Leave the original program attached at the end
    #[arg(long, conflicts_with = "restore")]
    keep: bool,
    /// Pin maps and links in this directory of a BPF file system; by default one for the interface
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    /// Exclude this map of the object from specialization; may be given several times
    #[arg(long, value_name = "MAP")]
    exclude: Vec<String>,
    /// LRU map that no program writes, whose lookups need not count as use: when the control plane inserts
    /// more than there is room for, other entries may be evicted first; may be given several times
    #[arg(long, value_name = "MAP")]
    approximate_lru: Vec<String>,
    /// Begin with the profile of lookups in this file, if it exists, and keep the profile of this session there
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Interval between two samples of the traffic, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = crate::duration_args::milliseconds())]
    interval: u64,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// Flags for bundles.
#[derive(Debug, clap::Args)]
struct BundleArgs {
    /// Take a bundle only if it is signed with the key in this file, which only its owner may read
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_STORE_KEY")]
    store_key: Option<PathBuf>,
    /// Take the form of a signed bundle without a proof
    #[arg(long, requires = "store_key")]
    trust_store: bool,
}

/// Flags for the chain of an interface.
#[derive(Debug, clap::Args)]
struct ChainArgs {
    /// With --fuse: further objects, in any order
    #[arg(value_name = "OBJECT", requires = "fuse")]
    more: Vec<PathBuf>,
    /// Make one program of the chain on the interface: the dispatcher of libxdp or bpfman and the programs that it
    /// calls, which must be in the objects; the dispatcher stays attached, and runs again when a program of the
    /// chain comes or goes, and at the end
    #[arg(long, conflicts_with_all = ["adopt", "egress", "keep", "mode", "profile", "prog"])]
    fuse: bool,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode, miette::Report> {
    let path = args.object.display().to_string();
    let policy = BundlePolicy { key: args.bundle.store_key.clone(), trust: args.bundle.trust_store };
    if args.chain.fuse {
        return fused::run(args, &policy);
    }
    let ProgramObject { mut object, form, profile } = program_object::read(&args.object, &policy)?;
    let profile = program_object::profile_settings(args.profile.as_deref(), profile)?;
    if let Some(form) = form {
        errln!("bundle: {form}");
    }
    let interfaces = args.dev.iter().map(|dev| index(dev)).collect::<Result<Vec<_>, _>>()?;
    if args.adopt.is_some()
        && let Err(error) =
            adopt::fit(&mut object, args.prog.as_deref(), &interfaces, args.egress, &pins(args))
    {
        return Ok(ended(args, &error).into());
    }
    let compiler = variant_compiler(&object, args.prog.as_deref()).map_err(|e| {
        miette!(help = "name one with --prog; `millstream inspect` shows them", "{path}: {e}")
    })?;
    check_maps(&object, &args.exclude, &args.approximate_lru)
        .map_err(|(message, help)| miette!(help = help, "{path}: {message}"))?;
    os::catch_interrupts();
    match session(args, &compiler, &interfaces, profile) {
        Ok(()) => Ok(Exit::Done.into()),
        Err(error) => Ok(ended(args, &error).into()),
    }
}

/// Checks that the object has these maps, and that maps whose use need not be exact are LRU maps; returns the
/// error and advice.
pub(crate) fn check_maps(
    object: &Object,
    exclude: &[String],
    approximate: &[String],
) -> Result<(), (String, String)> {
    let list = |maps: &mut dyn Iterator<Item = &ObjectMap>| {
        let names: Vec<&str> = maps.map(|m| m.name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let is_lru = |m: &&ObjectMap| m.spec.map_type == MapType::LRU_HASH;
    for name in exclude.iter().chain(approximate) {
        if !object.maps.iter().any(|m| m.name == *name) {
            let help = format!("its maps: {}", list(&mut object.maps.iter()));
            return Err((format!("the object has no map {name:?}"), help));
        }
    }
    match approximate.iter().find(|name| !object.maps.iter().filter(is_lru).any(|m| m.name == **name)) {
        None => Ok(()),
        Some(name) => {
            let help =
                format!("its maps of least recent use: {}", list(&mut object.maps.iter().filter(is_lru)));
            Err((format!("map {name:?} is none of least recent use, every entry of it stays"), help))
        }
    }
}

/// Prints why the session ended, or did not begin, with advice.
fn ended(args: &RunArgs, error: &LiveError) -> Exit {
    let dev = args.dev.join(", ");
    let (lines, exit) = advice::on(&dev, &pins(args), error);
    errln!("{dev}: {error}");
    lines.iter().for_each(|line| errln!("  {line}"));
    exit
}

/// Attached programs that the object's program may replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AdoptArg {
    /// The object's own program, even if another process loaded it
    Same,
    /// Any program
    Any,
}

impl From<AdoptArg> for AdoptionScope {
    fn from(adopted: AdoptArg) -> AdoptionScope {
        match adopted {
            AdoptArg::Same => AdoptionScope::Same,
            AdoptArg::Any => AdoptionScope::Any,
        }
    }
}

/// An interface's index.
pub(crate) fn index(dev: &str) -> Result<u32, miette::Report> {
    interface_index(dev)
        .map_err(|e| miette!(help = e.hint().unwrap_or("`ip link` lists the interfaces"), "{e}"))
}

fn settings(args: &RunArgs) -> SessionSettings {
    let mut settings = SessionSettings::new(pins(args));
    settings.pace.interval = Duration::from_millis(args.interval.max(10));
    settings.mode = args.mode.into();
    settings.egress = args.egress;
    settings.exclude.clone_from(&args.exclude);
    settings.approximate = args.approximate_lru.iter().cloned().collect();
    settings
}

fn session(
    args: &RunArgs,
    compiler: &VariantCompiler,
    interfaces: &[u32],
    profile: ProfileSettings,
) -> Result<(), LiveError> {
    let mut settings = settings(args);
    settings.profile = profile;
    if let Some(which) = args.adopt {
        (settings.adopt, settings.which) = (interfaces.to_vec(), which.into());
    }
    let mut printer = ReportPrinter::new(args.json);
    let mut live = LiveSession::load(compiler, settings)?;
    printer.print(&live.attach(interfaces)?);
    args.dev.iter().zip(interfaces).for_each(|(dev, ifindex)| warn_if_down(dev, *ifindex));
    live.run(os::interruption(), &mut |report| printer.print(report))?;
    let report = live.finish(if args.keep { DetachPolicy::Original } else { DetachPolicy::Restored })?;
    printer.print(&report);
    Ok(())
}

fn warn_if_down(dev: &str, ifindex: u32) {
    if interface(ifindex).is_ok_and(|i| !i.up) {
        errln!("{dev} is down: no packet will come; `ip link set dev {dev} up`");
    }
}

fn pins(args: &RunArgs) -> PathBuf {
    args.pin.clone().unwrap_or_else(|| default_pins(Path::new(DEFAULT_PINS), &args.dev.join("+")))
}

/// Prints reports: JSON lines, or text with a status line that stays in place on a terminal.
struct ReportPrinter {
    json: bool,
    live: bool,
    /// True while the status line is not ended.
    open: bool,
    story: EventLog,
}

/// Reports as text, each with the seconds since the start. Repetitions are left out, and answers to writes
/// are summarized with the next status.
#[derive(Debug)]
pub struct EventLog {
    start: Instant,
    dropped: Option<String>,
    /// Answers that were not reported yet, each as microseconds to the first packet that found the write, if
    /// one came.
    answers: Vec<Option<u64>>,
}

impl Default for EventLog {
    fn default() -> EventLog {
        EventLog::new()
    }
}

impl EventLog {
    /// A story that starts now.
    pub fn new() -> EventLog {
        EventLog { start: Instant::now(), dropped: None, answers: Vec::new() }
    }

    /// The report's line; `None` if it only repeats that a generation could not be made, and why, or is
    /// reported later.
    pub fn line(&mut self, report: &SessionReport) -> Option<String> {
        let mut more = String::new();
        match report {
            SessionReport::Refreshed { latency_us, .. } => {
                self.answers.push(*latency_us);
                return None;
            }
            SessionReport::Confirmed { .. } => {
                self.answers.push(None);
                return None;
            }
            SessionReport::Dropped { reason } if self.dropped.as_ref() == Some(reason) => return None,
            SessionReport::Dropped { reason } => self.dropped = Some(reason.clone()),
            SessionReport::Status { .. } => more = self.answered(),
            _ => self.dropped = None,
        }
        Some(format!("{:7.3} s  {}{more}", self.start.elapsed().as_secs_f64(), text(report)))
    }

    /// Summary of the answers since the last status.
    fn answered(&mut self) -> String {
        let answers = std::mem::take(&mut self.answers);
        if answers.is_empty() {
            return String::new();
        }
        let worst = answers.iter().flatten().max();
        let worst = worst.map_or(String::new(), |w| format!(", first packets within {:.1} ms", ms(*w)));
        format!(", {} answered{worst}", answers.len())
    }
}

impl ReportPrinter {
    fn new(json: bool) -> ReportPrinter {
        ReportPrinter { json, live: output::is_error_terminal(), open: false, story: EventLog::new() }
    }

    fn print(&mut self, report: &SessionReport) {
        if self.json {
            outln!("{}", report.json());
            output::flush();
            return;
        }
        let Some(text) = self.story.line(report) else { return };
        let status = matches!(report, SessionReport::Status { .. });
        match (self.live, status) {
            (true, true) => {
                output::write_error(format_args!("\r{}\x1b[K", wrap::cut(&text, wrap::columns())));
            }
            (true, false) if self.open => errln!("\r\x1b[K{}", wrapped(&text)),
            (true, false) => errln!("{}", wrapped(&text)),
            _ => errln!("{text}"),
        }
        self.open = status;
    }
}

/// A report of [`EventLog::line`] in lines of the available columns.
#[must_use]
pub fn wrapped(line: &str) -> String {
    // Further lines begin behind the time.
    const INDENT: usize = 10;
    let more = |part: &str| INDENT.saturating_sub(part.len() - part.trim_start().len());
    let parts = line.lines().flat_map(|part| wrap::wrap(part, wrap::columns(), more(part)));
    parts.collect::<Vec<_>>().join("\n")
}

/// Interfaces as text.
pub(crate) fn interfaces_text(interfaces: &[AttachedInterface]) -> String {
    let place = |a: &AttachedInterface| {
        let mode = a.mode.as_ref().map_or(String::new(), |m| format!(" ({m} XDP)"));
        format!("{}{mode}", a.interface)
    };
    interfaces.iter().map(place).collect::<Vec<_>>().join(", ")
}

/// A report as text.
pub(crate) fn text(report: &SessionReport) -> String {
    match report {
        SessionReport::Attached { program, interfaces, took_over, watched, refused } => {
            let how = if *took_over { ", continues an earlier session" } else { "" };
            let mut text = format!("{program} on {}{how}", interfaces_text(interfaces));
            if !watched.is_empty() {
                text += &format!("; may specialise on maps: {}", watched.join(", "));
            }
            for (map, why) in refused {
                text += &format!("\n  not on map {map}: {why}");
            }
            text
        }
        SessionReport::Fused { dispatcher, components } => {
            let part = |p: &ChainProgram| format!("\n  {} (id {}) of {}", p.name, p.id, p.object);
            let parts: String = components.iter().map(part).collect();
            format!(
                "one program of {} (id {}) of {} and:{parts}",
                dispatcher.name, dispatcher.id, dispatcher.object
            )
        }
        SessionReport::Unfused { reason } => format!("the dispatcher runs: {reason}"),
        SessionReport::Moved { interfaces } if interfaces.is_empty() => "attached to no interface".to_owned(),
        SessionReport::Moved { interfaces } => format!("attached to {} now", interfaces_text(interfaces)),
        SessionReport::ProfileLoaded { program, age_s, lookups, known } => {
            format!("profile of {program}, {} old, for {known} of {lookups} lookups", duration_text(*age_s))
        }
        SessionReport::ProfileFit { share } => {
            format!("the profile has the keys of {:.0} % of the lookups", 100.0 * share)
        }
        SessionReport::Specialised { .. } => specialised(report),
        SessionReport::StandsBy { generation, compile_us, load_us, slots } => format!(
            "standby generation {generation} is ready, without inlined tables: {slots} slots; \
             compiled {:.1} ms, loaded {:.1} ms",
            ms(*compile_us),
            ms(*load_us)
        ),
        SessionReport::Confirmed { generation, latency_us, .. } => {
            format!("generation {generation} remains valid after a write ({latency_us} us)")
        }
        SessionReport::Refreshed { generation, latency_us, read_us, write_us, bytes, .. } => {
            let latency = after_the_write(*latency_us);
            format!(
                "generation {generation} updated after a write: read {:.1} ms, \
                 {bytes} B of shadow tables in {:.1} ms{latency}",
                ms(*read_us),
                ms(*write_us)
            )
        }
        SessionReport::Shifted { usual, now, .. } => {
            format!(
                "the traffic has changed: {now:.2} lookups per packet miss the hot keys, before {usual:.2}"
            )
        }
        SessionReport::Judged {
            outcome, packets, ratio, gained_ns, predicted_ns, ms, reason, file, ..
        } => {
            let model = gained_ns.zip(*predicted_ns).map_or(String::new(), |(gained, predicted)| {
                format!("; gain {gained:.1} ns per packet, predicted {predicted:.1} ns")
            });
            judged(*outcome, *packets, *ratio, *ms, reason.as_deref(), file.as_deref()) + &model
        }
        SessionReport::Withdrawn { generation, reason } => {
            format!("generation {generation} withdrawn: {reason}")
        }
        SessionReport::Dropped { reason } => format!("no new generation: {reason}"),
        SessionReport::Status { pps, before_ns, now_ns, generation, guard, writes, chain, .. } => {
            // Unknown while the traffic is not examined.
            let times = (before_ns.or(*now_ns))
                .map_or(String::new(), |_| format!("{} -> {} ns per packet, ", ns(before_ns), ns(now_ns)));
            let rate = pps / 1e6;
            let of = |runs: SlotTarget| chain.iter().filter(|slot| slot.runs == runs).count();
            let slots = match chain.len() {
                0 => String::new(),
                all => format!(
                    ", {} of {all} slots specialised",
                    of(SlotTarget::Variant) + of(SlotTarget::Joined)
                ),
            };
            format!(
                "{rate:.3} Mpps, {times}generation {generation}, guard {guard}, {writes} writes seen{slots}"
            )
        }
        SessionReport::Stopped { left } => format!("stopped; attached now: {left}"),
    }
}

/// A new generation as text.
/// A duration in its largest unit.
fn duration_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn specialised(report: &SessionReport) -> String {
    let SessionReport::Specialised {
        generation,
        reason,
        latency_us,
        compile_us,
        load_us,
        swap_us,
        entries,
        slots,
        ns: time,
        ..
    } = report
    else {
        return String::new();
    };
    let reason = format!("{reason:?}").to_lowercase();
    // No entries where tables are read as shadow tables.
    let entries = if *entries > 0 { format!("entries in code: {entries}, ") } else { String::new() };
    let made = match (*compile_us, *load_us) {
        (0, 0) => "prepared as standby".to_owned(),
        (compile, load) => format!("compiled {:.1} ms, loaded {:.1} ms", ms(compile), ms(load)),
    };
    format!(
        "generation {generation} ({reason}): {entries}{slots} slots, {} ns per packet; {made}, swapped {:.1} ms{}",
        ns(time),
        ms(*swap_us),
        after_the_write(*latency_us)
    )
}

fn after_the_write(latency_us: Option<u64>) -> String {
    latency_us.map_or(String::new(), |l| format!(", first packet {:.1} ms after the write", ms(l)))
}

fn ns(time: &Option<f64>) -> String {
    time.map_or("?".to_owned(), |n| format!("{n:.1}"))
}

/// The judge's verdict on a variant, as text.
fn judged(
    outcome: VariantVerdict,
    packets: usize,
    ratio: Option<(f64, [f64; 2])>,
    ms: u64,
    reason: Option<&str>,
    file: Option<&str>,
) -> String {
    let time = ratio.map_or(String::new(), |(ratio, [low, high])| {
        format!(", {ratio:.3} of the original's time ({low:.3} to {high:.3})")
    });
    let replayed = format!("{packets} packets replayed in {ms} ms");
    let (reason, file) = (reason.unwrap_or("?"), file.map_or(String::new(), |f| format!("; see {f}")));
    match outcome {
        VariantVerdict::Faster => format!("evaluated: {replayed}, no difference{time}"),
        VariantVerdict::Same => {
            format!("evaluated: {replayed}, no difference; the gain is measured on live traffic")
        }
        VariantVerdict::Trial => {
            format!(
                "evaluated: {replayed}, no difference{time}; on trial: kept if live traffic shows it faster"
            )
        }
        VariantVerdict::NotFaster => {
            format!("no new generation: {replayed}, no difference, but not faster{time}")
        }
        VariantVerdict::Different => {
            format!("no new generation: the variant differs in {reason}{file}. Please report this")
        }
        VariantVerdict::Unjudged => format!("not evaluated by replay: {reason}"),
    }
}

fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_specialize::report::GuardState;

    #[test]
    fn what_repeats_is_said_once() {
        let mut story = EventLog::new();
        let dropped = |reason: &str| SessionReport::Dropped { reason: reason.to_owned() };
        assert!(story.line(&dropped("a")).is_some_and(|l| l.ends_with("no new generation: a")));
        assert_eq!(story.line(&dropped("a")), None);
        assert!(story.line(&dropped("b")).is_some() && story.line(&dropped("a")).is_some());
        let withdrawn = SessionReport::Withdrawn { generation: 1, reason: String::new() };
        assert!(story.line(&withdrawn).is_some() && story.line(&dropped("a")).is_some());
    }

    #[test]
    fn answers_to_writes_are_told_with_the_next_status() {
        let mut story = EventLog::new();
        let confirmed = SessionReport::Confirmed { generation: 1, write_ns: 0, latency_us: 9 };
        let refreshed = |latency_us| SessionReport::Refreshed {
            generation: 1,
            write_ns: Some(0),
            in_step_us: Some(5),
            latency_us,
            read_us: 1,
            write_us: 1,
            bytes: 512,
        };
        let answers = [confirmed, refreshed(Some(100)), refreshed(Some(2500)), refreshed(None)];
        assert!(answers.iter().all(|answer| story.line(answer).is_none()));
        let mut status = || {
            let report = SessionReport::Status {
                pps: 1e6,
                packets: 1,
                received: Vec::new(),
                specialised: None,
                before_ns: None,
                now_ns: None,
                generation: 1,
                guard: GuardState::Valid,
                writes: 12,
                swaps: 1,
                chain: Vec::new(),
            };
            story.line(&report).unwrap()
        };
        assert!(status().ends_with("12 writes seen, 4 answered, first packets within 2.5 ms"));
        assert!(status().ends_with("generation 1, guard valid, 12 writes seen"));
        let shown = wrapped(&status());
        assert!(shown.lines().all(|line| line.chars().count() <= wrap::columns()), "{shown}");
    }
}
