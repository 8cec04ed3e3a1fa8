//! Lifting: bytecode of one function to SSA.
//!
//! Registers become values, by way of pruned SSA: a block has a parameter for each register that is live on
//! entry and for which its predecessors disagree. The frame pointer is the address one past the end of one
//! stack object, the frame, whose fixed place is kept until a pass understands all its uses. Copies vanish,
//! so that everything the kernel's verifier learns about one copy is known of the one value that remains.
//!
//! The target of a relocation is a symbol in the IR, never a number.

mod build;
mod scan;

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::PrimaryMap;
use millstream_ir::{Core, Extern, Func, Function, Linkage, Map, Module};
use millstream_isa::RawInsn;
use rustc_hash::FxHashMap;

use scan::BytecodeCfg;

/// Why bytecode cannot be lifted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("function `{function}`, slot {slot}: {what}")]
pub struct LiftError {
    /// The function.
    pub function: String,
    /// Slot within it.
    pub slot: usize,
    /// Description of the error.
    pub what: String,
    /// True if only another function is wrong, which this one refers to.
    pub dependent: bool,
}

/// Target of a relocated instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RelocTarget {
    /// A map object.
    Map(Map),
    /// A byte of the value of a map of global data.
    MapValue(Map, u32),
    /// A function: a call's target, or an address.
    Func(Func),
    /// An external symbol.
    Extern(Extern),
}

/// Calling convention of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Arguments, in `r1` and on; [`Signature::UNKNOWN`] if nothing tells.
    pub args: u8,
    /// True if `r0` is meaningful after the call.
    pub returns: bool,
}

impl Signature {
    /// The number of arguments is not known.
    pub const UNKNOWN: u8 = u8::MAX;
}

/// The bytecode of one function with what its relocations mean.
#[derive(Clone, Debug)]
pub struct BytecodeFunction {
    /// Symbol name.
    pub name: String,
    /// Callers that may reach it.
    pub linkage: Linkage,
    /// Instructions.
    pub insns: Vec<RawInsn>,
    /// Symbols by slot. Calls of other functions of the module are here too.
    pub syms: FxHashMap<u32, RelocTarget>,
    /// CO-RE relocations by slot.
    pub cores: FxHashMap<u32, Core>,
    /// Starts of the source line records: slot to record number.
    pub lines: BTreeMap<u32, u32>,
    /// Declared number of arguments, where BTF tells and callers must obey it (global functions).
    pub declared_args: Option<u8>,
    /// True if its address is taken, so that it has callers which the module does not show.
    pub address_taken: bool,
}

/// Functions that are not lifted, and why.
pub type UnliftedFunctions = BTreeMap<Func, LiftError>;

/// Lifts all functions of a module. `sources` are in the order of the functions to be made; `module` holds
/// the maps and symbols that they name, and receives the functions. `extern_args` gives the number of
/// arguments of a kernel function, or [`Signature::UNKNOWN`].
///
/// # Errors
/// [`LiftError`] for bytecode that no verifier would accept either: bad jumps, unknown opcodes.
pub fn lift_functions(
    sources: &PrimaryMap<Func, BytecodeFunction>,
    module: &mut Module,
    extern_args: &dyn Fn(Extern) -> u8,
) -> Result<(), LiftError> {
    let mut left = UnliftedFunctions::new();
    lift_supported_functions(&mut sources.clone(), module, extern_args, &mut left);
    left.into_values().find(|why| !why.dependent).map_or(Ok(()), Err)
}

