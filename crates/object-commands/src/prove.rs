//! `millstream prove`: equivalence of the programs of two objects.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, miette};
use millstream_interp::MapKeyValue;
use millstream_lab::differential::{ByteDifference, KernelReplay, ObservedDifference, TestRunInput, replay};
use millstream_object::{FuncId, Object};
use millstream_prove::{
    CacheStats, Counterexample, ProofAblation, ProofCache, ProofLimits, ProofResult, ProofVerdict,
    RedisError, Solver, SolverUsage, StoreKey, StoreKeyError, compare_instructions, prove,
};
use serde::Serialize;

use crate::exit::Exit;
use crate::input::{self, SectionArgs};
use crate::privileges::RequiredPrivileges;

/// Flags of `millstream prove`.
#[derive(Debug, clap::Args)]
pub struct ProveArgs {
    /// An object file, or a raw program (`X.insns`)
    a: PathBuf,
    /// Object to compare with, with programs of the same names; names do not matter where both have one
    b: PathBuf,
    /// Examine this program only; may be repeated
    #[arg(long, value_name = "NAME")]
    prog: Vec<String>,
    /// Confirm a difference in the kernel, too, by a test run, which takes its privileges
    #[arg(long)]
    replay: bool,
    /// Map whose contents after a run do not count, because nothing reads what a run leaves there, such as
    /// `p4_packet` of P4 objects; may be repeated
    #[arg(long, value_name = "MAP")]
    scratch: Vec<String>,
    /// Only report the programs' lengths and which are identical
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    solving: SolverArgs,
    #[command(flatten)]
    section: SectionArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ProveArgs {
    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        if self.replay { RequiredPrivileges::Kernel } else { RequiredPrivileges::Files }
    }
}

/// Flags of all commands that prove.
#[derive(Debug, clap::Args)]
pub(crate) struct SolverArgs {
    /// Seconds for the proof of one program
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = crate::duration_args::seconds())]
    proof_time: u64,
    /// Memory limit of a solver, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    solver_memory: u64,
    /// Leave an acceleration out, to measure its benefit; may be repeated
    #[arg(long, value_name = "NAME", hide = true)]
    without: Vec<ProofAblation>,
    /// Solvers, which run in parallel: z3, cvc5, or programs that take the flags of one of them; by
    /// default those of the two that are installed
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',', env = "MILLSTREAM_SOLVER")]
    solver: Vec<PathBuf>,
    /// Send every query to every solver, and reject answers that another solver contradicts
    #[arg(long)]
    cross_check: bool,
    /// Directory for the answers of solvers; `off` for none. By default the user's cache directory
    #[arg(long, value_name = "DIRECTORY", env = "MILLSTREAM_CACHE")]
    cache: Option<PathBuf>,
    /// Share the answers of solvers over this Redis server,
    /// `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS. Answers of others only
    /// determine the order in which solvers are asked; everything is proven again
    #[arg(long, value_name = "URL", env = "MILLSTREAM_REDIS", value_parser = redis, hide_env_values = true)]
    redis: Option<String>,
    /// Sign shared answers with the key in this file, which only its owner may read
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_STORE_KEY", value_parser = store_key)]
    store_key: Option<StoreKey>,
    /// Accept answers that are signed with --store-key in place of proofs; the verdict then says so
    #[arg(long, requires = "store_key")]
    trust_store: bool,
}

/// Reads a key, and checks it.
fn store_key(path: &str) -> Result<StoreKey, StoreKeyError> {
    StoreKey::read(Path::new(path))
}

/// Checks an address.
fn redis(url: &str) -> Result<String, RedisError> {
    ProofCache::in_memory().on_redis(url).map(|_| url.to_owned())
}

impl SolverArgs {
    /// The solvers to ask; `None`, with a warning, if none is installed: much is proven without.
    ///
    /// # Errors
    /// If answers are to be trusted that somebody on the way could read or change.
    pub(crate) fn solver(&self) -> Result<Option<Solver>, miette::Report> {
        if let (true, Some(url)) = (self.trust_store, &self.redis)
            && !ProofCache::is_private_address(url).into_diagnostic()?
        {
            return Err(miette!(
                help = "give --redis an address that begins with rediss://",
                "--trust-store takes answers from this machine, or by TLS"
            ));
        }
        let mut solver = match self.solver.as_slice() {
            [] => Solver::discover().unwrap_or_else(|| Solver::of([])),
            named => Solver::of(named.iter().cloned()),
        };
        for missing in solver.drop_missing() {
            tracing::warn!("there is no solver {}", missing.display());
        }
        if solver.is_empty() {
            tracing::warn!("no solver (z3 or cvc5) is there; only what needs none is proven");
            return Ok(None);
        }
        let directory = ProofCache::default_directory().unwrap_or_else(std::env::temp_dir);
        Ok(Some(solver.agreeing(self.cross_check).with_disagreement_dir(directory).with_cache(self.cache())))
    }

