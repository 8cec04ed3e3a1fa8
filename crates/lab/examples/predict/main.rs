//! Predicted costs of programs beside their measured costs: the data of `bench/cost.py`.
//!
//! `predict [--seconds N] [--costs FILE] OBJECT...` prints, as JSON, for every program of every object that
//! the kernel takes: its predicted cost, its basic blocks with the estimated number of executions of each,
//! and the machine code that the kernel's JIT made of each, for an independent analyser. With `--seconds`,
//! XDP programs are also run on one packet (TCP in IPv4, to port 80, tables empty) and measured beside one
//! another by test runs; their blocks then say how often the packet visits each. With `--seconds 0` nothing
//! is measured.

use std::process::ExitCode;

use millstream_bpf::cost::{CodeCost, CostModel, ExecutionCounts, FlatProgram, FunctionCost};
use millstream_kernel::ProgramType;
use millstream_lab::code_range::{CodeRange, code_ranges, with_functions, with_types};
use millstream_lab::environment::{Environment, fit_for_timing};
use millstream_lab::measure::{
    MAX_COPIES, MeasuredSide, MeasurementPlan, TestRunHarness, check_packets, empty, measure,
};
use millstream_lab::os;
use millstream_lab::subject::ProgramUnderTest;
use millstream_loader::ObjectLoader;
use millstream_object::Object;
use serde::Serialize;

type BoxError = Box<dyn std::error::Error>;

#[derive(Serialize)]
struct PredictionReport {
    environment: Environment,
    /// Time of a program that returns at once, measured beside them.
    empty_ns: Option<f64>,
    generations: usize,
    disturbed: f64,
    programs: Vec<ProgramTiming>,
    /// Programs that could not be used, and why.
    left_out: Vec<(String, String)>,
}

#[derive(Serialize)]
struct ProgramTiming {
    object: String,
    program: String,
    /// Bytes of the kernel's image.
    image: u32,
    slots: u32,
    jited: u32,
    /// Thousandths of a cycle, by guessed frequencies.
    cycles: u64,
    /// The same without what helpers do, which an analyser of machine code cannot see.
    code_cycles: u64,
    functions: Vec<FunctionProfile>,
    on_the_packet: Option<OnThePacket>,
}

/// A function of a program.
#[derive(Serialize)]
struct FunctionProfile {
    /// For one run of the program, in 1/1024.
    runs: u64,
    /// Thousandths of a cycle for entry and return.
    frame: u64,
    blocks: Vec<BlockProfile>,
}

#[derive(Serialize)]
struct BlockProfile {
    /// For one run of the program, in 1/1024.
    count: u64,
    /// Thousandths of a cycle for one run of the block.
    cycles: u64,
    /// Calls of helpers in it, which have no code in the image.
    calls: usize,
    /// Machine code in hexadecimal.
    code: String,
}

/// Blocks that one packet visits, and the time it takes.
#[derive(Serialize)]
struct OnThePacket {
    /// Thousandths of a cycle, by the packet's way.
    cycles: u64,
    /// The same without what helpers do.
    code_cycles: u64,
    /// Executions of each function and block, in 1/1024, in the order above, and thousandths of a cycle of
    /// the block.
    blocks: Vec<Vec<(u64, u64)>>,
    verdict: u32,
    ns: Option<f64>,
    /// Distance between the quartiles over generations.
    scatter_ns: Option<f64>,
}

fn main() -> ExitCode {
    match predict() {
        Ok(document) => {
            println!("{}", serde_json::to_string(&document).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn predict() -> Result<PredictionReport, BoxError> {
    let mut seconds = None;
    let mut objects = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--seconds" => seconds = Some(given.next().ok_or("--seconds N")?.parse::<f64>()?),
            "--costs" => {
                let text = std::fs::read_to_string(given.next().ok_or("--costs FILE")?)?;
                CostModel::install(CostModel::parse(&text)?);
            }
            _ => objects.push(argument),
        }
    }
    let mut left_out = Vec::new();
    let mut opened = Vec::new();
    for path in &objects {
        match Object::parse(path, &std::fs::read(path)?) {
            Ok(mut object) => {
                let made = with_types(&mut object)?;
                opened.push((path.clone(), object, made));
            }
            Err(e) => left_out.push((format!("{path}:"), in_full(&e))),
        }
    }
    let mut programs = Vec::new();
    for (path, object, made) in &opened {
        for program in &object.programs {
            match row(path, object, *made, &program.name) {
                Ok(row) => programs.push(row),
                Err(e) => left_out.push((format!("{path}:{}", program.name), in_full(&*e))),
            }
        }
    }
    let mut document = PredictionReport {
        environment: Environment::now(),
        empty_ns: None,
        generations: 0,
        disturbed: 0.0,
        programs,
        left_out,
    };
    if let Some(seconds) = seconds {
        run(&mut document, &opened, seconds)?;
    }
    Ok(document)
}

fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text += &format!(": {e}");
        cause = e.source();
    }
    text
}

