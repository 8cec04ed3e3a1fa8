//! Typed indices into the vectors of a module or function.

use cranelift_entity::entity_impl;

macro_rules! entities {
    ($($(#[$doc:meta])* $name:ident $prefix:literal),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
    )* };
}

entities! {
    /// A function of a module.
    Func "fn",
    /// A map of a module.
    Map "map",
    /// A match table of a module.
    Table "table",
    /// A symbol that the kernel or the loader supplies.
    Extern "extern",
    /// A CO-RE relocation record of a module: its value is known only at load time.
    Core "core",
    /// A basic block of a function.
    Block "block",
    /// An instruction of a function.
    Inst "inst",
    /// A value of a function.
    Value "v",
    /// A stack object of a function.
    Slot "ss",
}
