//! Run-time of native code: packets, maps and helpers with the kernel's semantics, at addresses that code can use.
//!
//! `millstream-native` generates code that uses the layouts of this crate, and calls its helpers;
//! `millstream-native-io` fills its batches of packets.
//!
//! Architecture Invariant: nothing here generates code or does I/O. A layout is declared here once, and the
//! code generator reads its offsets from here.

mod csum;
pub mod fields;
pub mod hash;
pub mod hash_function;
pub mod helpers;
pub mod index;
pub mod lpm;
pub mod maps;
pub mod packet;
mod priority;
pub mod region;
pub mod sharing;
pub mod table_watch;
mod values;
pub mod worker;
pub mod worker_epochs;
