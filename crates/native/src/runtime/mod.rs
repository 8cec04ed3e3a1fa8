//! Runtime of native code: packets, maps, helpers.

mod csum;
pub(crate) mod hash;
pub(crate) mod hash_function;
pub(crate) mod helpers;
pub(crate) mod index;
pub(crate) mod lpm;
pub(crate) mod maps;
pub(crate) mod packet;
mod priority;
pub(crate) mod region;
pub(crate) mod sharing;
pub(crate) mod table_watch;
mod values;
pub(crate) mod worker;
pub(crate) mod worker_epochs;
