//! No program of a result takes more predicted cycles than it did, unless few slots are all that counts.

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};
use millstream_object::{Object, RawInput};
use millstream_opt::{OptimizationGoal, OptimizeOptions, ProgramCosts, costs, optimize, trace};
use millstream_programs as programs;

/// Counts by the lower of two numbers, and returns 0 if there was a counter, else 1: shorter with a result of
/// its own on each path, which is one more jump on the usual one.
const COUNTS: &str = "
    r1 = *(u32 *)(r1 +12)
    r2 = 5
    if r2 > r1 goto low
    r1 = 5
low:
    *(u32 *)(r10 -4) = r1
    r2 = r10
    r2 += -4
    r1 = map[fd:0]
    call map_lookup_elem
    r1 = 1
    if r0 == 0 goto end
    r1 = *(u64 *)(r0 +0)
    r1 += 1
    *(u64 *)(r0 +0) = r1
    r1 = 0
end:
    r0 = r1
    exit
";
const MAPS: &str = "counters { type = 6, key_size = 4, value_size = 8, max_entries = 6, fd = 0 }\n";

fn counts() -> Object {
    let insns = encode_all(&assemble(COUNTS).expect("it assembles"));
    let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
    let files = RawInput { insns: &insns, maps: Some(MAPS.as_bytes()), ..RawInput::default() };
    Object::parse_raw("counts_xdp.insns", files, None).expect("a program")
}

fn made(object: &Object, goal: OptimizationGoal) -> Vec<ProgramCosts> {
    let options = OptimizeOptions { goal, ..OptimizeOptions::default() };
    costs(object, &optimize(object, &options).expect("optimized").object)
}

#[test]
fn what_is_shorter_and_slower_is_made_in_another_way() {
    let object = counts();
    let shortest = &made(&object, OptimizationGoal::Size)[0];
    assert!(
        shortest.after.cycles > shortest.before.cycles,
        "the test would not see a difference: {shortest:?}"
    );
    for goal in [OptimizationGoal::Balanced, OptimizationGoal::Latency] {
        let cost = &made(&object, goal)[0];
        assert!(cost.after.cycles <= cost.before.cycles, "{goal}: {cost:?}");
        assert!(cost.after.slots <= cost.before.slots, "{goal}: {cost:?}");
    }
}

#[test]
fn our_own_programs_become_no_slower() {
    let planes = [programs::ROUTER, programs::SWITCH, programs::FIREWALL, programs::NAT, programs::BALANCER];
    for plane in planes {
        let object = Object::parse(plane.name, plane.object).expect("a data plane");
        for cost in made(&object, OptimizationGoal::Balanced) {
            // Guesses that are carried over from one form to the other err by a thousandth.
            let most = cost.before.cycles + cost.before.cycles / 1000;
            assert!(cost.after.cycles <= most, "{}: {cost:?}", plane.name);
        }
    }
}

#[test]
fn where_another_form_was_taken_its_instructions_are_still_of_what_they_were_made_of() {
    let object = counts();
    let traced = trace(&object, &OptimizeOptions::default()).expect("traced");
    let told = traced.origins.expect("marks in place of lines decide nothing");
    let function = &traced.optimized.functions[0];
    assert_eq!(told[0].len(), function.after);
}
