//! Writes and reads.

use millstream_p4runtime::proto::rpc;
use millstream_p4runtime::proto::v1::write_request::Atomicity;
use millstream_p4runtime::proto::v1::{
    self, ActionProfileAction, ActionProfileActionSet, CounterData, CounterEntry, Entity, FieldMatch,
    ReadRequest, RegisterEntry, TableAction, TableEntry, entity, field_match, p4_data, table_action,
    update::Type,
};
use prost::Message as _;
use tonic::{Code, Status};

use crate::{Controller, Names, PROGRAM, TestSwitch, frame, insert, run, update};

/// Codes of a batch's updates.
fn codes(status: &Status) -> Vec<i32> {
    let status = rpc::Status::decode(status.details()).unwrap();
    let code = |detail: &prost_types::Any| v1::Error::decode(&detail.value[..]).unwrap().canonical_code;
    status.details.iter().map(code).collect()
}

async fn read(controller: &mut Controller, entity: entity::Entity) -> Vec<entity::Entity> {
    let entities = vec![Entity { entity: Some(entity) }];
    let request = ReadRequest { device_id: 1, entities, ..ReadRequest::default() };
    let mut answers = controller.client.read(request).await.unwrap().into_inner();
    let mut found = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        found.extend(answer.entities.into_iter().filter_map(|entity| entity.entity));
    }
    found
}

#[test]
fn a_batch_goes_on_behind_an_error_or_is_taken_back_whole() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let good = |to: u8| insert(names.station(&[to], names.call("forward", Some(to))));
        let bad = insert(names.station(&[9; 7], names.call("forward", Some(1))));
        let batch = vec![good(1), bad, good(2)];
        let failed = controller.write(batch.clone(), Atomicity::ContinueOnError as i32).await.unwrap_err();
        assert_eq!(codes(&failed), [0, Code::OutOfRange as i32, 0]);
        assert_eq!((switch.ports_of(&frame(1)), switch.ports_of(&frame(2))), (vec![1], vec![2]));

        let batch = vec![good(3), good(1), good(4)];
        let failed = controller.write(batch, Atomicity::DataplaneAtomic as i32).await.unwrap_err();
        let (aborted, exists) = (Code::Aborted as i32, Code::AlreadyExists as i32);
        assert_eq!(codes(&failed), [aborted, exists, aborted]);
        assert_eq!((switch.ports_of(&frame(1)), switch.ports_of(&frame(3))), (vec![1], vec![]));
    });
}

#[test]
fn a_full_table_tells_the_writer_and_loses_nothing() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let entry = |number: u8| {
            let entry = names.station(&[number], names.call("forward", Some(number)));
            insert(TableEntry { table_id: names.table("small"), ..entry })
        };
        let batch = vec![entry(1), entry(2), entry(3)];
        let failed = controller.write(batch, Atomicity::ContinueOnError as i32).await.unwrap_err();
        assert_eq!(codes(&failed), [0, 0, Code::ResourceExhausted as i32]);
        let table = TableEntry { table_id: names.table("small"), ..TableEntry::default() };
        assert_eq!(read(&mut controller, entity::Entity::TableEntry(table)).await.len(), 2);
    });
}

#[test]
fn controllers_read_what_packets_have_counted() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let entry = names.station(&[1], names.call("forward", Some(2)));
        controller.write(vec![insert(entry.clone())], 0).await.unwrap();
        (0..3).for_each(|_| assert_eq!(switch.ports_of(&frame(1)), [2]));
        let counted = TableEntry { counter_data: Some(CounterData::default()), ..entry.clone() };
        let found = read(&mut controller, entity::Entity::TableEntry(counted)).await;
        let entity::Entity::TableEntry(found) = &found[0] else { panic!("{found:?}") };
        assert_eq!(found.counter_data, Some(CounterData { packet_count: 3, byte_count: 180 }));

        // A new action keeps the counter, and the register's cells are there.
        let modified = names.station(&[1], names.call("forward", Some(3)));
        controller.write(vec![update(Type::Modify, entity::Entity::TableEntry(modified))], 0).await.unwrap();
        assert_eq!(switch.ports_of(&frame(1)), [3]);
        let register = read(&mut controller, entity::Entity::RegisterEntry(RegisterEntry::default())).await;
        let entity::Entity::RegisterEntry(cell) = &register[0] else { panic!("{register:?}") };
        let data = cell.data.as_ref().unwrap().data.as_ref();
        assert_eq!((register.len(), data), (4, Some(&p4_data::Data::Bitstring(vec![4]))));
        let counters = read(&mut controller, entity::Entity::CounterEntry(CounterEntry::default())).await;
        let entity::Entity::CounterEntry(cell) = &counters[1] else { panic!("{counters:?}") };
        assert_eq!(cell.data, Some(CounterData { packet_count: 4, byte_count: 240 }));
    });
}

#[test]
fn an_entry_has_a_group_of_its_own_members() {
    run(async {
        let (switch, names) = (TestSwitch::start(Some(PROGRAM)), Names::new());
        let mut controller = switch.primary(1).await;
        let member = |port: u8| ActionProfileAction {
            action: Some(names.call("forward", Some(port))),
            weight: 1,
            ..ActionProfileAction::default()
        };
        let entry = |ports: &[u8]| {
            let set = ActionProfileActionSet {
                action_profile_actions: ports.iter().map(|port| member(*port)).collect(),
                ..ActionProfileActionSet::default()
            };
            let ternary = field_match::Ternary { value: vec![9], mask: vec![0xff] };
            let kind = Some(field_match::FieldMatchType::Ternary(ternary));
            TableEntry {
                table_id: names.table("spread"),
                r#match: vec![FieldMatch { field_id: 1, field_match_type: kind }],
                priority: 1,
                action: Some(TableAction { r#type: Some(table_action::Type::ActionProfileActionSet(set)) }),
                ..TableEntry::default()
            }
        };
        controller.write(vec![insert(entry(&[5, 6]))], 0).await.unwrap();
        let ports: std::collections::BTreeSet<u64> =
            (0..64).flat_map(|to| switch.ports_of(&frame(to))).collect();
        assert_eq!(ports, [5, 6].into());
        let modified = update(Type::Modify, entity::Entity::TableEntry(entry(&[7])));
        controller.write(vec![modified], 0).await.unwrap();
        let ports: std::collections::BTreeSet<u64> =
            (0..16).flat_map(|to| switch.ports_of(&frame(to))).collect();
        assert_eq!(ports, [7].into());
        let gone = update(Type::Delete, entity::Entity::TableEntry(entry(&[7])));
        controller.write(vec![gone], 0).await.unwrap();
        assert_eq!(switch.ports_of(&frame(1)), [0; 0]);
    });
}
