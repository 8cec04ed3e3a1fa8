//! `--adapt` of `click` and `native`: specialization of a program to its tables and traffic while it runs.
//! docs/adaptation.md.

use miette::{IntoDiagnostic, Result};
use millstream_adapt::{
    AdaptMode, AdaptSession, AdaptSettings, AdaptStatus, AdaptStatusReader, PacketModel,
};
use millstream_native::NativeEngine;

/// Flag for programs that run in this process.
#[derive(Clone, Debug, Default, clap::Args)]
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
    pub(crate) fn is_on(&self) -> bool {
        self.adapt.is_some()
    }
}

/// Adaptation of a run, if it is wanted.
#[derive(Debug, Default)]
pub(crate) struct EngineAdaptation {
    args: AdaptArgs,
    session: Option<AdaptSession>,
}

impl EngineAdaptation {
    /// The adaptation that flags ask for; none for code that was compiled ahead of time.
    pub(crate) fn new(args: Option<&AdaptArgs>) -> EngineAdaptation {
        EngineAdaptation { args: args.cloned().unwrap_or_default(), session: None }
    }

    /// Begins, or begins anew with another engine, whose tables are filled.
    ///
    /// # Errors
    /// If the program cannot be adapted.
    pub(crate) fn begin(&mut self, engine: &mut NativeEngine, packets: PacketModel) -> Result<()> {
        let mode = match self.args.adapt {
            None => return Ok(()),
            Some(AdaptChoice::Install) => AdaptMode::Install,
            Some(AdaptChoice::Suggest) => AdaptMode::Suggest,
        };
        // The one before ends first.
        self.session = None;
        let settings = AdaptSettings { mode, ..AdaptSettings::new(packets) };
        self.session = Some(AdaptSession::start(engine, settings).into_diagnostic()?);
        Ok(())
    }

    /// Reader of the report.
    pub(crate) fn reader(&self) -> Option<AdaptStatusReader> {
        self.session.as_ref().map(AdaptSession::reader)
    }

    /// Report so far.
    pub(crate) fn status(&self) -> Option<AdaptStatus> {
        self.session.as_ref().map(AdaptSession::status)
    }

    /// Ends, and returns the report.
    pub(crate) fn finish(&mut self) -> Option<AdaptStatus> {
        self.session.take().map(AdaptSession::finish)
    }
}
