//! Errors of transforms.

use millstream_ir::Map;

use super::site::SiteId;

/// Why a variant cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransformError {
    /// The function has no site of this number.
    #[error("there is no lookup number {}", .0.0)]
    NoSuchSite(SiteId),
    /// The key of the site is not known as values.
    #[error("the key of lookup number {} is not known as values", .0.0)]
    NotComparable(SiteId),
    /// A map that the transform is given does not suit it.
    #[error("{map} cannot be used: {what}")]
    UnfitMap {
        /// The map.
        map: Map,
        /// The reason.
        what: &'static str,
    },
    /// Control flow that is not made of natural loops cannot be copied in parts.
    #[error("the function has a cycle with several entries")]
    Irreducible,
    /// A key or value of another size than the map's.
    #[error("an entry for lookup number {} does not have the size of the map's entries", .0.0)]
    EntrySize(SiteId),
}
