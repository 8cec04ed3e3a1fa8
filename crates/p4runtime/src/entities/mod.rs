//! Entities that controllers write and read. Source: P4Runtime specification 1.4, sections 8.4, 9 and 12 to
//! 13.
//!
//! [`PipelineIndex`] is made of P4Info, and says what each entity may be. [`EntityStore`] holds the entities:
//! an update is validated as a whole before it changes anything, and values are kept in their canonical form,
//! so that a controller reads what it wrote. Numbers that do not fit their type are `OUT_OF_RANGE`, ids that
//! P4Info does not have are `INVALID_ARGUMENT`, and entities that do not exist are `NOT_FOUND`.

mod actions;
mod arrays;
mod batch;
mod bytestrings;
mod changes;
mod data;
mod error;
mod keys;
mod meters;
mod pipeline;
mod profiles;
mod replication;
mod settings;
mod state;
mod store;
mod table_reads;
mod tables;

pub use batch::BatchOutcome;
pub use bytestrings::{canonical_bytes, canonical_signed_bytes};
pub use changes::{EntityChange, EntityPlace, EntryState, undone_batch};
pub use error::{EntityError, ErrorKind};
pub use keys::{EntryKey, MatchValue};
pub use pipeline::{PipelineError, PipelineIndex};
pub use state::EntityStore;
