//! Loads objects into the kernel: maps, relocations, CO-RE, programs.
//!
//! [`ObjectLoader`] takes an [`Object`](millstream_object::Object) and options. [`ObjectLoader::prepare`]
//! makes its maps and BTF and returns a [`Session`], which turns linked programs into final slots
//! ([`Session::slots`]) and loads them ([`Session::load`]). A session loads any number of variants of a
//! program against the same maps; expensive work (kernel types, BTF, CO-RE answers) is done once.
//!
//! [`ObjectLoader::load`] does all of it for every program that the object wants loaded.
//!
//! This crate follows libbpf: the rules for global data, settings (`.kconfig`), kernel symbols and attach
//! targets are libbpf's. Not supported, and reported as such: `struct_ops`, program extensions (`freplace`),
//! kernel functions of modules.
//!
//! Architecture Invariant: nothing is attached here. Nothing is pinned unless a pin directory is given.

mod attach;
mod btf_fixup;
mod completion;
mod error;
mod externs;
mod guess;
mod kconfig;
mod kernel_types;
mod loaded;
mod loader;
mod maps;
mod session;
mod substitute;

pub use error::{Error, ProgramError};
pub use kernel_types::KernelTypes;
pub use loaded::LoadedObject;
pub use loader::ObjectLoader;
pub use session::{PoisonedRelocation, Session};
