//! The types of BTF, decoded.
//!
//! Numbers that the format gives a meaning have a type of their own: [`TypeId`] names a type of one [`Btf`],
//! [`StrOff`] a string of it. Both are meaningless in another BTF.
//!
//! [`Btf`]: crate::Btf

/// The number of a type within one BTF. 0 is `void`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TypeId(pub u32);

impl TypeId {
    /// `void`: the type of nothing.
    pub const VOID: TypeId = TypeId(0);

    /// Returns true if this is `void`.
    pub const fn is_void(self) -> bool {
        self.0 == 0
    }
}

/// The offset of a string in one BTF's string section. 0 is the empty string.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StrOff(pub u32);

/// One type: a name (empty for anonymous types) and a kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// The name, [`StrOff`]`(0)` if it has none.
    pub name: StrOff,
    /// Its kind.
    pub kind: TypeKind,
}

/// Kind of a type, with its contents. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TypeKind {
    /// No type: id 0.
    Void,
    /// An integer.
    Int(Int),
    /// A pointer to the type.
    Ptr(TypeId),
    /// An array.
    Array(Array),
    /// A structure.
    Struct(Composite),
    /// A union.
    Union(Composite),
    /// An enumeration; `enum64` if `wide`.
    Enum(Enum),
    /// A forward declaration, of a union or else of a structure.
    Fwd {
        /// True if a union is declared, false for a structure.
        union: bool,
    },
    /// Another name for the type.
    Typedef(TypeId),
    /// The type, `volatile`.
    Volatile(TypeId),
    /// The type, `const`.
    Const(TypeId),
    /// The type, `restrict`.
    Restrict(TypeId),
    /// A function: its prototype and its linkage.
    Func {
        /// A [`TypeKind::FuncProto`].
        proto: TypeId,
        /// Its linkage.
        linkage: FuncLinkage,
    },
    /// A function prototype.
    FuncProto(FuncProto),
    /// A variable.
    Var {
        /// Its type.
        ty: TypeId,
        /// Its linkage.
        linkage: VarLinkage,
    },
    /// A section and the variables in it.
    Datasec(Datasec),
    /// A floating-point number.
    Float {
        /// 2, 4, 8, 12 or 16.
        size: u32,
    },
    /// A tag on a declaration; its text is the type's name.
    DeclTag {
        /// The tagged type.
        ty: TypeId,
        /// Number of the tagged member or parameter, -1 for the type itself.
        component: i32,
        /// True if the text is an attribute of its own (`__attribute__((text))`) and not a tag.
        attribute: bool,
    },
    /// A tag on a type; its text is the type's name.
    TypeTag {
        /// The tagged type.
        ty: TypeId,
        /// True if the text is an attribute of its own and not a tag.
        attribute: bool,
    },
    /// A type of an unknown kind, as it was read.
    Unknown(UnknownType),
}

/// A type of a newer format, whose size the layout section gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownType {
    /// Its kind (7 bits), flag and number of parts (24 bits).
    pub info: u32,
    /// Its third word: a size or a type.
    pub third: u32,
    /// Bytes after the third word.
    pub body: Vec<u8>,
}

/// An integer type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int {
    /// Size in bytes.
    pub size: u32,
    /// True if signed.
    pub signed: bool,
    /// True if a character.
    pub character: bool,
    /// True if a boolean.
    pub boolean: bool,
    /// Offset of the value within it, in bits: not 0 only in BTF of old compilers' bit fields.
    pub offset: u8,
    /// Size of the value in bits.
    pub bits: u8,
}

/// An array type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array {
    /// Type of an element.
    pub element: TypeId,
    /// Type of the index.
    pub index: TypeId,
    /// Number of elements.
    pub len: u32,
}

/// A structure or union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Composite {
    /// Size in bytes.
    pub size: u32,
    /// True if members state the sizes of bit fields (the type's `kind_flag`).
    pub bit_fields: bool,
    /// Its members, in order.
    pub members: Vec<Member>,
}

/// A member of a structure or union.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The name, empty for an anonymous structure or union.
    pub name: StrOff,
    /// Its type.
    pub ty: TypeId,
    /// Offset from the start, in bits.
    pub bit_offset: u32,
    /// Size in bits if a bit field, else 0.
    pub bit_size: u8,
}

/// An enumeration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enum {
    /// Size in bytes.
    pub size: u32,
    /// True if values are signed.
    pub signed: bool,
    /// True if values are held in 64 bits (`BTF_KIND_ENUM64`).
    pub wide: bool,
    /// The enumerators.
    pub values: Vec<Enumerator>,
}

