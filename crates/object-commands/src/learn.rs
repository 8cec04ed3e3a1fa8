//! `millstream learn`: searches for new rewrite rules.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_lab::os;
use millstream_object::Object;
use millstream_opt::{
    OptimizeOptions, SearchAblation, SearchEngine, SuperOptions, WindowRule, WindowRules, mine_rules,
    optimize,
};
use millstream_passes::rules::{RuleOrigin, RuleSet, StoredRule, parse_rule};
use millstream_prove::Solver;
use millstream_prove::window::WindowProver;
use millstream_rules::learn::{GroupResult, PatternHarvest, RuleSearch, reduce, search};
use millstream_rules::{admit, unproven_entry};

use crate::exit::Exit;
use crate::privileges::RequiredPrivileges;
use crate::progress::Progress;
use crate::prove::SolverArgs;
use crate::rules::{jobs, new_store, object_files, store, write_store};

/// Searches for rules among the arithmetic that the passes leave in programs, and among all small left sides;
/// proves them, and writes those that existing rules do not cover, as a store. Intermediate results are kept
/// beside the output: the same command goes on where it was interrupted.
#[derive(Debug, clap::Args)]
pub struct LearnArgs {
    /// Objects, and directories of objects, to harvest left sides from
    inputs: Vec<PathBuf>,
    /// The store to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Store whose rules are kept, as far as they can be proven and others do not cover them
    #[arg(long, value_name = "FILE")]
    extend: Option<PathBuf>,
    /// Seconds to search for
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = crate::duration_args::seconds())]
    budget: u64,
    /// Left sides to work on in parallel
    #[arg(long, value_name = "N", default_value_t = jobs())]
    jobs: usize,
    /// Seed for samples and order: the same seed finds the same rules, as far as the budget reaches
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Maximum operations of an enumerated left side; 0 for programs only
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=3))]
    depth: u8,
    /// Search for rules of windows of bytecode, for `opt -O super`, for this time in each function;
    /// the objects are taken as they are and as the static passes leave them
    #[arg(long, value_name = "TIME", value_parser = crate::superopt::duration)]
    windows: Option<Duration>,
    #[command(flatten)]
    solving: SolverArgs,
}

impl LearnArgs {
    /// Privileges that the command needs: the search asks the kernel.
    pub fn needs(&self) -> RequiredPrivileges {
        if self.windows.is_some() { RequiredPrivileges::Kernel } else { RequiredPrivileges::Files }
    }
}

/// Runs the command.
pub fn run(args: &LearnArgs) -> Result<ExitCode, miette::Report> {
    let Some(solver) = args.solving.solver()? else {
        errln!("rules are not learnt without a solver that proves them");
        return Ok(Exit::NotPermitted.into());
    };
    if let Some(each) = args.windows {
        return windows(args, each, solver);
    }
    let kept = args.extend.as_deref().map(store).transpose()?.map_or_else(Vec::new, |s| s.entries);
    let mut harvest = PatternHarvest::default();
    for path in object_files(&args.inputs)? {
        harvest.object(&crate::input::read(&path)?);
    }
    os::catch_interrupts();
    let mut journal = SearchJournal::open(&args.output, &title(args, &harvest))?;
    let settings = RuleSearch {
        seed: args.seed,
        jobs: args.jobs,
        depth: usize::from(args.depth),
        budget: Duration::from_secs(args.budget),
        stride: 1,
        proof: Duration::from_secs(2),
        done: std::mem::take(&mut journal.done),
    };
    let bar = Progress::timed("left sides", settings.budget);
    let journal = Mutex::new(journal);
    let tell = |step: &GroupResult<'_>| {
        if let Ok(mut journal) = journal.lock() {
            journal.add(step);
        }
    };
    search(&settings, &harvest, &solver, os::interruption(), tell).into_diagnostic()?;
    drop(bar);
    let journal = journal.into_inner().map_err(|_| miette!("a thread of the search has failed"))?;
    if os::interrupted() {
        errln!("interrupted: the same command goes on from {}", journal.path.display());
    }
    let found = [kept, journal.entries.clone()].concat();
    let candidates = found.len();
    let rest = reduce(&RuleSet::written(), found, |_, _| {});
    let admitted = admit(rest, Some(&solver), &args.solving.limits(), args.jobs, || {}).into_diagnostic()?;
    let store = new_store(admitted.entries);
    write_store(&args.output, &store.text())?;
    outln!("rules found: {} of {candidates}, in {}", store.entries.len(), args.output.display());
    if let Some(words) = SolverArgs::trusted(Some(&solver)) {
        outln!("this {words}");
    }
    if !os::interrupted() && journal.groups.is_some_and(|(done, all)| done == all) {
        // All left sides were examined: there is nothing to go on with.
        let _ = std::fs::remove_file(&journal.path);
    }
    Ok(Exit::Done.into())
}

