//! Run-time specialization of loaded programs.
//!
//! [`transform`] makes variants of programs, as transforms of the IR; [`variant`] brings them from an object
//! to loadable form. [`guard`] sees control-plane writes before the kernel applies them; [`map_users`] finds
//! the other programs and processes that may write a map; [`snapshot`] reads the snapshot of maps.
//! [`profile`] finds the hot keys, [`policy`] decides what to do about them, and [`live`] does it, on an
//! interface, while traffic runs. [`shadow_tables`] keep up with tables without new code,
//! [`watched_inner_maps`] with the contents of maps of maps; [`inner_maps`] has the inner maps that code
//! names.

pub mod adopt;
mod attachment;
mod auxiliary_maps;
pub mod caches;
mod clock;
pub mod guard;
mod hook_search;
mod inherited_maps;
pub mod inner_maps;
pub mod live;
pub mod map_users;
pub mod pins;
pub mod policy;
pub mod predict;
pub mod profile;
pub mod replay;
pub mod report;
pub mod shadow_tables;
pub mod snapshot;
mod stateful_maps;
pub mod stats;
pub mod transform;
pub mod variant;
pub mod watched_inner_maps;

pub use attachment::restore_hooks;
pub use clock::monotonic_ns;
pub use live::{DetachPolicy, LiveError, LiveSession, SessionSettings, SpeedComparison};
pub use report::SessionReport;
pub use variant::VariantCompiler;
