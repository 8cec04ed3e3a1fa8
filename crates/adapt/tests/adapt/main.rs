//! Native programs that are specialised while they run: never an old value, never another packet, and back again
//! when it does not pay. No test checks a time.

mod configurations;
mod programs;
mod samples;
mod swaps;
mod table;
mod writes;

use std::time::{Duration, Instant};

use millstream_adapt::{AdaptSession, AdaptSettings, AdaptStatus, PacketModel};
use millstream_native::{NativeEngine, PacketBatch};

/// Time limit for what a session does sooner or later; only a session that is stuck takes it.
const LIMIT: Duration = Duration::from_secs(240);

/// Settings by which all that is compiled is installed, as often as possible.
fn eager(packets: PacketModel) -> AdaptSettings {
    AdaptSettings {
        interval: Duration::from_millis(2),
        quiet: Duration::ZERO,
        swaps_per_minute: u32::MAX,
        processor_share: 1.0,
        most_time: f64::INFINITY,
        most_live_time: f64::INFINITY,
        is_background: false,
        tries_schedules: false,
        ..AdaptSettings::new(packets)
    }
}

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
