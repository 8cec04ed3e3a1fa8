//! `millstream rules`: proves rewrite rules anew, counts their uses, stores them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_lab::environment::utc;
use millstream_opt::{WindowRule, WindowRules};
use millstream_passes::TargetInfo;
use millstream_passes::rules::{RewriteRule, RuleOrigin, RuleSet, RuleStore, StoredRule, parse};
use millstream_prove::window::{WindowProver, WindowVerdict};
use millstream_prove::{RedisValue, Solver};
use millstream_rules::{CheckedRule, RuleVerdict, check_all, questions};
use serde::Serialize;

use crate::exit::Exit;
use crate::prove::SolverArgs;

/// Flags of `millstream rules`.
#[derive(Debug, clap::Args)]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RulesCommand {
    /// Prove every rule anew: the built-in ones and those of the store, or those of a file
    Check(RulesCheckArgs),
    /// Count the uses of each rule in the objects of a directory
    Stats(RulesStatsArgs),
    /// Prove the rules of a file and write them as a store, without those that cannot be proven
    Seal(RulesSealArgs),
}

/// Flags of `millstream rules stats`.
#[derive(Debug, clap::Args)]
struct RulesStatsArgs {
    /// Directories of objects, and objects
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Count for this store instead of the built-in one
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Write the counts into the store given with --rules, its rules ordered by them
    #[arg(long, requires = "rules")]
    update: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Flags of `millstream rules seal`.
#[derive(Debug, clap::Args)]
struct RulesSealArgs {
    /// File of rules, one per line, with or without the header of a store; rules of windows with its first
    /// line
    input: PathBuf,
    /// The store to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Leave out rules that others make redundant
    #[arg(long)]
    reduce: bool,
    /// Proofs to run in parallel
    #[arg(long, value_name = "N", default_value_t = jobs())]
    jobs: usize,
    #[command(flatten)]
    solving: SolverArgs,
}

/// Flags of `millstream rules check`.
#[derive(Debug, clap::Args)]
struct RulesCheckArgs {
    /// Prove the rules of this file instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write each question into this directory as SMT-LIB, for any solver, and ask none; the answer must be
    /// `unsat`
    #[arg(long, value_name = "DIR")]
    smt: Option<PathBuf>,
    /// Proofs to run in parallel
    #[arg(long, value_name = "N", default_value_t = jobs())]
    jobs: usize,
    #[command(flatten)]
    solving: SolverArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The number of processors; determined once, since that reads files.
pub(crate) fn jobs() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

#[derive(Debug, Serialize)]
struct RuleRow {
    name: String,
    rule: String,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// True if a solver was needed.
    solver: bool,
    milliseconds: f64,
}

#[derive(Debug, Serialize)]
struct RulesCheckReport {
    schema: u32,
    proven: usize,
    refuted: usize,
    undecided: usize,
    /// Answers of a trusted store that the verdicts rest on and that were not proven here.
    trusted: u64,
    rules: Vec<RuleRow>,
}

/// Runs the command.
pub fn run(args: &RulesArgs) -> Result<ExitCode, miette::Report> {
    match &args.command {
        RulesCommand::Check(args) => check(args),
        RulesCommand::Stats(args) => stats(args),
        RulesCommand::Seal(args) => seal(args),
    }
}

fn check(args: &RulesCheckArgs) -> Result<ExitCode, miette::Report> {
    let (rules, windows) = match &args.file {
        Some(file) if WindowRules::is_one(&text_of(file)?) => (Vec::new(), windows(file)?),
        Some(file) => (read(file)?, WindowRules::default()),
        None => (RuleSet::shipped().rules().to_vec(), WindowRules::builtin().into_diagnostic()?),
    };
    if let Some(directory) = &args.smt {
        return write_questions(&rules, directory);
    }
    let solver = args.solving.solver()?;
    let limits = args.solving.limits();
    let checked = check_all(&rules, solver.as_ref(), &limits, args.jobs, |_, _| {}).into_diagnostic()?;
    let mut report = report(&rules, &checked);
    check_windows(&windows, solver.as_ref(), &mut report);
    report.trusted = solver.as_ref().map_or(0, |s| s.cache().stats().trusted);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?);
    } else {
        for row in report.rules.iter().filter(|r| r.verdict != "proven") {
            outln!("{}  {}: {}", row.name, row.rule, row.reason.as_deref().unwrap_or_default());
        }
        outln!(
            "rules: {}, proven: {}, wrong: {}, undecided: {}",
            report.rules.len(),
            report.proven,
            report.refuted,
            report.undecided
        );
        if let Some(words) = crate::prove::rests_on(report.trusted) {
            outln!("this {words}");
        }
    }
    Ok(match (report.refuted, report.undecided, &solver) {
        (0, 0, _) => Exit::Done,
        (0, _, Some(_)) => Exit::Unknown,
        (0, _, None) => Exit::NotPermitted,
        _ => Exit::Negative,
    }
    .into())
}

