//! Loader options, and the way from an object to loaded programs.

use std::path::PathBuf;
use std::sync::Arc;

use millstream_isa::ByteOrder;
use millstream_kernel::{self as kernel, AttachType, ExtensionPlace, KernelMap, ProgramType};
use millstream_object::{FuncId, InitialValue, MapId, MapOrigin, Object};
use rustc_hash::FxHashMap;

use crate::btf_fixup;
use crate::error::Error;
use crate::kernel_types::KernelTypes;
use crate::maps::{self, MapOverrides};
use crate::session::{ExtendedProgram, Session};

/// Loads an object, with options.
#[derive(Debug)]
pub struct ObjectLoader<'a> {
    pub(crate) object: &'a Object,
    overrides: MapOverrides,
    pub(crate) types: FxHashMap<FuncId, (ProgramType, AttachType)>,
    pub(crate) notes: Vec<String>,
    only: Option<Vec<FuncId>>,
    core_types: Option<KernelTypes>,
    without_impossible_maps: bool,
    extends: Option<ExtendedProgram>,
}

impl<'a> ObjectLoader<'a> {
    /// A loader without options: every map made anew, every program that the object wants loaded.
    pub fn new(object: &'a Object) -> Self {
        ObjectLoader {
            object,
            overrides: MapOverrides::default(),
            types: FxHashMap::default(),
            notes: Vec::new(),
            only: None,
            core_types: None,
            without_impossible_maps: false,
            extends: None,
        }
    }

    /// Uses `map` in place of the object's map `name`. Its contents stay as they are. Open it by id
    /// ([`KernelMap::from_id`]) or pin ([`KernelMap::from_pin`]).
    ///
    /// # Errors
    /// If the object has no such map. [`ObjectLoader::prepare`] checks if the layouts agree.
    pub fn reuse_map(mut self, name: &str, map: KernelMap) -> Result<Self, Error> {
        let id = self.map(name)?;
        self.overrides.reuse.insert(id, map);
        Ok(self)
    }

    /// Gives map `name` another number of entries.
    ///
    /// # Errors
    /// If the object has no such map.
    pub fn max_entries(mut self, name: &str, entries: u32) -> Result<Self, Error> {
        let id = self.map(name)?;
        self.overrides.max_entries.insert(id, entries);
        Ok(self)
    }

    /// Gives this many entries to every map to which the object gives none, because its own loader sets the
    /// number at run time. Without this, arrays and CPU maps get one a CPU and other maps 1,024.
    pub fn default_entries(mut self, entries: u32) -> Self {
        self.overrides.default_entries = Some(entries);
        self
    }

    /// Gives global data (`.rodata`, `.data`, `.bss`) other initial contents.
    ///
    /// # Errors
    /// If the object has no such map, or it is of another size or holds no global data.
    pub fn set_data(mut self, name: &str, bytes: &[u8]) -> Result<Self, Error> {
        let id = self.map(name)?;
        let map = &self.object.maps[id.index()];
        let want = if map.origin.is_global() { map.spec.value_size as usize } else { 0 };
        if bytes.len() != want {
            return Err(Error::Size { name: name.to_owned(), got: bytes.len(), want });
        }
        self.overrides.data.insert(id, bytes.to_vec());
        Ok(self)
    }

    /// Gives a global variable (such as a `const volatile` setting in `.rodata`) another initial value.
    ///
    /// # Errors
    /// If the object has no such variable, or it is of another size.
    pub fn set_variable(mut self, name: &str, bytes: &[u8]) -> Result<Self, Error> {
        let found = self.object.maps.iter().enumerate().find_map(|(i, m)| {
            let settable = m.origin.is_global() && m.origin != MapOrigin::Kconfig;
            let variable = m.variables.iter().find(|v| v.name == name)?;
            settable.then_some((MapId(i as u32), m, variable))
        });
        let (id, map, variable) =
            found.ok_or_else(|| Error::NoSuch { what: "variable", name: name.to_owned() })?;
        if bytes.len() != variable.size as usize {
            let want = variable.size as usize;
            return Err(Error::Size { name: name.to_owned(), got: bytes.len(), want });
        }
        let size = map.spec.value_size as usize;
        let data = self.overrides.data.entry(id).or_insert_with(|| {
            let mut data = map.data.clone().unwrap_or_default();
            data.resize(size, 0);
            data
        });
        let start = variable.offset as usize;
        match data.get_mut(start..start.saturating_add(bytes.len())) {
            Some(slot) => slot.copy_from_slice(bytes),
            None => return Err(Error::Size { name: name.to_owned(), got: bytes.len(), want: 0 }),
        }
        Ok(self)
    }

    /// Loads a program as this type, whatever its section says. For objects whose sections are named freely,
    /// as `ip link set xdp` takes them.
    ///
    /// # Errors
    /// If the object has no such program.
    pub fn program_type(mut self, name: &str, kind: ProgramType, attach: AttachType) -> Result<Self, Error> {
        let func = self.func(name)?;
        self.types.insert(func, (kind, attach));
        Ok(self)
    }

