//! Typed indices into an object, and the kinds of references by them.

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as a position in a vector.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(
    /// A function of an [`Object`](crate::Object): a position in
    /// [`Object::functions`](crate::Object::functions).
    FuncId
);
index!(
    /// A map of an [`Object`](crate::Object): a position in [`Object::maps`](crate::Object::maps).
    MapId
);
index!(
    /// An extern of an [`Object`](crate::Object): a position in [`Object::externs`](crate::Object::externs).
    ExternId
);

/// Object that an instruction refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RelocKind {
    /// A map.
    Map(MapId),
    /// The address of a byte of the value of an array map with one element: of a global variable.
    MapValue {
        /// The map.
        map: MapId,
        /// Offset in its value, in bytes.
        offset: u32,
    },
    /// A call of a function of this object.
    Call(FuncId),
    /// The address of a function of this object, for callbacks.
    FuncAddr(FuncId),
    /// A call of a kernel function, the address of a kernel variable, or of a setting.
    Extern(ExternId),
}
