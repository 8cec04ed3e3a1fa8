//! `millstream bench-user`: the cost of a Click configuration, an XDP program or a P4 program in userspace,
//! without a peer, a NIC or root.
//!
//! Packets come from memory, and sent packets are counted. Times cover a packet's whole path, copying in and
//! out included, unless they are labelled as the program's. Points of a part are measured in turns, in random
//! order, in several rounds; results are medians, with the minimum and maximum over all rounds.
//! docs/native.md.

mod instructions;
pub(crate) mod outputs;
mod p4_target;
pub(crate) mod paced;
mod report;
pub(crate) mod subject;
pub(crate) mod traffic;

use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, miette};
use millstream_lab::os;
use millstream_native::Schedule;
use millstream_rng::Rng;

use self::paced::OfferedLoad;
use self::report::{BenchUserReport, BenchmarkRow, LatencyRow, ScheduleRow, SkippedPart, median};
use self::subject::{
    BenchmarkRunner, BenchmarkTarget, CompileOutcome, CompileRequest, PacedMeasurement, RunMeasurement,
    SubjectArgs,
};
use self::traffic::TrafficPattern;
use crate::click::check_batch_size;
use crate::duration_args::positive_seconds;
use crate::exit::Exit;
use crate::model;
use crate::native::{CodegenArgs, bind};
use crate::plan::PlanArgs;
use crate::progress::{Progress, ProgressCounter};

/// Flags of `millstream bench-user`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchUserArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Parts of the measurement to run
    #[arg(
        long,
        value_name = "PART,...",
        value_enum,
        value_delimiter = ',',
        default_value = "batches,sizes,schedules,workers,latency,instructions"
    )]
    parts: Vec<BenchmarkPart>,
    /// Schedules to measure, one after the other, in the part `schedules`
    #[arg(long, value_name = "SCHEDULE;...", value_delimiter = ';')]
    schedules: Vec<Schedule>,
    /// Batch sizes to measure, in packets
    #[arg(
        long,
        value_name = "B,...",
        value_delimiter = ',',
        default_value = "1,4,16,32,64,128,256",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    batches: Vec<u32>,
    /// Frame sizes to pad packets to, without the frame check sequence
    #[arg(
        long,
        value_name = "BYTES,...",
        value_delimiter = ',',
        default_value = "64,128,256,512,1024,1472",
        value_parser = clap::value_parser!(u32).range(60..=3520)
    )]
    sizes: Vec<u32>,
    /// Offered loads, in percent of the throughput without pacing
    #[arg(
        long,
        value_name = "PERCENT,...",
        value_delimiter = ',',
        default_value = "10,25,50,75,90,95,100,110",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    loads: Vec<u32>,
    /// Duration of each point's measurement, all rounds together
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = positive_seconds)]
    seconds: f64,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    tuning: CodegenArgs,
    #[command(flatten)]
    plan: PlanArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Run this number of packets and nothing else, to count instructions
    #[arg(long, value_name = "N", hide = true)]
    counted: Option<u64>,
}

impl BenchUserArgs {
    /// Batch size wherever a part does not vary it.
    fn batch(&self) -> u32 {
        self.tuning.schedule.batch
    }
}

/// A part of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum BenchmarkPart {
    /// Time a packet by the number of packets at once
    Batches,
    /// Time a packet by its size
    Sizes,
    /// Time a packet by --schedules, beside that of --schedule
    Schedules,
    /// Time a packet, and packets per second, by the number of workers: 1, 2, 4 and so on up to --workers;
    /// with
    /// --pipeline by stages, too
    Workers,
    /// Latency by offered load: packets that come by a Poisson process into a ring of 1,024, polled by one
    /// worker
    Latency,
    /// Instructions of a packet, counted by valgrind's callgrind where there is one
    Instructions,
}

/// Longest step of a worker's loop that is counted as its own, before the batches' duration is known.
const LONGEST_STEP: Duration = Duration::from_millis(1);
/// The same from then on, in batches, with a lower bound.
const BATCHES_A_STEP: f64 = 20.0;
const SHORTEST_STEP: Duration = Duration::from_micros(50);
/// Packets run to find out how many fill a round.
const FIRST: u64 = 1 << 14;

