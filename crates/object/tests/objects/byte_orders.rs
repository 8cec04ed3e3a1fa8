//! Objects of big-endian machines.

use crate::ALL;
use crate::common::{compile, read};
use millstream_isa::ByteOrder;
use millstream_object::{NewFunction, Object, ObjectFunction};
use std::collections::BTreeSet;
use std::process::Command;

const BIG: &[&str] = &["-target", "bpfeb"];

#[test]
fn objects_of_both_orders_describe_the_same() {
    for name in ALL {
        let (Some(little), Some(big)) = (read(name, &[]), read(name, BIG)) else { return };
        assert_eq!((little.byte_order(), big.byte_order()), (ByteOrder::Little, ByteOrder::Big));
        assert_eq!(big.opaque_parts(), little.opaque_parts(), "{name}");
        assert_eq!(little.programs, big.programs, "{name}");
        assert_eq!(little.externs, big.externs, "{name}");
        assert_eq!((&little.license, little.kernel_version), (&big.license, big.kernel_version));
        assert_eq!(little.maps.len(), big.maps.len(), "{name}");
        for (a, b) in little.maps.iter().zip(&big.maps) {
            assert_eq!((&a.name, &a.spec, &a.inner), (&b.name, &b.spec, &b.inner), "{name}");
            assert_eq!((&a.initial, &a.variables), (&b.initial, &b.variables), "{name}");
        }
        for (a, b) in little.functions.iter().zip(&big.functions) {
            assert_eq!((&a.name, a.linkage, a.type_id), (&b.name, b.linkage, b.type_id), "{name}");
            // The code differs where the source asks for the byte order.
            let referents = |f: &ObjectFunction| -> BTreeSet<String> {
                let requests =
                    f.core_relos.iter().map(|c| format!("{:?} {:?} {:?}", c.type_id, c.access, c.kind));
                f.relocs.iter().map(|r| format!("{:?}", r.kind)).chain(requests).collect()
            };
            assert_eq!(referents(a), referents(b), "{name}, {}", a.name);
        }
        let text = |o: &Object| -> Vec<String> {
            let btf = o.btf.iter();
            btf.flat_map(|btf| btf.ids().map(|id| format!("{:?}", btf.ty(id))).collect::<Vec<_>>()).collect()
        };
        assert_eq!(text(&little), text(&big), "{name}");
    }
}

/// Instructions of a file by llvm-objdump, without the file's name.
fn disassembled(path: &std::path::Path) -> Option<String> {
    let said = Command::new("llvm-objdump-19").arg("-d").arg("--no-show-raw-insn").arg(path).output();
    match said {
        Ok(said) => {
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            Some(text.split_once("Disassembly").expect("instructions").1.to_owned())
        }
        Err(error) => {
            assert!(std::env::var("CI").is_err(), "llvm-objdump-19: {error}");
            eprintln!("skipped: llvm-objdump-19 cannot be run: {error}");
            None
        }
    }
}

#[test]
fn what_is_written_is_of_the_same_order_and_reads_the_same() {
    for name in ALL {
        let Some((path, data)) = compile(name, BIG) else { return };
        let object = Object::parse(name, &data).expect("a fixture can be read");
        let written = object.write().expect("can be written");
        let again = Object::parse(name, &written).expect("can be read again");
        assert_eq!(again.byte_order(), ByteOrder::Big);
        assert_eq!((&object.functions, &object.maps), (&again.functions, &again.maps), "{name}");
        assert_eq!(again.write().expect("can be written again"), written, "{name}: a fixed point");
        let Some(before) = disassembled(&path) else { return };
        let copy = path.with_extension("written.o");
        std::fs::write(&copy, &written).expect("a file");
        assert_eq!(disassembled(&copy).expect("as before"), before, "{name}");
    }
}

#[test]
fn a_byte_order_operation_is_read_as_what_it_does_and_written_as_it_was() {
    let Some(mut object) = read("maps", BIG) else { return };
    let swaps: Vec<u8> = [0xd4, 0xdc].to_vec();
    let program = object.programs[0].func;
    let insn = |code| millstream_isa::RawInsn { code, imm: 16, ..Default::default() };
    let exit = millstream_isa::RawInsn { code: 0x95, ..Default::default() };
    let insns = swaps.iter().map(|code| insn(*code)).chain([exit]).collect();
    let new = NewFunction { insns, ..NewFunction::default() };
    object.replace_function(program, new.clone()).expect("it fits");
    let written = object.write().expect("can be written");
    // `r0 = le16 r0` swaps on a big-endian machine, and `r0 = be16 r0` does not.
    let file = [[0xdc, 0, 0, 0, 0, 0, 0, 16], [0xd4, 0, 0, 0, 0, 0, 0, 16]].concat();
    assert!(written.windows(16).any(|bytes| bytes == file), "the names that the machine has for them");
    let again = Object::parse("maps", &written).expect("can be read again");
    assert_eq!(again.functions[program.index()].insns, new.insns);
}
