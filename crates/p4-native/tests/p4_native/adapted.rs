//! Programs that are specialised to their tables and packets while they run, beside the interpreter, and writes of
//! controllers meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_adapt::{AdaptSession, AdaptSettings, AdaptState, AdaptStatus, PacketModel};
use millstream_native::{NativeOptions, VariantSupport};
use millstream_p4_lower::LoweredProgram;
use millstream_p4_native::{BatchError, BatchedExecutor, SEED};
use millstream_p4_switch::SwitchExecutor;
use millstream_p4runtime::proto::v1::write_request::Atomicity;
use millstream_p4runtime::proto::v1::{
    Action, Entity, FieldMatch, TableAction, TableEntry, Update, action, entity, field_match, table_action,
    update,
};
use millstream_p4runtime_server::{ControlProgram, SwitchHandle, SwitchSettings};

use crate::batches::measured_folder;
use crate::common::{files, lowered, own_folder};
use crate::comparison::{Comparison, EngineLimits};
use crate::corpus::samples;

/// Time limit for what a session does sooner or later; only a session that is stuck takes it.
const LIMIT: Duration = Duration::from_secs(240);
/// Time after which a program without an attempt counts as one for which there is nothing to specialise.
const IDLE: Duration = Duration::from_secs(5);
/// Writes of a controller.
const WRITES: u64 = 100_000;
/// Times that code is installed meanwhile.
const SWAPS: u64 = 10;

/// An engine that is adapted from its first packet on.
fn adapted(program: &LoweredProgram) -> Result<(BatchedExecutor, AdaptSession), BatchError> {
    let options =
        NativeOptions { seed: SEED, variants: VariantSupport::Installed, ..NativeOptions::default() };
    let mut executor = BatchedExecutor::new(program, &options)?;
    let session =
        AdaptSession::start(executor.engine(), AdaptSettings::without_limits(PacketModel::OpenVerdicts))
            .expect("adaptable");
    Ok((executor, session))
}

fn is_specialized(status: &AdaptStatus, before: u64) -> bool {
    status.swaps > before && status.state == AdaptState::Specialized
}

