//! Broken messages and programs: nothing panics, a batch that fails changes nothing, and reads end.
//!
//! `MILLSTREAM_HOSTILE_RUNS=N` changes each message N times.

use std::ops::ControlFlow;
use std::sync::Arc;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4runtime::describe_program;
use millstream_p4runtime::entities::{EntityStore, PipelineIndex};
use millstream_p4runtime::proto::config::v1::P4Info;
use millstream_p4runtime::proto::config::v1::match_field::{self, MatchType};
use millstream_p4runtime::proto::v1::write_request::Atomicity;
use millstream_p4runtime::proto::v1::{self, Entity, Update, WriteRequest, entity, update};
use millstream_rng::Rng;
use prost::Message;

/// A number below `limit`, or 0 if that is 0.
fn below(random: &mut Rng, limit: usize) -> usize {
    random.below(limit.max(1) as u64) as usize
}

/// Changes, removes, repeats or inserts some bytes.
fn damaged(random: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=below(random, 4) {
        let at = below(random, bytes.len());
        let value = below(random, 256) as u8;
        match below(random, 4) {
            0 if at < bytes.len() => bytes[at] = value,
            1 if at < bytes.len() => _ = bytes.remove(at),
            2 => bytes.insert(at, value),
            _ => {
                let end = (at + below(random, 16)).min(bytes.len());
                bytes.extend_from_within(at..end);
            }
        }
    }
    bytes
}

fn runs() -> usize {
    std::env::var("MILLSTREAM_HOSTILE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2_000)
}

/// One program.
struct TextLoader<'t>(&'t str);

impl SourceLoader for TextLoader<'_> {
    fn load(&mut self, path: &str) -> Option<String> {
        (path == "program.p4").then(|| self.0.to_owned())
    }
}

const PROGRAM: &str = include_str!("programs/entities.p4");

fn info() -> P4Info {
    let program = compile("program.p4", &mut TextLoader(PROGRAM), &CompileOptions::default());
    describe_program(&program).unwrap().info
}

