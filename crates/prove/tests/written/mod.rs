//! Programs that are written out in tests.

use millstream_isa::asm::assemble;
use millstream_isa::encode_all;
use millstream_object::{FuncId, Object, ProgramType};
use millstream_programs as programs;

/// An object with one program, of these instructions.
pub(crate) fn object(kind: ProgramType, text: &str) -> (Object, FuncId) {
    let mut object = Object::parse("router", programs::ROUTER.object).expect("a data plane");
    let func = object.programs[0].func;
    object.programs[0].kind.program_type = kind;
    let f = &mut object.functions[func.0 as usize];
    f.insns = encode_all(&assemble(text).expect("our own text"));
    f.relocs.clear();
    f.core_relos.clear();
    f.line_info.clear();
    (object, func)
}
