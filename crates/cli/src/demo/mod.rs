//! `millstream demo`: the router with 2,592 routes on a private veth pair, made faster while packets flow.
//!
//! Traffic of high locality, then other hot flows; after each, original and variant are measured against one
//! another by the laboratory's protocol, on that traffic. Then route updates under load, few and many. There
//! frames carry the time at which they were made, and a program at the far end counts those that were made
//! after an update had returned to its caller and do not have its next hop: stale packets, of which there may
//! be none.
//!
//! The exit code tells whether packets were handled rightly (none stale, none lost). A bar of speed is met or
//! missed only if the whole 99 % interval is on one side of it; a measurement goes on until that is so, or
//! says that the machine is too disturbed to tell.

mod figures;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, miette};
use millstream_kernel::{KernelMap, UpdateMode};
use millstream_lab::environment::fit_for_timing;
use millstream_lab::measure::MeasurementPlan;
use millstream_lab::{Error as LabError, RigConfig, StalenessMonitor, TestRig, TrafficSequence, os};
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::router::{self, NextHop, Route, RouterConfig, RouterModel};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_specialize::pins::remove_abandoned;
use millstream_specialize::report::SessionReport;
use millstream_specialize::{DetachPolicy, LiveSession, SessionSettings, SpeedComparison, variant_compiler};

use crate::exit::{Exit, ended};
use crate::run::{EventLog, session_ended, wrapped};
use figures::{DemoReport, RouteUpdateStats};

const ROUTES: usize = 2592;
const NEXT_HOPS: u8 = 16;
const FLOWS: usize = 10_000;
const SEQUENCE: usize = 1 << 17;
const PINS: &str = "/sys/fs/bpf/millstream";
/// Time that the original runs at first.
const FIRST: Duration = Duration::from_secs(2);
/// Interval between updates in the last phase.
const HASTE: Duration = Duration::from_micros(850);
/// A measurement that a disturbed machine leaves undecided is repeated, for at most so many times its length.
const MOST_LOOKS: u32 = 6;
const XDP_TX: u32 = 3;

/// Flags of `millstream demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Duration of each of the three phases, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = crate::duration_args::seconds())]
    seconds: u64,
    /// Duration of each of the two measurements, in seconds; up to six times as long on a disturbed machine
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = crate::duration_args::seconds())]
    measure: u64,
    /// Route updates per second in the third phase
    #[arg(long, value_name = "N", default_value_t = 10)]
    update_rate: u64,
    /// Number of route updates in the burst that follows, at about 1,000 per second
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    burst_updates: u64,
    /// Print the session's reports, and at the end all figures, as JSON lines
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, miette::Report> {
    os::catch_interrupts();
    remove_abandoned(Path::new(PINS), "demo_");
    let say = |text: &str| {
        if !args.json {
            outln!("{text}");
        }
    };
    say(&format!("A router with {ROUTES} routes, {FLOWS} flows of high locality, on a veth pair."));
    let [usual, longest] = seconds(args);
    say(&format!("Takes about {usual} seconds, up to {longest} on a machine that does other work.\n"));
    say("1. The original for two seconds, then Millstream.");
    let mut figures = DemoReport::new(args.update_rate);
    speed_act(args, &say, &mut figures)?;
    say(&format!("\n3. {} route updates per second, under load; frames carry the time.", args.update_rate));
    update_act(args, &say, &mut figures)?;
    if args.json {
        outln!("{}", figures.json());
    } else {
        out!("\n{}", figures.text());
    }
    Ok(if figures.right() { Exit::Done } else { Exit::Negative }.into())
}

/// Duration of the demo in seconds, usually and at most.
fn seconds(args: &DemoArgs) -> [u64; 2] {
    let many = (HASTE * u32::try_from(args.burst_updates).unwrap_or(u32::MAX)).as_secs();
    let acts = 3 * args.seconds.max(3) + 2 * FIRST.as_secs() + many;
    let measured = 2 * args.measure.max(2);
    // Loading, and the session's work before and after its acts.
    let rest = 10;
    [acts + measured + rest, acts + measured * u64::from(MOST_LOOKS) + rest]
}

/// The first two acts: traffic, and other traffic.
fn speed_act(
    args: &DemoArgs,
    say: &(dyn Fn(&str) + Sync),
    figures: &mut DemoReport,
) -> Result<(), miette::Report> {
    let rig = TestRig::new(RigConfig::default()).map_err(ended)?;
    let (config, flows) = tables(rig.test_port());
    let sequence = flows.sequence(1, SEQUENCE);
    rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).map_err(ended)?;
    let other = flows.reweighted(FlowLocality::HIGH, 77).sequence(2, SEQUENCE);
    let act = Duration::from_secs(args.seconds.max(3));
    figures.workload(&flows, &config);
    let stage = DemoSession::new(args, &rig);
    let speeds = stage.play(&config, FIRST, |live| {
        stage.run(live, |stop| sleep(FIRST + act, stop))?;
        say("   measuring original and variant on this traffic");
        let before = stage.speed(live)?;
        say("2. Other flows become hot.");
        stage.run(live, |stop| {
            sleep(Duration::from_secs(1), stop)?;
            rig.reorder(&other)?;
            sleep(act, stop)
        })?;
        say("   measuring original and variant on this traffic");
        Ok((before, stage.speed(live)?))
    })?;
    (figures.before, figures.after) = speeds;
    figures.live_rates(&stage.told());
    figures.add_counts(rig.counts().map_err(ended)?);
    Ok(())
}

