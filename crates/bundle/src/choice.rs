//! The form of a bundle that a machine runs.

use std::path::{Path, PathBuf};

use millstream_isa::generation::VerifierGeneration;
use millstream_object::Object;
use millstream_prove::{ProofLimits, Solver, StoreKey};

use crate::{Bundle, BundleError, FormProver, FormVerdict, SignatureState};

/// Conditions under which a machine takes a bundle and its forms.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BundlePolicy {
    /// File of the key with which bundles must be signed, if they must.
    pub key: Option<PathBuf>,
    /// Forms of a signed bundle are taken without a proof.
    pub trust: bool,
}

/// A form, with the reason for it.
#[derive(Debug)]
pub struct ChosenForm {
    /// The object to load.
    pub object: Object,
    /// The form and the reason in words, for a status.
    pub description: String,
}

/// Returns true if a path names a bundle and not an object: a tar file, or a folder with an OCI image layout.
pub fn is_bundle(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "tar") || path.join("oci-layout").is_file()
}

impl BundlePolicy {
    /// The form of a bundle for the kernels of a generation: the optimized one if it is proven here, or
    /// trusted; else the original.
    ///
    /// # Errors
    /// If the key cannot be read, the bundle is not signed with it, or the original is no object.
    pub fn choose(
        &self,
        bundle: &Bundle,
        generation: Option<VerifierGeneration>,
    ) -> Result<ChosenForm, BundleError> {
        let key = self.key.as_deref().map(StoreKey::read).transpose()?;
        let signature = SignatureState::of(bundle, key.as_ref());
        if key.is_some() && signature != SignatureState::Valid {
            return Err(BundleError::Signature(signature));
        }
        let part = bundle.original().ok_or_else(|| BundleError::Missing("the original".to_owned()))?;
        let original = Object::parse(&part.name, bundle.data(part))?;
        let kernel = generation.map_or("this kernel".to_owned(), |generation| generation.to_string());
        let Some(form) = generation.and_then(|generation| bundle.form(generation)) else {
            let description = format!("original: the bundle has no form for {kernel}");
            return Ok(ChosenForm { object: original, description });
        };
        let is_trusted = self.trust && signature == SignatureState::Valid;
        let why = if is_trusted {
            "trusted by its signature, not proven here"
        } else {
            let (solver, limits) = (Solver::discover(), ProofLimits::default());
            let mut prover = FormProver::new(&part.name, &original, solver.as_ref(), limits);
            let left_out = match prover.prove(&kernel, bundle.data(form)).verdict {
                FormVerdict::Proven | FormVerdict::Trusted => None,
                FormVerdict::Unknown => Some("could not be proven here"),
                FormVerdict::Refuted => Some("is none of the original"),
            };
            if let Some(why) = left_out {
                return Ok(fallback(original, &kernel, why));
            }
            "proven here"
        };
        match Object::parse(&part.name, bundle.data(form)) {
            Ok(object) => Ok(ChosenForm { object, description: format!("optimized for {kernel}, {why}") }),
            Err(_) => Ok(fallback(original, &kernel, "is no object")),
        }
    }
}

/// The original, because the optimized form is not taken.
fn fallback(object: Object, kernel: &str, why: &str) -> ChosenForm {
    ChosenForm { object, description: format!("original: the form for {kernel} {why}") }
}
