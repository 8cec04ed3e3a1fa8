//! This crate against the real kernel.

mod common;
mod maps;
mod packet_sockets;
mod pinned;
mod programs;
