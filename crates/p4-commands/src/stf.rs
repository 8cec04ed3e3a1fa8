//! `millstream p4 test`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use miette::{IntoDiagnostic, Result, miette};
use millstream_native::llvm::LlvmCompiler;
use millstream_p4::{CompileOptions, CompiledProgram};
use millstream_p4_kernel::{KernelExecutor, KernelExecutorError, KernelHook, build_program, lower_options};
use millstream_p4_lower::{LoweredProgram, lower, lower_with};
use millstream_p4_native::NativeExecutor;
use millstream_p4_switch::stf::{StfCommand, StfLine, parse_stf, run_stf};
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchExecutor};
use serde::Serialize;

use super::PreprocessorArgs;
use super::execution::optimize;
use crate::exit::Exit;
use crate::privileges::RequiredPrivileges;

/// Flags of `millstream p4 test`.
#[derive(Debug, clap::Args)]
pub(crate) struct P4TestArgs {
    /// STF files, or folders of which every `.stf` file is run. The program is the `.p4` file of the same
    /// name
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
    /// The program of all tests
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    #[command(flatten)]
    preprocessor: PreprocessorArgs,
    /// Executions to test, with commas between them
    #[arg(long, value_name = "EXECUTION", default_value = "interpreter", value_delimiter = ',')]
    on: Vec<TestExecution>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Executions of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum TestExecution {
    /// The interpreter of the IR, on the program as it was lowered
    Interpreter,
    /// The same after the static passes, each of which the IR's verifier checks
    Optimized,
    /// Native code, by LLVM 19
    Native,
    /// An XDP program in the kernel, by test runs
    Xdp,
    /// A TC program in the kernel, by test runs
    Tc,
}

impl TestExecution {
    fn text(self) -> &'static str {
        match self {
            TestExecution::Interpreter => "interpreter",
            TestExecution::Optimized => "optimized",
            TestExecution::Native => "native",
            TestExecution::Xdp => "xdp",
            TestExecution::Tc => "tc",
        }
    }
}

#[derive(Debug, Serialize)]
struct P4TestReport {
    schema: u32,
    passed: usize,
    failed: usize,
    refused: usize,
    unusable: usize,
    tests: Vec<StfResult>,
}

#[derive(Debug, Serialize)]
struct StfResult {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    on: TestExecution,
    verdict: StfVerdict,
    /// First difference, or reason of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum StfVerdict {
    /// All packets are as expected.
    Passed,
    /// A packet, or a counter, is not as expected.
    Failed,
    /// The program is wrong, or has a construct that is not supported.
    Refused,
    /// The test or its program cannot be read.
    Unusable,
}

impl StfVerdict {
    fn text(self) -> &'static str {
        match self {
            StfVerdict::Passed => "passed",
            StfVerdict::Failed => "failed",
            StfVerdict::Refused => "refused",
            StfVerdict::Unusable => "unusable",
        }
    }
}

impl P4TestArgs {
    /// Privileges that the tests need.
    pub(super) fn needs(&self) -> RequiredPrivileges {
        let is_kernel = |on: &TestExecution| matches!(on, TestExecution::Xdp | TestExecution::Tc);
        match self.on.iter().any(is_kernel) {
            true => RequiredPrivileges::Kernel,
            false => RequiredPrivileges::Files,
        }
    }
}

