//! Replacing and removing functions, and load-time settings: variables of constant data that have their final
//! value.
//!
//! A loader may set constants (`.rodata*`) until the map that holds them is frozen, so that code must not
//! rely on the values in the file. Once a variable is [settled](Object::settle), no loader will set it again,
//! and code may rely on it.

use crate::error::ObjectError;
use crate::ids::{FuncId, MapId, RelocKind};
use crate::model::{InitialValue, MapOrigin, NewFunction, Object, SettledBytes};
use crate::read::relocs::{CALL, LD_IMM64, PSEUDO_CALL, PSEUDO_FUNC, normalise, pseudo};

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
        let f = &mut self.functions[id.index()];
        f.removed = true;
        f.insns.clear();
        f.relocs.clear();
        f.line_info.clear();
        f.core_relos.clear();
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
