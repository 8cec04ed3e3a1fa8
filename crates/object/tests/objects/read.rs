//! Reading of objects that clang makes.

use crate::common::read;
use millstream_isa::MapType;
use millstream_object::{
    AttachType, ExternKind, FuncId, InitialValue, Linkage, MapOrigin, Object, ObjectMap, Pinning,
    ProgramType, RelocKind,
};

fn map<'a>(o: &'a Object, name: &str) -> &'a ObjectMap {
    o.maps.iter().find(|m| m.name == name).unwrap_or_else(|| panic!("no map {name}"))
}

fn function(o: &Object, name: &str) -> FuncId {
    FuncId(o.functions.iter().position(|f| f.name == name).unwrap_or_else(|| panic!("no {name}")) as u32)
}

#[test]
fn maps_that_btf_describes() {
    let Some(o) = read("maps", &[]) else { return };
    assert_eq!((o.name.as_str(), o.license.as_str()), ("maps", "GPL"));
    let flows = map(&o, "flows");
    let s = &flows.spec;
    assert_eq!((s.map_type, s.key_size, s.value_size, s.max_entries), (MapType::HASH, 8, 16, 1024));
    assert_eq!((s.flags, s.pinning, flows.origin), (1, Pinning::ByName, MapOrigin::Btf));
    let btf = o.btf.as_ref().expect("types");
    assert_eq!(s.value_type.map(|t| btf.c_name(t)).as_deref(), Some("struct value"));
    let bloom = &map(&o, "bloom").spec;
    assert_eq!((bloom.map_extra, bloom.key_size, bloom.value_size), (3, 0, 4));
    assert_eq!(map(&o, "events").spec.max_entries, 4096);
}

#[test]
fn maps_with_contents() {
    let Some(o) = read("maps", &[]) else { return };
    let outer = map(&o, "outer");
    let inner = outer.inner.as_ref().expect("what inner maps are");
    assert_eq!((inner.map_type, inner.value_size, inner.max_entries), (MapType::ARRAY, 8, 8));
    let names: Vec<_> = outer
        .initial
        .iter()
        .map(|(slot, v)| match v {
            InitialValue::Map(m) => (*slot, o.maps[m.index()].name.as_str()),
            InitialValue::Program(_) => panic!("a program in a map of maps"),
        })
        .collect();
    assert_eq!(names, [(0, "inner_a"), (3, "inner_b")]);
    let jumps = map(&o, "jumps");
    assert_eq!(jumps.initial, [(1, InitialValue::Program(function(&o, "tail_target")))]);
    assert_eq!((jumps.spec.value_size, jumps.inner.is_none()), (4, true));
}

#[test]
fn global_data_is_maps_named_as_libbpf_does() {
    let Some(o) = read("maps", &[]) else { return };
    let rodata = map(&o, "maps.rodata");
    let data = rodata.data.as_ref().expect("constants");
    let at =
        |name: &str| rodata.variables.iter().find(|v| v.name == name).expect("a variable").offset as usize;
    assert_eq!(data[at("limit")], 7);
    assert_eq!(&data[at("greeting")..][..5], b"hello");
    assert_eq!(rodata.spec.flags & 1 << 7, 1 << 7, "read-only to programs");
    assert_eq!(map(&o, "maps.data").data.as_deref(), Some(&42u32.to_le_bytes()[..]));
    assert_eq!(map(&o, ".data.hot").data.as_deref(), Some(&5u32.to_le_bytes()[..]));
    let bss = map(&o, "maps.bss");
    assert_eq!((bss.origin, bss.data.is_none(), bss.spec.value_size), (MapOrigin::Bss, true, 20));
}

