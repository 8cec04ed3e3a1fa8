//! Members, groups, and one-shot groups.

use crate::*;

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
