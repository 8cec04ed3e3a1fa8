//! Writes to tables that are in code.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, thread};

use millstream_adapt::{AdaptSession, AdaptSettings, AdaptState, PacketModel};
use millstream_interp::MapKind;
use millstream_native::{ArrivalMetadata, PacketBatch};
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::{PacketSink, ReplaySource, RunConfig, WorkerHooks, run_by};

use crate::table::{VALUE, engine, frame, number, set, value};
use crate::{run_frames, run_until};

/// Writes of each test.
const WRITES: u64 = 100_000;
/// Times that code is installed meanwhile, at least.
const SWAPS: u64 = 10;

/// The next batch after a write has the new value, whether the old one was in code or not.
#[test]
fn no_batch_behind_a_write_sees_the_old_value() {
    for kind in [MapKind::Hash, MapKind::Array] {
        let mut engine = engine(kind, 2, 1);
        (0..2).for_each(|key| set(&mut engine, key, 0));
        let session = AdaptSession::start(&mut engine, AdaptSettings::without_limits(PacketModel::Verdicts))
            .expect("adaptable");
        let frames: Vec<Vec<u8>> = (0..8).map(|n| frame(n % 2)).collect();
        let mut batch = PacketBatch::new(frames.len()).expect("memory");
        let mut written = 0;
        while written < WRITES / 2 {
            let before = session.status().swaps;
            let installed = |status: &millstream_adapt::AdaptStatus| {
                status.swaps > before && status.state == AdaptState::Specialized
            };
            run_until(&session, || run_frames(&mut engine, &mut batch, &frames), installed);
            for _ in 0..WRITES / 2 / SWAPS {
                written += 1;
                (0..2).for_each(|key| set(&mut engine, key, written));
                run_frames(&mut engine, &mut batch, &frames);
                let stale = (0..batch.len()).filter(|at| value(&batch, *at) != Some(written)).count();
                assert_eq!(stale, 0, "{kind:?} after {written} writes");
            }
        }
        let status = session.finish();
        assert!(status.swaps >= SWAPS && status.withdrawals.withdrawn_written >= SWAPS - 1, "{status:?}");
        assert_eq!(status.differences, 0, "{status:?}");
    }
}

/// A removed entry is gone, and comes back.
#[test]
fn entries_of_code_that_are_removed_are_not_found() {
    let mut engine = engine(MapKind::Hash, 2, 1);
    set(&mut engine, 7, 1);
    let session = AdaptSession::start(&mut engine, AdaptSettings::without_limits(PacketModel::Verdicts))
        .expect("adaptable");
    let frames = vec![frame(7); 8];
    let mut batch = PacketBatch::new(frames.len()).expect("memory");
    for round in 0..4 {
        let before = session.status().swaps;
        run_until(
            &session,
            || run_frames(&mut engine, &mut batch, &frames),
            |status| status.swaps > before && status.state == AdaptState::Specialized,
        );
        let expected = if round % 2 == 0 {
            assert_eq!(engine.map("table").expect("the table").delete(&7u32.to_ne_bytes()), 0);
            None
        } else {
            set(&mut engine, 7, round);
            Some(round)
        };
        run_frames(&mut engine, &mut batch, &frames);
        assert!((0..8).all(|at| value(&batch, at) == expected), "round {round}");
    }
}

/// Receives packets, and counts those whose value is older than the last write before their batch began.
struct StaleCounter<'t> {
    /// Writes that have returned.
    written: &'t AtomicU64,
    /// Number of writes when the packets of the batch before were sent: this batch began later.
    before: u64,
    stale: u64,
    sent: u64,
}

impl PacketSink for StaleCounter<'_> {
    fn send(&mut self, packet: &[u8], _: (u64, ArrivalMetadata), _: u32) -> io::Result<()> {
        self.sent += 1;
        self.stale += u64::from(number(packet, VALUE) < self.before);
        if self.sent.is_multiple_of(32) {
            self.before = self.written.load(Ordering::SeqCst);
        }
        Ok(())
    }
}

/// The same from another thread, which meets workers between two batches as the sockets do.
#[test]
fn writes_by_a_socket_return_when_no_batch_sees_the_old_value() {
    let mut engine = engine(MapKind::Hash, 2, 1);
    set(&mut engine, 1, 0);
    let session = AdaptSession::start(&mut engine, AdaptSettings::without_limits(PacketModel::Verdicts))
        .expect("adaptable");
    let (written, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let frames = vec![frame(1); 32];
    let order: Vec<u32> = (0..32).collect();
    let source = ReplaySource { frames: &frames, order: &order, count: u64::MAX, stream: None };
    let mut sink = StaleCounter { written: &written, before: 0, stale: 0, sent: 0 };
    let mut attend = |floor: &Safepoint<'_>| {
        for _ in 0..SWAPS {
            let before = session.status().swaps;
            run_until(&session, thread::yield_now, |status| {
                status.swaps > before && status.state == AdaptState::Specialized
            });
            for _ in 0..WRITES / 100 {
                let next = written.load(Ordering::SeqCst) + 1;
                floor.with(|engine| set(engine, 1, next)).expect("workers run");
                written.store(next, Ordering::SeqCst);
            }
        }
        ends.store(true, Ordering::SeqCst);
        floor.end();
    };
    let config = RunConfig { batch: 32, ingress: 1 };
    let hooks = WorkerHooks { enter: &|_| Ok(()) };
    run_by(&mut engine, &source, &mut sink, config, &hooks, Some(&mut attend)).expect("run");
    assert!(ends.load(Ordering::SeqCst) && sink.sent > 0);
    assert_eq!(sink.stale, 0, "of {} packets", sink.sent);
    assert!(session.finish().swaps >= SWAPS);
}
