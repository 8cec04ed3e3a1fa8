//! Lifting: bytecode of one function to SSA.
//!
//! Registers become values, by way of pruned SSA: a block has a parameter for each register that is live on entry
//! and for which its predecessors disagree. The frame pointer is the address one past the end of one stack object,
//! the frame, whose fixed place is kept until a pass understands all its uses. Copies vanish, so that everything the
//! kernel's verifier learns about one copy is known of the one value that remains.
//!
//! What a relocation stands for is a symbol in the IR, never a number.

mod build;
mod scan;

use std::collections::BTreeMap;

use cranelift_entity::PrimaryMap;
use millstream_ir::{Core, Extern, Func, Function, Linkage, Map, Module};
use millstream_isa::Raw;
use rustc_hash::FxHashMap;

use scan::Scan;

/// Why bytecode cannot be lifted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("function `{function}`, slot {slot}: {what}")]
pub struct LiftError {
    /// The function.
    pub function: String,
    /// Slot within it.
    pub slot: usize,
    /// What is wrong.
    pub what: String,
}

/// What a relocated instruction refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sym {
    /// A map object.
    Map(Map),
    /// A byte of the value of a map of global data.
    MapValue(Map, u32),
    /// A function: a call's target, or an address.
    Func(Func),
    /// An external symbol.
    Extern(Extern),
}

/// How a function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Arguments, in `r1` and on; [`Signature::UNKNOWN`] if nothing tells.
    pub args: u8,
    /// Whether `r0` is meaningful after it.
    pub returns: bool,
}

impl Signature {
    /// The number of arguments is not known.
    pub const UNKNOWN: u8 = u8::MAX;
}

/// The bytecode of one function with what its relocations mean.
#[derive(Clone, Debug)]
pub struct Source {
    /// Symbol name.
    pub name: String,
    /// Who can call it.
    pub linkage: Linkage,
    /// Instructions.
    pub insns: Vec<Raw>,
    /// Symbols by slot. Calls of other functions of the module are here too.
    pub syms: FxHashMap<u32, Sym>,
    /// CO-RE relocations by slot.
    pub cores: FxHashMap<u32, Core>,
    /// Where source line records start: slot to record number.
    pub lines: BTreeMap<u32, u32>,
    /// Declared number of arguments, where BTF tells and callers must obey it (global functions).
    pub declared_args: Option<u8>,
    /// Whether its address is taken, so that callers exist which the module does not show.
    pub address_taken: bool,
}

/// Lifts all functions of a module. `sources` are in the order of the functions to be made; `module` holds the maps
/// and symbols that they name, and receives the functions. `extern_args` gives the number of arguments of a kernel
/// function, or [`Signature::UNKNOWN`].
///
/// # Errors
/// [`LiftError`] for bytecode that no verifier would accept either: bad jumps, unknown opcodes.
pub fn lift_functions(
    sources: &PrimaryMap<Func, Source>,
    module: &mut Module,
    extern_args: &dyn Fn(Extern) -> u8,
) -> Result<(), LiftError> {
    let mut scans: PrimaryMap<Func, Scan> = PrimaryMap::with_capacity(sources.len());
    for source in sources.values() {
        scans.push(Scan::new(source)?);
    }
    let sigs = signatures(sources, &mut scans, extern_args);
    for (func, source) in sources {
        let lookup = |sym: &Sym| resolve(sym, &sigs, extern_args);
        let function: Function = build::build(source, &scans[func], module, &lookup, sigs[func])?;
        module.funcs.push(function);
    }
    Ok(())
}

fn resolve(sym: &Sym, sigs: &PrimaryMap<Func, Signature>, extern_args: &dyn Fn(Extern) -> u8) -> Signature {
    match sym {
        Sym::Func(f) => sigs[*f],
        Sym::Extern(e) => Signature { args: extern_args(*e), returns: true },
        Sym::Map(_) | Sym::MapValue(..) => Signature { args: Signature::UNKNOWN, returns: true },
    }
}

/// What static functions take and return follows from their bodies and callers: a fixed point, from below.
fn signatures(
    sources: &PrimaryMap<Func, Source>,
    scans: &mut PrimaryMap<Func, Scan>,
    extern_args: &dyn Fn(Extern) -> u8,
) -> PrimaryMap<Func, Signature> {
    let mut sigs: PrimaryMap<Func, Signature> = sources
        .values()
        .map(|s| match s.linkage {
            Linkage::Program { .. } => Signature { args: 1, returns: true },
            Linkage::Global => Signature { args: s.declared_args.unwrap_or(0), returns: true },
            Linkage::Static => Signature { args: 0, returns: s.address_taken },
        })
        .collect();
    loop {
        let before = sigs.clone();
        for (func, source) in sources {
            let lookup = |sym: &Sym| resolve(sym, &before, extern_args);
            scans[func].analyse(source, &lookup, sigs[func]);
            for callee in scans[func].used_results(source) {
                sigs[callee].returns = true;
            }
            let needs = scans[func].highest_arg();
            let fixed = matches!(source.linkage, Linkage::Program { .. }) || source.declared_args.is_some();
            if !fixed && needs > sigs[func].args {
                sigs[func].args = needs;
            }
        }
        if before == sigs {
            return sigs;
        }
    }
}