/// Runs a program until it was specialised, twice, with writes in between; returns false if there is nothing to
/// specialise.
fn compare(program: &Arc<LoweredProgram>, path: &Path) -> Result<Option<bool>, String> {
    let (executor, session) = match adapted(program) {
        Ok(made) => made,
        Err(BatchError::Refused(_)) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut both = Comparison::new(program, (program, executor), samples(path), EngineLimits::default())?;
    let mut round = 0;
    for turn in 0..2 {
        let start = Instant::now();
        (0..4).try_for_each(|_| both.request())?;
        let last = round + 8;
        // Tables that nobody may write stay in code.
        while round < last || !is_specialized(&session.status(), 0) {
            round += 1;
            both.run_batch(round)?;
            let status = session.status();
            let tries_nothing = status.state == AdaptState::Watching && status.attempted.is_none();
            if turn == 0 && tries_nothing && start.elapsed() > IDLE {
                return Ok(Some(false));
            }
            assert!(start.elapsed() < LIMIT, "{:?}", session.status());
        }
        for _ in 0..8 {
            round += 1;
            both.run_batch(round)?;
        }
        // The next batch behind a write is another program's.
        both.request()?;
        both.run_batch(round)?;
        both.compare_maps()?;
    }
    let status = session.finish();
    assert_eq!(status.differences, 0, "{status:?}");
    Ok(Some(true))
}

#[test]
fn adapted_programs_treat_packets_as_the_interpreter_does() {
    let (mut specialized, mut plain, mut differences) = (0, 0, Vec::new());
    // Programs with tables of every kind, and our own applications.
    let own = files(&own_folder(), "p4");
    let applications = files(&measured_folder(), "p4");
    for path in own.into_iter().chain(applications) {
        let small = |text: String| text.replace("#define ENTRIES", "#define ENTRIES 4096 //");
        let text = std::fs::read_to_string(&path).ok().map(small);
        let Ok(program) = lowered(Path::new("test.p4"), text) else { continue };
        match compare(&program, &path) {
            Ok(Some(true)) => specialized += 1,
            Ok(Some(false)) => plain += 1,
            Ok(None) => {}
            Err(difference) => differences.push(format!("{}: {difference}", path.display())),
        }
    }
    println!("specialised programs: {specialized}, others: {plain}");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(specialized >= 5, "too little was specialised");
}

/// A program with one table, of stations and their ports.
const PROGRAM: &str = "
#include <core.p4>
#include <v1model.p4>
header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
struct headers { ethernet_t ethernet; }
struct metadata { }
parser P(packet_in p, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start { p.extract(h.ethernet); transition accept; }
}
control V(inout headers h, inout metadata m) { apply { } }
control I(inout headers h, inout metadata m, inout standard_metadata_t s) {
    action forward(bit<9> port) { s.egress_spec = port; }
    action drop() { mark_to_drop(s); }
    table stations {
        key = { h.ethernet.dst: exact; }
        actions = { forward; drop; }
        default_action = drop();
    }
    apply { stations.apply(); }
}
control E(inout headers h, inout metadata m, inout standard_metadata_t s) { apply { } }
control C(inout headers h, inout metadata m) { apply { } }
control D(packet_out p, in headers h) { apply { p.emit(h.ethernet); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
";
/// Ports that the controller writes, one after the other.
const PORTS: u64 = 500;

/// An update of the one entry.
fn written(program: &ControlProgram, kind: update::Type, port: u64) -> Update {
    let info = &program.description.info;
    let table = info.tables[0].preamble.as_ref().unwrap().id;
    let named = |action: &&millstream_p4runtime::proto::config::v1::Action| {
        action.preamble.as_ref().is_some_and(|preamble| preamble.name.ends_with("forward"))
    };
    let action_id = info.actions.iter().find(named).unwrap().preamble.as_ref().unwrap().id;
    let value = if port < 256 { vec![port as u8] } else { (port as u16).to_be_bytes().to_vec() };
    let params = vec![action::Param { param_id: 1, value }];
    let exact = field_match::Exact { value: vec![7] };
    let field_match_type = Some(field_match::FieldMatchType::Exact(exact));
    let entry = TableEntry {
        table_id: table,
        r#match: vec![FieldMatch { field_id: 1, field_match_type }],
        action: Some(TableAction { r#type: Some(table_action::Type::Action(Action { action_id, params })) }),
        ..TableEntry::default()
    };
    Update { r#type: kind as i32, entity: Some(Entity { entity: Some(entity::Entity::TableEntry(entry)) }) }
}

/// Moves packets until the end; returns numbers of packets, of those that were lost, and of those that left by a
/// port that was written over before their batch began.
fn move_under_load(handle: &SwitchHandle, writes: &AtomicU64, ends: &AtomicBool) -> [u64; 3] {
    let frame = [&[0, 0, 0, 0, 0, 7][..], &[0; 54]].concat();
    let frames: Vec<(u64, &[u8])> = vec![(0, &frame[..]); 32];
    let mut counts = [0; 3];
    while !ends.load(Ordering::SeqCst) {
        let before = writes.load(Ordering::SeqCst);
        let moved = handle.move_packets(|switch| switch.receive_batch(&frames)).unwrap().unwrap();
        // A write may have been carried out whose end was not counted yet.
        let after = writes.load(Ordering::SeqCst) + 1;
        for moved in moved {
            counts[0] += 1;
            let Some(sent) = moved.sent.first() else {
                counts[1] += 1;
                continue;
            };
            let is_known = (before..=after).any(|write| write % PORTS == sent.port);
            counts[2] += u64::from(!is_known);
        }
    }
    counts
}

/// P4Runtime writes return when no later batch sees the old entry, in code or not.
#[test]
fn no_packet_behind_a_write_of_a_controller_sees_the_old_entry() {
    let program = Arc::new(ControlProgram::from_config(PROGRAM.as_bytes()).unwrap());
    let session: Arc<Mutex<Option<AdaptSession>>> = Arc::default();
    let kept = Arc::clone(&session);
    let factory = move |program: &Arc<LoweredProgram>| {
        let (executor, session) = adapted(program).map_err(|error| error.to_string())?;
        *kept.lock().unwrap() = Some(session);
        Ok(Box::new(executor) as Box<dyn SwitchExecutor + Send>)
    };
    let handle = SwitchHandle::new(1, Arc::new(factory), SwitchSettings::default(), Arc::new(|_| {}));
    handle.load(Arc::clone(&program)).unwrap();
    let write = |kind, number: u64| {
        let updates = [written(&program, kind, number % PORTS)];
        let outcome = handle.control(|switch| switch.write(&updates, Atomicity::ContinueOnError)).unwrap();
        assert!(outcome.results.iter().all(Result::is_ok), "{:?}", outcome.results);
    };
    write(update::Type::Insert, 0);
    let status = || session.lock().unwrap().as_ref().unwrap().status();
    let (writes, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let [moved, lost, stale] = std::thread::scope(|scope| {
        let mover = scope.spawn(|| move_under_load(&handle, &writes, &ends));
        for _ in 0..SWAPS {
            let (before, start) = (status().swaps, Instant::now());
            while !is_specialized(&status(), before) {
                assert!(start.elapsed() < LIMIT, "{:?}", status());
                std::thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..WRITES / SWAPS {
                let next = writes.load(Ordering::SeqCst) + 1;
                write(update::Type::Modify, next);
                writes.store(next, Ordering::SeqCst);
            }
        }
        ends.store(true, Ordering::SeqCst);
        mover.join().unwrap()
    });
    assert_eq!((lost, stale), (0, 0), "of {moved} packets");
    let status = session.lock().unwrap().take().unwrap().finish();
    assert!(status.swaps >= SWAPS && status.withdrawals.withdrawn_written >= SWAPS - 1, "{status:?}");
    assert_eq!(status.differences, 0, "{status:?}");
}
