//! Parts of commands that run for long: sockets that clients control them by, metrics and pages over
//! HTTP, and telemetry for a collector.
//!
//! Invariant: a client that is slow, silent or hostile delays neither the command nor other clients.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

pub mod clients;
mod connections;
pub mod listening_socket;
pub mod metrics;
pub mod otlp;
pub mod page;
pub mod tls;
