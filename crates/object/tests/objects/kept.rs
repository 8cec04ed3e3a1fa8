//! Parts that are not understood go through, and the rest of the object can be changed.

use crate::common::{compile, read};
use millstream_isa::RawInsn;
use millstream_object::{
    FuncId, MapOrigin, NewFunction, Object, ObjectError, ObjectFunction, Reloc, RelocKind,
};

const NOP: RawInsn = RawInsn { code: 0x05, dst: 0, src: 0, off: 0, imm: 0 };
/// A jump to the address in a register, since Linux 6.19.
const GOTOX: u8 = 0x0d;

fn named<'a>(o: &'a Object, name: &str) -> (FuncId, &'a ObjectFunction) {
    let found =
        o.functions.iter().position(|f| f.name == name).unwrap_or_else(|| panic!("no function {name}"));
    (FuncId(found as u32), &o.functions[found])
}

fn reason(o: &Object, name: &str) -> String {
    named(o, name).1.kept.as_ref().map(|kept| kept.reason.clone()).unwrap_or_default()
}

/// Everything that may be changed gets an instruction in front.
fn grown(o: &Object) -> Object {
    let mut new = o.clone();
    for (n, f) in o.functions.iter().enumerate().filter(|(_, f)| f.kept.is_none()) {
        let insns = [NOP].into_iter().chain(f.insns.iter().copied()).collect();
        let relocs = f.relocs.iter().map(|r| Reloc { insn: r.insn + 1, kind: r.kind }).collect();
        let contents = NewFunction { insns, relocs, ..NewFunction::default() };
        new.replace_function(FuncId(n as u32), contents).expect("it fits");
    }
    new
}

fn again(o: &Object) -> Object {
    Object::parse("again.o", &o.write().expect("it can be written")).expect("it can be read again")
}

/// Bytes of the section of that name.
fn section(data: &[u8], name: &str) -> Vec<u8> {
    let header = crate::hostile::header(data, name);
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes")) as usize;
    data[word(header + 24)..][..word(header + 32)].to_vec()
}

