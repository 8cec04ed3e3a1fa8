//! Directives of a test file.

use millstream_isa::generation::{KernelRange, VerifierGeneration, VersionError};
use millstream_passes::TargetInfo;

use crate::runs::{MapEntrySpec, RunDirective, parse_entry, parse_run};

/// Test that a file asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TestCommand {
    /// Read and print.
    Parse,
    /// Run the IR verifier.
    Verify,
    /// Run passes by name.
    Passes(Vec<String>),
    /// Only do the runs.
    Run,
}

/// A line that the output must or must not contain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckDirective {
    /// The next line that contains this must exist.
    Has(String),
    /// No line contains this.
    Not(String),
}

/// The directives of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestCase {
    /// Test to run.
    pub test: TestCommand,
    /// Target of passes.
    pub target: TargetInfo,
    /// Number of rewrites, if limited.
    pub fuel: Option<u64>,
    /// Checks that the output must meet.
    pub checks: Vec<CheckDirective>,
    /// The whole output.
    pub expect: Option<String>,
    /// Contents of maps before each run.
    pub entries: Vec<MapEntrySpec>,
    /// Calls of functions.
    pub runs: Vec<RunDirective>,
}

/// A directive that cannot be understood, or a missing one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct CaseError {
    /// Line, from 1.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

/// The line that starts the expected output.
const EXPECT: &str = "; expect:";

impl TestCase {
    /// Reads the directives of a file.
    ///
    /// # Errors
    /// The first directive that is wrong; or that none says what to test.
    pub fn parse(text: &str) -> Result<TestCase, CaseError> {
        let mut test = None;
        let mut case = TestCase::empty();
        for (index, line) in text.lines().enumerate() {
            let error = |message: String| CaseError { line: index + 1, message };
            let Some(comment) = line.strip_prefix(';') else { continue };
            if line.trim_end() == EXPECT {
                case.expect = Some(expected(text, index + 1));
                break;
            }
            match split_word(comment.trim()) {
                ("test", rest) => match test.replace(parse_test(rest).map_err(error)?) {
                    None => {}
                    Some(_) => return Err(error("a second `test`: one file, one test".into())),
                },
                (word, rest) => case.setting(word, rest, index + 1).map_err(error)?,
            }
        }
        let error = |message: &str| CaseError { line: 1, message: message.into() };
        case.test = test.ok_or_else(|| error("no `; test ...` directive"))?;
        if case.test == TestCommand::Run && case.runs.is_empty() {
            return Err(error("`test run` without a `run:`"));
        }
        Ok(case)
    }

    fn empty() -> TestCase {
        TestCase {
            test: TestCommand::Parse,
            target: TargetInfo::bpf(4),
            fuel: None,
            checks: Vec::new(),
            expect: None,
            entries: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Takes a directive other than `test`; other words are comments.
    fn setting(&mut self, word: &str, rest: &str, line: usize) -> Result<(), String> {
        match word {
            "target" => self.target = parse_target(rest)?,
            "fuel" => self.fuel = Some(rest.parse().map_err(|_| "expected a number")?),
            "check:" => self.checks.push(CheckDirective::Has(rest.to_string())),
            "not:" => self.checks.push(CheckDirective::Not(rest.to_string())),
            "map:" => self.entries.push(parse_entry(rest)?),
            "run:" => self.runs.push(parse_run(rest, line)?),
            _ => {}
        }
        Ok(())
    }

    /// Returns true if blessing may write the expected output: not where the author chose single checks.
    pub fn can_bless(&self) -> bool {
        self.expect.is_some() || self.checks.is_empty()
    }

    /// The file with `output` as its expectation.
    pub fn with_expectation(&self, text: &str, output: &str) -> String {
        let head: Vec<&str> = text.lines().take_while(|l| l.trim_end() != EXPECT).collect();
        let mut blessed = format!("{}\n{EXPECT}\n", head.join("\n").trim_end());
        for line in output.lines() {
            blessed.push_str(format!("; {line}").trim_end());
            blessed.push('\n');
        }
        blessed
    }
}

/// The comment lines from line `from` on, without the comment signs.
fn expected(text: &str, from: usize) -> String {
    let lines = text.lines().skip(from).map_while(|l| l.strip_prefix(';'));
    lines.map(|l| format!("{}\n", l.strip_prefix(' ').unwrap_or(l).trim_end())).collect()
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

/// Text in parentheses after `name`.
fn arguments<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')')
}

fn parse_test(text: &str) -> Result<TestCommand, String> {
    match text {
        "parse" => Ok(TestCommand::Parse),
        "verify" => Ok(TestCommand::Verify),
        "run" => Ok(TestCommand::Run),
        _ => match arguments(text, "passes") {
            Some(names) => Ok(TestCommand::Passes(names.split(',').map(|n| n.trim().to_string()).collect())),
            None => Err(format!("expected parse, verify, run or passes(...), found `{text}`")),
        },
    }
}

fn parse_target(text: &str) -> Result<TargetInfo, String> {
    if let Some(kernel) = arguments(text, "linux") {
        let generation: VerifierGeneration = kernel.parse().map_err(|e: VersionError| e.to_string())?;
        return Ok(TargetInfo::bpf(generation.isa()).on(KernelRange::only(generation)));
    }
    match (text, arguments(text, "bpf").map(str::parse)) {
        ("native", _) => Ok(TargetInfo::native()),
        ("short", _) => Ok(TargetInfo { slots_first: true, ..TargetInfo::bpf(4) }),
        ("here", _) => {
            Ok(TargetInfo { map_sizes_hold: true, elides_null_checks: true, ..TargetInfo::bpf(4) })
        }
        (_, Some(Ok(isa @ 1..=4))) => Ok(TargetInfo::bpf(isa)),
        _ => Err(format!("expected native, here, short, bpf(1) to bpf(4) or linux(VERSION), found `{text}`")),
    }
}
