//! `millstream demo`: the router with 2,592 routes on a private veth pair, made faster while packets flow.
//!
//! Three acts: traffic of high locality; other hot flows; route updates under load. In the last, frames carry the time
//! at which they were made, and a program at the far end counts those that were made after an update had returned to
//! its caller and still have the next hop of before: stale packets, of which there may be none.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, miette};
use millstream_kernel::{Map, UpdateMode};
use millstream_lab::{FarEnd, Rig, RigConfig, Staleness, Traffic, os};
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::router::{self, Config, Model, NextHop, Route};
use millstream_programs::traffic::{Flows, Locality};
use millstream_specialize::pins::remove_abandoned;
use millstream_specialize::report::{Reason, Report, time_away};
use millstream_specialize::{Compiler, Leave, Live, Settings};

use crate::exit::Exit;

const ROUTES: usize = 2592;
const NEXT_HOPS: u8 = 16;
const FLOWS: usize = 10_000;
const SEQUENCE: usize = 1 << 17;

/// Flags of `millstream demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds of each of the three acts
    #[arg(long, value_name = "S", default_value_t = 10)]
    seconds: u64,
    /// Route updates a second in the last act
    #[arg(long, value_name = "N", default_value_t = 10)]
    updates: u64,
    /// Print the session's reports as JSON lines
    #[arg(long)]
    json: bool,
}

/// What an act showed.
#[derive(Default)]
struct Act {
    told: Vec<Report>,
    sent: u64,
    lost: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, miette::Report> {
    os::catch_interrupts();
    remove_abandoned(Path::new(PINS), "demo_");
    let act = Duration::from_secs(args.seconds.max(3));
    println!("A router with {ROUTES} routes, {FLOWS} flows of high locality, on a veth pair.\n");
    println!(
        "1. The original for two seconds, then Millstream; after {} s other flows are hot.",
        args.seconds
    );
    let first = traffic_acts(args, act)?;
    println!("\n2. {} route updates a second, under load; frames carry the time.", args.updates);
    let (second, updates, staleness) = update_act(args, act)?;
    Ok(conclude(&first, &second, updates, &staleness, act).into())
}

fn config_of(port: u32) -> (Config, Flows) {
    let config = router::generate(ROUTES, &[port], NEXT_HOPS, 1);
    let flows = router::flows(&config, FLOWS, Locality::HIGH, 1);
    (config, flows)
}

fn traffic_acts(args: &Args, act: Duration) -> Result<Act, miette::Report> {
    let rig = Rig::new(RigConfig::default()).into_diagnostic()?;
    let (config, flows) = config_of(rig.test_port());
    let sequence = flows.sequence(1, SEQUENCE);
    rig.load_traffic(&Traffic::new(&flows, &sequence)).into_diagnostic()?;
    session(args, &rig, &config, |_, stop| {
        sleep(Duration::from_secs(2) + act, stop);
        println!("   other flows are hot now");
        let other = flows.reweighted(Locality::HIGH, 77).sequence(2, SEQUENCE);
        if let Err(e) = rig.reorder(&other) {
            eprintln!("{e}");
        }
        sleep(act, stop);
    })
}

fn update_act(args: &Args, act: Duration) -> Result<(Act, u64, Staleness), miette::Report> {
    let rig = Rig::new(RigConfig { stamps: true, ..RigConfig::default() }).into_diagnostic()?;
    let (config, flows) = config_of(rig.test_port());
    let sequence = flows.sequence(1, SEQUENCE);
    rig.load_traffic(&Traffic::new(&flows, &sequence)).into_diagnostic()?;
    let far = FarEnd::new(&rig).into_diagnostic()?;
    let hottest = flows.weights.iter().enumerate().max_by_key(|(_, w)| **w).map_or(0, |(i, _)| i);
    let frame = &flows.packets[hottest];
    let prefix = Model::new(&config).route_of(frame);
    let route = config.routes.iter().find(|r| Some(r.prefix) == prefix);
    let route = *route.ok_or_else(|| miette!("the hottest flow has no route"))?;
    let updates = AtomicU64::new(0);
    let told = session(args, &rig, &config, |routes, stop| {
        sleep(Duration::from_secs(3), stop);
        let end = Instant::now() + act;
        let pause = Duration::from_nanos(1_000_000_000 / args.updates.max(1));
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            let n = updates.fetch_add(1, Ordering::Relaxed) as usize;
            let new = (route.next_hop as usize + n + 1) % usize::from(NEXT_HOPS);
            if let Err(e) = update(&far, routes, &config, route, frame, new) {
                eprintln!("{e}");
                return;
            }
            sleep(pause, stop);
        }
    })?;
    Ok((told, updates.into_inner(), far.counted()))
}

