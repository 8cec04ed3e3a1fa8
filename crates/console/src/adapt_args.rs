//! `--adapt` of the commands that run programs in this process.

use millstream_tune::MachineCurves;

use crate::curves::known_curves;

/// Flag for programs that run in this process.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct AdaptArgs {
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

/// Degree to which a program is adapted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum AdaptChoice {
    /// Install code that pays
    Install,
    /// Report what would be installed
    Suggest,
}

impl AdaptArgs {
    /// Curves of this machine, if they are known, for programs that are to be adapted.
    pub fn curves(self) -> Option<MachineCurves> {
        self.adapt?;
        let known = known_curves(None);
        known.inspect_err(|error| tracing::warn!("schedules are tried in any order: {error}")).ok().flatten()
    }

    /// Choice, if the program is to be adapted.
    pub fn choice(self) -> Option<AdaptChoice> {
        self.adapt
    }
}
