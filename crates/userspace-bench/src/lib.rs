//! Commands that measure programs in userspace: `millstream bench-user` for times, latencies and instructions,
//! `millstream tune` for the fastest settings, and `millstream model` for what bounds a program.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

pub mod bench_user;
pub mod model;
pub mod tune;

// Short names for the modules above.
use millstream_console::{bounded_read, duration_args, exit, output, progress};
use millstream_userspace::{capture, click, native, plan, sample, workload_args};
