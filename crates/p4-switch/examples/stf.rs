//! Runs every STF file of a folder with the program of the same name, and counts the results by architecture.
//!
//! `stf FOLDER [-I PATH] [--only TEXT] [--list] [--lower] [--random COUNT] [--optimize]`: `--only` takes
//! files whose name has the text, `--list` prints each file with its result, and not only those that do not
//! pass, `--lower` lowers all programs, and runs nothing, `--random` sends random packets through all
//! programs, `--optimize` runs the static passes for native code; with both, the packets that leave are
//! compared with those of the code before the passes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4_lower::{LoweredProgram, lower};
use millstream_p4_switch::stf::{parse_stf, run_stf};
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchError};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use millstream_rng::Rng;

/// Files of the machine.
struct FolderLoader;

impl SourceLoader for FolderLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Result of a file.
enum SuiteResult {
    Passed,
    Failed(String),
    Refused(String),
}

#[derive(Default)]
struct SuiteCounts {
    passed: usize,
    failed: usize,
    refused: usize,
}

fn main() {
    let mut options = CompileOptions::default();
    let (mut only, mut lists, mut lowers) = (String::new(), false, false);
    let (mut folders, mut optimizes, mut packets) = (Vec::new(), false, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-I" => options.search_paths.extend(arguments.next()),
            "--only" => only = arguments.next().unwrap_or_default(),
            "--list" => lists = true,
            "--lower" => lowers = true,
            "--random" => {
                lowers = true;
                packets = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
            }
            "--optimize" => optimizes = true,
            _ => folders.push(argument),
        }
    }
    let start = Instant::now();
    let mut counts: BTreeMap<&str, SuiteCounts> = BTreeMap::new();
    for folder in folders {
        let files = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().filter_map(Result::ok);
        let is_wanted = |path: &Path| {
            path.extension().is_some_and(|e| e == if lowers { "p4" } else { "stf" })
                && path.to_string_lossy().contains(&only)
        };
        for file in files.filter(|file| is_wanted(file.path())) {
            let found = if lowers { Some(file.path().to_owned()) } else { program_of(file.path()) };
            let Some(program) = found else {
                println!("{}: no program", file.path().display());
                continue;
            };
            let (architecture, result) =
                run_file(&program, (!lowers).then_some(file.path()), &options, (optimizes, packets));
            let count = counts.entry(architecture).or_default();
            let text = match result {
                SuiteResult::Passed => {
                    count.passed += 1;
                    lists.then(|| "passed".to_owned())
                }
                SuiteResult::Failed(reason) => {
                    count.failed += 1;
                    Some(format!("failed: {reason}"))
                }
                SuiteResult::Refused(reason) => {
                    count.refused += 1;
                    Some(format!("refused: {reason}"))
                }
            };
            if let Some(text) = text {
                println!("{}: {architecture}: {text}", file.path().display());
            }
        }
    }
    for (architecture, count) in counts {
        let total = count.passed + count.failed + count.refused;
        let SuiteCounts { passed, failed, refused } = count;
        println!("{architecture}: {passed} of {total} passed, {failed} failed, {refused} refused");
    }
    println!("{:.2?}", start.elapsed());
}

/// The program of a test: of the same name, or of a name that the test's name begins with.
fn program_of(test: &Path) -> Option<PathBuf> {
    let stem = test.file_stem()?.to_string_lossy().into_owned();
    let names =
        [stem.clone(), stem.trim_end_matches("_ubpf").to_owned(), stem.trim_end_matches("-bmv2").to_owned()];
    names.iter().map(|name| test.with_file_name(format!("{name}.p4"))).find(|path| path.exists())
}

/// Architecture of a program, by the files that it includes.
fn architecture_of(text: &str) -> &'static str {
    ["v1model", "psa", "pna", "xdp_model", "ubpf_model", "ebpf_model"]
        .into_iter()
        .find(|name| text.contains(&format!("{name}.p4")))
        .unwrap_or("other")
}

/// Runs a test with its program, or only lowers the program.
fn run_file(
    program: &Path,
    test: Option<&Path>,
    options: &CompileOptions,
    (optimizes, packets): (bool, usize),
) -> (&'static str, SuiteResult) {
    let text = std::fs::read_to_string(program).unwrap_or_default();
    let checked = compile(&program.to_string_lossy(), &mut FolderLoader, options);
    let included = checked.sources.files().map(|file| file.path.as_str()).collect::<Vec<_>>().join(" ");
    let architecture = architecture_of(&format!("{text} {included}"));
    if !checked.is_accepted() {
        let error = checked.diagnostics.iter().find(|diagnostic| diagnostic.is_error());
        let reason = error.map(|error| error.render(&checked.sources).to_string());
        return (architecture, SuiteResult::Refused(reason.unwrap_or_default()));
    }
    let mut lowered = match lower(&checked) {
        Ok(lowered) => lowered,
        Err(error) => return (architecture, SuiteResult::Refused(error.render(&checked.sources))),
    };
    let errors = millstream_ir::verify::verify_module(&lowered.module);
    if let Some(error) = errors.first() {
        return (architecture, SuiteResult::Failed(format!("the code is not valid: {error}")));
    }
    let plain = Arc::new(lowered.clone());
    if optimizes {
        let mut session = PassSession::new(TargetInfo::native());
        session.verify = true;
        if let Err(error) = PassPipeline::default_o2().run(&mut lowered.module, &mut session) {
            return (architecture, SuiteResult::Failed(format!("a pass fails: {error}")));
        }
    }
    let lowered = Arc::new(lowered);
    let Some(test) = test else {
        let result = send_random(&lowered, &plain, packets);
        return (architecture, result.map_or_else(SuiteResult::Failed, |()| SuiteResult::Passed));
    };
    let result = (|| -> Result<(), String> {
        let commands = std::fs::read_to_string(test).map_err(|error| error.to_string())?;
        let commands = parse_stf(&commands).map_err(|error| error.to_string())?;
        let executor = InterpreterExecutor::new(lowered.clone());
        let mut switch = Switch::new(lowered.clone(), executor).map_err(|error| error.to_string())?;
        run_stf(&mut switch, &commands).map_err(|error| error.to_string())
    })();
    (architecture, result.map_or_else(SuiteResult::Failed, |()| SuiteResult::Passed))
}

/// Sends random packets of all lengths up to 200 bytes; an endless loop of the program is no failure.
fn send_random(
    lowered: &Arc<LoweredProgram>,
    plain: &Arc<LoweredProgram>,
    packets: usize,
) -> Result<(), String> {
    let switch = |program: &Arc<LoweredProgram>| {
        let executor = InterpreterExecutor::new(program.clone());
        Switch::new(program.clone(), executor).map_err(|error| error.to_string())
    };
    let (mut switch, mut other) = (switch(lowered)?, switch(plain)?);
    let mut random = Rng::new(1);
    for round in 0..packets {
        let packet: Vec<u8> = (0..round % 200).map(|_| random.next_u64() as u8).collect();
        let port = random.below(8);
        let (sent, expected) = (switch.receive(port, &packet), other.receive(port, &packet));
        match sent {
            Ok(sent) if expected.as_ref() != Ok(&sent) => {
                return Err(format!("{packet:02x?} gives {sent:02x?}, before the passes {expected:02x?}"));
            }
            Ok(_) | Err(SwitchError::Endless) => {}
            Err(error) if error.to_string().contains("instructions executed") => {}
            Err(error) => return Err(format!("{error} on {packet:02x?}")),
        }
    }
    Ok(())
}
