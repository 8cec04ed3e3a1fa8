//! Jump tables of clang 22, read as decision trees.

use millstream_object::{Object, RelocKind};

const GOTOX: u8 = 0x0d;
const JUMP_IF_AT_LEAST: u8 = 0x35;
/// `fixtures/switches.bpf.c` by clang 22, which says how at its top.
const SWITCHES: &[u8] = include_bytes!("../fixtures/switches.clang22.o");

fn switches() -> Object {
    Object::parse("switches.o", SWITCHES).expect("the object can be read")
}

#[test]
fn tables_become_trees_of_comparisons() {
    let object = switches();
    assert_eq!(object.opaque_parts(), Vec::<String>::new());
    for f in &object.functions {
        assert!(f.insns.iter().all(|insn| insn.code != GOTOX), "{}", f.name);
        let tests = f.insns.iter().filter(|insn| insn.code == JUMP_IF_AT_LEAST).count();
        assert!(tests >= 3, "{}: {tests} tests", f.name);
        // The only reference that is left is that to the map.
        assert!(f.relocs.iter().all(|r| matches!(r.kind, RelocKind::Map(_))), "{}: {:?}", f.name, f.relocs);
    }
    for program in &object.programs {
        object.link(program.func).expect("the program can be linked");
    }
}

#[test]
fn every_jump_leads_to_an_instruction() {
    for f in &switches().functions {
        let mut starts = vec![true; f.insns.len()];
        for (at, insn) in f.insns.iter().enumerate() {
            if insn.code == 0x18 {
                starts[at + 1] = false;
            }
        }
        for (at, insn) in f.insns.iter().enumerate() {
            let jumps = matches!(insn.code & 7, 5 | 6) && !matches!(insn.code, 0x85 | 0x95);
            if jumps {
                let by = if insn.code == 6 { insn.imm as isize } else { insn.off.into() };
                let to = (at + 1).checked_add_signed(by).expect("a slot");
                assert!(starts.get(to) == Some(&true), "{}: slot {at} leads to {to}", f.name);
            }
        }
    }
}

#[test]
fn the_tables_are_not_written_again() {
    let written = switches().write().expect("the object can be written");
    let again = Object::parse("switches.o", &written).expect("the written object can be read");
    assert!(again.notes.is_empty(), "{:?}", again.notes);
    assert_eq!(again.functions, switches().functions.into_iter().map(moved(&again)).collect::<Vec<_>>());
}

/// A function with the start that the written object gives it.
fn moved(again: &Object) -> impl Fn(millstream_object::ObjectFunction) -> millstream_object::ObjectFunction {
    let starts: Vec<u32> = again.functions.iter().map(|f| f.start).collect();
    let names: Vec<String> = again.functions.iter().map(|f| f.name.clone()).collect();
    move |f| {
        let start = names.iter().position(|n| *n == f.name).map_or(f.start, |n| starts[n]);
        millstream_object::ObjectFunction { start, ..f }
    }
}

/// A table that leads out of its function, and one that is cut off, leave the function as it is.
#[test]
fn tables_that_are_not_understood_leave_the_function() {
    let start = SWITCHES.windows(8).position(|w| w == 0x78u64.to_le_bytes()).expect("the first entry");
    for wrong in [u64::MAX, 0x7c, 1 << 40] {
        let mut bytes = SWITCHES.to_vec();
        bytes[start..start + 8].copy_from_slice(&wrong.to_le_bytes());
        let object = Object::parse("switches.o", &bytes).expect("the object can be read");
        let kept = object.functions.iter().find(|f| f.name == "switched").and_then(|f| f.kept.clone());
        assert!(kept.expect("it is kept").reason.contains("jump table"), "{wrong:#x}");
        object.write().expect("the object can be written");
    }
}
