//! Twins of maps in memory that programs read.
//!
//! Each generation that has twins gets maps of its own for them. Such a map has room for several sides of the
//! twin. Packets read the one whose token is in the guard; when the twinned map has changed, another is
//! written and its token is put there. So a generation follows its maps without new code, and every packet
//! sees one state of them: the token that it reads at entry decides, once. The cost of a change depends on
//! the change, not on the map: only chunks that differ are written to a side.
//!
//! Invariant: a side is written only while its token is not in the guard and a grace period has passed since
//! it was. No packet that found it there is under way then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use millstream_ir::Map;
use millstream_kernel::{ArrayMapping, KernelError, KernelMap, grace_period, shared_memory};
use millstream_specializer::changes::{ShadowUpdate, ShadowUpdates};
use millstream_specializer::transform::{ShadowCapacity, ShadowTable};
use millstream_specializer::variant::SIDES;

/// Interval at which the end of a grace period is checked.
const LOOK: Duration = Duration::from_micros(200);

/// The twins of a generation.
#[derive(Debug, Default)]
pub struct ShadowTables {
    held: BTreeMap<Map, ShadowTableMemory>,
    /// The side that packets read.
    side: u32,
    /// Number of times that packets were sent to another side.
    turns: u64,
    /// For each side, the turn that took packets away from it.
    left: [u64; SIDES as usize],
    grace: Option<GracePeriods>,
    /// True if a map did not fit: the contents of the twins mean nothing then.
    is_useless: bool,
}

#[derive(Debug)]
struct ShadowTableMemory {
    map: KernelMap,
    memory: ArrayMapping,
    room: ShadowCapacity,
    twin: ShadowTable,
    /// Chunks in which each side is behind the twin.
    behind: [BTreeSet<u32>; SIDES as usize],
}

/// Reason why another side was not written.
#[derive(Debug, thiserror::Error)]
pub enum ShadowWriteError {
    /// A map has outgrown its twin, or has contents that no twin can have.
    #[error("a map no longer fits its twin")]
    Room,
    /// No grace period is available.
    #[error("no grace period")]
    Grace,
}

impl ShadowTables {
    /// Allocates memory for these twins, written to all sides, with room to grow.
    ///
    /// # Errors
    /// Errors of the kernel, such as lack of memory.
    pub fn new(twins: BTreeMap<Map, ShadowTable>) -> Result<ShadowTables, KernelError> {
        let held = twins.into_iter().map(|(of, twin)| Ok((of, ShadowTableMemory::new(twin)?)));
        Ok(ShadowTables { held: held.collect::<Result<_, KernelError>>()?, ..ShadowTables::default() })
    }

    /// The maps of the twins, by the maps that they are twins of.
    pub fn maps(&self) -> impl Iterator<Item = (Map, &KernelMap)> {
        self.held.iter().map(|(of, held)| (*of, &held.map))
    }

    /// Room of each side.
    pub fn rooms(&self) -> impl Iterator<Item = (Map, ShadowCapacity)> {
        self.held.iter().map(|(of, held)| (*of, held.room))
    }

    /// The side that packets read.
    pub fn side(&self) -> u32 {
        self.side
    }

    /// Takes changes over into a side that packets do not read; returns its number, and the number of bytes
    /// written. Waits for a grace period if there was none since packets read it.
    ///
    /// If the side that packets read has the changes already, nothing is written: the side stays the same,
    /// and nobody waits.
    ///
    /// # Errors
    /// If the maps do not fit their twins any more; these are then useless.
    pub fn write(&mut self, changes: ShadowUpdates) -> Result<(u32, usize), ShadowWriteError> {
        for (of, change) in changes {
            let fits = self.held.get_mut(&of).and_then(|held| held.take_over(change)).is_some();
            self.is_useless |= !fits;
        }
        if self.is_useless {
            return Err(ShadowWriteError::Room);
        }
        if self.held.values().all(|held| held.behind[self.side as usize].is_empty()) {
            return Ok((self.side, 0));
        }
        let side = (self.side + 1) % SIDES;
        self.settle(side)?;
        Ok((side, self.held.values_mut().map(|held| held.write(side)).sum()))
    }

