//! Reads that select entries, and direct resources.

use crate::*;

#[test]
fn reads_select_by_table_key_action_priority_and_metadata() {
    let params = r#"params { param_id: 1 value: "a" } params { param_id: 2 value: "p" }"#;
    let ternary = |value: &str, priority: u32, metadata: &str| {
        format!(
            "table_entry {{ table_id: T2
            match {{ field_id: 2 ternary {{ value: \"{value}\" mask: \"\\017\" }} }}
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
        store.read(&Entity { entity: None }, &mut |_| std::ops::ControlFlow::Continue(())).unwrap_err().kind,
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

#[test]
fn a_receiver_ends_a_read() {
    let store = store();
    for request in ["counter_entry {}", "register_entry { register_id: R1 }", "value_set_entry {}"] {
        let mut count = 0;
        let mut emit = |_| {
            count += 1;
            std::ops::ControlFlow::Break(())
        };
        store.read(&entity(request), &mut emit).unwrap();
        assert_eq!(count, 1, "{request}");
    }
}
