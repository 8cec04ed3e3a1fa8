//! The solver: a child process that is asked in SMT-LIB and killed when its time is up.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use millstream_isa::semantics::{Pred, Prim};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Limits;
use crate::term::{Node, Sort, Symbol, T, Terms};

/// Longest question, in bytes of SMT-LIB.
const LONGEST: usize = 64 << 20;
/// How much longer than its limit a solver may take to answer before it is killed.
const GRACE: Duration = Duration::from_millis(1000);

/// Why the solver did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SolverError {
    /// It could not be started or spoken to.
    #[error("the solver {program:?}: {source}")]
    Process {
        /// What was started.
        program: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// It said something else.
    #[error("the solver said {0:?}")]
    Strange(String),
    /// The question is too large to ask.
    #[error("the question is too large")]
    TooLarge,
}

/// What the solver says of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It always holds.
    Valid,
    /// It can fail, for example where terms have these values.
    Refuted(Model),
    /// Not known, and why.
    Unknown(String),
}

/// Values of terms.
pub(crate) type Model = FxHashMap<T, u64>;

/// A solver that speaks SMT-LIB 2 on standard input: z3, or one that takes its flags.
#[derive(Clone, Debug)]
pub struct Solver {
    program: PathBuf,
}

impl Solver {
    /// The solver at this path, or of this name on the path.
    pub fn new(program: impl Into<PathBuf>) -> Solver {
        Solver { program: program.into() }
    }

    /// What it says its version is.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn version(&self) -> Result<String, SolverError> {
        let out = Command::new(&self.program).arg("--version").output().map_err(|e| self.process(e))?;
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }

    fn process(&self, source: std::io::Error) -> SolverError {
        SolverError::Process { program: self.program.clone(), source }
    }

    /// Starts it.
    pub(crate) fn start(&self, limits: &Limits) -> Result<Session, SolverError> {
        let mut session = Session {
            solver: self.clone(),
            memory: limits.memory,
            running: None,
            defined: Defined::default(),
        };
        session.restart()?;
        Ok(session)
    }
}

/// What a solver has been told.
#[derive(Debug, Default)]
struct Defined {
    terms: FxHashSet<T>,
    functions: FxHashSet<String>,
}

/// A solver that runs and remembers what it was told.
#[derive(Debug)]
pub(crate) struct Session {
    solver: Solver,
    memory: u64,
    running: Option<Running>,
    defined: Defined,
}

