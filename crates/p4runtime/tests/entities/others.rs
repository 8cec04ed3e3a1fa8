//! Arrays, replication, value sets and digests.

use crate::*;

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
        &[r#"register_entry { register_id: R2 index { index: 1 } data { struct {
            members { bitstring: "\001" }
            members { bitstring: "\377" } members { bool: true } } } }"#],
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
