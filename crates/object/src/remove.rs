//! Removing maps and sections of data from the file.
//!
//! The result is consistent for loaders: definitions of maps that remain close up, for cilium/ebpf wants no
//! bytes between them; symbols and initial values move with them; the BTF names no variable without a place.

use std::collections::{BTreeMap, BTreeSet};

use crate::elf::{ElfRelocation, ElfSection, STT_SECTION};
use crate::error::ObjectError;
use crate::ids::{MapId, RelocKind};
use crate::image::ObjectImage;
use crate::model::{InitialValue, MapOrigin, Object};
use millstream_btf::{Btf, BtfBuilder, BtfError, KindTag, StrOff, Type, TypeId, TypeKind};

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
