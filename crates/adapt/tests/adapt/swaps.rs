//! Swaps under load, and code that is refused.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use millstream_adapt::{AdaptSession, AdaptSettings, PacketModel};
use millstream_interp::MapKind;
use millstream_native::{ArrivalMetadata, InstallError, PacketBatch, VariantCode, VariantOptions};
use millstream_native_io::{PacketSink, ReplaySource, RunConfig, WorkerHooks, run_by};

use crate::table::{VALUE, engine, frame, number, set, value};
use crate::{run_frames, run_until};

const SWAPS: u64 = 1_000;

/// Counts sent packets by their value.
#[derive(Default)]
struct ValueCounter(BTreeMap<u64, u64>);

impl PacketSink for ValueCounter {
    fn send(&mut self, packet: &[u8], _: (u64, ArrivalMetadata), _: u32) -> io::Result<()> {
        *self.0.entry(number(packet, VALUE)).or_default() += 1;
        Ok(())
    }
}

/// Code is installed, replaced and withdrawn while two workers run: each packet is sent once, and has its value.
#[test]
fn swaps_lose_no_packet() {
    let mut engine = engine(MapKind::Hash, 64, 2);
    (0..64).for_each(|key| set(&mut engine, key, u64::from(key) + 100));
    let slot = engine.open_code_slot(&[0]).expect("adaptable");
    let compile = || {
        let builder = slot.builder();
        Arc::new(builder.compile(builder.module().clone(), &VariantOptions::default()).expect("compiled"))
    };
    let forms: [Arc<VariantCode>; 2] = [compile(), compile()];
    let mut frames: Vec<Vec<u8>> = (0..64).map(frame).collect();
    for (number, frame) in frames.iter_mut().enumerate() {
        // Flows of several workers.
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[40] = number as u8;
    }
    let order: Vec<u32> = (0..64).collect();
    let (swaps, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut sink = ValueCounter::default();
    let ran = thread::scope(|scope| {
        scope.spawn(|| {
            while swaps.load(Ordering::SeqCst) < SWAPS {
                for form in &forms {
                    slot.install(Arc::clone(form), &[(0, slot.take_writes().1[0])]).expect("nobody writes");
                    swaps.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                }
                slot.withdraw();
            }
            ends.store(true, Ordering::SeqCst);
        });
        let mut total = (0, 0);
        while !ends.load(Ordering::SeqCst) {
            let source = ReplaySource { frames: &frames, order: &order, count: 64_000, stream: None };
            let config = RunConfig { batch: 32, ingress: 1 };
            let hooks = WorkerHooks { enter: &|_| Ok(()) };
            let ran = run_by(&mut engine, &source, &mut sink, config, &hooks, None).expect("run");
            assert!(ran.account.adds_up());
            total = (total.0 + ran.account.received, total.1 + ran.account.sent());
        }
        total
    });
    assert!(swaps.load(Ordering::SeqCst) >= SWAPS);
    assert_eq!(ran.0, ran.1, "received and sent");
    assert_eq!(sink.0.values().sum::<u64>(), ran.0);
    assert!(sink.0.keys().eq((100..164).collect::<Vec<u64>>().iter()));
    assert!(sink.0.values().all(|count| *count == ran.0 / 64), "{:?}", sink.0);
}

#[test]
fn code_of_another_engine_and_of_old_contents_is_refused() {
    let [mut one, mut other] = [(); 2].map(|()| engine(MapKind::Hash, 2, 1));
    let [slot, foreign] =
        [&mut one, &mut other].map(|engine| engine.open_code_slot(&[0]).expect("adaptable"));
    let compile = |slot: &millstream_native::CodeSlot| {
        Arc::new(
            slot.builder()
                .compile(slot.builder().module().clone(), &VariantOptions::default())
                .expect("compiled"),
        )
    };
    assert_eq!(slot.install(compile(&foreign), &[]), Err(InstallError::Foreign));
    set(&mut one, 1, 1);
    assert_eq!(slot.install(compile(&slot), &[(0, 0)]), Err(InstallError::Stale(0)));
    assert!(!slot.is_specialized());
    assert_eq!(slot.install(compile(&slot), &[(0, 1)]), Ok(()));
    assert!(slot.is_specialized());
    set(&mut one, 1, 2);
    assert!(slot.is_stale() && !slot.is_specialized());
}

/// Each schedule takes its turn, and every packet gets its value meanwhile.
#[test]
fn schedules_are_tried_on_live_packets_and_change_none() {
    let mut engine = engine(MapKind::Hash, 1024, 1);
    (0..1024).for_each(|key| set(&mut engine, key, u64::from(key) + 1));
    let settings = AdaptSettings {
        tries_schedules: true,
        trial_time: crate::LIMIT,
        ..AdaptSettings::without_limits(PacketModel::Verdicts)
    };
    let session = AdaptSession::start(&mut engine, settings).expect("adaptable");
    let frames: Vec<Vec<u8>> = (0..64).map(|n| frame(n * 16)).collect();
    let mut batch = PacketBatch::new(frames.len()).expect("memory");
    let run = || {
        run_frames(&mut engine, &mut batch, &frames);
        (0..64).for_each(|at| assert_eq!(value(&batch, at), Some(16 * at as u64 + 1)));
    };
    let status = run_until(&session, run, |status| status.schedule.is_some());
    assert!(status.schedules_tried > 2 && status.differences == 0, "{status:?}");
}
