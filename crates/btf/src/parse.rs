//! Reading `.BTF`: one pass that finds every type and checks every reference, and decoding on demand.
//!
//! Invariant: once [`Btf::parse`] has returned, every type's record lies inside the data, every type it
//! refers to and every name exists. Decoding relies on it.

use crate::{
    Array, BtfError, Composite, Datasec, Enum, Enumerator, FuncLinkage, FuncProto, Int, KindTag, Member,
    Param, SectionVar, StrOff, Type, TypeId, TypeKind, UnknownType, VarLinkage, byte_order,
};
use millstream_isa::ByteOrder;
use std::sync::OnceLock;

/// One BTF: the types of a program or of a kernel.
///
/// Cheap to make from large data (types are decoded when asked for); names are indexed at the first search.
#[derive(Clone, Debug)]
pub struct Btf {
    /// In little-endian order, whatever the order of the section.
    data: Vec<u8>,
    order: ByteOrder,
    /// The string section with every byte that is not UTF-8 replaced, if there were any: offsets stay right.
    text: Option<String>,
    types: (usize, usize),
    strings: (usize, usize),
    /// The layout section, which gives the lengths of types of each kind; empty in BTF of kernels up to 7.0.
    layout: (usize, usize),
    /// Offset of each type in the type section; the entry of `void` is unused.
    offsets: Vec<u32>,
    pub(crate) index: OnceLock<NameIndex>,
}

/// Hashes of names, and of names less their flavour, with the types that have them: sorted.
pub(crate) type NameIndex = Vec<(u32, TypeId)>;

const HEADER: usize = 24;
/// Bytes of the header with a layout section.
pub(crate) const HEADER_WITH_LAYOUT: usize = 32;
/// Bytes of an entry of the layout section: `struct btf_layout`.
const LAYOUT: usize = 4;
/// The format allows 2^32 ids; the kernel 2^20 - 1 types in a program's BTF. vmlinux has about 2^18.
const MAX_TYPES: u32 = 1 << 24;

fn word_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// The three words that start every type.
#[derive(Clone, Copy)]
struct TypeHeader {
    name: u32,
    info: u32,
    /// A size or a type, by kind.
    third: u32,
}

impl TypeHeader {
    fn at(types: &[u8], at: usize) -> TypeHeader {
        TypeHeader { name: word_at(types, at), info: word_at(types, at + 4), third: word_at(types, at + 8) }
    }
    fn code(self) -> u8 {
        (self.info >> 24 & 0x7f) as u8
    }
    fn vlen(self) -> usize {
        (self.info & 0xff_ffff) as usize
    }
    fn flag(self) -> bool {
        self.info >> 31 == 1
    }
}

/// Bytes that follow the head, of a kind that is known.
fn tail_len(kind: KindTag, vlen: usize) -> usize {
    match kind {
        KindTag::Int | KindTag::Var | KindTag::DeclTag => 4,
        KindTag::Array => 12,
        KindTag::Struct | KindTag::Union | KindTag::Datasec | KindTag::Enum64 => 12 * vlen,
        KindTag::Enum | KindTag::FuncProto => 8 * vlen,
        _ => 0,
    }
}

impl Btf {
    /// Reads BTF from the bytes of a `.BTF` section or of `/sys/kernel/btf/vmlinux`.
    pub fn parse(data: &[u8]) -> Result<Btf, BtfError> {
        Btf::from_vec(data.to_vec())
    }

    /// As [`Btf::parse`], keeping the bytes.
    pub fn from_vec(mut data: Vec<u8>) -> Result<Btf, BtfError> {
        let order = byte_order::of_section(&data);
        if order == ByteOrder::Big {
            byte_order::exchange_types(&mut data, order);
        }
        let [types, strings, layout] = read_header(&data)?;
        let text = check_strings(&data[strings.0..strings.1])?;
        let offsets = vec![0];
        let mut btf = Btf { data, order, text, types, strings, layout, offsets, index: OnceLock::new() };
        btf.find_types()?;
        btf.check_references()?;
        Ok(btf)
    }

    /// Byte order of the section, and of the values that the types describe.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// The bytes it was read from, in little-endian order.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Number of types, `void` included: ids are less than it.
    #[allow(clippy::len_without_is_empty)] // `void` is always there
    pub fn len(&self) -> u32 {
        self.offsets.len() as u32
    }

