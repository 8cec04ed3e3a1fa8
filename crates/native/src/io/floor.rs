//! Where several workers meet: an engine that all of them run, and that somebody else has to himself between two batches.
//!
//! Workers hold a lock of the engine for reading while they run batches, and look between two of them whether it is wanted. So whoever has it for
//! writing meets no packet that is under way: what he changes in tables is there for the next batch of every worker, and no look-up sees half of it.

use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::crash::Stack;
use crate::engine::Engine;

/// How often it is asked whether to go on while several workers run.
const BETWEEN: Duration = Duration::from_millis(5);

/// Between two looks of a worker at sources that wait.
pub(super) const NAP: Duration = Duration::from_millis(1);

/// What a worker does next.
pub(super) enum Next {
    /// Another batch.
    Batch,
    /// Sleeps for a while: whoever may let its sources send wants the engine meanwhile.
    Nap,
    /// Nothing: it is done.
    End,
}

impl From<bool> for Next {
    /// Whether there may be another batch.
    fn from(more: bool) -> Next {
        if more { Next::Batch } else { Next::End }
    }
}

/// An engine, and who is at work with it.
pub struct Floor<'e> {
    engine: RwLock<&'e mut Engine>,
    /// Somebody wants the engine for himself.
    wanted: AtomicBool,
    /// It is enough.
    ended: AtomicBool,
    at_work: AtomicU32,
}

/// What is done beside workers, on the thread that started them, until [`Floor::is_over`].
pub type Attend<'a> = &'a mut dyn FnMut(&Floor<'_>);

impl<'e> Floor<'e> {
    /// For so many workers as the engine is for.
    pub(super) fn new(engine: &'e mut Engine) -> Floor<'e> {
        let workers = engine.workers();
        Floor {
            engine: RwLock::new(engine),
            wanted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            at_work: AtomicU32::new(workers),
        }
    }

    /// A worker's part, to its end: `begin` makes what the worker has to itself, `batch` runs a batch, and says what is next.
    pub(super) fn work<T, N: Into<Next>>(
        &self,
        begin: impl FnOnce(&Engine) -> io::Result<T>,
        batch: impl FnMut(&Engine, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        let mut part = Part { floor: self, done: false };
        let done = Stack::new().and_then(|_stack| self.run(begin, batch));
        part.done = done.is_ok();
        done
    }

    fn run<T, N: Into<Next>>(
        &self,
        begin: impl FnOnce(&Engine) -> io::Result<T>,
        mut batch: impl FnMut(&Engine, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        let mut own = begin(&**self.engine.read().map_err(poisoned)?)?;
        while !self.ended.load(Ordering::Relaxed) {
            if self.wanted.load(Ordering::Relaxed) {
                thread::yield_now();
                continue;
            }
            let engine = self.engine.read().map_err(poisoned)?;
            while !self.wanted.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed) {
                match batch(&engine, &mut own)?.into() {
                    Next::Batch => {}
                    Next::End => return Ok(own),
                    Next::Nap => {
                        drop(engine);
                        thread::sleep(NAP);
                        break;
                    }
                }
            }
        }
        Ok(own)
    }

    /// Does something with the engine while all workers are between two batches; nothing if a worker has failed.
    pub fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.wanted.store(true, Ordering::Relaxed);
        let result = self.engine.write().ok().map(|mut engine| act(&mut engine));
        self.wanted.store(false, Ordering::Relaxed);
        result
    }

    /// Whether all workers are done.
    pub fn is_over(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) == 0
    }

    /// It is enough: workers end behind the batch that they have at hand.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Asks now and then whether to go on, until all workers are done.
    pub(super) fn ask(&self, mut goes_on: impl FnMut(&mut Engine) -> bool) {
        while !self.is_over() {
            if !self.with(&mut goes_on).unwrap_or(false) {
                return self.end();
            }
            thread::sleep(BETWEEN);
        }
    }
}

/// A worker's part, while it lasts. If the worker fails or panics, that is the end for all.
struct Part<'f, 'e> {
    floor: &'f Floor<'e>,
    done: bool,
}

impl Drop for Part<'_, '_> {
    fn drop(&mut self) {
        if !self.done {
            self.floor.end();
        }
        self.floor.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("another worker has failed")
}