    fn cache(&self) -> ProofCache {
        let mut cache = ProofCache::in_memory();
        if let Some(key) = &self.store_key {
            cache = cache.signed_by_team(key.clone(), self.trust_store);
        }
        let directory = match &self.cache {
            Some(off) if off.as_os_str() == "off" => None,
            Some(directory) => Some(directory.clone()),
            None => ProofCache::default_directory(),
        };
        if let Some(directory) = directory {
            let key = StoreKey::of_user()
                .inspect_err(|e| {
                    tracing::warn!("answers of solvers are not taken from one run to the next: {e}")
                })
                .ok();
            cache = cache.clone().in_directory(&directory, key).unwrap_or_else(|e| {
                tracing::warn!("answers of solvers are not kept in {}: {e}", directory.display());
                cache
            });
        }
        match &self.redis {
            // The address was checked before.
            Some(url) => cache.clone().on_redis(url).unwrap_or(cache),
            None => cache,
        }
    }

    /// The team's key, if one is given.
    pub(crate) fn store_key(&self) -> Option<&StoreKey> {
        self.store_key.as_ref()
    }

    /// Returns true if data with a tag of the team's key are accepted in place of proofs.
    pub(crate) fn trusts_store(&self) -> bool {
        self.trust_store
    }

    /// Message with the number of a trusted store's answers that replaced proofs, if there were any.
    pub(crate) fn trusted(solver: Option<&Solver>) -> Option<String> {
        rests_on(solver?.cache().stats().trusted)
    }

    /// Limits for one program.
    pub(crate) fn limits(&self) -> ProofLimits {
        ProofLimits {
            time: Duration::from_secs(self.proof_time),
            memory: self.solver_memory,
            without: self.without.clone(),
            ..ProofLimits::default()
        }
    }
}

/// Note for a verdict that rests on answers of a trusted store, if it does.
pub(crate) fn rests_on(answers: u64) -> Option<String> {
    match answers {
        0 => None,
        1 => Some("rests on 1 answer of the trusted store, which was not proven here".to_owned()),
        n => Some(format!("rests on {n} answers of the trusted store, which were not proven here")),
    }
}

#[derive(Debug, Serialize)]
struct ProveRow {
    name: String,
    verdict: &'static str,
    /// Answers of a trusted store that the verdict rests on and that were not proven here.
    trusted: usize,
    /// Difference, or the reason why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Slots of the two.
    slots: [usize; 2],
    /// True if they are the same instructions.
    identical: bool,
    /// Observables with equal terms.
    same: usize,
    /// Queries to solvers.
    queries: usize,
    terms: usize,
    milliseconds: f64,
    /// Result of the kernel's test run for a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelReplay>,
    solvers: QueryStats,
}

/// Answers of solvers.
#[derive(Debug, Default, Serialize)]
struct QueryStats {
    queries: usize,
    /// Answers from the cache, by the solver that gave them.
    cached: BTreeMap<String, usize>,
    /// Of these, answers of others, whose store is trusted.
    trusted: usize,
    by_solver: Vec<SolverStats>,
}

