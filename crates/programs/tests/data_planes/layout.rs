//! Checks that the output of the control tools has the sizes that the objects' maps want, and that the
//! objects match their descriptions.

use millstream_object::Object;
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{DataPlaneProgram, MapEntry, NAT, ROUTER, SWITCH, nat, router, switch};

fn check(program: &DataPlaneProgram, entries: &[MapEntry]) {
    let object = Object::parse(program.name, program.object).unwrap();
    assert!(
        object.programs.iter().any(|p| p.name == program.function),
        "{} has no such program",
        program.name
    );
    for entry in entries {
        let map = object
            .maps
            .iter()
            .find(|m| m.name == entry.map)
            .unwrap_or_else(|| panic!("no map {}", entry.map));
        let sizes = (entry.key.len(), entry.value.len());
        assert_eq!(
            sizes,
            (map.spec.key_size as usize, map.spec.value_size as usize),
            "{} {}",
            program.name,
            map.name
        );
    }
    for map in &object.maps {
        let count = entries.iter().filter(|e| e.map == map.name).count();
        assert!(count <= map.spec.max_entries as usize, "{count} entries for {}", map.name);
    }
}

#[test]
fn router_entries_fit_its_maps() {
    check(&ROUTER, &router::generate(2592, &[1, 2], 8, 1).entries().unwrap());
}

#[test]
fn switch_entries_fit_its_maps() {
    check(
        &SWITCH,
        &switch::generate(4096, &[1, 2, 3], &[10, 20], switch::VlanLayout::Uplink, 1).entries().unwrap(),
    );
}

#[test]
fn nat_entries_fit_its_maps() {
    let config = nat::generate(1, 2, 4, 1);
    let traffic = nat::traffic(&config, 50_000, nat::ProtocolMix::default(), FlowLocality::HIGH, 1);
    check(&NAT, &[config.entries().unwrap(), traffic.entries(0)].concat());
}

#[test]
fn counters_and_reasons_are_as_many_as_the_control_tools_know() {
    let entries_of = |program: &DataPlaneProgram, name: &str| {
        let object = Object::parse(program.name, program.object).unwrap();
        object.maps.iter().find(|m| m.name == name).map(|m| m.spec.max_entries)
    };
    assert_eq!(entries_of(&ROUTER, router::REASONS), Some(router::RouterEvent::ALL.len() as u32));
    assert_eq!(entries_of(&SWITCH, switch::EVENTS), Some(switch::SwitchEvent::Moved as u32 + 1));
    assert_eq!(entries_of(&NAT, nat::EVENTS), Some(nat::NatEvent::IcmpError as u32 + 1));
    assert_eq!(entries_of(&ROUTER, router::NEXT_HOPS), Some(router::MAX_NEXT_HOPS as u32));
    assert_eq!(entries_of(&ROUTER, router::ROUTES), Some(router::MAX_ROUTES as u32));
    assert_eq!(entries_of(&SWITCH, switch::STATIONS), Some(switch::MAX_STATIONS as u32));
    assert_eq!(entries_of(&NAT, nat::CONNECTIONS), Some(nat::MAX_CONNECTION_ENTRIES as u32));
}