pub(super) fn run(args: &P4TestArgs) -> Result<ExitCode> {
    let files = super::files(&args.paths, "stf")?;
    if args.on.contains(&TestExecution::Native)
        && let Err(error) = LlvmCompiler::new(&[], None)
    {
        errln!("{error}");
        return Ok(Exit::NotPermitted.into());
    }
    let options = args.preprocessor.options();
    let mut report =
        P4TestReport { schema: 1, passed: 0, failed: 0, refused: 0, unusable: 0, tests: Vec::new() };
    for test in files {
        let program = args.program.clone().map_or_else(|| program_of(&test), Ok);
        let prepared = match &program {
            Ok(program) => PreparedTest::read(&test, program, &options),
            Err(error) => Err(miette!("{error}")),
        };
        // One that cannot be used does not keep the others from being run.
        let prepared = prepared.unwrap_or_else(|error| {
            let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
            PreparedTest::Decided(StfVerdict::Unusable, causes.join(": "))
        });
        let program = program.ok().map(|path| path.display().to_string());
        for on in &args.on {
            let (verdict, reason) = match prepared.run(*on) {
                Ok(outcome) => outcome,
                Err(error) => {
                    errln!("{error}");
                    return Ok(Exit::NotPermitted.into());
                }
            };
            let file = test.display().to_string();
            report.add(StfResult { file, program: program.clone(), on: *on, verdict, reason }, args);
        }
    }
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?),
        false => {
            let P4TestReport { passed, failed, refused, unusable, .. } = report;
            outln!("passed: {passed}, failed: {failed}, refused: {refused}, unusable: {unusable}");
        }
    }
    Ok(match report.unusable {
        0 if report.passed == report.tests.len() => Exit::Done,
        0 => Exit::Negative,
        _ => Exit::Input,
    }
    .into())
}

impl P4TestReport {
    /// Counts a result, and prints it unless the report will be JSON.
    fn add(&mut self, result: StfResult, args: &P4TestArgs) {
        match result.verdict {
            StfVerdict::Passed => self.passed += 1,
            StfVerdict::Failed => self.failed += 1,
            StfVerdict::Refused => self.refused += 1,
            StfVerdict::Unusable => self.unusable += 1,
        }
        if !args.json {
            let reason = result.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
            let on = if args.on.len() > 1 { format!(" ({})", result.on.text()) } else { String::new() };
            outln!("{}{on}: {}{reason}", result.file, result.verdict.text());
        }
        self.tests.push(result);
    }
}

/// The program of a test: of the same name, less an ending `-bmv2` or `_ubpf`, as the reference compiler's
/// tests have.
fn program_of(test: &Path) -> Result<PathBuf> {
    let stem = test.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let names = [&stem, stem.trim_end_matches("-bmv2"), stem.trim_end_matches("_ubpf")];
    let paths = names.map(|name| test.with_file_name(format!("{name}.p4")));
    let found = paths.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| miette!("there is no {stem}.p4 beside it; --program names the program of a test"))
}

/// A verdict, with its reason unless the test passed.
type StfOutcome = (StfVerdict, Option<String>);

/// A test and its program, for any execution.
enum PreparedTest {
    /// Verdict that no execution changes, and its reason.
    Decided(StfVerdict, String),
    Ready {
        commands: Vec<StfLine>,
        /// As checked: the kernel's form is lowered in another way.
        checked: Box<CompiledProgram>,
        program: Arc<LoweredProgram>,
    },
}

impl PreparedTest {
    /// Reads a test, and compiles its program.
    ///
    /// # Errors
    /// If a file cannot be read, or the test's is not STF.
    fn read(test: &Path, program: &Path, options: &CompileOptions) -> Result<PreparedTest> {
        let text = crate::bounded_read::text(test)
            .map_err(|error| miette!("cannot read {}: {error}", test.display()))?;
        let commands = parse_stf(&text).map_err(|error| miette!("{error}"))?;
        let checked = super::read(program, options)?;
        let refused = |reason| Ok(PreparedTest::Decided(StfVerdict::Refused, reason));
        if let Some(error) = checked.diagnostics.iter().find(|diagnostic| diagnostic.is_error()) {
            return refused(error.render(&checked.sources).to_string());
        }
        match lower(&checked) {
            Ok(lowered) => {
                Ok(PreparedTest::Ready { commands, checked: Box::new(checked), program: Arc::new(lowered) })
            }
            Err(error) => refused(error.render(&checked.sources)),
        }
    }

