//! Proofs of optimized forms against their original.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use millstream_bundle::BlobDigest;
use millstream_object::Object;
use millstream_prove::{ProofLimits, ProofResult, ProofVerdict, Solver, prove};
use serde::Serialize;

use crate::exit::Exit;
use crate::prove::pairs;

/// Verdict on an optimized form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FormVerdict {
    /// All its programs do the same as those of the original.
    Proven,
    /// Not proven here, and accepted because a trusted key has signed the bundle.
    Trusted,
    /// Not decided.
    Unknown,
    /// A program does something else, or the form is not one of this original.
    Refuted,
}

impl FormVerdict {
    fn word(self) -> &'static str {
        match self {
            FormVerdict::Proven => "proven",
            FormVerdict::Trusted => "trusted",
            FormVerdict::Unknown => "unknown",
            FormVerdict::Refuted => "refuted",
        }
    }
}

/// Proof of one program.
#[derive(Clone, Debug, Serialize)]
struct ProgramProof {
    name: String,
    verdict: &'static str,
    /// Way of the decision: `instructions` (the same), `terms` (equal without a question), `solver`.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    /// Questions to solvers.
    queries: usize,
    /// Answers of a trusted store that it rests on and that were not proven here.
    trusted: usize,
    /// Slots of the original and of the form.
    slots: [usize; 2],
    /// Difference, or the reason why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl ProgramProof {
    fn new(name: String, proof: &ProofResult) -> ProgramProof {
        let (verdict, reason) = match &proof.verdict {
            ProofVerdict::Equivalent => ("equivalent", None),
            ProofVerdict::Differs(found) => ("differs", Some(found.to_string())),
            ProofVerdict::Unknown { reason } => ("unknown", Some(reason.clone())),
        };
        let by = match (verdict, proof.identical, proof.asked) {
            ("equivalent", true, _) => Some("instructions"),
            ("equivalent", false, 0) => Some("terms"),
            ("equivalent", false, _) => Some("solver"),
            _ => None,
        };
        ProgramProof {
            name,
            verdict,
            by,
            queries: proof.asked,
            trusted: proof.answers.trusted,
            slots: proof.slots,
            reason,
        }
    }
}

/// Verdict on an optimized form, with the proof of each program.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FormReport {
    /// Generation of the kernels that the form is for.
    pub(super) kernel: String,
    pub(super) verdict: FormVerdict,
    /// Reason why no program was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    programs: Vec<ProgramProof>,
}

/// Proves forms of one original. Forms for several kernels are often the same, and are proven once.
pub(super) struct FormProver<'a> {
    /// File name of the original, which gives maps of global data their names.
    name: &'a str,
    original: &'a Object,
    solver: Option<&'a Solver>,
    limits: ProofLimits,
    known: BTreeMap<BlobDigest, FormReport>,
}

impl<'a> FormProver<'a> {
    pub(super) fn new(
        name: &'a str,
        original: &'a Object,
        solver: Option<&'a Solver>,
        limits: ProofLimits,
    ) -> FormProver<'a> {
        FormProver { name, original, solver, limits, known: BTreeMap::new() }
    }

    /// Proves each program of a form, which is the bytes of an object.
    pub(super) fn prove(&mut self, kernel: &str, form: &[u8]) -> FormReport {
        let digest = BlobDigest::of(form);
        let known = self.known.get(&digest).cloned();
        let report = known.unwrap_or_else(|| self.prove_anew(kernel, form));
        let report = FormReport { kernel: kernel.to_owned(), ..report };
        self.known.insert(digest, report.clone());
        report
    }

    fn prove_anew(&self, kernel: &str, form: &[u8]) -> FormReport {
        let form = match Object::parse(self.name, form) {
            Ok(form) => form,
            Err(why) => return FormReport::refused(kernel, format!("it is no object: {why}")),
        };
        if let Some(part) = changed_part(self.original, &form) {
            return FormReport::refused(kernel, format!("its {part} are not those of the original"));
        }
        let pairs = match pairs(self.original, &form, &[]) {
            Ok(pairs) => pairs,
            Err(why) => return FormReport::refused(kernel, why.to_string()),
        };
        let proof = |(name, f, g)| {
            ProgramProof::new(name, &prove((self.original, f), (&form, g), self.solver, &self.limits))
        };
        let programs: Vec<ProgramProof> = pairs.into_iter().map(proof).collect();
        let any = |verdict| programs.iter().any(|program| program.verdict == verdict);
        let verdict = match () {
            () if any("differs") => FormVerdict::Refuted,
            () if any("unknown") => FormVerdict::Unknown,
            () => FormVerdict::Proven,
        };
        FormReport { kernel: kernel.to_owned(), verdict, reason: None, programs }
    }
}

