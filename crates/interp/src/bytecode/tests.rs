use millstream_isa::asm::assemble;

use super::*;
use crate::maps::{MapKind, MapSpec};
use crate::{Context, Event, MapId, Redirect};

fn program(text: &str) -> Program {
    Program::from_insns(&assemble(text).unwrap())
}

/// Runs a program without packet or maps.
fn run(text: &str) -> Result<u64, Error> {
    let mut machine = Machine::default();
    Interpreter::new(&[program(text)]).run(&mut machine, 0, [0; 5])
}

fn value(text: &str) -> u64 {
    run(text).unwrap()
}

fn fault(text: &str) -> Fault {
    run(text).unwrap_err().fault
}

/// A machine with one map, which programs name `map[fd:0]`.
fn machine_with(kind: Context, spec: MapSpec) -> (Machine, MapId) {
    let mut machine = Machine::new(kind);
    let map = machine.maps.add(spec, 2).unwrap();
    (machine, map)
}

fn linked(text: &str) -> Program {
    let mut program = program(text);
    program.link(|_, pseudo, imm| match pseudo {
        Pseudo::MapFd => Some(Machine::map_address(MapId(imm as u32))),
        Pseudo::MapValue => Some(Machine::value_address_of(MapId(imm as u32), (imm >> 32) as u32)),
        _ => None,
    });
    program
}

