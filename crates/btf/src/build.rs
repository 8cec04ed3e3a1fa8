//! Making and editing BTF.

use crate::parse::HEADER_WITH_LAYOUT;
use crate::{
    Btf, BtfError, Composite, Enum, FuncLinkage, Int, Member, StrOff, Type, TypeId, TypeKind, VarLinkage,
    byte_order,
};
use millstream_isa::ByteOrder;
use rustc_hash::FxHashMap;

/// BTF being made: types that can be added and changed, and their strings.
///
/// Ids are given in order of adding. [`BtfBuilder::write`] checks what the format cannot express;
/// [`Btf::parse`] of its result checks the rest.
#[derive(Clone, Debug, Default)]
pub struct BtfBuilder {
    types: Vec<Type>,
    strings: Vec<u8>,
    known: FxHashMap<Vec<u8>, StrOff>,
    /// The layout section, which types of unknown kinds need.
    layout: Vec<u8>,
    order: ByteOrder,
}

impl BtfBuilder {
    /// BTF without types.
    pub fn new() -> BtfBuilder {
        BtfBuilder { strings: vec![0], ..BtfBuilder::default() }
    }

    /// The types and strings of `btf`, under the ids and offsets they have there, in its byte order.
    pub fn from_btf(btf: &Btf) -> Result<BtfBuilder, BtfError> {
        let types = btf.ids().map(|id| btf.ty(id)).collect::<Result<_, _>>()?;
        let (strings, layout) = (btf.raw_strings().to_vec(), btf.raw_layout().to_vec());
        Ok(BtfBuilder { types, strings, known: FxHashMap::default(), layout, order: btf.order() })
    }

    /// The offset of a string, which is added if it is not there. NULs end it.
    pub fn string(&mut self, text: &str) -> StrOff {
        let bytes = text.split('\0').next().unwrap_or_default().as_bytes();
        if bytes.is_empty() {
            return StrOff(0);
        }
        if let Some(off) = self.known.get(bytes) {
            return *off;
        }
        let off = StrOff(self.strings.len() as u32);
        self.strings.extend_from_slice(bytes);
        self.strings.push(0);
        self.known.insert(bytes.to_vec(), off);
        off
    }

    /// Adds a type.
    pub fn add(&mut self, name: &str, kind: TypeKind) -> TypeId {
        let name = self.string(name);
        self.types.push(Type { name, kind });
        TypeId(self.types.len() as u32)
    }

    /// The id that the next type added will have.
    pub fn next_id(&self) -> TypeId {
        TypeId(self.types.len() as u32 + 1)
    }

    /// A type, to be read or changed.
    pub fn get_mut(&mut self, id: TypeId) -> Option<&mut Type> {
        self.types.get_mut((id.0 as usize).checked_sub(1)?)
    }

    /// Adds all types and strings of other BTF, and returns where they are.
    ///
    /// # Errors
    /// For BTF of the other byte order, and for types of unknown kinds, whose references are not known.
    pub fn append(&mut self, other: &Btf) -> Result<AppendedBtf, BtfError> {
        if other.order() != self.order {
            return Err(BtfError::Unwritable("BTF of two byte orders"));
        }
        let place = AppendedBtf { types: self.types.len() as u32, strings: self.strings.len() as u32 };
        let mut types = other.ids().map(|id| other.ty(id)).collect::<Result<Vec<_>, _>>()?;
        for ty in &mut types {
            place.move_type(ty)?;
        }
        self.types.extend(types);
        self.strings.extend_from_slice(other.raw_strings());
        Ok(place)
    }

    /// Adds an integer type of `size` bytes.
    pub fn int(&mut self, name: &str, size: u32, signed: bool) -> TypeId {
        let bits = u8::try_from(size * 8).unwrap_or(u8::MAX);
        self.add(name, TypeKind::Int(Int { size, signed, character: false, boolean: false, offset: 0, bits }))
    }

