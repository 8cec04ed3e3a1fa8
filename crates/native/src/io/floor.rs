//! Where several workers meet: an engine that all of them run, and that somebody else has to himself between two batches.
//!
//! Workers hold a lock of the engine for reading while they run batches, and look between two of them whether it is wanted. So whoever has it for
//! writing meets no packet that is under way: what he changes in tables is there for the next batch of every worker, and no look-up sees half of it.
//!
//! Workers may be stages, each of which feeds the next one ([`super::pipeline`]). These hand over from the first to the last: a stage is asked when those in front
//! have stopped, and stops when nothing is left of what they fed it, so that no packet waits between two of them either. None ever stops while one in front
//! may wait for it.

use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
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
    /// Another batch, when something comes from the stage in front: nothing is there.
    Dry,
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
    /// What each stage but the last one holds for reading while it is at work.
    fronts: Box<[RwLock<()>]>,
    /// How many stages, from the first one on, are to leave the engine to somebody.
    wanted: AtomicUsize,
    /// It is enough.
    ended: AtomicBool,
    at_work: AtomicU32,
}

/// What is done beside workers, on the thread that started them, until [`Floor::is_over`].
pub type Attend<'a> = &'a mut dyn FnMut(&Floor<'_>);

impl<'e> Floor<'e> {
    /// For so many workers as the engine is for.
    pub(super) fn new(engine: &'e mut Engine) -> Floor<'e> {
        Floor::of(engine, 1)
    }

    /// The same, where each worker is a stage.
    pub(super) fn of_stages(engine: &'e mut Engine) -> Floor<'e> {
        let stages = engine.workers();
        Floor::of(engine, stages)
    }

    fn of(engine: &'e mut Engine, stages: u32) -> Floor<'e> {
        let workers = engine.workers();
        Floor {
            engine: RwLock::new(engine),
            fronts: (1..stages).map(|_| RwLock::default()).collect(),
            wanted: AtomicUsize::new(0),
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
        self.work_as(0, begin, batch)
    }

    /// The same, as this stage. One that others feed ends by itself, when these have ended and nothing is left of what they fed it.
    pub(super) fn work_as<T, N: Into<Next>>(
        &self,
        stage: usize,
        begin: impl FnOnce(&Engine) -> io::Result<T>,
        batch: impl FnMut(&Engine, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        let mut part = Part { floor: self, done: false };
        let done = Stack::new().and_then(|_stack| self.run(stage, begin, batch));
        part.done = done.is_ok();
        done
    }

    fn run<T, N: Into<Next>>(
        &self,
        stage: usize,
        begin: impl FnOnce(&Engine) -> io::Result<T>,
        mut batch: impl FnMut(&Engine, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        let mut own = begin(&**self.engine.read().map_err(poisoned)?)?;
        while stage > 0 || !self.ended.load(Ordering::Relaxed) {
            if self.is_wanted(stage) {
                thread::yield_now();
                continue;
            }
            match self.batches(stage, &mut own, &mut batch)? {
                Next::End => break,
                Next::Nap => thread::sleep(NAP),
                Next::Batch | Next::Dry => {}
            }
        }
        Ok(own)
    }

    /// Runs batches until the engine is to be left to others, and says what is next then.
    fn batches<T, N: Into<Next>>(
        &self,
        stage: usize,
        own: &mut T,
        batch: &mut impl FnMut(&Engine, &mut T) -> io::Result<N>,
    ) -> io::Result<Next> {
        let _front = self.fronts.get(stage).map(RwLock::read).transpose().map_err(poisoned)?;
        let engine = self.engine.read().map_err(poisoned)?;
        loop {
            // Looked at before the batch: if that finds nothing, nothing more comes, since those in front had stopped.
            let wanted = self.is_wanted(stage);
            if stage == 0 && (wanted || self.ended.load(Ordering::Relaxed)) {
                return Ok(Next::Batch);
            }
            match batch(&engine, own)?.into() {
                Next::Batch => {}
                Next::Dry if !wanted => {}
                next => return Ok(next),
            }
        }
    }

    /// Whether a stage is to leave the engine to somebody. What those in front have fed it is seen then.
    fn is_wanted(&self, stage: usize) -> bool {
        self.wanted.load(Ordering::Acquire) > stage
    }

    /// Does something with the engine while all workers are between two batches, and nothing is between two stages; nothing if a worker has failed.
    pub fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let _wanted = Wanted(&self.wanted);
        let mut held = Vec::with_capacity(self.fronts.len());
        for front in &self.fronts {
            self.wanted.store(held.len() + 1, Ordering::Release);
            held.push(front.write().ok()?);
        }
        self.wanted.store(held.len() + 1, Ordering::Release);
        self.engine.write().ok().map(|mut engine| act(&mut engine))
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

/// Whoever wants the engine, while he does: workers go on then, or fail if he has panicked.
struct Wanted<'f>(&'f AtomicUsize);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("another worker has failed")
}