#[test]
fn references_name_variables() {
    let Some(o) = read("maps", &[]) else { return };
    let count = &o.functions[function(&o, "count").index()];
    let mut used: Vec<String> = count
        .relocs
        .iter()
        .map(|r| match r.kind {
            RelocKind::Map(m) => o.maps[m.index()].name.clone(),
            RelocKind::MapValue { map, offset } => {
                let map = &o.maps[map.index()];
                let inside =
                    |v: &&millstream_object::Variable| (v.offset..v.offset + v.size).contains(&offset);
                map.variables.iter().find(inside).map_or("?", |v| &v.name).to_owned()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    used.sort();
    used.dedup();
    let expected = [
        "bloom", "events", "flows", "greeting", "hits", "hot", "jumps", "limit", "outer", "quiet", "seed",
        "table",
    ];
    assert_eq!(used, expected);
}

#[test]
fn programs_and_subprograms() {
    let Some(o) = read("calls", &[]) else { return };
    let programs: Vec<_> =
        o.programs.iter().map(|p| (p.name.as_str(), p.kind.program_type, p.kind.attach_type)).collect();
    assert_eq!(
        programs,
        [
            ("first", ProgramType::SCHED_CLS, None),
            ("second", ProgramType::SCHED_CLS, None),
            ("third", ProgramType::XDP, Some(AttachType::XDP)),
        ]
    );
    let linkage = |name: &str| o.functions[function(&o, name).index()].linkage;
    assert_eq!(linkage("twice"), Linkage::Static);
    assert_eq!(linkage("global_sum"), Linkage::Global);
    assert_eq!(linkage("weak_one"), Linkage::Weak);
    let called = |name: &str| -> Vec<RelocKind> {
        let f = &o.functions[function(&o, name).index()];
        let local = |k: &RelocKind| matches!(k, RelocKind::Call(_) | RelocKind::FuncAddr(_));
        f.relocs.iter().map(|r| r.kind).filter(local).collect()
    };
    let call = |name| RelocKind::Call(function(&o, name));
    assert_eq!(
        called("first"),
        [RelocKind::FuncAddr(function(&o, "each")), call("weak_one"), call("global_sum")]
    );
    assert_eq!(called("second"), [call("twice")]);
    assert_eq!(called("global_sum"), [call("twice")], "resolved by the assembler");
    for f in &o.functions {
        assert!(f.type_id.is_some(), "{} has a type", f.name);
        assert_eq!(f.line_info.first().map(|l| l.insn), Some(0), "{} begins with a line", f.name);
    }
}

#[test]
fn linked_programs_hold_all_they_reach() {
    let Some(o) = read("calls", &[]) else { return };
    let linked = o.link(function(&o, "first")).expect("links");
    let names: Vec<_> = linked.functions.iter().map(|(_, f)| o.functions[f.index()].name.as_str()).collect();
    assert_eq!(names, ["first", "each", "weak_one", "global_sum", "twice"]);
    let starts: Vec<u32> = linked.functions.iter().map(|f| f.0).collect();
    assert_eq!(linked.func_info.iter().map(|f| f.0).collect::<Vec<_>>(), starts);
    let mut reached = Vec::new();
    for (at, i) in linked.insns.iter().enumerate() {
        let call = i.code == 0x85 && i.src == 1;
        let address = i.code == 0x18 && i.src == 4;
        if call || address {
            reached.push((at as i64 + 1 + i64::from(i.imm)) as u32);
        }
    }
    assert!(reached.len() >= 4 && reached.iter().all(|t| starts.contains(t)), "{reached:?} in {starts:?}");
    let small = o.link(function(&o, "third")).expect("links");
    assert_eq!(small.functions.len(), 3);
}

#[test]
fn maps_of_before_btf() {
    let Some(o) = read("legacy", &["-g0"]) else { return };
    assert!(o.btf.is_none());
    assert_eq!((o.kernel_version, o.programs[0].kind.program_type), (Some(0x040e00), ProgramType::XDP));
    let hosts = map(&o, "hosts");
    assert_eq!(hosts.origin, MapOrigin::Legacy);
    assert_eq!((hosts.spec.map_type, hosts.spec.max_entries, hosts.spec.flags), (MapType::HASH, 64, 1));
    assert_eq!(o.functions[0].relocs.len(), 2);
}

#[test]
fn maps_of_iproute2() {
    let Some(o) = read("iproute2", &["-g0"]) else { return };
    let (jmp, outer) = (map(&o, "jmp"), map(&o, "outer"));
    assert_eq!((jmp.origin, jmp.spec.pinning), (MapOrigin::Iproute2, Pinning::ObjectNs));
    assert_eq!(outer.spec.pinning, Pinning::GlobalNs);
    assert_eq!(outer.inner.as_ref().map(|i| i.value_size), Some(8));
    let nested = o.maps.iter().position(|m| m.name == "nested").expect("the inner map") as u32;
    assert_eq!(outer.initial, [(2, InitialValue::Map(millstream_object::MapId(nested)))]);
    assert_eq!(o.programs.iter().map(|p| p.section.as_str()).collect::<Vec<_>>(), ["1/0", "classifier"]);
}

#[test]
fn externs_of_every_kind() {
    let Some(o) = read("externs", &[]) else { return };
    let find = |name: &str| o.externs.iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no {name}"));
    assert!(matches!(find("bpf_task_acquire").kind, ExternKind::Kfunc { .. }));
    assert!(matches!(find("no_such_variable").kind, ExternKind::Ksym { type_id: Some(_) }));
    assert!(matches!(find("init_net_nowhere").kind, ExternKind::Ksym { type_id: None }));
    let place = |name: &str| match find(name).kind {
        ExternKind::Kconfig { offset, size, .. } => (offset, size),
        other => panic!("{other:?}"),
    };
    // By alignment: the long first, then the int, then the bool.
    assert_eq!(place("CONFIG_NO_SUCH_THING"), (0, 8));
    assert_eq!(place("LINUX_KERNEL_VERSION"), (8, 4));
    assert_eq!(place("CONFIG_BPF_SYSCALL"), (12, 1));
    assert_eq!(map(&o, "externs.kconfig").spec.value_size, 13);
    assert!(find("CONFIG_NO_SUCH_THING").weak && !find("LINUX_KERNEL_VERSION").weak);
}

#[test]
fn maps_in_sections_of_their_own_are_numbered_through() {
    let Some(o) = read("sections", &["-g0"]) else { return };
    let outer = map(&o, "outer");
    assert_eq!((outer.origin, outer.section.as_str()), (MapOrigin::Legacy, "maps/outer"));
    let inner = outer.inner.as_ref().expect("what inner maps are");
    assert_eq!((inner.map_type, inner.value_size, inner.max_entries), (MapType::HASH, 8, 32));
}

#[test]
fn what_is_called_in_a_section_that_names_no_type_is_a_subprogram() {
    let Some(o) = read("sections", &["-g0"]) else { return };
    let either = &o.functions[function(&o, "either").index()];
    assert_eq!((either.section.as_str(), either.subprogram), ("elsewhere", true));
    let programs: Vec<&str> = o.programs.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(programs, ["entry"]);
}
