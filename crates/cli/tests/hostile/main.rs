//! Whatever the input of a command and the consumer of its output: it ends with a documented exit code, never
//! by a panic.
//!
//! Commands and their flags come from the definition of the command line, so that a new one is tried without
//! being named here. A run is determined by its number: [`case::Case::new`]. `MILLSTREAM_HOSTILE_RUNS` sets
//! the number of runs, `MILLSTREAM_HOSTILE_FROM` the first one:
//!
//! ```text
//! MILLSTREAM_HOSTILE_RUNS=100000 nice cargo test -p millstream-cli --test hostile within -- --nocapture
//! ```
//!
//! `within` runs all commands that end by themselves in the process of a worker, some ten times faster than
//! `any_input`, where each run is a process of its own.

mod case;
mod commands;
mod files;
mod process;
mod within;

use std::env::var;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use case::Case;
use commands::Leaf;
use files::Files;
use process::{Apart, Consumer, Ended, Run};

/// Default number of runs of a test.
const RUNS: u64 = 300;
/// Time limit of a run; a longer one is killed, and counts as neither.
const LIMIT: Duration = Duration::from_secs(3);
/// SIGPIPE ends commands that only print, as is usual for filters.
const BY_PIPE: i32 = 13;

/// Reason why a run did not end as it should.
fn fault(run: &Run, ended: &Ended) -> Option<String> {
    let words = ["panicked at", "internal error", "memory allocation of"];
    if let Some(word) = words.iter().find(|word| ended.errors.contains(**word)) {
        return Some(format!("says {word:?}"));
    }
    match (ended.code, ended.signal) {
        _ if ended.is_cut => None,
        (Some(0..=5), _) => None,
        (_, Some(BY_PIPE)) if run.output == Consumer::Gone || run.errors == Consumer::Gone => None,
        (Some(code), _) => Some(format!("ends with {code}")),
        (None, signal) => Some(format!("ends by signal {signal:?}")),
    }
}

