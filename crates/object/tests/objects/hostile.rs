//! Damaged objects: an error or an object that can be linked and written, never a panic.

use crate::ALL;
use crate::common::compile;
use millstream_object::{Object, ObjectError};
use proptest::prelude::*;
use std::sync::OnceLock;

fn fixtures() -> &'static [Vec<u8>] {
    static DATA: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    DATA.get_or_init(|| ALL.iter().filter_map(|name| Some(compile(name, &[])?.1)).collect())
}

/// Reads, and if that works, does everything else.
fn exercise(data: &[u8]) {
    let Ok(object) = Object::parse("hostile.o", data) else { return };
    let insns: usize = object.functions.iter().map(|f| f.insns.len()).sum();
    assert!(insns * 8 <= data.len(), "instructions are bounded by the file");
    for p in &object.programs {
        let _ = object.link(p.func);
    }
    if let Ok(written) = object.write() {
        let _ = Object::parse("hostile.o", &written);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes(which in any::<prop::sample::Index>(),
                     flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        if fixtures().is_empty() { return Ok(()); }
        let mut data = which.get(fixtures()).clone();
        for (at, value) in flips {
            *at.get_mut(&mut data) = value;
        }
        exercise(&data);
    }

    #[test]
    fn interesting_words_anywhere(
        which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        word in prop::sample::select(vec![0u32, 1, 0x7fff_ffff, 0xffff_ffff, 0x8000_0000, 0xffff])
    ) {
        if fixtures().is_empty() { return Ok(()); }
        let mut data = which.get(fixtures()).clone();
        let at = at.index(data.len() / 4) * 4;
        data[at..at + 4].copy_from_slice(&word.to_le_bytes());
        exercise(&data);
    }

    #[test]
    fn cut_short(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()) {
        if fixtures().is_empty() { return Ok(()); }
        let data = which.get(fixtures());
        exercise(&data[..at.index(data.len())]);
    }
}

#[test]
fn what_is_no_object_is_said_to_be_none() {
    assert_eq!(Object::parse("x", b"").expect_err("empty"), ObjectError::NotElf);
    assert_eq!(Object::parse("x", b"some text").expect_err("a text"), ObjectError::NotElf);
    assert_eq!(
        Object::parse("x", b"\x7fELF\x02\x01").expect_err("cut").to_string(),
        "the header: 64 bytes at offset 0x0 are needed, it has 6"
    );
    assert_eq!(Object::parse("x", &[0; 64]).expect_err("zeros"), ObjectError::NotElf);
    let Some(data) = fixtures().first() else { return };
    let mut data = data.clone();
    data[18] = 62;
    assert_eq!(Object::parse("x", &data).expect_err("for a PC"), ObjectError::NotBpf(62));
    data[5] = 2;
    assert_eq!(Object::parse("x", &data).expect_err("exchanged bytes"), ObjectError::NotBpf(62 << 8));
    data[5] = 3;
    assert!(Object::parse("x", &data).expect_err("no order").to_string().contains("byte order"));
}

#[test]
fn sections_that_share_bytes_are_refused() {
    let Some(data) = fixtures().first() else { return };
    let mut data = data.clone();
    let table = u64::from_le_bytes(data[40..48].try_into().expect("8 bytes")) as usize;
    let count = usize::from(u16::from_le_bytes([data[60], data[61]]));
    let (len, zero) = ((data.len() as u64).to_le_bytes(), 0u64.to_le_bytes());
    for n in 1..count {
        let header = table + 64 * n;
        data[header + 24..header + 32].copy_from_slice(&zero);
        data[header + 32..header + 40].copy_from_slice(&len);
    }
    assert_eq!(Object::parse("x", &data).expect_err("overlap"), ObjectError::BadElf("its sections overlap"));
}

/// Found by fuzzing: the symbol table was dropped as if it were DWARF.
/// Found by fuzzing: written, such an object had no section at all.
#[test]
fn a_table_of_sections_begins_with_the_empty_one_and_has_names() {
    let Some(good) = fixtures().first() else { return };
    let table = u64::from_le_bytes(good[40..48].try_into().unwrap()) as usize;
    let mut data = good.clone();
    data[table + 4..table + 8].copy_from_slice(&0x6fff_4c03u32.to_le_bytes());
    let first = ObjectError::BadElf("its first section is not the empty one");
    assert_eq!(Object::parse("x", &data).expect_err("first"), first);
    let mut data = good.clone();
    data[62..64].copy_from_slice(&0x4000u16.to_le_bytes());
    let names = ObjectError::BadElf("the names of its sections are in no table of strings");
    assert_eq!(Object::parse("x", &data).expect_err("names"), names);
}

#[test]
fn a_symbol_table_with_the_name_of_dwarf_is_written_all_the_same() {
    let Some(data) = fixtures().first() else { return };
    let mut data = data.clone();
    let name = data.windows(8).position(|w| w == b".symtab\0").expect("its name");
    data[name..name + 7].copy_from_slice(b".debug_");
    let object = Object::parse("x", &data).expect("can be read");
    let again = Object::parse("x", &object.write().expect("can be written")).expect("can be read again");
    assert_eq!(object.functions, again.functions);
}

/// The place of a section's header.
pub(crate) fn header(data: &[u8], name: &str) -> usize {
    let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("4 bytes")) as usize;
    let (table, names) = (word(40), usize::from(u16::from_le_bytes([data[62], data[63]])));
    let strings = word(table + 64 * names + 24);
    let wanted: Vec<u8> = name.bytes().chain([0]).collect();
    let count = usize::from(u16::from_le_bytes([data[60], data[61]]));
    let found = (0..count).map(|n| table + 64 * n).find(|h| data[strings + word(*h)..].starts_with(&wanted));
    found.unwrap_or_else(|| panic!("no section {name}"))
}

