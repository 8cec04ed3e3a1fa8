//! `millstream preflight`: the verdicts of other kernels on a bundle, in virtual machines.
//!
//! For each kernel, the form is the one that its machines would take: the optimized one of its generation, or the
//! original if the bundle has none. The original is asked about, too: it is the fallback.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use millstream_bundle::{Bundle, BundlePart, PartRole};
use millstream_isa::generation::VerifierGeneration;
use serde::Serialize;

use crate::exit::Exit;
use crate::verify::kernels::{self, ACCEPTED, KernelAnswer, ObjectAnswers};

/// Flags of `millstream preflight`.
#[derive(Debug, clap::Args)]
pub struct PreflightArgs {
    /// The bundle: a folder or a tar file
    bundle: PathBuf,
    /// Kernels to ask, each in a virtual machine, as for `millstream verify --kernels`: `5.10,6.1,6.12`
    #[arg(long, value_name = "VERSION", value_delimiter = ',', required = true)]
    kernels: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A program on a kernel.
#[derive(Debug, Serialize)]
struct PreflightRow {
    kernel: String,
    program: String,
    /// The form for the kernel: `optimized`, or `original` where the bundle has none.
    form: &'static str,
    verdict: String,
    /// Instructions that the verifier walks for the form.
    verified_insns: Option<u64>,
    original_verdict: String,
    /// Instructions that the verifier walks for the original.
    original_verified_insns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// If the bundle cannot be read, or a virtual machine gives no answer.
pub fn run(args: &PreflightArgs) -> Result<ExitCode> {
    let bundle = super::read(&args.bundle)?;
    let original = bundle.original().ok_or_else(|| miette!("the bundle has no original"))?;
    let parts: Vec<&BundlePart> = args.kernels.iter().map(|kernel| form(&bundle, original, kernel)).collect();
    let mut asked: Vec<&BundlePart> = vec![original];
    for part in &parts {
        if !asked.iter().any(|known| known.digest == part.digest) {
            asked.push(part);
        }
    }
    let folder = tempfile::tempdir().into_diagnostic()?;
    let files: Vec<PathBuf> =
        asked.iter().map(|part| write(&bundle, part, folder.path())).collect::<Result<_>>()?;
    let answers = kernels::ask(&files, &args.kernels, &[])?;
    let answers_of =
        |part: &BundlePart| asked.iter().position(|p| p.digest == part.digest).map(|n| &answers[n]);
    let mut rows = Vec::new();
    for (kernel, part) in args.kernels.iter().zip(&parts) {
        let (Some(form), Some(fallback)) = (answers_of(part), answers_of(original)) else { continue };
        let role = if part.role == PartRole::Original { "original" } else { "optimized" };
        rows.extend(rows_of(kernel, role, form, fallback));
    }
    if args.json {
        let name = args.bundle.display().to_string();
        outln!("{:#}", serde_json::json!({ "schema": 1, "bundle": name, "programs": rows }));
    } else {
        out!("{}", text(&rows));
    }
    let loads = !rows.is_empty() && rows.iter().all(|row| row.verdict == ACCEPTED);
    Ok(if loads { Exit::Done } else { Exit::Negative }.into())
}

/// The part that machines with a kernel take.
fn form<'a>(bundle: &'a Bundle, original: &'a BundlePart, kernel: &str) -> &'a BundlePart {
    let generation = kernel.parse::<VerifierGeneration>().ok();
    generation.and_then(|generation| bundle.form(generation)).unwrap_or(original)
}

/// Writes a part into a folder of its own. Its name is that of the original object, without what a path or a
/// shell would read otherwise.
fn write(bundle: &Bundle, part: &BundlePart, folder: &Path) -> Result<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    let name = bundle.original().map_or("", |original| original.name.as_str());
    let stem: String = name.split('.').next().unwrap_or_default().chars().filter(|c| is_plain(*c)).collect();
    let folder = folder.join(part.digest.hex());
    let path = folder.join(format!("{}.o", if stem.is_empty() { "object" } else { &stem }));
    std::fs::create_dir_all(&folder).into_diagnostic()?;
    std::fs::write(&path, bundle.data(part)).into_diagnostic()?;
    Ok(path)
}

/// The programs of a form on a kernel, with what the kernel says of the original.
fn rows_of(
    kernel: &str,
    role: &'static str,
    form: &ObjectAnswers,
    original: &ObjectAnswers,
) -> Vec<PreflightRow> {
    let of = |answers: &[KernelAnswer]| answers.iter().find(|a| a.kernel == kernel).cloned();
    let row = |program: &str, answer: KernelAnswer, fallback: Option<KernelAnswer>| PreflightRow {
        kernel: kernel.to_owned(),
        program: program.to_owned(),
        form: role,
        verdict: answer.verdict,
        verified_insns: answer.verified_insns,
        original_verdict: fallback.as_ref().map_or("unknown".to_owned(), |f| f.verdict.clone()),
        original_verified_insns: fallback.and_then(|f| f.verified_insns),
        reason: answer.reason,
    };
    if let Some(error) = of(&form.errors) {
        return vec![row("", error, of(&original.errors))];
    }
    let rows = form.programs.iter().filter_map(|program| {
        let fallback = original.programs.iter().find(|other| other.name == program.name);
        Some(row(&program.name, of(&program.kernels)?, fallback.and_then(|other| of(&other.kernels))))
    });
    rows.collect()
}

fn text(rows: &[PreflightRow]) -> String {
    let width = rows.iter().map(|row| row.program.len()).max().unwrap_or(0).max(7);
    let titles = ("kernel", "program", "form", "verdict", "verified", "original");
    let (kernel, program, form, verdict, verified, original) = titles;
    let mut out = format!(
        "{kernel}  {program:width$}  {form:9}  {verdict:11}  {verified:>9}  {original}
"
    );
    let number = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    for row in rows {
        let PreflightRow { kernel, program, form, verdict, .. } = row;
        let original = match row.original_verdict.as_str() {
            ACCEPTED => number(row.original_verified_insns),
            other => other.to_owned(),
        };
        let verified = number(row.verified_insns);
        let _ =
            writeln!(out, "{kernel:>6}  {program:width$}  {form:9}  {verdict:11}  {verified:>9}  {original}");
        if let Some(reason) = row.reason.as_ref().filter(|_| row.verdict != ACCEPTED) {
            let _ = writeln!(out, "        {reason}");
        }
    }
    out
}
