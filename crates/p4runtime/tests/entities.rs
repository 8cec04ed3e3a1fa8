//! Updates and reads of entities, as text, with the codes that controllers get.

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
        (path == "program.p4").then(|| include_str!("programs/entities.p4").to_owned())
    }
}

fn description() -> ProgramDescription {
    let program = compile("program.p4", &mut TextLoader, &CompileOptions::default());
    let errors: Vec<String> =
        program.diagnostics.iter().map(|d| d.render(&program.sources).to_string()).collect();
    describe_program(&program).unwrap_or_else(|error| panic!("{error}: {}", errors.join("\n")))
}

fn info() -> P4Info {
    description().info
}

fn store() -> EntityStore {
    EntityStore::new(Arc::new(PipelineIndex::new(&info()).unwrap()))
}

/// Ids in texts: `T1` is the table with the number 1, and so on.
fn expanded(text: &str) -> String {
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

fn entity(text: &str) -> Entity {
    decode_message(expanded(text).as_bytes(), MessageFormat::Text)
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// An update: `+`, `=` or `-` for its type, and the entity.
fn update(text: &str) -> Update {
    let (kind, text) = text.split_at(1);
    let kind = match kind {
        "+" => v1::update::Type::Insert,
        "=" => v1::update::Type::Modify,
        "-" => v1::update::Type::Delete,
        _ => v1::update::Type::Unspecified,
    };
    Update { r#type: kind.into(), entity: Some(entity(text)) }
}

fn write(store: &mut EntityStore, text: &str) -> Result<(), ErrorKind> {
    store.write(&update(text)).map_err(|error| error.kind)
}

/// Writes entities that are accepted.
fn written(updates: &[&str]) -> EntityStore {
    let mut store = store();
    for text in updates {
        write(&mut store, text).unwrap_or_else(|kind| panic!("{kind:?}: {text}"));
    }
    store
}

fn read(store: &EntityStore, text: &str) -> Result<Vec<Entity>, ErrorKind> {
    let mut entities = Vec::new();
    store.read(&entity(text), &mut |entity| entities.push(entity)).map_err(|error| error.kind)?;
    Ok(entities)
}

/// Reads one entity and compares it.
fn assert_reads(store: &EntityStore, request: &str, expected: &[&str]) {
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
fn everything(store: &EntityStore) -> Vec<u8> {
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

const ENTRY: &str = r#"table_entry { table_id: T1 match { field_id: 1 exact { value: "\001" } }
    match { field_id: 2 exact { value: "eth0" } } action { action { action_id: A1 } } }"#;

fn set_action(values: &str) -> String {
    format!("action {{ action {{ action_id: A2 {values} }} }}")
}

#[test]
fn canonical_entries_are_read_as_they_were_written() {
    let store = written(&[r#"+table_entry { table_id: T1 match { field_id: 2 exact { value: "eth0" } }
        match { field_id: 1 exact { value: "\000\001" } } metadata: "note" idle_timeout_ns: 7
        meter_config { cir: 1 cburst: 2 pir: 3 pburst: 4 } counter_data { packet_count: 5 }
        action { action { action_id: A2 params { param_id: 2 value: "eth1" } params { param_id: 1 value: "\000\002" } } } }"#]);
    let entry = r#"table_entry { table_id: T1 match { field_id: 1 exact { value: "\001" } }
        match { field_id: 2 exact { value: "eth0" } } metadata: "note" idle_timeout_ns: 7
        action { action { action_id: A2 params { param_id: 1 value: "\002" } params { param_id: 2 value: "eth1" } } } "#;
    assert_reads(&store, "table_entry { table_id: T1 }", &[&format!("{entry} }}")]);
    assert_reads(
        &store,
        "table_entry { table_id: T1 meter_config {} counter_data {} time_since_last_hit {} }",
        &[&format!(
            "{entry} meter_config {{ cir: 1 cburst: 2 pir: 3 pburst: 4 }} counter_data {{ packet_count: 5 }}
            time_since_last_hit {{}} }}"
        )],
    );
}

#[test]
fn each_match_kind_has_its_rules() {
    let accepted = [
        r#"field_id: 1 lpm { value: "\012\000\000\000" prefix_len: 8 }"#,
        r#"field_id: 1 lpm { value: "\000" prefix_len: 1 }"#,
        r#"field_id: 2 ternary { value: "\020" mask: "\017\360" }"#,
        r#"field_id: 3 range { low: "\000" high: "\376" }"#,
        r#"field_id: 4 optional { value: "\017" }"#,
    ];
    let invalid = [
        r#"field_id: 1 lpm { value: "\012\001\000\000" prefix_len: 8 }"#,
        r#"field_id: 1 lpm { value: "\000" prefix_len: 0 }"#,
        r#"field_id: 1 lpm { value: "\000" prefix_len: 33 }"#,
        r#"field_id: 1 exact { value: "\000" }"#,
        r#"field_id: 1"#,
        r#"field_id: 2 ternary { value: "\000" mask: "\000" }"#,
        r#"field_id: 2 ternary { value: "\021" mask: "\020" }"#,
        r#"field_id: 3 range { low: "\002" high: "\001" }"#,
        r#"field_id: 3 range { low: "\000" high: "\377" }"#,
        r#"field_id: 5 exact { value: "\000" }"#,
        r#"field_id: 4 optional { value: "\001" } } match { field_id: 4 optional { value: "\002" }"#,
    ];
    let out_of_range = [
        r#"field_id: 2 ternary { value: "\020\000" mask: "\377\377" }"#,
        r#"field_id: 4 optional { value: "\020" }"#,
        r#"field_id: 4 optional {}"#,
    ];
    let mut store = store();
    let mut written = |matched: &str| {
        let entry = format!(
            "+table_entry {{ table_id: T2 priority: 1 match {{ {matched} }} {} }}",
            set_action(r#"params { param_id: 1 value: "\000" } params { param_id: 2 value: "p" }"#)
        );
        write(&mut store, &entry)
    };
    for matched in accepted {
        assert_eq!(written(matched), Ok(()), "{matched}");
    }
    for matched in invalid {
        assert_eq!(written(matched), Err(ErrorKind::InvalidArgument), "{matched}");
    }
    for matched in out_of_range {
        assert_eq!(written(matched), Err(ErrorKind::OutOfRange), "{matched}");
    }
}

#[test]
fn malformed_entries_are_refused() {
    let key = r#"match { field_id: 1 exact { value: "\001" } } match { field_id: 2 exact { value: "p" } }"#;
    let action = "action { action { action_id: A1 } }";
    let with = |table: &str, parts: &str| format!("+table_entry {{ table_id: {table} {parts} }}");
    let parameters = |params: &str| format!("{key} action {{ action {{ action_id: A2 {params} }} }}");
    let cases = [
        (with("9", &format!("{key} {action}")), ErrorKind::InvalidArgument),
        (with("T1", action), ErrorKind::InvalidArgument),
        (with("T1", key), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} action {{}}")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} priority: 1")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} is_const: true")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} idle_timeout_ns: -1")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} time_since_last_hit {{}}")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} meter_config {{ eburst: 1 }}")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} meter_config {{ cir: -1 }}")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} {action} meter_counter_data {{}}")), ErrorKind::Unimplemented),
        (with("T1", &format!("{key} action {{ action {{ action_id: A3 }} }}")), ErrorKind::PermissionDenied),
        (with("T1", &format!("{key} action {{ action {{ action_id: A9 }} }}")), ErrorKind::InvalidArgument),
        (with("T1", &format!("{key} action {{ action_profile_member_id: 1 }}")), ErrorKind::InvalidArgument),
        (with("T1", &parameters("")), ErrorKind::InvalidArgument),
        (
            with(
                "T1",
                &parameters(r#"params { param_id: 1 value: "\020\000" } params { param_id: 2 value: "p" }"#),
            ),
            ErrorKind::OutOfRange,
        ),
        (
            with(
                "T1",
                &parameters(
                    r#"params { param_id: 1 value: "a" } params { param_id: 2 value: "p" } params { param_id: 3 value: "p" }"#,
                ),
            ),
            ErrorKind::InvalidArgument,
        ),
        (
            with("T1", &parameters(r#"params { param_id: 1 value: "a" } params { param_id: 1 value: "b" }"#)),
            ErrorKind::InvalidArgument,
        ),
        (with("T7", "action { action { action_id: A2 } }"), ErrorKind::InvalidArgument),
        (
            with(
                "T3",
                &format!(
                    "match {{ field_id: 1 lpm {{ value: \"\\001\" prefix_len: 32 }} }} counter_data {{}} {}",
                    set_action(r#"params { param_id: 1 value: "a" } params { param_id: 2 value: "p" }"#)
                ),
            ),
            ErrorKind::InvalidArgument,
        ),
        (
            with(
                "T3",
                &format!(
                    "match {{ field_id: 1 lpm {{ value: \"\\001\" prefix_len: 32 }} }} idle_timeout_ns: 1 {}",
                    set_action(r#"params { param_id: 1 value: "a" } params { param_id: 2 value: "p" }"#)
                ),
            ),
            ErrorKind::InvalidArgument,
        ),
        (with("T2", &set_action("")), ErrorKind::InvalidArgument),
    ];
    let mut store = store();
    for (text, kind) in cases {
        assert_eq!(write(&mut store, &text), Err(kind), "{text}");
    }
    assert!(read(&store, "table_entry {}").unwrap().is_empty());
    let untyped = Update { r#type: 0, entity: Some(entity(ENTRY)) };
    assert_eq!(store.write(&untyped).unwrap_err().kind, ErrorKind::InvalidArgument);
    let empty = Update { r#type: 1, entity: Some(Entity { entity: None }) };
    assert_eq!(store.write(&empty).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn entries_are_inserted_once_and_modified_or_deleted_if_they_exist() {
    let mut store = store();
    assert_eq!(write(&mut store, &format!("={ENTRY}")), Err(ErrorKind::NotFound));
    assert_eq!(write(&mut store, &format!("-{ENTRY}")), Err(ErrorKind::NotFound));
    assert_eq!(write(&mut store, &format!("+{ENTRY}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{ENTRY}")), Err(ErrorKind::AlreadyExists));
    let modified = ENTRY.replace("A1", "A4");
    assert_eq!(write(&mut store, &format!("={modified}")), Ok(()));
    assert_reads(&store, "table_entry { table_id: T1 }", &[&modified]);
    // A deletion reads the key alone.
    let key = ENTRY.replace("action_id: A1", "action_id: A9");
    assert_eq!(write(&mut store, &format!("-{key}")), Ok(()));
    assert!(read(&store, "table_entry {}").unwrap().is_empty());
}

#[test]
fn a_full_table_refuses_entries() {
    let mut store = store();
    for value in 1..=3 {
        let entry = ENTRY.replace(r"\001", &format!(r"\00{value}"));
        assert_eq!(write(&mut store, &format!("+{entry}")), Ok(()));
    }
    let entry = ENTRY.replace(r"\001", r"\004");
    assert_eq!(write(&mut store, &format!("+{entry}")), Err(ErrorKind::ResourceExhausted));
}

#[test]
fn default_actions_are_modified_and_reset() {
    let mut store = store();
    let default = "table_entry { table_id: T1 is_default_action: true ";
    let initial = format!("{default} action {{ action {{ action_id: A3 }} }} }}");
    assert_reads(&store, &format!("{default} }}"), &[&initial]);
    let changed = format!("{default} action {{ action {{ action_id: A1 }} }} metadata: \"x\" }}");
    assert_eq!(write(&mut store, &format!("={changed}")), Ok(()));
    assert_reads(&store, &format!("{default} }}"), &[&changed]);
    assert_eq!(write(&mut store, &format!("={default} }}")), Ok(()));
    assert_reads(&store, &format!("{default} }}"), &[&initial]);
    for (text, kind) in [
        (format!("+{initial}"), ErrorKind::InvalidArgument),
        (format!("-{initial}"), ErrorKind::InvalidArgument),
        (format!("={default} priority: 1 }}"), ErrorKind::InvalidArgument),
        (format!("={default} idle_timeout_ns: 1 }}"), ErrorKind::InvalidArgument),
        (
            format!("={default} match {{ field_id: 1 exact {{ value: \"a\" }} }} }}"),
            ErrorKind::InvalidArgument,
        ),
        (format!("={default} action {{ action {{ action_id: A4 }} }} }}"), ErrorKind::PermissionDenied),
        (format!("={default} action {{ action_profile_member_id: 1 }} }}"), ErrorKind::InvalidArgument),
        ("=table_entry { table_id: T3 is_default_action: true }".into(), ErrorKind::PermissionDenied),
        ("=table_entry { table_id: T5 is_default_action: true }".into(), ErrorKind::PermissionDenied),
    ] {
        assert_eq!(write(&mut store, &text), Err(kind), "{text}");
    }
}

#[test]
fn constant_tables_refuse_entries() {
    let mut store = store();
    let entry = r#"table_entry { table_id: T4 match { field_id: 1 exact { value: "\002" } } action { action { action_id: A2 } } }"#;
    assert_eq!(write(&mut store, &format!("+{entry}")), Err(ErrorKind::PermissionDenied));
    assert_eq!(write(&mut store, &format!("-{entry}")), Err(ErrorKind::PermissionDenied));
}

#[test]
fn entries_of_the_program_are_installed_and_some_are_constant() {
    let entries = description().entries.updates;
    let mut store = store();
    store.install(&entries).unwrap();
    let key = r#"table_entry { table_id: T4 match { field_id: 1 exact { value: "\001" } } "#;
    let no_action = "action { action { action_id: 21257015 } }";
    assert_reads(&store, "table_entry { table_id: T4 }", &[&format!("{key} {no_action} is_const: true }}")]);
    assert_eq!(write(&mut store, &format!("={key} }}")), Ok(()));
    assert_eq!(write(&mut store, &format!("={key} {no_action} }}")), Err(ErrorKind::PermissionDenied));
    let seeded = |value: u32, priority: u32| {
        format!(
            "table_entry {{ table_id: T8 match {{ field_id: 1 ternary {{ value: \"\\00{value}\" mask: \"\\007\" }} }}
            priority: {priority} {no_action} "
        )
    };
    let (constant, other) = (seeded(1, 9), seeded(2, 8));
    let expected = [format!("{constant} is_const: true }}"), format!("{other} }}")];
    assert_reads(&store, "table_entry { table_id: T8 }", &[&expected[0], &expected[1]]);
    assert_eq!(write(&mut store, &format!("-{constant} }}")), Err(ErrorKind::PermissionDenied));
    assert_eq!(write(&mut store, &format!("-{other} }}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{other} }}")), Ok(()));
    assert_eq!(store.install(&entries).unwrap_err().kind, ErrorKind::AlreadyExists);
    let other_entity = [update("=counter_entry { counter_id: C1 }")];
    assert_eq!(store.install(&other_entity).unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[test]
fn reads_select_by_table_key_action_priority_and_metadata() {
    let params = r#"params { param_id: 1 value: "a" } params { param_id: 2 value: "p" }"#;
    let ternary = |value: &str, priority: u32, metadata: &str| {
        format!(
            "table_entry {{ table_id: T2 match {{ field_id: 2 ternary {{ value: \"{value}\" mask: \"\\017\" }} }}
            priority: {priority} metadata: \"{metadata}\" {} }}",
            set_action(params)
        )
    };
    let (a, b, c) = (ternary(r"\001", 1, "m"), ternary(r"\001", 2, "n"), ternary(r"\002", 1, "n"));
    let store = written(&[&format!("+{ENTRY}"), &format!("+{c}"), &format!("+{b}"), &format!("+{a}")]);
    assert_reads(&store, "table_entry {}", &[ENTRY, &a, &b, &c]);
    assert_reads(&store, "table_entry { priority: 2 }", &[ENTRY, &a, &b, &c]);
    assert_reads(&store, "table_entry { table_id: T2 }", &[&a, &b, &c]);
    assert_reads(&store, "table_entry { table_id: T2 priority: 1 }", &[&a, &c]);
    assert_reads(&store, "table_entry { table_id: T2 metadata: \"n\" }", &[&b, &c]);
    let key = "table_entry { table_id: T2 match { field_id: 2 ternary { value: \"\\001\" mask: \"\\017\" } }";
    assert_reads(&store, &format!("{key} }}"), &[&a, &b]);
    assert_reads(&store, &format!("{key} priority: 2 }}"), &[&b]);
    assert_reads(&store, &format!("{key} priority: 3 }}"), &[]);
    assert_reads(&store, "table_entry { table_id: T1 action { action { action_id: A1 } } }", &[ENTRY]);
    assert_reads(&store, "table_entry { table_id: T1 action { action { action_id: A2 } } }", &[]);
    assert_eq!(read(&store, "table_entry { table_id: 5 }"), Err(ErrorKind::InvalidArgument));
    assert_eq!(
        store.read(&Entity { entity: None }, &mut |_| {}).unwrap_err().kind,
        ErrorKind::InvalidArgument
    );
}

#[test]
fn direct_counters_and_meters_belong_to_entries() {
    let mut store = written(&[&format!("+{ENTRY}")]);
    let key = r#"table_entry { table_id: T1 match { field_id: 1 exact { value: "\001" } }
        match { field_id: 2 exact { value: "eth0" } } }"#;
    let other = key.replace("eth0", "eth1");
    let counter = format!("direct_counter_entry {{ {key} data {{ byte_count: 3 }} }}");
    assert_eq!(write(&mut store, &format!("={counter}")), Ok(()));
    assert_reads(&store, &format!("direct_counter_entry {{ {key} }}"), &[&counter]);
    assert_reads(&store, "direct_counter_entry { table_entry { table_id: T1 } }", &[&counter]);
    assert_reads(&store, "direct_counter_entry {}", &[&counter]);
    // Without data, nothing changes.
    assert_eq!(write(&mut store, &format!("=direct_counter_entry {{ {key} }}")), Ok(()));
    assert_reads(&store, "direct_counter_entry {}", &[&counter]);
    let meter = format!("direct_meter_entry {{ {key} config {{ cir: 1 pir: 2 }} }}");
    assert_eq!(write(&mut store, &format!("={meter}")), Ok(()));
    assert_reads(&store, "direct_meter_entry {}", &[&meter]);
    assert_eq!(write(&mut store, &format!("=direct_meter_entry {{ {key} }}")), Ok(()));
    assert_reads(&store, "direct_meter_entry {}", &[&format!("direct_meter_entry {{ {key} }}")]);
    for (text, kind) in [
        (format!("+{counter}"), ErrorKind::InvalidArgument),
        (format!("-{meter}"), ErrorKind::InvalidArgument),
        (format!("=direct_counter_entry {{ {other} }}"), ErrorKind::NotFound),
        ("=direct_counter_entry {}".into(), ErrorKind::InvalidArgument),
        (
            "=direct_meter_entry { table_entry { table_id: T7 is_default_action: true } }".into(),
            ErrorKind::InvalidArgument,
        ),
        (format!("=direct_meter_entry {{ {key} counter_data {{}} }}"), ErrorKind::Unimplemented),
    ] {
        assert_eq!(write(&mut store, &text), Err(kind), "{text}");
    }
    assert_eq!(read(&store, &format!("direct_counter_entry {{ {other} }}")), Err(ErrorKind::NotFound));
    let none = "direct_meter_entry { table_entry { table_id: T2 } }";
    assert_eq!(read(&store, none), Err(ErrorKind::InvalidArgument));
}

const MEMBER: &str = r#"action_profile_member { action_profile_id: P1 member_id: 7
    action { action_id: A2 params { param_id: 1 value: "a" } params { param_id: 2 value: "p" } } }"#;
const GROUP: &str = "action_profile_group { action_profile_id: P1 group_id: 7 max_size: 8 members { member_id: 7 weight: 2 } }";

fn grouped(value: &str, action: &str) -> String {
    format!(
        "table_entry {{ table_id: T5 match {{ field_id: 1 exact {{ value: \"{value}\" }} }} action {{ {action} }} }}"
    )
}

#[test]
fn members_and_groups_are_kept_while_they_are_used() {
    let mut store = store();
    let by_group = grouped("a", "action_profile_group_id: 7");
    assert_eq!(write(&mut store, &format!("+{by_group}")), Err(ErrorKind::NotFound));
    assert_eq!(write(&mut store, &format!("+{GROUP}")), Err(ErrorKind::NotFound));
    assert_eq!(write(&mut store, &format!("+{MEMBER}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{MEMBER}")), Err(ErrorKind::AlreadyExists));
    assert_eq!(write(&mut store, &format!("+{GROUP}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{by_group}")), Ok(()));
    assert_reads(&store, "action_profile_member { action_profile_id: P1 }", &[MEMBER]);
    assert_reads(&store, "action_profile_group {}", &[GROUP]);
    assert_eq!(write(&mut store, &format!("-{MEMBER}")), Err(ErrorKind::FailedPrecondition));
    assert_eq!(write(&mut store, &format!("-{GROUP}")), Err(ErrorKind::FailedPrecondition));
    assert_eq!(write(&mut store, &format!("-{by_group}")), Ok(()));
    assert_eq!(write(&mut store, &format!("-{GROUP}")), Ok(()));
    assert_eq!(write(&mut store, &format!("-{MEMBER}")), Ok(()));
    assert_eq!(write(&mut store, &format!("-{MEMBER}")), Err(ErrorKind::NotFound));
}

#[test]
fn malformed_members_and_groups_are_refused() {
    let mut store = written(&[&format!("+{MEMBER}"), &format!("+{GROUP}")]);
    let group =
        |parts: &str| format!("+action_profile_group {{ action_profile_id: P1 group_id: 9 {parts} }}");
    for (text, kind) in [
        (format!("+{}", MEMBER.replace("P1", "P9")), ErrorKind::InvalidArgument),
        (format!("+{}", MEMBER.replace("member_id: 7", "member_id: 0")), ErrorKind::InvalidArgument),
        (format!("={}", MEMBER.replace("A2", "A1")), ErrorKind::InvalidArgument),
        ("=action_profile_member { action_profile_id: P1 member_id: 7 }".into(), ErrorKind::InvalidArgument),
        (format!("={}", GROUP.replace("max_size: 8", "max_size: 7")), ErrorKind::InvalidArgument),
        (group("max_size: 0"), ErrorKind::InvalidArgument),
        (group("max_size: 9"), ErrorKind::InvalidArgument),
        (group("max_size: 1 members { member_id: 7 weight: 2 }"), ErrorKind::ResourceExhausted),
        (group("max_size: 8 members { member_id: 7 weight: 9 }"), ErrorKind::InvalidArgument),
        (group("max_size: 8 members { member_id: 7 weight: 0 }"), ErrorKind::InvalidArgument),
        (group("max_size: 8 members { member_id: 8 weight: 1 }"), ErrorKind::NotFound),
        (
            group("max_size: 8 members { member_id: 7 weight: 1 } members { member_id: 7 weight: 1 }"),
            ErrorKind::InvalidArgument,
        ),
        ("+action_profile_group { action_profile_id: P2 group_id: 1 }".into(), ErrorKind::InvalidArgument),
        ("+action_profile_group { action_profile_id: P1 }".into(), ErrorKind::InvalidArgument),
    ] {
        assert_eq!(write(&mut store, &text), Err(kind), "{text}");
    }
    for id in 1..=3 {
        let member = MEMBER.replace("member_id: 7", &format!("member_id: {id}"));
        assert_eq!(write(&mut store, &format!("+{member}")), Ok(()));
    }
    let member = MEMBER.replace("member_id: 7", "member_id: 4");
    assert_eq!(write(&mut store, &format!("+{member}")), Err(ErrorKind::ResourceExhausted));
    assert_eq!(
        read(&store, "action_profile_member { action_profile_id: P1 member_id: 9 }"),
        Err(ErrorKind::NotFound)
    );
}

#[test]
fn one_shot_groups_are_read_as_they_were_written_and_not_mixed() {
    let action =
        r#"action { action_id: A2 params { param_id: 1 value: "a" } params { param_id: 2 value: "p" } }"#;
    let set = |weight: i32| {
        let actions = format!("action_profile_actions {{ {action} weight: {weight} watch_port: \"\\001\" }}");
        grouped("a", &format!("action_profile_action_set {{ {actions} {actions} }}"))
    };
    let one_shot = set(4);
    let mut store = written(&[&format!("+{one_shot}")]);
    assert_reads(&store, "table_entry { table_id: T5 }", &[&one_shot]);
    assert_eq!(write(&mut store, &format!("+{MEMBER}")), Err(ErrorKind::InvalidArgument));
    assert_eq!(write(&mut store, &format!("={}", set(0))), Err(ErrorKind::InvalidArgument));
    assert_eq!(write(&mut store, &format!("={}", set(5))), Err(ErrorKind::InvalidArgument));
    let mode = one_shot
        .replace("action_profile_action_set {", "action_profile_action_set { action_selection_mode: HASH");
    assert_eq!(write(&mut store, &format!("={mode}")), Err(ErrorKind::Unimplemented));
    assert_eq!(write(&mut store, &format!("-{one_shot}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{MEMBER}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{one_shot}")), Err(ErrorKind::InvalidArgument));
    // A profile without a selector has members alone.
    let member = MEMBER.replace("P1", "P2");
    let entry = grouped("a", "action_profile_member_id: 7").replace("T5", "T6");
    assert_eq!(write(&mut store, &format!("+{member}")), Ok(()));
    assert_eq!(write(&mut store, &format!("+{entry}")), Ok(()));
    let by_group = entry.replace("action_profile_member_id", "action_profile_group_id");
    assert_eq!(write(&mut store, &format!("={by_group}")), Err(ErrorKind::InvalidArgument));
}

#[test]
fn arrays_are_written_by_index_or_as_a_whole() {
    let mut store = written(&[
        "=counter_entry { counter_id: C1 index { index: 2 } data { packet_count: 5 } }",
        "=meter_entry { meter_id: M1 config { cir: 1 pir: 2 } }",
        r#"=register_entry { register_id: R1 index { index: 3 } data { bitstring: "\000\017" } }"#,
        r#"=register_entry { register_id: R2 data { struct { members { bitstring: "\001" }
            members { bitstring: "\377\377" } members { bool: true } } } }"#,
    ]);
    assert_reads(
        &store,
        "counter_entry { counter_id: C1 index { index: 2 } }",
        &["counter_entry { counter_id: C1 index { index: 2 } data { packet_count: 5 } }"],
    );
    assert_eq!(read(&store, "counter_entry {}").unwrap().len(), 4);
    assert_reads(
        &store,
        "meter_entry { meter_id: M1 index { index: 0 } }",
        &["meter_entry { meter_id: M1 index {} config { cir: 1 pir: 2 } }"],
    );
    assert_reads(
        &store,
        "register_entry { register_id: R1 index { index: 3 } }",
        &[r#"register_entry { register_id: R1 index { index: 3 } data { bitstring: "\017" } }"#],
    );
    assert_reads(
        &store,
        "register_entry { register_id: R1 index { index: 0 } }",
        &[r#"register_entry { register_id: R1 index {} data { bitstring: "\000" } }"#],
    );
    assert_reads(
        &store,
        "register_entry { register_id: R2 index { index: 1 } }",
        &[
            r#"register_entry { register_id: R2 index { index: 1 } data { struct { members { bitstring: "\001" }
            members { bitstring: "\377" } members { bool: true } } } }"#,
        ],
    );
    assert_eq!(write(&mut store, "=counter_entry { counter_id: C1 index { index: 2 } }"), Ok(()));
    for (text, kind) in [
        ("+counter_entry { counter_id: C1 }", ErrorKind::InvalidArgument),
        ("-meter_entry { meter_id: M1 }", ErrorKind::InvalidArgument),
        ("=counter_entry { counter_id: C2 data {} }", ErrorKind::InvalidArgument),
        ("=counter_entry { counter_id: C1 index { index: -1 } data {} }", ErrorKind::InvalidArgument),
        ("=counter_entry { counter_id: C1 index { index: 4 } data {} }", ErrorKind::OutOfRange),
        ("=meter_entry { meter_id: M1 config { eburst: 1 } }", ErrorKind::InvalidArgument),
        ("=meter_entry { meter_id: M1 counter_data {} }", ErrorKind::Unimplemented),
        ("=register_entry { register_id: R1 }", ErrorKind::InvalidArgument),
        ("=register_entry { register_id: R1 data { bool: true } }", ErrorKind::InvalidArgument),
        (r#"=register_entry { register_id: R1 data { bitstring: "\020\000" } }"#, ErrorKind::OutOfRange),
        (
            r#"=register_entry { register_id: R2 data { struct { members { bitstring: "\001" } } } }"#,
            ErrorKind::InvalidArgument,
        ),
    ] {
        assert_eq!(write(&mut store, text), Err(kind), "{text}");
    }
    assert_eq!(
        read(&store, "register_entry { register_id: R1 index { index: 9 } }"),
        Err(ErrorKind::OutOfRange)
    );
}

#[test]
fn multicast_groups_and_clone_sessions_have_distinct_replicas() {
    let group = r#"packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1
        replicas { port: "\001" instance: 1 } replicas { port: "\001" instance: 2 } metadata: "m" } }"#;
    let session = r#"packet_replication_engine_entry { clone_session_entry { session_id: 1
        replicas { port: "\001" } packet_length_bytes: 64 } }"#;
    let mut store = written(&[&format!("+{group}"), &format!("+{session}")]);
    assert_reads(&store, "packet_replication_engine_entry { multicast_group_entry {} }", &[group]);
    assert_reads(
        &store,
        "packet_replication_engine_entry { clone_session_entry { session_id: 1 } }",
        &[session],
    );
    for (text, kind) in [
        (format!("+{group}"), ErrorKind::AlreadyExists),
        (format!("={}", group.replace("instance: 2", "instance: 1")), ErrorKind::InvalidArgument),
        (
            format!("={}", group.replace(r#"port: "\001" instance: 2"#, r#"port: "\000\001" instance: 1"#)),
            ErrorKind::InvalidArgument,
        ),
        (
            format!("={}", group.replace("instance: 2", "instance: 2 backup_replicas {}")),
            ErrorKind::Unimplemented,
        ),
        (format!("={}", group.replace(r#"port: "\001" instance: 2"#, "")), ErrorKind::InvalidArgument),
        (format!("+{}", group.replace("group_id: 1", "group_id: 0")), ErrorKind::InvalidArgument),
        (format!("={}", session.replace("session_id: 1", "session_id: 2")), ErrorKind::NotFound),
        (format!("={}", session.replace("64", "-1")), ErrorKind::InvalidArgument),
        ("+packet_replication_engine_entry {}".into(), ErrorKind::InvalidArgument),
    ] {
        assert_eq!(write(&mut store, &text), Err(kind), "{text}");
    }
    assert_eq!(write(&mut store, &format!("-{group}")), Ok(()));
    let one = "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }";
    assert_eq!(read(&store, one), Err(ErrorKind::NotFound));
}

#[test]
fn value_sets_and_digests_are_settings() {
    let set =
        r#"value_set_entry { value_set_id: V1 members { match { field_id: 1 exact { value: "\001" } } } }"#;
    let id = info().digests[0].preamble.clone().unwrap().id;
    let digest = format!("digest_entry {{ digest_id: {id} config {{ max_list_size: 3 }} }}");
    let mut store = written(&[&format!("={set}"), &format!("+{digest}")]);
    assert_reads(&store, "value_set_entry {}", &[set]);
    assert_reads(&store, "digest_entry {}", &[&digest]);
    let member =
        |value: &str| format!("members {{ match {{ field_id: 1 exact {{ value: \"{value}\" }} }} }}");
    let members = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|value| member(value)).collect();
        format!("=value_set_entry {{ value_set_id: V1 {} }}", list.join(" "))
    };
    for (text, kind) in [
        (format!("+{set}"), ErrorKind::InvalidArgument),
        (members(&["a", "a"]), ErrorKind::AlreadyExists),
        (members(&["a", "b", "c"]), ErrorKind::ResourceExhausted),
        (members(&["ab"]), ErrorKind::OutOfRange),
        ("=value_set_entry { value_set_id: V2 }".into(), ErrorKind::InvalidArgument),
        (format!("+{digest}"), ErrorKind::AlreadyExists),
        (
            format!("={}", digest.replace('3', "-3").replace(&format!("-{id}"), &id.to_string())),
            ErrorKind::InvalidArgument,
        ),
        ("+digest_entry { digest_id: 1 }".into(), ErrorKind::InvalidArgument),
        ("+extern_entry { extern_type_id: 1 }".into(), ErrorKind::Unimplemented),
    ] {
        assert_eq!(write(&mut store, &text), Err(kind), "{text}");
    }
    assert_eq!(write(&mut store, &format!("-{digest}")), Ok(()));
    assert_eq!(write(&mut store, &format!("={digest}")), Err(ErrorKind::NotFound));
    assert_eq!(read(&store, &format!("digest_entry {{ digest_id: {id} }}")), Err(ErrorKind::NotFound));
}

/// Updates of all kinds, which are all accepted after one another.
fn batch() -> Vec<Update> {
    let texts = [
        format!("+{ENTRY}"),
        "=table_entry { table_id: T1 is_default_action: true action { action { action_id: A1 } } }".into(),
        format!("+{MEMBER}"),
        format!("+{GROUP}"),
        format!("+{}", grouped("a", "action_profile_group_id: 7")),
        format!("={}", grouped("a", "action_profile_member_id: 7")),
        format!("-{GROUP}"),
        "=counter_entry { counter_id: C1 data { packet_count: 1 } }".into(),
        "=counter_entry { counter_id: C1 index { index: 1 } data { packet_count: 2 } }".into(),
        "=meter_entry { meter_id: M1 config { cir: 1 pir: 2 } }".into(),
        "=meter_entry { meter_id: M1 index { index: 1 } }".into(),
        r#"=register_entry { register_id: R1 data { bitstring: "a" } }"#.into(),
        r#"=register_entry { register_id: R1 index {} data { bitstring: "b" } }"#.into(),
        r#"=value_set_entry { value_set_id: V1 members { match { field_id: 1 exact { value: "a" } } } }"#
            .into(),
        "+packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }".into(),
        "+packet_replication_engine_entry { clone_session_entry { session_id: 1 } }".into(),
        format!("-{ENTRY}"),
    ];
    texts.iter().map(|text| update(text)).collect()
}

#[test]
fn a_batch_that_fails_is_undone_wherever_it_fails() {
    let all = batch();
    let mut complete = store();
    assert!(complete.write_batch(&all, Atomicity::DataplaneAtomic).is_success());
    for length in 0..=all.len() {
        for atomicity in [Atomicity::RollbackOnError, Atomicity::DataplaneAtomic] {
            let mut store = store();
            let before = everything(&store);
            let mut updates = all[..length].to_vec();
            updates.push(update("=counter_entry { counter_id: C9 }"));
            let outcome = store.write_batch(&updates, atomicity);
            assert!(!outcome.is_success());
            assert_eq!(everything(&store), before, "{length} updates");
            let codes: Vec<i32> =
                outcome.results.iter().map(|r| r.as_ref().unwrap_err().kind as i32).collect();
            assert_eq!(codes[length], 3);
            assert!(codes[..length].iter().all(|code| *code == 10));
            // What was undone does not count as used.
            assert!(store.write_batch(&all, atomicity).is_success());
            assert_eq!(everything(&store), everything(&complete));
        }
    }
}

#[test]
fn a_batch_that_goes_on_reports_each_update() {
    let mut store = store();
    let updates = [format!("+{ENTRY}"), "=counter_entry { counter_id: C9 }".into(), format!("+{ENTRY}")];
    let updates: Vec<Update> = updates.iter().map(|text| update(text)).collect();
    let status = store.write_batch(&updates, Atomicity::ContinueOnError).status().unwrap();
    assert_eq!(status.code, 2);
    let codes = status.details.iter().map(|detail| {
        assert_eq!(detail.type_url, "type.googleapis.com/p4.v1.Error");
        v1::Error::decode(&detail.value[..]).unwrap().canonical_code
    });
    assert_eq!(codes.collect::<Vec<_>>(), [0, 3, 6]);
    assert_eq!(read(&store, "table_entry {}").unwrap().len(), 1);
    assert!(store.write_batch(&[], Atomicity::ContinueOnError).status().is_none());
}

#[test]
fn p4info_that_contradicts_itself_is_refused() {
    let broken = |change: fn(&mut P4Info)| {
        let mut info = info();
        change(&mut info);
        PipelineIndex::new(&info).unwrap_err()
    };
    let duplicate = broken(|info| info.tables.push(info.tables[0].clone()));
    assert!(matches!(duplicate, PipelineError::BadId { .. }));
    let no_id = broken(|info| info.counters[0].preamble = None);
    assert!(matches!(no_id, PipelineError::BadId { id: 0, .. }));
    let no_action = broken(|info| info.actions.clear());
    assert!(matches!(no_action, PipelineError::UnknownId { .. }));
    let no_profile = broken(|info| info.action_profiles.clear());
    assert!(matches!(no_profile, PipelineError::UnknownId { .. }));
    let no_counter = broken(|info| info.direct_counters.clear());
    assert!(matches!(no_counter, PipelineError::UnknownId { .. }));
    let negative = broken(|info| info.tables[0].size = -1);
    assert!(matches!(negative, PipelineError::NegativeSize { .. }));
    let width = broken(|info| info.tables[1].match_fields[0].bitwidth = -1);
    assert!(matches!(width, PipelineError::NegativeSize { .. }));
    let no_type = broken(|info| info.type_info = None);
    assert!(matches!(no_type, PipelineError::BadType { .. }));
    let field = broken(|info| info.tables[0].match_fields[1].id = 1);
    assert!(matches!(field, PipelineError::BadId { id: 1, .. }));
}
