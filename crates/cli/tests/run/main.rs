//! `millstream run` and `millstream daemon` as a user has them: the binary, what it says, its exit codes, and what it leaves behind, also when
//! it is killed.

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
