//! Entries by number: groups of selectors, direct counters and meters, and requests that are refused.

use millstream_interp::maps::PriorityEntry;
use millstream_p4_lower::{ActionChoice, ENTRY_COUNTER, EntryMatch, EntrySpec, meter_layout};
use millstream_p4_switch::{EntryError, InterpreterExecutor, Switch, SwitchError, SwitchExecutor};
use num_bigint::BigUint;

use crate::common::{lowered, switch};

fn start(name: &str) -> Switch<InterpreterExecutor> {
    let path = format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"));
    switch(&lowered(&path, None).unwrap())
}

fn table(switch: &Switch<InterpreterExecutor>, name: &str) -> usize {
    switch.pipeline().tables.iter().position(|table| table.name == name).unwrap()
}

fn give(value: u32) -> ActionChoice {
    ActionChoice { action: 0, arguments: vec![value.into()] }
}

fn entry(key: u32, choice: ActionChoice, group: Option<u32>) -> EntrySpec {
    EntrySpec { matches: vec![EntryMatch::Exact(key.into())], choice, priority: 0, group }
}

#[test]
fn a_selector_spreads_flows_over_the_members_of_a_group() {
    let mut switch = start("entries.p4");
    let chosen = table(&switch, "In.chosen");
    switch.set_group(chosen, 1, &[give(1), give(2), give(3)]).unwrap();
    switch.set_entry(chosen, &entry(7, give(0), Some(1))).unwrap();
    let mut seen = [0; 4];
    for flow in 0..=255 {
        let sent = switch.receive(0, &[7, flow, 0]).unwrap();
        let again = switch.receive(0, &[7, flow, 0]).unwrap();
        assert_eq!(sent, again, "a flow stays with its member");
        seen[usize::from(sent[0].data[2])] += 1;
    }
    assert!(seen[0] == 0 && seen[1..].iter().all(|count| *count > 40), "{seen:?}");
    switch.set_group(chosen, 1, &[give(2)]).unwrap();
    assert_eq!(switch.receive(0, &[7, 9, 0]).unwrap()[0].data[2], 2);
    switch.set_group(chosen, 1, &[]).unwrap();
    assert_eq!(switch.receive(0, &[7, 9, 0]).unwrap()[0].data[2], 0xee, "an empty group is a miss");
    assert_eq!(switch.receive(0, &[8, 9, 0]).unwrap()[0].data[2], 0xee);
}

#[test]
fn a_selector_that_a_table_makes_in_place_is_one_of_its_own() {
    let mut switch = start("entries.p4");
    let spread = table(&switch, "In.spread");
    assert_eq!(switch.pipeline().tables[spread].selector.as_ref().unwrap().name, "spread_paths");
    switch.set_group(spread, 1, &[give(4), give(5)]).unwrap();
    switch.set_entry(spread, &entry(7, give(0), Some(1))).unwrap();
    let results = (0..=255).map(|flow| switch.receive(0, &[7, flow, 0xff]).unwrap()[0].data[2]);
    let results: std::collections::BTreeSet<u8> = results.collect();
    assert_eq!(results, [4, 5].into());
}

