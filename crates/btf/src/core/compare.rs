//! Comparison of a type of the program with one of the kernel, for the purposes of CO-RE.
//!
//! Three relations, from loose to strict: [`fields`] for fields on a path, `compatible` for types that need
//! only exist, `matches` for `bpf_core_type_matches`. Qualifiers and typedefs are looked through in all of
//! them.

use super::compatible_kinds;
use crate::query::{TypeWalk, essential_name};
use crate::{Array, Btf, BtfError, Composite, CoreKind, Enum, FuncProto, Int, StrOff, TypeId, TypeKind};

/// Returns true if a field of the one type may be read as the other: structures and unions mix freely;
/// otherwise kinds agree; pointers, floats and integers of any size do; enumerations and forward declarations
/// agree by name; arrays by their elements.
pub(super) fn fields(local: &Btf, mut a: TypeId, target: &Btf, mut b: TypeId) -> Result<bool, BtfError> {
    let mut walk = TypeWalk::new(a);
    loop {
        walk.visit(1)?;
        (a, b) = (local.resolve(a)?, target.resolve(b)?);
        if local.is_composite(a)? && target.is_composite(b)? {
            return Ok(true);
        }
        if !compatible_kinds(local.tag(a)?, target.tag(b)?) {
            return Ok(false);
        }
        return Ok(match (local.ty(a)?.kind, target.ty(b)?.kind) {
            (TypeKind::Ptr(_) | TypeKind::Float { .. }, _) => true,
            (TypeKind::Fwd { .. } | TypeKind::Enum(_), _) => {
                let (x, y) = (essential_name(local.name(a)), essential_name(target.name(b)));
                x.is_empty() || y.is_empty() || x == y
            }
            (TypeKind::Int(x), TypeKind::Int(y)) => x.offset == 0 && y.offset == 0,
            (TypeKind::Array(x), TypeKind::Array(y)) => {
                (a, b) = (x.element, y.element);
                continue;
            }
            _ => false,
        });
    }
}

/// Returns true if two types whose names agree are the same, as loosely as the relocation's kind requires.
pub(super) fn types(
    kind: CoreKind,
    local: &Btf,
    a: TypeId,
    target: &Btf,
    b: TypeId,
) -> Result<bool, BtfError> {
    let pair = BtfPair { local, target };
    let mut walk = TypeWalk::new(a);
    match kind {
        CoreKind::TypeMatches => pair.matches(a, b, false, &mut walk),
        _ => pair.compatible(a, b, &mut walk),
    }
}

/// The two sides. Type ids and kinds are given as (local, target).
#[derive(Clone, Copy)]
struct BtfPair<'a> {
    local: &'a Btf,
    target: &'a Btf,
}

