//! Our own data planes and configurations, adapted to their tables and traffic.

use std::time::Duration;

use millstream_adapt::{AdaptMode, AdaptSession, AdaptSettings, AdaptState, AdaptStatus, PacketModel};
use millstream_interp::MapKind;
use millstream_lab::workload::BuiltinWorkload;
use millstream_native::{NativeEngine, NativeOptions, PacketBatch, VariantSupport};
use millstream_object::Object;
use millstream_programs::traffic::FlowLocality;

use crate::table::{engine, frame, set, value};
use crate::{run_frames, run_until};

/// Packets of a batch.
const BATCH: usize = 32;

/// Runs a program with its tables and traffic until forms of it were judged.
fn adapt_builtin(name: &str, locality: FlowLocality) -> AdaptStatus {
    let known: BuiltinWorkload = format!("builtin:{name}").parse().expect("known");
    let load = known.workload([1, 2], 200, locality).expect("it fits");
    let object = Object::parse(known.program.name, known.program.object).expect("our own");
    let options = NativeOptions { variants: VariantSupport::Installed, ..NativeOptions::default() };
    let mut engine = NativeEngine::of_object(&object, None, &options).expect("compiled");
    for entry in &load.entries {
        let map = engine.map(entry.map).expect("its map");
        assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
    }
    let session = AdaptSession::start(&mut engine, AdaptSettings::without_limits(PacketModel::Verdicts))
        .expect("adaptable");
    let order = load.flows.sequence(3, 4_096);
    let mut batch = PacketBatch::new(BATCH).expect("memory");
    let mut chunks = order.chunks(BATCH).cycle();
    let mut run = || {
        let chunk = chunks.next().expect("endless");
        let frames: Vec<Vec<u8>> = chunk.iter().map(|at| load.flows.packets[*at as usize].clone()).collect();
        run_frames(&mut engine, &mut batch, &frames);
    };
    run_until(&session, &mut run, |status| status.compared > 0 || status.failure.is_some());
    let status = session.status();
    assert_eq!(status.failure, None, "{name}");
    session.finish()
}

#[test]
fn specialised_data_planes_treat_sampled_packets_as_the_originals_do() {
    for name in ["router:20", "switch:64", "firewall:20", "nat:100", "balancer:3"] {
        let status = adapt_builtin(name, FlowLocality::HIGH);
        assert!(status.compared > 0, "{name}: {status:?}");
        assert_eq!((status.differences, status.compilation.compile_failures), (0, 0), "{name}: {status:?}");
    }
}

/// An engine with a small table, a session that adapts it, and a batch of packets of one key.
struct SmallTable {
    engine: NativeEngine,
    session: AdaptSession,
    batch: PacketBatch,
}

impl SmallTable {
    /// Entry 1 has this value.
    fn new(value: u64, settings: AdaptSettings) -> SmallTable {
        let mut engine = engine(MapKind::Hash, 2, 1);
        set(&mut engine, 1, value);
        let session = AdaptSession::start(&mut engine, settings).expect("adaptable");
        SmallTable { engine, session, batch: PacketBatch::new(BATCH).expect("memory") }
    }

    /// Sends packets, each batch behind `before`, until the status is so.
    fn run_until(
        &mut self,
        mut before: impl FnMut(&mut NativeEngine),
        is_done: impl Fn(&AdaptStatus) -> bool,
    ) -> AdaptStatus {
        let SmallTable { engine, session, batch } = self;
        let frames = vec![frame(1); BATCH];
        let run = || {
            before(engine);
            run_frames(engine, batch, &frames);
        };
        run_until(session, run, is_done)
    }
}

#[test]
fn nothing_is_made_without_packets() {
    let mut engine = engine(MapKind::Hash, 2, 1);
    let session = AdaptSession::start(&mut engine, AdaptSettings::without_limits(PacketModel::Verdicts))
        .expect("adaptable");
    let status = run_until(&session, std::thread::yield_now, |status| status.state != AdaptState::Starting);
    assert_eq!(status.state, AdaptState::WaitingForPackets);
    let status = session.finish();
    assert_eq!((status.compilation.compiled, status.swaps, status.failure), (0, 0, None));
}

