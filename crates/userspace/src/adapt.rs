//! `--adapt` of `click` and `native`. docs/adaptation.md.

use millstream_adapt::{AdaptMode, EngineAdaptation};

/// Flag for programs that run in this process.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct AdaptArgs {
    /// Specialise the program to its tables and traffic while it runs: code for small tables, hot keys and equal
    /// fields, judged beside the program and withdrawn when it does not pay; `suggest` only reports what it would
    /// do
    #[arg(
        long,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "install",
        value_enum
    )]
    adapt: Option<AdaptChoice>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum AdaptChoice {
    /// Install code that pays
    Install,
    /// Report what would be installed
    Suggest,
}

impl AdaptArgs {
    /// Returns true if the program is to be adapted.
    pub(crate) fn is_on(self) -> bool {
        self.adapt.is_some()
    }

    /// Adaptation of a run.
    pub(crate) fn adaptation(self) -> EngineAdaptation {
        EngineAdaptation::new(self.adapt.map(|choice| match choice {
            AdaptChoice::Install => AdaptMode::Install,
            AdaptChoice::Suggest => AdaptMode::Suggest,
        }))
    }
}
