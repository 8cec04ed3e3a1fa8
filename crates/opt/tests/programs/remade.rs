//! A program that the kernel measures as longer than it was is made in another way, and the report says so.

use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_kernel::testing;
use millstream_object::{FuncId, NewFunction, Object};
use millstream_opt::{CheckedObject, KernelVerdict, OptimizeOptions, check};
use millstream_programs::ROUTER;

/// Divisions by constants, which are shorter than their replacements.
const DIVIDES: &str = "
    r6 = *(u32 *)(r1 + 12)
    r7 = *(u32 *)(r1 + 16)
    w6 /= 10
    w7 /= 1000
    w6 += w7
    r0 = 2
    if w6 > 7 goto end
    r0 = 1
end:
    exit
";

/// An object whose program divides, after passes that make code longer.
fn divided(passes: &[&str]) -> CheckedObject {
    let mut object = Object::parse("divide.o", ROUTER.object).expect("our own object");
    let entry: FuncId = object.programs[0].func;
    let insns = encode_all(&assemble(DIVIDES).expect("it assembles"));
    object.replace_function(entry, NewFunction { insns, ..NewFunction::default() }).expect("it fits");
    let options = OptimizeOptions {
        passes: passes.iter().map(|p| p.to_string()).collect(),
        keep_longer: true,
        ..OptimizeOptions::default()
    };
    check(&object, options).expect("the object can be checked")
}

#[test]
fn what_became_longer_is_made_in_another_way() {
    if !testing::require() {
        return;
    }
    let remade = divided(&["divide"]);
    let program = &remade.programs[0];
    assert!(
        remade.optimized.passes.iter().any(|p| p.name == "divide" && p.rewrites > 0),
        "no division was replaced"
    );
    assert!(
        matches!(&program.verdict, KernelVerdict::Remade(why) if why.contains("slots")),
        "{:?}",
        program.verdict
    );
    let (before, after) = (program.before.unwrap(), program.after.unwrap());
    assert!(after.slots <= before.slots, "{before:?} {after:?}");
    assert!(remade.is_clean());

    let plain = divided(&["gvn"]);
    assert_eq!(plain.programs[0].verdict, KernelVerdict::Accepted);
}