/// Work of one solver.
#[derive(Debug, Serialize)]
struct SolverStats {
    solver: String,
    queries: usize,
    valid: usize,
    refuted: usize,
    unknown: usize,
    /// Queries that another solver answered first.
    superseded: usize,
    milliseconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<&SolverUsage> for QueryStats {
    fn from(answers: &SolverUsage) -> QueryStats {
        let part = |p: &millstream_prove::BackendStats| SolverStats {
            solver: p.name.clone(),
            queries: p.asked,
            valid: p.valid,
            refuted: p.refuted,
            unknown: p.gave_up,
            superseded: p.slower,
            milliseconds: p.time.as_secs_f64() * 1e3,
            error: p.trouble.clone(),
        };
        QueryStats {
            queries: answers.asked,
            cached: answers.cached.iter().cloned().collect(),
            trusted: answers.trusted,
            by_solver: answers.solvers.iter().map(part).collect(),
        }
    }
}

/// Cache hits by storage.
#[derive(Debug, Serialize)]
struct CacheHits {
    queries: u64,
    memory: u64,
    file: u64,
    redis: u64,
    /// Of those found, answers of others, whose store is trusted.
    trusted: u64,
    /// Answers of others that only determined the order in which solvers were asked.
    hints: u64,
    damaged: u64,
    /// Share of all queries.
    rate: f64,
}

impl From<CacheStats> for CacheHits {
    fn from(s: CacheStats) -> CacheHits {
        let found = s.memory + s.file + s.redis;
        let rate = found as f64 / s.asked.max(1) as f64;
        CacheHits {
            queries: s.asked,
            memory: s.memory,
            file: s.file,
            redis: s.redis,
            trusted: s.trusted,
            hints: s.hints,
            damaged: s.damaged,
            rate,
        }
    }
}

#[derive(Debug, Serialize)]
struct ProveReport {
    schema: u32,
    a: String,
    b: String,
    /// Assumptions of the proofs.
    assumptions: Vec<String>,
    programs: Vec<ProveRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheHits>,
}

const ASSUMPTIONS: &[&str] = &[
    "the kernel's verifier accepts both programs",
    "maps have the sizes that the objects say, and both programs the same maps",
    "no other program writes maps or the packet while a program runs",
    "a lookup changes nothing: not which entry of an LRU map is evicted next",
    "the linear part of a packet is shorter than 64 KiB, its metadata than 256 bytes",
];

fn assumptions(scratch: &[String]) -> Vec<String> {
    let scratch = scratch.iter().map(|map| format!("nothing reads what a run leaves in map {map:?}"));
    ASSUMPTIONS.iter().map(|assumption| (*assumption).to_owned()).chain(scratch).collect()
}

fn check_scratch(scratch: &[String], objects: [&Object; 2]) -> Result<(), miette::Report> {
    for name in scratch {
        if objects.iter().any(|object| !object.maps.iter().any(|map| map.name == *name)) {
            return Err(miette!("--scratch: one of the two objects has no map {name:?}"));
        }
    }
    Ok(())
}

/// Runs the command.
pub fn run(args: &ProveArgs) -> Result<ExitCode, miette::Report> {
    let (a, mut b) = (args.section.read(&args.a)?, args.section.read(&args.b)?);
    input::match_program_names(&a, &mut b);
    let solver = args.solving.solver()?;
    check_scratch(&args.scratch, [&a, &b])?;
    let limits = ProofLimits { scratch: args.scratch.clone(), ..args.solving.limits() };
    let mut programs = Vec::new();
    for (name, f, g) in pairs(&a, &b, &args.prog)? {
        let proof = if args.dry_run {
            compare_instructions((&a, f), (&b, g))
        } else {
            prove((&a, f), (&b, g), solver.as_ref(), &limits)
        };
        let kernel = match &proof.verdict {
            ProofVerdict::Differs(found) if args.replay => Some(replayed(&a, &b, &name, found)),
            _ => None,
        };
        programs.push(row(name, &proof, kernel));
    }
    let report = ProveReport {
        schema: 2,
        a: args.a.display().to_string(),
        b: args.b.display().to_string(),
        assumptions: assumptions(&args.scratch),
        programs,
        cache: solver.as_ref().map(|s| s.cache().stats().into()),
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?);
    } else {
        out!("{}", text(&report));
    }
    let any = |v: &str| report.programs.iter().any(|r| r.verdict == v);
    Ok(if any("differs") {
        Exit::Negative
    } else if any("unknown") && solver.is_none() {
        Exit::NotPermitted
    } else if any("unknown") {
        Exit::Unknown
    } else {
        Exit::Done
    }
    .into())
}

/// The programs that both have, by name.
fn pairs(a: &Object, b: &Object, only: &[String]) -> Result<Vec<(String, FuncId, FuncId)>, miette::Report> {
    let mut out = Vec::new();
    for p in &a.programs {
        if !only.is_empty() && !only.contains(&p.name) {
            continue;
        }
        let other = b.programs.iter().find(|q| q.name == p.name);
        let other = other.ok_or_else(|| miette!("the second object has no program {:?}", p.name))?;
        out.push((p.name.clone(), p.func, other.func));
    }
    if out.is_empty() {
        return Err(miette!("there is no program to look at"));
    }
    Ok(out)
}

