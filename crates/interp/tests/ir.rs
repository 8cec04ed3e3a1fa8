//! The IR's interpreter: operations over memory, maps, packets, calls.

use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, Fault, MachineState, SideEffect};
use millstream_ir::text::parse_module;
use millstream_ir::verify::verify_module;
use millstream_ir::{Func, Map, Module};

fn module(text: &str) -> Module {
    let module = parse_module(text).unwrap();
    assert_eq!(verify_module(&module), []);
    module
}

/// A module of one function with two arguments.
fn function(body: &str) -> Module {
    module(&format!(
        "map map0 \"h\" kind=1 key=8 value=8 entries=4 flags=0\n\
         map map1 \"a\" kind=2 key=4 value=16 entries=1 flags=0\n\
         fn0 \"f\" program(6) returns {{\n  ss0 size=8 align=8\nblock0(v0: any, v1: any):\n{body}\n}}\n"
    ))
}

#[track_caller]
fn run(body: &str, args: [u64; 2]) -> u64 {
    let module = function(body);
    let mut machine = MachineState::new(ContextKind::Xdp);
    IrInterpreter::new(&module, &mut machine).run(&mut machine, Func::from_u32(0), &args).unwrap()
}

#[test]
fn narrow_arithmetic_zero_extends() {
    let body = "v2: i32 = alu.sub.w32 v0, v1\nreturn v2";
    assert_eq!(run(body, [0xffff_ffff_0000_0001, 2]), 0xffff_ffff);
}

#[test]
fn block_parameters_are_set_at_once() {
    let body = "v2: i64 = const.1
        v3: i64 = const.0
        jump block1(v0, v1, v3)
        block1(v4: i64, v5: i64, v6: i64):
        v7: i64 = alu.add.w64 v6, v2
        br.ult.w64 v7, v0, block1(v5, v4, v7), block2
        block2:
        return v4";
    assert_eq!((run(body, [3, 7]), run(body, [4, 7])), (3, 7));
}

#[test]
fn truth_values_select() {
    let body = "v2: i1 = cmp.slt.w64 v0, v1\nv3: i64 = select v2, v0, v1\nreturn v3";
    assert_eq!(run(body, [u64::MAX, 5]), u64::MAX);
    assert_eq!(run(body, [6, 5]), 5);
}

#[test]
fn map_entries_are_made_found_changed_and_deleted() {
    // The key is a word of 4 bytes and a half word; two bytes are covered by no piece.
    let body = "v2: i64 = const.0
        v3: i64 = map_update.map0.[w@0+h@4].[dw@0] v0, v1, v1, v2
        v4: ptr(value?:map0) = map_lookup.map0.[w@0+h@4] v0, v1
        v5: i64 = const.10
        v6: i64 = atomic_fetch.add.dw.0 v4, v5
        v7: ptr(value?:map0) = map_lookup.map0.[w@0+h@4] v0, v1
        v8: i64 = load.dw.u.0.plain v7
        v9: i64 = map_delete.map0.[w@0+h@4] v0, v1
        v10: ptr(value?:map0) = map_lookup.map0.[w@0+h@4] v0, v1
        v11: i64 = alu.add.w64 v8, v10
        v12: i64 = alu.add.w64 v11, v9
        return v12";
    assert_eq!(run(body, [1, 32]), 42);
}

#[test]
fn global_data_and_stack_objects_hold_what_is_stored() {
    let body = "v2: ptr(value:map1) = map_value_addr.map1.4
        store.h.4.plain v2, v0
        v3: ptr(stack) = stack_addr.ss0.2
        store.w.0.plain v3, v1
        v4: i64 = load.h.s.4.plain v2
        v5: i64 = load.dw.u.-2.plain v3
        v6: i64 = alu.add.w64 v4, v5
        return v6";
    assert_eq!(run(body, [0x1ffff, 0x12]), 0x12_0000 - 1);
}

#[test]
fn helpers_take_and_give() {
    let body = "v2: ptr(map0) = map_addr.map0
        v3: ptr(stack) = stack_addr.ss0.0
        store.dw.0.plain v3, v0
        v4: i64 = const.0
        v5: i64 = helper.2 v2, v3, v3, v4
        v6: ptr(value?:map0) = helper.1 v2, v3
        v7: i64 = load.dw.u.0.plain v6
        return v7";
    assert_eq!(run(body, [77, 0]), 77);
}

#[test]
fn calls_have_frames_of_their_own() {
    let module = module(
        "fn0 \"f\" static returns {
           ss0 size=8 align=8
         block0(v0: i64):
           v1: ptr(stack) = stack_addr.ss0.0
           store.dw.0.plain v1, v0
           v2: i64 = const.0
           br.eq.w64 v0, v2, block2, block1
         block1:
           v3: i64 = const.1
           v4: i64 = alu.sub.w64 v0, v3
           v5: i64 = call.fn0 v4
           v6: i64 = load.dw.u.0.plain v1
           v7: i64 = alu.add.w64 v5, v6
           return v7
         block2:
           return v2
         }",
    );
    let mut machine = MachineState::default();
    let interpreter = IrInterpreter::new(&module, &mut machine);
    let mut call = |n| interpreter.run(&mut machine, Func::from_u32(0), &[n]);
    assert_eq!(call(7).unwrap(), 28);
    let error = call(8).unwrap_err();
    assert_eq!((error.fault, error.text.as_str()), (Fault::Depth, "v5: i64 = call.fn0 v4"));
}

