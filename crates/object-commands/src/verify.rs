//! `millstream verify`: loads every program of an object into the kernel, and reports its answer.

pub(crate) mod kernels;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::IntoDiagnostic;
use millstream_kernel::{AttachType, KernelProgram, LoadError, ProgramType, Rejection, errno_name};
use millstream_loader::{Error, ObjectLoader, PoisonedRelocation, ProgramError, Session};
use millstream_object::{ExternKind, FuncId, LinkedProgram, Object, ObjectError, RelocKind};
use serde::Serialize;

use crate::exit::Exit;
use crate::input::{ReadError, SectionArgs};
use crate::privileges::RequiredPrivileges;
use crate::progress::Progress;

/// Flags of `millstream verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The object files, raw programs (`X.insns`), or built-in data planes (`builtin:NAME`)
    #[arg(required = true, value_name = "OBJECT")]
    objects: Vec<PathBuf>,
    /// Load this program only; may be repeated
    #[arg(long, value_name = "NAME")]
    prog: Vec<String>,
    /// Also load programs that loaders load only on request: those of sections whose names begin with `?`
    #[arg(long, conflicts_with = "prog")]
    all: bool,
    /// Load the programs as this type, whatever their sections
    #[arg(long = "type", value_name = "TYPE")]
    program_type: Option<ProgramTypeArg>,
    #[command(flatten)]
    section: SectionArgs,
    /// Ask these kernels in place of this machine's, each in a virtual machine: `5.10,6.1,6.12,7.2`. Kernels
    /// are folders with `vmlinuz` and `lib/modules` in MILLSTREAM_KERNELS, by default the cache of
    /// `scripts/kernels`, which fetches those that are missing
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    kernels: Vec<String>,
    /// Lines of the verifier's log to show for each rejection
    #[arg(long, value_name = "N", default_value_t = 12)]
    log_lines: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Types of programs whose sections have arbitrary names, as other loaders name them.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ProgramTypeArg {
    /// XDP
    Xdp,
    /// TC classifier
    Tc,
    /// Socket filter
    Socket,
}

impl ProgramTypeArg {
    fn types(self) -> (ProgramType, AttachType) {
        match self {
            ProgramTypeArg::Xdp => (ProgramType::XDP, AttachType::XDP),
            ProgramTypeArg::Tc => (ProgramType::SCHED_CLS, AttachType::NONE),
            ProgramTypeArg::Socket => (ProgramType::SOCKET_FILTER, AttachType::NONE),
        }
    }
}

