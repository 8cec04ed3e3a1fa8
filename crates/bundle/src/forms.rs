//! Proofs of optimized forms against their original.

use std::collections::BTreeMap;

use millstream_object::{EntryProgram, Object};
use millstream_prove::{ProofLimits, ProofResult, ProofVerdict, Solver, prove};
use serde::Serialize;

use crate::BlobDigest;

/// Verdict on an optimized form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FormVerdict {
    /// All its programs do the same as those of the original.
    Proven,
    /// Not proven here, and accepted because a trusted key has signed the bundle.
    Trusted,
    /// Not decided.
    Unknown,
    /// A program does something else, or the form is not one of this original.
    Refuted,
}

/// Proof of one program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramProof {
    /// Name of the program.
    pub name: String,
    /// `equivalent`, `differs` or `unknown`.
    pub verdict: &'static str,
    /// Way of the decision: `instructions` (the same), `terms` (equal without a question), `solver`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
    /// Questions to solvers.
    pub queries: usize,
    /// Answers of a trusted store that it rests on and that were not proven here.
    pub trusted: usize,
    /// Slots of the original and of the form.
    pub slots: [usize; 2],
    /// Difference, or the reason why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
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
pub struct FormReport {
    /// Generation of the kernels that the form is for.
    pub kernel: String,
    /// The verdict on all programs together.
    pub verdict: FormVerdict,
    /// Reason why no program was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The proof of each program.
    pub programs: Vec<ProgramProof>,
}

/// Proves forms of one original. Forms for several kernels are often the same, and are proven once.
pub struct FormProver<'a> {
    /// File name of the original, which gives maps of global data their names.
    name: &'a str,
    original: &'a Object,
    solver: Option<&'a Solver>,
    limits: ProofLimits,
    known: BTreeMap<BlobDigest, FormReport>,
}

impl<'a> FormProver<'a> {
    /// A prover of forms of an original, whose file had this name.
    pub fn new(
        name: &'a str,
        original: &'a Object,
        solver: Option<&'a Solver>,
        limits: ProofLimits,
    ) -> FormProver<'a> {
        FormProver { name, original, solver, limits, known: BTreeMap::new() }
    }

    /// Proves each program of a form, which is the bytes of an object.
    pub fn prove(&mut self, kernel: &str, form: &[u8]) -> FormReport {
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
        let pairs = self.original.programs.iter().zip(&form.programs);
        let proof = |(f, g): (&EntryProgram, &EntryProgram)| {
            let proof = prove((self.original, f.func), (&form, g.func), self.solver, &self.limits);
            ProgramProof::new(f.name.clone(), &proof)
        };
        let programs: Vec<ProgramProof> = pairs.map(proof).collect();
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
    pub fn trusted(kernel: &str) -> FormReport {
        let reason = Some("by the signature; not proven here".to_owned());
        FormReport { kernel: kernel.to_owned(), verdict: FormVerdict::Trusted, reason, programs: Vec::new() }
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