/// An enumerator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enumerator {
    /// Its name.
    pub name: StrOff,
    /// Its value: sign-extended to 64 bits where the enumeration is signed, else zero-extended.
    pub value: u64,
}

/// A function prototype.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FuncProto {
    /// Return type.
    pub ret: TypeId,
    /// Its parameters; a last one with no name and type `void` stands for `...`.
    pub params: Vec<Param>,
}

/// A parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    /// Its name, empty if it has none.
    pub name: StrOff,
    /// Its type.
    pub ty: TypeId,
}

/// A section's variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datasec {
    /// Size in bytes; clang leaves it 0 for the loader to fill in.
    pub size: u32,
    /// Its variables.
    pub vars: Vec<SectionVar>,
}

/// A variable's place in a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionVar {
    /// A [`TypeKind::Var`], or for extern functions a [`TypeKind::Func`].
    pub ty: TypeId,
    /// Offset in the section, in bytes; clang leaves it 0 for the loader to fill in.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// Linkage of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuncLinkage {
    /// Seen in its own file only; verified in the context of each caller.
    Static,
    /// Seen by all; verified by itself.
    Global,
    /// Defined elsewhere.
    Extern,
}

/// Linkage of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VarLinkage {
    /// Seen in its own file only.
    Static,
    /// Defined here and seen by all.
    Global,
    /// Defined elsewhere.
    Extern,
}

/// The kind's number in the format, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum KindTag {
    Void = 0,
    Int = 1,
    Ptr = 2,
    Array = 3,
    Struct = 4,
    Union = 5,
    Enum = 6,
    Fwd = 7,
    Typedef = 8,
    Volatile = 9,
    Const = 10,
    Restrict = 11,
    Func = 12,
    FuncProto = 13,
    Var = 14,
    Datasec = 15,
    Float = 16,
    DeclTag = 17,
    TypeTag = 18,
    Enum64 = 19,
    /// An unknown kind, whose number is beyond those of the format.
    Unknown = 0xff,
}

impl KindTag {
    const ALL: [KindTag; 20] = [
        KindTag::Void,
        KindTag::Int,
        KindTag::Ptr,
        KindTag::Array,
        KindTag::Struct,
        KindTag::Union,
        KindTag::Enum,
        KindTag::Fwd,
        KindTag::Typedef,
        KindTag::Volatile,
        KindTag::Const,
        KindTag::Restrict,
        KindTag::Func,
        KindTag::FuncProto,
        KindTag::Var,
        KindTag::Datasec,
        KindTag::Float,
        KindTag::DeclTag,
        KindTag::TypeTag,
        KindTag::Enum64,
    ];

    /// The kind with this number, if it is known.
    pub fn from_code(code: u8) -> Option<KindTag> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl TypeKind {
    /// The kind's number.
    pub fn tag(&self) -> KindTag {
        match self {
            TypeKind::Void => KindTag::Void,
            TypeKind::Unknown(_) => KindTag::Unknown,
            TypeKind::Int(_) => KindTag::Int,
            TypeKind::Ptr(_) => KindTag::Ptr,
            TypeKind::Array(_) => KindTag::Array,
            TypeKind::Struct(_) => KindTag::Struct,
            TypeKind::Union(_) => KindTag::Union,
            TypeKind::Enum(e) if e.wide => KindTag::Enum64,
            TypeKind::Enum(_) => KindTag::Enum,
            TypeKind::Fwd { .. } => KindTag::Fwd,
            TypeKind::Typedef(_) => KindTag::Typedef,
            TypeKind::Volatile(_) => KindTag::Volatile,
            TypeKind::Const(_) => KindTag::Const,
            TypeKind::Restrict(_) => KindTag::Restrict,
            TypeKind::Func { .. } => KindTag::Func,
            TypeKind::FuncProto(_) => KindTag::FuncProto,
            TypeKind::Var { .. } => KindTag::Var,
            TypeKind::Datasec(_) => KindTag::Datasec,
            TypeKind::Float { .. } => KindTag::Float,
            TypeKind::DeclTag { .. } => KindTag::DeclTag,
            TypeKind::TypeTag { .. } => KindTag::TypeTag,
        }
    }

    /// The type that this one qualifies, renames or tags: skipped on the way to the type of a value.
    pub fn modifies(&self) -> Option<TypeId> {
        match *self {
            TypeKind::Typedef(t) | TypeKind::Volatile(t) | TypeKind::Const(t) | TypeKind::Restrict(t) => {
                Some(t)
            }
            TypeKind::TypeTag { ty, .. } => Some(ty),
            _ => None,
        }
    }
}
