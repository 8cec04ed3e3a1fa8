//! Directives of a test file.

use millstream_isa::generation::{Generation, KernelRange, VersionError};
use millstream_passes::Target;

use crate::runs::{Entry, Run, parse_entry, parse_run};

/// Test that a file asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Test {
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
pub enum Check {
    /// The next line that contains this must exist.
    Has(String),
    /// No line contains this.
    Not(String),
}

/// The directives of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Test to run.
    pub test: Test,
    /// Target of passes.
    pub target: Target,
    /// Number of rewrites, if limited.
    pub fuel: Option<u64>,
    /// Checks that the output must meet.
    pub checks: Vec<Check>,
    /// The whole output.
    pub expect: Option<String>,
    /// Contents of maps before each run.
    pub entries: Vec<Entry>,
    /// Calls of functions.
    pub runs: Vec<Run>,
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

impl Case {
    /// Reads the directives of a file.
    ///
    /// # Errors
    /// The first directive that is wrong; or that none says what to test.
    pub fn parse(text: &str) -> Result<Case, CaseError> {
        let mut test = None;
        let mut case = Case::empty();
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
        if case.test == Test::Run && case.runs.is_empty() {
            return Err(error("`test run` without a `run:`"));
        }
        Ok(case)
    }

    fn empty() -> Case {
        Case {
            test: Test::Parse,
            target: Target::bpf(4),
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
            "check:" => self.checks.push(Check::Has(rest.to_string())),
            "not:" => self.checks.push(Check::Not(rest.to_string())),
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
    pub fn blessed(&self, text: &str, output: &str) -> String {
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

fn parse_test(text: &str) -> Result<Test, String> {
    match text {
        "parse" => Ok(Test::Parse),
        "verify" => Ok(Test::Verify),
        "run" => Ok(Test::Run),
        _ => match arguments(text, "passes") {
            Some(names) => Ok(Test::Passes(names.split(',').map(|n| n.trim().to_string()).collect())),
            None => Err(format!("expected parse, verify, run or passes(...), found `{text}`")),
        },
    }
}

fn parse_target(text: &str) -> Result<Target, String> {
    if let Some(kernel) = arguments(text, "linux") {
        let generation: Generation = kernel.parse().map_err(|e: VersionError| e.to_string())?;
        return Ok(Target::bpf(generation.isa()).on(KernelRange::only(generation)));
    }
    match (text, arguments(text, "bpf").map(str::parse)) {
        ("native", _) => Ok(Target::native()),
        ("short", _) => Ok(Target { slots_first: true, ..Target::bpf(4) }),
        ("here", _) => Ok(Target { map_sizes_hold: true, elides_null_checks: true, ..Target::bpf(4) }),
        (_, Some(Ok(isa @ 1..=4))) => Ok(Target::bpf(isa)),
        _ => Err(format!("expected native, here, short, bpf(1) to bpf(4) or linux(VERSION), found `{text}`")),
    }
}
