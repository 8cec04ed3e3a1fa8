//! Commands as text, and runtime files.

use millstream_p4runtime_server::{load_runtime_file, run_command};

use crate::{PROGRAM, TestSwitch, frame};

/// Runs a command that has to succeed.
fn says(switch: &TestSwitch, line: &str) -> String {
    let outcome = run_command(&switch.handle, line);
    assert!(!outcome.failed, "{line}: {}", outcome.text);
    outcome.text
}

#[test]
fn the_words_of_the_reference_switch_work() {
    let switch = TestSwitch::start(Some(PROGRAM));
    let added = says(&switch, "table_add I.stations forward 00:00:00:00:00:01 => 2");
    assert_eq!(added, "Entry has been added with handle 0");
    assert_eq!(switch.ports_of(&frame(1)), [2]);
    says(&switch, "table_modify stations I.forward 0 3");
    assert_eq!(switch.ports_of(&frame(1)), [3]);
    says(&switch, "table_set_default stations forward 4");
    assert_eq!(switch.ports_of(&frame(9)), [4]);
    says(&switch, "table_reset_default stations");
    assert_eq!(switch.ports_of(&frame(9)), [0; 0]);
    let dump = says(&switch, "table_dump stations");
    assert!(dump.contains("EXACT     000000000001") && dump.contains("I.forward - 0003"), "{dump}");
    assert_eq!(says(&switch, "table_num_entries stations"), "1");
    assert_eq!(says(&switch, "register_read seen 0"), "seen[0]= 4");
    says(&switch, "register_write seen 0 100");
    assert!(says(&switch, "register_read seen").starts_with("seen= 100, 0"));
    assert_eq!(says(&switch, "counter_read by_port 1"), "by_port[1]= (240 bytes, 4 packets)");
    assert_eq!(says(&switch, "counter_read hits 0"), "hits[0]= (120 bytes, 2 packets)");
    says(&switch, "counter_reset by_port");
    assert_eq!(says(&switch, "counter_read by_port 1"), "by_port[1]= (0 bytes, 0 packets)");
    says(&switch, "table_delete stations 0");
    assert_eq!(switch.ports_of(&frame(1)), [0; 0]);
    assert!(says(&switch, "help").lines().count() > 40);
    assert!(says(&switch, "show_tables").contains("I.spread"));
    assert!(says(&switch, "show_actions").contains("I.flood"));
}

#[test]
fn a_default_that_a_table_does_not_name_can_be_set_again() {
    let text = PROGRAM.replace("        default_action = drop();\n", "");
    assert_ne!(text, PROGRAM);
    let switch = TestSwitch::start(Some(&text));
    let unchanged = switch.ports_of(&frame(9));
    says(&switch, "table_set_default stations forward 4");
    assert_eq!(switch.ports_of(&frame(9)), [4]);
    says(&switch, "table_set_default stations NoAction");
    assert_eq!(switch.ports_of(&frame(9)), unchanged);
}

#[test]
fn groups_members_and_mirrors_have_words() {
    let switch = TestSwitch::start(Some(PROGRAM));
    says(&switch, "mc_mgrp_create 1");
    assert_eq!(says(&switch, "mc_node_create 7 2 3"), "node was created with handle 0");
    says(&switch, "mc_node_associate 1 0");
    says(&switch, "table_add stations flood 1 => 1");
    assert_eq!(switch.ports_of(&frame(1)), [2, 3]);
    says(&switch, "mc_node_update 0 5");
    assert_eq!(switch.ports_of(&frame(1)), [5]);
    says(&switch, "mc_node_destroy 0");
    assert_eq!(switch.ports_of(&frame(1)), [0; 0]);
    says(&switch, "mirroring_add 3 4");
    assert_eq!(says(&switch, "mirroring_get 3"), "session 3: ports 4");
    says(&switch, "mirroring_delete 3");

    assert_eq!(
        says(&switch, "act_prof_create_member choices forward 6"),
        "Member has been created with handle 0"
    );
    assert_eq!(says(&switch, "act_prof_create_group choices"), "Group has been created with handle 0");
    says(&switch, "act_prof_add_member_to_group choices 0 0");
    says(&switch, "table_indirect_add_with_group spread 0&&&0 => 0 10");
    assert_eq!(switch.ports_of(&frame(8)), [6]);
    says(&switch, "act_prof_modify_member choices forward 0 7");
    assert_eq!(switch.ports_of(&frame(8)), [7]);
    assert!(says(&switch, "act_prof_dump choices").contains("0: [0]"));
}