    /// All ids but `void`'s.
    pub fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (1..self.len()).map(TypeId)
    }

    fn type_data(&self) -> &[u8] {
        &self.data[self.types.0..self.types.1]
    }

    /// The layout section as it is.
    pub(crate) fn raw_layout(&self) -> &[u8] {
        &self.data[self.layout.0..self.layout.1]
    }

    /// Bytes that follow the head; `None` if neither the kind nor the layout section gives their number.
    fn tail_len(&self, head: TypeHeader) -> Option<usize> {
        match KindTag::from_code(head.code()) {
            Some(KindTag::Void) => None,
            Some(kind) => Some(tail_len(kind, head.vlen())),
            None => {
                let entry = self.raw_layout().chunks_exact(LAYOUT).nth(head.code().into())?;
                Some(usize::from(entry[0]) + usize::from(entry[1]) * head.vlen())
            }
        }
    }

    /// The string section as it is.
    pub(crate) fn raw_strings(&self) -> &[u8] {
        &self.data[self.strings.0..self.strings.1]
    }

    /// The string that starts at `off`, if that is inside the string section. Bytes that are not UTF-8 read
    /// as `?`.
    pub fn try_str(&self, off: StrOff) -> Option<&str> {
        let at = off.0 as usize;
        let raw = self.raw_strings().get(at..)?;
        let len = raw.iter().position(|b| *b == 0)?;
        match &self.text {
            None => std::str::from_utf8(&raw[..len]).ok(),
            Some(t) => t.get(at..at + len),
        }
    }

    /// The string at `off`; empty if there is none.
    pub fn str(&self, off: StrOff) -> &str {
        self.try_str(off).unwrap_or_default()
    }

    fn find_types(&mut self) -> Result<(), BtfError> {
        let mut offsets = std::mem::take(&mut self.offsets);
        let types = self.type_data();
        // A third of a record is its least size; an estimate keeps the vector from growing step by step.
        offsets.reserve(types.len() / 24);
        let mut at = 0;
        while at < types.len() {
            let id = offsets.len() as u32;
            if id >= MAX_TYPES {
                return Err(BtfError::TooManyTypes(MAX_TYPES));
            }
            let short = |need| BtfError::Truncated { what: "a type", at, need, have: types.len() - at };
            if types.len() - at < 12 {
                return Err(short(12));
            }
            let head = TypeHeader::at(types, at);
            let tail = self.tail_len(head).ok_or(BtfError::UnknownKind { id, at, kind: head.code() })?;
            let len = 12 + tail;
            if types.len() - at < len {
                return Err(short(len));
            }
            offsets.push(at as u32);
            at += len;
        }
        self.offsets = offsets;
        Ok(())
    }

    fn check_references(&self) -> Result<(), BtfError> {
        let types = self.type_data();
        let strings = self.raw_strings().len() as u32;
        let count = self.len();
        for id in 1..count {
            let at = self.offsets[id as usize] as usize;
            let head = TypeHeader::at(types, at);
            let mut name_ok = head.name < strings;
            let mut type_ok = true;
            let body = at + 12;
            // Names and types in records of `step` bytes; which word of them is a name, which a type.
            let mut each = |step: usize, name: Option<usize>, ty: Option<usize>| {
                for n in 0..head.vlen() {
                    let record = body + n * step;
                    name_ok &= name.is_none_or(|w| word_at(types, record + 4 * w) < strings);
                    type_ok &= ty.is_none_or(|w| word_at(types, record + 4 * w) < count);
                }
            };
            match KindTag::from_code(head.code()).unwrap_or(KindTag::Unknown) {
                KindTag::Struct | KindTag::Union => each(12, Some(0), Some(1)),
                KindTag::Enum => each(8, Some(0), None),
                KindTag::Enum64 => each(12, Some(0), None),
                KindTag::FuncProto => {
                    each(8, Some(0), Some(1));
                    type_ok &= head.third < count;
                }
                KindTag::Datasec => each(12, None, Some(0)),
                KindTag::Array => {
                    type_ok = word_at(types, body) < count && word_at(types, body + 4) < count;
                }
                KindTag::Void | KindTag::Int | KindTag::Fwd | KindTag::Float | KindTag::Unknown => {}
                _ => type_ok = head.third < count,
            }
            let bad = |what: &str| Err(BtfError::BadType { id, at, what: what.into() });
            if !name_ok {
                return bad("a name lies outside the strings");
            }
            if !type_ok {
                return bad("refers to a type that does not exist");
            }
        }
        Ok(())
    }

    /// The head of a type, and all bytes behind it.
    fn head(&self, id: TypeId) -> Option<(TypeHeader, &[u8])> {
        if id.is_void() {
            return None;
        }
        let at = *self.offsets.get(id.0 as usize)? as usize;
        let types = self.type_data();
        Some((TypeHeader::at(types, at), &types[at + 12..]))
    }

    /// The kind of a type, without decoding it.
    pub fn tag(&self, id: TypeId) -> Result<KindTag, BtfError> {
        match self.head(id) {
            Some((head, _)) => Ok(KindTag::from_code(head.code()).unwrap_or(KindTag::Unknown)),
            None if id.is_void() => Ok(KindTag::Void),
            None => Err(BtfError::NoSuchType(id.0)),
        }
    }

    /// The name of a type: empty for anonymous types and ids that do not exist.
    pub fn name(&self, id: TypeId) -> &str {
        self.head(id).map_or("", |(head, _)| self.str(StrOff(head.name)))
    }

    /// The name of a type, without the cost of decoding it as text.
    pub(crate) fn raw_name(&self, id: TypeId) -> &[u8] {
        let at = self.head(id).map_or(0, |(head, _)| head.name as usize);
        let rest = self.raw_strings().get(at..).unwrap_or_default();
        rest.split(|b| *b == 0).next().unwrap_or_default()
    }

    /// The type that this one qualifies, renames or tags, if it does. Fast: no decoding.
    pub(crate) fn modified(&self, id: TypeId) -> Option<TypeId> {
        let (head, _) = self.head(id)?;
        match KindTag::from_code(head.code())? {
            KindTag::Typedef | KindTag::Volatile | KindTag::Const | KindTag::Restrict | KindTag::TypeTag => {
                Some(TypeId(head.third))
            }
            _ => None,
        }
    }

    /// Decodes a type.
    pub fn ty(&self, id: TypeId) -> Result<Type, BtfError> {
        match self.head(id) {
            Some((head, body)) if KindTag::from_code(head.code()).is_some() => {
                Ok(Type { name: StrOff(head.name), kind: decode(head, body) })
            }
            Some((head, body)) => {
                let body = body.get(..self.tail_len(head).unwrap_or(0)).unwrap_or_default().to_vec();
                let kind = TypeKind::Unknown(UnknownType { info: head.info, third: head.third, body });
                Ok(Type { name: StrOff(head.name), kind })
            }
            None if id.is_void() => Ok(Type { name: StrOff(0), kind: TypeKind::Void }),
            None => Err(BtfError::NoSuchType(id.0)),
        }
    }
}