impl FormReport {
    /// A form that cannot be one of the original.
    fn refused(kernel: &str, reason: String) -> FormReport {
        let reason = Some(reason);
        FormReport { kernel: kernel.to_owned(), verdict: FormVerdict::Refuted, reason, programs: Vec::new() }
    }

    /// A form of a signed bundle, whose key is trusted.
    pub(super) fn trusted(kernel: &str) -> FormReport {
        let reason = Some("by the signature; not proven here".to_owned());
        FormReport { kernel: kernel.to_owned(), verdict: FormVerdict::Trusted, reason, programs: Vec::new() }
    }

    /// A line for the form, and one for each program that was not proven.
    pub(super) fn text(&self) -> String {
        let mut out = format!("{:>5}  {:8}", self.kernel, self.verdict.word());
        if let Some(reason) = &self.reason {
            let _ = write!(out, "  {reason}");
        }
        let count = |by| self.programs.iter().filter(|program| program.by == Some(by)).count();
        let ways = [
            ("instructions", "with the same instructions"),
            ("terms", "by equal terms"),
            ("solver", "by a solver"),
        ];
        let ways = ways.map(|(by, words)| (count(by), words)).into_iter().filter(|(count, _)| *count > 0);
        let ways: Vec<String> = ways.map(|(count, words)| format!("{count} {words}")).collect();
        if !ways.is_empty() {
            let slots = [0, 1].map(|side| self.programs.iter().map(|p| p.slots[side]).sum::<usize>());
            let _ = write!(out, "  programs: {}; slots: {} to {}", ways.join(", "), slots[0], slots[1]);
        }
        out.push('\n');
        for program in self.programs.iter().filter(|program| program.by.is_none()) {
            let reason = program.reason.as_deref().unwrap_or_default();
            let _ = writeln!(out, "       {}: {}: {reason}", program.name, program.verdict);
        }
        if let Some(words) = crate::prove::rests_on(self.programs.iter().map(|p| p.trusted as u64).sum()) {
            let _ = writeln!(out, "       {words}");
        }
        out
    }
}

/// Exit code for some forms; `has_solver` is false if there was no solver to ask.
pub(super) fn exit(forms: &[FormReport], has_solver: bool) -> Exit {
    let any = |verdict| forms.iter().any(|form| form.verdict == verdict);
    match () {
        () if any(FormVerdict::Refuted) => Exit::Negative,
        () if any(FormVerdict::Unknown) && !has_solver => Exit::NotPermitted,
        () if any(FormVerdict::Unknown) => Exit::Unknown,
        () => Exit::Done,
    }
}

/// A part beside the code in which two objects differ: the proof of the code assumes that they do not.
fn changed_part(original: &Object, form: &Object) -> Option<&'static str> {
    let programs = |object: &Object| {
        object.programs.iter().map(|p| (p.name.clone(), p.section.clone())).collect::<Vec<_>>()
    };
    let version = |object: &Object| (object.license.clone(), object.kernel_version);
    match () {
        () if version(original) != version(form) => Some("licence and version"),
        () if programs(original) != programs(form) => Some("programs"),
        () if original.maps != form.maps => Some("maps"),
        () if original.externs != form.externs => Some("references to the kernel"),
        () => None,
    }
}