/// The last act: updates.
fn update_act(
    args: &DemoArgs,
    say: &(dyn Fn(&str) + Sync),
    figures: &mut DemoReport,
) -> Result<(), miette::Report> {
    let rig = TestRig::new(RigConfig { stamps: true, ..RigConfig::default() }).map_err(ended)?;
    let (config, flows) = tables(rig.test_port());
    let sequence = flows.sequence(1, SEQUENCE);
    rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).map_err(ended)?;
    let writer = RouteUpdater::new(StalenessMonitor::new(&rig).map_err(ended)?, &config, &flows)?;
    let act = Duration::from_secs(args.seconds.max(3));
    let stage = DemoSession::new(args, &rig);
    stage.play(&config, Duration::from_millis(300), |live| {
        let routes = live.map(router::ROUTES).ok_or_else(|| miette!("no routes"))?;
        let routes = routes.try_clone().map_err(ended)?;
        stage.run(live, |stop| sleep(Duration::from_secs(3), stop))?;
        let (told, packets) = (stage.told().len(), live.packets());
        let pause = Duration::from_nanos(1_000_000_000 / args.update_rate.max(1));
        let most = act.as_secs() * args.update_rate;
        stage.run(live, |stop| writer.write(&routes, most, pause, stop))?;
        let (all, specialised) = live.packets();
        figures.paced_updates = RouteUpdateStats {
            updates: writer.updates(),
            packets: all - packets.0,
            specialised: specialised.saturating_sub(packets.1),
        };
        figures.latencies(&stage.told()[told..]);
        say(&format!("4. {} route updates as fast as they go, under load.", args.burst_updates));
        stage.quiet.store(true, Ordering::Relaxed);
        stage.run(live, |stop| writer.write(&routes, args.burst_updates, HASTE, stop))
    })?;
    figures.burst_updates = writer.updates() - figures.paced_updates.updates;
    figures.peer = writer.far.counts();
    figures.add_counts(rig.counts().map_err(ended)?);
    Ok(())
}

fn tables(port: u32) -> (RouterConfig, WeightedFlows) {
    let config = router::generate(ROUTES, &[port], NEXT_HOPS, 1);
    let flows = router::flows(&config, FLOWS, FlowLocality::HIGH, 1);
    (config, flows)
}

/// Gives the route of the hottest flow one next hop after the other.
struct RouteUpdater<'w> {
    far: StalenessMonitor,
    config: &'w RouterConfig,
    frame: &'w [u8],
    route: Route,
    updates: AtomicU64,
}

impl<'w> RouteUpdater<'w> {
    fn new(
        far: StalenessMonitor,
        config: &'w RouterConfig,
        flows: &'w WeightedFlows,
    ) -> Result<Self, miette::Report> {
        let hottest = flows.weights.iter().enumerate().max_by_key(|(_, w)| **w).map_or(0, |(i, _)| i);
        let frame = &flows.packets[hottest];
        let prefix = RouterModel::new(config).route_of(frame);
        let route = config.routes.iter().find(|r| Some(r.prefix) == prefix);
        let route = *route.ok_or_else(|| miette!("the hottest flow has no route"))?;
        Ok(RouteUpdater { far, config, frame, route, updates: AtomicU64::new(0) })
    }

    fn updates(&self) -> u64 {
        self.updates.load(Ordering::Relaxed)
    }

    /// Writes so many updates, with a pause after each.
    fn write(
        &self,
        routes: &KernelMap,
        count: u64,
        pause: Duration,
        stop: &AtomicBool,
    ) -> Result<(), LabError> {
        for _ in 0..count {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let n = self.updates.fetch_add(1, Ordering::Relaxed) as usize;
            self.update(routes, (self.route.next_hop as usize + n + 1) % usize::from(NEXT_HOPS))?;
            sleep(pause, stop)?;
        }
        Ok(())
    }

    /// Gives the route another next hop; frames are judged from the moment at which the update returns.
    fn update(&self, routes: &KernelMap, hop: usize) -> Result<(), LabError> {
        let destination = self.frame.get(30..34).and_then(|a| a.try_into().ok()).unwrap_or_default();
        let NextHop::Forward { dst_mac, .. } = self.config.next_hops[hop] else { return Ok(()) };
        self.far.expect(destination, dst_mac);
        let key = router::route_key(self.route.prefix);
        routes.update(&key, &(hop as u32).to_ne_bytes(), UpdateMode::Any)?;
        self.far.resume_counting();
        Ok(())
    }
}