/// The process. It is killed when it is dropped.
#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Session {
    fn restart(&mut self) -> Result<(), SolverError> {
        self.running = None;
        self.defined = Defined::default();
        let mut child = Command::new(&self.solver.program)
            .arg("-in")
            .arg(format!("-memory:{}", self.memory))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| self.solver.process(e))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(SolverError::Strange("no pipes".into()));
        };
        let (tell, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let mut running = Running { child, input, lines };
        running.input.write_all(PRELUDE.as_bytes()).map_err(|e| self.solver.process(e))?;
        self.running = Some(running);
        Ok(())
    }

    /// Whether a claim always holds. If not, asks for the values of `wanted` where it fails.
    pub(crate) fn valid(
        &mut self,
        terms: &Terms,
        claim: T,
        wanted: &[T],
        time: Duration,
    ) -> Result<Answer, SolverError> {
        if self.running.is_none() {
            self.restart()?;
        }
        let mut script = String::new();
        for t in wanted.iter().chain([&claim]) {
            define(terms, *t, &mut self.defined, &mut script);
        }
        if script.len() > LONGEST {
            self.running = None;
            return Err(SolverError::TooLarge);
        }
        let _ = writeln!(script, "(push)\n(set-option :timeout {})", time.as_millis().max(1));
        let _ = writeln!(script, "(assert (not {}))\n(check-sat)", name(claim));
        let answer = self.exchange(&script, time + GRACE)?;
        let Some(answer) = answer else {
            self.running = None;
            return Ok(Answer::Unknown("the solver ran out of time or died".into()));
        };
        let answer = match answer.trim() {
            "unsat" => Answer::Valid,
            "sat" => Answer::Refuted(self.model(wanted)?),
            "unknown" | "timeout" => Answer::Unknown("the solver ran out of time".into()),
            line => {
                let line = line.to_owned();
                self.running = None;
                return Err(SolverError::Strange(line));
            }
        };
        self.send("(pop)\n")?;
        Ok(answer)
    }

    /// Values of terms under the assignment found last.
    fn model(&mut self, wanted: &[T]) -> Result<Model, SolverError> {
        let mut model = Model::default();
        if wanted.is_empty() {
            return Ok(model);
        }
        let names: Vec<String> = wanted.iter().map(|t| name(*t)).collect();
        let mut line =
            self.exchange(&format!("(get-value ({}))\n(echo \"end\")\n", names.join(" ")), GRACE)?;
        let mut text = String::new();
        while let Some(l) = line.take_if(|l| l.trim() != "end") {
            text.push_str(&l);
            text.push('\n');
            line = self.running.as_ref().and_then(|r| r.lines.recv_timeout(GRACE).ok());
        }
        let words: Vec<&str> =
            text.split(|c: char| c.is_whitespace() || "()".contains(c)).filter(|w| !w.is_empty()).collect();
        for pair in words.windows(2) {
            if let (Some(t), Some(value)) =
                (pair[0].strip_prefix('t').and_then(|n| n.parse().ok()), number(pair[1]))
            {
                model.insert(T::at(t), value);
            }
        }
        Ok(model)
    }

    fn send(&mut self, script: &str) -> Result<(), SolverError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let sent = running.input.write_all(script.as_bytes()).and_then(|()| running.input.flush());
        sent.map_err(|e| self.solver.process(e))
    }

    /// Tells the solver something; gives its next line, if it comes in time.
    fn exchange(&mut self, script: &str, time: Duration) -> Result<Option<String>, SolverError> {
        self.send(script)?;
        Ok(self.running.as_ref().and_then(|r| r.lines.recv_timeout(time).ok()))
    }
}

/// What the solver is told first. Memories and tokens are numbers: of each there are fewer than terms, so that a claim
/// that fails for some fails for these. Reads of stores are resolved before the solver sees them, so that both are
/// functions without a meaning to it.
const PRELUDE: &str = "(set-option :print-success false)
(define-sort Token () (_ BitVec 24))
(define-sort Memory () (_ BitVec 24))
(declare-fun select_ (Memory (_ BitVec 64) (_ BitVec 64)) (_ BitVec 8))
(declare-fun store_ (Memory (_ BitVec 64) (_ BitVec 64) (_ BitVec 8)) Memory)
";

/// Writes the definitions of all that a claim is made of, as far as they are new.
fn define(terms: &Terms, claim: T, defined: &mut Defined, out: &mut String) {
    for t in order(terms, claim, &defined.terms) {
        defined.terms.insert(t);
        if let Node::App(f, args) = terms.node(t) {
            let signature: String = args.iter().map(|a| format!("{} ", sort(terms.sort(*a)))).collect();
            let name = function(terms, *f, t);
            if defined.functions.insert(name.clone()) {
                let _ = writeln!(out, "(declare-fun {name} ({signature}) {})", sort(terms.sort(t)));
            }
        }
        let _ = writeln!(out, "(define-fun {} () {} {})", name(t), sort(terms.sort(t)), body(terms, t));
    }
}

/// All terms that a term is made of, each after its parts.
fn order(terms: &Terms, root: T, known: &FxHashSet<T>) -> Vec<T> {
    let mut out = Vec::new();
    let mut seen: FxHashSet<T> = FxHashSet::default();
    let mut stack = vec![(root, false)];
    while let Some((t, done)) = stack.pop() {
        if done {
            out.push(t);
        } else if !known.contains(&t) && seen.insert(t) {
            stack.push((t, true));
            stack.extend(terms.parts_of(t).into_iter().map(|p| (p, false)));
        }
    }
    out
}