impl BtfPair<'_> {
    fn kinds(&self, a: TypeId, b: TypeId) -> Result<(TypeKind, TypeKind), BtfError> {
        Ok((self.local.ty(a)?.kind, self.target.ty(b)?.kind))
    }

    fn compatible(&self, a: TypeId, b: TypeId, walk: &mut TypeWalk) -> Result<bool, BtfError> {
        walk.enter(|walk| {
            let (a, b) = (self.local.resolve(a)?, self.target.resolve(b)?);
            if !compatible_kinds(self.local.tag(a)?, self.target.tag(b)?) {
                return Ok(false);
            }
            match self.kinds(a, b)? {
                (
                    TypeKind::Void
                    | TypeKind::Struct(_)
                    | TypeKind::Union(_)
                    | TypeKind::Enum(_)
                    | TypeKind::Fwd { .. },
                    _,
                ) => Ok(true),
                (TypeKind::Int(x), TypeKind::Int(y)) => Ok(x.offset == 0 && y.offset == 0),
                (TypeKind::Ptr(x), TypeKind::Ptr(y)) => self.compatible(x, y, walk),
                (TypeKind::Array(x), TypeKind::Array(y)) => self.compatible(x.element, y.element, walk),
                (TypeKind::FuncProto(x), TypeKind::FuncProto(y)) => {
                    self.protos(&x, &y, walk, |a, b, walk| self.compatible(a, b, walk))
                }
                _ => Ok(false),
            }
        })
    }

    fn protos(
        &self,
        x: &FuncProto,
        y: &FuncProto,
        walk: &mut TypeWalk,
        same: impl Fn(TypeId, TypeId, &mut TypeWalk) -> Result<bool, BtfError>,
    ) -> Result<bool, BtfError> {
        if x.params.len() != y.params.len() {
            return Ok(false);
        }
        for (p, q) in x.params.iter().zip(&y.params) {
            if !same(p.ty, q.ty, walk)? {
                return Ok(false);
            }
        }
        same(x.ret, y.ret, walk)
    }

    fn same_name(&self, a: StrOff, b: StrOff) -> bool {
        essential_name(self.local.str(a)) == essential_name(self.target.str(b))
    }

    fn matches(
        &self,
        a: TypeId,
        b: TypeId,
        behind_pointer: bool,
        walk: &mut TypeWalk,
    ) -> Result<bool, BtfError> {
        walk.enter(|walk| {
            let (x, y) = (self.local.resolved(a)?, self.target.resolved(b)?);
            if !self.same_name(x.name, y.name) {
                return Ok(false);
            }
            match (x.kind, y.kind) {
                (TypeKind::Void, TypeKind::Void) => Ok(true),
                (TypeKind::Fwd { union: u }, TypeKind::Fwd { union: v }) => Ok(u == v),
                (TypeKind::Fwd { union }, TypeKind::Struct(_))
                | (TypeKind::Struct(_), TypeKind::Fwd { union }) => Ok(behind_pointer && !union),
                (TypeKind::Fwd { union }, TypeKind::Union(_))
                | (TypeKind::Union(_), TypeKind::Fwd { union }) => Ok(behind_pointer && union),
                (TypeKind::Enum(x), TypeKind::Enum(y)) => self.enums(&x, &y, walk),
                (TypeKind::Struct(x), TypeKind::Struct(y)) | (TypeKind::Union(x), TypeKind::Union(y)) => {
                    if behind_pointer {
                        Ok(true)
                    } else {
                        self.composites(&x, &y, walk)
                    }
                }
                (TypeKind::Int(Int { size, signed, .. }), TypeKind::Int(y)) => {
                    Ok(size == y.size && signed == y.signed)
                }
                (TypeKind::Ptr(x), TypeKind::Ptr(y)) => self.matches(x, y, true, walk),
                (TypeKind::Array(Array { element, len, .. }), TypeKind::Array(y)) => {
                    Ok(len == y.len && self.matches(element, y.element, behind_pointer, walk)?)
                }
                (TypeKind::FuncProto(x), TypeKind::FuncProto(y)) => {
                    self.protos(&x, &y, walk, |a, b, walk| self.matches(a, b, behind_pointer, walk))
                }
                _ => Ok(false),
            }
        })
    }

    /// Every local enumerator has one of the same name.
    fn enums(&self, x: &Enum, y: &Enum, walk: &mut TypeWalk) -> Result<bool, BtfError> {
        if x.size != y.size || x.values.len() > y.values.len() {
            return Ok(false);
        }
        for v in &x.values {
            walk.visit(y.values.len())?;
            if !y.values.iter().any(|w| self.same_name(v.name, w.name)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Every local member has one of the same name and a matching type.
    fn composites(&self, x: &Composite, y: &Composite, walk: &mut TypeWalk) -> Result<bool, BtfError> {
        if x.members.len() > y.members.len() {
            return Ok(false);
        }
        for m in &x.members {
            walk.visit(y.members.len())?;
            let mut found = false;
            for n in y.members.iter().filter(|n| self.same_name(m.name, n.name)) {
                if self.matches(m.ty, n.ty, false, walk)? {
                    found = true;
                    break;
                }
            }
            if !found {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
