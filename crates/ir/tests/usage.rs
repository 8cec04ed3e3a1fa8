//! Maps that a module changes, and the bytes of their values.

use millstream_ir::text::parse_module;
use millstream_ir::usage::{AccessRange, MapAccess, ModuleMapUsage};
use millstream_ir::verify::verify_module;
use millstream_ir::{Func, Map, Module};

/// Two hashes, an array of global data, a map of maps whose template has the shape of `map0`.
fn module(functions: &str) -> Module {
    let module = parse_module(&format!(
        "map map0 \"a\" kind=1 key=4 value=32 entries=4 flags=0\n\
         map map1 \"b\" kind=1 key=4 value=16 entries=4 flags=0\n\
         map map2 \".data\" kind=2 key=4 value=64 entries=1 flags=0 global=data\n\
         map map3 \"outer\" kind=12 key=4 value=4 entries=8 flags=0 inner=map4\n\
         map map4 \"outer.inner\" kind=1 key=4 value=32 entries=4 flags=0\n{functions}"
    ))
    .unwrap();
    assert_eq!(verify_module(&module), []);
    module
}

fn program(body: &str) -> Module {
    module(&format!(
        "fn0 \"p\" program(6) returns {{\n ss0 size=16 align=8\nblock0(v0: ptr(ctx), v1: i64):\n{body}\nreturn v1\n}}"
    ))
}

#[track_caller]
fn check(module: &Module, expect: [MapAccess; 5]) {
    let usage = ModuleMapUsage::new(module);
    let maps = [0, 1, 2, 3, 4].map(Map::from_u32);
    assert_eq!(maps.map(|m| usage.of_program(Func::from_u32(0), m).access(&module.maps[m])), expect);
}

fn fields(ranges: &[(u32, u32)]) -> MapAccess {
    MapAccess::FieldsWritten(ranges.iter().map(|&(start, end)| AccessRange { start, end }).collect())
}

use MapAccess::{ReadOnly, Unused, Written};

#[test]
fn lookups_and_loads_leave_a_map_as_it_is() {
    let m = program("v2: any = map_lookup.map0.[w@0] v1\nv3: i64 = load.dw.u.8.plain v2");
    check(&m, [ReadOnly, Unused, Unused, Unused, Unused]);
    let usage = ModuleMapUsage::new(&m).of_module(Map::from_u32(0));
    assert_eq!(usage.bytes_read(), [AccessRange { start: 8, end: 16 }]);
}

#[test]
fn counters_are_fields_that_are_written() {
    let m = program(
        "v2: any = map_lookup.map0.[w@0] v1
         v3: i64 = const.8
         v4: any = alu.add.w64 v2, v3
         atomic.add.dw.0 v4, v1
         store.w.16.plain v2, v1
         v5: any = map_value_addr.map2.60
         store.b.1.plain v5, v1",
    );
    check(&m, [fields(&[(8, 20)]), Unused, fields(&[(61, 62)]), Unused, Unused]);
}

#[test]
fn a_variable_offset_may_be_any_byte() {
    let m =
        program("v2: any = map_lookup.map0.[w@0] v1\nv3: any = alu.add.w64 v2, v1\nstore.b.0.plain v3, v1");
    check(&m, [Written, Unused, Unused, Unused, Unused]);
}

#[test]
fn pointers_are_followed_through_memory_and_parameters() {
    let m = program(
        "v2: any = map_lookup.map0.[w@0] v1
         v3: any = map_lookup.map1.[w@0] v1
         v4: ptr(stack) = stack_addr.ss0.0
         store.dw.0.plain v4, v2
         v5: any = load.dw.u.0.plain v4
         store.h.4.plain v5, v1
         br.eq.w64 v1, v0, block1(v2), block1(v3)
         block1(v6: any):
         store.b.9.plain v6, v1",
    );
    check(&m, [fields(&[(4, 6), (9, 10)]), fields(&[(9, 10)]), Unused, Unused, Unused]);
}

#[test]
fn updates_and_deletes_change_entries() {
    let m = program(
        "v2: ptr(map0) = map_addr.map0
         v3: ptr(stack) = stack_addr.ss0.0
         v4: i64 = helper.2 v2, v3, v3, v1
         v5: i64 = map_delete.map1.[w@0] v1",
    );
    check(&m, [Written, Written, Unused, Unused, Unused]);
}

#[test]
fn helpers_write_what_they_are_given_to_fill() {
    let m = program(
        "v2: any = map_lookup.map0.[w@0] v1
         v3: i64 = const.4
         v4: any = alu.add.w64 v2, v3
         v5: i64 = const.8
         v6: i64 = helper.16 v4, v5
         v7: any = map_lookup.map1.[w@0] v1
         v8: i64 = helper.9999 v7",
    );
    check(&m, [fields(&[(4, 12)]), Written, Unused, Unused, Unused]);
}

#[test]
fn an_inner_map_may_be_any_map_of_its_shape() {
    let m = program(
        "v2: ptr(map3) = map_addr.map3
         v3: ptr(stack) = stack_addr.ss0.0
         v4: any = helper.1 v2, v3
         v5: any = helper.1 v4, v3
         store.w.0.plain v5, v1",
    );
    check(&m, [fields(&[(0, 4)]), Unused, Unused, ReadOnly, fields(&[(0, 4)])]);
}

#[test]
fn callees_and_callbacks_count_for_the_program() {
    let m = module(
        "fn0 \"p\" program(6) returns {
         block0(v0: ptr(ctx)):
           v1: i64 = const.0
           v2: any = map_value_addr.map2.8
           v3: i64 = call.fn1 v2
           v4: ptr(map0) = map_addr.map0
           v5: ptr(func) = func_addr.fn2
           v6: i64 = helper.164 v4, v5, v2, v1
           return v1
         }
         fn1 \"callee\" static returns {
         block0(v0: any):
           store.w.0.plain v0, v0
           return v0
         }
         fn2 \"callback\" static returns {
         block0(v0: any, v1: any, v2: any, v3: any):
           store.w.4.plain v2, v0
           store.b.4.plain v3, v0
           return v0
         }",
    );
    check(&m, [fields(&[(4, 8)]), Unused, fields(&[(8, 13)]), Unused, Unused]);
}

#[test]
fn an_address_of_which_nothing_is_known_may_be_in_any_map() {
    let m = module(
        "fn0 \"p\" program(26) returns {
         block0(v0: ptr(ctx)):
           v1: any = load.dw.u.8.plain v0
           store.w.0.plain v1, v0
           return v0
         }",
    );
    check(&m, [Written, Written, Written, Written, Written]);
}
