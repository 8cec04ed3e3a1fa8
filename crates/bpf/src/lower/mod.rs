//! Lowering: SSA to bytecode.
//!
//! legalize → split critical edges → select instructions ([`isel`](self)) → allocate registers (`regalloc2`) → lay
//! out and emit. How constants reach block parameters is a matter of taste of the register allocator, so a function
//! is lowered by each [`Strategy`] and the shortest result is taken.

mod emit;
mod isel;
mod legal;
mod mir;

use millstream_ir::{Cfg, Core, Function};
use millstream_isa::Insn;
use regalloc2::{Algorithm, RegallocOptions};

use crate::lift::Sym;

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
    /// Constants that are arguments of block parameters are made on the edge, instead of where they were.
    pub constants_on_edges: bool,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 2] =
        [Strategy { constants_on_edges: false }, Strategy { constants_on_edges: true }];
}

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

/// Lowers a function, trying every strategy.
///
/// # Errors
/// [`LowerError`], if no strategy succeeds.
pub fn lower(func: &Function) -> Result<Lowered, LowerError> {
    let mut best: Option<Lowered> = None;
    let mut failure = None;
    for strategy in Strategy::ALL {
        match lower_with(func, strategy) {
            Ok(code) if best.as_ref().is_none_or(|b| code.slots() < b.slots()) => best = Some(code),
            Ok(_) => {}
            Err(e) => failure = Some(e),
        }
    }
    match (best, failure) {
        (Some(code), _) => Ok(code),
        (None, Some(e)) => Err(e),
        (None, None) => Ok(Lowered::default()),
    }
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
    let out = regalloc2::run(&mir, &mir::machine_env(), &options)
        .map_err(|e| LowerError::Registers { function: func.name.clone(), why: format!("{e:?}") })?;
    emit::emit(&func, &mir, &out)
}
