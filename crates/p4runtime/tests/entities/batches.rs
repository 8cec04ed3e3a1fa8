//! Batches, and P4Info that contradicts itself.

use crate::*;

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
