//! Lowers checked P4_16 programs to the IR.
//!
//! [`lower()`] turns a program into functions of a [`Module`], one for each part of the pipeline between
//! which an architecture moves packets, and a [`Pipeline`]: the description of tables, objects and of the
//! memory of a packet that runtimes and control planes need. `docs/design/p4.md` explains the design.
//!
//! Undefined values of the language are constant here: variables, `out` parameters and fields of invalid
//! headers are zero until they are written, and `setInvalid` leaves fields alone; reads outside of a stack give
//! an invalid element, and writes there are lost; reads outside of a register give zero.
//!
//! Architecture Invariant: no I/O, and nothing of an executor. What is not supported is refused with an error
//! that names the construct and its place.

mod aggregates;
mod arguments;
mod blocks;
mod constants;
mod emitter;
mod error;
mod extern_objects;
mod filters;
mod hashes;
mod instances;
mod keys;
mod lookup3;
mod lowerer;
mod meters;
mod methods;
mod operators;
mod packets;
mod parser_errors;
mod parsers;
mod pipeline;
mod portable;
mod psa;
mod requests;
mod routines;
mod scope;
mod tables;
mod type_names;
mod types;
mod v1model;
mod values;
mod words;
mod writer;

use millstream_ir::Module;
use millstream_p4::CompiledProgram;

pub use error::LowerError;
pub use lowerer::table_specs::PRIORITY_MAP;
pub use meters::meter_layout;
pub use parsers::MOST_STEPS;
pub use pipeline::*;

/// A program as code, and its description.
#[derive(Clone, Debug)]
pub struct LoweredProgram {
    /// Functions and maps.
    pub module: Module,
    /// Description.
    pub pipeline: Pipeline,
}

/// Choices that depend on what executes the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// The deparser leaves its bytes in the packet's state ([`StateLayout::output`]), and the engine puts them
    /// in front of the payload. Otherwise the code does that itself.
    pub keeps_output: bool,
    /// Most states that a parser with loops enters for a packet.
    pub most_steps: u64,
    /// The code has [`TraceMarks`].
    pub traces: bool,
    /// The engine has the externs of `crypto.p4`.
    pub has_ciphers: bool,
}

impl Default for LowerOptions {
    fn default() -> LowerOptions {
        LowerOptions { keeps_output: false, most_steps: MOST_STEPS, traces: false, has_ciphers: true }
    }
}

/// Lowers a program that the front end accepted.
///
/// # Errors
/// The first construct that is not supported.
pub fn lower(program: &CompiledProgram) -> Result<LoweredProgram, LowerError> {
    lower_with(program, LowerOptions::default())
}

/// Lowers a program that the front end accepted, for an engine with its own choices.
///
/// # Errors
/// The first construct that is not supported.
pub fn lower_with(program: &CompiledProgram, options: LowerOptions) -> Result<LoweredProgram, LowerError> {
    let mut lowerer = lowerer::Lowerer::new(program);
    lowerer.options = options;
    let package = blocks::main_package(&lowerer)?;
    match &*package.text {
        "V1Switch" => v1model::lower_switch(&mut lowerer)?,
        "PSA_Switch" => psa::lower_psa(&mut lowerer)?,
        "ebpfFilter" => filters::lower_filter(&mut lowerer)?,
        "ubpf" => filters::lower_ubpf(&mut lowerer)?,
        "xdp" => filters::lower_xdp(&mut lowerer)?,
        other => {
            let message = format!("the architecture of `{other}` is not supported");
            return error::refuse(package.span, message);
        }
    }
    Ok(LoweredProgram { module: lowerer.module, pipeline: lowerer.pipeline })
}