/// The router on the rig with Millstream beside it, while `script` runs.
fn session(
    args: &Args,
    rig: &Rig,
    config: &Config,
    script: impl FnOnce(&Map, &AtomicBool) + Send,
) -> Result<Act, miette::Report> {
    let object = Object::parse(ROUTER.name, ROUTER.object).into_diagnostic()?;
    let compiler = Compiler::new(&object, None).into_diagnostic()?;
    let entries = config.entries().into_diagnostic()?;
    let (stop, told) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let tell = |report: &Report| {
        if args.json {
            println!("{}", report.json());
        } else {
            println!("   {}", super::run::text(report));
        }
        told.lock().unwrap_or_else(PoisonError::into_inner).push(report.clone());
        if os::interrupted() {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let mut settings = Settings::new(format!("{PINS}/demo_{}", std::process::id()));
    settings.first = Duration::from_secs(2);
    let result = rig.namespace().enter(|| {
        let mut live = Live::load(&compiler, settings).into_diagnostic()?;
        for entry in &entries {
            let map = live.map(entry.map).ok_or_else(|| miette!("the router has no map {}", entry.map))?;
            map.update(&entry.key, &entry.value, UpdateMode::Any).into_diagnostic()?;
        }
        let routes = live.map(router::ROUTES).ok_or_else(|| miette!("no routes"))?;
        let routes = routes.try_clone().into_diagnostic()?;
        tell(&live.attach(rig.test_port()).into_diagnostic()?);
        let (ran, sent) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| rig.generator_loop(&stop, None));
            scope.spawn(|| {
                script(&routes, &stop);
                stop.store(true, Ordering::Relaxed);
            });
            let ran = live.run(&stop, &mut |r| tell(r));
            stop.store(true, Ordering::Relaxed);
            (ran, sender.join())
        });
        ran.into_diagnostic()?;
        sent.map_err(|_| miette!("the sender panicked"))?.into_diagnostic()?;
        let counts = rig.counts().into_diagnostic()?;
        live.finish(Leave::Restored).into_diagnostic()?;
        Ok::<_, miette::Report>(counts)
    });
    let counts = result.into_diagnostic()??;
    let told = told.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Act { told, sent: counts.sent, lost: counts.lost() })
}

/// Sleeps in pieces, so that an interruption ends it.
fn sleep(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
    }
}

/// Gives the route of `frame` another next hop; frames are judged from the moment at which the update returns.
fn update(
    far: &FarEnd,
    routes: &Map,
    config: &Config,
    route: Route,
    frame: &[u8],
    new: usize,
) -> Result<(), millstream_kernel::Error> {
    let destination = frame.get(30..34).and_then(|a| a.try_into().ok()).unwrap_or_default();
    let NextHop::Forward { dst_mac, .. } = config.next_hops[new] else { return Ok(()) };
    far.expect(destination, dst_mac);
    routes.update(&router::route_key(route.prefix), &(new as u32).to_ne_bytes(), UpdateMode::Any)?;
    far.returned();
    Ok(())
}

const PINS: &str = "/sys/fs/bpf/millstream";

/// Prints the table; says whether the figures are as they must be.
fn conclude(first: &Act, second: &Act, updates: u64, staleness: &Staleness, act: Duration) -> Exit {
    let pps = |of: &dyn Fn(u32) -> bool| {
        let rates = first.told.iter().filter_map(|r| match r {
            Report::Status { pps, generation, .. } if of(*generation) => Some(*pps),
            _ => None,
        });
        median(rates.collect())
    };
    let (before, after) = (pps(&|g| g == 0), pps(&|g| g > 0));
    let ns = first.told.iter().rev().find_map(|r| match r {
        Report::Status { before_ns: Some(b), now_ns: Some(n), generation: 1.., .. } => Some((*b, *n)),
        _ => None,
    });
    println!("\n                      original    specialised");
    println!(
        "packets a second   {:8.3} M     {:8.3} M     {:.2} x",
        before / 1e6,
        after / 1e6,
        after / before
    );
    if let Some((b, n)) = ns {
        println!("ns a packet        {b:10.1}     {n:10.1}     {:.2} x", n / b);
    }
    let latencies: Vec<f64> = second
        .told
        .iter()
        .filter_map(|r| match r {
            Report::Specialised { reason: Reason::Write, latency_us: Some(l), .. } => {
                Some(*l as f64 / 1000.0)
            }
            _ => None,
        })
        .collect();
    let away = time_away(&second.told);
    println!(
        "\n{} updates, {} answered by new code; from the write to its first packet {:.1} ms at the median",
        updates,
        latencies.len(),
        median(latencies.clone())
    );
    let share = (1.0 - away.as_secs_f64() / act.as_secs_f64()).max(0.0);
    println!("share of the time of the updates in specialised code: {:.1} %", 100.0 * share);
    println!(
        "stale packets: {} of {} made after an update",
        staleness.stale,
        staleness.stale + staleness.fresh
    );
    let (sent, lost) = (first.sent + second.sent, first.lost + second.lost);
    println!("lost packets:  {lost} of {sent}");
    let counted = staleness.fresh > 0 && staleness.unstamped == 0;
    if !counted {
        println!("the far end has counted nothing: no claim can be made about stale packets");
    }
    if staleness.stale == 0 && lost == 0 && counted && after > before { Exit::Done } else { Exit::Negative }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
