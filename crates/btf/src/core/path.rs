//! The path of a relocation: from numbers in the program's types to names, and from names to the kernel's
//! types.

use super::{CoreError, compare};
use crate::query::{TypeWalk, essential_name};
use crate::{Array, Btf, BtfError, CoreRelo, Enumerator, Member, StrOff, TypeId, TypeKind};

/// libbpf's limit on the length of a path.
const MAX_PATH: usize = 64;

/// One step of a path that has a meaning in C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathStep {
    /// A named member; `of` is the structure and `index` the member's number in it.
    Field { of: TypeId, index: usize, member: Member },
    /// Element `index` of an array, or of the root seen as an array; `element` is the resolved element type.
    Element { element: TypeId, index: u32 },
    /// An enumerator.
    Value(Enumerator),
}

/// A path in one BTF. Type-based relocations have no steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AccessPath {
    pub(super) root: TypeId,
    pub(super) steps: Vec<PathStep>,
    pub(super) bit_offset: u32,
    relo: CoreRelo,
}

impl AccessPath {
    fn new(root: TypeId, relo: CoreRelo) -> AccessPath {
        AccessPath { root, steps: Vec::new(), bit_offset: 0, relo }
    }

    /// Reads the path of a relocation.
    pub(super) fn parse(local: &Btf, relo: &CoreRelo) -> Result<AccessPath, CoreError> {
        let access = local.str(relo.access);
        let bad = || CoreError::BadPath {
            access: access.to_owned(),
            id: relo.type_id.0,
            name: local.c_name(relo.type_id),
        };
        let numbers = numbers(access).ok_or_else(bad)?;
        let mut path = AccessPath::new(relo.type_id, *relo);
        if relo.kind.is_enumval() {
            let TypeKind::Enum(e) = local.resolved(relo.type_id)?.kind else { return Err(bad()) };
            let [index] = numbers[..] else { return Err(bad()) };
            path.steps.push(PathStep::Value(*e.values.get(index as usize).ok_or_else(bad)?));
        } else if relo.kind.is_field() {
            path.follow(local, &numbers)?.ok_or_else(bad)?;
        } else if numbers != [0] {
            return Err(bad());
        }
        Ok(path)
    }

    /// Follows numbers into the root type; `None` if they do not fit it.
    fn follow(&mut self, btf: &Btf, numbers: &[u32]) -> Result<Option<()>, BtfError> {
        let mut id = btf.resolve(self.root)?;
        self.push_element(btf, id, numbers[0])?;
        for &n in &numbers[1..] {
            match btf.resolved(id)?.kind {
                TypeKind::Struct(c) | TypeKind::Union(c) => {
                    let Some(member) = c.members.get(n as usize) else { return Ok(None) };
                    self.bit_offset = self.bit_offset.wrapping_add(member.bit_offset);
                    if member.name != StrOff(0) {
                        self.steps.push(PathStep::Field { of: id, index: n as usize, member: *member });
                    }
                    id = btf.resolve(member.ty)?;
                }
                TypeKind::Array(a) => {
                    if n >= a.len && !self.at_flexible(btf, &a)? {
                        return Ok(None);
                    }
                    id = btf.resolve(a.element)?;
                    self.push_element(btf, id, n)?;
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(()))
    }

    fn push_element(&mut self, btf: &Btf, element: TypeId, index: u32) -> Result<(), BtfError> {
        let bits = btf.size_of(element)?.wrapping_mul(8).wrapping_mul(u64::from(index));
        self.bit_offset = self.bit_offset.wrapping_add(bits as u32);
        self.steps.push(PathStep::Element { element, index });
        Ok(())
    }

    /// Returns true if the array that the last step leads to is a flexible one: of length 0, last of its
    /// structure.
    fn at_flexible(&self, btf: &Btf, array: &Array) -> Result<bool, BtfError> {
        match self.steps.last() {
            Some(PathStep::Field { of, index, .. }) if array.len == 0 => {
                Ok(btf.composite(*of)?.members.len() == index + 1)
            }
            _ => Ok(false),
        }
    }

    /// The same path from `candidate` in the target's types, if it exists and its types are compatible.
    pub(super) fn find_in(
        &self,
        local: &Btf,
        target: &Btf,
        candidate: TypeId,
    ) -> Result<Option<AccessPath>, CoreError> {
        let mut found = AccessPath::new(candidate, self.relo);
        let fits = if self.relo.kind.is_enumval() {
            found.find_enumerator(local, target, &self.steps)?
        } else if self.relo.kind.is_field() {
            found.find_field(local, target, &self.steps)?
        } else {
            compare::types(self.relo.kind, local, self.root, target, candidate)?
        };
        Ok(fits.then_some(found))
    }

    fn find_enumerator(&mut self, local: &Btf, target: &Btf, steps: &[PathStep]) -> Result<bool, BtfError> {
        let [PathStep::Value(wanted)] = steps else { return Ok(false) };
        let TypeKind::Enum(e) = target.resolved(self.root)?.kind else { return Ok(false) };
        let name = essential_name(local.str(wanted.name));
        let found = e.values.iter().find(|v| essential_name(target.str(v.name)) == name);
        self.steps.extend(found.map(|v| PathStep::Value(*v)));
        Ok(found.is_some())
    }

    fn find_field(&mut self, local: &Btf, target: &Btf, steps: &[PathStep]) -> Result<bool, BtfError> {
        let mut id = self.root;
        for (n, step) in steps.iter().enumerate() {
            id = target.resolve(id)?;
            match step {
                PathStep::Field { member, .. } => {
                    let mut walk = TypeWalk::new(id);
                    let Some((next, offset)) = self.find_member(local, member, target, id, &mut walk)? else {
                        return Ok(false);
                    };
                    self.bit_offset = self.bit_offset.wrapping_add(offset);
                    id = next;
                }
                PathStep::Element { index, .. } => {
                    if n > 0 {
                        let TypeKind::Array(a) = target.ty(id)?.kind else { return Ok(false) };
                        if *index >= a.len && !self.at_flexible(target, &a)? {
                            return Ok(false);
                        }
                        id = target.resolve(a.element)?;
                    }
                    self.push_element(target, id, *index)?;
                }
                PathStep::Value(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Looks for a member by name; gives its type and its offset in `of`.
    fn find_member(
        &mut self,
        local: &Btf,
        wanted: &Member,
        target: &Btf,
        of: TypeId,
        walk: &mut TypeWalk,
    ) -> Result<Option<(TypeId, u32)>, BtfError> {
        let of = target.resolve(of)?;
        if !target.is_composite(of)? {
            return Ok(None);
        }
        walk.enter(|walk| {
            let members = target.composite(of)?.members;
            walk.visit(members.len())?;
            for (index, m) in members.into_iter().enumerate() {
                if m.name == StrOff(0) {
                    if let Some((ty, offset)) = self.find_member(local, wanted, target, m.ty, walk)? {
                        return Ok(Some((ty, offset.wrapping_add(m.bit_offset))));
                    }
                } else if target.str(m.name) == local.str(wanted.name) {
                    if !compare::fields(local, wanted.ty, target, m.ty)? {
                        return Ok(None);
                    }
                    self.steps.push(PathStep::Field { of, index, member: m });
                    return Ok(Some((m.ty, m.bit_offset)));
                }
            }
            Ok(None)
        })
    }
}

/// The numbers of `0:1:2`.
fn numbers(access: &str) -> Option<Vec<u32>> {
    let numbers: Vec<u32> = access.split(':').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let small = numbers.iter().all(|n| *n <= i32::MAX as u32);
    (small && numbers.len() <= MAX_PATH).then_some(numbers)
}
