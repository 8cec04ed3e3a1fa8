//! Native programs that are specialised while they run: never an old value, never another packet, and back again
//! when it does not pay. No test checks a time.

mod configurations;
mod programs;
mod samples;
mod swaps;
mod table;
mod writes;

use std::time::{Duration, Instant};

use millstream_adapt::{AdaptSession, AdaptStatus};
use millstream_native::{NativeEngine, PacketBatch};

/// Time limit for what a session does sooner or later; only a session that is stuck takes it.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs `batch` again and again until the report fits; fails if it never does.
fn run_until(
    session: &AdaptSession,
    mut batch: impl FnMut(),
    fits: impl Fn(&AdaptStatus) -> bool,
) -> AdaptStatus {
    let start = Instant::now();
    loop {
        batch();
        let status = session.status();
        if fits(&status) {
            return status;
        }
        assert!(start.elapsed() < LIMIT, "{status:?}");
    }
}

/// Runs frames as one batch.
fn run_frames(engine: &mut NativeEngine, batch: &mut PacketBatch, frames: &[Vec<u8>]) {
    batch.clear();
    batch.expect(engine.layout());
    frames.iter().for_each(|frame| assert!(batch.push(frame, 1)));
    engine.run(batch);
}
