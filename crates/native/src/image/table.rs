//! Description of a program in an object file: a table that `emit::table` writes, and that is read after the
//! object was linked.
//!
//! Invariant: a pointer to a table points to one that `emit::table` wrote, in this process, with everything
//! it refers to. The caller that opens a program guarantees this.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::errors::ImageLoadError;
use millstream_native_runtime::helpers;

/// Version of the table's form and of the signatures of the runtime's functions.
pub(crate) const VERSION: u64 = 2;

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct ExportTable {
    version: u64,
    loops: u64,
    functions: u64,
    function: *const usize,
    imports: u64,
    import: *mut ImportSlot,
    length: u64,
    description: *const u8,
}

/// A function of the runtime that the code calls.
#[repr(C)]
struct ImportSlot {
    name: *const c_char,
    address: usize,
}

/// Code that was linked into this process.
#[derive(Debug)]
pub struct LinkedCode {
    /// Loops over a batch, then programs.
    pub(crate) functions: Vec<usize>,
    pub(crate) loops: usize,
    /// Description that was stored when it was made.
    pub description: &'static [u8],
}

impl LinkedCode {
    /// Connects code with this runtime.
    ///
    /// # Safety
    /// `table` was made by `NativeEngine::link_module` or `NativeEngine::link_object`, and nobody
    /// runs its code.
    ///
    /// # Errors
    /// If it was made for another runtime.
    pub unsafe fn open(table: *const ExportTable) -> Result<LinkedCode, ImageLoadError> {
        // SAFETY: by the caller's guarantee it is a table, which is never unloaded; the slots are this
        // function's alone.
        unsafe {
            let table = &*table;
            if table.version != VERSION || table.loops == 0 || table.loops > table.functions {
                return Err(ImageLoadError::Version(table.version));
            }
            for slot in from_raw_parts_mut(table.import, table.imports as usize) {
                let name = CStr::from_ptr(slot.name).to_string_lossy().into_owned();
                slot.address = helpers::address(&name).ok_or(ImageLoadError::Import(name))?;
            }
            Ok(LinkedCode {
                functions: from_raw_parts(table.function, table.functions as usize).to_vec(),
                loops: table.loops as usize,
                description: from_raw_parts(table.description, table.length as usize),
            })
        }
    }
}
