//! One solver: its start, its identity, and a check that it answers as a solver does.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::SolverError;
use super::process::{SolverProcess, spawn};
use super::query::SolverQuery;

/// Time limit for a solver to report its version, or to answer questions that every solver can.
const PATIENCE: Duration = Duration::from_secs(10);

/// Command line flags of a family of solvers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SolverDialect {
    /// Those of z3.
    Z3,
    /// Those of cvc5.
    Cvc5,
}

/// A solver that can be started.
#[derive(Clone, Debug)]
pub(super) struct SolverBackend {
    pub(super) program: PathBuf,
    pub(super) dialect: SolverDialect,
    /// Its identity, once it was started and has answered correctly.
    identity: Arc<OnceLock<String>>,
}

impl SolverBackend {
    /// The program at this path, or of this name on the path. If the name begins with `cvc`, it gets cvc5's
    /// flags, otherwise z3's.
    pub(super) fn new(program: PathBuf) -> SolverBackend {
        let name = program.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let dialect = if name.starts_with("cvc") { SolverDialect::Cvc5 } else { SolverDialect::Z3 };
        SolverBackend { program, dialect, identity: Arc::default() }
    }

    /// Its short name.
    pub(super) fn name(&self) -> String {
        self.program.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }

    /// Its identity, if it is known.
    pub(super) fn identity(&self) -> Option<&str> {
        self.identity.get().map(String::as_str)
    }

    /// The executable that would be started.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let executable = |p: &Path| {
            use std::os::unix::fs::PermissionsExt as _;
            p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        if self.program.components().count() > 1 {
            return executable(&self.program).then(|| self.program.clone());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|d| d.join(&self.program)).find(|p| executable(p))
    }

    pub(super) fn error(&self, source: std::io::Error) -> SolverError {
        SolverError::Process { program: self.program.clone(), source }
    }

    /// Command that sets the time limit of a question, if a running solver takes one.
    pub(super) fn limit(&self, time: Duration) -> String {
        match self.dialect {
            SolverDialect::Z3 => format!("(set-option :timeout {})\n", time.as_millis().max(1)),
            SolverDialect::Cvc5 => String::new(),
        }
    }

    /// Commands that ask a question.
    pub(super) fn check(&self, q: &SolverQuery<'_>) -> String {
        match self.dialect {
            SolverDialect::Z3 if q.alone => {
                format!("(check-sat-using (try-for qfbv {}))", q.time.as_millis().max(1))
            }
            SolverDialect::Z3 | SolverDialect::Cvc5 => "(check-sat)".into(),
        }
    }

    /// The whole output of `--version`.
    pub(super) fn version(&self) -> Result<String, SolverError> {
        let mut child =
            spawn(&self.program, &["--version".into()], Stdio::null(), None).map_err(|e| self.error(e))?;
        let deadline = Instant::now() + PATIENCE;
        let mut said = String::new();
        // The output may be long, but must not take long.
        while let Some(line) = child.line(deadline) {
            said.push_str(&line);
            said.push('\n');
            if said.len() > 1 << 12 {
                break;
            }
        }
        Ok(said.trim().to_owned())
    }

    /// Starts it for questions; the first time it also finds out its identity.
    ///
    /// # Errors
    /// If it cannot be started, or does not answer as a solver does.
    pub(super) fn start(&self, memory: u64, time: Duration) -> Result<SolverProcess, SolverError> {
        let flags: Vec<String> = match self.dialect {
            SolverDialect::Z3 => vec!["-in".into(), format!("-memory:{memory}")],
            SolverDialect::Cvc5 => vec![
                "--lang=smt2".into(),
                "--incremental".into(),
                "--produce-models".into(),
                // In case this process is gone and cannot end it.
                format!("--tlimit-per={}", time.as_millis().max(1000)),
            ],
        };
        let mut process =
            spawn(&self.program, &flags, Stdio::piped(), Some(memory)).map_err(|e| self.error(e))?;
        process.send(self.opening());
        if self.identity.get().is_none() {
            let identity = self.examine(&mut process)?;
            // Two sessions may find it out at once.
            let _ = self.identity.set(identity);
        }
        process.send(super::smt::PRELUDE);
        Ok(process)
    }

    /// Commands before all others.
    fn opening(&self) -> String {
        let logic = match self.dialect {
            SolverDialect::Z3 => "",
            SolverDialect::Cvc5 => "(set-logic QF_UFBV)\n",
        };
        format!("(set-option :print-success false)\n{logic}")
    }

    /// Commands before questions.
    pub(super) fn greeting(&self) -> String {
        self.opening() + super::smt::PRELUDE
    }

    /// Asks a solver for its identity, and two questions with known answers.
    fn examine(&self, process: &mut SolverProcess) -> Result<String, SolverError> {
        process.send(EXAMINATION);
        let deadline = Instant::now() + PATIENCE;
        let mut said = String::new();
        while !said.trim_end().trim_end_matches('"').ends_with("end") {
            let Some(line) = process.line(deadline) else {
                let shown: String = said.chars().take(200).collect();
                return Err(SolverError::Strange(format!("{shown}, {}", process.ending())));
            };
            said.push_str(line.trim());
            said.push('\n');
            if said.len() > 1 << 12 {
                return Err(SolverError::Strange(said.chars().take(200).collect()));
            }
        }
        let quoted = |key: &str| Some(said.split_once(key)?.1.split('"').nth(1)?.to_owned());
        let (Some(name), Some(version)) = (quoted(":name"), quoted(":version")) else {
            return Err(SolverError::Strange(said));
        };
        let answers: Vec<&str> = said.lines().filter(|l| matches!(*l, "sat" | "unsat")).collect();
        let value = said.contains("#x05") || said.contains("#b00000101");
        if answers != ["sat", "unsat"] || !value {
            return Err(SolverError::Wrong { name, answers: answers.join(", ") });
        }
        let told = self.version()?;
        if !told.contains(&version) {
            let told = told.lines().next().unwrap_or_default().to_owned();
            return Err(SolverError::Version { told, version });
        }
        Ok(format!("{} {version}", name.to_lowercase()))
    }
}

/// Is there a number whose triple is fifteen, modulo 256? And is it anything but five?
const EXAMINATION: &str = "(get-info :name)
(get-info :version)
(push 1)
(declare-fun x () (_ BitVec 8))
(assert (= (bvmul x #x03) #x0f))
(check-sat)
(get-value (x))
(assert (not (= x #x05)))
(check-sat)
(pop 1)
(echo \"end\")
";
