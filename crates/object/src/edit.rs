//! Replacing and removing functions, removing maps and sections of data, and load-time settings: variables of
//! constant data that have their final value.
//!
//! A loader may set constants (`.rodata*`) until the map that holds them is frozen, so that code must not
//! rely on the values in the file. Once a variable is [settled](Object::settle), no loader will set it again,
//! and code may rely on it.
//!
//! An object without some maps is consistent for loaders: definitions of maps that remain close up, for
//! cilium/ebpf wants no bytes between them; symbols and initial values move with them; the BTF names no variable
//! without a place.

use crate::codes::{CALL, LD_IMM64, PSEUDO_CALL, PSEUDO_FUNC};
use crate::elf::{ElfRelocation, ElfSection, STT_SECTION};
use crate::error::ObjectError;
use crate::ids::{FuncId, MapId, RelocKind};
use crate::image::ObjectImage;
use crate::model::{InitialValue, MapOrigin, NewFunction, Object, SettledBytes};
use crate::read::relocs::{normalise, pseudo};
use millstream_btf::{Btf, BtfBuilder, BtfError, KindTag, StrOff, Type, TypeId, TypeKind};
use std::collections::{BTreeMap, BTreeSet};

impl Object {
    /// Gives a function other contents. Its name, linkage, section and type stay.
    ///
    /// Fails, and changes nothing, if the new contents refer to missing objects, are not in order, or have a
    /// call inside the object without a relocation.
    pub fn replace_function(&mut self, id: FuncId, new: NewFunction) -> Result<(), ObjectError> {
        self.may_change(id)?;
        self.check(id, &new)?;
        let NewFunction { mut insns, relocs, line_info, core_relos } = new;
        for r in &relocs {
            let (src, offset) = pseudo(self, r.kind, insns[r.insn as usize].code);
            normalise(&mut insns, r.insn as usize, src, offset);
        }
        let f = &mut self.functions[id.index()];
        (f.insns, f.relocs, f.line_info, f.core_relos) = (insns, relocs, line_info, core_relos);
        Ok(())
    }

    /// Removes a function. It keeps its index, loses its contents, and will not be written. Fails if another
    /// function or a map refers to it.
    pub fn remove_function(&mut self, id: FuncId) -> Result<(), ObjectError> {
        self.may_change(id)?;
        let refers =
            |kind: &RelocKind| matches!(kind, RelocKind::Call(f) | RelocKind::FuncAddr(f) if *f == id);
        let others = self.functions.iter().enumerate().filter(|(n, _)| *n != id.index());
        let user = others.map(|(_, f)| f).find(|f| f.relocs.iter().any(|r| refers(&r.kind)));
        let map = self.maps.iter().find(|m| m.initial.iter().any(|(_, v)| *v == InitialValue::Program(id)));
        let user = user.map(|f| &f.name).or(map.map(|m| &m.name));
        if let Some(user) = user {
            let what = format!("it cannot be removed: {user} refers to it");
            return Err(ObjectError::BadFunction {
                function: self.functions[id.index()].name.clone(),
                insn: 0,
                what,
            });
        }
        self.functions[id.index()].clear();
        self.programs.retain(|p| p.func != id);
        Ok(())
    }

    /// Checks that a function is understood: others stay as they are.
    fn may_change(&self, id: FuncId) -> Result<(), ObjectError> {
        let f = &self.functions[id.index()];
        let reason = self.frozen.as_ref().or(f.kept.as_ref().map(|kept| &kept.reason));
        match reason.cloned() {
            Some(what) => Err(ObjectError::NotUnderstood { function: f.name.clone(), what }),
            None => Ok(()),
        }
    }

