//! Adaptation of a run of a program, as commands ask for it.

use millstream_native::NativeEngine;
use millstream_tune::MachineCurves;

use crate::session::{AdaptError, AdaptSession, AdaptStatusReader};
use crate::settings::{AdaptMode, AdaptSettings, PacketModel};
use crate::status::AdaptStatus;

/// Adaptation of a run, if it is wanted: one session after the other, for one engine after the other.
#[derive(Debug, Default)]
pub struct EngineAdaptation {
    mode: Option<AdaptMode>,
    curves: Option<MachineCurves>,
    session: Option<AdaptSession>,
    /// Final report.
    last: Option<AdaptStatus>,
}

impl EngineAdaptation {
    /// Adaptation in this mode, if there is one; with the curves of this machine, if they are known.
    pub fn new(mode: Option<AdaptMode>, curves: Option<MachineCurves>) -> EngineAdaptation {
        EngineAdaptation { mode, curves, session: None, last: None }
    }

    /// Begins, or begins anew with another engine, whose tables are filled.
    ///
    /// # Errors
    /// If the program cannot be adapted.
    pub fn begin(&mut self, engine: &mut NativeEngine, packets: PacketModel) -> Result<(), AdaptError> {
        let Some(mode) = self.mode else { return Ok(()) };
        // The one before ends first.
        self.session = None;
        let curves = self.curves.clone();
        let settings = AdaptSettings { mode, curves, ..AdaptSettings::new(packets) };
        self.session = Some(AdaptSession::start(engine, settings)?);
        Ok(())
    }

    /// Reader of the report.
    pub fn reader(&self) -> Option<AdaptStatusReader> {
        self.session.as_ref().map(AdaptSession::reader)
    }

    /// Report so far, or the final one.
    pub fn status(&self) -> Option<AdaptStatus> {
        self.session.as_ref().map(AdaptSession::status).or_else(|| self.last.clone())
    }

    /// Ends, and returns the report.
    pub fn finish(&mut self) -> Option<AdaptStatus> {
        if let Some(session) = self.session.take() {
            self.last = Some(session.finish());
        }
        self.last.clone()
    }
}
