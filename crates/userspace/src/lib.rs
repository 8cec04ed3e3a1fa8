//! Commands that run packet programs in this process: `millstream click` for configurations, `millstream native`
//! for XDP objects, and `millstream build` for both as programs of their own.
//!
//! `millstream_native` provides the code, its tables and the account of packets. These modules choose programs,
//! packets and workers, run until a condition holds, answer clients meanwhile, and report.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

mod adapt;
pub mod build;
pub mod capture;
pub mod click;
#[cfg(feature = "dpdk")]
pub mod dpdk;
#[cfg(not(feature = "dpdk"))]
#[path = "without_dpdk.rs"]
pub mod dpdk;
pub mod layout;
pub mod native;
pub mod plan;
pub mod sample;
mod supervise;
pub mod workload_args;

// Short names for the modules above.
use millstream_console::{
    bounded_read, command_line, diagnostics, duration_args, exit, input, log, output, privileges, progress,
    renamed,
};
use millstream_service::{clients, listening_socket, metrics};
