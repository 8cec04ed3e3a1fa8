//! `millstream verify --kernels`: the verdicts of other kernels, in virtual machines.
//!
//! Each kernel is booted once by `scripts/vmrun`, with this binary and the objects inside, and runs `millstream
//! verify --json` on each object. Kernels are folders with `vmlinuz` and `lib/modules`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use miette::{IntoDiagnostic, Result};
use serde::Serialize;
use serde_json::Value;

use super::VerifyArgs;
use crate::exit::{Exit, ExitError};
use crate::progress::Progress;

/// Variable that names the program that runs a command in a virtual machine.
const VMRUN: &str = "MILLSTREAM_VMRUN";
/// Variable that names the folder of kernels.
const KERNELS: &str = "MILLSTREAM_KERNELS";
/// Seconds that a machine may take.
const LIMIT: &str = "1800";

/// The answer of one kernel about one program.
#[derive(Debug, Serialize)]
struct KernelAnswer {
    kernel: String,
    verdict: String,
    /// Instructions that the verifier walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_insns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The answers of all kernels about one program.
#[derive(Debug, Serialize)]
struct ProgramAnswers {
    name: String,
    section: String,
    kernels: Vec<KernelAnswer>,
}

/// The answers of all kernels about one object.
#[derive(Debug, Serialize)]
struct ObjectAnswers {
    object: String,
    programs: Vec<ProgramAnswers>,
    /// Kernels on which no program could be tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<KernelFailure>,
}

#[derive(Debug, Serialize)]
struct KernelFailure {
    kernel: String,
    reason: String,
}

#[derive(Debug, Serialize)]
struct KernelsReport<'a> {
    schema: u32,
    kernels: &'a [String],
    objects: &'a [ObjectAnswers],
}

/// A kernel that can be booted.
struct BootableKernel {
    name: String,
    folder: PathBuf,
}

/// Asks each kernel about each object.
pub(super) fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let vmrun = vmrun()?;
    let kernels = args.kernels.iter().map(|name| kernel(name, &vmrun)).collect::<Result<Vec<_>>>()?;
    let objects: Vec<GuestObject> =
        args.objects.iter().map(|path| GuestObject::new(path)).collect::<Result<_>>()?;
    let mut answers: Vec<ObjectAnswers> = args
        .objects
        .iter()
        .map(|path| ObjectAnswers {
            object: path.display().to_string(),
            programs: Vec::new(),
            errors: Vec::new(),
        })
        .collect();
    let bar = Progress::open("virtual machines");
    for kernel in &kernels {
        let out = tempfile::tempdir().into_diagnostic()?;
        boot(&vmrun, kernel, &objects, args, out.path())?;
        for (n, answer) in answers.iter_mut().enumerate() {
            read_answer(&kernel.name, out.path(), n, answer)?;
        }
    }
    drop(bar);
    if args.json {
        let report = KernelsReport { schema: 1, kernels: &args.kernels, objects: &answers };
        outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?);
    } else {
        answers.iter().for_each(|answer| out!("{}", text(answer, &args.kernels)));
    }
    let accepted = |o: &ObjectAnswers| {
        let answers = o.programs.iter().flat_map(|p| &p.kernels);
        o.errors.is_empty() && answers.into_iter().all(|k| k.verdict == "accepted")
    };
    Ok(if answers.iter().all(accepted) { Exit::Done } else { Exit::Negative }.into())
}

fn missing(message: String) -> miette::Report {
    ExitError::new(message, Exit::NotPermitted).into()
}

/// The program that runs virtual machines: named by the variable, or in the repository around the current
/// folder.
fn vmrun() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VMRUN) {
        return Ok(path.into());
    }
    let here = std::env::current_dir().into_diagnostic()?;
    let found = here.ancestors().map(|folder| folder.join("scripts/vmrun")).find(|path| path.is_file());
    found.ok_or_else(|| {
        missing(format!("there is no scripts/vmrun above this folder: run it in the repository, or set {VMRUN}"))
    })
}

fn cache() -> PathBuf {
    if let Some(folder) = std::env::var_os(KERNELS) {
        return folder.into();
    }
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map_or_else(PathBuf::new, |home| PathBuf::from(home).join(".cache"));
    base.unwrap_or_else(home).join("millstream/kernels")
}

/// The kernel of a version in the cache; if it is not there, the script beside `vmrun` fetches it.
fn kernel(name: &str, vmrun: &Path) -> Result<BootableKernel> {
    let cache = cache();
    if let Some(folder) = kernel_folder(&cache, name) {
        return Ok(BootableKernel { name: name.to_owned(), folder });
    }
    let fetcher = vmrun.with_file_name("kernels");
    if fetcher.is_file() {
        let parts = tempfile::tempdir().into_diagnostic()?;
        let known = ["5.10", "6.1", "6.12"].contains(&name);
        errln!("fetching kernel {name} into {}", cache.display());
        let done = Command::new(&fetcher)
            .arg("--unpack")
            .arg(parts.path())
            .arg(if known { name } else { "sid" })
            .stdout(Stdio::null())
            .status();
        done.into_diagnostic()?;
    }
    let folder = kernel_folder(&cache, name).ok_or_else(|| {
        missing(format!("there is no kernel {name} in {}: scripts/kernels fetches 5.10, 6.1, 6.12 and the newest", cache.display()))
    })?;
    Ok(BootableKernel { name: name.to_owned(), folder })
}

