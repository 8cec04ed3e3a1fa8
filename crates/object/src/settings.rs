//! Load-time settings: variables of constant data that have their final value.
//!
//! A loader may set constants (`.rodata*`) until the map that holds them is frozen, so that code must not
//! rely on the values in the file. Once a variable is [settled](Object::settle), no loader will set it again,
//! and code may rely on it.

use std::ops::Range;

use crate::error::ObjectError;
use crate::model::{MapId, MapOrigin, Object};

/// Bytes of constant data that have their final value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettledBytes {
    /// The map that holds them.
    pub map: MapId,
    /// Their offsets in the map's value.
    pub range: Range<u32>,
}

impl Object {
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