type SectionRange = (usize, usize);

/// The ranges of types, strings and layout.
fn read_header(data: &[u8]) -> Result<[SectionRange; 3], BtfError> {
    if data.len() < HEADER {
        return Err(BtfError::Truncated { what: "the header", at: 0, need: HEADER, have: data.len() });
    }
    match u16::from_le_bytes([data[0], data[1]]) {
        0xeb9f => {}
        magic => return Err(BtfError::BadMagic(magic)),
    }
    if data[2] != 1 {
        return Err(BtfError::BadVersion(data[2]));
    }
    let header = word_at(data, 4) as usize;
    if header < HEADER || header > data.len() {
        return Err(BtfError::BadHeader("its own length is impossible"));
    }
    let part = |n: usize, what: &'static str| {
        let start = header.checked_add(word_at(data, n) as usize).filter(|s| *s <= data.len());
        let end =
            start.and_then(|s| s.checked_add(word_at(data, n + 4) as usize)).filter(|e| *e <= data.len());
        start.zip(end).ok_or(BtfError::BadHeader(what))
    };
    let types = part(8, "the types lie outside the data")?;
    let strings = part(16, "the strings lie outside the data")?;
    if !types.0.is_multiple_of(4) {
        return Err(BtfError::BadHeader("the types are not aligned"));
    }
    let layout = match header >= HEADER_WITH_LAYOUT {
        true => part(24, "the layout lies outside the data")?,
        false => (header, header),
    };
    if !(layout.1 - layout.0).is_multiple_of(LAYOUT) {
        return Err(BtfError::BadHeader("the layout does not consist of whole entries"));
    }
    Ok([types, strings, layout])
}

/// Checks that the strings begin and end with a NUL. Returns a copy with bytes that are not UTF-8, and
/// characters that would end a line of a report, replaced, if there are any.
fn check_strings(raw: &[u8]) -> Result<Option<String>, BtfError> {
    if raw.last() != Some(&0) {
        return Err(BtfError::BadHeader("the strings do not end with a NUL"));
    }
    if raw[0] != 0 {
        return Err(BtfError::SplitBtf);
    }
    // Tabs are in lines of source.
    const LINE_ENDS: [char; 4] = ['\n', '\r', '\x0b', '\x0c'];
    let ends_lines = raw.iter().any(|b| matches!(b, b'\n' | b'\r' | 0x0b | 0x0c));
    if !ends_lines && std::str::from_utf8(raw).is_ok() {
        return Ok(None);
    }
    let mut text = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        text.push_str(&chunk.valid().replace(LINE_ENDS, "?"));
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    Ok(Some(text))
}

