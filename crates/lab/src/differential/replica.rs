//! A program in the kernel with maps of its own, which no other replica sees.

use std::os::fd::AsFd;

use millstream_isa::MapType;
use millstream_kernel::{self as kernel, KernelProgram, ProgramType, TestOutput, TestRun};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{self as object, FuncId, InitialValue, LinkedProgram, MapId, Object};

use super::compare::SortedEntries;
use super::stack::with_written_stack;
use super::tables::{self, TableEntry};
use crate::error::{Error, Result};
use crate::measure::retry_interrupted;

/// Upper bound on the entries of hashes and tries, for speed.
const MOST_ENTRIES: u32 = 4096;
/// Upper bound on the bytes of an array.
const MOST_BYTES: u32 = 1 << 20;

/// Programs that are loaded to be tail-called, at most; first those that the object puts into an array
/// itself.
const MOST_OTHERS: usize = 8;

/// Contents of a program's stack when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InitialStack {
    /// Whatever the kernel left there.
    Unwritten,
    /// A pattern, where the verifier accepts the program with it.
    Written,
}

/// The program, loaded.
pub(super) struct ProgramReplica<'a> {
    pub(super) session: Session<'a>,
    linked: LinkedProgram,
    program: KernelProgram,
    /// Programs that it tail-calls.
    others: Vec<(FuncId, KernelProgram)>,
}

impl<'a> ProgramReplica<'a> {
    /// Loads the program; and the object's other programs of its type, if there is an array to call them
    /// through.
    pub(super) fn load(
        object: &'a Object,
        program: &object::EntryProgram,
        name: &str,
        stack: InitialStack,
    ) -> Result<Self> {
        let mut loader = ObjectLoader::new(object).only(&program.name)?;
        for map in object.maps.iter().filter(|m| !m.origin.is_global()) {
            let spec = &map.spec;
            let most = match spec.map_type {
                MapType::HASH | MapType::PERCPU_HASH | MapType::LRU_HASH | MapType::LRU_PERCPU_HASH => {
                    MOST_ENTRIES
                }
                MapType::LPM_TRIE => MOST_ENTRIES,
                MapType::ARRAY | MapType::PERCPU_ARRAY => (MOST_BYTES / spec.value_size.max(1)).max(64),
                _ => continue,
            };
            if spec.max_entries > most {
                loader = loader.max_entries(&map.name, most)?;
            }
        }
        let session = loader.guess_types()?.without_impossible_maps().prepare()?;
        let failed = |source| Error::Program { name: name.to_owned(), source: Box::new(source) };
        let linked = object.link(program.func)?;
        // A verifier may refuse the form that writes its stack.
        let written = (stack == InitialStack::Written).then(|| with_written_stack(&linked)).flatten();
        let loaded = match written.and_then(|written| session.load(program.func, &written).ok()) {
            Some(loaded) => loaded,
            None => session.load(program.func, &linked).map_err(failed)?,
        };
        let mut replica = ProgramReplica { session, linked, program: loaded, others: Vec::new() };
        replica.load_others(program)?;
        Ok(replica)
    }

    fn load_others(&mut self, program: &object::EntryProgram) -> Result<()> {
        let object = self.session.object();
        let is_array = |m: &object::ObjectMap| m.spec.map_type == MapType::PROG_ARRAY;
        if !object.maps.iter().any(is_array) {
            return Ok(());
        }
        let alike = object.programs.iter().filter(|p| p.kind.program_type == program.kind.program_type);
        let named = |p: &&object::EntryProgram| {
            let is_it = |(_, value): &(u32, InitialValue)| *value == InitialValue::Program(p.func);
            object.maps.iter().any(|m| m.initial.iter().any(is_it))
        };
        let (named, unnamed): (Vec<_>, Vec<_>) = alike.partition(named);
        for other in named.into_iter().chain(unnamed).take(MOST_OTHERS) {
            // One that does not load is not there for any replica.
            if let Ok(loaded) = self.session.load(other.func, &object.link(other.func)?) {
                self.others.push((other.func, loaded));
            }
        }
        self.session.fill_program_arrays(&self.others)?;
        for (at, map) in object.maps.iter().enumerate().filter(|(_, m)| is_array(m) && m.initial.is_empty()) {
            let Some(array) = self.session.map(MapId(at as u32)) else { continue };
            for (slot, (_, loaded)) in (0..map.spec.max_entries).zip(&self.others) {
                // Programs that do not suit one another (other attach types) stay out everywhere alike.
                let _ = array.update_fd(&slot.to_ne_bytes(), loaded.as_fd());
            }
        }
        Ok(())
    }

    /// The type that it was loaded as.
    pub(super) fn program_type(&self) -> Result<ProgramType> {
        Ok(self.program.info()?.program_type)
    }

    /// Its final instructions.
    pub(super) fn slots(&self) -> Result<Vec<u64>> {
        let name = || self.program.name().to_owned();
        let slots = self.session.slots(&self.linked);
        let (slots, _) = slots.map_err(|source| Error::Program { name: name(), source: Box::new(source) })?;
        Ok(slots)
    }

    /// Writes entries into the maps.
    pub(super) fn fill(&self, entries: &[TableEntry]) {
        tables::write(&self.session, entries);
    }

    /// Runs it on a packet.
    pub(super) fn run(&self, packet: &[u8], context: &[u8], out: &mut TestOutput) -> Result<()> {
        let run = TestRun { context, ..TestRun::packet(packet) };
        retry_interrupted(|| self.program.test_run_into(&run, out))
    }

    /// Contents of a map; `None` for constants and for maps whose contents are not data.
    pub(super) fn contents(&self, map: usize) -> Result<Option<SortedEntries>> {
        let Some(made) = self.session.map(MapId(map as u32)) else { return Ok(None) };
        let kind = made.info().map_type;
        let data = matches!(
            kind,
            MapType::HASH
                | MapType::ARRAY
                | MapType::PERCPU_HASH
                | MapType::PERCPU_ARRAY
                | MapType::LRU_HASH
                | MapType::LRU_PERCPU_HASH
                | MapType::LPM_TRIE
        );
        if !data || made.info().flags & kernel::map_flags::RDONLY_PROG != 0 {
            return Ok(None);
        }
        let mut all: SortedEntries = made.entries()?.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        all.sort_unstable();
        Ok(Some(all))
    }
}
