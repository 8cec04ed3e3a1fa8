//! Our five data planes: compiled objects, tables and traffic.
//!
//! The C sources under `programs/` are compiled by the build script; their objects are part of this crate.
//! Beside each object stands its control tool: pure functions from what an operator says (routes, stations,
//! rules) to the [`MapEntry`] list that a loader applies, and deterministic generators of tables and traffic
//! of real size.
//!
//! Invariant: nothing here does I/O or talks to the kernel.

pub mod balancer;
pub mod firewall;
mod fnv;
pub mod nat;
mod object;
pub mod packet;
mod prefix;
pub mod router;
pub mod switch;
pub mod table;
pub mod traffic;

pub use object::{BALANCER, DataPlaneProgram, FIREWALL, GUARD, NAT, ROUTER, STALE, SWITCH};
pub use prefix::{Ipv4Prefix, PrefixError};
pub use table::MapEntry;