/// Empty requests, which select all entities of a kind.
fn all_entities() -> Vec<Entity> {
    use v1::packet_replication_engine_entry::Type;
    let replication = |kind| {
        let entry = v1::PacketReplicationEngineEntry { r#type: Some(kind) };
        entity::Entity::PacketReplicationEngineEntry(entry)
    };
    let kinds = [
        entity::Entity::TableEntry(v1::TableEntry::default()),
        entity::Entity::TableEntry(v1::TableEntry { is_default_action: true, ..Default::default() }),
        entity::Entity::ActionProfileMember(v1::ActionProfileMember::default()),
        entity::Entity::ActionProfileGroup(v1::ActionProfileGroup::default()),
        entity::Entity::MeterEntry(v1::MeterEntry::default()),
        entity::Entity::DirectMeterEntry(v1::DirectMeterEntry::default()),
        entity::Entity::CounterEntry(v1::CounterEntry::default()),
        entity::Entity::DirectCounterEntry(v1::DirectCounterEntry::default()),
        entity::Entity::ValueSetEntry(v1::ValueSetEntry::default()),
        entity::Entity::RegisterEntry(v1::RegisterEntry::default()),
        entity::Entity::DigestEntry(v1::DigestEntry::default()),
        replication(Type::MulticastGroupEntry(v1::MulticastGroupEntry::default())),
        replication(Type::CloneSessionEntry(v1::CloneSessionEntry::default())),
    ];
    kinds.into_iter().map(|kind| Entity { entity: Some(kind) }).collect()
}

/// State of a store, of each kind at most 100 entities.
fn state(store: &EntityStore) -> Vec<Entity> {
    let mut entities = Vec::new();
    for request in all_entities() {
        let mut count = 0;
        let mut emit = |entity| {
            entities.push(entity);
            count += 1;
            if count < 100 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        store.read(&request, &mut emit).unwrap();
    }
    entities
}

/// Entities that the program allows, with ids of P4Info and some that it does not have.
fn random_update(random: &mut Rng, info: &P4Info) -> Update {
    let table = &info.tables[below(random, info.tables.len())];
    let bytes = vec![below(random, 16) as u8; below(random, 3)];
    let prefix_len = below(random, 34) as i32;
    let matches = table.match_fields.iter().map(|field| {
        use v1::field_match::FieldMatchType;
        let value = bytes.clone();
        let Some(match_field::Match::MatchType(number)) = field.r#match else { return Default::default() };
        let kind = match MatchType::try_from(number) {
            Ok(MatchType::Exact) => FieldMatchType::Exact(v1::field_match::Exact { value }),
            Ok(MatchType::Lpm) => FieldMatchType::Lpm(v1::field_match::Lpm { value, prefix_len }),
            Ok(MatchType::Ternary) => {
                FieldMatchType::Ternary(v1::field_match::Ternary { mask: value.clone(), value })
            }
            Ok(MatchType::Range) => {
                FieldMatchType::Range(v1::field_match::Range { low: value.clone(), high: value })
            }
            _ => FieldMatchType::Optional(v1::field_match::Optional { value }),
        };
        v1::FieldMatch { field_id: field.id, field_match_type: Some(kind) }
    });
    let action = &info.actions[below(random, info.actions.len())];
    let params =
        action.params.iter().map(|param| v1::action::Param { param_id: param.id, value: bytes.clone() });
    let called = v1::Action { action_id: action.preamble.as_ref().unwrap().id, params: params.collect() };
    let id = below(random, 3) as u32;
    let kind = match below(random, 5) {
        0 => entity::Entity::ActionProfileMember(v1::ActionProfileMember {
            action_profile_id: 0x1100_0001,
            member_id: id,
            action: Some(called),
        }),
        1 => entity::Entity::ActionProfileGroup(v1::ActionProfileGroup {
            action_profile_id: 0x1100_0001,
            group_id: id,
            members: vec![v1::action_profile_group::Member { member_id: 1, weight: 1, watch_kind: None }],
            max_size: 8,
        }),
        choice => entity::Entity::TableEntry(v1::TableEntry {
            table_id: table.preamble.as_ref().unwrap().id,
            r#match: matches.collect(),
            priority: below(random, 2) as i32,
            action: Some(v1::TableAction {
                r#type: Some(match choice {
                    2 => v1::table_action::Type::ActionProfileMemberId(id),
                    3 => v1::table_action::Type::ActionProfileGroupId(id),
                    _ => v1::table_action::Type::Action(called),
                }),
            }),
            ..Default::default()
        }),
    };
    let r#type = [update::Type::Insert, update::Type::Modify, update::Type::Delete][below(random, 3)].into();
    Update { r#type, entity: Some(Entity { entity: Some(kind) }) }
}

#[test]
fn batches_that_fail_change_nothing() {
    let info = info();
    let mut random = Rng::new(1);
    let mut store = EntityStore::new(Arc::new(PipelineIndex::new(&info).unwrap()));
    let (mut succeeded, mut failed) = (0, 0);
    for _ in 0..runs() {
        let count = 1 + below(&mut random, 4);
        let updates: Vec<Update> = (0..count).map(|_| random_update(&mut random, &info)).collect();
        let before = state(&store);
        match store.write_batch(&updates, Atomicity::RollbackOnError).is_success() {
            true => succeeded += 1,
            false => {
                failed += 1;
                assert_eq!(state(&store), before);
            }
        }
    }
    assert!(succeeded > 0 && failed > 0, "{succeeded} succeeded, {failed} failed");
}

#[test]
fn damaged_requests_are_refused_or_written() {
    let info = info();
    let mut random = Rng::new(2);
    let mut store = EntityStore::new(Arc::new(PipelineIndex::new(&info).unwrap()));
    for _ in 0..runs() {
        let updates = (0..3).map(|_| random_update(&mut random, &info)).collect();
        let bytes = WriteRequest { updates, ..Default::default() }.encode_to_vec();
        let Ok(request) = WriteRequest::decode(&damaged(&mut random, &bytes)[..]) else { continue };
        let outcome = store.write_batch(&request.updates, request.atomicity());
        assert_eq!(outcome.results.len(), request.updates.len());
        assert_eq!(outcome.status().is_none(), outcome.is_success());
        for update in request.updates {
            let request = update.entity.unwrap_or_default();
            let mut count = 0;
            let mut emit = |_| {
                count += 1;
                if count < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            _ = store.read(&request, &mut emit);
        }
    }
}

#[test]
fn damaged_p4info_is_refused_or_used() {
    let bytes = info().encode_to_vec();
    let mut random = Rng::new(3);
    let mut used = 0;
    for _ in 0..runs() {
        let Ok(damaged) = P4Info::decode(&damaged(&mut random, &bytes)[..]) else { continue };
        if let Ok(index) = PipelineIndex::new(&damaged) {
            used += 1;
            state(&EntityStore::new(Arc::new(index)));
        }
    }
    assert!(used > 0);
}

#[test]
fn damaged_programs_are_described_or_refused() {
    let mut random = Rng::new(4);
    let mut described = 0;
    for _ in 0..runs() / 10 {
        let damaged = String::from_utf8_lossy(&damaged(&mut random, PROGRAM.as_bytes())).into_owned();
        let program = compile("program.p4", &mut TextLoader(&damaged), &CompileOptions::default());
        described += usize::from(describe_program(&program).is_ok());
    }
    assert!(described > 0);
}