/// Lifts the functions of a module that can be: as [`lift_functions`], but functions in `left` are skipped,
/// and those that cannot be lifted are added to it, with all their callers. Those functions have no body.
/// Their callees are called from outside of the module, and their sources say so afterwards.
pub fn lift_supported_functions(
    sources: &mut PrimaryMap<Func, BytecodeFunction>,
    module: &mut Module,
    extern_args: &dyn Fn(Extern) -> u8,
    left: &mut UnliftedFunctions,
) {
    let mut scans: PrimaryMap<Func, Option<BytecodeCfg>> = PrimaryMap::with_capacity(sources.len());
    for (func, source) in &*sources {
        let scan = if left.contains_key(&func) { Ok(None) } else { BytecodeCfg::new(source).map(Some) };
        scans.push(scan.unwrap_or_else(|why| {
            left.insert(func, why);
            None
        }));
    }
    let lifted = loop {
        leave_callers(sources, left);
        expose_callees(sources, left);
        left.keys().for_each(|func| scans[*func] = None);
        let sigs = signatures(sources, &mut scans, extern_args);
        let lookup = |sym: &RelocTarget| resolve(sym, &sigs, extern_args);
        let mut functions = Vec::with_capacity(sources.len());
        let before = left.len();
        for (func, source) in &*sources {
            let function =
                scans[func].as_ref().map(|scan| build::build(source, scan, module, &lookup, sigs[func]));
            let function = function.and_then(|function| function.map_err(|why| left.insert(func, why)).ok());
            let bodiless = || Function::new(source.name.clone(), source.linkage.clone());
            functions.push(function.unwrap_or_else(bodiless));
        }
        if left.len() == before {
            break functions;
        }
    };
    for function in lifted {
        module.funcs.push(function);
    }
}

/// Leaves what calls or names a function that is left.
fn leave_callers(sources: &PrimaryMap<Func, BytecodeFunction>, left: &mut UnliftedFunctions) {
    loop {
        let mut found = Vec::new();
        for (func, source) in sources.iter().filter(|(func, _)| !left.contains_key(func)) {
            let named = source.syms.iter().filter_map(|(slot, sym)| match sym {
                RelocTarget::Func(to) if left.contains_key(to) => Some((*slot, *to)),
                _ => None,
            });
            found.extend(named.min().map(|(slot, to)| {
                let what = format!("it refers to `{}`, which is not understood", sources[to].name);
                (
                    func,
                    LiftError { function: source.name.clone(), slot: slot as usize, what, dependent: true },
                )
            }));
        }
        if found.is_empty() {
            return;
        }
        left.extend(found);
    }
}

/// Marks functions that a function in `left` refers to: they have a caller that nobody sees.
fn expose_callees(sources: &mut PrimaryMap<Func, BytecodeFunction>, left: &UnliftedFunctions) {
    let symbols = left.keys().flat_map(|func| sources[*func].syms.values());
    let called: BTreeSet<Func> =
        symbols.filter_map(|sym| if let RelocTarget::Func(to) = sym { Some(*to) } else { None }).collect();
    for func in called {
        let source = &mut sources[func];
        if source.linkage == Linkage::Static {
            source.linkage = Linkage::Hidden;
        }
    }
}

fn resolve(
    sym: &RelocTarget,
    sigs: &PrimaryMap<Func, Signature>,
    extern_args: &dyn Fn(Extern) -> u8,
) -> Signature {
    match sym {
        RelocTarget::Func(f) => sigs[*f],
        RelocTarget::Extern(e) => Signature { args: extern_args(*e), returns: true },
        RelocTarget::Map(_) | RelocTarget::MapValue(..) => {
            Signature { args: Signature::UNKNOWN, returns: true }
        }
    }
}

/// Infers arguments and results of static functions from their bodies and callers: a fixed point, from below.
fn signatures(
    sources: &PrimaryMap<Func, BytecodeFunction>,
    scans: &mut PrimaryMap<Func, Option<BytecodeCfg>>,
    extern_args: &dyn Fn(Extern) -> u8,
) -> PrimaryMap<Func, Signature> {
    let mut sigs: PrimaryMap<Func, Signature> = sources
        .values()
        .map(|s| match s.linkage {
            Linkage::Program { .. } => Signature { args: 1, returns: true },
            Linkage::Global => Signature { args: s.declared_args.unwrap_or(0), returns: true },
            Linkage::Static => Signature { args: 0, returns: s.address_taken },
            Linkage::Hidden => Signature { args: 0, returns: true },
        })
        .collect();
    loop {
        let before = sigs.clone();
        for (func, source) in sources {
            let lookup = |sym: &RelocTarget| resolve(sym, &before, extern_args);
            let Some(scan) = &mut scans[func] else { continue };
            scan.analyse(source, &lookup, sigs[func]);
            for callee in scan.used_results(source) {
                sigs[callee].returns = true;
            }
            let needs = scan.highest_arg();
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