#[test]
fn forms_that_cannot_be_compiled_leave_the_program_as_it_is() {
    let passes = Some("no-such-pass".to_owned());
    let mut table = SmallTable::new(
        5,
        AdaptSettings { llvm_passes: passes, ..AdaptSettings::without_limits(PacketModel::Verdicts) },
    );
    let status = table.run_until(|_| (), |status| status.compilation.compile_failures > 0);
    assert_eq!((status.swaps, status.compilation.compiled), (0, 0));
    assert!(status.failure.is_some_and(|failure| failure.contains("no-such-pass")));
    assert!((0..BATCH).all(|at| value(&table.batch, at) == Some(5)));
}

#[test]
fn advice_is_given_and_nothing_installed() {
    let settings =
        AdaptSettings { mode: AdaptMode::Suggest, ..AdaptSettings::without_limits(PacketModel::Verdicts) };
    let status = SmallTable::new(5, settings).run_until(|_| (), |status| status.judged.is_some());
    assert_eq!((status.swaps, status.suggests), (0, true));
    assert!(status.tables.iter().any(|advice| advice.table == "table"), "{status:?}");
}

/// Hot keys of a large table follow the traffic.
#[test]
fn code_for_hot_keys_is_withdrawn_when_the_traffic_has_others() {
    let mut engine = engine(MapKind::Hash, 20_000, 1);
    (0..20_000).for_each(|key| set(&mut engine, key, u64::from(key)));
    let session = AdaptSession::start(&mut engine, AdaptSettings::without_limits(PacketModel::Verdicts))
        .expect("adaptable");
    let mut batch = PacketBatch::new(BATCH).expect("memory");
    let mut run_key = |key: u32| {
        let frames = vec![frame(key); BATCH];
        run_frames(&mut engine, &mut batch, &frames);
        assert!((0..BATCH).all(|at| value(&batch, at) == Some(u64::from(key))));
    };
    let status = run_until(&session, || run_key(17), |status| status.swaps > 0);
    assert!(status.tables.iter().any(|advice| advice.treatment == "hot keys"), "{status:?}");
    let status = run_until(&session, || run_key(4711), |status| status.withdrawals.withdrawn_shifted > 0);
    run_until(&session, || run_key(4711), |later| later.swaps > status.swaps);
}

#[test]
fn code_that_does_not_pay_is_withdrawn() {
    // Nothing pays that must take no time.
    let settings =
        AdaptSettings { most_live_time: 0.0, ..AdaptSettings::without_limits(PacketModel::Verdicts) };
    let status =
        SmallTable::new(5, settings).run_until(|_| (), |status| status.withdrawals.withdrawn_no_gain > 0);
    assert!(status.swaps > 0);
}

#[test]
fn swaps_of_a_minute_are_bounded() {
    let settings =
        AdaptSettings { swaps_per_minute: 1, ..AdaptSettings::without_limits(PacketModel::Verdicts) };
    let mut table = SmallTable::new(0, settings);
    table.run_until(|_| (), |status| status.swaps == 1);
    let mut number = 0;
    let rewrite = |engine: &mut NativeEngine| {
        number += 1;
        set(engine, 1, number);
    };
    table.run_until(rewrite, |status| status.withdrawals.withdrawn_written == 1);
    // Attempts would be made here again and again.
    let start = std::time::Instant::now();
    table.run_until(|_| (), |_| start.elapsed() >= Duration::from_millis(300));
    assert_eq!(table.session.finish().swaps, 1);
}

#[test]
fn engines_that_were_not_compiled_for_it_are_refused() {
    let object = Object::parse("router", millstream_programs::ROUTER.object).expect("our own");
    let mut engine = NativeEngine::of_object(&object, None, &NativeOptions::default()).expect("compiled");
    let refused = AdaptSession::start(&mut engine, AdaptSettings::new(PacketModel::Verdicts));
    assert!(refused.is_err_and(|error| error.to_string().contains("not compiled for adaptation")));
}