fn row(path: &str, object: &Object, made: bool, name: &str) -> Result<ProgramTiming, BoxError> {
    let program = object.programs.iter().find(|p| p.name == name).ok_or("no such program")?;
    let mut linked = object.link(program.func)?;
    if made {
        with_functions(&mut linked);
    }
    let session = ObjectLoader::new(object).guess_types()?.prepare()?;
    let (code, image) =
        code_ranges(&session, program.func, &linked)?.ok_or("the kernel shows no machine code")?;
    let whole = FlatProgram::of_linked(object, &linked)?;
    let table = CostModel::current();
    let CodeCost { slots, jited, cycles } = whole.cost(table, None);
    let code_cycles = whole.cost(&table.without_calls(), None).cycles;
    let functions = whole.functions(table, None).iter().map(|f| function(&whole, f, &code)).collect();
    Ok(ProgramTiming {
        object: path.into(),
        program: name.into(),
        image,
        slots,
        jited,
        cycles,
        code_cycles,
        functions,
        on_the_packet: None,
    })
}

fn function(whole: &FlatProgram, f: &FunctionCost, code: &[CodeRange]) -> FunctionProfile {
    let blocks = f.blocks.iter().map(|b| {
        let slots = whole.slots_of(b.start, b.end);
        let of = |slot: &u32| code.binary_search_by_key(slot, |s| s.slot).map(|at| &code[at].bytes[..]);
        let bytes = slots.iter().filter_map(|s| of(s).ok()).flatten();
        BlockProfile {
            count: b.count,
            cycles: b.cycles,
            calls: whole.calls_of(b.start, b.end),
            code: bytes.map(|b| format!("{b:02x}")).collect(),
        }
    });
    FunctionProfile { runs: f.runs, frame: f.frame, blocks: blocks.collect() }
}

/// Ethernet, IPv4 and TCP: 192.0.2.1:1234 to 198.51.100.2:80, SYN, some payload.
fn packet() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 84, 0, 1, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2]);
    let sum = frame[14..34].chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>();
    frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    frame.extend([4, 210, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    frame.resize(98, 0);
    frame
}

/// Runs the XDP programs on the packet, and those that can be repeated beside one another.
fn run(
    document: &mut PredictionReport,
    opened: &[(String, Object, bool)],
    seconds: f64,
) -> Result<(), BoxError> {
    const LOOPBACK: u32 = 1;
    const XDP_PASS: u32 = 2;
    fit_for_timing()?;
    let packets = [packet()];
    let (mut subjects, mut writes) = (Vec::new(), false);
    for (n, row) in document.programs.iter_mut().enumerate() {
        let Some((_, object, _)) = opened.iter().find(|o| o.0 == row.object) else { continue };
        let is_xdp = |p: &&millstream_object::EntryProgram| {
            p.name == row.program && p.kind.program_type.0 == ProgramType::XDP.0
        };
        let Some(program) = object.programs.iter().find(is_xdp) else { continue };
        let label = format!("{}:{}", row.object, row.program);
        let prepared =
            ProgramUnderTest::prepare(label.clone(), object, Some(&row.program), None).and_then(|subject| {
                let answers = check_packets(&label, &subject.load()?, &packets)?;
                Ok((subject, answers))
            });
        let (subject, answers) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                document.left_out.push((label, in_full(&e)));
                continue;
            }
        };
        let Some(visits) = subject.visits(&packets, LOOPBACK)? else {
            document.left_out.push((label, "the interpreter does not model it".into()));
            continue;
        };
        let whole = FlatProgram::of_linked(object, &object.link(program.func)?)?;
        let visits = Some(ExecutionCounts { slots: &visits, runs: packets.len() as u64 });
        let table = CostModel::current();
        let blocks = |f: &FunctionCost| f.blocks.iter().map(|b| (b.count, b.cycles)).collect();
        row.on_the_packet = Some(OnThePacket {
            cycles: whole.cost(table, visits).cycles,
            code_cycles: whole.cost(&table.without_calls(), visits).cycles,
            blocks: whole.functions(table, visits).iter().map(blocks).collect(),
            verdict: answers.verdicts.first().copied().unwrap_or(0),
            ns: None,
            scatter_ns: None,
        });
        writes |= answers.writes;
        subjects.push((n, subject));
    }
    let Some(alike) = subjects.first().map(|(_, s)| s.alike()) else { return Ok(()) };
    subjects.retain(|(_, s)| s.alike() == alike);
    for (_, s) in subjects.drain((MAX_COPIES - 1).min(subjects.len())..) {
        document.left_out.push((s.name, "too many to be measured beside one another".into()));
    }
    if seconds == 0.0 {
        return Ok(());
    }
    let cpu = os::allowed_cpus().last().copied().unwrap_or(0);
    let mut harness = TestRunHarness::new(alike, &packets, writes, cpu)?;
    let mut sides = vec![MeasuredSide::new("empty", || empty(XDP_PASS, None, alike))];
    sides.extend(subjects.iter().map(|(_, s)| MeasuredSide::new(&s.name, || s.load())));
    let copies = (MAX_COPIES / sides.len()).clamp(1, 8);
    let plan = MeasurementPlan { copies, generation: 1.0, ..MeasurementPlan::test_run(seconds) };
    let measured = measure(&mut harness, &mut sides, &plan)?;
    document.empty_ns = Some(measured.median(0));
    document.generations = measured.generations.len();
    document.disturbed = measured.disturbed_share();
    for (side, (n, _)) in subjects.iter().enumerate() {
        let mut times = measured.side_times(side + 1);
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|q| millstream_lab::stats::quantile(&mut times, q));
        if let Some(on) = &mut document.programs[*n].on_the_packet {
            (on.ns, on.scatter_ns) = (Some(middle), Some(high - low));
        }
    }
    Ok(())
}
