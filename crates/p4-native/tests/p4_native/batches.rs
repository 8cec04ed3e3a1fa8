//! Programs in batches, beside the interpreter: the same packets and the same writes of entries between batches.

use std::path::{Path, PathBuf};

use millstream_native::{NativeEngine, NativeOptions, ProgramFacts, Schedule};
use millstream_p4_native::{
    BatchError, BatchProgram, BatchRefusal, BatchedExecutor, EntrySource, P4Workload, SEED, WorkloadError,
};
use millstream_p4_switch::Switch;

use crate::common::{extra_folders, files, lowered, own_folder};
use crate::comparison::{Comparison, EngineLimits};
use crate::corpus::samples;
use crate::generator::ProgramGenerator;

/// Schedules with and without look-ups that are fetched for, whatever the size of tables.
const SCHEDULES: [&str; 4] = [
    "batch=1,fetch=nothing",
    "batch=32,pattern=groups,sub-batch=all,from=0,trials=off",
    "batch=64,pattern=pipelined-groups,sub-batch=4,from=0,trials=off",
    "batch=48,pattern=packets,distance=5,from=0,trials=off",
];

/// Programs of the paper's evaluation.
pub(crate) fn measured_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4")
}

fn options(schedule: &str) -> NativeOptions {
    let schedule: Schedule = schedule.parse().unwrap();
    NativeOptions { schedule, seed: SEED, ..NativeOptions::default() }
}

#[test]
fn batches_and_writes_between_them_have_the_same_results_as_in_the_interpreter() {
    let folders = extra_folders().into_iter().chain([own_folder(), measured_folder()]);
    let (mut compared, mut left, mut refused, mut differences) = (0, 0, 0, Vec::new());
    for path in folders.flat_map(|folder| files(&folder, "p4")) {
        // Tables of usual programs have few entries here: they are made for large ones.
        let small = |text: String| text.replace("#define ENTRIES", "#define ENTRIES 4096 //");
        let text = std::fs::read_to_string(&path).ok().map(small);
        let name = if path.starts_with(measured_folder()) { Path::new("test.p4") } else { &path };
        let Ok(program) = lowered(name, text.filter(|_| name != path)) else { continue };
        for schedule in SCHEDULES {
            let executor = match BatchedExecutor::new(&program, &options(schedule)) {
                Ok(executor) => executor,
                Err(BatchError::Refused(_)) => {
                    refused += 1;
                    break;
                }
                Err(error) => panic!("{}: {error}", path.display()),
            };
            let both =
                Comparison::new(&program, (&program, executor), samples(&path), EngineLimits::default());
            match both.and_then(|mut both| both.run_batches(6)) {
                Ok(result) => (compared, left) = (compared + 1, left + result.answers),
                Err(difference) => differences.push(format!("{}, {schedule}: {difference}", path.display())),
            }
        }
    }
    println!("programs and schedules: {compared}, packets that left: {left}, refused: {refused}");
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(compared >= 20 && left > compared, "too little was compared");
}

#[test]
fn random_programs_run_in_batches_as_in_the_interpreter() {
    let mut compared = 0;
    for seed in 1..9 {
        let text = ProgramGenerator::program(seed, false);
        let program = lowered(Path::new("test.p4"), Some(text)).unwrap();
        let Ok(executor) = BatchedExecutor::new(&program, &options(SCHEDULES[2])) else { continue };
        let mut both =
            Comparison::new(&program, (&program, executor), Vec::new(), EngineLimits::default()).unwrap();
        both.run_batches(4).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        compared += 1;
    }
    println!("programs: {compared}");
}

#[test]
fn programs_that_need_a_switch_are_refused_with_the_reason() {
    let traffic = lowered(&own_folder().join("traffic.p4"), None).unwrap();
    let refusal = BatchProgram::new(&traffic).unwrap_err();
    assert!(matches!(refusal, BatchRefusal::Request { .. }), "{refusal}");
    let filter = lowered(&own_folder().join("filter.p4"), None).unwrap();
    assert_eq!(BatchProgram::new(&filter).unwrap_err(), BatchRefusal::Architecture);
}

#[test]
fn generated_packets_hit_generated_entries_in_every_table() {
    for (name, tables, packet) in
        [("l2", 2, None), ("ipv4", 1, None), ("ipv6", 1, None), ("ndn", 1, Some(0x8624u16))]
    {
        let program = lowered(&measured_folder().join(format!("{name}.p4")), None).unwrap();
        let fillable = P4Workload::fillable(&program);
        assert_eq!(fillable.len(), tables, "{name}");
        let sources =
            || fillable.iter().map(|(table, _)| (table.clone(), EntrySource::Generated(500))).collect();
        let packet = packet.map(|kind| [&[2; 12][..], &kind.to_be_bytes(), &[0; 50]].concat());
        let workload = P4Workload::new(&program, sources(), packet).unwrap();
        let frames = workload.frames(300);
        let BatchProgram { module, entry } = BatchProgram::new(&program).unwrap();
        let options = NativeOptions {
            facts: ProgramFacts { prefixes: workload.prefixes(), ..ProgramFacts::default() },
            ..options(SCHEDULES[1])
        };
        let engine = workload.fill(NativeEngine::of_module(module, entry, &options).unwrap()).unwrap();
        let engine = BatchedExecutor::of_engine(engine, &program).unwrap();
        let mut switch = Switch::new(program.clone(), engine).unwrap();
        let packets: Vec<(u64, &[u8])> = frames.iter().map(|frame| (0, &frame[..])).collect();
        let sent = switch.receive_batch(&packets).unwrap();
        assert!(sent.iter().all(|sent| sent.len() == 1 && sent[0].port < 4), "{name}: a packet missed");
        assert!(switch.events.is_empty(), "{name}: {:?}", switch.events);
    }
}

#[test]
fn entries_that_cannot_be_made_are_refused_with_the_table() {
    let program = lowered(&measured_folder().join("ipv4.p4"), None).unwrap();
    let made =
        |name: &str, source| P4Workload::new(&program, vec![(name.to_owned(), source)], None).map(|_| ());
    assert!(matches!(made("none", EntrySource::Generated(1)), Err(WorkloadError::NoTable { .. })));
    assert!(matches!(made("routes", EntrySource::Generated(1 << 40)), Err(WorkloadError::Count { .. })));
    let wrong = EntrySource::Prefixes(vec![(vec![0; 16], 3)]);
    assert!(matches!(made("routes", wrong), Err(WorkloadError::Prefix { .. })));
    let short =
        P4Workload::new(&program, vec![("routes".to_owned(), EntrySource::Generated(9))], Some(vec![0; 20]));
    assert!(matches!(short, Err(WorkloadError::Unreached { .. })));
}
