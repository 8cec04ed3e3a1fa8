//! Compares one of our data planes with a public program of its kind, on the same live frames with the same
//! tables, each in the layout of its own maps.
//!
//! `peers COMPARISON OBJECT [--prog NAME] [--seconds N]` measures by the protocol of docs/measuring.md,
//! 10,000 flows of high locality, and prints JSON. Exit code 1: our time is above [`BAR`] of the peer's; 3:
//! the machine was too busy to tell. With `--specialised LOCALITY` the public program is measured beside what
//! a session makes of it (`specialised.rs`). With `--files DIRECTORY` nothing is measured: its tables and the
//! frames are written there, for `millstream native` (`files.rs`). `bench/README.md` names the programs and
//! where they are published; `tables.rs` describes their maps. None of their code is part of this repository.

mod files;
mod specialised;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use millstream_kernel::Map;
use millstream_lab::compare::{Report, common, on_the_rig};
use millstream_lab::environment::{Environment, fit_for_timing};
use millstream_lab::measure::Plan;
use millstream_lab::subject::Subject;
use millstream_lab::verify::answers;
use millstream_lab::{Rig, RigConfig, Traffic};
use millstream_object::Object;
use millstream_programs::traffic::Locality;
use serde::Serialize;

use tables::{Peer, Workload};

type Error = Box<dyn std::error::Error>;

/// Order of the frames, drawn beforehand.
const DRAWS: usize = 1 << 16;
const SEED: u64 = 44;
/// Packets of the traffic on which instructions are counted.
const SAMPLE: usize = 256;

/// Greatest ratio of our time to the peer's, without the harness.
const BAR: f64 = 1.10;

#[derive(Serialize)]
struct Document {
    schema: u32,
    environment: Environment,
    plane: &'static str,
    peer: &'static str,
    workload: String,
    answers: Answers,
    /// Our time by the peer's, without the harness, and what it may be at most.
    net_ratio: f64,
    /// The same from both ends of the interval of the ratio with the harness in it.
    net_interval: [f64; 2],
    bar: f64,
    report: Report,
    doubts: Vec<String>,
}

/// Answers of both for each flow.
#[derive(Clone, Copy, Serialize)]
struct Answers {
    flows: usize,
    /// Of those: the same verdict, and a frame of the same length.
    alike: usize,
    /// Of those: the same in every byte, too.
    identical: usize,
}

struct Arguments {
    peer: &'static Peer,
    object: String,
    program: Option<String>,
    seconds: f64,
    /// The locality of the traffic to which it is to be specialised.
    specialised: Option<String>,
    /// Folder for its tables and the frames.
    files: Option<PathBuf>,
}

impl Arguments {
    /// As it is recorded: where the object lies does not matter.
    fn command(&self) -> String {
        let file = self.object.rsplit('/').next().unwrap_or_default();
        let program = self.program.as_ref().map_or(String::new(), |p| format!(" --prog {p}"));
        let specialised = self.specialised.as_ref().map_or(String::new(), |l| format!(" --specialised {l}"));
        format!("peers {} {file}{program}{specialised} --seconds {}", self.peer.id, self.seconds)
    }
}

fn arguments() -> Result<Arguments, Error> {
    const USAGE: &str = "usage: peers COMPARISON OBJECT [--prog NAME] [--seconds N] \
        [--specialised high|low|none|zipf:EXPONENT | --files DIRECTORY]";
    let (mut plain, mut program, mut seconds, mut specialised, mut files) =
        (Vec::new(), None, 60.0, None, None);
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--prog" => program = Some(given.next().ok_or(USAGE)?),
            "--seconds" => seconds = given.next().ok_or(USAGE)?.parse()?,
            "--specialised" => specialised = Some(given.next().ok_or(USAGE)?),
            "--files" => files = Some(given.next().ok_or(USAGE)?.into()),
            _ => plain.push(argument),
        }
    }
    let [id, object] = plain.try_into().map_err(|_| USAGE)?;
    let peer = tables::PEERS.iter().find(|p| p.id == id).ok_or("no such comparison")?;
    Ok(Arguments { peer, object, program, seconds, specialised, files })
}