/// Runs the command.
pub fn run(args: &BenchUserArgs) -> Result<ExitCode> {
    os::catch_interrupts();
    let tuning = args.tuning.with_plan(&args.plan, || args.subject.program_hash())?.into_owned();
    let args = &BenchUserArgs { tuning, ..args.clone() };
    args.schedules
        .iter()
        .chain([&args.tuning.schedule])
        .try_for_each(|schedule| check_batch_size(schedule.batch))?;
    let subject = BenchmarkTarget::read(&args.subject, &args.tuning, os::monotonic_ns())?;
    let mut runner = match subject.runner(&args.subject, CompileRequest::of(&args.tuning))? {
        CompileOutcome::Ready(runner) => runner,
        CompileOutcome::NoLlvm(why) => {
            errln!("{why}");
            return Ok(Exit::NotPermitted.into());
        }
    };
    let traffic = subject.traffic(&args.subject)?;
    let args = &scheduled(args, &subject, &mut runner, &traffic)?;
    if let Some(count) = args.counted {
        outln!("{}", runner.run(&traffic, count, args.batch() as usize)?.received);
        return Ok(Exit::Done.into());
    }
    let mut bench = BenchmarkRun::new(args, &subject, *runner, traffic);
    for part in all_parts().filter(|part| args.parts.contains(part)) {
        if !os::interrupted() {
            bench.part(part)?;
        }
    }
    let mut document = bench.document();
    document.interrupted = os::interrupted();
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&document).into_diagnostic()?),
        false => out!("{}", document.text()),
    }
    if document.interrupted {
        errln!("interrupted: the report has what was measured until then");
        return Ok(Exit::Unknown.into());
    }
    Ok(Exit::Done.into())
}

/// The flags with the schedule that the performance model chooses, for a P4 program that nobody gave one.
fn scheduled(
    args: &BenchUserArgs,
    subject: &BenchmarkTarget,
    runner: &mut BenchmarkRunner,
    traffic: &TrafficPattern,
) -> Result<BenchUserArgs> {
    let is_given = args.tuning.schedule != Schedule::default();
    if is_given || args.counted.is_some() || !matches!(subject, BenchmarkTarget::P4(_)) {
        return Ok(args.clone());
    }
    bind(0).into_diagnostic()?;
    let Some(schedule) = model::chosen_schedule(runner, subject, traffic)? else { return Ok(args.clone()) };
    errln!("the model chooses --schedule {schedule}");
    let mut args = args.clone();
    args.tuning.schedule = schedule;
    runner.reschedule(subject, &CompileRequest::of(&args.tuning))?;
    Ok(args)
}

fn all_parts() -> impl Iterator<Item = BenchmarkPart> {
    use BenchmarkPart::{Batches, Instructions, Latency, Schedules, Sizes, Workers};
    [Batches, Sizes, Schedules, Workers, Latency, Instructions].into_iter()
}

/// State of the benchmark, and its results so far.
struct BenchmarkRun<'b> {
    args: &'b BenchUserArgs,
    subject: &'b BenchmarkTarget,
    /// The program by `--schedule`; behind it, while they are measured, by other schedules.
    runners: Vec<BenchmarkRunner>,
    traffic: TrafficPattern,
    found: BenchUserReport,
}

/// A point: runner, traffic and batch size.
struct MeasurementPoint<'p> {
    runner: usize,
    /// Code of the runner.
    code: usize,
    traffic: &'p TrafficPattern,
    batch: u32,
}

