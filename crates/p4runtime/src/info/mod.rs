//! P4Info of a program. Source: P4Runtime specification 1.4, section 6.
//!
//! [`elaborate`] finds the parsers, controls, tables and externs that the package `main` is made of, and
//! those parts of them that packets can reach. [`symbols`] gives them ids; the other modules describe each
//! kind of object. Names, ids, order and the set of objects are those of p4c, whose controllers have to find
//! everything in place.

mod actions;
mod annotations;
mod architecture;
mod builder;
mod data_types;
mod elaborate;
mod entries;
mod evaluate;
mod externs;
mod instances;
mod key_names;
mod liveness;
mod package;
mod program;
mod scope;
mod symbols;
mod table_syntax;
mod tables;
mod type_specs;
mod value_sets;

use millstream_p4::CompiledProgram;
use thiserror::Error;

pub use architecture::TargetArchitecture;

use crate::proto::config::v1::P4Info;
use crate::proto::v1::WriteRequest;

/// Reason why a program has no P4Info.
#[derive(Debug, Error)]
pub enum InfoError {
    /// The program has errors.
    #[error("the program has errors")]
    BrokenProgram,
    /// A construct has no description in P4Info.
    #[error("{place}: {construct} cannot be described in P4Info")]
    Unsupported {
        /// File, line and column.
        place: String,
        /// The construct.
        construct: String,
    },
    /// An annotation has no value of the kind that it needs.
    #[error("{place}: the annotation `@{name}` needs {expected}")]
    Annotation {
        /// File, line and column.
        place: String,
        /// Name of the annotation.
        name: String,
        /// Kind of value.
        expected: &'static str,
    },
    /// Two objects of one kind have the same name.
    #[error("two objects of one kind have the name `{name}`")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two objects, fields or parameters have the same id.
    #[error("the id {id} of `{name}` is taken")]
    DuplicateId {
        /// Name of the second.
        name: String,
        /// The id.
        id: u32,
    },
    /// The id of an annotation begins with the byte of another kind.
    #[error("the id {id:#010x} of `{name}` begins with the byte of another kind of objects")]
    WrongIdPrefix {
        /// Name of the object.
        name: String,
        /// The id.
        id: u32,
    },
    /// All ids of a kind are taken.
    #[error("no id is free for `{name}`")]
    NoFreeId {
        /// Name of the object.
        name: String,
    },
    /// The program has more objects than this crate describes.
    #[error("the program has more than {limit} objects")]
    TooLarge {
        /// Largest number of objects.
        limit: usize,
    },
}

/// P4Info of a program, and the entries that it gives its tables.
#[derive(Clone, PartialEq, Debug)]
pub struct ProgramDescription {
    /// Objects that controllers see.
    pub info: P4Info,
    /// Request that inserts the entries, as p4c writes it; values have all bytes of their types.
    pub entries: WriteRequest,
}

/// Describes a program to controllers.
///
/// # Errors
/// If the program has errors, or has a construct that P4Info cannot describe.
pub fn describe_program(program: &CompiledProgram) -> Result<ProgramDescription, InfoError> {
    if !program.is_accepted() {
        return Err(InfoError::BrokenProgram);
    }
    let architecture = TargetArchitecture::of_program(program);
    let (info, updates) = package::build(program, architecture)?;
    Ok(ProgramDescription { info, entries: WriteRequest { updates, ..WriteRequest::default() } })
}