impl VerifyArgs {
    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        if self.kernels.is_empty() { RequiredPrivileges::Kernel } else { RequiredPrivileges::Files }
    }

    /// Flags for the same command in a virtual machine.
    fn guest_flags(&self) -> Vec<String> {
        let mut flags: Vec<String> =
            self.prog.iter().flat_map(|p| ["--prog".to_owned(), p.clone()]).collect();
        flags.extend(self.all.then(|| "--all".to_owned()));
        let kind = self.program_type.as_ref().and_then(clap::ValueEnum::to_possible_value);
        flags.extend(kind.map(|kind| format!("--type={}", kind.get_name())));
        flags.push(format!("--log-lines={}", self.log_lines));
        flags
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum LoadVerdict {
    /// The program was loaded.
    Accepted,
    /// The verifier rejected the program.
    Rejected,
    /// The kernel refused the program before or besides verification.
    Refused,
    /// The program did not get to the kernel.
    Unprepared,
    /// The program did not get to the kernel, since it lacks support here.
    Unsupported,
}

#[derive(Debug, Serialize)]
struct VerifyRow {
    name: String,
    section: String,
    verdict: LoadVerdict,
    /// Slots of the program and all its subprograms.
    slots: usize,
    /// Instructions that the verifier walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_insns: Option<u32>,
    /// Bytes of machine code.
    #[serde(skip_serializing_if = "Option::is_none")]
    jited_bytes: Option<u32>,
    /// Reason why it was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<String>,
    /// Place at which verification stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<CodeLocation>,
    /// The relevant part of the verifier's log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<String>,
    /// Advice to the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    /// CO-RE relocations that this kernel cannot resolve, and the missing kernel function that the program
    /// calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unanswered: Vec<String>,
}

/// A slot, and its function and source line.
#[derive(Debug, Serialize)]
struct CodeLocation {
    slot: usize,
    function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

#[derive(Debug, Serialize)]
struct VerifyReport {
    schema: u32,
    object: String,
    accepted: usize,
    /// Programs that were rejected, refused or not prepared.
    failed: usize,
    /// Programs that were not tried, since loaders load them only on request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<String>,
    notes: Vec<String>,
    programs: Vec<VerifyRow>,
}

/// The reports of several objects.
#[derive(Debug, Serialize)]
struct VerifySummary {
    schema: u32,
    accepted: usize,
    failed: usize,
    objects: Vec<VerifyReport>,
    /// Objects of which no program could be tried, with reasons.
    errors: Vec<UnusableObject>,
}

/// An object of which no program could be tried.
#[derive(Debug, Serialize)]
struct UnusableObject {
    object: String,
    reason: String,
    /// Advice to the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    #[serde(skip)]
    exit: Exit,
}

/// Runs the command.
pub fn run(args: VerifyArgs) -> Result<ExitCode, miette::Report> {
    if !args.kernels.is_empty() {
        return kernels::run(&args);
    }
    let many = args.objects.len() > 1;
    let mut all =
        VerifySummary { schema: 1, accepted: 0, failed: 0, objects: Vec::new(), errors: Vec::new() };
    let mut bar = many.then(|| Progress::counted("objects", args.objects.len()));
    for path in &args.objects {
        match object(path, &args, many) {
            Ok(report) => {
                all.accepted += report.accepted;
                all.failed += report.failed;
                all.objects.push(report);
            }
            Err(unusable) => all.errors.push(unusable),
        }
        if let Some(bar) = &mut bar {
            bar.step();
        }
    }
    drop(bar);
    print(&all, many, args.json)?;
    let exits = all.objects.iter().map(exit).chain(all.errors.iter().map(|e| e.exit));
    Ok(worst(exits).into())
}

/// Exit code for several objects: errors that the user has to fix come first, then the kernel's answers.
fn worst(exits: impl Iterator<Item = Exit>) -> Exit {
    const ORDER: [Exit; 5] = [Exit::Done, Exit::Unknown, Exit::NotPermitted, Exit::Negative, Exit::Input];
    exits.max_by_key(|e| ORDER.iter().position(|o| o == e)).unwrap_or(Exit::Done)
}

fn print(all: &VerifySummary, many: bool, json: bool) -> Result<(), miette::Report> {
    let one = all.objects.first().filter(|_| !many);
    match one {
        Some(report) if json => outln!("{}", serde_json::to_string_pretty(report).into_diagnostic()?),
        _ if json && many => outln!("{}", serde_json::to_string_pretty(all).into_diagnostic()?),
        _ => {}
    }
    if !json {
        for report in &all.objects {
            if many {
                outln!("{}:", report.object);
            }
            out!("{}", text(report));
        }
        if many {
            let (objects, errors) = (all.objects.len(), all.errors.len());
            outln!("{objects} objects: {} accepted, {} not; {errors} unusable", all.accepted, all.failed);
        }
    }
    for e in &all.errors {
        errln!("{}: {}", e.object, e.reason);
        if let Some(hint) = e.hint {
            errln!("  {hint}");
        }
    }
    Ok(())
}

/// Reads an object, and tries each of its programs.
fn object(path: &Path, args: &VerifyArgs, many: bool) -> Result<VerifyReport, UnusableObject> {
    let shown = path.display().to_string();
    let unusable =
        |reason: String| UnusableObject { object: shown.clone(), reason, hint: None, exit: Exit::Input };
    let object = args.section.read(path).map_err(|e| match e {
        ReadError::Io { source, .. } => unusable(format!("cannot be read: {source}")),
        ReadError::Object { source: e @ ObjectError::Unsupported(_), .. } => {
            UnusableObject { exit: Exit::NotPermitted, ..unusable(e.to_string()) }
        }
        ReadError::Object { source, .. } => unusable(source.to_string()),
        ReadError::Builtin(source) => unusable(source.to_string()),
    })?;
    let loader = loader(&object, args).map_err(|e| unusable(e.to_string()))?;
    let chosen = loader.chosen();
    let session = loader
        .guess_types()
        .and_then(|l| l.without_impossible_maps().prepare())
        .map_err(|e| unprepared(&shown, &e))?;
    let mut bar = (!many).then(|| Progress::counted("programs", chosen.len()));
    let step = |_: &VerifyRow| {
        if let Some(bar) = &mut bar {
            bar.step();
        }
    };
    let rows: Vec<VerifyRow> =
        chosen.iter().map(|f| verify(&session, *f, args.log_lines)).inspect(step).collect();
    let accepted = rows.iter().filter(|r| r.verdict == LoadVerdict::Accepted).count();
    let notes = object.notes.iter().chain(session.notes()).cloned().chain(object.opaque_parts()).collect();
    let failed = rows.len() - accepted;
    let left_out = object.programs.iter().filter(|p| !p.kind.autoload && !chosen.contains(&p.func));
    let skipped = left_out.filter(|_| args.prog.is_empty()).map(|p| p.name.clone()).collect();
    Ok(VerifyReport { schema: 1, object: shown, accepted, failed, skipped, notes, programs: rows })
}

fn loader<'a>(object: &'a Object, args: &VerifyArgs) -> Result<ObjectLoader<'a>, Error> {
    let mut loader = ObjectLoader::new(object);
    for name in &args.prog {
        loader = loader.only(name)?;
    }
    for p in object.programs.iter().filter(|_| args.all) {
        loader = loader.only(&p.name)?;
    }
    if let Some(kind) = args.program_type {
        let (program_type, attach) = kind.types();
        for func in loader.chosen() {
            let name = &object.functions[func.index()].name;
            loader = loader.program_type(name, program_type, attach)?;
        }
    }
    Ok(loader)
}

