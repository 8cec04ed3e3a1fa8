//! Queries about types: meaning and size of values, places of fields, types by name.
//!
//! Chains of references are followed to a fixed depth, so that cyclic (hostile) BTF gives an error; real
//! depth is below 10, libbpf's limit 32. Where a query follows several references of one type, the number of
//! types visited is limited too ([`TypeWalk`]): types that share members would else take time exponential in
//! the depth.

use crate::parse::NameIndex;
use crate::{Btf, BtfError, Composite, FuncProto, KindTag, Type, TypeId, TypeKind};
use rustc_hash::FxHasher;
use std::hash::Hasher;

const MAX_DEPTH: usize = 32;
const POINTER_SIZE: u32 = 8;
/// Far above what the largest structure of a kernel needs (some thousands).
const MAX_VISITS: u32 = 1 << 18;

/// The limits of one query that follows types as a tree.
#[derive(Clone, Copy)]
pub(crate) struct TypeWalk {
    root: TypeId,
    visits: u32,
    depth: usize,
}

impl TypeWalk {
    pub(crate) fn new(root: TypeId) -> TypeWalk {
        TypeWalk { root, visits: MAX_VISITS, depth: MAX_DEPTH }
    }

    /// Enters a type; `body` runs one level deeper.
    pub(crate) fn enter<T>(
        &mut self,
        body: impl FnOnce(&mut TypeWalk) -> Result<T, BtfError>,
    ) -> Result<T, BtfError> {
        let too_deep = BtfError::TooDeep(self.root.0);
        self.visits = self.visits.checked_sub(1).ok_or(too_deep.clone())?;
        self.depth = self.depth.checked_sub(1).ok_or(too_deep)?;
        let result = body(self);
        self.depth += 1;
        result
    }

    /// Counts `n` types looked at without entering them.
    pub(crate) fn visit(&mut self, n: usize) -> Result<(), BtfError> {
        let left = u32::try_from(n).ok().and_then(|n| self.visits.checked_sub(n));
        self.visits = left.ok_or(BtfError::TooDeep(self.root.0))?;
        Ok(())
    }
}

/// A member found in a structure, also inside its anonymous structures and unions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StructField {
    /// Its type.
    pub ty: TypeId,
    /// Offset from the start of the outermost structure, in bits.
    pub bit_offset: u32,
    /// Size in bits if a bit field, else 0.
    pub bit_size: u8,
}

fn hash(name: &[u8]) -> u32 {
    let mut h = FxHasher::default();
    h.write(name);
    (h.finish() >> 32) as u32
}

/// A name less its flavour: `task_struct___old` is `task_struct`. As in libbpf, a flavour is the part after
/// the last `___` that has a character other than `_` on either side.
pub fn essential_name(name: &str) -> &str {
    let b = name.as_bytes();
    let flavour = (0..b.len().saturating_sub(4))
        .rev()
        .find(|&i| b[i] != b'_' && b[i + 1..i + 4] == *b"___" && b[i + 4] != b'_');
    flavour.map_or(name, |i| &name[..=i])
}

impl Btf {
    fn index(&self) -> &NameIndex {
        self.index.get_or_init(|| {
            let mut index = NameIndex::with_capacity(self.len() as usize);
            for id in self.ids() {
                let name = self.raw_name(id);
                if name.is_empty() {
                    continue;
                }
                index.push((hash(name), id));
                if name.windows(3).any(|w| w == b"___") {
                    let text = self.name(id);
                    let short = essential_name(text);
                    if short.len() < text.len() {
                        index.push((hash(short.as_bytes()), id));
                    }
                }
            }
            index.sort_unstable();
            index
        })
    }