#[test]
fn direct_counters_and_meters_belong_to_the_entry() {
    let mut switch = start("entries.p4");
    let metered = table(&switch, "In.metered");
    switch.set_entry(metered, &entry(7, give(1), None)).unwrap();
    let spec = switch.pipeline().tables[metered].clone();
    let mut value = switch.executor().get(spec.map, &[7]).unwrap();
    let (_, meter) = spec.meter.unwrap();
    let mut put = |offset: u32, word: u64| {
        let at = (meter + offset) as usize;
        value[at..at + 8].copy_from_slice(&word.to_le_bytes());
    };
    // Two packets are green, the next one yellow, the rest red.
    put(meter_layout::COMMITTED_RATE, 1);
    put(meter_layout::COMMITTED_BURST, 2);
    put(meter_layout::COMMITTED_TOKENS, 2 * meter_layout::TOKEN_SCALE);
    put(meter_layout::PEAK_RATE, 1);
    put(meter_layout::PEAK_BURST, 3);
    put(meter_layout::PEAK_TOKENS, 3 * meter_layout::TOKEN_SCALE);
    switch.executor().set(spec.map, &[7], &value).unwrap();
    let colors: Vec<u8> = (0..5).map(|_| switch.receive(0, &[7, 0, 0]).unwrap()[0].data[1]).collect();
    assert_eq!(colors, [0, 0, 1, 2, 2]);
    let value = switch.executor().get(spec.map, &[7]).unwrap();
    let word = |at: u32| u64::from_le_bytes(value[at as usize..at as usize + 8].try_into().unwrap());
    assert_eq!((word(ENTRY_COUNTER), word(ENTRY_COUNTER + 8)), (5, 15));
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut switch = start("tables.p4");
    let by_prefix = table(&switch, "In.by_prefix");
    let key =
        |bits: u32| vec![EntryMatch::Prefix(BigUint::from(1u8) << bits, bits), EntryMatch::Exact(1u8.into())];
    let spec = |bits| EntrySpec { matches: key(bits), choice: give(1), priority: 0, group: None };
    assert!(matches!(
        switch.set_entry(by_prefix, &spec(32)),
        Err(SwitchError::Entry(EntryError::Width { .. }))
    ));
    for bits in 1..5 {
        switch.set_entry(by_prefix, &spec(bits)).unwrap();
    }
    assert!(matches!(switch.set_entry(by_prefix, &spec(9)), Err(SwitchError::Executor(_))), "it is full");
    assert!(matches!(
        switch.set_entry(by_prefix, &EntrySpec { choice: give(256), ..spec(1) }),
        Err(SwitchError::Entry(EntryError::Width { .. }))
    ));
    let group = EntrySpec { group: Some(1), ..spec(1) };
    assert!(switch.set_entry(by_prefix, &group).is_err(), "the table has no groups");
    switch.delete_entry(by_prefix, &spec(1)).unwrap();
    assert!(switch.delete_entry(by_prefix, &spec(1)).is_err());
    let constant = table(&switch, "In.constant_ranges");
    let any = EntrySpec { matches: vec![EntryMatch::Any], ..spec(1) };
    assert!(matches!(switch.set_entry(constant, &any), Err(SwitchError::Constant(_))));
    assert!(switch.set_default(by_prefix, &give(1)).is_err(), "the default action is constant");
}

#[test]
fn names_of_entries_with_priorities_are_checked() {
    let mut switch = start("tables.p4");
    let spec = switch.pipeline().tables[table(&switch, "In.by_mask")].clone();
    let size = spec.key_size as usize;
    let name = PriorityEntry { priority: 1, value: vec![0; size], mask: vec![0; size], ranges: Vec::new() };
    let value = vec![0; spec.value_size as usize];
    switch.executor().set(spec.map, &name.encode(), &value).unwrap();
    assert!(switch.executor().set(spec.map, &name.encode()[1..], &value).is_err());
    assert_eq!(switch.executor().keys(spec.map), [name.encode()]);
}

#[test]
fn a_value_set_decides_about_transitions() {
    let mut switch = start("sets.p4");
    let kinds = switch.pipeline().objects.iter().position(|object| object.name == "Parse.kinds").unwrap();
    let packet = [3, 0x10, 0, 0, 0, 1, 2, 3];
    let boxed = switch.receive(0, &packet).unwrap();
    assert_eq!(boxed[0].data[2..4], [0xab, 0xcd], "the header behind the first one was parsed");
    switch.set_value_set(kinds, &[vec![3u8.into()], vec![9u8.into()]]).unwrap();
    assert_eq!(switch.receive(0, &packet).unwrap()[0].data[2..4], [0, 0]);
    switch.set_value_set(kinds, &[vec![9u8.into()]]).unwrap();
    assert_eq!(switch.receive(0, &packet).unwrap(), boxed);
    assert!(switch.set_value_set(kinds, &[vec![256u16.into()]]).is_err());
    assert!(switch.set_value_set(kinds, &[vec![1u8.into(), 2u8.into()]]).is_err());
}

#[test]
fn instructions_know_their_lines() {
    let switch = start("tables.p4");
    let pipeline = switch.pipeline();
    assert!(pipeline.lines.iter().any(|line| line.path.ends_with("tables.p4") && line.line == 14));
}
