//! Functions that are left as they were still call functions that were inlined elsewhere.

use millstream_isa::{Insn, Operand, Reg, Width};
use millstream_object::{NewFunction, RelocKind};
use millstream_opt::{FunctionOutcome, OptimizeOptions, optimize};

use super::code::Code;
use super::template::Template;

/// A function that calls another, or adds to its argument.
fn function(calls: Option<millstream_object::FuncId>) -> NewFunction {
    let mut code = Code::default();
    match calls {
        Some(callee) => {
            code.set(Reg::R1, 7);
            code.relocated(Reg::R0, RelocKind::Call(callee));
        }
        None => code.put(Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Reg(Reg::R1) }),
    }
    code.exit();
    code.finish()
}

#[test]
fn what_a_function_that_is_left_calls_is_not_removed() {
    let template = Template::new();
    let mut object = template.object.clone();
    let [entry, other, _] = template.programs[0];
    let [shared, outer, inner, _] = template.subs[..] else { panic!("the template has other functions") };
    // One function is called by two programs, another by one, and calls a third: all can be inlined.
    let mut both = Code::default();
    for callee in [shared, outer] {
        both.set(Reg::R1, 7);
        both.relocated(Reg::R0, RelocKind::Call(callee));
    }
    both.exit();
    object.replace_function(other, both.finish()).expect("it fits");
    for (func, callee) in [(entry, Some(shared)), (shared, None), (outer, Some(inner)), (inner, None)] {
        object.replace_function(func, function(callee)).expect("it fits");
    }
    let inlined = OptimizeOptions { inline: Some(true), ..OptimizeOptions::default() };
    let all = optimize(&object, &inlined).expect("it can be optimized");
    let outcomes = [shared, outer, inner].map(|f| &all.functions[f.index()].outcome);
    assert_eq!(outcomes, [&FunctionOutcome::Removed; 3], "the test would not see a difference");

    let leave = [other.0].into_iter().collect();
    let left =
        optimize(&object, &OptimizeOptions { leave, ..inlined }).expect("one program is left as it was");
    for func in [other, shared, outer, inner] {
        assert_eq!(left.object.functions[func.index()].insns, object.functions[func.index()].insns);
        assert!(!left.object.functions[func.index()].removed);
    }
    assert_ne!(left.object.functions[entry.index()].insns, object.functions[entry.index()].insns);
    for program in [entry, other] {
        left.object.link(program).expect("every program has what it calls");
    }
    let report = &left.functions[outer.index()];
    assert_eq!((report.before, report.after, &report.outcome), (3, 3, &FunctionOutcome::NothingToDo));
}

#[test]
fn functions_that_nobody_calls_go_in_any_order() {
    let template = Template::new();
    let mut object = template.object.clone();
    // Nobody calls one function, and it alone refers to another, which comes before it.
    let (caller, callback) = (template.subs[0], template.each);
    assert!(callback < caller);
    let mut code = Code::default();
    code.relocated(Reg::R2, RelocKind::FuncAddr(callback));
    code.set(Reg::R1, 3);
    code.set(Reg::R3, 0);
    code.set(Reg::R4, 0);
    code.helper(181);
    code.exit();
    object.replace_function(caller, code.finish()).expect("it fits");
    let made = optimize(&object, &OptimizeOptions { inline: Some(true), ..OptimizeOptions::default() })
        .expect("it is optimized");
    assert!([caller, callback].iter().all(|f| made.object.functions[f.index()].removed));
}