fn name(t: T) -> String {
    format!("t{}", t.index())
}

/// A function's name: with the sort of its result, for a name may stand for several.
fn function(terms: &Terms, f: Symbol, t: T) -> String {
    let clean: String = terms.name(f).chars().map(|c| if c == '|' || c == '\\' { '_' } else { c }).collect();
    format!("|{clean} #{} {}|", f.index(), tag(terms.sort(t)))
}

fn tag(sort: Sort) -> String {
    match sort {
        Sort::Bool => "b".into(),
        Sort::Bits(n) => n.to_string(),
        Sort::Memory => "m".into(),
        Sort::Token => "t".into(),
    }
}

fn sort(sort: Sort) -> String {
    match sort {
        Sort::Bool => "Bool".into(),
        Sort::Bits(n) => format!("(_ BitVec {n})"),
        Sort::Memory => "Memory".into(),
        Sort::Token => "Token".into(),
    }
}

/// A value as the solver writes it.
fn number(word: &str) -> Option<u64> {
    match word {
        "true" => Some(1),
        "false" => Some(0),
        _ => {
            let digits = |radix| word.get(2..).and_then(|d| u64::from_str_radix(d, radix).ok());
            if word.starts_with("#x") {
                digits(16)
            } else if word.starts_with("#b") {
                digits(2)
            } else {
                None
            }
        }
    }
}

fn literal(bits: u32, value: u64) -> String {
    format!("(_ bv{value} {bits})")
}

fn list(op: &str, args: &[T]) -> String {
    let args: String = args.iter().map(|a| format!(" {}", name(*a))).collect();
    format!("({op}{args})")
}

fn body(terms: &Terms, t: T) -> String {
    let bits = terms.bits(t);
    match terms.node(t) {
        Node::Truth(b) => b.to_string(),
        Node::Const(v) => literal(bits, *v),
        Node::App(f, args) if args.is_empty() => function(terms, *f, t),
        Node::App(f, args) => list(&function(terms, *f, t), args),
        Node::Prim(op, a, b) => list(prim(*op), &[*a, *b]),
        Node::Sum(parts, k) => {
            let parts: String = parts
                .iter()
                .map(|(t, c)| match c {
                    1 => format!(" {}", name(*t)),
                    c => format!(" (bvmul {} {})", name(*t), literal(bits, *c)),
                })
                .collect();
            format!("(bvadd{parts} {})", literal(bits, *k))
        }
        Node::Concat(parts) => list("concat", parts),
        Node::Extract(a, hi, lo) => format!("((_ extract {hi} {lo}) {})", name(*a)),
        Node::SignExtend(a) => format!("((_ sign_extend {}) {})", bits - terms.bits(*a), name(*a)),
        Node::Compare(p, a, b) => list(predicate(*p), &[*a, *b]),
        Node::Ite(c, a, b) => list("ite", &[*c, *a, *b]),
        Node::Select(m, o, f) => list("select_", &[*m, *o, *f]),
        Node::Store(m, o, f, b) => list("store_", &[*m, *o, *f, *b]),
    }
}

fn prim(op: Prim) -> &'static str {
    match op {
        Prim::Add => "bvadd",
        Prim::Sub => "bvsub",
        Prim::Mul => "bvmul",
        Prim::UDiv => "bvudiv",
        Prim::URem => "bvurem",
        Prim::SDiv => "bvsdiv",
        Prim::SRem => "bvsrem",
        Prim::And => "bvand",
        Prim::Or => "bvor",
        Prim::Xor => "bvxor",
        Prim::Shl => "bvshl",
        Prim::LShr => "bvlshr",
        Prim::AShr => "bvashr",
    }
}

fn predicate(p: Pred) -> &'static str {
    match p {
        Pred::Eq => "=",
        Pred::Ult => "bvult",
        Pred::Ule => "bvule",
        Pred::Slt => "bvslt",
        Pred::Sle => "bvsle",
    }
}