    /// Types whose name, or name less its flavour, may be this one.
    fn hashed(&self, name: &str) -> impl Iterator<Item = TypeId> + '_ {
        let (index, key) = (self.index(), hash(name.as_bytes()));
        let start = index.partition_point(|(h, _)| *h < key);
        index[start..].iter().take_while(move |(h, _)| *h == key).map(|(_, id)| *id)
    }

    /// The types of this exact name, in order of id.
    pub fn find_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = TypeId> + 'a {
        self.hashed(name).filter(move |id| self.name(*id) == name)
    }

    /// The types of this name or a flavour of it, in order of id.
    pub(crate) fn find_flavours<'a>(&'a self, essential: &'a str) -> impl Iterator<Item = TypeId> + 'a {
        self.hashed(essential).filter(move |id| essential_name(self.name(*id)) == essential)
    }

    /// The first type of this kind and name.
    pub fn find(&self, kind: KindTag, name: &str) -> Option<TypeId> {
        self.find_all(name).find(|id| self.tag(*id) == Ok(kind))
    }

    /// The type without its typedefs, qualifiers and type tags.
    pub fn resolve(&self, id: TypeId) -> Result<TypeId, BtfError> {
        let mut at = id;
        for _ in 0..=MAX_DEPTH {
            match self.modified(at) {
                Some(next) => at = next,
                None if at.0 < self.len() => return Ok(at),
                None => return Err(BtfError::NoSuchType(at.0)),
            }
        }
        Err(BtfError::TooDeep(id.0))
    }

    /// [`Btf::resolve`], decoded.
    pub fn resolved(&self, id: TypeId) -> Result<Type, BtfError> {
        self.ty(self.resolve(id)?)
    }

    /// Size of a value of the type, in bytes.
    pub fn size_of(&self, id: TypeId) -> Result<u64, BtfError> {
        let mut count = 1u64;
        let mut at = id;
        for _ in 0..=MAX_DEPTH {
            let size = match self.resolved(at)?.kind {
                TypeKind::Int(i) => i.size,
                TypeKind::Float { size } => size,
                TypeKind::Enum(e) => e.size,
                TypeKind::Struct(c) | TypeKind::Union(c) => c.size,
                TypeKind::Datasec(d) => d.size,
                TypeKind::Ptr(_) => POINTER_SIZE,
                TypeKind::Array(a) => {
                    count = count.checked_mul(u64::from(a.len)).ok_or(BtfError::SizeOverflow(id.0))?;
                    at = a.element;
                    continue;
                }
                TypeKind::Var { ty, .. } => {
                    at = ty;
                    continue;
                }
                _ => return Err(BtfError::NoSize(id.0)),
            };
            return count.checked_mul(u64::from(size)).ok_or(BtfError::SizeOverflow(id.0));
        }
        Err(BtfError::TooDeep(id.0))
    }

    /// Alignment of a value of the type, in bytes, as the C compiler has it; 1 for a packed structure.
    pub fn align_of(&self, id: TypeId) -> Result<u32, BtfError> {
        self.align_in(id, &mut TypeWalk::new(id))
    }

    fn align_in(&self, id: TypeId, walk: &mut TypeWalk) -> Result<u32, BtfError> {
        walk.enter(|walk| match self.resolved(id)?.kind {
            TypeKind::Int(i) => Ok(i.size.clamp(1, 16)),
            TypeKind::Float { size } => Ok(size.clamp(1, 8)),
            TypeKind::Enum(e) => Ok(e.size.clamp(1, 8)),
            TypeKind::Ptr(_) => Ok(POINTER_SIZE),
            TypeKind::Array(a) => self.align_in(a.element, walk),
            TypeKind::Var { ty, .. } => self.align_in(ty, walk),
            TypeKind::Struct(c) | TypeKind::Union(c) => self.align_of_members(&c, walk),
            _ => Err(BtfError::NoSize(id.0)),
        })
    }

    fn align_of_members(&self, c: &Composite, walk: &mut TypeWalk) -> Result<u32, BtfError> {
        walk.visit(c.members.len())?;
        let (mut align, mut packed) = (1, false);
        for m in &c.members {
            let own = self.align_in(m.ty, walk)?;
            align = align.max(own);
            packed |= m.bit_size == 0 && !u64::from(m.bit_offset).is_multiple_of(8 * u64::from(own));
        }
        Ok(if packed || !c.size.is_multiple_of(align) { 1 } else { align })
    }

    /// The structure or union that the type resolves to.
    pub fn composite(&self, id: TypeId) -> Result<Composite, BtfError> {
        match self.resolved(id)?.kind {
            TypeKind::Struct(c) | TypeKind::Union(c) => Ok(c),
            _ => Err(BtfError::WrongKind { id: id.0, want: "a structure or union" }),
        }
    }

    /// The field called `name` of a structure or union, looked for also inside its anonymous members.
    pub fn field(&self, id: TypeId, name: &str) -> Result<Option<StructField>, BtfError> {
        self.field_in(id, name, &mut TypeWalk::new(id))
    }

    fn field_in(&self, id: TypeId, name: &str, walk: &mut TypeWalk) -> Result<Option<StructField>, BtfError> {
        walk.enter(|walk| {
            let members = self.composite(id)?.members;
            walk.visit(members.len())?;
            for m in members {
                let found = if self.str(m.name) == name {
                    Some(StructField { ty: m.ty, bit_offset: 0, bit_size: m.bit_size })
                } else if m.name.0 == 0 && self.is_composite(m.ty)? {
                    self.field_in(m.ty, name, walk)?
                } else {
                    None
                };
                if let Some(f) = found {
                    return Ok(Some(StructField {
                        bit_offset: f.bit_offset.wrapping_add(m.bit_offset),
                        ..f
                    }));
                }
            }
            Ok(None)
        })
    }

    pub(crate) fn is_composite(&self, id: TypeId) -> Result<bool, BtfError> {
        Ok(matches!(self.tag(self.resolve(id)?)?, KindTag::Struct | KindTag::Union))
    }

    /// The prototype of a function, of a prototype, or of a pointer to one.
    pub fn prototype(&self, id: TypeId) -> Result<FuncProto, BtfError> {
        let mut at = id;
        for _ in 0..=MAX_DEPTH {
            at = match self.resolved(at)?.kind {
                TypeKind::FuncProto(p) => return Ok(p),
                TypeKind::Func { proto, .. } => proto,
                TypeKind::Ptr(to) => to,
                _ => return Err(BtfError::WrongKind { id: id.0, want: "a function" }),
            };
        }
        Err(BtfError::TooDeep(id.0))
    }
}