    /// The `.BTF` section.
    pub fn write(&self) -> Result<Vec<u8>, BtfError> {
        let mut types = Vec::new();
        for ty in &self.types {
            write_type(ty, &mut types)?;
        }
        let len = |n: usize| u32::try_from(n).map_err(|_| BtfError::Unwritable("more than 4 GiB"));
        let (types_len, strings_len) = (len(types.len())?, len(self.strings.len())?);
        let layout_len = len(self.layout.len())?;
        let mut out = vec![0x9f, 0xeb, 1, 0];
        let header = if self.layout.is_empty() { 24 } else { HEADER_WITH_LAYOUT as u32 };
        let strings_at = types_len.checked_add(layout_len).ok_or(BtfError::Unwritable("more than 4 GiB"))?;
        for field in [header, 0, types_len, strings_at, strings_len] {
            out.extend(field.to_le_bytes());
        }
        if !self.layout.is_empty() {
            out.extend([types_len.to_le_bytes(), layout_len.to_le_bytes()].concat());
        }
        out.extend(types);
        out.extend(&self.layout);
        out.extend(&self.strings);
        if self.order == ByteOrder::Big {
            byte_order::exchange_types(&mut out, ByteOrder::Little);
        }
        Ok(out)
    }
}

/// Places of the types and strings that [`BtfBuilder::append`] has added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendedBtf {
    types: u32,
    strings: u32,
}

impl AppendedBtf {
    /// The new id of a type.
    pub fn type_id(self, id: TypeId) -> TypeId {
        if id.0 == 0 { id } else { TypeId(id.0.saturating_add(self.types)) }
    }

    /// The new offset of a string.
    pub fn string(self, off: StrOff) -> StrOff {
        if off.0 == 0 { off } else { StrOff(off.0.saturating_add(self.strings)) }
    }

    /// Renames all that a type refers to.
    fn move_type(self, ty: &mut Type) -> Result<(), BtfError> {
        ty.name = self.string(ty.name);
        match &mut ty.kind {
            TypeKind::Void | TypeKind::Int(_) | TypeKind::Fwd { .. } | TypeKind::Float { .. } => {}
            TypeKind::Ptr(to)
            | TypeKind::Typedef(to)
            | TypeKind::Volatile(to)
            | TypeKind::Const(to)
            | TypeKind::Restrict(to)
            | TypeKind::Func { proto: to, .. }
            | TypeKind::Var { ty: to, .. }
            | TypeKind::DeclTag { ty: to, .. }
            | TypeKind::TypeTag { ty: to, .. } => *to = self.type_id(*to),
            TypeKind::Array(array) => {
                (array.element, array.index) = (self.type_id(array.element), self.type_id(array.index));
            }
            TypeKind::Struct(composite) | TypeKind::Union(composite) => {
                for member in &mut composite.members {
                    (member.name, member.ty) = (self.string(member.name), self.type_id(member.ty));
                }
            }
            TypeKind::Enum(list) => list.values.iter_mut().for_each(|v| v.name = self.string(v.name)),
            TypeKind::FuncProto(proto) => {
                proto.ret = self.type_id(proto.ret);
                for param in &mut proto.params {
                    (param.name, param.ty) = (self.string(param.name), self.type_id(param.ty));
                }
            }
            TypeKind::Datasec(section) => {
                section.vars.iter_mut().for_each(|var| var.ty = self.type_id(var.ty));
            }
            TypeKind::Unknown(_) => return Err(BtfError::Unwritable("a type of an unknown kind")),
        }
        Ok(())
    }
}

fn vlen(n: usize) -> Result<u32, BtfError> {
    /// The format's, since Linux 7.1; before, it was 65,535.
    const MOST: u32 = 0xff_ffff;
    let count = u32::try_from(n).ok().filter(|n| *n <= MOST);
    count.ok_or(BtfError::Unwritable("a type has more than 16,777,215 parts"))
}