/// Found by fuzzing: instructions were dropped as if they were DWARF.
#[test]
fn instructions_in_a_section_with_the_name_of_dwarf_stay() {
    let Some((_, mut data)) = compile("iproute2", &["-g0"]) else { return };
    let name = data.windows(11).rposition(|w| w == b"classifier\0").expect("its name");
    data[name..name + 10].copy_from_slice(b".debug_abc");
    let object = Object::parse("x", &data).expect("can be read");
    assert!(object.programs.iter().any(|p| p.section == ".debug_abc"), "{:?}", object.programs);
    let again = Object::parse("x", &object.write().expect("can be written")).expect("can be read again");
    assert_eq!((object.functions, object.programs), (again.functions, again.programs));
}

/// Found by fuzzing: `.BTF.ext` was taken for instructions too, and then written anew with its own meaning.
#[test]
fn a_section_with_a_meaning_of_its_own_is_no_code_whatever_its_flags() {
    for name in [".BTF", ".BTF.ext", ".maps", "license"] {
        let Some((_, mut data)) = compile("maps", &["-DWITHOUT_PINS"]) else { return };
        let plain = Object::parse("x", &data).expect("can be read");
        let flags = header(&data, name) + 8;
        data[flags] |= 4;
        let object = Object::parse("x", &data).expect("can be read");
        assert_eq!(object.functions, plain.functions, "{name}");
        let again = Object::parse("x", &object.write().expect("can be written")).expect("can be read again");
        assert_eq!((object.functions, object.maps), (again.functions, again.maps), "{name}");
    }
}

/// Found by fuzzing: what precedes the first function is dropped when written, and the function, static, was
/// a program thereafter.
#[test]
fn a_first_function_that_does_not_begin_its_section_is_what_it_will_be_once_written() {
    let Some((_, mut data)) = compile("iproute2", &["-g0"]) else { return };
    // The symbol of `entry`: local, one slot further on, one slot shorter.
    let plain = Object::parse("x", &data).expect("can be read");
    let function = plain.functions.iter().find(|f| f.name == "entry").expect("a program");
    let size = function.insns.len() as u64 * 8;
    let table = header(&data, ".symtab");
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes")) as usize;
    let (start, len) = (word(table + 24), word(table + 32));
    let mut symbols = (start..start + len).step_by(24);
    let symbol = symbols.rfind(|at| word(at + 16) as u64 == size && data[at + 4] == 0x12).expect("it");
    data[symbol + 4] = 2;
    data[symbol + 8..symbol + 16].copy_from_slice(&8u64.to_le_bytes());
    data[symbol + 16..symbol + 24].copy_from_slice(&(size - 8).to_le_bytes());
    let object = Object::parse("x", &data).expect("can be read");
    assert!(object.notes.iter().any(|n| n.contains("belong to no function")), "{:?}", object.notes);
    let again = Object::parse("x", &object.write().expect("can be written")).expect("can be read again");
    assert_eq!(object.programs, again.programs);
}