/// Runs a difference that the interpreter has shown in the kernel, too.
fn replayed(a: &Object, b: &Object, name: &str, found: &Counterexample) -> KernelReplay {
    let entry = |(map, (key, value)): &(String, MapKeyValue)| (map.clone(), key.clone(), value.clone());
    let scene = TestRunInput {
        packet: found.packet.clone(),
        context: found.context.clone(),
        entries: found.entries.iter().map(entry).collect(),
    };
    replay(a, b, name, &scene).unwrap_or_else(|e| KernelReplay::NotTried { reason: e.error_chain() })
}

fn row(name: String, proof: &ProofResult, kernel: Option<KernelReplay>) -> ProveRow {
    let (verdict, reason) = match &proof.verdict {
        ProofVerdict::Equivalent => ("equivalent", None),
        ProofVerdict::Differs(found) => ("differs", Some(found.to_string())),
        ProofVerdict::Unknown { reason } => ("unknown", Some(reason.clone())),
    };
    let milliseconds = proof.time.as_secs_f64() * 1e3;
    ProveRow {
        name,
        verdict,
        trusted: proof.answers.trusted,
        reason,
        slots: proof.slots,
        identical: proof.identical,
        same: proof.same,
        queries: proof.asked,
        terms: proof.terms,
        milliseconds,
        kernel,
        solvers: (&proof.answers).into(),
    }
}

fn text(report: &ProveReport) -> String {
    let mut out = String::new();
    let width = report.programs.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for r in &report.programs {
        let _ = write!(out, "{:10}  {:width$}  {:8.1} ms", r.verdict, r.name, r.milliseconds);
        let _ = writeln!(out, "  {}", r.reason.as_deref().unwrap_or_default());
        if let Some(words) = rests_on(r.trusted as u64) {
            let _ = writeln!(out, "  {words}");
        }
        if let Some(kernel) = &r.kernel {
            let _ = writeln!(out, "  kernel: {}", in_words(kernel));
        }
        let told = who(&r.solvers);
        if !told.is_empty() {
            let _ = writeln!(out, "  solvers: {told}");
        }
    }
    out
}

/// Description of the kernel's test run.
fn in_words(kernel: &KernelReplay) -> String {
    let bytes = |what: &str, b: &ByteDifference| {
        format!("different, {what} from byte {}: {} and {}", b.offset, b.first, b.second)
    };
    match kernel {
        KernelReplay::NotTried { reason } => format!("not tried: {reason}"),
        KernelReplay::Same { unset } if unset.is_empty() => "no difference in a test run".to_owned(),
        KernelReplay::Same { unset } => {
            format!("no difference in a test run, which cannot set bytes {unset:?} of the context")
        }
        KernelReplay::Different(observable) => match observable {
            ObservedDifference::Rejected { message } => format!("it accepts only the first: {message}"),
            ObservedDifference::Run { first } => {
                format!("it runs only the {} on this packet", if *first { "first" } else { "second" })
            }
            ObservedDifference::ReturnValue { first, second } => {
                format!("different, return value {first} and {second}")
            }
            ObservedDifference::Packet(b) => bytes("packet", b),
            ObservedDifference::Context(b) => bytes("context", b),
            ObservedDifference::Told(b) => bytes("what it tells", b),
            ObservedDifference::Map { map, key, first, second } => {
                let shown = |v: &Option<String>| v.clone().unwrap_or_else(|| "nothing".to_owned());
                format!("different, map {map:?} at {key}: {} and {}", shown(first), shown(second))
            }
        },
    }
}

/// Description of the solvers' answers and failures.
fn who(solvers: &QueryStats) -> String {
    let mut words = Vec::new();
    for (solver, count) in &solvers.cached {
        words.push(format!("{count} answers of {solver} from the cache"));
    }
    for p in &solvers.by_solver {
        let mut text = format!("{} {} valid, {} refuted", p.solver, p.valid, p.refuted);
        for (count, what) in [(p.unknown, "unknown"), (p.superseded, "superseded")] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        if let Some(error) = &p.error {
            let _ = write!(text, " ({error})");
        }
        words.push(text);
    }
    words.join("; ")
}
