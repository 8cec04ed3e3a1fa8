//! Options for callers of the loader, tested in the kernel: maps of their own, other sizes, other constants,
//! pins.

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, MapSpec, TestRun, testing};
use millstream_loader::{Error, ObjectLoader};
use millstream_object::Object;
use millstream_programs::packet::EthernetFrame;
use millstream_programs::{FIREWALL, ROUTER};

fn router() -> Option<Object> {
    testing::require().then(|| Object::parse("router", ROUTER.object).expect("our own object"))
}

#[test]
fn a_given_map_is_used_in_the_place_of_the_objects() {
    let Some(object) = router() else { return };
    let first = ObjectLoader::new(&object).prepare().unwrap();
    let counters = first.map_by_name("counters").unwrap();
    let second = ObjectLoader::new(&object).reuse_map("counters", counters.try_clone().unwrap()).unwrap();
    let loaded = second.load().unwrap();
    assert_eq!(loaded.session.map_by_name("counters").unwrap().id(), counters.id());
    assert_ne!(
        loaded.session.map_by_name("routes").unwrap().id(),
        first.map_by_name("routes").unwrap().id(),
        "the others are made anew"
    );
    let ids = loaded.program("router").unwrap().info().unwrap().map_ids;
    assert!(ids.contains(&counters.id()), "{ids:?}");
}

#[test]
fn a_map_of_another_layout_is_refused() {
    let Some(object) = router() else { return };
    let spec = MapSpec {
        name: "small",
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        ..MapSpec::default()
    };
    let small = KernelMap::create(&spec).unwrap();
    let error = ObjectLoader::new(&object).reuse_map("next_hops", small).unwrap().prepare().unwrap_err();
    assert!(matches!(&error, Error::Layout { name, .. } if name == "next_hops"), "{error}");
}

#[test]
fn unknown_names_are_errors() {
    let Some(object) = router() else { return };
    for error in [
        ObjectLoader::new(&object).max_entries("nothing", 1).unwrap_err(),
        ObjectLoader::new(&object).only("nothing").unwrap_err(),
        ObjectLoader::new(&object).set_variable("nothing", &[]).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoSuch { .. }), "{error}");
    }
}

#[test]
fn entries_are_as_many_as_asked_for() {
    let Some(object) = router() else { return };
    let session = ObjectLoader::new(&object).max_entries("routes", 77).unwrap().prepare().unwrap();
    assert_eq!(session.map_by_name("routes").unwrap().info().max_entries, 77);
    assert!(session.notes().is_empty(), "{:?}", session.notes());
}

#[test]
fn constants_are_set_before_they_are_frozen() {
    if !testing::require() {
        return;
    }
    let object = Object::parse("firewall", FIREWALL.object).unwrap();
    let rodata = object.maps.iter().find(|m| m.name.ends_with(".rodata")).expect("its table of bits");
    let other = vec![7; rodata.spec.value_size as usize];
    let session = ObjectLoader::new(&object).set_data(&rodata.name, &other).unwrap().prepare().unwrap();
    let map = session.map_by_name(&rodata.name).unwrap();
    assert_eq!(map.lookup(&[0; 4]).unwrap().unwrap(), other);
    assert!(map.update(&[0; 4], &other, Default::default()).is_err(), "frozen");
    let error = ObjectLoader::new(&object).set_data(&rodata.name, &[1]).unwrap_err();
    assert!(matches!(error, Error::Size { got: 1, .. }), "{error}");
}

#[test]
fn variants_run_on_the_maps_of_their_session() {
    let Some(object) = router() else { return };
    let session = ObjectLoader::new(&object).prepare().unwrap();
    let func = object.programs[0].func;
    let linked = object.link(func).unwrap();
    let variants: Vec<_> = (0..2).map(|_| session.load(func, &linked).unwrap()).collect();
    let frame = EthernetFrame::default().to_bytes();
    for variant in &variants {
        variant.test_run(&TestRun::packet(&frame)).unwrap();
    }
    let counters = session.map_by_name("counters").unwrap();
    // Test runs come in by interface 1.
    let value = counters.lookup(&1u32.to_ne_bytes()).unwrap().unwrap();
    let words = value.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
    let stride = (counters.info().value_size as usize).div_ceil(8);
    assert_eq!(words.step_by(stride).sum::<u64>(), 2, "each has counted its packet");
}