/// The object's maps could not be created: no program can be tried.
fn unprepared(path: &str, error: &Error) -> UnusableObject {
    let kernel = if let Error::Kernel(kernel) = error { Some(kernel) } else { None };
    let forbidden =
        matches!(error, Error::ByteOrder(_)) || kernel.is_some_and(|e| e.errno() == Some(libc::EPERM));
    UnusableObject {
        object: path.to_owned(),
        reason: error.to_string(),
        hint: kernel.and_then(|e| e.hint()),
        exit: if forbidden { Exit::NotPermitted } else { Exit::Negative },
    }
}

fn exit(report: &VerifyReport) -> Exit {
    let forbidden = errno_name(libc::EPERM);
    let refused = |r: &VerifyRow| match r.verdict {
        LoadVerdict::Refused => r.errno.as_ref() == Some(&forbidden),
        verdict => verdict == LoadVerdict::Unsupported,
    };
    if report.failed == 0 {
        Exit::Done
    } else if report.programs.iter().filter(|r| r.verdict != LoadVerdict::Accepted).all(refused) {
        Exit::NotPermitted
    } else {
        Exit::Negative
    }
}

fn verify(session: &Session<'_>, func: FuncId, log_lines: usize) -> VerifyRow {
    let object = session.object();
    let section = object.programs.iter().find(|p| p.func == func).map(|p| p.section.clone());
    let mut row = VerifyRow {
        name: object.functions[func.index()].name.clone(),
        section: section.unwrap_or_default(),
        verdict: LoadVerdict::Unprepared,
        slots: 0,
        verified_insns: None,
        jited_bytes: None,
        reason: None,
        errno: None,
        place: None,
        log: Vec::new(),
        hint: None,
        unanswered: Vec::new(),
    };
    let linked = match object.link(func) {
        Ok(linked) => linked,
        Err(e) => {
            row.reason = Some(e.to_string());
            if let ObjectError::NotUnderstood { .. } = e {
                row.verdict = LoadVerdict::Unsupported;
            }
            return row;
        }
    };
    row.slots = linked.insns.len();
    match session.load(func, &linked) {
        Ok(program) => accepted(&mut row, &program),
        Err(e) => failed(&mut row, session, &linked, &e, log_lines),
    }
    row
}

fn accepted(row: &mut VerifyRow, program: &KernelProgram) {
    row.verdict = LoadVerdict::Accepted;
    if let Ok(info) = program.info() {
        // Kernels before 5.16 report it in the log only.
        let logged = program.stats().map_or(0, |stats| stats.processed);
        row.verified_insns = Some(if info.verified_insns == 0 { logged } else { info.verified_insns });
        row.jited_bytes = Some(info.jited_len);
    }
}

