//! Object files for every command: one reader and one writer, of ELF objects and of raw programs (`X.insns`
//! with `X.maps` and `X.desc` beside it), chosen by the file name's ending, and of our own data planes by
//! `builtin:NAME`.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use miette::Diagnostic;
use millstream_lab::workload::BuiltinWorkload;
use millstream_object::{Object, ObjectError, RawInput};

use crate::bounded_read;

/// The flag of commands that read raw programs.
#[derive(Debug, Default, clap::Args)]
pub struct SectionArgs {
    /// Section of a raw program (`X.insns`), which gives its type, as in an object: `xdp`, `tc`,
    /// `cgroup/recvmsg4`; default: by the end of the file's name, then by `X.desc`
    #[arg(long, value_name = "NAME")]
    section: Option<String>,
}

impl SectionArgs {
    /// Reads an object or a raw program.
    pub fn read(&self, path: &Path) -> Result<Object, ReadError> {
        read_as(path, self.section.as_deref())
    }
}

/// Reasons why a file could not be read or written. The message names it.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ReadError {
    /// A system call failed.
    #[error("cannot {verb} {}", path.display())]
    Io {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The file is not an object, or cannot be one.
    #[error("in {}", path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// Error in the object.
        source: ObjectError,
    },
    /// No data plane of ours has this name.
    #[error("{0}")]
    Builtin(millstream_lab::Error),
}

/// Reads an object, or a raw program whose section is in its name or description.
pub fn read(path: &Path) -> Result<Object, ReadError> {
    read_as(path, None)
}

fn read_as(path: &Path, section: Option<&str>) -> Result<Object, ReadError> {
    if let Some(builtin) = builtin(path)? {
        return Ok(builtin);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let wrong = |source| ReadError::Object { path: path.to_owned(), source };
    let data = bytes(path)?;
    if !is_raw(path) {
        return Object::parse(&name, &data).map_err(wrong);
    }
    let beside = |ending| match bytes(&path.with_extension(ending)) {
        Ok(data) => Ok(Some(data)),
        Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    };
    let (maps, desc) = (beside("maps")?, beside("desc")?);
    let files = RawInput { insns: &data, maps: maps.as_deref(), desc: desc.as_deref() };
    Object::parse_raw(&name, files, section).map_err(wrong)
}

/// One of our own data planes, if the path is `builtin:NAME`.
fn builtin(path: &Path) -> Result<Option<Object>, ReadError> {
    let Some(spec) = path.to_str().filter(|p| p.starts_with("builtin:")) else { return Ok(None) };
    let builtin: BuiltinWorkload = spec.parse().map_err(ReadError::Builtin)?;
    let parsed = Object::parse(builtin.program.name, builtin.program.object);
    parsed.map(Some).map_err(|source| ReadError::Object { path: path.to_owned(), source })
}

/// Writes an object, in the format of the name's ending; for a raw program all its files.
pub fn write(path: &Path, object: &Object) -> Result<(), ReadError> {
    let wrong = |source| ReadError::Object { path: path.to_owned(), source };
    if !is_raw(path) {
        return put(path, &object.write().map_err(wrong)?);
    }
    let files = object.write_raw().map_err(wrong)?;
    put(path, &files.insns)?;
    for (ending, data) in [("maps", files.maps), ("desc", files.desc)] {
        if let Some(data) = data {
            put(&path.with_extension(ending), &data)?;
        }
    }
    Ok(())
}

/// Gives programs that correspond the same name. A raw program is named after its file, which means nothing,
/// so if both objects have a single program, the second's gets the name of the first's.
pub fn match_program_names(first: &Object, second: &mut Object) {
    if let ([a], [b]) = (first.programs.as_slice(), second.programs.as_mut_slice()) {
        second.functions[b.func.index()].name.clone_from(&a.name);
        b.name.clone_from(&a.name);
    }
}

fn is_raw(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("insns"))
}

fn bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    bounded_read::bytes(path).map_err(|source| ReadError::Io { verb: "read", path: path.to_owned(), source })
}

fn put(path: &Path, data: &[u8]) -> Result<(), ReadError> {
    std::fs::write(path, data).map_err(|source| ReadError::Io {
        verb: "write",
        path: path.to_owned(),
        source,
    })
}
