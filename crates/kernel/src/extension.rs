//! The entry of an attached program as a place for other programs: extensions (`freplace`) take it, and the
//! attached program stays where it is.
//!
//! Whoever attached the program still finds it, can exchange it, and can take it away. An extension belongs to the
//! program whose entry it replaces: packets that another program on the hook handles never reach it. If this
//! process dies, the kernel removes the extension with the descriptor, and the attached program runs as before.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{KernelError, Result};
use crate::link::Link;
use crate::program::KernelProgram;

/// Longest time for which a detached extension may stay.
const PATIENCE: Duration = Duration::from_millis(500);

/// The entry of an attached program, the host.
#[derive(Debug)]
pub struct ExtensionPlace {
    host: KernelProgram,
    function: u32,
    state: Mutex<PlaceState>,
}

/// Program that runs in place of the host.
#[derive(Debug)]
enum PlaceState {
    /// None: the host runs.
    Host,
    /// The extension of the program with this id.
    Extension { _link: Link, program: u32 },
    /// The host runs, and no program takes its place any more.
    Closed,
}

impl ExtensionPlace {
    /// The place of a host whose entry is the function of this BTF id, of the host's BTF. Nothing is changed yet.
    pub fn new(host: KernelProgram, function: u32) -> ExtensionPlace {
        ExtensionPlace { host, function, state: Mutex::new(PlaceState::Host) }
    }

    /// The attached program.
    pub fn host(&self) -> &KernelProgram {
        &self.host
    }

    /// BTF id of the host's entry function.
    pub fn function(&self) -> u32 {
        self.function
    }

    /// Lets the host run from now on: what is to replace it later never runs.
    pub fn close(&self) {
        *self.state() = PlaceState::Closed;
    }

    fn state(&self) -> MutexGuard<'_, PlaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches an extension. One that was detached stays for as long as somebody inspects its link.
    fn attach(&self, extension: &KernelProgram) -> Result<Link> {
        let start = Instant::now();
        loop {
            match Link::attach_extension(extension, &self.host, self.function) {
                Err(e) if e.errno() == Some(libc::EBUSY) && start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                attached => return attached,
            }
        }
    }

    /// Id of the program that runs there; `None` if the place is closed.
    pub(crate) fn program(&self) -> Result<Option<u32>> {
        match &*self.state() {
            PlaceState::Host => Ok(Some(self.host.id()?)),
            PlaceState::Extension { program, .. } => Ok(Some(*program)),
            PlaceState::Closed => Ok(None),
        }
    }

    /// Lets a program run, by its extension, or the host itself. The kernel cannot exchange extensions in one
    /// step: for some microseconds, and after an error, the host runs.
    pub(crate) fn replace(&self, new: &KernelProgram) -> Result<()> {
        let doing = || format!("replacing the entry of {:?}", self.host.name());
        let mut state = self.state();
        if matches!(*state, PlaceState::Closed) {
            return Ok(());
        }
        let program = new.id()?;
        *state = PlaceState::Host;
        if program == self.host.id()? {
            return Ok(());
        }
        let extension = new.extension().ok_or_else(|| {
            KernelError::argument(doing(), format!("program {:?} has no form for it", new.name()))
        })?;
        let link = self.attach(extension)?;
        *state = PlaceState::Extension { _link: link, program };
        Ok(())
    }
}
