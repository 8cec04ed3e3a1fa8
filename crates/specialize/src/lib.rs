//! Run-time specialization of loaded programs.
//!
//! [`transform`] makes variants of programs, as transforms of the IR; [`variant`] brings them from an object
//! to loadable form. [`guard`] sees control-plane writes before the kernel applies them; [`holders`] finds
//! the other programs and processes that may write a map; [`contents`] reads the contents of maps.
//! [`profile`] finds the hot keys, [`policy`] decides what to do about them, and [`live`] does it, on an
//! interface, while traffic runs. [`twins`] keep up with tables without new code, [`nested`] with the
//! contents of maps of maps; [`inside`] has the inner maps that code names.

mod added;
pub mod adopt;
pub mod caches;
mod clock;
pub mod contents;
mod elsewhere;
pub mod guard;
pub mod holders;
pub mod inside;
pub mod judge;
mod lent;
pub mod live;
pub mod nested;
pub mod pins;
mod place;
pub mod policy;
pub mod predict;
pub mod profile;
pub mod report;
mod stateful;
pub mod stats;
pub mod transform;
pub mod twins;
pub mod variant;

pub use clock::monotonic_ns;
pub use live::{Leave, Live, LiveError, Settings, Speed};
pub use place::give_back;
pub use report::Report;
pub use variant::Compiler;