impl<'b> BenchmarkRun<'b> {
    fn new(
        args: &'b BenchUserArgs,
        subject: &'b BenchmarkTarget,
        runner: BenchmarkRunner,
        traffic: TrafficPattern,
    ) -> BenchmarkRun<'b> {
        let found = BenchUserReport::new(&args.subject.what, &traffic, args, runner.compiled_ms());
        BenchmarkRun { args, subject, runners: vec![runner], traffic, found }
    }

    fn document(self) -> BenchUserReport {
        self.found
    }

    fn skip(&mut self, part: &'static str, reason: impl Into<String>) {
        self.found.skipped.push(SkippedPart { part, reason: reason.into() });
    }

    fn part(&mut self, part: BenchmarkPart) -> Result<()> {
        bind(0).into_diagnostic()?;
        match part {
            BenchmarkPart::Batches => {
                let points: Vec<MeasurementPoint<'_>> = self
                    .args
                    .batches
                    .iter()
                    .map(|&batch| MeasurementPoint { runner: 0, code: 0, traffic: &self.traffic, batch })
                    .collect();
                let rows = measure(self.args, &mut self.runners, &points)?;
                self.found.by_batch = rows.into_iter().flatten().collect();
            }
            BenchmarkPart::Sizes => self.sizes()?,
            BenchmarkPart::Schedules => self.schedules()?,
            BenchmarkPart::Workers => self.workers()?,
            BenchmarkPart::Latency => self.latency()?,
            BenchmarkPart::Instructions => match instructions::count(self.args.batch())? {
                Ok(counted) => self.found.instructions_per_packet = Some(counted),
                // The counter has the same terminal, and stops with this command.
                Err(_) if os::interrupted() => {}
                Err(why) => self.skip("instructions", why),
            },
        }
        Ok(())
    }

    fn sizes(&mut self) -> Result<()> {
        if !self.runners.iter().all(BenchmarkRunner::takes_traffic) {
            self.skip("sizes", "no packet comes from a device: the configuration generates its packets");
            return Ok(());
        }
        let lengthened: Vec<TrafficPattern> =
            self.args.sizes.iter().map(|&size| self.traffic.lengthened(size as usize)).collect();
        let batch = self.args.batch();
        let points: Vec<MeasurementPoint<'_>> = lengthened
            .iter()
            .map(|traffic| MeasurementPoint { runner: 0, code: 0, traffic, batch })
            .collect();
        let rows = measure(self.args, &mut self.runners, &points)?;
        self.found.by_size = rows.into_iter().flatten().collect();
        Ok(())
    }

    fn schedules(&mut self) -> Result<()> {
        if self.args.schedules.is_empty() {
            return Ok(());
        }
        let args = self.args;
        let schedules: Vec<&Schedule> =
            std::iter::once(&args.tuning.schedule).chain(&args.schedules).collect();
        // The code does not depend on the number of packets at once: such schedules share it, and its tables.
        let code = |schedule: &Schedule| Schedule { batch: Schedule::MOST_BATCH, ..schedule.clone() };
        let mut codes: Vec<(Schedule, usize, usize)> = Vec::new();
        for schedule in &schedules {
            let known = codes.iter().find(|(known, ..)| *known == code(schedule));
            let (runner, number) = match known {
                Some((_, runner, number)) => (*runner, *number),
                None if codes.is_empty() => (0, 0),
                None => self.add_code(schedule)?,
            };
            codes.push((code(schedule), runner, number));
        }
        let point = |(schedule, (_, runner, code)): (&&Schedule, &(Schedule, usize, usize))| {
            MeasurementPoint { runner: *runner, code: *code, traffic: &self.traffic, batch: schedule.batch }
        };
        let points: Vec<MeasurementPoint<'_>> = schedules.iter().zip(&codes).map(point).collect();
        let rows = measure(self.args, &mut self.runners, &points)?;
        let mut row = |(row, point): (Option<BenchmarkRow>, &MeasurementPoint<'_>)| {
            let runner = self.runners.get_mut(point.runner)?;
            runner.select(point.code);
            let mut schedule = runner.schedule();
            schedule.schedule.batch = point.batch;
            row.map(|row| ScheduleRow { schedule, row })
        };
        self.found.by_schedule = rows.into_iter().zip(&points).filter_map(&mut row).collect();
        self.runners.truncate(1);
        self.runners.iter_mut().for_each(|runner| runner.select(0));
        Ok(())
    }

    /// Code by another schedule: the runner that has it, and its number there.
    fn add_code(&mut self, schedule: &Schedule) -> Result<(usize, usize)> {
        let request = CompileRequest { schedule, ..CompileRequest::of(&self.args.tuning) };
        if let Some(runner) = self.runners.first_mut()
            && let Some(number) = runner.add_code(self.subject, &request)?
        {
            return Ok((0, number));
        }
        match self.subject.runner(&self.args.subject, request)? {
            CompileOutcome::Ready(runner) => self.runners.push(*runner),
            CompileOutcome::NoLlvm(why) => return Err(miette!(why)),
        }
        Ok((self.runners.len() - 1, 0))
    }

    fn workers(&mut self) -> Result<()> {
        let most = self.args.tuning.workers;
        let mut numbers: Vec<u32> = (0..).map(|n| 1 << n).take_while(|&n| n < most).collect();
        numbers.push(most);
        let mut runners = Vec::new();
        let crews = numbers.iter().map(|&workers| (workers, false));
        let staged = self.args.tuning.pipeline.map(|stages| (stages, true));
        for crew in crews.chain(staged) {
            let (workers, stages) = crew;
            let request = CompileRequest { workers, stages, ..CompileRequest::of(&self.args.tuning) };
            match self.subject.runner(&self.args.subject, request) {
                Ok(CompileOutcome::Ready(runner)) => runners.push(*runner),
                Ok(CompileOutcome::NoLlvm(why)) => return Err(miette!(why)),
                // Some elements support one worker only.
                Err(why) => {
                    self.skip("workers", format!("{} workers: {why}", crew.0));
                }
            }
        }
        let batch = self.args.batch();
        let points: Vec<MeasurementPoint<'_>> = (0..runners.len())
            .map(|runner| MeasurementPoint { runner, code: 0, traffic: &self.traffic, batch })
            .collect();
        let rows = measure(self.args, &mut runners, &points)?;
        self.found.by_workers = rows.into_iter().flatten().collect();
        Ok(())
    }

    /// Runs packets at a pace through the program by `--schedule`.
    fn paced(&mut self, pace: &OfferedLoad) -> Result<Option<PacedMeasurement>> {
        let (traffic, batch) = (&self.traffic, self.args.batch() as usize);
        self.runners.first_mut().map(|runner| runner.paced(traffic, pace, batch)).transpose()
    }

    fn latency(&mut self) -> Result<()> {
        let length = Duration::from_secs_f64(self.args.seconds);
        let mut bar = Progress::counted("latency", self.args.loads.len() + 1);
        let pace = OfferedLoad { rate: None, length, longest_step: LONGEST_STEP };
        let Some(without_end) = self.paced(&pace)? else { return Ok(()) };
        let most = without_end.received as f64 / without_end.time.as_secs_f64();
        bar.step();
        if without_end.received == 0 {
            self.skip("latency", "no packet comes");
            return Ok(());
        }
        if without_end.time.is_zero() {
            // A load cannot be a share of zero time.
            let why = "other processes used the CPU all the time: run again, or longer (--seconds)";
            self.skip("latency", why);
            return Ok(());
        }
        self.found.max_mpps = Some(most / 1e6);
        let longest_step = Duration::from_secs_f64(BATCHES_A_STEP * f64::from(self.args.batch()) / most);
        let pace = OfferedLoad { longest_step: longest_step.max(SHORTEST_STEP), ..pace };
        for &load in &self.args.loads {
            if os::interrupted() {
                break;
            }
            let offered = most * f64::from(load) / 100.0;
            let Some(ran) = self.paced(&OfferedLoad { rate: Some(offered), ..pace })? else { break };
            self.found.by_load.push(LatencyRow::new(load, offered, &ran));
            bar.step();
        }
        Ok(())
    }
}