fn spec(kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapSpec {
    MapSpec { kind, key_size, value_size, max_entries, flags: 0 }
}

#[test]
fn the_stack_holds_what_was_stored() {
    assert_eq!(value("r1 = 0x1122334455667788\n*(u64 *)(r10 -8) = r1\nr0 = *(u16 *)(r10 -7)\nexit"), 0x6677);
    assert_eq!(value("*(u32 *)(r10 -4) = -2\nr0 = *(s32 *)(r10 -4)\nexit"), -2i64 as u64);
}

#[test]
fn accesses_outside_of_an_object_fault() {
    assert!(matches!(fault("r0 = *(u8 *)(r10 +0)\nexit"), Fault::Access { write: false, .. }));
    assert!(matches!(fault("r1 = 0\n*(u64 *)(r1 +0) = r1\nexit"), Fault::Access { why: "null", .. }));
    assert!(matches!(fault("r0 = *(u8 *)(r10 -513)\nexit"), Fault::Access { .. }));
    assert_eq!(fault("r10 = 1\nexit"), Fault::FramePointer);
    assert_eq!(fault("r0 = 1"), Fault::End);
    assert_eq!(fault("goto pc-5"), Fault::Jump(-4));
    assert_eq!(fault("call unknown#999"), Fault::Helper(999));
}

#[test]
fn an_error_says_where() {
    let error = run("r0 = 0\nr0 = *(u8 *)(r0 +0)\nexit").unwrap_err();
    assert_eq!((error.program, error.slot), (0, 1));
    let nested = run("call f\nexit\nf:\nr0 = 0\nr0 = *(u8 *)(r0 +0)\nexit").unwrap_err();
    assert_eq!(nested.slot, 3);
}

#[test]
fn endless_loops_run_out_of_fuel() {
    let mut machine = Machine::default();
    machine.fuel = 1000;
    let programs = [program("again:\ngoto again")];
    let error = Interpreter::new(&programs).run(&mut machine, 0, [0; 5]).unwrap_err();
    assert_eq!((error.fault, machine.executed), (Fault::Fuel(1000), 1000));
}

#[test]
fn executed_instructions_are_counted_through_calls() {
    let mut machine = Machine::default();
    let programs = [program("r1 = 20\ncall double\nr0 += 2\nexit\ndouble:\nr0 = r1\nr0 += r0\nexit")];
    assert_eq!(Interpreter::new(&programs).run(&mut machine, 0, [0; 5]), Ok(42));
    assert_eq!(machine.executed, 7);
}

#[test]
fn callees_see_the_callers_stack_and_keep_its_registers() {
    let text =
        "r6 = 5\n*(u64 *)(r10 -8) = 1\nr1 = r10\nr1 += -8\ncall f\nr0 = *(u64 *)(r10 -8)\nr0 += r6\nexit
        f:\nr6 = 99\n*(u64 *)(r1 +0) = 7\n*(u64 *)(r10 -8) = 50\nr0 = 0\nexit";
    assert_eq!(value(text), 12);
    assert_eq!(fault("f:\ncall f\nexit"), Fault::Depth);
}

#[test]
fn atomics() {
    let add = "*(u64 *)(r10 -8) = 40\nr1 = 2\nr1 = atomic64_fetch_add((u64 *)(r10 -8), r1)\n";
    assert_eq!(value(&format!("{add} r0 = r1\nexit")), 40);
    assert_eq!(value(&format!("{add} r0 = *(u64 *)(r10 -8)\nexit")), 42);
    let exchange = "*(u64 *)(r10 -8) = -1\nr0 = -1\nr2 = 7\nr0 = atomic_cmpxchg((u32 *)(r10 -8), r0, r2)\n";
    assert_eq!(value(&format!("{exchange} exit")), 0xffff_ffff);
    assert_eq!(value(&format!("{exchange} r0 = *(u64 *)(r10 -8)\nexit")), 0xffff_ffff_0000_0007);
    assert_eq!(
        value("r1 = 9\nstore_release((u16 *)(r10 -8), r1)\nr0 = load_acquire((u8 *)(r10 -8))\nexit"),
        9
    );
}

#[test]
fn may_goto_leaves_in_the_end() {
    let mut machine = Machine::default();
    let programs = [program("r0 = 0\nagain:\nmay_goto out\nr0 += 1\ngoto again\nout:\nexit")];
    assert_eq!(Interpreter::new(&programs).run(&mut machine, 0, [0; 5]), Ok((1 << 23) - 1));
}

#[test]
fn callbacks_run_until_they_say_stop() {
    let text = "*(u64 *)(r10 -8) = 0\nr1 = 10\nr2 = subprog[+7]\nr3 = r10\nr3 += -8\nr4 = 0\ncall bpf_loop\n\
        r1 = *(u64 *)(r10 -8)\nexit\n\
        r3 = *(u64 *)(r2 +0)\nr3 += r1\n*(u64 *)(r2 +0) = r3\nr0 = 0\nif r1 != 3 goto pc+1\nr0 = 1\nexit";
    assert_eq!(value(text), 4);
}

#[test]
fn map_values_are_read_and_written_in_place() {
    let (mut machine, map) = machine_with(Context::Raw, spec(MapKind::Hash, 4, 8, 4));
    machine.maps.set(map, &7u32.to_le_bytes(), &5u64.to_le_bytes(), 0).unwrap();
    let text = "*(u32 *)(r10 -4) = 7\nr2 = r10\nr2 += -4\nr1 = map[fd:0]\ncall bpf_map_lookup_elem\n\
        if r0 == 0 goto out\nr1 = 1\nlock *(u64 *)(r0 +0) += r1\nr0 = *(u64 *)(r0 +0)\nout:\nexit";
    let programs = [linked(text)];
    assert_eq!(Interpreter::new(&programs).run(&mut machine, 0, [0; 5]), Ok(6));
    assert_eq!(machine.maps.get(map, &7u32.to_le_bytes()), Some(6u64.to_le_bytes().to_vec()));
    assert_eq!(machine.maps.delete(map, &7u32.to_le_bytes()), 0);
    assert_eq!(Interpreter::new(&programs).run(&mut machine, 0, [0; 5]), Ok(0));
}

#[test]
fn global_data_is_at_an_offset_of_the_only_value() {
    let (mut machine, map) = machine_with(Context::Raw, spec(MapKind::Array, 4, 16, 1));
    machine.maps.set(map, &[0; 4], &[3; 16], 0).unwrap();
    let programs = [linked("r1 = map[fd:0][0]+12\nr0 = *(u32 *)(r1 +0)\nexit")];
    assert_eq!(Interpreter::new(&programs).run(&mut machine, 0, [0; 5]), Ok(0x0303_0303));
}

#[test]
fn map_errors_are_the_kernels() {
    let (mut machine, _) = machine_with(Context::Raw, spec(MapKind::Array, 4, 8, 1));
    let text = "*(u32 *)(r10 -4) = 1\n*(u64 *)(r10 -16) = 1\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -16\n\
        r4 = 0\ncall bpf_map_update_elem\nexit";
    assert_eq!(Interpreter::new(&[linked(text)]).run(&mut machine, 0, [0; 5]), Ok(-7i64 as u64));
}

#[test]
fn xdp_reads_the_packet_through_its_context() {
    let mut machine = Machine::new(Context::Xdp);
    let text = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nr0 = 1\nif r4 > r3 goto out\n\
        r0 = *(u16 *)(r2 +12)\nr0 = be16 r0\nout:\nexit";
    let programs = [program(text)];
    let interpreter = Interpreter::new(&programs);
    machine.reset(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6, 0]);
    assert_eq!(interpreter.run_context(&mut machine, 0), Ok(0x806));
    machine.reset(&[0; 13]);
    assert_eq!(interpreter.run_context(&mut machine, 0), Ok(1));
    let beyond = [program("r2 = *(u32 *)(r1 +0)\nr0 = *(u16 *)(r2 +12)\nexit")];
    assert!(Interpreter::new(&beyond).run_context(&mut machine, 0).is_err());
}