/// Rules of windows, each with the prover's verdict, `true` if a solver was asked, and the time. They are few
/// and short.
fn judged<'r>(
    rules: &'r WindowRules,
    solver: Option<&Solver>,
) -> impl Iterator<Item = (&'r WindowRule, WindowVerdict, bool, Duration)> {
    let mut prover = WindowProver::new(solver.cloned(), Duration::from_secs(10));
    rules.rules().iter().map(move |rule| {
        let (start, asked) = (Instant::now(), prover.asked);
        let judgement = rule.prove(&mut prover);
        (rule, judgement, prover.asked > asked, start.elapsed())
    })
}

/// Reason why a rule of windows must not be applied.
fn refusal(judgement: WindowVerdict) -> Option<String> {
    match judgement {
        WindowVerdict::Equal => None,
        WindowVerdict::Differs(found) => Some(format!("wrong, for example where {found}")),
        WindowVerdict::Unknown(why) => Some(format!("not proven: {why}")),
    }
}

/// Proves rules of windows for the report.
fn check_windows(rules: &WindowRules, solver: Option<&Solver>, report: &mut RulesCheckReport) {
    for (rule, judgement, solver, time) in judged(rules, solver) {
        let (verdict, count) = match judgement {
            WindowVerdict::Equal => ("proven", &mut report.proven),
            WindowVerdict::Differs(_) => ("refuted", &mut report.refuted),
            WindowVerdict::Unknown(_) => ("undecided", &mut report.undecided),
        };
        *count += 1;
        report.rules.push(RuleRow {
            name: rule.name.clone(),
            rule: rule.to_string(),
            verdict,
            reason: refusal(judgement),
            solver,
            milliseconds: time.as_secs_f64() * 1e3,
        });
    }
}

/// The rules of windows that are proven, and the number of the others; `tell` gets these, with the reason.
fn admitted_windows(
    rules: &WindowRules,
    solver: Option<&Solver>,
    tell: impl Fn(&WindowRule, &str),
) -> (WindowRules, usize) {
    let (mut proven, mut refused) = (Vec::new(), 0);
    for (rule, judgement, ..) in judged(rules, solver) {
        match refusal(judgement) {
            None => proven.push(rule.clone()),
            Some(why) => {
                tell(rule, &why);
                refused += 1;
            }
        }
    }
    (WindowRules::new(proven), refused)
}

/// The rules of a store, or of a file of rules.
fn read(file: &Path) -> Result<Vec<RewriteRule>, miette::Report> {
    let (shown, text) = (shown(file), text_of(file)?);
    if RuleStore::is_store_text(&text) {
        return Ok(RuleStore::parse(&shown, &text).into_diagnostic()?.rules());
    }
    parse(&shown, &text).map_err(|e| miette!("{e}"))
}

/// A store of rules of windows.
pub(crate) fn windows(file: &Path) -> Result<WindowRules, miette::Report> {
    WindowRules::parse(&shown(file), &text_of(file)?).into_diagnostic()
}

/// A team's rules on a Redis server, if the path is a server's address.
fn shared(file: &Path) -> Option<Result<RedisValue, miette::Report>> {
    let url = file.to_str().filter(|f| f.starts_with("redis://") || f.starts_with("rediss://"))?;
    Some(
        RedisValue::new(url)
            .map_err(|_| miette!("a store on a Redis server is `redis://HOST[:PORT][/DATABASE]#NAME`")),
    )
}

/// A store's name for messages: without a password.
fn shown(file: &Path) -> String {
    match shared(file) {
        Some(Ok(shared)) => shared.to_string(),
        _ => file.display().to_string(),
    }
}

fn text_of(file: &Path) -> Result<String, miette::Report> {
    let shown = shown(file);
    if let Some(shared) = shared(file) {
        let text = shared?.read().into_diagnostic().wrap_err_with(|| format!("reading {shown}"))?;
        return text.ok_or_else(|| miette!("there is no {shown}"));
    }
    crate::bounded_read::text(file).into_diagnostic().wrap_err_with(|| format!("reading {shown}"))
}

/// A store, read whole.
pub(crate) fn store(file: &Path) -> Result<RuleStore, miette::Report> {
    RuleStore::parse(&shown(file), &text_of(file)?).into_diagnostic()
}

/// Writes a store.
pub(crate) fn write_store(file: &Path, text: &str) -> Result<(), miette::Report> {
    let shown = shown(file);
    if let Some(shared) = shared(file) {
        return shared?.write(text).into_diagnostic().wrap_err_with(|| format!("writing {shown}"));
    }
    std::fs::write(file, text).into_diagnostic().wrap_err_with(|| format!("writing {shown}"))
}