/// Runs all cases on two threads; returns the faults, and the number of killed runs.
fn try_all(
    cases: impl Iterator<Item = u64> + Send,
    make: impl Fn(u64, &Files) -> Run + Sync,
) -> (Vec<String>, u64) {
    let apart = Apart::new();
    let (cases, faults, cut) = (Mutex::new(cases), Mutex::new(Vec::new()), AtomicU64::new(0));
    let work = |thread: usize| {
        // Commands may overwrite files, so these are made anew now and then.
        let mut files = Files::new(&format!("hostile-{thread}"));
        let mut since = 0;
        loop {
            let Some(number) = cases.lock().unwrap().next() else { return };
            if since == 100 {
                (files, since) = (Files::new(&format!("hostile-{thread}")), 0);
            }
            since += 1;
            let run = make(number, &files);
            let ended = apart.run(&run, &files);
            cut.fetch_add(u64::from(ended.is_cut), Ordering::Relaxed);
            if let Some(fault) = fault(&run, &ended) {
                let errors: String = ended.errors.chars().take(1500).collect();
                let text = format!("{number}: {run:?}\n  {fault}: {errors}");
                eprintln!("{text}");
                faults.lock().unwrap().push(text);
            }
            if number % 1000 == 999 {
                println!("{} runs, {} cut short", number + 1, cut.load(Ordering::Relaxed));
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        (0..2).for_each(|thread| {
            scope.spawn(move || work(thread));
        });
    });
    (faults.into_inner().unwrap(), cut.into_inner())
}

fn number(name: &str) -> Option<u64> {
    var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Draws a command, flags, files and consumers, all by the run's number.
#[test]
fn any_input_and_any_consumer_end_with_a_documented_exit_code() {
    let (from, runs) =
        (number("MILLSTREAM_HOSTILE_FROM").unwrap_or(0), number("MILLSTREAM_HOSTILE_RUNS").unwrap_or(RUNS));
    let leaves = commands::all();
    let (faults, cut) =
        try_all(from..from + runs, |number, files| Case::new(number, &leaves, files).run(LIMIT));
    println!("{runs} runs, {cut} cut short, {} faults", faults.len());
    assert!(faults.is_empty(), "{} of {runs}:\n{}", faults.len(), faults.join("\n"));
}

/// The same for commands that come to an end by themselves, many in one process.
#[test]
fn any_input_within_one_process_ends_with_a_documented_exit_code() {
    let leaves = commands::all();
    if within::work(&leaves) {
        return;
    }
    let (from, runs) = (
        number("MILLSTREAM_HOSTILE_FROM").unwrap_or(0),
        number("MILLSTREAM_HOSTILE_RUNS").unwrap_or(3 * RUNS),
    );
    let test = "any_input_within_one_process_ends_with_a_documented_exit_code";
    let within::Found { faults, cut } = within::run(from, runs, test);
    println!("{runs} runs, {cut} cut short, {} faults", faults.len());
    assert!(faults.is_empty(), "{} of {runs}:\n{}", faults.len(), faults.join("\n"));
}

/// Each command, with required flags only, before consumers that take nothing.
#[test]
fn no_consumer_makes_any_command_panic() {
    let leaves = commands::all();
    let consumers = [
        (Consumer::Gone, Consumer::Reader),
        (Consumer::Full, Consumer::Reader),
        (Consumer::Gone, Consumer::Gone),
        (Consumer::Full, Consumer::Full),
        (Consumer::Reader, Consumer::Full),
    ];
    // For each command: its help, only its name, and usable input.
    let kinds = 3;
    let count = (leaves.len() * consumers.len() * kinds) as u64;
    let (faults, _) = try_all(0..count, |number, files| {
        let number = number as usize;
        let leaf: &Leaf = &leaves[number % leaves.len()];
        let rest = number / leaves.len();
        let (output, errors) = consumers[rest % consumers.len()];
        let arguments = match rest / consumers.len() {
            0 => leaf.words.iter().map(Into::into).chain(["--help".into()]).collect(),
            1 => leaf.words.iter().map(Into::into).collect(),
            _ => leaf.usable(number as u64, files),
        };
        Run { arguments, input: None, output, errors, limit: LIMIT }
    });
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}

/// Commands with much output, none of which arrives.
#[test]
fn a_result_that_cannot_be_written_is_exit_code_2_and_a_reader_that_has_gone_is_not() {
    let (apart, files) = (Apart::new(), Files::new("hostile-consumers"));
    let object = files.usable("router.o");
    let told: [&[&str]; 9] = [
        &["opt", "OBJECT", "--stats", "-o", "out.o"],
        &["opt", "OBJECT", "--json", "-o", "out.o"],
        &["inspect", "OBJECT", "--json"],
        &["inspect", "OBJECT"],
        &["prove", "OBJECT", "OBJECT", "--json"],
        &["explain", "OBJECT"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ];
    for words in told {
        let arguments = words.iter().map(|w| if *w == "OBJECT" { object.clone() } else { (*w).into() });
        let arguments: Vec<_> = arguments.collect();
        let run = |output| {
            let limit = Duration::from_secs(300);
            let run =
                Run { arguments: arguments.clone(), input: None, output, errors: Consumer::Reader, limit };
            (apart.run(&run, &files), run)
        };
        let (read, _) = run(Consumer::Reader);
        let (full, _) = run(Consumer::Full);
        // A command that cannot run here has no output, whoever reads.
        if read.code == Some(4) {
            continue;
        }
        assert_eq!(full.code, Some(2), "{words:?}: {}", full.errors);
        assert!(full.errors.contains("cannot write to standard output"), "{words:?}: {}", full.errors);
        let (gone, gone_run) = run(Consumer::Gone);
        assert_eq!(fault(&gone_run, &gone), None, "{words:?}: {}", gone.errors);
        assert!(gone.signal == Some(BY_PIPE) || gone.code == read.code, "{words:?}: {gone:?} {read:?}");
    }
}
