//! Initial contents of maps: generated tables, and files as `bpftool -j map dump` writes them.

use std::path::Path;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_native::NativeEngine;
use millstream_programs::MapEntry;
use serde::Deserialize;

use crate::bounded_read;

/// An entry of a dump: bytes as text (`0x0a`).
#[derive(Debug, Deserialize)]
struct DumpEntry {
    key: Vec<String>,
    value: Option<Vec<String>>,
    /// Values of per-CPU maps: the first CPU's goes to the worker.
    values: Option<Vec<CpuValue>>,
}

#[derive(Debug, Deserialize)]
struct CpuValue {
    value: Vec<String>,
}

/// Inserts generated entries, except into shared maps.
pub fn apply(engine: &mut NativeEngine, entries: &[MapEntry]) -> Result<()> {
    for entry in entries {
        if engine.map(entry.map).is_some_and(|map| map.is_external()) {
            continue;
        }
        set(engine, entry.map, &entry.key, &entry.value)?;
    }
    Ok(())
}

/// Inserts the entries of a file, given as `NAME=FILE`.
pub fn load(engine: &mut NativeEngine, spec: &str) -> Result<()> {
    let MapDumpFile { name, path, entries } = MapDumpFile::read(spec)?;
    for (key, value) in entries {
        set(engine, &name, &key, &value).wrap_err_with(|| path.clone())?;
    }
    Ok(())
}

/// Initial contents of a map, from a file.
#[derive(Debug)]
pub struct MapDumpFile {
    /// The map.
    pub name: String,
    /// The file.
    pub path: String,
    /// Keys and values.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl MapDumpFile {
    /// Reads the file of `NAME=FILE`.
    pub fn read(spec: &str) -> Result<MapDumpFile> {
        let (name, path) = spec.split_once('=').ok_or_else(|| miette!("--map {spec:?} is not NAME=FILE"))?;
        let text = bounded_read::text(Path::new(path)).into_diagnostic();
        let entries = text.and_then(|text| entries(&text)).wrap_err_with(|| path.to_owned())?;
        Ok(MapDumpFile { name: name.to_owned(), path: path.to_owned(), entries })
    }
}

fn entries(text: &str) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let entries: Vec<DumpEntry> = serde_json::from_str(text).into_diagnostic()?;
    entries
        .into_iter()
        .map(|entry| {
            let first = || entry.values.and_then(|values| Some(values.into_iter().next()?.value));
            let value = entry.value.or_else(first);
            let value = value.ok_or_else(|| miette!("an entry has neither value nor values"))?;
            Ok((bytes(&entry.key)?, bytes(&value)?))
        })
        .collect()
}

fn bytes(text: &[String]) -> Result<Vec<u8>> {
    let byte = |t: &String| {
        let digits = t.strip_prefix("0x").and_then(|digits| u8::from_str_radix(digits, 16).ok());
        digits.ok_or_else(|| miette!("{t:?} is not a byte such as \"0x0a\""))
    };
    text.iter().map(byte).collect()
}

fn set(engine: &mut NativeEngine, name: &str, key: &[u8], value: &[u8]) -> Result<()> {
    let map = engine.map(name).ok_or_else(|| miette!("there is no map {name:?}"))?;
    let spec = map.spec();
    if map.holds_addresses() {
        return Err(miette!("map {name:?} holds maps or programs: only the object can fill it"));
    }
    if (key.len(), value.len()) != (spec.key_size as usize, spec.value_size as usize) {
        let (k, v) = (spec.key_size, spec.value_size);
        return Err(miette!(
            "map {name:?} has keys of {k} and values of {v} bytes, not of {} and {}",
            key.len(),
            value.len()
        ));
    }
    match map.update(key, value, 0, None) {
        0 => Ok(()),
        errno => {
            let why = std::io::Error::from_raw_os_error(-errno as i32);
            Err(miette!("map {name:?} refuses the entry {key:02x?}: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::entries;

    #[test]
    fn dumps_of_plain_and_per_cpu_maps_are_read() {
        let text = r#"[{"key":["0x01","0x00"],"value":["0xff"]},
            {"key":["0x02","0x00"],"values":[{"cpu":0,"value":["0x07"]},{"cpu":1,"value":["0x08"]}]}]"#;
        assert_eq!(entries(text).unwrap(), [(vec![1, 0], vec![255]), (vec![2, 0], vec![7])]);
        for bad in [
            r#"[{"key":["1"],"value":[]}]"#,
            r#"[{"key":["0x01"]}]"#,
            "{}",
            r#"[{"key":["0x100"],"value":[]}]"#,
        ] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }
}
