//! `millstream p4 test`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use miette::{IntoDiagnostic, Result, miette};
use millstream_p4::CompileOptions;
use millstream_p4_kernel::{KernelExecutor, KernelHook, build_program, lower_options};
use millstream_p4_lower::{LowerOptions, LoweredProgram, lower_with};
use millstream_p4_switch::stf::{StfCommand, StfLine, parse_stf, run_stf};
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchExecutor};
use serde::Serialize;

use super::PreprocessorArgs;
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
    /// Executions to test, joined by commas
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
    on: TestExecution,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
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
    let options = args.preprocessor.options();
    let mut report =
        P4TestReport { schema: 1, passed: 0, failed: 0, refused: 0, unusable: 0, tests: Vec::new() };
    for test in files {
        for &on in &args.on {
            let result = report_one(&test, args, &options, on);
            match result.verdict {
                StfVerdict::Passed => report.passed += 1,
                StfVerdict::Failed => report.failed += 1,
                StfVerdict::Refused => report.refused += 1,
                StfVerdict::Unusable => report.unusable += 1,
            }
            if !args.json {
                let reason = result.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
                let on = if args.on.len() > 1 { format!(" on {}", on.text()) } else { String::new() };
                outln!("{}{on}: {}{reason}", test.display(), result.verdict.text());
            }
            report.tests.push(result);
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

/// Runs a test with an execution. One that cannot be used does not keep the others from being run.
fn report_one(test: &Path, args: &P4TestArgs, options: &CompileOptions, on: TestExecution) -> StfResult {
    let program = args.program.clone().map_or_else(|| program_of(test), Ok);
    let ran = match &program {
        Ok(program) => test_one(test, program, options, on),
        Err(error) => Err(miette!("{error}")),
    };
    let (verdict, reason) = ran.unwrap_or_else(|error| {
        let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
        (StfVerdict::Unusable, Some(causes.join(": ")))
    });
    let (file, program) = (test.display().to_string(), program.ok().map(|p| p.display().to_string()));
    StfResult { file, on, program, verdict, reason }
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

/// Runs a test, and gives the verdict with its reason.
///
/// # Errors
/// If a file cannot be read, or the test's is not STF.
fn test_one(
    test: &Path,
    program: &Path,
    options: &CompileOptions,
    on: TestExecution,
) -> Result<(StfVerdict, Option<String>)> {
    let text = crate::bounded_read::text(test)
        .map_err(|error| miette!("cannot read {}: {error}", test.display()))?;
    let commands = parse_stf(&text).map_err(|error| miette!("{error}"))?;
    let checked = super::read(program, options)?;
    if let Some(error) = checked.diagnostics.iter().find(|diagnostic| diagnostic.is_error()) {
        return Ok((StfVerdict::Refused, Some(error.render(&checked.sources).to_string())));
    }
    let hook = match on {
        TestExecution::Xdp => Some(KernelHook::Xdp),
        TestExecution::Tc => Some(KernelHook::Tc),
        _ => None,
    };
    let lower_options = if hook.is_some() { lower_options() } else { LowerOptions::default() };
    let mut lowered = match lower_with(&checked, lower_options) {
        Ok(lowered) => lowered,
        Err(error) => return Ok((StfVerdict::Refused, Some(error.render(&checked.sources)))),
    };
    if on == TestExecution::Optimized {
        let mut session = millstream_passes::PassSession::new(millstream_passes::TargetInfo::native());
        session.verify = true;
        let ran = millstream_passes::PassPipeline::default_o2().run(&mut lowered.module, &mut session);
        if let Err(error) = ran {
            return Ok((StfVerdict::Failed, Some(error.to_string())));
        }
    }
    let lowered = Arc::new(lowered);
    Ok(match hook {
        Some(hook) => test_in_kernel(lowered, hook, &commands)?,
        None => {
            let executor = InterpreterExecutor::new(Arc::clone(&lowered));
            test_with(lowered, executor, &commands)
        }
    })
}

/// Runs the commands with an engine.
fn test_with<E: SwitchExecutor>(
    lowered: Arc<LoweredProgram>,
    executor: E,
    commands: &[StfLine],
) -> (StfVerdict, Option<String>) {
    let mut switch = match Switch::new(lowered, executor) {
        Ok(switch) => switch,
        Err(error) => return (StfVerdict::Refused, Some(error.to_string())),
    };
    match run_stf(&mut switch, commands) {
        Ok(()) => (StfVerdict::Passed, None),
        Err(failure) => (StfVerdict::Failed, Some(failure.to_string())),
    }
}

/// Runs the commands in the kernel.
///
/// # Errors
/// If bpf(2) is not permitted.
fn test_in_kernel(
    lowered: Arc<LoweredProgram>,
    hook: KernelHook,
    commands: &[StfLine],
) -> Result<(StfVerdict, Option<String>)> {
    if let (KernelHook::Xdp, Some(length)) = (hook, shortest_packet(commands))
        && length < SHORTEST_FRAME
    {
        let reason = format!("a packet of {length} bytes: XDP takes {SHORTEST_FRAME} at least");
        return Ok((StfVerdict::Refused, Some(reason)));
    }
    let object = match build_program(&lowered, "stf", hook) {
        Ok(object) => object,
        Err(error) => return Ok((StfVerdict::Refused, Some(error.to_string()))),
    };
    match KernelExecutor::load(object, &lowered.pipeline) {
        Ok(executor) => Ok(test_with(lowered, executor, commands)),
        Err(error) if error.is_not_permitted() => Err(error).into_diagnostic(),
        Err(error) => Ok((StfVerdict::Refused, Some(error.to_string()))),
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