#[test]
fn the_order_of_additions_to_a_group_changes_no_choice() {
    let switch = TestSwitch::start(Some(PROGRAM));
    for line in [
        "act_prof_create_member choices forward 6",
        "act_prof_create_member choices forward 7",
        "act_prof_create_group choices",
        "act_prof_create_group choices",
        "act_prof_add_member_to_group choices 0 0",
        "act_prof_add_member_to_group choices 1 0",
        "act_prof_add_member_to_group choices 1 1",
        "act_prof_add_member_to_group choices 0 1",
    ] {
        says(&switch, line);
    }
    let mut chosen = Vec::new();
    for group in 0..2 {
        says(&switch, &format!("table_indirect_add_with_group spread 0&&&0 => {group} 10"));
        chosen.push((1..20).flat_map(|to| switch.ports_of(&frame(to))).collect::<Vec<_>>());
        says(&switch, &format!("table_indirect_delete spread {group}"));
    }
    assert_eq!(chosen[0], chosen[1]);
    assert!(chosen[0].contains(&6) && chosen[0].contains(&7), "{chosen:?}");
}

#[test]
fn wrong_commands_are_refused_with_the_reason() {
    let switch = TestSwitch::start(Some(PROGRAM));
    for (line, reason) in [
        ("table_ad stations", "no command"),
        ("table_add stations", "usage: table_add"),
        ("table_add nothing forward 1 => 1", "no table `nothing`"),
        ("table_add stations jump 1 => 1", "no action `jump`"),
        ("table_add stations forward 1 2 => 1", "has 1 fields, not 2"),
        ("table_add stations forward 1 => 512", "more than the 9 bits"),
        ("table_add spread forward 1 =>", "priority"),
        ("table_delete stations 4", "handle 4"),
        ("register_write seen 9 1", "9"),
        ("counter_read by_port x", "`x` is no number"),
        ("mc_node_associate 1 0", "no node"),
        ("meter_get_rates nothing 0", "no meter"),
    ] {
        let outcome = run_command(&switch.handle, line);
        assert!(outcome.failed && outcome.text.contains(reason), "{line}: {}", outcome.text);
    }
    let empty = TestSwitch::start(None);
    assert!(run_command(&empty.handle, "show_tables").text.contains("no program"));
}

#[test]
fn runtime_files_of_the_tutorials_are_loaded() {
    let switch = TestSwitch::start(Some(PROGRAM));
    let text = r#"{
        "target": "bmv2", "p4info": "build/switch.p4.p4info.txtpb", "bmv2_json": "build/switch.json",
        "table_entries": [
            { "table": "I.stations", "default_action": true, "action_name": "I.forward",
              "action_params": { "port": 6 } },
            { "table": "I.stations", "match": { "h.ethernet.dst": "00:00:00:00:00:01" },
              "action_name": "I.flood", "action_params": { "group": 1 } }
        ],
        "multicast_group_entries": [
            { "multicast_group_id": 1, "replicas": [ { "egress_port": 2, "instance": 1 },
                                                     { "egress_port": 3, "instance": 1 } ] }
        ]
    }"#;
    assert_eq!(load_runtime_file(&switch.handle, text).unwrap(), 3);
    assert_eq!((switch.ports_of(&frame(1)), switch.ports_of(&frame(2))), (vec![2, 3], vec![6]));
    // The tutorials also write a value as a list of one.
    let listed = TestSwitch::start(Some(PROGRAM));
    let text = text.replace(r#""00:00:00:00:00:01""#, r#"["00:00:00:00:00:01"]"#);
    assert!(text.contains(r#"["00:00:00:00:00:01"]"#));
    assert_eq!(load_runtime_file(&listed.handle, &text).unwrap(), 3);
    let wrong = text.replace("I.flood", "I.jump");
    let error = load_runtime_file(&switch.handle, &wrong).unwrap_err().to_string();
    assert!(error.contains("table_entries 2") && error.contains("jump"), "{error}");
}
