//! `millstream run` and `millstream daemon` as a user runs them: the binary, its output, its exit codes, and
//! the state that it leaves behind, also when it is killed.

mod chains;
mod daemon;
mod kill;
mod messages;
mod session;
mod steps;
mod tc;

#[path = "../../../object/tests/objects/common.rs"]
mod fixtures;
#[path = "../common/flat.rs"]
mod flat;