    /// Returns true if a side can be written without waiting.
    pub fn is_free(&self) -> bool {
        let left = self.left[((self.side + 1) % SIDES) as usize];
        left == 0 || self.grace.as_ref().is_none_or(|grace| grace.passed.load(Ordering::SeqCst) >= left)
    }

    /// Notes that the guard has been given the token of this side, which was written.
    pub fn switch_side(&mut self, side: u32) {
        if side == self.side {
            return;
        }
        self.turns += 1;
        self.left[self.side as usize] = self.turns;
        self.side = side;
        self.grace.get_or_insert_with(GracePeriods::start).wanted(self.turns);
    }

    /// Waits until no packet is under way that reads this side.
    fn settle(&self, side: u32) -> Result<(), ShadowWriteError> {
        let left = self.left[side as usize];
        match &self.grace {
            Some(grace) if left > 0 => grace.wait(left),
            _ => Ok(()),
        }
    }
}

impl ShadowTableMemory {
    fn new(twin: ShadowTable) -> Result<ShadowTableMemory, KernelError> {
        let room = twin.room();
        let (map, memory) = shared_memory("ms.twin", SIDES as usize * room.bytes() as usize)?;
        let mut held = ShadowTableMemory { map, memory, room, twin, behind: Default::default() };
        held.anew();
        for side in 0..SIDES {
            held.write(side);
        }
        Ok(held)
    }

    /// Marks everything in all sides as behind.
    fn anew(&mut self) {
        self.behind.fill(self.twin.chunks());
    }

    fn take_over(&mut self, change: ShadowUpdate) -> Option<()> {
        match change {
            ShadowUpdate::Keys(keys) => {
                for (key, value) in keys {
                    self.twin.set(&key, value.as_deref())?;
                }
                let changed = self.twin.take_changed();
                self.behind.iter_mut().for_each(|b| b.extend(&changed));
            }
            ShadowUpdate::Whole(twin) => {
                self.twin = *twin;
                self.anew();
            }
        }
        self.twin.fits(self.room).then_some(())
    }

    fn write(&mut self, side: u32) -> usize {
        let start = (side * self.room.bytes()) as usize;
        let mut written = 0;
        for number in std::mem::take(&mut self.behind[side as usize]) {
            let (at, bytes) = self.twin.chunk(number);
            self.memory.write(start + at, &bytes);
            written += bytes.len();
        }
        written
    }
}

/// Grace periods, waited for by a thread of its own: they take milliseconds.
#[derive(Debug)]
struct GracePeriods {
    wanted: mpsc::Sender<u64>,
    /// Last turn after which one has passed; `u64::MAX` if none is available.
    passed: Arc<AtomicU64>,
}

impl GracePeriods {
    fn start() -> GracePeriods {
        let (wanted, turns) = mpsc::channel::<u64>();
        let passed = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&passed);
        std::thread::spawn(move || {
            while let Ok(first) = turns.recv() {
                let latest = turns.try_iter().last().unwrap_or(first);
                let now = if grace_period().is_ok() { latest } else { u64::MAX };
                told.store(now, Ordering::SeqCst);
            }
        });
        GracePeriods { wanted, passed }
    }

    /// Asks for a grace period after this turn.
    fn wanted(&self, turn: u64) {
        // Only a thread that has panicked does not receive it; waiting for it is then refused.
        if self.wanted.send(turn).is_err() {
            self.passed.store(u64::MAX, Ordering::SeqCst);
        }
    }

    fn wait(&self, turn: u64) -> Result<(), ShadowWriteError> {
        loop {
            match self.passed.load(Ordering::SeqCst) {
                u64::MAX => return Err(ShadowWriteError::Grace),
                passed if passed >= turn => return Ok(()),
                _ => std::thread::sleep(LOOK),
            }
        }
    }
}
