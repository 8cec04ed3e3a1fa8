//! What is proven about: linked programs, with maps and externs by name, so that two objects can be held together.

use millstream_btf::{Btf, CoreKind, Kind, TypeId};
use millstream_isa::{Insn, Raw, Size, decode};
use millstream_object::{ExternKind, FuncId, Object, RelocKind, Variable};
use rustc_hash::FxHashMap;

use crate::Unknown;

/// What a program's context is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Context {
    Xdp,
    Skb,
    Other,
}

/// A map, as far as it matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MapInfo {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    /// Sizes of the inner maps' keys and values, and whether they are arrays: entries, or none.
    pub(crate) inner: Option<(u32, u32, u32, u32)>,
    pub(crate) flags: u32,
    /// What global data starts with, and which variables it is.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) variables: Vec<Variable>,
}

/// What an instruction refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Map(u32),
    Value(u32, u32),
    Extern(String),
}

/// What a loader puts in from its kernel's types.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Core {
    /// What is asked for, by names of types and fields.
    pub(crate) name: String,
    /// If that is where a field lies in an object: the bytes of that object by the program's own types.
    pub(crate) object: Option<u64>,
}

/// A program.
#[derive(PartialEq, Debug)]
pub(crate) struct Program {
    /// By slot; [`None`] in the second slot of `ld_imm64`.
    pub(crate) insns: Vec<Option<Insn>>,
    pub(crate) targets: FxHashMap<usize, Target>,
    /// Values that a loader puts in, by slot.
    pub(crate) core: FxHashMap<usize, Core>,
    pub(crate) context: Context,
    /// How many parameters kernel functions have, by name.
    pub(crate) parameters: FxHashMap<String, usize>,
}

/// The maps of both objects, each name once.
#[derive(Debug, Default)]
pub(crate) struct Maps(pub(crate) Vec<MapInfo>);

impl Maps {
    fn add(&mut self, info: MapInfo) -> Result<u32, Unknown> {
        if let Some(at) = self.0.iter().position(|m| m.name == info.name) {
            if self.0[at] != info {
                return Err(Unknown::new(format!("map {:?} differs between the two", info.name)));
            }
            return Ok(at as u32);
        }
        self.0.push(info);
        Ok(self.0.len() as u32 - 1)
    }
}

impl Program {
    /// The instruction at a slot.
    pub(crate) fn insn(&self, slot: usize) -> Result<Insn, Unknown> {
        let insn = self.insns.get(slot).copied().flatten();
        insn.ok_or_else(|| Unknown::new(format!("no instruction at slot {slot}")))
    }

