//! The machine code of a program, divided by BPF instructions: bytes for analysers that know nothing of BPF.
//!
//! As in [`image`](crate::image), the kernel says where the code of each instruction begins. Code that it
//! inlines at an instruction belongs to that instruction; the prologues of functions belong to none.

use millstream_btf::{Btf, BtfBuilder, FuncLinkage, FuncProto, TypeId, TypeKind};
use millstream_isa::decode_all;
use millstream_kernel::KernelProgram;
use millstream_loader::Session;
use millstream_object::{FuncId, LinkedProgram, Object};

use crate::error::{Error, Result};
use crate::subject::with_slot_lines;

/// Machine code of one BPF instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeRange {
    /// The slot of the instruction.
    pub slot: u32,
    /// The bytes, empty where it has none.
    pub bytes: Vec<u8>,
}

/// The machine code of a program, by instruction, in the order of the slots; instructions that the verifier
/// removed are not in it. `None` if the kernel does not show the image. And the bytes of the whole image.
///
/// # Errors
/// If the program cannot be loaded.
pub fn code_ranges(
    session: &Session<'_>,
    func: FuncId,
    linked: &LinkedProgram,
) -> Result<Option<(Vec<CodeRange>, u32)>> {
    let name = session.object().functions.get(func.index()).map_or("?", |f| f.name.as_str());
    let Ok(insns) = decode_all(&linked.insns) else { return Ok(None) };
    let program = session.load(func, &with_slot_lines(linked, insns.iter().map(|(slot, _)| *slot as u32)));
    let program = program.map_err(|e| Error::Program { name: name.into(), source: Box::new(e) })?;
    divided(&program)
}

fn divided(program: &KernelProgram) -> Result<Option<(Vec<CodeRange>, u32)>> {
    let bytes = program.jited_image()?;
    let functions = program.jited_functions()?;
    let mut places = program.jited_lines()?;
    let len = functions.iter().map(|(_, len)| *len as usize).sum::<usize>();
    if bytes.is_empty() || places.is_empty() || len != bytes.len() || functions.iter().any(|f| f.0 == 0) {
        return Ok(None);
    }
    places.sort_unstable_by_key(|&(line, at)| (at, line));
    let mut out = Vec::with_capacity(places.len());
    let mut before = 0;
    for &(start, len) in &functions {
        let body = &bytes[before..before + len as usize];
        before += len as usize;
        let inside: Vec<_> =
            places.iter().filter(|p| (start..start + u64::from(len)).contains(&p.1)).collect();
        for (i, (line, at)) in inside.iter().enumerate() {
            let end = inside.get(i + 1).map_or(start + u64::from(len), |next| next.1);
            let (from, to) = ((at - start) as usize, (end - start) as usize);
            out.push(CodeRange { slot: *line, bytes: body[from..to].to_vec() });
        }
    }
    out.sort_by_key(|s| s.slot);
    Ok(Some((out, bytes.len() as u32)))
}

/// Gives an object that has no types the least that the kernel wants to see before it takes line information.
/// Returns true if the object had none.
///
/// # Errors
/// Never for objects that were read from a file.
pub fn with_types(object: &mut Object) -> Result<bool> {
    if object.btf.is_some() {
        return Ok(false);
    }
    let mut types = BtfBuilder::new();
    let int = types.int("int", 4, true);
    let proto = types.add("", TypeKind::FuncProto(FuncProto { ret: int, params: Vec::new() }));
    types.add("function", TypeKind::Func { proto, linkage: FuncLinkage::Static });
    let unusable = |e: millstream_btf::BtfError| Error::Unusable(format!("types for an object without: {e}"));
    object.btf = Some(Btf::parse(&types.write().map_err(unusable)?).map_err(unusable)?);
    Ok(true)
}

/// Says of the functions of a linked program what [`with_types`] made known of them.
pub fn with_functions(linked: &mut LinkedProgram) {
    const FUNCTION: TypeId = TypeId(3);
    linked.func_info = linked.functions.iter().map(|(slot, _)| (*slot, FUNCTION)).collect();
}
