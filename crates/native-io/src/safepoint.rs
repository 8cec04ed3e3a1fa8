//! Meeting point of several workers: an engine that all of them run, and that somebody else can access
//! exclusively between two batches.
//!
//! Workers hold a read lock of the engine while they run batches, and check between two of them whether
//! somebody wants it. So whoever holds the write lock meets no packet in flight: changes to tables are
//! visible to the next batch of every worker, and no look-up sees half of a change.
//!
//! Workers may be stages, each of which feeds the next one ([`super::pipeline`]). These stop from the first
//! to the last: a stage is asked when those in front have stopped, and stops when nothing is left of what
//! they fed it, so that no packet waits between two of them either. None ever stops while one in front may
//! wait for it. A stage that is not at work when it is asked (its thread has not begun, or has not run since
//! the last time) is not mistaken for one that has nothing left: each request has a number, and a stage
//! records it when it has found nothing left for it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use millstream_native::AltSignalStack;
use millstream_native::NativeEngine;

/// Interval at which `goes_on` is asked while several workers run.
const BETWEEN: Duration = Duration::from_millis(5);

/// Delay between two checks whether a stage has nothing left, so that it can take its lock.
const GIVE_WAY: Duration = Duration::from_micros(50);

/// Delay between two looks of a worker at sources that wait.
pub(super) const NAP: Duration = Duration::from_millis(1);

/// Next action of a worker.
pub(super) enum NextAction {
    /// Another batch.
    Batch,
    /// Sleeps for a while: whoever may release its sources wants the engine meanwhile.
    Nap,
    /// Another batch, when something comes from the stage in front, which has nothing now.
    Dry,
    /// Nothing: the worker is done.
    End,
}

impl From<bool> for NextAction {
    /// Converts a flag: true if there may be another batch.
    fn from(more: bool) -> NextAction {
        if more { NextAction::Batch } else { NextAction::End }
    }
}

/// An engine, and the state of the workers that run it.
pub struct Safepoint<'e, E = NativeEngine> {
    engine: RwLock<&'e mut E>,
    /// Read lock that each stage but the last one holds while it is at work.
    fronts: Box<[RwLock<()>]>,
    /// Number of stages, from the first one on, that must release the engine.
    wanted: AtomicUsize,
    /// Held by whoever wants the engine, one at a time.
    serving: Mutex<()>,
    /// Number of the current or last request for the engine.
    request: AtomicUsize,
    /// For each stage, the last request for which it found nothing left of what those in front fed it;
    /// [`ENDED`] if it has ended.
    drained: Box<[AtomicUsize]>,
    /// True if workers must end.
    ended: AtomicBool,
    at_work: AtomicU32,
}

/// Stands for every request: a stage that has ended takes no more packets.
const ENDED: usize = usize::MAX;

