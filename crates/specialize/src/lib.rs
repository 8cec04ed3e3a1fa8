//! Run-time specialization of loaded programs.
//!
//! [`transform`] makes variants of programs, as transforms of the IR; [`variant`] brings them from an object
//! to loadable form. [`guard`] sees control-plane writes before the kernel applies them; [`holders`] finds
//! the other programs and processes that may write a map; [`contents`] reads the contents of maps.
//! [`profile`] finds the hot keys, [`policy`] decides what to do about them, and [`live`] does it, on an
//! interface, while traffic runs. [`twins`] keep up with tables without new code, [`nested`] with the
//! contents of maps of maps; [`inside`] has the inner maps that code names.

mod auxiliary_maps;
pub mod adopt;
pub mod caches;
mod clock;
pub mod snapshot;
mod hook_search;
pub mod guard;
pub mod map_users;
pub mod inner_maps;
pub mod replay;
mod inherited_maps;
pub mod live;
pub mod watched_inner_maps;
pub mod pins;
mod attachment;
pub mod policy;
pub mod predict;
pub mod profile;
pub mod report;
mod stateful_maps;
pub mod stats;
pub mod transform;
pub mod shadow_tables;
pub mod variant;

pub use clock::monotonic_ns;
pub use live::{DetachPolicy, LiveSession, LiveError, SessionSettings, SpeedComparison};
pub use attachment::restore_hooks;
pub use report::SessionReport;
pub use variant::VariantCompiler;
