//! Static optimization of objects.
//!
//! ```
//! use millstream::Object;
//! use millstream::optimize::{ObjectOptimizer, OptimizationGoal, TargetKernels};
//!
//! # let elf = millstream_programs::ROUTER.object;
//! let object = Object::parse("router.o", elf)?;
//! let optimizer = ObjectOptimizer::new()
//!     .goal(OptimizationGoal::Size)
//!     .target(TargetKernels::of_version("6.1")?)
//!     .passes(["simplify", "gvn", "dce"])?;
//! let result = optimizer.optimize(&object)?;
//! let elf = result.object.write()?;
//! # assert!(!elf.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A misspelt pass is an error:
//!
//! ```
//! use millstream::optimize::ObjectOptimizer;
//!
//! let error = ObjectOptimizer::new().passes(["simplfy"]).map(drop).unwrap_err();
//! assert!(error.to_string().starts_with("there is no pass `simplfy`"));
//! ```

use millstream_isa::generation::{KernelRange, VersionError};
use millstream_object::Object;
use millstream_opt::OptimizeOptions;
use millstream_passes::registry;

pub use millstream_opt::{
    FunctionOutcome, FunctionReport, KernelFeatures, OptError, OptimizationGoal, OptimizationResult,
};

/// A name that no pass has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no pass `{name}`; there are: {}", pass_names().join(", "))]
pub struct UnknownPass {
    /// The name.
    pub name: String,
}

/// Names of all passes.
#[must_use]
pub fn pass_names() -> Vec<&'static str> {
    registry().map(|pass| pass.name()).collect()
}

/// The kernels that must accept the optimized programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TargetKernels {
    /// All that take the original.
    #[default]
    Any,
    /// These.
    Range(KernelRange),
    /// One with these features, with maps of the sizes that the object says; [`KernelFeatures::probe`] asks the
    /// running one.
    Probed(KernelFeatures),
}

impl TargetKernels {
    /// The kernels of the generation that a version such as `6.1` belongs to.
    ///
    /// # Errors
    /// If the text is no version, or older than the oldest supported one.
    pub fn of_version(version: &str) -> Result<TargetKernels, VersionError> {
        Ok(TargetKernels::Range(KernelRange::only(version.parse()?)))
    }
}

/// Optimizes objects by the settings that it has.
#[derive(Clone, Default)]
pub struct ObjectOptimizer {
    options: OptimizeOptions,
}

impl ObjectOptimizer {
    /// The default pipeline, for all kernels that take the original.
    #[must_use]
    pub fn new() -> ObjectOptimizer {
        ObjectOptimizer::default()
    }

    /// Goal that code is made for.
    #[must_use]
    pub fn goal(mut self, goal: OptimizationGoal) -> ObjectOptimizer {
        self.options.goal = goal;
        self
    }

    /// The kernels that must accept the result.
    #[must_use]
    pub fn target(mut self, target: TargetKernels) -> ObjectOptimizer {
        (self.options.kernels, self.options.host) = match target {
            TargetKernels::Any => (None, None),
            TargetKernels::Range(range) => (Some(range), None),
            TargetKernels::Probed(features) => (None, Some(features)),
        };
        self
    }

    /// Passes in place of the default pipeline, by name and in this order.
    ///
    /// # Errors
    /// If there is no pass of a name.
    pub fn passes<'n>(
        mut self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<ObjectOptimizer, UnknownPass> {
        let known = pass_names();
        let check = |name: &'n str| match known.contains(&name) {
            true => Ok(name.to_owned()),
            false => Err(UnknownPass { name: name.to_owned() }),
        };
        self.options.passes = names.into_iter().map(check).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// At most this many rewrites.
    #[must_use]
    pub fn fuel(mut self, rewrites: u64) -> ObjectOptimizer {
        self.options.fuel = Some(rewrites);
        self
    }

    /// Optimizes an object, without asking the kernel.
    ///
    /// # Errors
    /// If a function is no valid bytecode, or the object does not take its new functions.
    pub fn optimize(&self, object: &Object) -> Result<OptimizationResult, OptError> {
        millstream_opt::optimize(object, &self.options)
    }
}