    /// Runs the test, and gives the verdict with its reason.
    ///
    /// # Errors
    /// If it is for the kernel, and bpf(2) is not permitted.
    fn run(&self, on: TestExecution) -> Result<StfOutcome, KernelExecutorError> {
        let (commands, checked, program) = match self {
            PreparedTest::Decided(verdict, reason) => return Ok((*verdict, Some(reason.clone()))),
            PreparedTest::Ready { commands, checked, program } => (commands, checked, program),
        };
        Ok(match on {
            TestExecution::Interpreter => {
                run_on(Arc::clone(program), InterpreterExecutor::new(Arc::clone(program)), commands)
            }
            TestExecution::Optimized => match optimize(program, true) {
                Ok(program) => run_on(Arc::clone(&program), InterpreterExecutor::new(program), commands),
                Err(error) => (StfVerdict::Failed, Some(error.to_string())),
            },
            TestExecution::Native => match NativeExecutor::new(program) {
                Ok(executor) => run_on(Arc::clone(program), executor, commands),
                Err(error) => (StfVerdict::Refused, Some(error.to_string())),
            },
            TestExecution::Xdp => run_in_kernel(checked, KernelHook::Xdp, commands)?,
            TestExecution::Tc => run_in_kernel(checked, KernelHook::Tc, commands)?,
        })
    }
}

fn run_on<E: SwitchExecutor>(program: Arc<LoweredProgram>, executor: E, commands: &[StfLine]) -> StfOutcome {
    let mut switch = match Switch::new(program, executor) {
        Ok(switch) => switch,
        Err(error) => return (StfVerdict::Refused, Some(error.to_string())),
    };
    run_commands(&mut switch, commands)
}

fn run_commands<E: SwitchExecutor>(switch: &mut Switch<E>, commands: &[StfLine]) -> StfOutcome {
    match run_stf(switch, commands) {
        Ok(()) => (StfVerdict::Passed, None),
        Err(failure) => (StfVerdict::Failed, Some(failure.to_string())),
    }
}

/// Runs the commands in the kernel.
///
/// # Errors
/// If bpf(2) is not permitted.
fn run_in_kernel(
    checked: &CompiledProgram,
    hook: KernelHook,
    commands: &[StfLine],
) -> Result<StfOutcome, KernelExecutorError> {
    let refused = |reason| Ok((StfVerdict::Refused, Some(reason)));
    let program = match lower_with(checked, lower_options()) {
        Ok(lowered) => Arc::new(lowered),
        Err(error) => return refused(error.render(&checked.sources)),
    };
    if let (KernelHook::Xdp, Some(length)) = (hook, shortest_packet(commands))
        && length < SHORTEST_FRAME
    {
        return refused(format!("a packet of {length} bytes: XDP takes {SHORTEST_FRAME} at least"));
    }
    let object = match build_program(&program, "stf", hook) {
        Ok(object) => object,
        Err(error) => return refused(error.to_string()),
    };
    let executor = match KernelExecutor::load(object, &program.pipeline) {
        Ok(executor) => executor,
        Err(error) if error.is_not_permitted() => return Err(error),
        Err(error) => return refused(error.to_string()),
    };
    let mut switch = match Switch::new(program, executor) {
        Ok(switch) => switch,
        Err(error) => return refused(error.to_string()),
    };
    match run_commands(&mut switch, commands) {
        (StfVerdict::Failed, Some(reason)) if switch.executor().has_lacked_frame() => {
            refused(format!("{reason}; the kernel makes no frame of a packet's new length"))
        }
        outcome => Ok(outcome),
    }
}

/// Shortest frame that XDP programs take and give, in bytes (`ETH_HLEN`).
const SHORTEST_FRAME: usize = 14;

/// Bytes of the shortest packet that is sent, or expected whole.
fn shortest_packet(commands: &[StfLine]) -> Option<usize> {
    let lengths = commands.iter().filter_map(|line| match &line.command {
        StfCommand::Packet(_, data) => Some(data.len()),
        StfCommand::Expect(_, Some(data)) if data.is_exact => Some(data.nibbles.len() / 2),
        _ => None,
    });
    lengths.min()
}
