//! Chains of programs as one program: what `freplace` does when a program is loaded, done when it is linked.
//!
//! A host, such as libxdp's dispatcher, calls global functions that other programs replace. [`fuse`] puts the
//! programs of other objects in their places as static functions, so that passes can inline them and the
//! verifier follows values through them. The host's own instructions decide which function runs, and which
//! verdicts end the chain: this module knows no dispatcher.
//!
//! The result behaves as the chain does in the kernel, or there is none. Refused are programs that the kernel
//! would not attach there, and those for which one program differs from several:
//!
//! - With one program, all tail calls of a packet count to one limit of 33. So at most one of host and
//!   components may make tail calls.
//! - The licence of a program decides which helpers it may call. So all must be compatible with the GPL, or
//!   none.
//! - BTF ids of kernel functions and variables belong to one object. So components may not name any.
//!
//! Each component keeps its maps, but maps that are pinned by the same name are one. A program array keeps its
//! programs in the kernel; they are no part of the result.
//!
//! Architecture Invariant: the host and the components are not changed.

use std::collections::BTreeMap;

use millstream_btf::{AppendedBtf, BtfBuilder, BtfError, FuncLinkage, KindTag, Type, TypeId, TypeKind};
use thiserror::Error;

use crate::codes::{CALL, LD_IMM64};
use crate::fused_file;
use crate::ids::{FuncId, MapId, RelocKind};
use crate::image::ObjectImage;
use crate::kinds::ProgramType;
use crate::model::{
    InitialValue, Linkage, MapDefinition, Object, ObjectFunction, ObjectMap, Pinning, Reloc, SettledBytes,
};
use crate::section::SectionKind;

/// Licences that the kernel takes as compatible with the GPL (`include/linux/license.h`).
const GPL_COMPATIBLE: [&str; 6] =
    ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];
/// `bpf_tail_call`.
const TAIL_CALL: i32 = 12;

/// A program that replaces a function of the host.
#[derive(Clone, Copy, Debug)]
pub struct ChainComponent<'a> {
    /// The function of the host.
    pub target: FuncId,
    /// Object with the program.
    pub object: &'a Object,
    /// Function of the program.
    pub program: FuncId,
}

/// A host and its components as one program.
#[derive(Clone, Debug)]
pub struct FusedProgram {
    /// The object, whose only program has the host's name. It can be changed, linked, loaded, and written as a
    /// file of its own; see [`fuse`] for chains that have no file.
    pub object: Object,
    /// For each component, the maps of the result by the numbers of its own maps. Maps of the host keep their
    /// numbers.
    pub maps: Vec<Vec<MapId>>,
}

/// Why a chain cannot be one program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FuseError {
    /// The host's function cannot be replaced, as the kernel has it.
    #[error("{function} cannot be replaced: {what}")]
    NotReplaceable {
        /// Name of the function.
        function: String,
        /// The reason.
        what: &'static str,
    },
    /// A program that does not fit in a chain, or that is not understood.
    #[error("{program} cannot be fused: {what}")]
    Unfit {
        /// Name of the program or its function.
        program: String,
        /// The reason.
        what: String,
    },
    /// Several programs make tail calls.
    #[error(
        "{first} and {second} both make tail calls: in one program, their calls would count to one limit of 33"
    )]
    TailCalls {
        /// Name of a program that does.
        first: String,
        /// Name of another.
        second: String,
    },
    /// Two maps are pinned by one name and differ.
    #[error("two maps that differ are pinned as {0}")]
    PinnedMaps(String),
    /// The types cannot be put together.
    #[error("the types of {program}: {error}")]
    Types {
        /// Name of the program.
        program: String,
        /// Error in them.
        #[source]
        error: BtfError,
    },
}