#[test]
fn callbacks_reach_the_callers_stack() {
    let module = module(
        "fn0 \"f\" static returns {
           ss0 size=8 align=8
         block0:
           v0: ptr(func) = func_addr.fn1
           v1: ptr(stack) = stack_addr.ss0.0
           v2: i64 = const.10
           v3: i64 = const.0
           v4: i64 = helper.181 v2, v0, v1, v3
           v5: i64 = load.dw.u.0.plain v1
           return v5
         }
         fn1 \"body\" static returns {
         block0(v0: i64, v1: ptr(stack)):
           atomic.add.dw.0 v1, v0
           v2: i64 = const.0
           return v2
         }",
    );
    let mut machine = MachineState::default();
    let interpreter = IrInterpreter::new(&module, &mut machine);
    assert_eq!(interpreter.run(&mut machine, Func::from_u32(0), &[]), Ok(45));
}

#[test]
fn tail_calls_go_to_the_programs_of_the_module() {
    let module = module(
        "map map0 \"progs\" kind=3 key=4 value=4 entries=2 flags=0
         fn0 \"a\" program(6) returns {
         block0(v0: ptr(ctx)):
           v1: ptr(map0) = map_addr.map0
           v2: i64 = const.1
           v3: i64 = helper.12 v0, v1, v2
           return v2
         }
         fn1 \"b\" program(6) returns {
         block0(v0: ptr(ctx)):
           v1: i64 = const.2
           return v1
         }",
    );
    let mut machine = MachineState::new(ContextKind::Xdp);
    let interpreter = IrInterpreter::new(&module, &mut machine);
    let progs = interpreter.map(Map::from_u32(0)).unwrap();
    assert_eq!(interpreter.run_context(&mut machine, Func::from_u32(0)), Ok(1));
    machine.maps.set(progs, &1u32.to_le_bytes(), &1u32.to_le_bytes(), 0).unwrap();
    assert_eq!(interpreter.run_context(&mut machine, Func::from_u32(0)), Ok(2));
}

#[test]
fn tables_take_wide_fields_in_several_arguments() {
    let module = module(
        "table table0 \"t\" {
           field \"addr\" 128 prefix
           field \"port\" 16 range
           entry 0x2001_0/32, 80..90
           entry 0x2001_0/16, 0..65535
         }
         fn0 \"f\" static returns {
         block0(v0: i64, v1: i64, v2: i64):
           v3: i64 = table_match.table0 v0, v1, v2
           return v3
         }",
    );
    let mut machine = MachineState::default();
    let interpreter = IrInterpreter::new(&module, &mut machine);
    let mut find =
        |addr: u64, port| interpreter.run(&mut machine, Func::from_u32(0), &[addr, 9, port]).unwrap();
    assert_eq!(find(0x2001, 85) as i64, 0);
    assert_eq!(find(0x2001, 91) as i64, 1);
    assert_eq!(find(0x1_0000_0000_0000, 85) as i64, -1);
}

#[test]
fn packets_are_copied_emitted_held_and_pulled() {
    let module = module(
        "fn0 \"f\" program(6) returns {
         block0(v0: ptr(ctx)):
           v1: any = clone_packet v0
           v2: i64 = const.5
           store.b.0.plain v1, v2
           emit v1, v2
           hold.back v0, v2
           v3: any = pull v2
           v4: i64 = const.9
           emit v3, v4
           v5: any = pull v2
           return v5
         }",
    );
    let mut machine = MachineState::new(ContextKind::Xdp);
    machine.reset(&[1, 2, 3]);
    let interpreter = IrInterpreter::new(&module, &mut machine);
    assert_eq!(interpreter.run_context(&mut machine, Func::from_u32(0)), Ok(0));
    let emitted = |port, data: &[u8]| SideEffect::Emit { port, data: data.to_vec() };
    assert_eq!(machine.env.events, [emitted(5, &[5, 2, 3]), emitted(9, &[1, 2, 3])]);
}

#[test]
fn an_emitted_packet_is_gone() {
    let module = function("v2: any = clone_packet v0\nemit v2, v1\nv3: i64 = load.b.u.0.plain v2\nreturn v3");
    let mut machine = MachineState::new(ContextKind::Xdp);
    let interpreter = IrInterpreter::new(&module, &mut machine);
    let error = interpreter.run_context(&mut machine, Func::from_u32(0)).unwrap_err();
    assert!(matches!(error.fault, Fault::Access { .. }), "{error}");
    assert!(
        error.to_string().starts_with("f: block0: `v3: i64 = load.b.u.0.plain v2`: read of 1 bytes"),
        "{error}"
    );
}

#[test]
fn endless_loops_run_out_of_fuel() {
    let module = function("jump block1\nblock1:\njump block1");
    let mut machine = MachineState::default();
    machine.fuel = 1000;
    let interpreter = IrInterpreter::new(&module, &mut machine);
    let error = interpreter.run(&mut machine, Func::from_u32(0), &[0, 0]).unwrap_err();
    assert_eq!(error.fault, Fault::Fuel(1000));
}