#[test]
fn functions_that_are_not_understood_move_as_they_are_and_the_others_change() {
    let Some(o) = read("strange", &[]) else { return };
    assert!(reason(&o, "jumps").contains("relocation at slot 3"), "{}", reason(&o, "jumps"));
    assert!(reason(&o, "foreign").contains(".elsewhere"), "{}", reason(&o, "foreign"));
    for name in ["leading", "last", "plain", "helped"] {
        assert_eq!(reason(&o, name), "", "{name}");
    }
    let new = grown(&o);
    let data = new.write().expect("it can be written");
    let read = Object::parse("new.o", &data).expect("it can be read again");
    for name in ["jumps", "foreign"] {
        let ((_, was), (_, is)) = (named(&o, name), named(&read, name));
        assert_eq!((&was.insns, &was.relocs, &was.kept), (&is.insns, &is.relocs, &is.kept), "{name}");
    }
    let (_, jumps) = named(&read, "jumps");
    assert_eq!(jumps.start, 3, "it has moved");
    let table = section(&data, ".jumptables");
    let places: Vec<u64> =
        table.chunks(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
    let slot = |n: u64| u64::from(jumps.start) + n;
    assert_eq!(places, [8 * slot(8), 8 * slot(10)], "behind the jump, and the second label");
    assert_eq!(jumps.insns[7].code, GOTOX);
}

#[test]
fn what_is_kept_can_be_neither_changed_nor_removed() {
    let Some(mut o) = read("strange", &[]) else { return };
    let (jumps, f) = named(&o, "jumps");
    let contents = NewFunction { insns: f.insns.clone(), ..NewFunction::default() };
    let refused = |r: Result<(), ObjectError>| matches!(r, Err(ObjectError::NotUnderstood { .. }));
    assert!(refused(o.replace_function(jumps, contents)));
    assert!(refused(o.remove_function(jumps)));
    assert!(matches!(o.link(jumps), Err(ObjectError::NotUnderstood { .. })));
    let (plain, _) = named(&o, "plain");
    assert!(o.link(plain).is_ok());
}

#[test]
fn instructions_of_no_function_stay() {
    let Some(o) = read("strange", &[]) else { return };
    let gap = |o: &Object| {
        let found = o.functions.iter().find(|f| f.name.starts_with("xdp+")).expect("a gap");
        (found.start, found.insns.clone(), found.subprogram)
    };
    let (was, is) = (gap(&o), gap(&again(&grown(&o))));
    assert_eq!((is.0, is.1, is.2), (was.0 + 2, was.1, true), "two functions in front of it have grown");
    assert_eq!(o.programs.len(), again(&o).programs.len());
}

/// The relocation of a section at this place of its instructions gets another kind.
fn with_kind(data: &[u8], table: &str, offset: u64, kind: u32) -> Vec<u8> {
    let mut data = data.to_vec();
    let header = crate::hostile::header(&data, table);
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes")) as usize;
    let (start, size) = (word(header + 24), word(header + 32));
    let entry =
        (start..start + size).step_by(16).find(|at| word(*at) as u64 == offset).expect("a relocation");
    data[entry + 8..entry + 12].copy_from_slice(&kind.to_le_bytes());
    data
}

#[test]
fn a_relocation_of_unknown_kind_concerns_its_function_alone_and_goes_through() {
    let Some((_, data)) = compile("calls", &[]) else { return };
    let o = Object::parse("calls.o", &data).expect("it can be read");
    let (_, twice) = named(&o, "twice");
    let reloc = twice.relocs.iter().find(|r| matches!(r.kind, RelocKind::MapValue { .. })).expect("one");
    let offset = u64::from(twice.start + reloc.insn) * 8;
    let o = Object::parse("calls.o", &with_kind(&data, ".rel.text", offset, 77)).expect("it can be read");
    assert!(reason(&o, "twice").contains("kind 77"), "{}", reason(&o, "twice"));
    assert_eq!(o.functions.iter().filter(|f| f.kept.is_some()).count(), 1);
    let written = grown(&o).write().expect("it can be written");
    let read = Object::parse("new.o", &written).expect("it can be read again");
    assert!(reason(&read, "twice").contains("kind 77"));
    let calls = |o: &Object| named(o, "global_sum").1.relocs.clone();
    assert_eq!(calls(&read).len(), calls(&o).len());
    assert!(read.link(named(&read, "first").0).is_err(), "it reaches what is not understood");
    assert!(read.link(named(&read, "second").0).is_ok() == o.link(named(&o, "second").0).is_ok());
}

#[test]
fn types_that_are_not_understood_freeze_the_object() {
    let Some((_, mut data)) = compile("calls", &[]) else { return };
    let header = crate::hostile::header(&data, ".BTF");
    let start = u64::from_le_bytes(data[header + 24..header + 32].try_into().expect("8 bytes")) as usize;
    // The kind of the first type.
    data[start + 24 + 7] = 31;
    let mut o = Object::parse("calls.o", &data).expect("it can be read");
    let why = o.frozen.clone().expect("it is frozen");
    assert!(o.opaque_parts().iter().any(|s| s.contains(&why)), "{why}");
    assert!(matches!(o.remove_function(FuncId(0)), Err(ObjectError::NotUnderstood { .. })));
    let written = o.write().expect("it can be written");
    for name in ["tc", ".text", ".BTF", ".BTF.ext", ".rel.text"] {
        assert_eq!(section(&written, name), section(&data, name), "{name}");
    }
}

#[test]
fn a_co_re_relocation_of_unknown_kind_concerns_its_function_alone_and_goes_through() {
    let Some((_, data)) = compile("core", &[]) else { return };
    let o = Object::parse("core.o", &data).expect("it can be read");
    let f = o.functions.iter().find(|f| !f.core_relos.is_empty()).expect("one");
    let core = f.core_relos[0];
    let words = [(f.start + core.insn) * 8, core.type_id.0, core.access.0, core.kind as u32];
    let bytes = |kind: u32| [words[0], words[1], words[2], kind].map(u32::to_le_bytes).concat();
    let at = data.windows(16).position(|w| w == bytes(words[3])).expect("its record");
    let mut strange = data.clone();
    strange[at..at + 16].copy_from_slice(&bytes(99));
    let o = Object::parse("core.o", &strange).expect("it can be read");
    let name = f.name.as_str();
    assert!(reason(&o, name).contains("kind 99"), "{}", reason(&o, name));
    let written = o.write().expect("it can be written");
    assert_eq!(written.windows(16).filter(|w| *w == bytes(99)).count(), 1);
    assert_eq!(again(&o).functions, o.functions);
}

#[test]
fn hidden_functions_are_seen_by_the_files_that_they_are_linked_with() {
    let Some(o) = read("parts", &[]) else { return };
    let (_, shared) = named(&o, "shared");
    assert!(shared.hidden && shared.subprogram);
    let map = o.maps.iter().find(|m| m.name == "theirs").expect("an extern map");
    assert_eq!((map.origin, map.spec.value_size), (MapOrigin::Extern, 8));
    let (_, entry) = named(&o, "entry");
    let maps = entry.relocs.iter().filter(|r| matches!(r.kind, RelocKind::Map(_))).count();
    assert_eq!((maps, entry.kept.is_none()), (1, true));
    let externs = entry.relocs.iter().filter(|r| matches!(r.kind, RelocKind::Extern(_))).count();
    assert_eq!(externs, 2, "a function and a variable");
    assert_eq!(again(&grown(&o)).maps, o.maps);
}
