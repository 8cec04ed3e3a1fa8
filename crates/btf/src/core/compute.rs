//! From a path on either side to numbers.

use super::path::{AccessPath, PathStep};
use super::{AccessSizes, CoreError, ResolvedRelo};
use crate::{Btf, BtfError, CoreKind, Int, KindTag, TypeId, TypeKind};
use millstream_isa::ByteOrder;

/// The answer for one side.
#[derive(Clone, Copy)]
struct RelocValue {
    /// `None` if the item does not exist, and so has no value.
    value: Option<u64>,
    /// True if compilers agree on the value.
    certain: bool,
    /// The field's size and type, where an instruction's size may depend on it.
    field: Option<(u32, TypeId)>,
}

impl RelocValue {
    fn value(v: u64) -> RelocValue {
        RelocValue { value: Some(v), certain: true, field: None }
    }
}

/// Computes the relocation with `found` as the path in the target's types.
pub(super) fn compute(
    kind: CoreKind,
    local: &Btf,
    path: &AccessPath,
    found: Option<(&Btf, &AccessPath)>,
) -> Result<ResolvedRelo, CoreError> {
    let ours = side(kind, Some((local, path)))?;
    let theirs = side(kind, found)?;
    let access = match (ours.field, theirs.field, found) {
        (Some((original, a)), Some((size, b)), Some((target, _))) => {
            let adjustable = original == size || may_adjust(local, a, target, b)?;
            Some(AccessSizes { original, target: size, adjustable })
        }
        _ => None,
    };
    Ok(ResolvedRelo { original: ours.value.unwrap_or(0), check: ours.certain, value: theirs.value, access })
}

/// Zero extension keeps the value of pointers and unsigned integers whatever the size of the load.
fn may_adjust(local: &Btf, a: TypeId, target: &Btf, b: TypeId) -> Result<bool, BtfError> {
    Ok(matches!(
        (local.ty(a)?.kind, target.ty(b)?.kind),
        (TypeKind::Ptr(_), TypeKind::Ptr(_))
            | (TypeKind::Int(Int { signed: false, .. }), TypeKind::Int(Int { signed: false, .. }))
    ))
}

fn side(kind: CoreKind, at: Option<(&Btf, &AccessPath)>) -> Result<RelocValue, CoreError> {
    match kind {
        CoreKind::FieldExists | CoreKind::EnumvalExists | CoreKind::TypeExists | CoreKind::TypeMatches => {
            Ok(RelocValue::value(u64::from(at.is_some())))
        }
        CoreKind::EnumvalValue => {
            let value = at.and_then(|(_, path)| match path.steps[..] {
                [PathStep::Value(v)] => Some(v.value),
                _ => None,
            });
            Ok(RelocValue { value, ..RelocValue::value(0) })
        }
        CoreKind::TypeSize => match at {
            Some((btf, path)) => Ok(RelocValue::value(btf.size_of(path.root)?)),
            None => Ok(RelocValue::value(0)),
        },
        CoreKind::TypeIdLocal | CoreKind::TypeIdTarget => {
            // Linkers renumber types, so the instruction may hold another number.
            let id = at.map_or(0, |(_, path)| u64::from(path.root.0));
            Ok(RelocValue { certain: false, ..RelocValue::value(id) })
        }
        _ => match at {
            Some((btf, path)) => field(kind, btf, path),
            None => Ok(RelocValue { value: None, ..RelocValue::value(0) }),
        },
    }
}

fn field(kind: CoreKind, btf: &Btf, path: &AccessPath) -> Result<RelocValue, CoreError> {
    match path.steps.last() {
        Some(PathStep::Field { member, .. }) => {
            let ty = btf.resolve(member.ty)?;
            if member.bit_size > 0 {
                bit_field(kind, btf, path, ty, u32::from(member.bit_size))
            } else {
                plain_field(kind, btf, path, ty)
            }
        }
        Some(PathStep::Element { element, .. }) => match kind {
            CoreKind::FieldByteOffset | CoreKind::FieldByteSize => plain_field(kind, btf, path, *element),
            _ => Err(CoreError::OfElement(kind)),
        },
        _ => Err(CoreError::OfElement(kind)),
    }
}

fn plain_field(kind: CoreKind, btf: &Btf, path: &AccessPath, ty: TypeId) -> Result<RelocValue, CoreError> {
    let size = btf.size_of(ty)?;
    Ok(match kind {
        CoreKind::FieldByteOffset => {
            let field = Some((element_size(btf, ty)?, ty));
            RelocValue { field, ..RelocValue::value(u64::from(path.bit_offset / 8)) }
        }
        CoreKind::FieldByteSize => RelocValue::value(size),
        CoreKind::FieldSigned => RelocValue::value(u64::from(is_signed(btf, ty)?)),
        // A shift is by 64 less the width: for whole bytes, left and right agree.
        _ => RelocValue::value(64u64.wrapping_sub(size.wrapping_mul(8))),
    })
}

/// The innermost element size of an array of arrays, or the size of the type itself: the access of one
/// instruction.
fn element_size(btf: &Btf, ty: TypeId) -> Result<u32, BtfError> {
    let mut id = ty;
    for _ in 0..64 {
        match btf.resolved(id)?.kind {
            TypeKind::Array(a) => id = a.element,
            _ => return Ok(btf.size_of(id)? as u32),
        }
    }
    Err(BtfError::TooDeep(ty.0))
}

fn is_signed(btf: &Btf, ty: TypeId) -> Result<bool, BtfError> {
    Ok(match btf.ty(ty)?.kind {
        TypeKind::Enum(e) => e.signed,
        TypeKind::Int(i) => i.signed,
        _ => false,
    })
}

/// A bit field is read by the smallest aligned load, of at least its type's size, that covers it. Compilers
/// differ on which one that is, so only sign and right shift are certain.
fn bit_field(
    kind: CoreKind,
    btf: &Btf,
    path: &AccessPath,
    ty: TypeId,
    bits: u32,
) -> Result<RelocValue, CoreError> {
    let start = path.bit_offset;
    let mut size = match btf.tag(ty)? {
        KindTag::Int | KindTag::Enum | KindTag::Enum64 => btf.size_of(ty)? as u32,
        _ => 0,
    };
    let too_wide = || CoreError::WideBitField(btf.c_name(path.root));
    if size == 0 || size > 8 {
        return Err(too_wide());
    }
    let mut offset = start / 8 / size * size;
    while u64::from(start) + u64::from(bits) > (u64::from(offset) + u64::from(size)) * 8 {
        if size >= 8 {
            return Err(too_wide());
        }
        size *= 2;
        offset = start / 8 / size * size;
    }
    // start - 8 * offset is below 64, and bits ends within size.
    let end = (u64::from(start) + u64::from(bits)).wrapping_sub(8 * u64::from(offset));
    let (value, certain) = match kind {
        CoreKind::FieldByteOffset => (u64::from(offset), false),
        CoreKind::FieldByteSize => (u64::from(size), false),
        CoreKind::FieldSigned => (u64::from(is_signed(btf, ty)?), true),
        CoreKind::FieldLshiftU64 => (
            match btf.order() {
                ByteOrder::Little => 64u64.wrapping_sub(end),
                // Bits are counted from the highest one, and the load leaves the word in the low bytes.
                ByteOrder::Big => 64 - 8 * u64::from(size) + end.wrapping_sub(bits.into()),
            },
            false,
        ),
        _ => (64u64.wrapping_sub(u64::from(bits)), true),
    };
    Ok(RelocValue { certain, ..RelocValue::value(value) })
}
