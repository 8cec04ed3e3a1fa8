//! Raw programs: one vector of instructions without an object, with calls in place.

use std::collections::BTreeMap;

use cranelift_entity::{EntityRef, PrimaryMap};
use millstream_ir::{Func, Linkage, Module};
use millstream_isa::{Callee, Insn, Pseudo, RawInsn, decode_all, encode_all};
use rustc_hash::FxHashMap;

use crate::lift::{BytecodeFunction, LiftError, RelocTarget, Signature, lift_functions};
use crate::lower::{LowerError, LoweredFunction, lower_func};

/// Splits a program at the functions that it calls or takes the address of, and lifts it. The first function
/// is the program, of type `prog_type` (`enum bpf_prog_type`); without one, it takes what arguments it reads.
///
/// # Errors
/// [`LiftError`] for bytecode that no verifier would accept.
pub fn lift_raw(insns: &[RawInsn], prog_type: Option<u32>) -> Result<Module, LiftError> {
    let error =
        |slot: usize, what: String| LiftError { function: "main".into(), slot, what, dependent: false };
    let decoded = decode_all(insns).map_err(|e| error(0, e.to_string()))?;
    let mut starts: BTreeMap<usize, Func> = BTreeMap::from([(0, Func::new(0))]);
    let mut calls = Vec::new();
    for (at, insn) in decoded {
        let target = match insn {
            Insn::Call(Callee::Local(rel)) => at as i64 + 1 + i64::from(rel),
            Insn::LoadImm64 { pseudo: Pseudo::Func, imm, .. } => at as i64 + 1 + i64::from(imm as u32 as i32),
            _ => continue,
        };
        let start = usize::try_from(target).ok().filter(|&t| t < insns.len());
        let start = start.ok_or_else(|| error(at, format!("call of slot {target}, outside the program")))?;
        starts.insert(start, Func::new(0));
        calls.push((at, start, matches!(insn, Insn::LoadImm64 { .. })));
    }
    for (i, f) in starts.values_mut().enumerate() {
        *f = Func::new(i);
    }
    let bounds: Vec<usize> = starts.keys().copied().chain([insns.len()]).collect();
    let mut sources: PrimaryMap<Func, BytecodeFunction> = PrimaryMap::new();
    for (&start, &f) in &starts {
        let end = bounds[f.index() + 1];
        let inside = calls.iter().filter(|c| (start..end).contains(&c.0));
        let syms: FxHashMap<u32, RelocTarget> =
            inside.map(|c| ((c.0 - start) as u32, RelocTarget::Func(starts[&c.1]))).collect();
        let linkage = match prog_type {
            Some(prog_type) if start == 0 => Linkage::Program { prog_type },
            _ => Linkage::Static,
        };
        sources.push(BytecodeFunction {
            name: if start == 0 { "main".into() } else { format!("function_{start}") },
            linkage,
            insns: insns[start..end].to_vec(),
            syms,
            cores: FxHashMap::default(),
            lines: BTreeMap::new(),
            declared_args: None,
            address_taken: start == 0 || calls.iter().any(|c| c.2 && c.1 == start),
        });
    }
    let mut module = Module::default();
    lift_functions(&sources, &mut module, &|_| Signature::UNKNOWN)?;
    Ok(module)
}

/// Lowers all functions of a module without maps and symbols into one vector, the first function first.
///
/// # Errors
/// [`LowerError`].
pub fn lower_raw(module: &Module) -> Result<Vec<RawInsn>, LowerError> {
    let mut codes: Vec<LoweredFunction> = Vec::new();
    let mut starts: PrimaryMap<Func, usize> = PrimaryMap::new();
    let mut at = 0;
    for f in module.funcs.keys() {
        let code = lower_func(module, f)?;
        starts.push(at);
        at += code.slots();
        codes.push(code);
    }
    let mut out = Vec::with_capacity(at);
    for (f, code) in codes.iter().enumerate() {
        let mut slots = encode_all(&code.insns);
        for &(slot, sym) in &code.syms {
            let RelocTarget::Func(callee) = sym else { continue };
            let rel = starts[callee] as i64 - (starts[Func::new(f)] as i64 + i64::from(slot) + 1);
            let insn = &mut slots[slot as usize];
            insn.imm = rel as i32;
            insn.src = if code.is_call(slot) { 1 } else { 4 };
        }
        out.extend(slots);
    }
    Ok(out)
}