#[test]
fn adjusting_the_head_renews_the_context() {
    let mut machine = Machine::new(Context::Xdp);
    machine.reset(&[9; 60]);
    let text = "r6 = r1\nr2 = -20\ncall bpf_xdp_adjust_head\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr3 -= r2\n\
        *(u8 *)(r2 +0) = 1\nr0 = r3\nexit";
    assert_eq!(Interpreter::new(&[program(text)]).run_context(&mut machine, 0), Ok(80));
    assert_eq!((machine.packet.bytes()[0], machine.packet.bytes()[20]), (1, 9));
}

#[test]
fn redirects_are_recorded() {
    let (mut machine, map) = machine_with(Context::Xdp, spec(MapKind::Devmap, 4, 4, 8));
    machine.maps.set(map, &3u32.to_le_bytes(), &9u32.to_le_bytes(), 0).unwrap();
    let text = |key| format!("r1 = map[fd:0]\nr2 = {key}\nr3 = 2\ncall bpf_redirect_map\nexit");
    assert_eq!(Interpreter::new(&[linked(&text(3))]).run_context(&mut machine, 0), Ok(4));
    assert_eq!(machine.env.redirect, Some(Redirect::Map { map, key: 3, flags: 2 }));
    assert_eq!(Interpreter::new(&[linked(&text(4))]).run_context(&mut machine, 0), Ok(2));
    assert_eq!(machine.env.redirect, None);
}

#[test]
fn tail_calls_replace_the_program_and_end_at_33() {
    let (mut machine, map) = machine_with(Context::Raw, spec(MapKind::ProgArray, 4, 4, 2));
    machine.maps.set(map, &[0; 4], &1u32.to_le_bytes(), 0).unwrap();
    machine.maps.set(map, &[1, 0, 0, 0], &2u32.to_le_bytes(), 0).unwrap();
    let chain = |index| format!("r2 = map[fd:0]\nr3 = {index}\ncall bpf_tail_call\nr0 = 77\nexit");
    let programs = [linked(&chain(0)), program("r0 = 5\nexit"), linked(&chain(1)), linked(&chain(9))];
    let interpreter = Interpreter::new(&programs);
    assert_eq!(interpreter.run_context(&mut machine, 0), Ok(5));
    machine.executed = 0;
    assert_eq!(interpreter.run_context(&mut machine, 2), Ok(77));
    assert_eq!(machine.executed, 34 * 3 + 2);
    assert_eq!(interpreter.run_context(&mut machine, 3), Ok(77));
}

#[test]
fn ring_buffer_records_become_events() {
    let (mut machine, map) = machine_with(Context::Raw, spec(MapKind::Ringbuf, 0, 0, 4096));
    let text = "r1 = map[fd:0]\nr2 = 4\nr3 = 0\ncall bpf_ringbuf_reserve\n*(u32 *)(r0 +0) = 7\nr1 = r0\nr2 = 0\n\
        call bpf_ringbuf_submit\nr0 = 0\nexit";
    assert_eq!(Interpreter::new(&[linked(text)]).run_context(&mut machine, 0), Ok(0));
    assert_eq!(machine.env.events, [Event::Ringbuf { map, data: vec![7, 0, 0, 0] }]);
    let twice = text.replace(
        "call bpf_ringbuf_submit",
        "r6 = r1\ncall bpf_ringbuf_submit\nr1 = r6\nr2 = 0\ncall bpf_ringbuf_submit",
    );
    let error = Interpreter::new(&[linked(&twice)]).run_context(&mut machine, 0).unwrap_err();
    assert!(matches!(error.fault, Fault::Argument { id: 132, .. }));
}

