//! Many routes, written while packets run: no packet is lost, and none sees an old entry once a write has
//! returned.
//!
//! `MILLSTREAM_ROUTES=N` writes N routes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use millstream_p4runtime::proto::v1::{
    Action, FieldMatch, TableAction, TableEntry, Update, ValueSetEntry, ValueSetMember, action, entity,
    field_match, table_action, update::Type,
};
use millstream_p4runtime_server::{ControlProgram, SwitchHandle};
use millstream_rng::Rng;

use crate::{Names, TestSwitch, run, update};

/// The program with objects of all kinds.
const PROGRAM: &str = include_str!("../programs/entities.p4");
/// Updates of a batch.
const BATCH: usize = 1000;

/// Address of a route of 24 bits.
fn address(number: usize) -> [u8; 4] {
    (0x0100_0000 + ((number as u32) << 8)).to_be_bytes()
}

/// Port of a route, before and after it is changed.
fn port(number: usize, is_changed: bool) -> u8 {
    2 + (number % 100) as u8 + if is_changed { 100 } else { 0 }
}

fn route(names: &Names, number: usize, kind: Type) -> Update {
    let prefix = field_match::Lpm { value: address(number).to_vec(), prefix_len: 24 };
    let value = vec![port(number, kind == Type::Modify)];
    let call =
        Action { action_id: names.action("forward"), params: vec![action::Param { param_id: 1, value }] };
    let entry = TableEntry {
        table_id: names.table("routes"),
        r#match: vec![FieldMatch {
            field_id: 1,
            field_match_type: Some(field_match::FieldMatchType::Lpm(prefix)),
        }],
        action: Some(TableAction { r#type: Some(table_action::Type::Action(call)) }),
        ..TableEntry::default()
    };
    update(kind, entity::Entity::TableEntry(entry))
}

/// Makes the parser take IPv4.
fn types(names: &Names) -> Update {
    let sets = &names.program.description.info.value_sets;
    let exact = field_match::Exact { value: vec![8, 0] };
    let kind = Some(field_match::FieldMatchType::Exact(exact));
    let member = ValueSetMember { r#match: vec![FieldMatch { field_id: 1, field_match_type: kind }] };
    let value_set_id = sets[0].preamble.as_ref().unwrap().id;
    update(Type::Modify, entity::Entity::ValueSetEntry(ValueSetEntry { value_set_id, members: vec![member] }))
}

/// Routes that are there for certain, and routes of which a write has begun.
#[derive(Default)]
struct Progress {
    inserted: AtomicUsize,
    changing: AtomicUsize,
    changed: AtomicUsize,
    ends: AtomicBool,
}

/// Sends packets to routes that exist until the end; returns their number.
fn traffic(handle: &SwitchHandle, progress: &Progress) -> usize {
    let (mut random, mut sent) = (Rng::new(1), 0);
    let mut frame = vec![0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0];
    frame.extend([10, 0, 0, 1, 0, 0, 0, 0]);
    while !progress.ends.load(Ordering::SeqCst) {
        let (inserted, changed) =
            (progress.inserted.load(Ordering::SeqCst), progress.changed.load(Ordering::SeqCst));
        if inserted == 0 {
            continue;
        }
        let number = random.below(inserted as u64) as usize;
        frame[30..34].copy_from_slice(&address(number));
        let moved = handle.move_packets(|switch| switch.receive(1, &frame).unwrap().sent).unwrap();
        let changing = progress.changing.load(Ordering::SeqCst);
        let ports: Vec<u64> = moved.iter().map(|packet| packet.port).collect();
        let is_new = ports == [u64::from(port(number, true))];
        assert!(is_new || ports == [u64::from(port(number, false))], "lost: {number} {ports:?}");
        assert!(is_new || number >= changed, "stale: {number} of {changed}");
        assert!(!is_new || number < changing, "early: {number} of {changing}");
        sent += 1;
    }
    sent
}

#[test]
fn routes_are_loaded_while_packets_run_and_none_is_lost_or_stale() {
    let routes = std::env::var("MILLSTREAM_ROUTES").ok().and_then(|n| n.parse().ok()).unwrap_or(4000);
    run(async {
        let names = Names { program: ControlProgram::from_config(PROGRAM.as_bytes()).unwrap().into() };
        let switch = TestSwitch::start(Some(PROGRAM));
        let mut controller = switch.primary(1).await;
        controller.write(vec![types(&names)], 0).await.unwrap();
        let (progress, handle) = (std::sync::Arc::new(Progress::default()), switch.handle.clone());
        let shared = std::sync::Arc::clone(&progress);
        let moving = std::thread::spawn(move || traffic(&handle, &shared));
        for first in (0..routes).step_by(BATCH) {
            let last = routes.min(first + BATCH);
            let batch = (first..last).map(|number| route(&names, number, Type::Insert)).collect();
            controller.write(batch, 0).await.unwrap();
            progress.inserted.store(last, Ordering::SeqCst);
        }
        for first in (0..routes).step_by(BATCH) {
            let last = routes.min(first + BATCH);
            progress.changing.store(last, Ordering::SeqCst);
            let batch = (first..last).map(|number| route(&names, number, Type::Modify)).collect();
            controller.write(batch, 2).await.unwrap();
            progress.changed.store(last, Ordering::SeqCst);
        }
        progress.ends.store(true, Ordering::SeqCst);
        let sent = moving.join().unwrap();
        println!("routes: {routes}, packets: {sent}");
        assert!(sent > 0);
        let sizes = switch.handle.control(|switch| switch.table_sizes()).unwrap();
        assert!(
            sizes.iter().any(|(name, size)| name.ends_with("routes") && *size == routes as u64),
            "{sizes:?}"
        );
    });
}
