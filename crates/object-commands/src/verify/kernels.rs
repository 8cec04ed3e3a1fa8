//! `millstream verify --kernels`: the verdicts of other kernels, in virtual machines.
//!
//! Each kernel is booted once, with this binary and the objects inside, and runs `millstream verify --json` on
//! each object.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use millstream_lab::virtual_kernel::VirtualKernel;
use serde::Serialize;
use serde_json::Value;

use super::VerifyArgs;
use crate::exit::{self, Exit};
use crate::progress::Progress;

/// Verdict on a program that a kernel takes.
pub(crate) const ACCEPTED: &str = "accepted";

/// The answer of one kernel about one program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KernelAnswer {
    pub(crate) kernel: String,
    pub(crate) verdict: String,
    /// Instructions that the verifier walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified_insns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The answers of all kernels about one program.
#[derive(Debug, Serialize)]
pub(crate) struct ProgramAnswers {
    pub(crate) name: String,
    section: String,
    pub(crate) kernels: Vec<KernelAnswer>,
}

/// The answers of all kernels about one object.
#[derive(Debug, Serialize)]
pub(crate) struct ObjectAnswers {
    object: String,
    pub(crate) programs: Vec<ProgramAnswers>,
    /// Kernels on which no program could be tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<KernelAnswer>,
}

/// Asks each kernel about each object, and prints the answers.
pub(super) fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let answers = ask(&args.objects, &args.kernels, &args.guest_flags())?;
    if args.json {
        let report = serde_json::json!({ "schema": 1, "kernels": args.kernels, "objects": answers });
        outln!("{report:#}");
    } else {
        answers.iter().for_each(|answer| out!("{}", text(answer, &args.kernels)));
    }
    let accepted = |o: &ObjectAnswers| {
        let answers = o.programs.iter().flat_map(|p| &p.kernels);
        o.errors.is_empty() && answers.into_iter().all(|k| k.verdict == ACCEPTED)
    };
    Ok(if answers.iter().all(accepted) { Exit::Done } else { Exit::Negative }.into())
}

/// Asks each kernel about each object, with more flags of `millstream verify`.
pub(crate) fn ask(paths: &[PathBuf], kernels: &[String], flags: &[String]) -> Result<Vec<ObjectAnswers>> {
    let kernels = kernels.iter().map(|name| VirtualKernel::find(name).map_err(exit::ended));
    let kernels = kernels.collect::<Result<Vec<_>>>()?;
    let objects: Vec<GuestObject> = paths.iter().map(|path| GuestObject::new(path)).collect::<Result<_>>()?;
    let unanswered = |path: &PathBuf| ObjectAnswers {
        object: path.display().to_string(),
        programs: Vec::new(),
        errors: Vec::new(),
    };
    let mut answers: Vec<ObjectAnswers> = paths.iter().map(unanswered).collect();
    let bar = Progress::open("virtual machines");
    for kernel in &kernels {
        let out = tempfile::tempdir().into_diagnostic()?;
        boot(kernel, &objects, flags, out.path())?;
        for (n, answer) in answers.iter_mut().enumerate() {
            read_answer(&kernel.name, out.path(), n, answer);
        }
    }
    drop(bar);
    Ok(answers)
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
fn boot(kernel: &VirtualKernel, objects: &[GuestObject], flags: &[String], out: &Path) -> Result<()> {
    let files = tempfile::tempdir().into_diagnostic()?;
    let mut script = String::from("cd /ms/objects\n");
    let flags: Vec<String> = flags.iter().map(|word| quoted(word)).collect();
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
    let inputs = [(binary.as_path(), "/ms/millstream"), (files.path(), "/ms/objects")];
    kernel.run(&inputs, &script, out).map_err(exit::ended)
}

fn read_answer(kernel: &str, out: &Path, n: usize, answers: &mut ObjectAnswers) {
    let text = |ending: &str| std::fs::read_to_string(out.join(format!("{n}.{ending}"))).unwrap_or_default();
    let Ok(report) = serde_json::from_str::<Value>(&text("json")) else {
        let (verdict, reason) = ("unusable".to_owned(), Some(text("err").trim().to_owned()));
        answers.errors.push(KernelAnswer {
            kernel: kernel.to_owned(),
            verdict,
            verified_insns: None,
            reason,
        });
        return;
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
}

/// One line a program: instructions that each kernel's verifier walked, and its verdict if it is not yes.
fn text(answers: &ObjectAnswers, kernels: &[String]) -> String {
    let cell = |program: &ProgramAnswers, kernel: &String| {
        let answer = program.kernels.iter().find(|a| a.kernel == *kernel);
        let verified = |a: &KernelAnswer| a.verified_insns.map_or_else(|| "-".to_owned(), |n| n.to_string());
        answer.map_or_else(
            || "-".to_owned(),
            |a| if a.verdict == ACCEPTED { verified(a) } else { a.verdict.clone() },
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
        let refused = program.kernels.iter().filter(|a| a.verdict != ACCEPTED);
        refused.for_each(|a| text += &reason(a));
    }
    answers.errors.iter().for_each(|a| text += &reason(a));
    text
}

fn reason(answer: &KernelAnswer) -> String {
    format!("  {}: {}\n", answer.kernel, answer.reason.as_deref().unwrap_or(&answer.verdict))
}
