//! Parts that all commands share: output, exit codes, diagnostics, logs, progress, privileges, and readers of
//! input files.
//!
//! Invariant: only [`output`] writes to standard output and standard error. A command never panics because a
//! stream is closed or a disk is full.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
pub mod output;

pub mod adapt_args;
pub mod bounded_read;
pub mod command_line;
pub mod credentials_file;
pub mod curves;
pub mod diagnostics;
pub mod duration_args;
mod escape;
pub mod exit;
pub mod input;
pub mod internal;
pub mod log;
pub mod privileges;
pub mod progress;
pub mod renamed;
pub mod wrap;
pub mod xdp;