/// Makes one program of a host's program and the components that replace functions of it. Functions of the host
/// that no component replaces stay as they are.
///
/// Chains that need no types have no file: writing the result is an error then. The same holds for maps of maps,
/// and if a component has a program array that its loader fills.
///
/// # Errors
/// [`FuseError`], for chains that would not behave alike or are not understood.
pub fn fuse(
    host: &Object,
    program: FuncId,
    components: &[ChainComponent<'_>],
) -> Result<FusedProgram, FuseError> {
    let main = host.programs.iter().find(|p| p.func == program);
    let main = main.ok_or_else(|| unfit("the host", "it has no such program"))?;
    let own = reachable(host, program, &|id| components.iter().any(|c| c.target == id))?;
    let mut object = Object { programs: vec![main.clone()], image: ObjectImage::default(), ..host.clone() };
    object.image.elf.order = host.byte_order();
    for (n, function) in object.functions.iter_mut().enumerate() {
        if !own.contains(&FuncId(n as u32)) {
            function.clear();
        }
    }
    let loses_programs =
        object.maps.iter().flat_map(|m| &m.initial).any(|(_, v)| !matches!(v, InitialValue::Map(_)));
    for map in &mut object.maps {
        map.initial.retain(|(_, value)| matches!(value, InitialValue::Map(_)));
    }
    let types = host.btf.as_ref().map(BtfBuilder::from_btf).transpose();
    let types = types.map_err(|error| FuseError::Types { program: main.name.clone(), error })?;
    let mut fused =
        ChainFusion { object, types, replaced: BTreeMap::new(), tail_caller: None, loses_programs };
    let kept: Vec<_> = own.iter().copied().filter(|id| components.iter().all(|c| c.target != *id)).collect();
    fused.note_tail_calls(&main.name, host, &kept)?;
    let maps = components.iter().map(|c| fused.add(host, &main.kind, &own, c));
    let maps = maps.collect::<Result<_, _>>()?;
    Ok(FusedProgram { object: fused.finish(&main.name)?, maps })
}

fn unfit(program: &str, what: impl Into<String>) -> FuseError {
    FuseError::Unfit { program: program.to_owned(), what: what.into() }
}

/// The functions that a program reaches, its own first, but not beyond those at which the walk stops.
fn reachable(
    object: &Object,
    program: FuncId,
    is_end: &dyn Fn(FuncId) -> bool,
) -> Result<Vec<FuncId>, FuseError> {
    let mut found = vec![program];
    let mut next = 0;
    while let Some(&id) = found.get(next) {
        next += 1;
        if is_end(id) {
            continue;
        }
        let function = object.functions.get(id.index()).filter(|f| !f.removed);
        let function = function.ok_or_else(|| unfit(&object.name, "it has no such function"))?;
        if let Some(reason) = object.frozen.as_ref().or(function.kept.as_ref().map(|kept| &kept.reason)) {
            return Err(unfit(&function.name, reason.as_str()));
        }
        if object.is_in_data(id) {
            return Err(unfit(&function.name, "its address is in data"));
        }
        for reloc in &function.relocs {
            if let RelocKind::Call(to) | RelocKind::FuncAddr(to) = reloc.kind
                && !found.contains(&to)
            {
                found.push(to);
            }
        }
    }
    Ok(found)
}

/// Returns true if one of these functions makes tail calls.
fn makes_tail_calls(object: &Object, functions: &[FuncId]) -> bool {
    functions.iter().any(|id| {
        let mut insns = object.functions[id.index()].insns.iter();
        while let Some(insn) = insns.next() {
            if insn.code == LD_IMM64 {
                insns.next();
            }
            if (insn.code, insn.src, insn.imm) == (CALL, 0, TAIL_CALL) {
                return true;
            }
        }
        false
    })
}

/// The result while components are added.
struct ChainFusion {
    object: Object,
    types: Option<BtfBuilder>,
    /// The entry function of the component in the place of each function of the host.
    replaced: BTreeMap<FuncId, FuncId>,
    /// The program that makes tail calls.
    tail_caller: Option<String>,
    /// True if a loader fills a program array with programs that are no part of the result.
    loses_programs: bool,
}

impl ChainFusion {
    fn note_tail_calls(
        &mut self,
        name: &str,
        object: &Object,
        functions: &[FuncId],
    ) -> Result<(), FuseError> {
        if !makes_tail_calls(object, functions) {
            return Ok(());
        }
        match self.tail_caller.replace(name.to_owned()) {
            Some(first) => Err(FuseError::TailCalls { first, second: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Adds a component; gives the new numbers of its maps.
    fn add(
        &mut self,
        host: &Object,
        kind: &SectionKind,
        host_functions: &[FuncId],
        component: &ChainComponent<'_>,
    ) -> Result<Vec<MapId>, FuseError> {
        let &ChainComponent { target, object, program } = component;
        self.check_target(host, host_functions, target)?;
        let entry = object.programs.iter().find(|p| p.func == program);
        let entry = entry.ok_or_else(|| unfit(&object.name, "it has no such program"))?;
        let name = &entry.name;
        if ![kind.program_type, ProgramType::EXT].contains(&entry.kind.program_type) {
            return Err(unfit(name, "it is of another type than the host"));
        }
        if kind.frags && !entry.kind.frags {
            return Err(unfit(name, "it does not take packets of several buffers, and the host does"));
        }
        let is_free = |o: &Object| GPL_COMPATIBLE.contains(&o.license.as_str());
        if is_free(host) != is_free(object) {
            return Err(unfit(name, "of its licence and the host's, only one is compatible with the GPL"));
        }
        if !object.externs.is_empty() {
            return Err(unfit(name, "its object names kernel functions, kernel variables or settings"));
        }
        if object.byte_order() != host.byte_order() {
            return Err(unfit(name, "it is of another byte order than the host"));
        }
        let functions = reachable(object, program, &|_| false)?;
        self.note_tail_calls(name, object, &functions)?;
        let types = self.add_types(name, object)?;
        let maps = self.add_maps(object, types)?;
        self.add_functions(object, &functions, types, &maps);
        self.replaced.insert(target, FuncId((self.object.functions.len() - functions.len()) as u32));
        Ok(maps)
    }

    /// Checks what the kernel asks of a function that a program replaces.
    fn check_target(
        &self,
        host: &Object,
        host_functions: &[FuncId],
        target: FuncId,
    ) -> Result<(), FuseError> {
        let function = host.functions.get(target.index());
        let bad = |what| {
            let function = function.map_or_else(|| format!("function {}", target.0), |f| f.name.clone());
            Err(FuseError::NotReplaceable { function, what })
        };
        let Some(f) = function.filter(|_| host_functions.contains(&target)) else {
            return bad("the host's program does not call it");
        };
        let prototype = host.btf.as_ref().zip(f.type_id).map(|(btf, id)| btf.prototype(id));
        let refers = |r: &Reloc| r.kind == RelocKind::FuncAddr(target);
        match prototype {
            _ if !f.subprogram || f.hidden || f.linkage == Linkage::Static => bad("it is not global"),
            Some(Ok(p)) if p.params.len() != 1 => bad("it has other parameters than a program"),
            _ if host_functions.iter().any(|id| host.functions[id.index()].relocs.iter().any(refers)) => {
                bad("the host takes its address")
            }
            _ if self.replaced.contains_key(&target) => bad("two programs replace it"),
            _ => Ok(()),
        }
    }

    /// Adds the types of a component. Of its sections of variables, which belong to its file, a type without a
    /// name stays in each place.
    fn add_types(&mut self, name: &str, object: &Object) -> Result<Option<AppendedBtf>, FuseError> {
        let Some((types, btf)) = self.types.as_mut().zip(object.btf.as_ref()) else {
            let needs = object.functions.iter().find(|f| !f.core_relos.is_empty());
            return match needs {
                Some(_) => Err(unfit(name, "it has CO-RE relocations, and the host has no BTF")),
                None => Ok(None),
            };
        };
        let wrong = |error| FuseError::Types { program: name.to_owned(), error };
        let place = types.append(btf).map_err(wrong)?;
        for id in btf.ids() {
            if btf.tag(id).map_err(wrong)? == KindTag::Datasec
                && let Some(ty) = types.get_mut(place.type_id(id))
            {
                *ty = Type { name: millstream_btf::StrOff(0), kind: TypeKind::Ptr(TypeId(0)) };
            }
        }
        Ok(Some(place))
    }

    /// Adds the maps of a component; gives their numbers in the result.
    fn add_maps(&mut self, object: &Object, types: Option<AppendedBtf>) -> Result<Vec<MapId>, FuseError> {
        let mut numbers = Vec::new();
        let mut added = self.object.maps.len() as u32;
        for map in &object.maps {
            let pinned = self.object.maps.iter().position(|m| is_pinned_alike(m, map));
            match pinned {
                Some(n) if !are_alike(&self.object.maps[n], map) => {
                    return Err(FuseError::PinnedMaps(map.name.clone()));
                }
                Some(n) => numbers.push(MapId(n as u32)),
                None => {
                    numbers.push(MapId(added));
                    added += 1;
                }
            }
        }
        for (map, &number) in object.maps.iter().zip(&numbers) {
            if number.index() < self.object.maps.len() {
                continue;
            }
            let is_taken = |name: &str| self.object.maps.iter().any(|m| m.name == name);
            let suffixes = (2..).map(|n| format!("{}_{n}", map.name));
            let name = std::iter::once(map.name.clone()).chain(suffixes).find(|name| !is_taken(name));
            let retyped = |spec: &MapDefinition| {
                let place = |id: Option<TypeId>| Some(types?.type_id(id?));
                MapDefinition {
                    key_type: place(spec.key_type),
                    value_type: place(spec.value_type),
                    ..spec.clone()
                }
            };
            self.loses_programs |= map.initial.iter().any(|(_, v)| matches!(v, InitialValue::Program(_)));
            let initial = map.initial.iter().filter_map(|&(slot, value)| match value {
                InitialValue::Map(inner) => Some((slot, InitialValue::Map(numbers[inner.index()]))),
                InitialValue::Program(_) => None,
            });
            self.object.maps.push(ObjectMap {
                name: name.unwrap_or_default(),
                spec: retyped(&map.spec),
                inner: map.inner.as_ref().map(retyped),
                initial: initial.collect(),
                ..map.clone()
            });
        }
        let settled =
            object.settled.iter().map(|s| SettledBytes { map: numbers[s.map.index()], ..s.clone() });
        self.object.settled.extend(settled);
        Ok(numbers)
    }

    /// Adds functions of a component, the program's own first.
    fn add_functions(
        &mut self,
        object: &Object,
        functions: &[FuncId],
        types: Option<AppendedBtf>,
        maps: &[MapId],
    ) {
        let base = self.object.functions.len();
        let number = |id: FuncId| {
            let at = functions.iter().position(|f| *f == id).unwrap_or_default();
            FuncId((base + at) as u32)
        };
        for (n, id) in functions.iter().enumerate() {
            let mut f = object.functions[id.index()].clone();
            for reloc in &mut f.relocs {
                reloc.kind = match reloc.kind {
                    RelocKind::Map(map) => RelocKind::Map(maps[map.index()]),
                    RelocKind::MapValue { map, offset } => {
                        RelocKind::MapValue { map: maps[map.index()], offset }
                    }
                    RelocKind::Call(to) => RelocKind::Call(number(to)),
                    RelocKind::FuncAddr(to) => RelocKind::FuncAddr(number(to)),
                    RelocKind::Extern(_) => unreachable!("objects with externs are refused"),
                };
            }
            retype(&mut f, types);
            if n == 0 {
                (f.subprogram, f.linkage) = (true, Linkage::Static);
                self.make_static(&f);
            }
            self.object.functions.push(f);
        }
    }

    /// The kernel takes the linkage of a function from its type.
    fn make_static(&mut self, function: &ObjectFunction) {
        let ty = self.types.as_mut().zip(function.type_id).and_then(|(types, id)| types.get_mut(id));
        if let Some(Type { kind: TypeKind::Func { linkage, .. }, .. }) = ty {
            *linkage = FuncLinkage::Static;
        }
    }

    /// Leads the host's calls to the components, and leaves out the functions that they replace.
    fn finish(mut self, name: &str) -> Result<Object, FuseError> {
        let wrong = |error| FuseError::Types { program: name.to_owned(), error };
        for function in &mut self.object.functions {
            for reloc in &mut function.relocs {
                if let RelocKind::Call(to) = &mut reloc.kind {
                    *to = self.replaced.get(to).copied().unwrap_or(*to);
                }
            }
        }
        for id in self.replaced.keys() {
            self.object.functions[id.index()].clear();
        }
        if let Some(types) = self.types {
            fused_file::give_file(&mut self.object, types, !self.loses_programs).map_err(wrong)?;
        }
        Ok(self.object)
    }
}

/// Moves the types and strings of a function to those of the result.
fn retype(f: &mut ObjectFunction, types: Option<AppendedBtf>) {
    let Some(types) = types else {
        f.type_id = None;
        f.line_info.clear();
        return;
    };
    f.type_id = f.type_id.map(|id| types.type_id(id));
    for line in &mut f.line_info {
        (line.file, line.text) = (types.string(line.file), types.string(line.text));
    }
    for core in &mut f.core_relos {
        (core.type_id, core.access) = (types.type_id(core.type_id), types.string(core.access));
    }
}

/// Returns true if loaders give two maps the same place in the file system.
fn is_pinned_alike(a: &ObjectMap, b: &ObjectMap) -> bool {
    !matches!(a.spec.pinning, Pinning::None | Pinning::ObjectNs)
        && (a.spec.pinning, &a.name) == (b.spec.pinning, &b.name)
}

/// Returns true if two definitions can be of one map.
fn are_alike(a: &ObjectMap, b: &ObjectMap) -> bool {
    let shape =
        |s: &MapDefinition| (s.map_type, s.key_size, s.value_size, s.max_entries, s.flags, s.map_extra);
    shape(&a.spec) == shape(&b.spec) && a.inner.as_ref().map(shape) == b.inner.as_ref().map(shape)
}
