//! Linked programs as the subjects of proofs, with maps and externs by name, so that two objects can be
//! compared.

use std::ops::Range;

use millstream_btf::{Btf, CoreKind, TypeId, TypeKind};
use millstream_isa::{ByteOrder, Insn, RawInsn, Size, decode};
use millstream_object::{ExternKind, FuncId, MapId, Object, RelocKind, Variable};
use rustc_hash::FxHashMap;

use crate::ProofError;

/// Kind of a program's context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContextLayout {
    Xdp,
    Skb,
    Other,
}

/// The properties of a map that matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MapSignature {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    /// Shape of the inner maps: type, key size, value size, and the number of entries for arrays, else none.
    pub(crate) inner: Option<(u32, u32, u32, u32)>,
    pub(crate) flags: u32,
    /// Initial contents of global data, and its variables.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) variables: Vec<Variable>,
    /// Offsets in global data whose initial contents are final.
    pub(crate) settled: Vec<Range<u32>>,
    /// True if its contents after a run do not count.
    pub(crate) is_scratch: bool,
}

impl MapSignature {
    /// Initial contents at an offset, if they are final.
    pub(crate) fn settled_bytes(&self, offset: u64, count: u64) -> Option<&[u8]> {
        let end = offset.checked_add(count)?;
        let is_settled =
            |at: u64| self.settled.iter().any(|r| (u64::from(r.start)..u64::from(r.end)).contains(&at));
        let bytes = self.data.as_ref()?.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)?;
        (count <= 8 && (offset..end).all(is_settled)).then_some(bytes)
    }
}

/// Reference of an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum InsnReference {
    Map(u32),
    Value(u32, u32),
    Extern(String),
}

/// A value that a loader computes from its kernel's types.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CoreReloValue {
    /// The request, by names of types and fields.
    pub(crate) name: String,
    /// For the offset of a field in an object: the size of that object in bytes, by the program's own types.
    pub(crate) object: Option<u64>,
}

/// A program.
#[derive(PartialEq, Debug)]
pub(crate) struct ProofProgram {
    /// Byte order of memory.
    pub(crate) order: ByteOrder,
    /// By slot; [`None`] in the second slot of `ld_imm64`.
    pub(crate) insns: Vec<Option<Insn>>,
    pub(crate) targets: FxHashMap<usize, InsnReference>,
    /// Values that a loader puts in, by slot.
    pub(crate) core: FxHashMap<usize, CoreReloValue>,
    pub(crate) context: ContextLayout,
    /// Numbers of parameters of kernel functions, by name.
    pub(crate) parameters: FxHashMap<String, usize>,
}

/// The maps of both objects, one per name.
#[derive(Debug, Default)]
pub(crate) struct UnifiedMaps(pub(crate) Vec<MapSignature>);

impl UnifiedMaps {
    fn add(&mut self, info: MapSignature) -> Result<u32, ProofError> {
        if let Some(at) = self.0.iter().position(|m| m.name == info.name) {
            if self.0[at] != info {
                return Err(ProofError::new(format!("map {:?} differs between the two", info.name)));
            }
            return Ok(at as u32);
        }
        self.0.push(info);
        Ok(self.0.len() as u32 - 1)
    }
}

impl ProofProgram {
    /// The instruction at a slot.
    pub(crate) fn insn(&self, slot: usize) -> Result<Insn, ProofError> {
        let insn = self.insns.get(slot).copied().flatten();
        insn.ok_or_else(|| ProofError::new(format!("no instruction at slot {slot}")))
    }

    /// Links a program of an object.
    pub(crate) fn new(
        object: &Object,
        func: FuncId,
        maps: &mut UnifiedMaps,
        side: char,
    ) -> Result<ProofProgram, ProofError> {
        let linked = object.link(func).map_err(|e| ProofError::new(e.to_string()))?;
        let insns = decoded(&linked.insns)?;
        let mut by_id = Vec::new();
        for (id, map) in (0..).map(MapId).zip(&object.maps) {
            let inner = map.inner.as_ref().map(|i| (i.map_type.0, i.key_size, i.value_size, i.max_entries));
            // libbpf names maps of global data after the object's file, which differs between objects.
            let name = if map.origin.is_global() { map.section.clone() } else { map.name.clone() };
            let s = &map.spec;
            let info = MapSignature {
                name,
                number: s.map_type.0,
                key_size: s.key_size,
                value_size: s.value_size,
                max_entries: s.max_entries,
                inner,
                flags: s.flags,
                data: map.data.clone(),
                variables: map.variables.clone(),
                settled: object.settled.iter().filter(|s| s.map == id).map(|s| s.range.clone()).collect(),
                is_scratch: false,
            };
            by_id.push(maps.add(info)?);
        }
        let mut targets = FxHashMap::default();
        for r in &linked.relocs {
            let target = match r.kind {
                RelocKind::Map(id) => InsnReference::Map(by_id[id.index()]),
                RelocKind::MapValue { map, offset } => InsnReference::Value(by_id[map.index()], offset),
                RelocKind::Extern(id) => {
                    let e = &object.externs[id.index()];
                    match e.kind {
                        ExternKind::Kconfig { map, offset, .. } => {
                            InsnReference::Value(by_id[map.index()], offset)
                        }
                        _ => InsnReference::Extern(e.name.clone()),
                    }
                }
                RelocKind::Call(_) | RelocKind::FuncAddr(_) => continue,
            };
            targets.insert(r.insn as usize, target);
        }
        let core = linked
            .core_relos
            .iter()
            .map(|c| {
                let name = object.btf.as_ref().and_then(|b| wanted(b, c.type_id, b.str(c.access), c.kind));
                // A request that cannot be named by its types is unique to its program.
                let name = name.unwrap_or_else(|| format!("of {side} at {}", c.insn));
                let object = object.btf.as_ref().and_then(|b| within(b, c.type_id, b.str(c.access), c.kind));
                (c.insn as usize, CoreReloValue { name: format!("CO-RE {:?} {name}", c.kind), object })
            })
            .collect();
        let context = context(object, func, &insns);
        let (order, parameters) = (object.byte_order(), parameters(object));
        Ok(ProofProgram { order, insns, targets, core, context, parameters })
    }
}