fn failed(
    row: &mut VerifyRow,
    session: &Session<'_>,
    linked: &LinkedProgram,
    e: &ProgramError,
    log_lines: usize,
) {
    row.reason = Some(e.to_string());
    match e {
        ProgramError::Load(LoadError::Rejected(r)) => {
            row.verdict = LoadVerdict::Rejected;
            row.reason = Some(r.reason().to_owned());
            row.errno = Some(errno_name(r.errno.0));
            row.verified_insns = r.stats.map(|s| s.processed);
            row.place = place(session.object(), linked, r);
            row.log = r.log_tail(log_lines).into_iter().map(str::to_owned).collect();
            if let Ok((_, poisoned)) = session.slots(linked) {
                row.unanswered = poisoned.iter().map(unanswered).collect();
            }
            row.unanswered.extend(missing_function(session.object(), linked, r));
        }
        ProgramError::Load(LoadError::Refused(e)) => {
            row.verdict = LoadVerdict::Refused;
            row.errno = e.errno().map(errno_name);
            row.hint = e.hint();
        }
        ProgramError::Prepare(Error::Read { path, .. }) if path.starts_with("/sys/kernel/btf") => {
            row.verdict = LoadVerdict::Unsupported;
            row.hint = Some(
                "it needs the types of a kernel built with CONFIG_DEBUG_INFO_BTF; `millstream doctor` says \
                 what this machine permits",
            );
        }
        e if e.is_environment_error() => row.verdict = LoadVerdict::Unsupported,
        _ => {}
    }
}

fn unanswered(p: &PoisonedRelocation) -> String {
    format!("slot {}: {} (path {})", p.insn, p.type_name, p.access)
}

/// The weak kernel function that the program calls where verification stopped, if this kernel lacks it.
fn missing_function(object: &Object, linked: &LinkedProgram, rejection: &Rejection) -> Option<String> {
    let slot = rejection.slot()?;
    let reloc = linked.relocs.iter().find(|r| r.insn as usize == slot)?;
    let RelocKind::Extern(id) = reloc.kind else { return None };
    let external = object.externs.get(id.index())?;
    let function = matches!(external.kind, ExternKind::Kfunc { .. });
    (function && rejection.reason().contains("unknown"))
        .then(|| format!("slot {slot}: kernel function {}", external.name))
}

/// The function and source line of the slot at which verification stopped.
fn place(object: &Object, linked: &LinkedProgram, rejection: &Rejection) -> Option<CodeLocation> {
    let slot = rejection.slot()?;
    let before = |start: &u32| *start as usize <= slot;
    let function = linked.functions.iter().take_while(|(s, _)| before(s)).last()?.1;
    let line = linked.line_info.iter().take_while(|l| before(&l.insn)).last();
    let string = |s| object.btf.as_ref().map(|b| b.str(s).trim().to_owned());
    Some(CodeLocation {
        slot,
        function: object.functions[function.index()].name.clone(),
        file: line.and_then(|l| string(l.file)),
        line: line.map(|l| l.line),
        text: line.and_then(|l| string(l.text)),
    })
}

fn text(report: &VerifyReport) -> String {
    let mut out = String::new();
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let width = report.programs.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for r in &report.programs {
        let verdict = format!("{:?}", r.verdict).to_lowercase();
        let _ = write!(out, "{verdict:11}  {:width$}  {:6} slots", r.name, r.slots);
        if let (Some(verified), Some(bytes)) = (r.verified_insns, r.jited_bytes) {
            let _ = write!(out, "  {verified:7} verified  {bytes:6} B jited");
        }
        let _ = writeln!(out, "  {}", r.section);
        explain(&mut out, r);
    }
    for name in &report.skipped {
        let _ = writeln!(
            out,
            "skipped      {name}: loaders load it on request only (here: `--all` or `--prog {name}`)"
        );
    }
    let _ = writeln!(out, "{} accepted, {} not", report.accepted, report.failed);
    out
}

fn explain(out: &mut String, r: &VerifyRow) {
    if let Some(reason) = &r.reason {
        let errno = r.errno.as_ref().map(|e| format!("{e}: ")).unwrap_or_default();
        let _ = writeln!(out, "  {errno}{reason}");
    }
    if let Some(hint) = r.hint {
        let _ = writeln!(out, "  {hint}");
    }
    if let Some(p) = &r.place {
        let _ = write!(out, "  at slot {} of {}", p.slot, p.function);
        if let (Some(file), Some(line)) = (&p.file, p.line) {
            let _ = write!(out, ", {file}:{line}: {}", p.text.as_deref().unwrap_or_default());
        }
        out.push('\n');
    }
    for line in &r.log {
        let _ = writeln!(out, "  | {line}");
    }
    for u in &r.unanswered {
        let _ = writeln!(out, "  not in this kernel: {u}");
    }
}
