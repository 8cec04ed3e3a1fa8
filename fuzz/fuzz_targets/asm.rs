//! Assembler text: what can be assembled is encoded, decoded, disassembled and assembled again as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_isa::asm::assemble;
use millstream_isa::{decode_all, encode_all};

fuzz_target!(|text: &str| {
    let Ok(insns) = assemble(text) else { return };
    let decoded: Vec<_> = match decode_all(&encode_all(&insns)) {
        Ok(decoded) => decoded.into_iter().map(|(_, insn)| insn).collect(),
        Err(e) => panic!("what was assembled cannot be decoded: {e}"),
    };
    assert_eq!(insns, decoded);
    let lines: Vec<String> = insns.iter().map(|insn| insn.to_string()).collect();
    assert_eq!(assemble(&lines.join("\n")).as_ref(), Ok(&insns));
});
