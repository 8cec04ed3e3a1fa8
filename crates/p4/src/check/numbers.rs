//! Numbers of types.

/// Number of a type in its [`TypeTable`](crate::TypeTable).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TypeId(pub u32);

/// Number of a declared type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NominalId(pub u32);