    /// Links a program of an object.
    pub(crate) fn new(
        object: &Object,
        func: FuncId,
        maps: &mut Maps,
        side: char,
    ) -> Result<Program, Unknown> {
        let linked = object.link(func).map_err(|e| Unknown::new(e.to_string()))?;
        let insns = decoded(&linked.insns)?;
        let mut by_id = Vec::new();
        for map in &object.maps {
            let inner = map.inner.as_ref().map(|i| (i.map_type.0, i.key_size, i.value_size, i.max_entries));
            // libbpf names maps of global data after the object's file, which is another for each.
            let name = if map.origin.is_global() { map.section.clone() } else { map.name.clone() };
            let s = &map.spec;
            let info = MapInfo {
                name,
                number: s.map_type.0,
                key_size: s.key_size,
                value_size: s.value_size,
                max_entries: s.max_entries,
                inner,
                flags: s.flags,
                data: map.data.clone(),
                variables: map.variables.clone(),
            };
            by_id.push(maps.add(info)?);
        }
        let mut targets = FxHashMap::default();
        for r in &linked.relocs {
            let target = match r.kind {
                RelocKind::Map(id) => Target::Map(by_id[id.index()]),
                RelocKind::MapValue { map, offset } => Target::Value(by_id[map.index()], offset),
                RelocKind::Extern(id) => {
                    let e = &object.externs[id.index()];
                    match e.kind {
                        ExternKind::Kconfig { map, offset, .. } => Target::Value(by_id[map.index()], offset),
                        _ => Target::Extern(e.name.clone()),
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
                // What cannot be named by its types is nobody else's.
                let name = name.unwrap_or_else(|| format!("of {side} at {}", c.insn));
                let object = object.btf.as_ref().and_then(|b| within(b, c.type_id, b.str(c.access), c.kind));
                (c.insn as usize, Core { name: format!("CO-RE {:?} {name}", c.kind), object })
            })
            .collect();
        let context = context(object, func, &insns);
        Ok(Program { insns, targets, core, context, parameters: parameters(object) })
    }
}

/// What a CO-RE relocation asks for, by names of types and fields: the same words mean the same in two objects.
fn wanted(btf: &Btf, root: TypeId, access: &str, kind: CoreKind) -> Option<String> {
    let mut at = btf.resolve(root).ok()?;
    let mut name = btf.c_name(root);
    let numbers: Vec<usize> = access.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    if kind.is_enumval() {
        let Kind::Enum(e) = btf.ty(at).ok()?.kind else { return None };
        let value = e.values.get(*numbers.first()?)?;
        return Some(format!("{name}::{}", btf.str(value.name)));
    }
    if kind.is_field() {
        name.push_str(&format!("[{}]", numbers.first()?));
        for n in numbers.get(1..)? {
            at = match btf.ty(at).ok()?.kind {
                Kind::Struct(c) | Kind::Union(c) => {
                    let member = c.members.get(*n)?;
                    name.push_str(&format!(".{}", btf.str(member.name)));
                    btf.resolve(member.ty).ok()?
                }
                Kind::Array(a) => {
                    name.push_str(&format!("[{n}]"));
                    btf.resolve(a.element).ok()?
                }
                _ => return None,
            };
        }
    }
    // Without a name a type is one of many.
    (!btf.name(root).is_empty()).then_some(name)
}

/// The bytes of the object in which a relocation asks where a field lies; [`None`] if it is not the first of several.
fn within(btf: &Btf, root: TypeId, access: &str, kind: CoreKind) -> Option<u64> {
    let first = access.split(':').next() == Some("0");
    if first && kind == CoreKind::FieldByteOffset { btf.size_of(root).ok() } else { None }
}

fn decoded(raw: &[Raw]) -> Result<Vec<Option<Insn>>, Unknown> {
    let mut insns = vec![None; raw.len()];
    let mut at = 0;
    while at < raw.len() {
        let insn = decode(raw, at).map_err(|e| Unknown::new(e.to_string()))?;
        insns[at] = Some(insn);
        at += insn.slots();
    }
    Ok(insns)
}

/// How many parameters the kernel functions that an object calls have.
fn parameters(object: &Object) -> FxHashMap<String, usize> {
    let Some(btf) = &object.btf else { return FxHashMap::default() };
    let count = |e: &millstream_object::Extern| {
        let ExternKind::Kfunc { type_id } = e.kind else { return None };
        let Kind::Func { proto, .. } = btf.ty(type_id).ok()?.kind else { return None };
        let Kind::FuncProto(proto) = btf.ty(proto).ok()?.kind else { return None };
        Some((e.name.clone(), proto.params.len().min(5)))
    };
    object.externs.iter().filter_map(count).collect()
}

fn context(object: &Object, func: FuncId, insns: &[Option<Insn>]) -> Context {
    use millstream_object::ProgramType as Type;
    match object.programs.iter().find(|p| p.func == func).map(|p| p.kind.program_type) {
        Some(Type::XDP) => Context::Xdp,
        Some(Type::SCHED_CLS | Type::SCHED_ACT | Type::SOCKET_FILTER | Type::CGROUP_SKB | Type::SK_SKB) => {
            Context::Skb
        }
        // Its section is named freely: `data` is where it says what it is.
        Some(Type::UNSPEC) => {
            let reads = |at: i16| {
                insns
                    .iter()
                    .flatten()
                    .any(|i| matches!(i, Insn::Load { size: Size::W, off, .. } if *off == at))
            };
            if reads(76) && reads(80) {
                Context::Skb
            } else if reads(0) && reads(4) {
                Context::Xdp
            } else {
                Context::Other
            }
        }
        _ => Context::Other,
    }
}