/// The router on the rig, with Millstream beside it.
struct DemoSession<'s> {
    rig: &'s TestRig,
    json: bool,
    measure: Duration,
    told: Mutex<Vec<SessionReport>>,
    story: Mutex<EventLog>,
    /// Set to stop reporting the answers to writes.
    quiet: AtomicBool,
}

impl<'s> DemoSession<'s> {
    fn new(args: &DemoArgs, rig: &'s TestRig) -> Self {
        DemoSession {
            rig,
            json: args.json,
            measure: Duration::from_secs(args.measure.max(2)),
            told: Mutex::default(),
            story: Mutex::new(EventLog::new()),
            quiet: AtomicBool::new(false),
        }
    }

    fn story(&self) -> MutexGuard<'_, EventLog> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports so far.
    fn told(&self) -> Vec<SessionReport> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the router with its tables onto the rig, for the duration of `acts`.
    fn play<R: Send>(
        &self,
        config: &RouterConfig,
        first: Duration,
        acts: impl FnOnce(&mut LiveSession<'_>) -> Result<R, miette::Report> + Send,
    ) -> Result<R, miette::Report> {
        let object = Object::parse(ROUTER.name, ROUTER.object).into_diagnostic()?;
        let compiler = variant_compiler(&object, None).into_diagnostic()?;
        let entries = config.entries().into_diagnostic()?;
        let mut settings = SessionSettings::new(format!("{PINS}/demo_{}", std::process::id()));
        (settings.pace.first, settings.count) = (first, true);
        let result = self.rig.namespace().enter(|| {
            let mut live = LiveSession::load(&compiler, settings).map_err(session_ended)?;
            for entry in &entries {
                let map =
                    live.map(entry.map).ok_or_else(|| miette!("the router has no map {}", entry.map))?;
                map.update(&entry.key, &entry.value, UpdateMode::Any).map_err(ended)?;
            }
            self.tell(&live.attach(&[self.rig.test_port()]).map_err(session_ended)?);
            let result = acts(&mut live);
            live.finish(DetachPolicy::Restored).map_err(session_ended)?;
            result
        });
        result.map_err(ended)?
    }

    /// Runs Millstream and the sender while `script` does.
    fn run(
        &self,
        live: &mut LiveSession<'_>,
        script: impl FnOnce(&AtomicBool) -> Result<(), LabError> + Send,
    ) -> Result<(), miette::Report> {
        let stop = &AtomicBool::new(false);
        let (ran, sent, scripted) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.rig.generator_loop(stop, None));
            let script = scope.spawn(|| {
                let result = script(stop);
                stop.store(true, Ordering::Relaxed);
                result
            });
            let ran = live.run(stop, &mut |r| {
                self.tell(r);
                if os::interrupted() {
                    stop.store(true, Ordering::Relaxed);
                }
            });
            stop.store(true, Ordering::Relaxed);
            (ran, sender.join(), script.join())
        });
        ran.map_err(session_ended)?;
        sent.map_err(|_| miette!("the sender panicked"))?.map_err(ended)?;
        scripted.map_err(|_| miette!("the script panicked"))?.map_err(ended)?;
        if os::interrupted() { Err(miette!("interrupted")) } else { Ok(()) }
    }

    fn tell(&self, report: &SessionReport) {
        let answer = matches!(
            report,
            SessionReport::Refreshed { .. }
                | SessionReport::Confirmed { .. }
                | SessionReport::Specialised { write_ns: Some(_), .. }
        );
        if !(answer && self.quiet.load(Ordering::Relaxed)) {
            match self.json {
                true => outln!("{}", report.json()),
                false => {
                    if let Some(line) = self.story().line(report) {
                        outln!("{}", wrapped(&line));
                    }
                }
            }
        }
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(report.clone());
    }

    /// Compares original and variant on the present traffic, by the protocol: copies of both and of an empty
    /// program, in random order. `None` if no variant is active.
    fn speed(&self, live: &mut LiveSession<'_>) -> Result<Option<SpeedComparison>, miette::Report> {
        if live.copy_of_variant().map_err(session_ended)?.is_none() {
            return Ok(None);
        }
        fit_for_timing().map_err(ended)?;
        live.detach().map_err(session_ended)?;
        let plan = MeasurementPlan::live(self.measure.as_secs_f64());
        let measured =
            live.speed_until(self.rig, XDP_TX, &plan, MOST_LOOKS, figures::is_decided).map_err(ended);
        self.rig.detach();
        live.attach(&[self.rig.test_port()]).map_err(session_ended)?;
        measured.map(Some)
    }
}

/// Sleeps in pieces, so that an interruption ends it.
#[allow(clippy::unnecessary_wraps)] // scripts end with it
fn sleep(time: Duration, stop: &AtomicBool) -> Result<(), LabError> {
    let end = Instant::now() + time;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}
