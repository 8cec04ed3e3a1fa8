//! CO-RE: computes the value of a relocation's constant on another kernel, and puts it into an instruction.
//!
//! [`resolve`] finds the program's type (`local`) among the kernel's (`target`) by name, a flavour (`___x`)
//! apart, follows the same path of field names, and computes what the relocation asks. [`patch()`] writes the
//! result into the instruction. The rules are libbpf's (its `relo_core.h` and the comments there), so that a
//! program relocated here is the program that libbpf would load:
//!
//! - a field is found by name, also through anonymous structures and unions; its type must be of a compatible
//!   kind;
//! - array indices must be inside the target's array, a flexible array's apart;
//! - several candidate types must all give the same answer;
//! - what does not exist makes an `exists` query 0, and poisons every other instruction: it becomes a call of
//!   helper [`POISON`], which the verifier rejects if it can be reached.
//!
//! Invariant: time is bounded for hostile types on either side.

mod compare;
mod compute;
mod patch;
mod path;

pub use patch::{POISON, PatchError, patch};

use crate::query::essential_name;
use crate::{Btf, BtfError, CoreKind, CoreRelo, KindTag, TypeId};
use path::AccessPath;
use thiserror::Error;

/// Result of a relocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResolvedRelo {
    /// The value as compiled.
    pub original: u64,
    /// True if the instruction must hold [`ResolvedRelo::original`]. False where compilers may disagree.
    pub check: bool,
    /// The value on the target; `None` poisons the instruction.
    pub value: Option<u64>,
    /// Sizes of the field accessed, for offsets of fields that are no bit fields.
    pub access: Option<AccessSizes>,
}

/// Sizes of a field that an instruction loads or stores. 0 if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessSizes {
    /// Size in bytes, as compiled.
    pub original: u32,
    /// Size in bytes, on the target.
    pub target: u32,
    /// True if an instruction may change from one size to the other: equal sizes, two pointers, or two
    /// unsigned integers.
    pub adjustable: bool,
}

/// Why a relocation has no answer at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CoreError {
    /// The types contradict themselves.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The path does not lead into the type.
    #[error("CO-RE path `{access}` does not fit type [{id}] {name}")]
    BadPath {
        /// The path as written.
        access: String,
        /// The program's type.
        id: u32,
        /// Its name.
        name: String,
    },
    /// The type has no name to look for.
    #[error("CO-RE relocation of type [{0}], which has no name")]
    Anonymous(u32),
    /// Several of the kernel's types match and disagree.
    #[error("CO-RE relocation of {name} is ambiguous: types [{first}] and [{second}] give different values")]
    Ambiguous {
        /// The type's name.
        name: String,
        /// A type of the target.
        first: u32,
        /// Another.
        second: u32,
    },
    /// A bit field that no load of at most 8 bytes covers.
    #[error("bit field {0} cannot be read by one load")]
    WideBitField(String),
    /// The relocation asks for a property of an array element that only a field has.
    #[error("CO-RE relocation {0:?} of an array element")]
    OfElement(CoreKind),
}

/// Resolves a relocation of a program with types `local` against a kernel with types `target`.
pub fn resolve(relo: &CoreRelo, local: &Btf, target: &Btf) -> Result<ResolvedRelo, CoreError> {
    let id = relo.type_id;
    let path = AccessPath::parse(local, relo)?;
    if relo.kind == CoreKind::TypeIdLocal {
        let value = u64::from(id.0);
        return Ok(ResolvedRelo { original: value, check: false, value: Some(value), access: None });
    }
    let name = local.name(id);
    if name.is_empty() {
        return Err(CoreError::Anonymous(id.0));
    }
    let mut found: Option<(TypeId, u32, ResolvedRelo)> = None;
    for candidate in candidates(local, id, target)? {
        let Some(spec) = path.find_in(local, target, candidate)? else { continue };
        let result = compute::compute(relo.kind, local, &path, Some((target, &spec)))?;
        match &found {
            None => found = Some((candidate, spec.bit_offset, result)),
            Some((_, offset, r)) if *offset == spec.bit_offset && r.value == result.value => {}
            Some((first, ..)) => {
                let name = name.to_owned();
                return Err(CoreError::Ambiguous { name, first: first.0, second: candidate.0 });
            }
        }
    }
    match found {
        Some((.., result)) => Ok(result),
        None => compute::compute(relo.kind, local, &path, None),
    }
}

/// The target's types of the local type's kind and name, flavours apart.
fn candidates<'a>(
    local: &'a Btf,
    id: TypeId,
    target: &'a Btf,
) -> Result<impl Iterator<Item = TypeId> + 'a, BtfError> {
    let tag = local.tag(id)?;
    let same_kind = move |t: &TypeId| target.tag(*t).is_ok_and(|other| compatible_kinds(tag, other));
    Ok(target.find_flavours(essential_name(local.name(id))).filter(same_kind))
}

/// Kinds are compatible if they are equal or both are enumerations.
fn compatible_kinds(a: KindTag, b: KindTag) -> bool {
    let any_enum = |k| matches!(k, KindTag::Enum | KindTag::Enum64);
    a == b || any_enum(a) && any_enum(b)
}
