//! `millstream run` as a user has it: the binary, what it says, its exit codes, and what it leaves behind, also when
//! it is killed.

mod kill;
mod messages;
mod session;
