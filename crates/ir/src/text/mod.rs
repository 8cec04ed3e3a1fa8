//! The text form of modules and functions.
//!
//! One declaration or instruction a line; `;` starts a comment.
//!
//! ```text
//! module "router"
//! map map0 "routes" kind=11 key=8 value=4 entries=2592 flags=1
//! fn0 "xdp_router" program(6) returns {
//!   ss0 size=16 align=8
//! block0(v0: ptr(ctx)):
//!   v1: ptr(packet) = load.w.u.0.plain v0
//!   v2: i64 = const.14
//!   br.ugt.w64 v1, v2, block1, block2(v1)
//! ...
//! }
//! ```
//!
//! Printed text reads back to a module that prints the same. Values and blocks keep their numbers;
//! instructions, which have none in the text, are numbered anew in layout order. Source line records are left
//! out unless asked for ([`PrintOptions`]).

mod line_reader;
mod parse;
mod parse_func;
mod print;
mod scan;

pub use parse::{parse_function, parse_module};
pub use print::{PrintOptions, print_function, print_inst, print_module};

/// Place and cause of a syntax error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The expected token, and the one found.
    pub message: String,
}