/// A store of these rules, made today.
pub(crate) fn new_store(entries: Vec<StoredRule>) -> RuleStore {
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    RuleStore { isa: "bpf v4".into(), made: utc(seconds).chars().take("YYYY-MM-DD".len()).collect(), entries }
}

/// A team's rules in place of the built-in ones.
#[derive(Clone, Default)]
pub(crate) struct CustomRules {
    /// Rules of terms, behind the built-in ones.
    pub(crate) terms: Option<Arc<RuleSet>>,
    /// Rules of windows.
    pub(crate) windows: Option<Arc<WindowRules>>,
}

/// Proves the rules of a team's stores, of either kind. Unproven rules are reported and not applied.
pub(crate) fn prove_rule_files(
    files: &[PathBuf],
    solving: &SolverArgs,
) -> Result<CustomRules, miette::Report> {
    if files.is_empty() {
        // Does not start a solver: its cache may take long to read.
        return Ok(CustomRules::default());
    }
    let (mut team, solver) = (CustomRules::default(), solving.solver()?);
    for file in files {
        if WindowRules::is_one(&text_of(file)?) {
            let tell = |rule: &WindowRule, why: &str| errln!("{}: not applied, {why}: {rule}", rule.name);
            let (proven, _) = admitted_windows(&windows(file)?, solver.as_ref(), tell);
            let known = team.windows.iter().flat_map(|w| w.rules().to_vec());
            team.windows = Some(Arc::new(WindowRules::new(known.chain(proven.rules().to_vec()).collect())));
        } else {
            team.terms = Some(Arc::new(admitted_terms(store(file)?, solver.as_ref(), solving)?));
        }
    }
    if let Some(words) = SolverArgs::trusted(solver.as_ref()) {
        errln!("that the rules hold {words}");
    }
    Ok(team)
}

fn admitted_terms(
    store: RuleStore,
    solver: Option<&Solver>,
    solving: &SolverArgs,
) -> Result<RuleSet, miette::Report> {
    let admitted = millstream_rules::admit(store.entries, solver, &solving.limits(), jobs(), || {});
    let admitted = admitted.into_diagnostic()?;
    for (rule, outcome) in &admitted.refused {
        errln!("{}: not applied, {outcome}: {rule}", rule.name);
    }
    Ok(millstream_rules::rule_set(&new_store(admitted.entries)))
}

fn seal(args: &RulesSealArgs) -> Result<ExitCode, miette::Report> {
    let (shown, text) = (shown(&args.input), text_of(&args.input)?);
    if WindowRules::is_one(&text) {
        return seal_windows(args, &WindowRules::parse_unsealed(&shown, &text).into_diagnostic()?);
    }
    let mut entries = if RuleStore::is_store_text(&text) {
        RuleStore::parse_unverified(&shown, &text).into_diagnostic()?.entries
    } else {
        let rules = parse(&shown, &text).map_err(|e| miette!("{e}"))?;
        rules.into_iter().map(|rule| millstream_rules::unproven_entry(rule, RuleOrigin::Enumerated)).collect()
    };
    if args.reduce {
        entries = millstream_rules::learn::reduce(&RuleSet::written(), entries, |_, _| {});
    }
    let solver = args.solving.solver()?;
    let admitted =
        millstream_rules::admit(entries, solver.as_ref(), &args.solving.limits(), args.jobs, || {})
            .into_diagnostic()?;
    for (rule, outcome) in &admitted.refused {
        outln!("{}: left out, {outcome}: {rule}", rule.name);
    }
    let store = new_store(admitted.entries);
    let trusted = SolverArgs::trusted(solver.as_ref());
    sealed(args, &store.text(), store.entries.len(), admitted.refused.len(), trusted)
}

fn seal_windows(args: &RulesSealArgs, rules: &WindowRules) -> Result<ExitCode, miette::Report> {
    let tell = |rule: &WindowRule, why: &str| outln!("{}: left out, {why}: {rule}", rule.name);
    let solver = args.solving.solver()?;
    let (proven, refused) = admitted_windows(rules, solver.as_ref(), tell);
    let trusted = SolverArgs::trusted(solver.as_ref());
    sealed(args, &proven.text(), proven.rules().len(), refused, trusted)
}

fn sealed(
    args: &RulesSealArgs,
    text: &str,
    kept: usize,
    refused: usize,
    trusted: Option<String>,
) -> Result<ExitCode, miette::Report> {
    write_store(&args.output, text)?;
    outln!("rules: {kept} in {}; {refused} left out", shown(&args.output));
    if let Some(words) = trusted {
        outln!("this {words}");
    }
    Ok(if refused == 0 { Exit::Done } else { Exit::Unknown }.into())
}

#[derive(Debug, Serialize)]
struct RuleUsageRow {
    name: String,
    rule: String,
    fires: u64,
}