/// The folder of a kernel: of this name, or of another one with modules of this version.
fn kernel_folder(cache: &Path, name: &str) -> Option<PathBuf> {
    let own = cache.join(name);
    if own.join("vmlinuz").is_file() {
        return Some(own);
    }
    let is_version = |version: &str| {
        version.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let folders = std::fs::read_dir(cache).ok()?.flatten().map(|entry| entry.path());
    let mut bootable = folders.filter(|folder| folder.join("vmlinuz").is_file());
    bootable.find(|folder| {
        let modules = std::fs::read_dir(folder.join("lib/modules")).into_iter().flatten().flatten();
        modules.into_iter().any(|entry| is_version(&entry.file_name().to_string_lossy()))
    })
}

/// An object as it is in the machine.
struct GuestObject {
    /// The file here, if it is one.
    file: Option<PathBuf>,
    /// Its name there.
    name: String,
}

impl GuestObject {
    fn new(path: &Path) -> Result<GuestObject> {
        let text = path.display().to_string();
        if text.starts_with("builtin:") {
            return Ok(GuestObject { file: None, name: text });
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !path.is_file() {
            return Err(miette::miette!("cannot read {text}: there is no such file"));
        }
        if name.ends_with(".insns") || name.contains([':', '\'', '\n']) {
            let help = "write an object first: `millstream opt --fuel 0 X.insns -o X.o`";
            return Err(miette::miette!(help = help, "{text}: other kernels are asked about objects only"));
        }
        Ok(GuestObject { file: Some(path.to_owned()), name })
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Boots a kernel and has it verify all objects; the answers are in files of the folder `out`.
fn boot(
    vmrun: &Path,
    kernel: &BootableKernel,
    objects: &[GuestObject],
    args: &VerifyArgs,
    out: &Path,
) -> Result<()> {
    let files = tempfile::tempdir().into_diagnostic()?;
    let mut script = String::from("cd /ms/objects\n");
    let flags: Vec<String> = args.guest_flags().iter().map(|word| quoted(word)).collect();
    for (n, object) in objects.iter().enumerate() {
        let folder = files.path().join(n.to_string());
        std::fs::create_dir(&folder).into_diagnostic()?;
        let there = match &object.file {
            Some(file) => {
                std::fs::copy(file, folder.join(&object.name)).into_diagnostic()?;
                format!("{n}/{}", object.name)
            }
            None => object.name.clone(),
        };
        let (flags, there) = (flags.join(" "), quoted(&there));
        script += &format!("/ms/millstream verify --json {flags} {there} >/out/{n}.json 2>/out/{n}.err\n");
    }
    script += "true\n";
    let binary = std::env::current_exe().into_diagnostic()?;
    let done = Command::new(vmrun)
        .args(["-t", LIMIT, "-o"])
        .arg(out)
        .arg("-i")
        .arg(format!("{}:/ms/millstream", binary.display()))
        .arg("-i")
        .arg(format!("{}:/ms/objects", files.path().display()))
        .arg(&kernel.folder)
        .arg(&script)
        .output()
        .map_err(|e| missing(format!("cannot run {}: {e}", vmrun.display())))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        let why = why.lines().last().unwrap_or("it gave no reason").to_owned();
        let message = format!("the virtual machine with kernel {} gave no answer: {why}", kernel.name);
        return Err(ExitError::new(message, Exit::Unknown).into());
    }
    Ok(())
}

fn read_answer(kernel: &str, out: &Path, n: usize, answers: &mut ObjectAnswers) -> Result<()> {
    let text = |ending: &str| std::fs::read_to_string(out.join(format!("{n}.{ending}"))).unwrap_or_default();
    let Ok(report) = serde_json::from_str::<Value>(&text("json")) else {
        let reason = text("err").trim().to_owned();
        answers.errors.push(KernelFailure { kernel: kernel.to_owned(), reason });
        return Ok(());
    };
    let string = |row: &Value, key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for row in report.get("programs").and_then(Value::as_array).into_iter().flatten() {
        let (name, section) = (string(row, "name"), string(row, "section"));
        let answer = KernelAnswer {
            kernel: kernel.to_owned(),
            verdict: string(row, "verdict"),
            verified_insns: row.get("verified_insns").and_then(Value::as_u64),
            reason: row.get("reason").and_then(Value::as_str).map(str::to_owned),
        };
        let known = answers.programs.iter_mut().find(|p| p.name == name && p.section == section);
        match known {
            Some(program) => program.kernels.push(answer),
            None => answers.programs.push(ProgramAnswers { name, section, kernels: vec![answer] }),
        }
    }
    Ok(())
}

/// One line a program: instructions that each kernel's verifier walked, and its verdict if it is not yes.
fn text(answers: &ObjectAnswers, kernels: &[String]) -> String {
    let cell = |program: &ProgramAnswers, kernel: &String| {
        let answer = program.kernels.iter().find(|a| a.kernel == *kernel);
        let verified = |a: &KernelAnswer| a.verified_insns.map_or_else(|| "-".to_owned(), |n| n.to_string());
        answer.map_or_else(
            || "-".to_owned(),
            |a| if a.verdict == "accepted" { verified(a) } else { a.verdict.clone() },
        )
    };
    let name_width = answers.programs.iter().map(|p| p.name.len()).chain([answers.object.len()]).max();
    let name_width = name_width.unwrap_or(0);
    let mut text = format!("{:name_width$}", answers.object);
    kernels.iter().for_each(|kernel| text += &format!("  {kernel:>11}"));
    text.push('\n');
    for program in &answers.programs {
        text += &format!("{:name_width$}", program.name);
        kernels.iter().for_each(|kernel| text += &format!("  {:>11}", cell(program, kernel)));
        text.push('\n');
        for answer in program.kernels.iter().filter(|a| a.verdict != "accepted") {
            text += &format!("  {}: {}\n", answer.kernel, answer.reason.as_deref().unwrap_or(&answer.verdict));
        }
    }
    for failure in &answers.errors {
        text += &format!("  {}: {}\n", failure.kernel, failure.reason);
    }
    text
}
