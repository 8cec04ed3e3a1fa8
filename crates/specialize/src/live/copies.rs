//! Copies of a session's programs, for measurements.
//!
//! A copy of the original does not count its writes in the caches of a variant. While the session is detached
//! that does no harm: caches are in use then, so that copies of the variant take the time that it takes, and
//! begin anew when it is attached. Otherwise roll the session's own variant back after both have run on the
//! session's maps.

use millstream_kernel::KernelProgram;
use millstream_lab::subject::{InsnCounts, ProgramVersion};
use millstream_object::LinkedProgram;

use super::{LiveError, LiveSession};

impl LiveSession<'_> {
    /// Loads one more copy of the program as clang compiled it, for measurements.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn copy_of_original(&self) -> Result<KernelProgram, LiveError> {
        let function = self.compiler.program();
        let linked = self.compiler.object().link(function).map_err(millstream_loader::Error::from)?;
        Ok(self.session.load(function, &linked)?)
    }

    /// Loads one more copy of the active variant, for measurements; `None` if there is none, or the guard
    /// does not let it run.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn copy_of_variant(&self) -> Result<Option<KernelProgram>, LiveError> {
        match self.active.as_ref().filter(|_| self.variant_runs()) {
            Some(active) => Ok(Some(self.session.load(self.compiler.program(), &active.linked)?)),
            None => Ok(None),
        }
    }

    /// The variant that records keys and packets, if there was a look at the traffic.
    pub fn instrumented(&self) -> Option<&KernelProgram> {
        self.instrumented.as_ref().map(|made| &made.program)
    }

    /// Counts the instructions that original and variant execute for packets that come in at an interface,
    /// with the maps as they are; for the variant only if it is active.
    ///
    /// # Errors
    /// As for [`ProgramVersion::count`].
    pub fn counted(
        &self,
        packets: &[Vec<u8>],
        ingress: u32,
    ) -> Result<(InsnCounts, Option<InsnCounts>), LiveError> {
        let func = self.compiler.program();
        let count = |linked: &LinkedProgram| {
            let form = ProgramVersion { session: &self.session, func, linked };
            form.count(packets, ingress).map_err(LiveError::Uncounted)
        };
        let original = self.compiler.object().link(func).map_err(millstream_loader::Error::from)?;
        let runs = self.active.as_ref().filter(|_| self.variant_runs());
        Ok((count(&original)?, runs.map(|a| count(&a.linked)).transpose()?))
    }
}