fn write_type(ty: &Type, out: &mut Vec<u8>) -> Result<(), BtfError> {
    let (count, flag, third) = head(&ty.kind)?;
    let info = match &ty.kind {
        TypeKind::Unknown(unknown) => unknown.info,
        kind => count | (kind.tag() as u32) << 24 | u32::from(flag) << 31,
    };
    let mut put = |words: &[u32]| out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    put(&[ty.name.0, info, third]);
    match &ty.kind {
        TypeKind::Int(i) => {
            let encoding = u32::from(i.signed) | u32::from(i.character) << 1 | u32::from(i.boolean) << 2;
            put(&[encoding << 24 | u32::from(i.offset) << 16 | u32::from(i.bits)]);
        }
        TypeKind::Array(a) => put(&[a.element.0, a.index.0, a.len]),
        TypeKind::Struct(c) | TypeKind::Union(c) => {
            for m in &c.members {
                put(&[m.name.0, m.ty.0, member_offset(c, m)?]);
            }
        }
        TypeKind::Enum(e) => {
            for v in &e.values {
                put(&[v.name.0, v.value as u32]);
                if e.wide {
                    put(&[(v.value >> 32) as u32]);
                }
            }
        }
        TypeKind::FuncProto(p) => p.params.iter().for_each(|p| put(&[p.name.0, p.ty.0])),
        TypeKind::Var { linkage, .. } => put(&[match linkage {
            VarLinkage::Static => 0,
            VarLinkage::Global => 1,
            VarLinkage::Extern => 2,
        }]),
        TypeKind::Datasec(d) => d.vars.iter().for_each(|v| put(&[v.ty.0, v.offset, v.size])),
        TypeKind::DeclTag { component, .. } => put(&[*component as u32]),
        TypeKind::Unknown(unknown) => out.extend(&unknown.body),
        _ => {}
    }
    Ok(())
}

/// A type's number of parts, flag and third word.
fn head(kind: &TypeKind) -> Result<(u32, bool, u32), BtfError> {
    Ok(match kind {
        TypeKind::Void => return Err(BtfError::Unwritable("void cannot be added: it is type 0")),
        TypeKind::Int(i) => (0, false, i.size),
        TypeKind::Ptr(t)
        | TypeKind::Typedef(t)
        | TypeKind::Volatile(t)
        | TypeKind::Const(t)
        | TypeKind::Restrict(t) => (0, false, t.0),
        TypeKind::Var { ty, .. } => (0, false, ty.0),
        TypeKind::TypeTag { ty, attribute } | TypeKind::DeclTag { ty, attribute, .. } => {
            (0, *attribute, ty.0)
        }
        TypeKind::Array(_) => (0, false, 0),
        TypeKind::Struct(c) | TypeKind::Union(c) => (vlen(c.members.len())?, c.bit_fields, c.size),
        TypeKind::Enum(Enum { values, signed, size, .. }) => (vlen(values.len())?, *signed, *size),
        TypeKind::Fwd { union } => (0, *union, 0),
        TypeKind::Func { proto, linkage } => {
            let linkage = match linkage {
                FuncLinkage::Static => 0,
                FuncLinkage::Global => 1,
                FuncLinkage::Extern => 2,
            };
            (linkage, false, proto.0)
        }
        TypeKind::FuncProto(p) => (vlen(p.params.len())?, false, p.ret.0),
        TypeKind::Datasec(d) => (vlen(d.vars.len())?, false, d.size),
        TypeKind::Float { size } => (0, false, *size),
        TypeKind::Unknown(unknown) => (0, false, unknown.third),
    })
}

fn member_offset(c: &Composite, m: &Member) -> Result<u32, BtfError> {
    if !c.bit_fields {
        return if m.bit_size == 0 {
            Ok(m.bit_offset)
        } else {
            Err(BtfError::Unwritable("a bit field in a structure that states no sizes of bit fields"))
        };
    }
    if m.bit_offset >> 24 != 0 {
        return Err(BtfError::Unwritable("a member of a structure with bit fields starts beyond 2 MiB"));
    }
    Ok(u32::from(m.bit_size) << 24 | m.bit_offset)
}
