//! Updates and reads of entities, as text, with the codes that controllers get.

mod batches;
mod others;
mod profiles;
mod reads;
mod tables;

use std::ops::ControlFlow;
use std::sync::Arc;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4runtime::entities::{EntityStore, ErrorKind, PipelineError, PipelineIndex};
use millstream_p4runtime::proto::config::v1::P4Info;
use millstream_p4runtime::proto::v1::write_request::Atomicity;
use millstream_p4runtime::proto::v1::{self, Entity, Update};
use millstream_p4runtime::{
    MessageFormat, ProgramDescription, decode_message, describe_program, encode_message,
};
use prost::Message;

struct TextLoader;

impl SourceLoader for TextLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        (path == "program.p4").then(|| include_str!("../programs/entities.p4").to_owned())
    }
}

pub(crate) fn description() -> ProgramDescription {
    let program = compile("program.p4", &mut TextLoader, &CompileOptions::default());
    let errors: Vec<String> =
        program.diagnostics.iter().map(|d| d.render(&program.sources).to_string()).collect();
    describe_program(&program).unwrap_or_else(|error| panic!("{error}: {}", errors.join("\n")))
}

pub(crate) fn info() -> P4Info {
    description().info
}

pub(crate) fn store() -> EntityStore {
    EntityStore::new(Arc::new(PipelineIndex::new(&info()).unwrap()))
}

/// Ids in texts: `T1` is the table with the number 1, and so on.
pub(crate) fn expanded(text: &str) -> String {
    let kinds = [('T', 0x02), ('A', 0x01), ('V', 0x03), ('P', 0x11), ('C', 0x12), ('M', 0x14), ('R', 0x16)];
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(": ") {
        let (before, after) = rest.split_at(at + 2);
        expanded.push_str(before);
        rest = after;
        let kind = kinds.iter().find(|(letter, _)| after.starts_with(*letter));
        let digit = after.as_bytes().get(1).copied().filter(u8::is_ascii_digit);
        if let (Some((_, prefix)), Some(digit)) = (kind, digit) {
            expanded.push_str(&((prefix << 24) + u32::from(digit - b'0')).to_string());
            rest = &after[2..];
        }
    }
    expanded + rest
}

pub(crate) fn entity(text: &str) -> Entity {
    decode_message(expanded(text).as_bytes(), MessageFormat::Text)
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// An update: `+`, `=` or `-` for its type, and the entity.
pub(crate) fn update(text: &str) -> Update {
    let (kind, text) = text.split_at(1);
    let kind = match kind {
        "+" => v1::update::Type::Insert,
        "=" => v1::update::Type::Modify,
        "-" => v1::update::Type::Delete,
        _ => v1::update::Type::Unspecified,
    };
    Update { r#type: kind.into(), entity: Some(entity(text)) }
}

pub(crate) fn write(store: &mut EntityStore, text: &str) -> Result<(), ErrorKind> {
    store.write(&update(text)).map_err(|error| error.kind)
}

/// Writes entities that are accepted.
pub(crate) fn written(updates: &[&str]) -> EntityStore {
    let mut store = store();
    for text in updates {
        write(&mut store, text).unwrap_or_else(|kind| panic!("{kind:?}: {text}"));
    }
    store
}

pub(crate) fn read(store: &EntityStore, text: &str) -> Result<Vec<Entity>, ErrorKind> {
    let mut entities = Vec::new();
    let mut emit = |entity| {
        entities.push(entity);
        ControlFlow::Continue(())
    };
    store.read(&entity(text), &mut emit).map_err(|error| error.kind)?;
    Ok(entities)
}

/// Reads one entity and compares it.
pub(crate) fn assert_reads(store: &EntityStore, request: &str, expected: &[&str]) {
    let found = read(store, request).unwrap_or_else(|kind| panic!("{kind:?}: {request}"));
    let text = |entity: &Entity| {
        let text = String::from_utf8(encode_message(entity, MessageFormat::Text).unwrap()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    };
    let found: Vec<String> = found.iter().map(text).collect();
    let expected: Vec<String> = expected.iter().map(|expected| text(&entity(expected))).collect();
    assert_eq!(found, expected, "{request}");
}

/// State of the whole store as bytes.
pub(crate) fn everything(store: &EntityStore) -> Vec<u8> {
    let requests = [
        "table_entry { counter_data {} meter_config {} }",
        "table_entry { is_default_action: true counter_data {} }",
        "action_profile_member {}",
        "action_profile_group {}",
        "counter_entry {}",
        "meter_entry {}",
        "register_entry {}",
        "value_set_entry {}",
        "digest_entry {}",
        "packet_replication_engine_entry { multicast_group_entry {} }",
        "packet_replication_engine_entry { clone_session_entry {} }",
    ];
    let entities = requests.iter().flat_map(|request| read(store, request).unwrap());
    entities.flat_map(|entity| entity.encode_length_delimited_to_vec()).collect()
}

pub(crate) const ENTRY: &str = r#"table_entry { table_id: T1 match { field_id: 1 exact { value: "\001" } }
    match { field_id: 2 exact { value: "eth0" } } action { action { action_id: A1 } } }"#;

pub(crate) fn set_action(values: &str) -> String {
    format!("action {{ action {{ action_id: A2 {values} }} }}")
}

pub(crate) const MEMBER: &str = r#"action_profile_member { action_profile_id: P1 member_id: 7
    action { action_id: A2 params { param_id: 1 value: "a" } params { param_id: 2 value: "p" } } }"#;
pub(crate) const GROUP: &str = "action_profile_group { action_profile_id: P1 group_id: 7 max_size: 8
    members { member_id: 7 weight: 2 } }";

pub(crate) fn grouped(value: &str, action: &str) -> String {
    format!(
        "table_entry {{ table_id: T5 match {{ field_id: 1 exact {{ value: \"{value}\" }} }}
            action {{ {action} }} }}"
    )
}