#[test]
fn every_element_is_walked() {
    let (mut machine, map) = machine_with(Context::Raw, spec(MapKind::Hash, 4, 8, 8));
    for i in 1..=5u32 {
        machine.maps.set(map, &i.to_le_bytes(), &u64::from(i).to_le_bytes(), 0).unwrap();
    }
    let text = "*(u64 *)(r10 -8) = 0\nr1 = map[fd:0]\nr2 = subprog[+9]\nr3 = r10\nr3 += -8\nr4 = 0\n\
        call bpf_for_each_map_elem\nr1 = *(u64 *)(r10 -8)\nr0 *= 100\nr0 += r1\nexit\n\
        r5 = *(u64 *)(r3 +0)\nr1 = *(u64 *)(r4 +0)\nr1 += r5\n*(u64 *)(r4 +0) = r1\nr0 = 0\nexit";
    assert_eq!(Interpreter::new(&[linked(text)]).run_context(&mut machine, 0), Ok(515));
}

#[test]
fn legacy_loads_are_in_network_order_and_end_the_program_beyond_the_packet() {
    let mut machine = Machine::new(Context::Skb);
    machine.reset(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x86, 0xdd, 0xaa]);
    let run = |machine: &mut Machine, load: &str| {
        let text = format!("r6 = r1\nr7 = 10\n{load}\nr0 += 1\nexit");
        Interpreter::new(&[program(&text)]).run_context(machine, 0)
    };
    assert_eq!(run(&mut machine, "r0 = *(u16 *)skb[12]"), Ok(0x86de));
    assert_eq!(run(&mut machine, "r0 = *(u8 *)skb[r7 + 1]"), Ok(12));
    assert_eq!(run(&mut machine, "r0 = *(u8 *)skb[-1048576]"), Ok(0xab));
    assert_eq!(run(&mut machine, "r0 = *(u32 *)skb[12]"), Ok(0));
}

#[test]
fn what_calls_clobber_is_not_what_it_was() {
    assert_ne!(value("r1 = 1\ncall bpf_ktime_get_ns\nr0 = r1\nexit"), 1);
}

#[test]
fn what_is_not_modelled_is_made_up_if_that_is_asked_for() {
    // The current task, the memory that it points to, and a number that may differ from answer to answer.
    let text = "call get_current_task\nr6 = r0\nr0 = *(u32 *)(r6 + 16)\nr7 = r10\nr7 += -8\nr1 = r7\nr2 = 8\nr3 = r6\n\
                call probe_read_kernel\nr8 = r0\nr1 = *(u64 *)(r10 - 8)\nr0 = *(u64 *)(r6 + 0)\n\
                r0 ^= r1\nr0 |= r8\nexit";
    assert!(matches!(fault(text), Fault::Helper(35)));
    let run = |text: &str, seed: u64| {
        let mut machine = Machine::default();
        machine.env.made_up = Some(seed);
        let result = Interpreter::new(&[program(text)]).run_context(&mut machine, 0);
        result.map(|result| (result, machine.env.events.len()))
    };
    for seed in 0..64 {
        // Both ways to read see the same.
        assert_eq!(run(text, seed).expect("a run"), (0, 0));
    }
    // A helper with effects that others can see leaves an event; and the kernel's memory cannot be written.
    let seen = "r1 = 0\nr2 = 7\ncall perf_event_read\nr0 = 0\nexit";
    assert_eq!(run(seen, 3).expect("a run"), (0, 1));
    // Helpers with constant answers, and others.
    let twice = |name: &str| {
        format!("r1 = 0\nr2 = 7\ncall {name}\nr6 = r0\nr1 = 0\nr2 = 7\ncall {name}\nr0 -= r6\nexit")
    };
    let differs = |name: &str| (0..16).any(|seed| run(&twice(name), seed).expect("a run").0 != 0);
    assert!(!differs("get_numa_node_id") && differs("perf_event_read"));
    let written = "call get_current_task\n*(u64 *)(r0 + 0) = 1\nr0 = 0\nexit";
    assert!(matches!(run(written, 1).expect_err("no run").fault, Fault::Access { write: true, .. }));
    // Up to the very end of all addresses.
    let last = "r1 = -8\nr0 = *(u64 *)(r1 + 0)\nr0 = 0\nexit";
    assert_eq!(run(last, 1).expect("a run").0, 0);
    // From one seed to another it is something else.
    let low = "call get_current_task\nexit";
    let answers: std::collections::BTreeSet<u64> =
        (0..8).map(|seed| run(low, seed).expect("a run").0).collect();
    assert_eq!(answers.len(), 8);
}