fn main() -> ExitCode {
    let said = arguments().and_then(|a| match (&a.files, &a.specialised) {
        (Some(directory), _) => files::write(a.peer, directory).map(|()| ExitCode::SUCCESS),
        (None, Some(locality)) => specialised::measure(&a, locality).map(|document| document.told()),
        (None, None) => compare(&a).map(|document| document.told()),
    });
    match said {
        Ok(code) => code,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

impl Document {
    fn told(&self) -> ExitCode {
        println!("{}", serde_json::to_string_pretty(self).unwrap_or_default());
        ExitCode::from(match (self.doubts.is_empty(), self.net_ratio <= BAR) {
            (false, _) => 3,
            (true, false) => 1,
            (true, true) => 0,
        })
    }
}

fn compare(arguments: &Arguments) -> Result<Document, Error> {
    let peer = arguments.peer;
    let ours = Object::parse(peer.plane.name, peer.plane.object)?;
    let theirs = Object::parse(peer.name, &std::fs::read(&arguments.object)?)?;
    let rig = Rig::new(RigConfig::default())?;
    let load = (peer.workload)([rig.test_port(), rig.second_port()], Locality::HIGH)?;
    fit_for_timing()?;

    let ours = Subject::prepare(peer.plane.name, &ours, Some(peer.plane.function), None)?;
    let theirs = Subject::prepare_with(peer.name, &theirs, arguments.program.as_deref(), None, |loader| {
        peer.sizes.iter().try_fold(loader, |loader, (map, entries)| Ok(loader.max_entries(map, *entries)?))
    })?;
    ours.apply(&load.ours, rig.namespace())?;
    theirs.apply(&load.theirs, rig.namespace())?;
    let _inner = inner_maps(peer, |name| theirs.session().map_by_name(name))?;
    rig.namespace().enter(|| fill_kernel(&load.kernel))??;

    let order = load.flows.sequence(SEED, DRAWS);
    rig.load_traffic(&Traffic::new(&load.flows, &order))?;
    let (answers, verdict) = compare_answers(&rig, &ours, &theirs, &load)?;
    let sample: Vec<_> = order.iter().take(SAMPLE).map(|&i| load.flows.packets[i as usize].clone()).collect();
    let subjects = [theirs, ours];
    let report = on_the_rig(&subjects, &rig, &sample, verdict, Plan::live(arguments.seconds))?;
    let (net_ratio, net_interval) = net(&report)?;
    Ok(Document {
        schema: 1,
        environment: Environment { command: arguments.command(), ..Environment::now() },
        plane: peer.plane.name,
        peer: peer.name,
        workload: described(&load),
        answers,
        net_ratio,
        net_interval,
        bar: BAR,
        doubts: report.doubts(),
        report,
    })
}

fn described(load: &Workload) -> String {
    let (flows, hash) = (load.flows.packets.len(), load.flows.hash());
    format!("{}, {flows} flows, hash {hash:016x}, order seed {SEED}", load.description)
}

/// Maps of a map of maps that the peer wants: one for each CPU.
fn inner_maps<'m>(peer: &Peer, map: impl Fn(&str) -> Option<&'m Map>) -> Result<Vec<Map>, Error> {
    let Some((outer, spec)) = &peer.inner else { return Ok(Vec::new()) };
    let outer = map(outer).ok_or("the peer lacks its map of maps")?;
    let mut inner = Vec::new();
    for cpu in 0..millstream_kernel::possible_cpus()? as u32 {
        let map = Map::create(spec)?;
        outer.update_fd(&cpu.to_ne_bytes(), std::os::fd::AsFd::as_fd(&map))?;
        inner.push(map);
    }
    Ok(inner)
}

/// Gives the kernel of this namespace its tables.
fn fill_kernel(lines: &[String]) -> std::io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    std::fs::write("/proc/sys/net/ipv4/conf/all/forwarding", "1")?;
    let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut to) = ip.stdin.take() {
        to.write_all((lines.join("\n") + "\n").as_bytes())?;
    }
    match ip.wait()?.success() {
        true => Ok(()),
        false => Err(std::io::Error::other("`ip -batch` failed")),
    }
}

/// Ratio of our time to the peer's without the harness, which is part of the measured ratio and its interval.
fn net(report: &Report) -> Result<(f64, [f64; 2]), Error> {
    let (peer, harness) = (report.sides[0].ns, report.empty_ns);
    let ratio = report.sides[1].against_first.ok_or("no ratio")?;
    let net = |with_harness: f64| (with_harness * peer - harness) / (peer - harness);
    Ok((net(ratio.ratio), ratio.interval.map(net)))
}

/// Compares the answers of both for each flow, and gives our verdicts; an error unless nearly all are equal.
fn compare_answers(
    rig: &Rig,
    ours: &Subject<'_>,
    theirs: &Subject<'_>,
    load: &Workload,
) -> Result<(Answers, u32), Error> {
    let a = answers(rig, &ours.load()?, &load.flows.packets)?;
    let b = answers(rig, &theirs.load()?, &load.flows.packets)?;
    let alike = a.iter().zip(&b).filter(|(a, b)| a.0 == b.0 && a.1.len() == b.1.len()).count();
    let identical = a.iter().zip(&b).filter(|(a, b)| a == b).count();
    let verdict = |of: &[(u32, Vec<u8>)]| common(&of.iter().map(|(v, _)| *v).collect::<Vec<_>>());
    if alike * 100 < a.len() * 99 {
        let of = a.len();
        return Err(format!(
            "only {alike} of {of} flows are answered alike: {} against {}",
            verdict(&a),
            verdict(&b)
        )
        .into());
    }
    Ok((Answers { flows: a.len(), alike, identical }, verdict(&a)))
}