/// Learns rules of windows, and counts how often each is applied.
fn windows(args: &LearnArgs, each: Duration, solver: Solver) -> Result<ExitCode, miette::Report> {
    os::catch_interrupts();
    let kept = args.extend.as_deref().map(crate::rules::windows).transpose()?;
    let options = SuperOptions {
        budget: Some(each),
        jobs: args.jobs,
        seed: args.seed,
        solver: Some(solver.clone()),
        rules: Arc::new(kept.unwrap_or_default()),
        learn: true,
        stop: Some(os::interruption()),
        ..SuperOptions::default()
    };
    let forms = forms(args, &options.options)?;
    let mut rules = options.rules.rules().to_vec();
    let mut bar = Progress::counted("objects, each in two forms", forms.len());
    let mut prover = WindowProver::new(Some(solver), Duration::from_millis(500));
    let until = Instant::now() + Duration::from_secs(args.budget);
    for (name, object) in forms.iter().take_while(|_| !os::interrupted() && Instant::now() < until) {
        let (_, lessons) = mine_rules(object, &options);
        rules.extend(lessons.iter().filter_map(|lesson| lesson.rule(name, &mut prover)));
        bar.step();
    }
    drop(bar);
    let rules = counted(rules, &forms, options);
    let (fires, shown) = (rules.iter().map(|r| r.fires).sum::<u64>(), args.output.display());
    let (count, text) = (rules.len(), WindowRules::new(rules).text());
    write_store(&args.output, &text)?;
    outln!("window rules: {count}, applications: {fires}, in {shown}");
    Ok(Exit::Done.into())
}

/// The objects with their names, each as it is and as the static passes leave it. Other files are reported
/// and left out.
fn forms(args: &LearnArgs, options: &OptimizeOptions) -> Result<Vec<(String, Object)>, miette::Report> {
    let mut forms = Vec::new();
    for path in object_files(&args.inputs)? {
        let object = match crate::input::read(&path) {
            Ok(object) => object,
            Err(error) => {
                errln!("left out: {error}");
                continue;
            }
        };
        let fixed = optimize(&object, options).map(|o| o.object).ok();
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        forms.extend([Some(object), fixed].into_iter().flatten().map(|o| (name.clone(), o)));
    }
    Ok(forms)
}

/// The rules that match in these forms, with their counts, the most frequent first.
fn counted(rules: Vec<WindowRule>, forms: &[(String, Object)], options: SuperOptions) -> Vec<WindowRule> {
    let found = Arc::new(WindowRules::new(rules));
    let without =
        SearchAblation::all().filter(|p| *p != SearchAblation::Engine(SearchEngine::Rules)).collect();
    let options =
        SuperOptions { rules: Arc::clone(&found), learn: false, rounds: Some(1), without, ..options };
    let mut fires: HashMap<String, u64> = HashMap::new();
    let mut bar = Progress::counted("objects in which rules are counted", forms.len());
    for (_, object) in forms.iter().take_while(|_| !os::interrupted()) {
        for rule in mine_rules(object, &options).0.into_iter().filter_map(|f| f.rule) {
            *fires.entry(rule).or_default() += 1;
        }
        bar.step();
    }
    let mut rules = found.rules().to_vec();
    rules.iter_mut().for_each(|r| r.fires = fires.get(&r.to_string()).copied().unwrap_or(0));
    // An interrupted count does not disqualify a rule.
    rules.retain(|r| r.fires > 0 || os::interrupted());
    rules.sort_by_key(|r| std::cmp::Reverse(r.fires));
    rules
}

/// Parameters that identify a search.
fn title(args: &LearnArgs, harvest: &PatternHarvest) -> String {
    format!("; seed {}, depth {}, {} left sides harvested", args.seed, args.depth, harvest.len())
}

/// Intermediate results, on disk.
struct SearchJournal {
    path: PathBuf,
    file: std::fs::File,
    done: BTreeSet<usize>,
    entries: Vec<StoredRule>,
    groups: Option<(usize, usize)>,
}

impl SearchJournal {
    /// Continues the journal beside the output if it is of the same search, else begins one.
    fn open(output: &Path, title: &str) -> Result<SearchJournal, miette::Report> {
        let mut name = output.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let shown = path.display().to_string();
        let old = crate::bounded_read::text(&path).unwrap_or_default();
        let same = old.lines().next() == Some(title);
        let (mut done, mut entries) = (BTreeSet::new(), Vec::new());
        // A line that was cut off is searched for again with its group.
        let mut pending = Vec::new();
        for line in old.lines().skip(1).filter(|_| same) {
            if let Some(group) = line.strip_prefix("; group ") {
                done.extend(group.parse::<usize>());
                entries.append(&mut pending);
            } else if let Some((rule, origin)) = line.split_once(';') {
                let origin =
                    if origin.trim() == "harvested" { RuleOrigin::Harvested } else { RuleOrigin::Enumerated };
                pending.extend(parse_rule(rule).map(|rule| unproven_entry(rule, origin)));
            }
        }
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .into_diagnostic()
            .wrap_err_with(|| format!("writing {shown}"))?;
        if !same {
            file.set_len(0).into_diagnostic()?;
            writeln!(file, "{title}").into_diagnostic()?;
        }
        Ok(SearchJournal { path, file, done, entries, groups: None })
    }

    fn add(&mut self, step: &GroupResult<'_>) {
        let mut text = String::new();
        for rule in step.rules {
            let _ = writeln!(text, "{rule}   ; {}", step.origin);
            self.entries.push(unproven_entry(rule.clone(), step.origin));
        }
        let _ = writeln!(text, "; group {}", step.group);
        // Without a journal the search is as good, but cannot be continued.
        let _ = self.file.write_all(text.as_bytes());
        self.groups = Some((step.done, step.groups));
    }
}
