//! A public program in a session of its own, on live frames: the original beside what it is specialised to.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_kernel::UpdateMode;
use millstream_lab::compare::common;
use millstream_lab::environment::{Environment, fit_for_timing};
use millstream_lab::measure::MeasurementPlan;
use millstream_lab::verify::answers;
use millstream_lab::workload::locality;
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_object::Object;
use millstream_specialize::live::details::LookupMethod;
use millstream_specialize::{
    DetachPolicy, LiveSession, SessionReport, SessionSettings, SpeedComparison, variant_compiler,
};
use millstream_specializer::variant::VariantCompiler;
use serde::Serialize;

use super::tables::PeerWorkload;
use super::{DRAWS, PeersArgs, PeersError, SAMPLE, SEED, described, fill_kernel, inner_maps};

/// Time that the session has to find its form.
const SETTLE: Duration = Duration::from_secs(6);

#[derive(Serialize)]
pub(super) struct PeerSessionReport {
    schema: u32,
    environment: Environment,
    program: &'static str,
    locality: String,
    workload: String,
    /// Reports of the session, without those of its status.
    said: Vec<SessionReport>,
    /// Of each lookup that was made: the map, and how it is answered.
    lookups: Vec<(String, LookupMethod)>,
    /// Nothing if no variant was at work in the end.
    speed: Option<SpeedComparison>,
}

impl PeerSessionReport {
    /// Prints it. Exit code 1 says that no variant was at work.
    pub(super) fn told(&self) -> ExitCode {
        println!("{}", serde_json::to_string_pretty(self).unwrap_or_default());
        ExitCode::from(u8::from(self.speed.is_none()))
    }
}

/// Runs a session on the program, and then measures.
pub(super) fn measure(arguments: &PeersArgs, flows: &str) -> Result<PeerSessionReport, PeersError> {
    let peer = arguments.peer;
    let mut object = Object::parse(peer.name, &std::fs::read(&arguments.object)?)?;
    for (name, entries) in peer.sizes {
        let map = object.maps.iter_mut().find(|m| m.name == *name).ok_or("the peer lacks a map")?;
        map.spec.max_entries = *entries;
    }
    let rig = TestRig::new(RigConfig::default())?;
    let load = (peer.workload)([rig.test_port(), rig.second_port()], locality(flows)?)?;
    fit_for_timing()?;
    let order = load.flows.sequence(SEED, DRAWS);
    rig.load_traffic(&TrafficSequence::new(&load.flows, &order))?;
    let sample: Vec<_> = order.iter().take(SAMPLE).map(|&i| load.flows.packets[i as usize].clone()).collect();
    let compiler = variant_compiler(&object, arguments.program.as_deref())?;
    let found = rig.namespace().enter(|| session(arguments, &compiler, &rig, &load, &sample))?;
    let PeerSessionResult { said, lookups, speed } = found.map_err(|e| e as PeersError)?;
    Ok(PeerSessionReport {
        schema: 1,
        environment: Environment { command: arguments.command(), ..Environment::now() },
        program: peer.name,
        locality: flows.to_owned(),
        workload: described(&load),
        said,
        lookups,
        speed,
    })
}

struct PeerSessionResult {
    said: Vec<SessionReport>,
    lookups: Vec<(String, LookupMethod)>,
    speed: Option<SpeedComparison>,
}

/// Handles that may leave the namespace's thread.
type PeerThreadError = Box<dyn std::error::Error + Send + Sync>;

fn session(
    arguments: &PeersArgs,
    compiler: &VariantCompiler,
    rig: &TestRig,
    load: &PeerWorkload,
    sample: &[Vec<u8>],
) -> Result<PeerSessionResult, PeerThreadError> {
    let pins = format!("/sys/fs/bpf/millstream/peers_{}", std::process::id());
    let mut live = LiveSession::load(compiler, SessionSettings::new(pins))?;
    for entry in &load.theirs {
        let map = live.map(entry.map).ok_or_else(|| format!("the peer lacks the map {}", entry.map))?;
        map.update_all_cpus(&entry.key, &entry.value, UpdateMode::Any)?;
    }
    let _inner = inner_maps(arguments.peer, |name| live.map(name)).map_err(|e| e.to_string())?;
    fill_kernel(&load.kernel)?;
    live.attach(&[rig.test_port()])?;
    let mut said = Vec::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| rig.generator_loop(&stop, None));
        scope.spawn(|| {
            std::thread::sleep(SETTLE);
            stop.store(true, Ordering::SeqCst);
        });
        live.run(&stop, &mut |report| {
            if !matches!(report, SessionReport::Status { .. }) {
                said.push(report.clone());
            }
        })
    })?;
    let made = live.details()?.lookups.into_iter().filter(|l| l.seen > 0);
    let lookups = made.map(|l| (l.map, l.how)).collect();
    let speed = match live.copy_of_variant()? {
        Some(_) => Some(speed(&mut live, rig, sample, arguments.seconds)?),
        None => None,
    };
    live.finish(DetachPolicy::Restored)?;
    Ok(PeerSessionResult { said, lookups, speed })
}

fn speed(
    live: &mut LiveSession<'_>,
    rig: &TestRig,
    sample: &[Vec<u8>],
    seconds: f64,
) -> Result<SpeedComparison, PeerThreadError> {
    live.detach()?;
    let verdicts: Vec<u32> = answers(rig, live.original(), sample)?.into_iter().map(|(v, _)| v).collect();
    Ok(live.speed(rig, common(&verdicts), &MeasurementPlan::live(seconds))?)
}
