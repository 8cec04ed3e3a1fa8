//! Tests of whole programs, one module for a subject.

mod arena;
mod effort;
mod generations;
mod host;
#[cfg(target_arch = "x86_64")]
mod jited;
mod left_alone;
#[path = "../../../object/tests/objects/common.rs"]
mod objects;
mod permissions;
mod prove;
mod remade;
mod repair;
mod slower;
mod solver;
mod superopt;
mod tables;
