//! Lowering: SSA to bytecode.
//!
//! expand match tables → legalize → split critical edges → select instructions ([`isel`](self)) → allocate registers (`regalloc2`) → lay
//! out and emit. How constants reach block parameters is a matter of taste of the register allocator, so a function
//! is lowered by each [`Strategy`] and the shortest result is taken.

mod code;
mod emit;
mod isel;
mod legal;
mod live;
mod mir;
mod tables;
mod tidy;

use millstream_ir::{Cfg, Core, Func, Function, Module};
use millstream_isa::{Insn, Raw, decode_all};
use regalloc2::{Algorithm, RegallocOptions};

use crate::jit::jited_bytes;
use crate::lift::Sym;

pub use tables::expand_tables;

/// Why a function cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The operation has no form in BPF.
    #[error("function `{function}`: `{op}` has no form in BPF")]
    NotBpf {
        /// The operation's mnemonic.
        op: &'static str,
        /// The function.
        function: String,
    },
    /// Stack objects and spills exceed 512 bytes.
    #[error("function `{function}` needs {bytes} bytes of stack; the kernel gives 512")]
    Stack {
        /// The function.
        function: String,
        /// Bytes needed.
        bytes: u32,
    },
    /// The register allocator gave up.
    #[error("function `{function}`: register allocation failed: {why}")]
    Registers {
        /// The function.
        function: String,
        /// In the allocator's words.
        why: String,
    },
    /// A jump is too far, even for the long form.
    #[error("function `{function}`: a jump is too far")]
    TooFar {
        /// The function.
        function: String,
    },
}

/// A choice that changes the code but not its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Strategy {
    /// Constants stay where they were made, over calls and blocks, instead of being made anew near their uses.
    pub far_constants: bool,
    /// Constants are stored as immediates even where the same one is stored several times.
    pub immediate_stores: bool,
    /// Constants are never stored as immediates: the machine's form of that is long.
    pub register_stores: bool,
    /// A stack address that several calls take is kept in a register, instead of being made for each.
    pub kept_addresses: bool,
    /// `r0` is as good as other registers, and not only for results.
    pub free_r0: bool,
    /// Values that live across calls are bound to argument registers without a copy.
    pub bound_arguments: bool,
}

/// The choices, each to be tried with and without.
const CHOICES: [fn(&mut Strategy) -> &mut bool; 6] = [
    |s| &mut s.far_constants,
    |s| &mut s.immediate_stores,
    |s| &mut s.register_stores,
    |s| &mut s.kept_addresses,
    |s| &mut s.free_r0,
    |s| &mut s.bound_arguments,
];

/// The bytecode of one function with its symbols. Positions are slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lowered {
    /// Instructions.
    pub insns: Vec<Insn>,
    /// What relocated instructions refer to.
    pub syms: Vec<(u32, Sym)>,
    /// CO-RE relocations.
    pub cores: Vec<(u32, Core)>,
    /// Where source line records start, ascending.
    pub lines: Vec<(u32, u32)>,
    /// Bytes of stack used.
    pub stack: u32,
}

impl Lowered {
    /// Length in slots.
    pub fn slots(&self) -> usize {
        self.insns.iter().map(|i| i.slots()).sum()
    }

    /// What there is to pay: bytes of machine code, and slots. A slot saved is worth a few bytes, for programs are
    /// compared by both.
    pub fn cost(&self) -> usize {
        jited_bytes(&self.insns) as usize + 4 * self.slots()
    }

    /// Whether the instruction at a slot is a call.
    pub fn is_call(&self, slot: u32) -> bool {
        let mut at = 0;
        self.insns.iter().find_map(|i| {
            let here = at == slot as usize;
            at += i.slots();
            here.then_some(matches!(i, Insn::Call(_)))
        }) == Some(true)
    }
}

/// Lengths that the result should not exceed: those of the original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Slots.
    pub slots: usize,
    /// Bytes of machine code, as [`jited_bytes`] estimates them.
    pub jited: u32,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { slots: usize::MAX, jited: u32::MAX };

    /// The lengths of given code; no limits if it cannot be decoded.
    pub fn of(insns: &[Raw]) -> Limits {
        match decode_all(insns) {
            Ok(decoded) => {
                let decoded: Vec<Insn> = decoded.into_iter().map(|(_, i)| i).collect();
                Limits { slots: insns.len(), jited: jited_bytes(&decoded) }
            }
            Err(_) => Limits::NONE,
        }
    }

    /// Whether code keeps to the limits.
    pub fn hold(&self, code: &Lowered) -> bool {
        code.slots() <= self.slots && jited_bytes(&code.insns) <= self.jited
    }

    /// What code costs: its length, and more for each slot and byte beyond the limits.
    pub fn cost(&self, code: &Lowered) -> usize {
        let jited = jited_bytes(&code.insns);
        let beyond =
            code.slots().saturating_sub(self.slots) * 40 + jited.saturating_sub(self.jited) as usize * 8;
        code.cost() + beyond
    }
}

/// Lowers a function, trying the choices of [`Strategy`] one by one and keeping what helps.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower(func: &Function) -> Result<Lowered, LowerError> {
    lower_within(func, Limits::NONE)
}

/// Lowers a function of a module as [`lower`] does, its matches of the module's tables expanded to comparisons.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower_func(module: &Module, func: Func) -> Result<Lowered, LowerError> {
    let func = &module.funcs[func];
    match tables::expanded(module, func) {
        Some(expanded) => lower(&expanded),
        None => lower(func),
    }
}

/// Lowers a function as [`lower`] does, and tries to keep within limits.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower_within(func: &Function, limits: Limits) -> Result<Lowered, LowerError> {
    let mut strategy = Strategy::default();
    let mut best = lower_with(func, strategy);
    // One choice may pay only after another: where the limits are not kept, all are tried once more.
    for round in 0..2 {
        if round > 0 && best.as_ref().is_ok_and(|b| limits.hold(b)) {
            break;
        }
        for choice in CHOICES {
            let mut other = strategy;
            *choice(&mut other) ^= true;
            match (lower_with(func, other), &best) {
                (Ok(code), Ok(b)) if limits.cost(&code) >= limits.cost(b) => {}
                (Ok(code), _) => {
                    best = Ok(code);
                    strategy = other;
                }
                (Err(_), _) => {}
            }
        }
    }
    best
}

/// Lowers a function in one given way.
///
/// # Errors
/// [`LowerError`].
pub fn lower_with(func: &Function, strategy: Strategy) -> Result<Lowered, LowerError> {
    let mut func = func.clone();
    legal::legalize(&mut func);
    legal::split_critical_edges(&mut func);
    let cfg = Cfg::new(&func);
    let mir = isel::select(&func, &cfg, strategy)?;
    let options = RegallocOptions {
        verbose_log: false,
        validate_ssa: cfg!(debug_assertions),
        algorithm: Algorithm::Ion,
    };
    let out = regalloc2::run(&mir, &mir::machine_env(strategy.free_r0), &options)
        .map_err(|e| LowerError::Registers { function: func.name.clone(), why: format!("{e:?}") })?;
    emit::emit(&func, &mir, &out)
}