/// Request of a CO-RE relocation, by names of types and fields: the same text means the same in two objects.
fn wanted(btf: &Btf, root: TypeId, access: &str, kind: CoreKind) -> Option<String> {
    let mut at = btf.resolve(root).ok()?;
    let mut name = btf.c_name(root);
    let numbers: Vec<usize> = access.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    if kind.is_enumval() {
        let TypeKind::Enum(e) = btf.ty(at).ok()?.kind else { return None };
        let value = e.values.get(*numbers.first()?)?;
        return Some(format!("{name}::{}", btf.str(value.name)));
    }
    if kind.is_field() {
        name.push_str(&format!("[{}]", numbers.first()?));
        for n in numbers.get(1..)? {
            at = match btf.ty(at).ok()?.kind {
                TypeKind::Struct(c) | TypeKind::Union(c) => {
                    let member = c.members.get(*n)?;
                    name.push_str(&format!(".{}", btf.str(member.name)));
                    btf.resolve(member.ty).ok()?
                }
                TypeKind::Array(a) => {
                    name.push_str(&format!("[{n}]"));
                    btf.resolve(a.element).ok()?
                }
                _ => return None,
            };
        }
    }
    // A type without a name is ambiguous.
    (!btf.name(root).is_empty()).then_some(name)
}

/// Size of the object in which a relocation asks for the offset of a field; [`None`] if it is not the first
/// of several objects.
fn within(btf: &Btf, root: TypeId, access: &str, kind: CoreKind) -> Option<u64> {
    let first = access.split(':').next() == Some("0");
    if first && kind == CoreKind::FieldByteOffset { btf.size_of(root).ok() } else { None }
}

fn decoded(raw: &[RawInsn]) -> Result<Vec<Option<Insn>>, ProofError> {
    let mut insns = vec![None; raw.len()];
    let mut at = 0;
    while at < raw.len() {
        let insn = decode(raw, at).map_err(|e| ProofError::new(e.to_string()))?;
        insns[at] = Some(insn);
        at += insn.slots();
    }
    Ok(insns)
}

/// Numbers of parameters of the kernel functions that an object calls.
fn parameters(object: &Object) -> FxHashMap<String, usize> {
    let Some(btf) = &object.btf else { return FxHashMap::default() };
    let count = |e: &millstream_object::Extern| {
        let ExternKind::Kfunc { type_id } = e.kind else { return None };
        let TypeKind::Func { proto, .. } = btf.ty(type_id).ok()?.kind else { return None };
        let TypeKind::FuncProto(proto) = btf.ty(proto).ok()?.kind else { return None };
        Some((e.name.clone(), proto.params.len().min(5)))
    };
    object.externs.iter().filter_map(count).collect()
}

fn context(object: &Object, func: FuncId, insns: &[Option<Insn>]) -> ContextLayout {
    use millstream_object::ProgramType as Type;
    match object.programs.iter().find(|p| p.func == func).map(|p| p.kind.program_type) {
        Some(Type::XDP) => ContextLayout::Xdp,
        Some(Type::SCHED_CLS | Type::SCHED_ACT | Type::SOCKET_FILTER | Type::CGROUP_SKB | Type::SK_SKB) => {
            ContextLayout::Skb
        }
        // Its section has an arbitrary name: the offsets of `data` tell the kind.
        Some(Type::UNSPEC) => {
            let reads = |at: i16| {
                insns
                    .iter()
                    .flatten()
                    .any(|i| matches!(i, Insn::Load { size: Size::W, off, .. } if *off == at))
            };
            if reads(76) && reads(80) {
                ContextLayout::Skb
            } else if reads(0) && reads(4) {
                ContextLayout::Xdp
            } else {
                ContextLayout::Other
            }
        }
        _ => ContextLayout::Other,
    }
}

/// Links two programs of one type, with the same maps.
pub(crate) fn pair(
    a: (&Object, FuncId),
    b: (&Object, FuncId),
) -> Result<(UnifiedMaps, [ProofProgram; 2]), ProofError> {
    let kind = |o: &Object, f| o.programs.iter().find(|p| p.func == f).map(|p| p.kind.program_type);
    if kind(a.0, a.1) != kind(b.0, b.1) {
        return Err(ProofError::new("the two programs are of different types"));
    }
    if a.0.byte_order() != b.0.byte_order() {
        return Err(ProofError::new("the two programs are for machines of different byte orders"));
    }
    let mut maps = UnifiedMaps::default();
    let mut first = ProofProgram::new(a.0, a.1, &mut maps, 'A')?;
    let mut second = ProofProgram::new(b.0, b.1, &mut maps, 'B')?;
    match (first.context, second.context) {
        (x, y) if x == y => {}
        // A program that no longer reads the packet does not show its kind of context.
        (x, ContextLayout::Other) => second.context = x,
        (ContextLayout::Other, y) => first.context = y,
        _ => return Err(ProofError::new("the two programs are of different types")),
    }
    Ok((maps, [first, second]))
}