    /// Loads this program only; may be given several times. It is then loaded even if its section begins with
    /// `?`.
    ///
    /// # Errors
    /// If the object has no such program.
    pub fn only(mut self, name: &str) -> Result<Self, Error> {
        let func = self.func(name)?;
        self.only.get_or_insert_default().push(func);
        Ok(self)
    }

    /// Also loads the programs that the object puts into its program arrays, where [`ObjectLoader::only`]
    /// chose others.
    pub fn with_program_arrays(mut self) -> Self {
        if let Some(only) = &mut self.only {
            only.extend(self.object.maps.iter().flat_map(|m| &m.initial).filter_map(|(_, v)| match v {
                InitialValue::Program(func) => Some(*func),
                InitialValue::Map(_) => None,
            }));
        }
        self
    }

    /// Pins the maps that ask for it below this directory of a BPF file system, and uses those that are
    /// pinned there already.
    pub fn pin_root(mut self, directory: impl Into<PathBuf>) -> Self {
        self.overrides.pin_root = Some(directory.into());
        self
    }

    /// Answers CO-RE relocations by these types in place of the running kernel's (libbpf's
    /// `btf_custom_path`): for a kernel without BTF of its own, or to see what another kernel will be given
    /// ([`Session::slots`]).
    pub fn core_types(mut self, types: KernelTypes) -> Self {
        self.core_types = Some(types);
        self
    }

    /// Goes on without maps that the kernel does not create: programs that use them are then not loaded, and
    /// the others are.
    pub fn without_impossible_maps(mut self) -> Self {
        self.without_impossible_maps = true;
        self
    }

    /// Loads this program, and each variant of it, as an extension of another program too
    /// ([`kernel::KernelProgram::extension`]), which can take the place's function.
    ///
    /// # Errors
    /// If the object has no such program.
    pub fn extending(mut self, name: &str, place: Arc<ExtensionPlace>) -> Result<Self, Error> {
        self.extends = Some(ExtendedProgram { program: self.func(name)?, place });
        Ok(self)
    }

    /// The programs that [`ObjectLoader::load`] loads.
    pub fn chosen(&self) -> Vec<FuncId> {
        let wanted = |func: FuncId, autoload: bool| match &self.only {
            Some(only) => only.contains(&func),
            None => autoload,
        };
        self.object.programs.iter().filter(|p| wanted(p.func, p.kind.autoload)).map(|p| p.func).collect()
    }

    /// Makes the maps and loads the types.
    ///
    /// # Errors
    /// If a map cannot be made or filled. BTF that the kernel refuses is no error but a note, and so are the
    /// properties that the object leaves to its loader.
    pub fn prepare(self) -> Result<Session<'a>, Error> {
        self.check_byte_order()?;
        let mut notes = self.notes.clone();
        let btf = self.load_btf(&mut notes)?;
        let made = maps::create_all(
            self.object,
            btf.as_ref(),
            self.overrides,
            &mut notes,
            self.without_impossible_maps,
        )?;
        let session = Session::new(self.object, made, btf, notes, self.types, self.core_types);
        Ok(session.extending(self.extends))
    }

    /// Refuses objects for machines of the other byte order.
    pub(crate) fn check_byte_order(&self) -> Result<(), Error> {
        match self.object.byte_order() {
            ByteOrder::HOST => Ok(()),
            other => Err(Error::ByteOrder(other)),
        }
    }

    fn load_btf(&self, notes: &mut Vec<String>) -> Result<Option<kernel::KernelBtf>, Error> {
        let Some(btf) = &self.object.btf else { return Ok(None) };
        let bytes = match btf_fixup::to_loadable_btf(self.object, btf) {
            Ok(bytes) => bytes,
            Err(source) => return Err(Error::Btf { what: "the object's BTF".to_owned(), source }),
        };
        match kernel::KernelBtf::load(&bytes) {
            Ok(btf) => Ok(Some(btf)),
            Err(e) if e.errno() == Some(libc::EPERM) => Err(e.into()),
            Err(e) => {
                notes.push(format!("going on without the object's BTF: {e}"));
                Ok(None)
            }
        }
    }

    fn map(&self, name: &str) -> Result<MapId, Error> {
        let at = self.object.maps.iter().position(|m| m.name == name);
        at.map(|i| MapId(i as u32)).ok_or_else(|| Error::NoSuch { what: "map", name: name.to_owned() })
    }

    fn func(&self, name: &str) -> Result<FuncId, Error> {
        let found = self.object.programs.iter().find(|p| p.name == name);
        found.map(|p| p.func).ok_or_else(|| Error::NoSuch { what: "program", name: name.to_owned() })
    }
}