    fn check(&self, id: FuncId, new: &NewFunction) -> Result<(), ObjectError> {
        let bad = |insn: u32, what: &str| {
            let function = self.functions[id.index()].name.clone();
            Err(ObjectError::BadFunction { function, insn, what: what.to_owned() })
        };
        let end = new.insns.len() as u32;
        if new.insns.is_empty() {
            return bad(0, "it has no instructions");
        }
        for r in &new.relocs {
            let code = new.insns.get(r.insn as usize).map(|i| i.code);
            let (fits, exists) = match r.kind {
                RelocKind::Map(m) => (code == Some(LD_IMM64), m.index() < self.maps.len()),
                RelocKind::MapValue { map, .. } => (code == Some(LD_IMM64), map.index() < self.maps.len()),
                RelocKind::Call(f) => (code == Some(CALL), self.is_present(f)),
                RelocKind::FuncAddr(f) => (code == Some(LD_IMM64), self.is_present(f)),
                RelocKind::Extern(e) => {
                    (matches!(code, Some(LD_IMM64 | CALL)), e.index() < self.externs.len())
                }
            };
            if !fits || code == Some(LD_IMM64) && r.insn + 1 >= end {
                return bad(r.insn, "the relocation does not fit the instruction");
            }
            if !exists {
                return bad(r.insn, "the relocation refers to what does not exist");
            }
        }
        let order = |at: Vec<u32>| at.windows(2).all(|w| w[0] < w[1]) && at.last().is_none_or(|l| *l < end);
        let relocs: Vec<u32> = new.relocs.iter().map(|r| r.insn).collect();
        for (insn, i) in new.insns.iter().enumerate() {
            let local = i.code == CALL && i.src == PSEUDO_CALL || i.code == LD_IMM64 && i.src == PSEUDO_FUNC;
            if local && relocs.binary_search(&(insn as u32)).is_err() {
                return bad(insn as u32, "it refers to a function without a relocation");
            }
        }
        if !order(relocs) {
            return bad(0, "its relocations are not in order of instruction");
        }
        if !order(new.line_info.iter().map(|l| l.insn).collect()) {
            return bad(0, "its source lines are not in order of instruction");
        }
        if !order(new.core_relos.iter().map(|c| c.insn).collect()) {
            return bad(0, "its CO-RE relocations are not in order of instruction");
        }
        Ok(())
    }

    fn is_present(&self, id: FuncId) -> bool {
        self.functions.get(id.index()).is_some_and(|f| !f.removed)
    }

    /// Gives bytes of constant data their final value, in the description and in the file.
    ///
    /// # Errors
    /// [`ObjectError::BadMap`] if the map holds no constants, or not as many.
    pub fn settle(&mut self, map: MapId, offset: u32, value: &[u8]) -> Result<(), ObjectError> {
        let bad = |object: &Object, what: &str| {
            let (name, section) = object.maps.get(map.index()).map(|m| (&m.name, &m.section)).unzip();
            let (map, section) = (name.cloned().unwrap_or_default(), section.cloned().unwrap_or_default());
            ObjectError::BadMap { map, section, what: what.to_owned() }
        };
        let place = self.image.map_places.get(map.index()).copied().flatten();
        let rodata = self.maps.get(map.index()).is_some_and(|m| m.origin == MapOrigin::Rodata);
        let Some((section, start)) = place.filter(|_| rodata) else {
            return Err(bad(self, "it holds no constants that a loader may set"));
        };
        let end = u32::try_from(value.len()).ok().and_then(|size| offset.checked_add(size));
        let range = offset as usize..end.unwrap_or(u32::MAX) as usize;
        let described = self.maps[map.index()].data.as_mut().and_then(|d| d.get_mut(range.clone()));
        let in_file = (start as usize).checked_add(range.start).zip((start as usize).checked_add(range.end));
        let data = &mut self.image.elf.sections[section].data;
        let in_file = in_file.and_then(|(from, to)| data.get_mut(from..to));
        let Some(((described, in_file), end)) = described.zip(in_file).zip(end) else {
            return Err(bad(self, "the value lies outside of it"));
        };
        described.copy_from_slice(value);
        in_file.copy_from_slice(value);
        self.settled.push(SettledBytes { map, range: offset..end });
        Ok(())
    }

    /// The bytes of constant data at an offset, if all of them have their final value.
    pub fn settled_bytes(&self, map: MapId, offset: u32, size: u32) -> Option<&[u8]> {
        let end = offset.checked_add(size)?;
        let of_map = || self.settled.iter().filter(|s| s.map == map).map(|s| &s.range);
        let mut at = offset;
        while at < end {
            at = of_map().find(|range| range.contains(&at))?.end;
        }
        self.maps.get(map.index())?.data.as_ref()?.get(offset as usize..end as usize)
    }
}

/// Parts of a section that are removed: offset and size, in order.
type RemovedParts = Vec<(u64, u64)>;