fn records(body: &[u8], vlen: usize, size: usize) -> impl Iterator<Item = &[u8]> {
    body.chunks_exact(size).take(vlen)
}

fn decode(head: TypeHeader, body: &[u8]) -> TypeKind {
    let target = TypeId(head.third);
    match KindTag::from_code(head.code()).unwrap_or(KindTag::Void) {
        KindTag::Void | KindTag::Unknown => TypeKind::Void,
        KindTag::Int => TypeKind::Int(decode_int(head.third, word_at(body, 0))),
        KindTag::Ptr => TypeKind::Ptr(target),
        KindTag::Array => TypeKind::Array(Array {
            element: TypeId(word_at(body, 0)),
            index: TypeId(word_at(body, 4)),
            len: word_at(body, 8),
        }),
        KindTag::Struct => TypeKind::Struct(decode_composite(head, body)),
        KindTag::Union => TypeKind::Union(decode_composite(head, body)),
        KindTag::Enum => TypeKind::Enum(decode_enum(head, body)),
        KindTag::Enum64 => TypeKind::Enum(decode_enum64(head, body)),
        KindTag::Fwd => TypeKind::Fwd { union: head.flag() },
        KindTag::Typedef => TypeKind::Typedef(target),
        KindTag::Volatile => TypeKind::Volatile(target),
        KindTag::Const => TypeKind::Const(target),
        KindTag::Restrict => TypeKind::Restrict(target),
        KindTag::Func => TypeKind::Func {
            proto: target,
            linkage: match head.vlen() {
                0 => FuncLinkage::Static,
                1 => FuncLinkage::Global,
                _ => FuncLinkage::Extern,
            },
        },
        KindTag::FuncProto => {
            let params = records(body, head.vlen(), 8)
                .map(|r| Param { name: StrOff(word_at(r, 0)), ty: TypeId(word_at(r, 4)) })
                .collect();
            TypeKind::FuncProto(FuncProto { ret: target, params })
        }
        KindTag::Var => TypeKind::Var {
            ty: target,
            linkage: match word_at(body, 0) {
                0 => VarLinkage::Static,
                1 => VarLinkage::Global,
                _ => VarLinkage::Extern,
            },
        },
        KindTag::Datasec => {
            let vars = records(body, head.vlen(), 12)
                .map(|r| SectionVar { ty: TypeId(word_at(r, 0)), offset: word_at(r, 4), size: word_at(r, 8) })
                .collect();
            TypeKind::Datasec(Datasec { size: head.third, vars })
        }
        KindTag::Float => TypeKind::Float { size: head.third },
        KindTag::DeclTag => {
            TypeKind::DeclTag { ty: target, component: word_at(body, 0) as i32, attribute: head.flag() }
        }
        KindTag::TypeTag => TypeKind::TypeTag { ty: target, attribute: head.flag() },
    }
}

fn decode_int(size: u32, word: u32) -> Int {
    Int {
        size,
        signed: word >> 24 & 1 != 0,
        character: word >> 24 & 2 != 0,
        boolean: word >> 24 & 4 != 0,
        offset: (word >> 16) as u8,
        bits: word as u8,
    }
}

fn decode_composite(head: TypeHeader, body: &[u8]) -> Composite {
    let bit_fields = head.flag();
    let members = records(body, head.vlen(), 12)
        .map(|r| {
            let offset = word_at(r, 8);
            let (bit_offset, bit_size) =
                if bit_fields { (offset & 0xff_ffff, (offset >> 24) as u8) } else { (offset, 0) };
            Member { name: StrOff(word_at(r, 0)), ty: TypeId(word_at(r, 4)), bit_offset, bit_size }
        })
        .collect();
    Composite { size: head.third, bit_fields, members }
}

fn decode_enum(head: TypeHeader, body: &[u8]) -> Enum {
    let signed = head.flag();
    let values = records(body, head.vlen(), 8)
        .map(|r| {
            let v = word_at(r, 4);
            let value = if signed { i64::from(v as i32) as u64 } else { u64::from(v) };
            Enumerator { name: StrOff(word_at(r, 0)), value }
        })
        .collect();
    Enum { size: head.third, signed, wide: false, values }
}

fn decode_enum64(head: TypeHeader, body: &[u8]) -> Enum {
    let values = records(body, head.vlen(), 12)
        .map(|r| {
            let value = u64::from(word_at(r, 4)) | u64::from(word_at(r, 8)) << 32;
            Enumerator { name: StrOff(word_at(r, 0)), value }
        })
        .collect();
    Enum { size: head.third, signed: head.flag(), wide: true, values }
}
