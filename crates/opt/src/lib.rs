//! The optimizer driver: an object in, a better object out.
//!
//! [`optimize`] lifts all functions, runs the pipeline, lowers each function and puts it back where that made it no
//! longer. It needs no kernel. [`check`] asks the kernel: it loads every program before and after, and where a
//! result is rejected finds the rewrite to blame by bisection over fuel, drops that rewrite and tries again; the
//! original is kept if all else fails.
//!
//! Architecture Invariant: nothing is written to the object that is not either the original or accepted wherever the
//! original was, once [`check`] has passed.

mod check;
mod report;

use std::collections::BTreeSet;

use cranelift_entity::EntityRef;
use millstream_bpf::lift::LiftError;
use millstream_bpf::lower::{self, Lowered};
use millstream_bpf::module::{Lifted, lift_object, new_function};
use millstream_isa::{Insn, Size, SwapKind, Width, decode_all};
use millstream_object::{FuncId, Object, ObjectError};
use millstream_passes::{Fuel, PassError, Pipeline, Session, Target};

pub use check::{Check, check};
pub use report::{FunctionReport, Measure, Outcome, PassReport, ProgramReport, Verdict};

/// Why an object cannot be optimized at all. What concerns one function only is in its report instead.
#[derive(Debug, thiserror::Error)]
pub enum OptError {
    /// A function is no valid bytecode.
    #[error(transparent)]
    Lift(#[from] LiftError),
    /// A pass is unknown, or made the IR invalid.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The object does not take its new functions.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The kernel could not be asked.
    #[error(transparent)]
    Loader(#[from] millstream_loader::Error),
}

/// What to do.
#[derive(Default)]
pub struct Options {
    /// The passes by name; the default pipeline if empty.
    pub passes: Vec<String>,
    /// Instruction set version that may be used, 1 to 4; that of the object if 0.
    pub isa: u8,
    /// At most this many rewrites.
    pub fuel: Option<u64>,
    /// Runs the IR verifier around every pass.
    pub verify_ir: bool,
    /// Takes the lowered form of a function even where it is longer than the original.
    pub keep_longer: bool,
    /// Rewrites not to do, by number.
    pub skip: BTreeSet<u64>,
    /// Functions to leave as they are.
    pub leave: BTreeSet<u32>,
    /// Prints the IR of a function after each pass of this name (`all` for every pass).
    pub dump_after: Option<String>,
}

/// An optimized object, with what was done to it.
#[derive(Debug)]
pub struct Optimized {
    /// The object with new instructions.
    pub object: Object,
    /// One a function, in the object's order.
    pub functions: Vec<FunctionReport>,
    /// What each pass did.
    pub passes: Vec<PassReport>,
    /// Rewrites that passes asked for.
    pub rewrites: u64,
    /// Which pass asked for rewrite N, for blame.
    pub fuel: Fuel,
}

/// Optimizes an object, without asking the kernel.
///
/// # Errors
/// [`OptError`]; the input is unchanged then.
pub fn optimize(object: &Object, options: &Options) -> Result<Optimized, OptError> {
    let mut lifted = lift_object(object)?;
    let isa = if options.isa == 0 { isa_version(object) } else { options.isa };
    let mut session = Session::new(Target::bpf(isa));
    session.verify = options.verify_ir;
    session.fuel = options.fuel.map_or_else(Fuel::unlimited, Fuel::limited);
    for &number in &options.skip {
        session.fuel = session.fuel.skip(number);
    }
    session.dump_after = options.dump_after.clone().map(dump_hook);
    let pipeline = match options.passes.as_slice() {
        [] => Pipeline::default_o2(),
        names => Pipeline::of(names.iter().map(String::as_str))?,
    };
    pipeline.run(&mut lifted.module, &mut session)?;
    let mut out = object.clone();
    let mut functions = Vec::with_capacity(object.functions.len());
    for i in 0..object.functions.len() {
        functions.push(replace(&mut out, &lifted, FuncId(i as u32), options)?);
    }
    Ok(Optimized {
        object: out,
        functions,
        passes: report::passes(&session),
        rewrites: session.fuel.asked(),
        fuel: session.fuel,
    })
}

fn dump_hook(wanted: String) -> millstream_passes::DumpHook {
    Box::new(move |pass, func| {
        if wanted == "all" || wanted == pass {
            eprintln!("; after {pass}\n{func}");
        }
    })
}

fn replace(
    out: &mut Object,
    lifted: &Lifted,
    id: FuncId,
    options: &Options,
) -> Result<FunctionReport, OptError> {
    let original = &out.functions[id.index()];
    let before = original.insns.len();
    let report = |after, outcome| FunctionReport { name: original.name.clone(), before, after, outcome };
    let func = &lifted.module.funcs[millstream_ir::Func::new(id.index())];
    if func.layout.is_empty() {
        let report = report(0, Outcome::Removed);
        out.remove_function(id)?;
        return Ok(report);
    }
    if options.leave.contains(&id.0) {
        return Ok(report(before, Outcome::Rejected));
    }
    let code: Lowered = match lower::lower(func) {
        Ok(code) => code,
        Err(e) => return Ok(report(before, Outcome::Unsupported(e.to_string()))),
    };
    let after = code.slots();
    let new = new_function(lifted, &code);
    if new.insns == original.insns {
        return Ok(report(before, Outcome::NothingToDo));
    }
    if after > before && !options.keep_longer {
        return Ok(report(before, Outcome::NoGain { would_be: after }));
    }
    let report = report(after, Outcome::Rewritten);
    out.replace_function(id, new)?;
    Ok(report)
}

/// The lowest instruction set version that has all instructions of the object: what its loader's kernels know.
pub fn isa_version(object: &Object) -> u8 {
    let insns = object.functions.iter().filter_map(|f| decode_all(&f.insns).ok()).flatten();
    insns.map(|(_, insn)| needed_version(insn)).max().unwrap_or(1)
}

fn needed_version(insn: Insn) -> u8 {
    use millstream_isa::{AluOp, Cond};
    match insn {
        Insn::MovSx { .. } | Insn::Load { sext: true, .. } | Insn::Jump { long: true, .. } => 4,
        Insn::Swap { kind: SwapKind::Swap, .. } | Insn::MayGoto { .. } => 4,
        Insn::Alu { op: AluOp::SDiv | AluOp::SMod, .. }
        | Insn::LoadAcquire { .. }
        | Insn::StoreRelease { .. } => 4,
        Insn::Branch { width: Width::W32, .. } | Insn::Atomic { fetch: true, .. } => 3,
        Insn::Atomic { size: Size::W, .. } => 3,
        Insn::Branch { cond: Cond::Lt | Cond::Le | Cond::Slt | Cond::Sle, .. } => 2,
        _ => 1,
    }
}