impl Object {
    /// The object without these maps. Maps get new numbers.
    ///
    /// # Errors
    /// [`ObjectError::BadMap`] for a map that functions or other maps still refer to, and for one that is
    /// not [removable](Object::is_removable_map).
    pub fn without_maps(&self, maps: &BTreeSet<MapId>) -> Result<Object, ObjectError> {
        let mut object = self.clone();
        let mut parts: BTreeMap<usize, RemovedParts> = BTreeMap::new();
        let mut names = BTreeSet::new();
        for &map in maps {
            let (section, start) = self.check_removal(map, maps)?;
            let definition = &self.maps[map.index()];
            if definition.origin.is_global() {
                object.image.elf.sections[section].deleted = true;
                names.insert((definition.section.clone(), None));
                continue;
            }
            let size = self.definition_size(section, start).ok_or_else(|| self.no_removal(map))?;
            parts.entry(section).or_default().push((start, size));
            names.insert((definition.section.clone(), Some(definition.name.clone())));
        }
        for (section, mut removed) in parts {
            removed.sort_unstable();
            close_gaps(&mut object.image, section, &removed)?;
        }
        object.remove_names(&names)?;
        let again = Object::parse(&self.name, &object.write()?)?;
        Ok(Object { name: self.name.clone(), ..again })
    }

    /// Returns true if a map that nothing refers to can be removed from the file: not one of the kernel's
    /// configuration, of another file, of `struct_ops`, of a raw program, or of unknown size.
    pub fn is_removable_map(&self, map: MapId) -> bool {
        let place = self.image.map_places.get(map.index()).copied().flatten();
        let Some(((section, start), m)) = place.zip(self.maps.get(map.index())) else { return false };
        if self.frozen.is_some() || self.image.raw.is_some() {
            return false;
        }
        match m.origin {
            MapOrigin::Kconfig | MapOrigin::Extern | MapOrigin::StructOps => false,
            origin if origin.is_global() => !self.is_named_by_data(section),
            _ => self.definition_size(section, start).is_some(),
        }
    }

    /// Returns true if data have the address of something in a section.
    fn is_named_by_data(&self, section: usize) -> bool {
        let elf = &self.image.elf;
        let in_data = elf.sections.iter().enumerate().filter(|(_, s)| {
            let target = elf.sections.get(s.info as usize);
            let lasting = |t: &ElfSection| !t.is_code() && !t.is_stale() && !t.name.starts_with(".BTF");
            s.is_relocations() && !s.deleted && s.info as usize != section && target.is_some_and(lasting)
        });
        let mut symbols = in_data.flat_map(|(n, _)| elf.relocations(n).unwrap_or_default()).map(|r| r.symbol);
        symbols.any(|symbol| elf.symbols[symbol].section() == Some(section))
    }

    fn no_removal(&self, map: MapId) -> ObjectError {
        let (name, section) = self.maps.get(map.index()).map(|m| (&m.name, &m.section)).unzip();
        ObjectError::BadMap {
            map: name.cloned().unwrap_or_default(),
            section: section.cloned().unwrap_or_default(),
            what: "it cannot be removed".into(),
        }
    }

    /// The place of a map that nothing but removed maps refers to.
    fn check_removal(&self, map: MapId, removed: &BTreeSet<MapId>) -> Result<(usize, u64), ObjectError> {
        let refers = |kind: &RelocKind| match kind {
            RelocKind::Map(m) | RelocKind::MapValue { map: m, .. } => *m == map,
            _ => false,
        };
        let initial = |m: MapId| self.maps[m.index()].initial.iter();
        let others = (0..self.maps.len() as u32).map(MapId).filter(|m| !removed.contains(m));
        let used = self.functions.iter().any(|f| f.relocs.iter().any(|r| refers(&r.kind)))
            || others.flat_map(initial).any(|(_, value)| *value == InitialValue::Map(map));
        let place = self.image.map_places.get(map.index()).copied().flatten();
        place.filter(|_| self.is_removable_map(map) && !used).ok_or_else(|| self.no_removal(map))
    }

    fn definition_size(&self, section: usize, start: u64) -> Option<u64> {
        let symbols = self.symbols_in(section);
        symbols.into_iter().find(|(at, size, _)| *at == start && *size > 0).map(|(_, size, _)| size)
    }

