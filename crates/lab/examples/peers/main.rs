//! One of our data planes beside a public program of its kind, on the same live frames with the same tables, each in the
//! layout of its own maps.
//!
//! `peers PLANE OBJECT [--prog NAME] [--seconds N]` measures by the protocol of docs/measuring.md, 10,000 flows of high
//! locality, and prints JSON. `bench/README.md` says which programs these are and where they are published; `tables.rs`
//! knows their maps. None of their code is part of this repository.

mod tables;

use std::process::ExitCode;

use millstream_kernel::Map;
use millstream_lab::compare::{Report, common, on_the_rig};
use millstream_lab::environment::{Environment, fit_for_timing};
use millstream_lab::measure::Plan;
use millstream_lab::subject::Subject;
use millstream_lab::verify::answers;
use millstream_lab::{Rig, RigConfig, Traffic};
use millstream_object::Object;
use serde::Serialize;

use tables::{Peer, Workload};

type Error = Box<dyn std::error::Error>;

/// Order of the frames, drawn beforehand.
const DRAWS: usize = 1 << 16;
const SEED: u64 = 44;
/// Packets of the traffic on which instructions are counted.
const SAMPLE: usize = 256;

#[derive(Serialize)]
struct Document {
    schema: u32,
    environment: Environment,
    plane: &'static str,
    peer: &'static str,
    workload: String,
    /// Flows of which both give the same verdict and a frame of the same length, of all.
    agreed: [usize; 2],
    /// Our time by the peer's, without the harness.
    net_ratio: f64,
    report: Report,
    doubts: Vec<String>,
}

struct Arguments {
    peer: &'static Peer,
    object: String,
    program: Option<String>,
    seconds: f64,
}

impl Arguments {
    /// As it is recorded: where the object lies does not matter.
    fn command(&self) -> String {
        let file = self.object.rsplit('/').next().unwrap_or_default();
        let program = self.program.as_ref().map_or(String::new(), |p| format!(" --prog {p}"));
        format!("peers {} {file}{program} --seconds {}", self.peer.plane.name, self.seconds)
    }
}

fn arguments() -> Result<Arguments, Error> {
    const USAGE: &str = "usage: peers PLANE OBJECT [--prog NAME] [--seconds N]";
    let (mut plain, mut program, mut seconds) = (Vec::new(), None, 60.0);
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--prog" => program = Some(given.next().ok_or(USAGE)?),
            "--seconds" => seconds = given.next().ok_or(USAGE)?.parse()?,
            _ => plain.push(argument),
        }
    }
    let [plane, object] = plain.try_into().map_err(|_| USAGE)?;
    let peer = tables::PEERS.iter().find(|p| p.plane.name == plane).ok_or("no such plane")?;
    Ok(Arguments { peer, object, program, seconds })
}

fn main() -> ExitCode {
    match arguments().and_then(|a| compare(&a)) {
        Ok(document) => {
            println!("{}", serde_json::to_string_pretty(&document).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn compare(arguments: &Arguments) -> Result<Document, Error> {
    let peer = arguments.peer;
    let ours = Object::parse(peer.plane.name, peer.plane.object)?;
    let theirs = Object::parse(peer.name, &std::fs::read(&arguments.object)?)?;
    let rig = Rig::new(RigConfig::default())?;
    let load = (peer.workload)([rig.test_port(), rig.second_port()])?;
    fit_for_timing()?;

    let ours = Subject::prepare(peer.plane.name, &ours, Some(peer.plane.function), None)?;
    let theirs = Subject::prepare_with(peer.name, &theirs, arguments.program.as_deref(), None, |loader| {
        peer.sizes.iter().try_fold(loader, |loader, (map, entries)| Ok(loader.max_entries(map, *entries)?))
    })?;
    ours.apply(&load.ours, rig.namespace())?;
    theirs.apply(&load.theirs, rig.namespace())?;
    let _inner = inner_maps(peer, &theirs)?;

    let order = load.flows.sequence(SEED, DRAWS);
    rig.load_traffic(&Traffic::new(&load.flows, &order))?;
    let (agreed, verdict) = agreed(&rig, &ours, &theirs, &load)?;
    let sample: Vec<_> = order.iter().take(SAMPLE).map(|&i| load.flows.packets[i as usize].clone()).collect();
    let subjects = [theirs, ours];
    let report = on_the_rig(&subjects, &rig, &sample, verdict, Plan::live(arguments.seconds))?;
    let flows = load.flows.packets.len();
    Ok(Document {
        schema: 1,
        environment: Environment { command: arguments.command(), ..Environment::now() },
        plane: peer.plane.name,
        peer: peer.name,
        workload: format!(
            "{}, {flows} flows, hash {:016x}, order seed {SEED}",
            load.description,
            load.flows.hash()
        ),
        agreed: [agreed, flows],
        net_ratio: report.sides[1].net_ns / report.sides[0].net_ns,
        doubts: report.doubts(),
        report,
    })
}

/// Maps of a map of maps that the peer wants: one for each CPU.
fn inner_maps(peer: &Peer, theirs: &Subject<'_>) -> Result<Vec<Map>, Error> {
    let Some((outer, spec)) = &peer.inner else { return Ok(Vec::new()) };
    let outer = theirs.session().map_by_name(outer).ok_or("the peer lacks its map of maps")?;
    let mut inner = Vec::new();
    for cpu in 0..millstream_kernel::possible_cpus()? as u32 {
        let map = Map::create(spec)?;
        outer.update_fd(&cpu.to_ne_bytes(), std::os::fd::AsFd::as_fd(&map))?;
        inner.push(map);
    }
    Ok(inner)
}

/// How many flows both answer alike, and the verdict; refused unless nearly all are.
fn agreed(
    rig: &Rig,
    ours: &Subject<'_>,
    theirs: &Subject<'_>,
    load: &Workload,
) -> Result<(usize, u32), Error> {
    let a = answers(rig, &ours.load()?, &load.flows.packets)?;
    let b = answers(rig, &theirs.load()?, &load.flows.packets)?;
    let alike = a.iter().zip(&b).filter(|(a, b)| a.0 == b.0 && a.1.len() == b.1.len()).count();
    let verdicts: Vec<u32> = a.iter().map(|(v, _)| *v).collect();
    if alike * 100 < a.len() * 99 {
        let (ours, theirs) = (common(&verdicts), common(&b.iter().map(|(v, _)| *v).collect::<Vec<_>>()));
        return Err(
            format!("only {alike} of {} flows are answered alike: {ours} against {theirs}", a.len()).into()
        );
    }
    Ok((alike, common(&verdicts)))
}
