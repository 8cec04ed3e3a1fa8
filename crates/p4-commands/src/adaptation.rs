//! Adaptation of a switch: its program is specialised to its tables and its packets while it runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_adapt::{AdaptError, AdaptMode, AdaptStatus, EngineAdaptation, PacketModel};
use millstream_console::adapt_args::{AdaptArgs, AdaptChoice};
use millstream_native::NativeEngine;

/// Adaptation of one program after the other.
#[derive(Debug)]
pub(crate) struct SwitchAdaptation(Mutex<EngineAdaptation>);

impl SwitchAdaptation {
    /// Adaptation as a flag asks for it, if it does.
    pub(crate) fn new(args: AdaptArgs) -> Option<SwitchAdaptation> {
        let mode = match args.choice()? {
            AdaptChoice::Install => AdaptMode::Install,
            AdaptChoice::Suggest => AdaptMode::Suggest,
        };
        Some(SwitchAdaptation(Mutex::new(EngineAdaptation::new(Some(mode), args.curves()))))
    }

    fn lock(&self) -> MutexGuard<'_, EngineAdaptation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew with an engine that has not run yet.
    pub(crate) fn begin(&self, engine: &mut NativeEngine) -> Result<(), AdaptError> {
        self.lock().begin(engine, PacketModel::OpenVerdicts)
    }

    /// Report so far.
    pub(crate) fn status(&self) -> Option<AdaptStatus> {
        self.lock().status()
    }

    /// Ends, and returns the report.
    pub(crate) fn finish(&self) -> Option<AdaptStatus> {
        self.lock().finish()
    }
}