    /// Removes variables from the sections that the BTF lists, and the relocations of the BTF, which state
    /// places in it. Without a name, all variables of the section.
    fn remove_names(&mut self, names: &BTreeSet<(String, Option<String>)>) -> Result<(), ObjectError> {
        let Some((btf, n)) = self.btf.as_ref().zip(self.image.elf.find(".BTF")) else { return Ok(()) };
        let data =
            without_variables(btf, names).map_err(|error| ObjectError::Btf { section: ".BTF", error })?;
        let elf = &mut self.image.elf;
        elf.sections[n].set_data(data);
        for s in elf.sections.iter_mut().filter(|s| s.is_relocations() && s.info as usize == n) {
            s.deleted = true;
        }
        Ok(())
    }
}

/// The same types; sections whose variables are all removed become nameless types that nothing refers to.
fn without_variables(btf: &Btf, names: &BTreeSet<(String, Option<String>)>) -> Result<Vec<u8>, BtfError> {
    let mut builder = BtfBuilder::from_btf(btf)?;
    for id in btf.ids().filter(|id| btf.tag(*id) == Ok(KindTag::Datasec)) {
        let section = btf.name(id).to_owned();
        let all = names.contains(&(section.clone(), None));
        let removed = |ty| all || names.contains(&(section.clone(), Some(btf.name(ty).to_owned())));
        let Some(ty) = builder.get_mut(id) else { continue };
        let TypeKind::Datasec(variables) = &mut ty.kind else { continue };
        let before = variables.vars.len();
        variables.vars.retain(|v| !removed(v.ty));
        if variables.vars.is_empty() && before > 0 {
            *ty = Type { name: StrOff(0), kind: TypeKind::Const(TypeId::VOID) };
        }
    }
    builder.write()
}

/// The new offset of a place in a section; [`None`] if it is removed.
fn moved(removed: &RemovedParts, place: u64) -> Option<u64> {
    let before = removed.iter().take_while(|(at, _)| *at <= place);
    let inside = |(at, size): &(u64, u64)| place < at + size;
    before
        .clone()
        .last()
        .is_none_or(|part| !inside(part))
        .then(|| place - before.map(|(_, s)| s).sum::<u64>())
}

/// Removes parts of a section of map definitions; what is behind them moves up.
fn close_gaps(image: &mut ObjectImage, section: usize, removed: &RemovedParts) -> Result<(), ObjectError> {
    move_relocations(image, section, removed)?;
    let elf_section = &mut image.elf.sections[section];
    let data = std::mem::take(&mut elf_section.data).into_iter().enumerate();
    let kept = data.filter(|(at, _)| moved(removed, *at as u64).is_some()).map(|(_, byte)| byte);
    elf_section.set_data(kept.collect());
    let gone = image.elf.sections[section].size == 0;
    image.elf.sections[section].deleted = gone;
    for s in image.elf.symbols.iter_mut().filter(|s| s.section() == Some(section)) {
        match moved(removed, s.value) {
            _ if s.kind() == STT_SECTION => {}
            Some(value) => s.value = value,
            None => s.deleted = true,
        }
    }
    for place in image.map_places.iter_mut().flatten().filter(|place| place.0 == section) {
        place.1 = moved(removed, place.1).unwrap_or(place.1);
    }
    let symbols = &image.elf.symbols;
    for form in image.forms.values_mut() {
        let s = &symbols[form.symbol];
        if s.kind() == STT_SECTION && s.section() == Some(section) {
            let place = u64::try_from(form.immediate).ok().and_then(|at| moved(removed, at));
            form.immediate = place.map_or(form.immediate, |at| at as i32);
        }
    }
    Ok(())
}

/// Relocations in a section of map definitions, and their addends that count from the section's start.
fn move_relocations(
    image: &mut ObjectImage,
    section: usize,
    removed: &RemovedParts,
) -> Result<(), ObjectError> {
    let elf = &mut image.elf;
    let order = elf.order;
    for n in 0..elf.sections.len() {
        if !elf.sections[n].is_relocations() || elf.sections[n].info as usize != section {
            continue;
        }
        let mut kept = Vec::new();
        for r in elf.relocations(n)? {
            let Some(offset) = moved(removed, r.offset) else { continue };
            let symbol = &elf.symbols[r.symbol];
            if symbol.kind() == STT_SECTION && symbol.section() == Some(section) {
                let at = r.offset as usize;
                let field = elf.sections[section].data.get_mut(at..at.saturating_add(8));
                if let Some(field) = field {
                    let old = order.number(field);
                    order.put(moved(removed, old).unwrap_or(old), field);
                }
            }
            kept.push(ElfRelocation { offset, ..r });
        }
        elf.set_relocations(n, &kept);
    }
    Ok(())
}
