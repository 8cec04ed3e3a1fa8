//! Entries, default actions, and constant tables.

use crate::*;

#[test]
fn canonical_entries_are_read_as_they_were_written() {
    let store = written(&[r#"+table_entry { table_id: T1 match { field_id: 2 exact { value: "eth0" } }
        match { field_id: 1 exact { value: "\000\001" } } metadata: "note" idle_timeout_ns: 7
        meter_config { cir: 1 cburst: 2 pir: 3 pburst: 4 } counter_data { packet_count: 5 }
        action { action { action_id: A2 params { param_id: 2 value: "eth1" }
            params { param_id: 1 value: "\000\002" } } } }"#]);
    let entry = r#"table_entry { table_id: T1 match { field_id: 1 exact { value: "\001" } }
        match { field_id: 2 exact { value: "eth0" } } metadata: "note" idle_timeout_ns: 7
        action { action { action_id: A2 params { param_id: 1 value: "\002" }
            params { param_id: 2 value: "eth1" } } } "#;
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
                    r#"params { param_id: 1 value: "a" } params { param_id: 2 value: "p" }
                        params { param_id: 3 value: "p" }"#,
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
    let entry = r#"table_entry { table_id: T4 match { field_id: 1 exact { value: "\002" } }
        action { action { action_id: A2 } } }"#;
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
            "table_entry {{ table_id: T8
            match {{ field_id: 1 ternary {{ value: \"\\00{value}\" mask: \"\\007\" }} }}
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
