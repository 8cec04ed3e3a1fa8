//! BTF of an object: definitions of maps, and prototypes of functions.

use std::collections::BTreeSet;

use millstream_btf::{
    Array, Btf, BtfBuilder, BtfError, Composite, Datasec, FuncLinkage, FuncProto, Member, Param, SectionVar,
    StrOff, TypeId, TypeKind, VarLinkage,
};
use millstream_ir::MapDecl;

/// Bytes of a map's definition in `.maps`: one pointer for each of its parameters.
const POINTER: u32 = 8;

/// Types of an object.
pub(crate) struct ObjectTypes {
    builder: BtfBuilder,
    int: TypeId,
    pointer: TypeId,
    vars: Vec<SectionVar>,
    section_size: u32,
}

/// Makes a name of C from a name of P4, different from all in `taken`.
pub(crate) fn c_name(name: &str, taken: &mut BTreeSet<String>) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    let plain = match plain.chars().next() {
        Some(first) if !first.is_ascii_digit() => plain,
        _ => format!("p4_{plain}"),
    };
    let mut unique = plain.clone();
    let mut number = 1;
    while !taken.insert(unique.clone()) {
        number += 1;
        unique = format!("{plain}_{number}");
    }
    unique
}

impl ObjectTypes {
    pub(crate) fn new() -> ObjectTypes {
        let mut builder = BtfBuilder::new();
        let int = builder.int("int", 4, true);
        let pointer = builder.add("", TypeKind::Ptr(TypeId(0)));
        ObjectTypes { builder, int, pointer, vars: Vec::new(), section_size: 0 }
    }

    /// Describes a map by a variable of `.maps`; gives its place in the section and its size.
    pub(crate) fn add_map(&mut self, name: &str, map: &MapDecl) -> (u32, u32) {
        let parameters = [
            ("type", map.kind),
            ("key_size", map.key_size),
            ("value_size", map.value_size),
            ("max_entries", map.max_entries),
            ("map_flags", map.flags),
        ];
        let mut members = Vec::new();
        for (name, value) in parameters.into_iter().filter(|(_, value)| *value != 0) {
            let array = Array { element: self.int, index: self.int, len: value };
            let array = self.builder.add("", TypeKind::Array(array));
            let ty = self.builder.add("", TypeKind::Ptr(array));
            let bit_offset = members.len() as u32 * 8 * POINTER;
            members.push(Member { name: self.builder.string(name), ty, bit_offset, bit_size: 0 });
        }
        let size = members.len() as u32 * POINTER;
        let definition = TypeKind::Struct(Composite { size, bit_fields: false, members });
        let ty = self.builder.add("", definition);
        let ty = self.builder.add(name, TypeKind::Var { ty, linkage: VarLinkage::Global });
        let offset = self.section_size;
        self.vars.push(SectionVar { ty, offset, size });
        self.section_size += size;
        (offset, size)
    }

    /// Describes a function with this many parameters.
    pub(crate) fn add_function(&mut self, name: &str, parameters: usize, is_entry: bool) -> TypeId {
        let params = (0..parameters)
            .map(|n| Param { name: self.builder.string(&format!("p{n}")), ty: self.pointer })
            .collect();
        let proto = self.builder.add("", TypeKind::FuncProto(FuncProto { ret: self.int, params }));
        let linkage = if is_entry { FuncLinkage::Global } else { FuncLinkage::Static };
        self.builder.add(name, TypeKind::Func { proto, linkage })
    }

    pub(crate) fn string(&mut self, text: &str) -> StrOff {
        self.builder.string(text)
    }

    /// Bytes of `.maps`, and of `.BTF`.
    pub(crate) fn finish(mut self) -> Result<(u32, Vec<u8>), BtfError> {
        if !self.vars.is_empty() {
            let section = Datasec { size: self.section_size, vars: self.vars };
            self.builder.add(".maps", TypeKind::Datasec(section));
        }
        let bytes = self.builder.write()?;
        debug_assert!(Btf::parse(&bytes).is_ok());
        Ok((self.section_size, bytes))
    }
}