#[derive(Debug, Serialize)]
struct RuleUsageReport {
    schema: u32,
    objects: usize,
    /// Rules that were applied, the most frequent first.
    rules: Vec<RuleUsageRow>,
}

fn stats(args: &RulesStatsArgs) -> Result<ExitCode, miette::Report> {
    let mut store = args.rules.as_deref().map(store).transpose()?;
    let set = match &store {
        Some(store) => Arc::new(millstream_rules::rule_set(store)),
        None => RuleSet::shipped(),
    };
    let (mut counts, mut objects) = (vec![0; set.rules().len()], 0);
    for path in object_files(&args.inputs)? {
        // A file that is not an object of BPF programs has nothing to count.
        let Ok(object) = crate::input::read(&path) else { continue };
        let target = TargetInfo::bpf(millstream_object::isa_version(&object));
        if let Some(fired) = millstream_rules::application_counts(&object, &set, &target) {
            objects += 1;
            counts.iter_mut().zip(fired).for_each(|(c, f)| *c += f);
        }
    }
    if let (true, Some(store), Some(file)) = (args.update, &mut store, &args.rules) {
        let learnt = &counts[counts.len() - store.entries.len()..];
        store.entries.iter_mut().zip(learnt).for_each(|(e, n)| e.fires = *n);
        store.entries.sort_by_key(|e| std::cmp::Reverse(e.fires));
        write_store(file, &store.text())?;
    }
    let mut rules: Vec<RuleUsageRow> = set
        .rules()
        .iter()
        .zip(&counts)
        .filter(|(_, n)| **n > 0)
        .map(|(r, n)| RuleUsageRow { name: r.name.clone(), rule: r.to_string(), fires: *n })
        .collect();
    rules.sort_by(|a, b| b.fires.cmp(&a.fires).then_with(|| a.rule.cmp(&b.rule)));
    if args.json {
        let report = RuleUsageReport { schema: 1, objects, rules };
        outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?);
    } else {
        for r in &rules {
            outln!("{:8}  {}  {}", r.fires, r.name, r.rule);
        }
        let total: u64 = rules.iter().map(|r| r.fires).sum();
        outln!(
            "rules applied: {} of {}, applications: {total}, objects: {objects}",
            rules.len(),
            set.rules().len()
        );
    }
    Ok(Exit::Done.into())
}

/// The objects among the inputs and below directories.
pub(crate) fn object_files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, miette::Report> {
    let mut out = Vec::new();
    let mut work: Vec<PathBuf> = inputs.to_vec();
    while let Some(path) = work.pop() {
        if path.is_dir() {
            let shown = path.display().to_string();
            for entry in std::fs::read_dir(&path).into_diagnostic().wrap_err(shown)? {
                let entry = entry.into_diagnostic()?.path();
                if entry.is_dir() || entry.extension().is_some_and(|e| e == "o") {
                    work.push(entry);
                }
            }
        } else {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

fn report(rules: &[RewriteRule], checked: &[CheckedRule]) -> RulesCheckReport {
    let rows = rules.iter().zip(checked).map(|(rule, checked)| {
        let (verdict, reason, solver) = match &checked.outcome {
            RuleVerdict::Proven { form } => ("proven", None, !form),
            wrong @ RuleVerdict::Refuted { .. } => ("refuted", Some(wrong.to_string()), true),
            other @ RuleVerdict::Undecided(_) => ("undecided", Some(other.to_string()), true),
        };
        let milliseconds = checked.time.as_secs_f64() * 1e3;
        RuleRow { name: rule.name.clone(), rule: rule.to_string(), verdict, reason, solver, milliseconds }
    });
    let rules: Vec<RuleRow> = rows.collect();
    let count = |verdict| rules.iter().filter(|r| r.verdict == verdict).count();
    RulesCheckReport {
        schema: 1,
        proven: count("proven"),
        refuted: count("refuted"),
        undecided: count("undecided"),
        trusted: 0,
        rules,
    }
}

/// Writes one file per question, named after the rule and its width.
fn write_questions(rules: &[RewriteRule], directory: &Path) -> Result<ExitCode, miette::Report> {
    let shown = directory.display();
    std::fs::create_dir_all(directory).into_diagnostic().wrap_err_with(|| format!("making {shown}"))?;
    let mut files = 0;
    for rule in rules {
        let stem: String =
            rule.name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        for (at, text) in questions(rule) {
            let file = directory.join(format!("{stem}-{at}.smt2"));
            std::fs::write(&file, text)
                .into_diagnostic()
                .wrap_err_with(|| format!("writing {}", file.display()))?;
            files += 1;
        }
    }
    outln!("queries: {files}, rules: {}, in {shown}", rules.len());
    Ok(Exit::Done.into())
}
