//! Commands for object files: `opt`, `prove`, `verify`, `inspect`, `explain`, `exec`, `exec-with`, `fuse`,
//! `bundle`, and `learn` and `rules` for rewrite rules.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

pub mod bundle;
mod evidence_text;
pub mod exec;
pub mod exec_with;
pub mod explain;
mod fastest;
pub mod fuse;
pub mod inspect;
pub mod learn;
pub mod opt;
pub mod prove;
pub mod rules;
mod superopt;
pub mod verify;

// Short names for the modules above.
use millstream_console::{bounded_read, duration_args, exit, input, output, privileges, progress, wrap};
