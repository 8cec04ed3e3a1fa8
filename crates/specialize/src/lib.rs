//! Run-time specialization of loaded programs: sessions with the kernel.
//!
//! [`millstream_specializer`] makes variants of programs. [`guard`] sees control-plane writes before the
//! kernel applies them; [`map_users`] finds the other programs and processes that may write a map;
//! [`snapshot`] reads the snapshot of maps. [`profile`] reads the hot keys, and [`live`] does what the policy
//! decides about them, on an interface, while traffic runs. [`shadow_tables`] keep up with tables without new
//! code, [`watched_inner_maps`] with the contents of maps of maps; [`inner_maps`] has the inner maps that
//! code names.

pub mod adopt;
mod attachment;
mod bpf_callers;
pub mod caches;
pub mod chain;
pub mod guard;
mod hook_search;
mod host;
mod inherited_maps;
pub mod inner_maps;
pub mod live;
pub mod map_users;
pub mod pins;
pub mod predict;
pub mod profile;
pub mod replay;
pub mod report;
pub mod shadow_tables;
pub mod snapshot;
pub mod stats;
pub mod watched_inner_maps;

pub use attachment::{DetachPolicy, restore_hooks};
pub use host::variant_compiler;
pub use live::{LiveError, LiveSession, ProfileSettings, SessionPace, SessionSettings, SpeedComparison};
pub use report::SessionReport;