/// Work beside workers, on the thread that started them, until [`Safepoint::is_over`].
pub type MainThreadTask<'a> = &'a mut dyn FnMut(&Safepoint<'_>);

impl<'e> Safepoint<'e> {
    /// A floor for the engine's workers.
    pub(super) fn new(engine: &'e mut NativeEngine) -> Safepoint<'e> {
        let workers = engine.workers();
        Safepoint::of(engine, 1, workers)
    }

    /// The same, where each worker is a stage.
    pub(super) fn of_stages(engine: &'e mut NativeEngine) -> Safepoint<'e> {
        let stages = engine.workers();
        Safepoint::of(engine, stages, stages)
    }
}

impl<'e, E> Safepoint<'e, E> {
    fn of(engine: &'e mut E, stages: u32, workers: u32) -> Safepoint<'e, E> {
        Safepoint {
            engine: RwLock::new(engine),
            fronts: (1..stages).map(|_| RwLock::default()).collect(),
            wanted: AtomicUsize::new(0),
            serving: Mutex::default(),
            request: AtomicUsize::new(0),
            drained: (0..stages).map(|_| AtomicUsize::new(0)).collect(),
            ended: AtomicBool::new(false),
            at_work: AtomicU32::new(workers),
        }
    }

    /// Runs a worker to its end: `begin` makes the worker's own state, `batch` runs a batch, and returns the
    /// next action.
    pub(super) fn work<T, N: Into<NextAction>>(
        &self,
        begin: impl FnOnce(&E) -> io::Result<T>,
        batch: impl FnMut(&E, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        self.work_as(0, begin, batch)
    }

    /// The same, as this stage. A stage that others feed ends by itself, when these have ended and nothing is
    /// left of what they fed it.
    pub(super) fn work_as<T, N: Into<NextAction>>(
        &self,
        stage: usize,
        begin: impl FnOnce(&E) -> io::Result<T>,
        batch: impl FnMut(&E, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        let mut part = WorkerGuard { floor: self, stage, done: false };
        let done = AltSignalStack::new().and_then(|_stack| self.run(stage, begin, batch));
        part.done = done.is_ok();
        done
    }

    fn run<T, N: Into<NextAction>>(
        &self,
        stage: usize,
        begin: impl FnOnce(&E) -> io::Result<T>,
        mut batch: impl FnMut(&E, &mut T) -> io::Result<N>,
    ) -> io::Result<T> {
        let mut own = begin(&**self.engine.read().map_err(poisoned)?)?;
        while stage > 0 || !self.ended.load(Ordering::Relaxed) {
            if self.is_wanted(stage) && self.has_drained(stage) {
                thread::yield_now();
                continue;
            }
            match self.batches(stage, &mut own, &mut batch)? {
                NextAction::End => break,
                NextAction::Nap => thread::sleep(NAP),
                NextAction::Batch | NextAction::Dry => {}
            }
        }
        Ok(own)
    }

    /// Runs batches until the engine must be released; returns the next action.
    fn batches<T, N: Into<NextAction>>(
        &self,
        stage: usize,
        own: &mut T,
        batch: &mut impl FnMut(&E, &mut T) -> io::Result<N>,
    ) -> io::Result<NextAction> {
        let _front = self.fronts.get(stage).map(RwLock::read).transpose().map_err(poisoned)?;
        let engine = self.engine.read().map_err(poisoned)?;
        loop {
            // Read before the batch: if the batch finds nothing, nothing more comes, since those in front had
            // stopped.
            let request = self.request.load(Ordering::Acquire);
            let wanted = self.is_wanted(stage);
            if stage == 0 && (wanted || self.ended.load(Ordering::Relaxed)) {
                return Ok(NextAction::Batch);
            }
            match batch(&engine, own)?.into() {
                NextAction::Batch => {}
                NextAction::Dry if !wanted => {}
                NextAction::Dry => {
                    self.drained[stage].store(request, Ordering::Release);
                    return Ok(NextAction::Dry);
                }
                next => return Ok(next),
            }
        }
    }

    /// Returns true if a stage must release the engine. What those in front have fed it is visible then.
    fn is_wanted(&self, stage: usize) -> bool {
        self.wanted.load(Ordering::Acquire) > stage
    }

    /// Returns true if a stage has nothing left of what those in front fed it, for the current request. The
    /// first stage has none in front.
    fn has_drained(&self, stage: usize) -> bool {
        stage == 0 || self.drained[stage].load(Ordering::Acquire) >= self.request.load(Ordering::Acquire)
    }

    /// Runs a closure with the engine while all workers are between two batches, and nothing is between two
    /// stages; `None` if a worker has failed.
    pub fn with<R>(&self, act: impl FnOnce(&mut E) -> R) -> Option<R> {
        let _one_by_one = self.serving.lock().ok()?;
        let _wanted = SafepointRequest(&self.wanted);
        self.request.fetch_add(1, Ordering::Release);
        let mut held = Vec::with_capacity(self.fronts.len());
        for (stage, front) in self.fronts.iter().enumerate() {
            self.wanted.store(stage + 1, Ordering::Release);
            held.push(self.drained(stage, front)?);
        }
        self.wanted.store(held.len() + 1, Ordering::Release);
        let mut engine = self.drained(held.len(), &self.engine)?;
        Some(act(&mut engine))
    }

    /// The lock of a stage, which has stopped and has nothing left; `None` if a worker has failed.
    fn drained<'l, L>(&self, stage: usize, lock: &'l RwLock<L>) -> Option<RwLockWriteGuard<'l, L>> {
        loop {
            let held = lock.write().ok()?;
            if self.has_drained(stage) {
                return Some(held);
            }
            drop(held);
            thread::sleep(GIVE_WAY);
        }
    }

    /// Returns true if all workers are done.
    pub fn is_over(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) == 0
    }

    /// Ends all workers after their current batch.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Asks now and then whether to go on, until all workers are done.
    pub(super) fn ask(&self, mut goes_on: impl FnMut(&mut E) -> bool) {
        while !self.is_over() {
            if !self.with(&mut goes_on).unwrap_or(false) {
                return self.end();
            }
            thread::sleep(BETWEEN);
        }
    }
}

/// Guard of a running worker. If the worker fails or panics, all workers end.
struct WorkerGuard<'f, 'e, E> {
    floor: &'f Safepoint<'e, E>,
    stage: usize,
    done: bool,
}

impl<E> Drop for WorkerGuard<'_, '_, E> {
    fn drop(&mut self) {
        self.floor.drained[self.stage].store(ENDED, Ordering::Release);
        if !self.done {
            self.floor.end();
        }
        self.floor.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Guard of a request for the engine: when it ends, workers go on, or fail if its holder has panicked.
struct SafepointRequest<'f>(&'f AtomicUsize);

impl Drop for SafepointRequest<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("another worker has failed")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc;

    use super::*;

    /// Packets between two stages.
    type Queue = Mutex<VecDeque<u32>>;

    fn put(queue: &Queue, packet: u32) {
        queue.lock().unwrap().push_back(packet);
    }

    fn pass(from: &Queue, to: Option<&Queue>) -> io::Result<NextAction> {
        let packet = from.lock().unwrap().pop_front();
        Ok(match (packet, to) {
            (Some(packet), Some(to)) => {
                put(to, packet);
                NextAction::Batch
            }
            (Some(_), None) => NextAction::Batch,
            (None, _) => NextAction::Dry,
        })
    }

    /// Returns true if nothing is between stages while somebody has the engine.
    fn is_empty(queues: &[Queue]) -> bool {
        queues.iter().all(|queue| queue.lock().unwrap().is_empty())
    }

    #[test]
    fn a_stage_whose_thread_has_not_begun_is_waited_for() {
        let (mut engine, queues) = ((), [Queue::default()]);
        let floor = Safepoint::of(&mut engine, 2, 2);
        let ((begin, begins), (fed, feeds)) = (mpsc::channel(), mpsc::channel());
        thread::scope(|scope| {
            let (floor, queues) = (&floor, &queues);
            scope.spawn(move || {
                floor.work_as(
                    0,
                    |()| Ok(()),
                    |(), ()| {
                        put(&queues[0], 1);
                        fed.send(()).ok();
                        Ok(NextAction::Nap)
                    },
                )
            });
            let last = scope.spawn(move || {
                begins.recv().unwrap();
                floor.work_as(
                    1,
                    |()| Ok(()),
                    |(), ()| match pass(&queues[0], None)? {
                        NextAction::Dry if floor.ended.load(Ordering::Relaxed) => Ok(NextAction::End),
                        next => Ok(next),
                    },
                )
            });
            feeds.recv().unwrap();
            let wanting = scope.spawn(|| floor.with(|()| is_empty(queues)));
            while floor.wanted.load(Ordering::Acquire) < 2 && !wanting.is_finished() {
                thread::yield_now();
            }
            begin.send(()).unwrap();
            assert_eq!(wanting.join().unwrap(), Some(true));
            floor.end();
            last.join().unwrap().unwrap();
        });
    }

    #[test]
    fn nothing_is_between_stages_however_often_the_engine_is_wanted() {
        let (mut engine, queues) = ((), [Queue::default(), Queue::default()]);
        let floor = Safepoint::of(&mut engine, 3, 3);
        thread::scope(|scope| {
            let (floor, queues) = (&floor, &queues);
            scope.spawn(move || {
                floor.work_as(
                    0,
                    |()| Ok(()),
                    |(), ()| {
                        put(&queues[0], 1);
                        thread::yield_now();
                        Ok(NextAction::Batch)
                    },
                )
            });
            for stage in [1, 2] {
                scope.spawn(move || {
                    floor.work_as(
                        stage,
                        |()| Ok(()),
                        |(), ()| match pass(&queues[stage - 1], queues.get(stage))? {
                            NextAction::Dry if floor.ended.load(Ordering::Relaxed) => Ok(NextAction::End),
                            next => Ok(next),
                        },
                    )
                });
            }
            for _ in 0..500 {
                assert_eq!(floor.with(|()| is_empty(queues)), Some(true));
            }
            floor.end();
        });
    }
}
