//! `millstream cluster`: many nodes under Kubernetes.
//!
//! Each node has a resource ([`resource`]) with the wanted state apart from the actual one. An [`agent`] on the
//! node brings the daemon there, over the daemon's socket, and reports. A [`rollout`] changes nodes in stages and
//! returns all of them at the first that fails; [`controller`] drives it. [`api`] is the client of the API server.
//!
//! Invariant: without the API server nothing changes on any node.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

pub mod agent;
pub mod api;
pub mod bundle_store;
mod commands;
pub mod controller;
pub mod definition;
pub mod off_test;
pub mod orders;
pub mod resource;
pub mod rollout;
pub mod verdict;
pub mod watcher;

pub use commands::{ClusterArgs, run};
