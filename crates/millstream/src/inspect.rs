//! Contents of objects: programs, maps, and functions as IR.
//!
//! ```
//! use millstream::{Object, inspect};
//!
//! # let elf = millstream_programs::ROUTER.object;
//! let object = Object::parse("router.o", elf)?;
//! let program = &inspect::programs(&object)[0];
//! assert_eq!(program.section, "xdp");
//! let ir = inspect::function_ir(&object, &program.name).expect("a function of the object");
//! assert!(ir.contains("load"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use millstream_bpf::module::{func, lift_supported};
use millstream_object::{FuncId, Object};

/// An entry program of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramSummary {
    /// Name of its function.
    pub name: String,
    /// Section, which says its type and attachment.
    pub section: String,
    /// Instructions in slots of 8 bytes, without the functions that it calls.
    pub slots: usize,
}

/// A map of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapSummary {
    /// Name.
    pub name: String,
    /// Name of its type, as the kernel has it.
    pub map_type: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Maximum number of entries.
    pub max_entries: u32,
}

/// The entry programs of an object, in its order.
#[must_use]
pub fn programs(object: &Object) -> Vec<ProgramSummary> {
    let summary = |program: &millstream_object::EntryProgram| ProgramSummary {
        name: program.name.clone(),
        section: program.section.clone(),
        slots: object.functions[program.func.index()].insns.len(),
    };
    object.programs.iter().map(summary).collect()
}

/// The maps of an object, in its order.
#[must_use]
pub fn maps(object: &Object) -> Vec<MapSummary> {
    let summary = |map: &millstream_object::ObjectMap| MapSummary {
        name: map.name.clone(),
        map_type: map.spec.map_type.to_string(),
        key_size: map.spec.key_size,
        value_size: map.spec.value_size,
        max_entries: map.spec.max_entries,
    };
    object.maps.iter().map(summary).collect()
}

/// The IR of a function, as it is lifted, before any pass; `None` if the object has no function of this name.
#[must_use]
pub fn function_ir(object: &Object, name: &str) -> Option<String> {
    let at = object.functions.iter().position(|function| function.name == name)?;
    let lifted = lift_supported(object);
    Some(lifted.module.funcs.get(func(FuncId(at as u32)))?.to_string())
}
