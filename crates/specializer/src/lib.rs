//! Compiler of run-time specialization: a snapshot of maps in, a plan and a specialized program out.
//!
//! [`variant`] brings programs from an object to loadable form; [`transform`] has the transforms of the IR.
//! [`snapshot`] is what a plan reads of the maps, [`profile`] the traffic of the lookups, which [`saved_profile`]
//! keeps for other sessions. [`policy`] makes a
//! plan from both, and [`gain`] predicts what it gains. [`changes`] says which contents may no longer match a
//! variant, [`guard_state`] how variants and their guard talk.
//!
//! Architecture Invariant: no I/O and no kernel. The machine is described by a [`VariantHost`], the maps by a
//! [`SnapshotReader`](snapshot::SnapshotReader).

mod auxiliary_maps;
pub mod changes;
pub mod gain;
pub mod guard_state;
mod host;
pub mod policy;
pub mod profile;
pub mod saved_profile;
pub mod snapshot;
mod stateful_maps;
pub mod transform;
pub mod variant;

pub use host::VariantHost;
