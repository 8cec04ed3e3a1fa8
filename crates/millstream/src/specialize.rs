//! Run-time specialization: programs that are compiled again for the contents of their maps and their traffic.
//!
//! Without a kernel, the lookups that code can be specialized on are known:
//!
//! ```
//! use millstream::{Object, specialize};
//!
//! # let elf = millstream_programs::ROUTER.object;
//! let object = Object::parse("router.o", elf)?;
//! let lookups = specialize::map_lookups(&object, None)?;
//! assert!(lookups.iter().any(|lookup| lookup.map == "routes"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A session attaches the program to interfaces, and specializes it while it runs, until it is told to stop:
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//!
//! use millstream::Object;
//! use millstream::specialize::{DetachPolicy, LiveSession, SessionSettings, variant_compiler};
//!
//! static STOP: AtomicBool = AtomicBool::new(false);
//!
//! let object = Object::parse("router.o", &std::fs::read("router.o")?)?;
//! let compiler = variant_compiler(&object, None)?;
//! let mut session = LiveSession::load(&compiler, SessionSettings::new("/sys/fs/bpf/example"))?;
//! let interface = 2;
//! session.attach(&[interface])?;
//! session.run(&STOP, &mut |report| println!("{}", report.json()))?;
//! session.finish(DetachPolicy::Restored)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use millstream_isa::generation::KernelRange;
use millstream_object::Object;
use millstream_specializer::VariantHost;
use millstream_specializer::variant::{VariantCompiler, object_map};

pub use millstream_specialize::{
    DetachPolicy, LiveError, LiveSession, SessionReport, SessionSettings, variant_compiler,
};
pub use millstream_specializer::variant::VariantError;

/// A map lookup in a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapLookup {
    /// Name of the map.
    pub map: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// True if code can compare the key with those of entries.
    pub is_comparable: bool,
    /// Source line as `FILE:LINE`, if the object says it.
    pub source_line: Option<String>,
}

/// The map lookups of a program, the one named or the only one, and of those that its tail calls may reach.
///
/// # Errors
/// If there is no such program, or it cannot be lifted.
pub fn map_lookups(object: &Object, program: Option<&str>) -> Result<Vec<MapLookup>, VariantError> {
    let host = VariantHost { kernels: KernelRange::ALL, possible_cpus: 1, cpu_numbers: None };
    let compiler = VariantCompiler::new(object, program, host)?;
    let maps = &compiler.object().maps;
    let lookup = |site: &millstream_specializer::transform::LookupSite| MapLookup {
        map: maps.get(object_map(site.map).index()).map_or_else(String::new, |map| map.name.clone()),
        key_size: site.key_size,
        is_comparable: site.is_comparable(),
        source_line: compiler.source_line(site),
    };
    Ok(compiler.sites().iter().map(lookup).collect())
}