/// Measures points in turns. Returns a row for each point that was measured in at least one round before the
/// user interrupted it.
fn measure(
    args: &BenchUserArgs,
    runners: &mut [BenchmarkRunner],
    points: &[MeasurementPoint<'_>],
) -> Result<Vec<Option<BenchmarkRow>>> {
    let mut bar: ProgressCounter = Progress::counted("measuring", points.len() * (1 + args.rounds as usize));
    let length = args.seconds / f64::from(args.rounds);
    let mut counts = Vec::new();
    for point in points {
        if os::interrupted() {
            return Ok(Vec::new());
        }
        runners[point.runner].select(point.code);
        let first = runners[point.runner].run(point.traffic, FIRST, point.batch as usize)?;
        if first.received == 0 {
            return Ok(Vec::new());
        }
        let each = first.wall.as_secs_f64() / first.received as f64;
        counts.push(((length / each.max(1e-10)) as u64).max(FIRST));
        bar.step();
    }
    let mut rng = Rng::new(u64::from(args.rounds));
    let mut found: Vec<Vec<RunMeasurement>> = points.iter().map(|_| Vec::new()).collect();
    'rounds: for _ in 0..args.rounds {
        for at in shuffled(&mut rng, points.len()) {
            if os::interrupted() {
                break 'rounds;
            }
            let point = &points[at];
            runners[point.runner].select(point.code);
            found[at].push(runners[point.runner].run(point.traffic, counts[at], point.batch as usize)?);
            bar.step();
        }
    }
    let row = |(point, ran): (&MeasurementPoint<'_>, &Vec<RunMeasurement>)| BenchmarkRow {
        rounds: ran.len(),
        batch: point.batch,
        bytes: point.traffic.mean_length(),
        workers: runners[point.runner].workers(),
        pipelined: runners[point.runner].pipelined(),
        ns_per_packet: median(ran.iter().map(RunMeasurement::ns)),
        ns_rounds: ran.iter().map(RunMeasurement::ns).collect(),
        ns_min: ran.iter().map(RunMeasurement::ns).fold(f64::INFINITY, f64::min),
        ns_max: ran.iter().map(RunMeasurement::ns).fold(0.0, f64::max),
        program_ns: median(ran.iter().map(RunMeasurement::program_ns)),
        mpps: median(ran.iter().map(RunMeasurement::mpps)),
        mpps_per_cpu_second: median(ran.iter().map(RunMeasurement::mpps_per_cpu_second)),
        received: ran.iter().map(|r| r.received).sum(),
        sent: ran.iter().map(|r| r.sent).sum(),
        dropped: ran.iter().map(|r| r.dropped).sum(),
    };
    let measured =
        |point: (&MeasurementPoint<'_>, &Vec<RunMeasurement>)| (!point.1.is_empty()).then(|| row(point));
    Ok(points.iter().zip(&found).map(measured).collect())
}

/// The numbers below `count` in random order.
fn shuffled(rng: &mut Rng, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        all.swap(at, rng.below(at as u64 + 1) as usize);
    }
    all
}
