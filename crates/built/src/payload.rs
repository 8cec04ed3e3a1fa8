//! Serialized form of a program that was built: machine code (unless that is elsewhere), initial table
//! contents, a description, and their lengths. It is behind the end of an executable, or in an object file.
//!
//! Tables are bytes, since a table of the whole Internet has a million entries; the description is JSON.

use std::fs::File;
use std::io::{self, Cursor, Error, ErrorKind, Read, Seek, SeekFrom};

use millstream_click::{ClickProgram, InitialEntry};
use millstream_native::{NativeEngine, NativeImage};
use serde::{Deserialize, Serialize};

/// Marks the end of the file.
const MAGIC: &[u8; 16] = b"millstream built";
/// Three lengths and the magic.
const TRAILER: usize = 3 * 8 + MAGIC.len();

/// A program, compiled ahead of time.
pub struct ProgramPayload {
    /// Source that it was built from.
    pub kind: PayloadKind,
    /// Its code and maps.
    pub image: NativeImage,
    /// Initial contents of a configuration's tables.
    pub entries: Vec<InitialEntry>,
}

/// Source that a program was built from.
#[derive(Serialize, Deserialize)]
pub enum PayloadKind {
    /// A configuration.
    Click {
        /// Its name.
        configuration: String,
        /// Description of the compiled configuration.
        program: Box<ClickProgram>,
    },
    /// An XDP program.
    Native {
        /// The object's name.
        object: String,
    },
}

/// A program whose tables refuse their initial contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFillError {
    /// No table has this name.
    #[error("there is no map {0:?}")]
    NoMap(String),
    /// The table is full.
    #[error("map {map:?} refuses an entry: error {errno}")]
    Entry {
        /// The table.
        map: String,
        /// The kernel's error number.
        errno: i64,
    },
}

/// Fills the tables with their initial contents.
///
/// # Errors
/// If a table is missing, or too small.
pub fn fill(engine: &mut NativeEngine, entries: &[InitialEntry]) -> Result<(), TableFillError> {
    for entry in entries {
        let map = engine.map(&entry.map).ok_or_else(|| TableFillError::NoMap(entry.map.clone()))?;
        let errno = map.update(&entry.key, &entry.value, 0, None);
        if errno != 0 {
            return Err(TableFillError::Entry { map: entry.map.clone(), errno });
        }
    }
    Ok(())
}

/// Description, as JSON. `K` is [`PayloadKind`], by reference for serialization.
#[derive(Serialize, Deserialize)]
struct PayloadMetadata<K, I> {
    kind: K,
    image: I,
    /// Names of the tables that the entries belong to.
    tables: Vec<String>,
}

impl ProgramPayload {
    /// Serializes the program.
    ///
    /// # Errors
    /// If a table is too large to be written down.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut tables: Vec<String> = Vec::new();
        let mut entries = Vec::new();
        for entry in &self.entries {
            let table = tables.iter().position(|t| *t == entry.map).unwrap_or_else(|| {
                tables.push(entry.map.clone());
                tables.len() - 1
            });
            for number in [table, entry.key.len(), entry.value.len()] {
                entries.extend(u32::try_from(number).map_err(Error::other)?.to_le_bytes());
            }
            entries.extend(entry.key.iter().chain(&entry.value));
        }
        let description = PayloadMetadata { kind: &self.kind, image: &self.image, tables };
        let description = serde_json::to_vec(&description)?;
        let parts = [self.image.code(), &entries, &description];
        let mut out = parts.concat();
        parts.iter().for_each(|part| out.extend((part.len() as u64).to_le_bytes()));
        out.extend(MAGIC);
        Ok(out)
    }

    /// Parses the serialized form.
    ///
    /// # Errors
    /// If it is cut off.
    pub fn of_bytes(bytes: &[u8]) -> io::Result<ProgramPayload> {
        ProgramPayload::at_end(&mut Cursor::new(bytes))?.ok_or_else(cut)
    }

    /// Reads the payload behind the end of this executable; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is cut off.
    pub fn of_this_executable() -> io::Result<Option<ProgramPayload>> {
        ProgramPayload::at_end(&mut File::open("/proc/self/exe")?)
    }

    fn at_end(file: &mut (impl Read + Seek)) -> io::Result<Option<ProgramPayload>> {
        let end = file.seek(SeekFrom::End(0))?;
        let mut trailer = [0; TRAILER];
        if end < TRAILER as u64 {
            return Ok(None);
        }
        file.seek(SeekFrom::End(-(TRAILER as i64)))?;
        file.read_exact(&mut trailer)?;
        if !trailer.ends_with(MAGIC) {
            return Ok(None);
        }
        let len = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&trailer[8 * at..8 * at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (code, entries, description) = (len(0), len(1), len(2));
        let all = code.checked_add(entries).and_then(|n| n.checked_add(description));
        let all = all.filter(|all| *all <= end - TRAILER as u64).ok_or_else(cut)?;
        file.seek(SeekFrom::End(-(TRAILER as i64) - all as i64))?;
        let mut bytes = vec![0; all as usize];
        file.read_exact(&mut bytes)?;
        let (code, rest) = bytes.split_at(code as usize);
        let (entries, description) = rest.split_at(entries as usize);
        ProgramPayload::read(code, entries, description).map(Some)
    }

    fn read(code: &[u8], mut entries: &[u8], description: &[u8]) -> io::Result<ProgramPayload> {
        let PayloadMetadata::<PayloadKind, NativeImage> { kind, image, tables } =
            serde_json::from_slice(description)?;
        let mut all = Vec::new();
        while !entries.is_empty() {
            let [table, key, value] = [(); 3].map(|()| number(&mut entries));
            let map = tables.get(table? as usize).ok_or_else(cut)?.clone();
            let (key, value) = (take(&mut entries, key?)?, take(&mut entries, value?)?);
            all.push(InitialEntry { map, key, value });
        }
        Ok(ProgramPayload { kind, image: image.with_code(code.to_vec()), entries: all })
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::InvalidData, "it is cut off")
}

fn number(bytes: &mut &[u8]) -> io::Result<u32> {
    let (first, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*first))
}

fn take(bytes: &mut &[u8], len: u32) -> io::Result<Vec<u8>> {
    let (first, rest) = bytes.split_at_checked(len as usize).ok_or_else(cut)?;
    *bytes = rest;
    Ok(first.to_vec())
}
