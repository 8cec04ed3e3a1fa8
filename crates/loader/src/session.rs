//! An object's maps and types in the kernel, against which programs and their variants are loaded.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Arc;

use millstream_btf::core::{self, ResolvedRelo};
use millstream_btf::{FuncLinkage, Type, TypeId, TypeKind};
use millstream_isa::RawInsn;
use millstream_kernel::{self as kernel, AttachType, KernelMap, ProgramSpec, ProgramType, RecordInfo};
use millstream_object::{
    CoreRelo, EntryProgram as ObjectProgram, FuncId, InitialValue, LinkedProgram, MapId, Object, RelocKind,
    SectionKind,
};
use rustc_hash::FxHashMap;

use crate::error::{Error, ProgramError};
use crate::kernel_types::KernelTypes;
use crate::maps::MadeMaps;
use crate::{attach, externs, substitute};

/// A CO-RE relocation for which this kernel has no answer: its instruction was replaced by one that the
/// verifier rejects if it can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoisonedRelocation {
    /// The instruction, in slots of the linked program.
    pub insn: u32,
    /// The type that is missing, or lacks the field.
    pub type_name: String,
    /// The path into it, as `.BTF.ext` writes it.
    pub access: String,
}

/// An object prepared: maps made and filled, types loaded.
#[derive(Debug)]
pub struct Session<'a> {
    object: &'a Object,
    maps: Vec<Option<KernelMap>>,
    /// Reasons why the kernel did not make a map.
    impossible: FxHashMap<MapId, String>,
    btf: Option<Arc<kernel::KernelBtf>>,
    notes: Vec<String>,
    types: FxHashMap<FuncId, (ProgramType, AttachType)>,
    /// Types for CO-RE, if not the running kernel's.
    core_types: Option<KernelTypes>,
    /// Answers of CO-RE are the same for every variant.
    answers: RefCell<FxHashMap<(u32, u32, u32), ResolvedRelo>>,
    targets: RefCell<FxHashMap<FuncId, Option<TypeId>>>,
    extends: Option<ExtendedProgram>,
}

/// A program of the object, and the place that its extensions take.
#[derive(Clone, Debug)]
pub(crate) struct ExtendedProgram {
    pub(crate) program: FuncId,
    pub(crate) place: Arc<kernel::ExtensionPlace>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        object: &'a Object,
        made: MadeMaps,
        btf: Option<kernel::KernelBtf>,
        notes: Vec<String>,
        types: FxHashMap<FuncId, (ProgramType, AttachType)>,
        core_types: Option<KernelTypes>,
    ) -> Self {
        let (answers, targets) = (RefCell::default(), RefCell::default());
        let btf = btf.map(Arc::new);
        let MadeMaps { maps, impossible } = made;
        Session { object, maps, impossible, btf, notes, types, core_types, answers, targets, extends: None }
    }

    /// Loads one of the programs as an extension, too.
    pub(crate) fn extending(self, extends: Option<ExtendedProgram>) -> Self {
        Session { extends, ..self }
    }

    /// Clones the session for another thread, with the same maps and types: maps that are replaced there are
    /// not replaced here.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn try_clone(&self) -> Result<Self, kernel::KernelError> {
        let clone = |map: &Option<KernelMap>| map.as_ref().map(KernelMap::try_clone).transpose();
        Ok(Session {
            object: self.object,
            maps: self.maps.iter().map(clone).collect::<Result<_, _>>()?,
            impossible: self.impossible.clone(),
            btf: self.btf.clone(),
            notes: self.notes.clone(),
            types: self.types.clone(),
            core_types: self.core_types.clone(),
            answers: self.answers.clone(),
            targets: self.targets.clone(),
            extends: self.extends.clone(),
        })
    }

    /// The object.
    pub fn object(&self) -> &'a Object {
        self.object
    }

    /// The map in the kernel; `None` for one that this loader does not make.
    pub fn map(&self, id: MapId) -> Option<&KernelMap> {
        self.maps.get(id.index())?.as_ref()
    }

    /// The map in the kernel, by its name in the object.
    pub fn map_by_name(&self, name: &str) -> Option<&KernelMap> {
        let at = self.object.maps.iter().position(|m| m.name == name)?;
        self.maps.get(at)?.as_ref()
    }

    /// Replaces the map that the object describes, for programs that are loaded from now on. Programs that
    /// were loaded before keep theirs. Without a map of that number, nothing happens.
    pub fn replace_map(&mut self, id: MapId, map: KernelMap) {
        if let Some(place) = self.maps.get_mut(id.index()) {
            *place = Some(map);
        }
    }

    /// Oddities that did not prevent loading.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the final slots of a linked program: CO-RE applied, descriptors and kernel ids filled in. Also
    /// returns the CO-RE relocations that have no answer.
    ///
    /// # Errors
    /// If a relocation has no answer that could be written.
    pub fn slots(&self, linked: &LinkedProgram) -> Result<(Vec<u64>, Vec<PoisonedRelocation>), ProgramError> {
        let mut insns = linked.insns.clone();
        let poisoned = self.apply_core(&mut insns, &linked.core_relos)?;
        for reloc in &linked.relocs {
            if let RelocKind::Map(id) | RelocKind::MapValue { map: id, .. } = reloc.kind
                && let Some(why) = self.impossible.get(&id)
            {
                let name = &self.object.maps[id.index()].name;
                return Err(ProgramError::Unsupported(format!(
                    "it uses map {name:?}, which cannot be made: {why}"
                )));
            }
            externs::apply(self.object, &self.maps, &mut insns, reloc)?;
        }
        Ok((insns.iter().map(|i| u64::from_ne_bytes(i.to_bytes())).collect(), poisoned))
    }

    fn apply_core(
        &self,
        insns: &mut [RawInsn],
        relos: &[CoreRelo],
    ) -> Result<Vec<PoisonedRelocation>, ProgramError> {
        let mut poisoned = Vec::new();
        let (Some(local), false) = (&self.object.btf, relos.is_empty()) else { return Ok(poisoned) };
        let kernel = match &self.core_types {
            Some(types) => types.clone(),
            None => KernelTypes::running()?,
        };
        for relo in relos {
            let key = (relo.type_id.0, relo.access.0, relo.kind as u32);
            let known = self.answers.borrow().get(&key).copied();
            let answer = match known {
                Some(a) => a,
                None => core::resolve(&relo.to_btf(), local, kernel.btf())
                    .map_err(|source| ProgramError::Core { insn: relo.insn, source })?,
            };
            self.answers.borrow_mut().insert(key, answer);
            if answer.value.is_none() {
                poisoned.push(PoisonedRelocation {
                    insn: relo.insn,
                    type_name: local.name(relo.type_id).to_owned(),
                    access: local.str(relo.access).to_owned(),
                });
            }
            core::patch(insns, relo.insn as usize, &answer)?;
        }
        Ok(poisoned)
    }

    /// Loads a program, or a variant of it, against the maps of this session.
    ///
    /// # Errors
    /// [`ProgramError::Load`] with the verifier's log if the kernel rejects it; the others before the kernel
    /// is asked.
    pub fn load(&self, func: FuncId, linked: &LinkedProgram) -> Result<kernel::KernelProgram, ProgramError> {
        let program = self.program(func)?;
        let (slots, _) = self.slots(linked)?;
        let loaded = self.load_slots(program, &slots, linked, None)?;
        match self.extends.as_ref().filter(|extended| extended.program == func) {
            None => Ok(loaded),
            Some(ExtendedProgram { place, .. }) => {
                Ok(loaded.with_extension(self.load_slots(program, &slots, linked, Some(place))?))
            }
        }
    }

    /// Loads slots that are final already, with the name, type and target of program `func`, without line or
    /// function information.
    ///
    /// # Errors
    /// As for [`Session::load`].
    pub fn load_raw(&self, func: FuncId, slots: &[u64]) -> Result<kernel::KernelProgram, ProgramError> {
        self.load_slots(self.program(func)?, slots, &LinkedProgram::default(), None)
    }

    /// Loads slots that are final already, with the function information of the program from which they were
    /// made. `appended` has the starts of functions that were appended to it, static ones. Without
    /// information on all functions, the kernel accepts no callbacks.
    ///
    /// # Errors
    /// As for [`Session::load`].
    pub fn load_rewritten(
        &self,
        func: FuncId,
        slots: &[u64],
        from: &LinkedProgram,
        appended: &[u32],
    ) -> Result<kernel::KernelProgram, ProgramError> {
        let mut known = LinkedProgram::default();
        // Callbacks are static, so if there is one, there is a type. The kernel checks nothing else of a
        // static function's.
        let like = self.static_type(from);
        if appended.is_empty() || like.is_some() {
            known.func_info.clone_from(&from.func_info);
            known.func_info.extend(appended.iter().filter_map(|start| Some((*start, like?))));
        }
        self.load_slots(self.program(func)?, slots, &known, None)
    }

    /// The type of a static function of a program.
    fn static_type(&self, linked: &LinkedProgram) -> Option<TypeId> {
        let btf = self.object.btf.as_ref()?;
        let is_static = |of: &TypeId| {
            matches!(btf.ty(*of), Ok(Type { kind: TypeKind::Func { linkage: FuncLinkage::Static, .. }, .. }))
        };
        linked.func_info.iter().map(|(_, of)| *of).find(is_static)
    }

    fn load_slots(
        &self,
        program: &ObjectProgram,
        slots: &[u64],
        linked: &LinkedProgram,
        place: Option<&kernel::ExtensionPlace>,
    ) -> Result<kernel::KernelProgram, ProgramError> {
        let (func_info, line_info) = records(linked);
        let mut slots = slots.to_vec();
        substitute::missing_helpers(&mut slots);
        let (program_type, expected_attach) = self.type_of(program);
        let spec = ProgramSpec {
            name: &program.name,
            program_type,
            expected_attach,
            insns: &slots,
            license: &self.object.license,
            flags: program.kind.load_flags(),
            btf: self.btf.as_ref().map(|btf| btf.as_fd()),
            func_info: RecordInfo { record_size: 8, bytes: &func_info },
            line_info: RecordInfo { record_size: 16, bytes: &line_info },
            attach_btf_id: self.target(program)?.map_or(0, |t| t.0),
            kernel_version: self.object.kernel_version.unwrap_or(0),
            ..ProgramSpec::default()
        };
        let spec = match place {
            None => spec,
            Some(place) => ProgramSpec {
                program_type: ProgramType::EXT,
                expected_attach: AttachType(0),
                attach_btf_id: place.function(),
                attach_program: Some(place.host().as_fd()),
                ..spec
            },
        };
        Ok(kernel::KernelProgram::load(&spec)?)
    }

    fn program(&self, func: FuncId) -> Result<&'a ObjectProgram, ProgramError> {
        self.object.programs.iter().find(|p| p.func == func).ok_or_else(|| {
            let name = self.object.functions.get(func.index()).map_or("?", |f| f.name.as_str());
            ProgramError::Prepare(Error::NoSuch { what: "entry program", name: name.to_owned() })
        })
    }

    /// Type and attach type: as the section says, unless the caller of the loader has set another.
    fn type_of(&self, program: &ObjectProgram) -> (ProgramType, AttachType) {
        self.types.get(&program.func).copied().unwrap_or_else(|| {
            let SectionKind { program_type, attach_type, .. } = &program.kind;
            (ProgramType(program_type.0), AttachType(attach_type.map_or(0, |a| a.0)))
        })
    }

    fn target(&self, program: &ObjectProgram) -> Result<Option<TypeId>, ProgramError> {
        if self.types.contains_key(&program.func) {
            return Ok(None);
        }
        if let Some(known) = self.targets.borrow().get(&program.func) {
            return Ok(*known);
        }
        let found = attach::target(&program.kind, &program.section)?;
        self.targets.borrow_mut().insert(program.func, found);
        Ok(found)
    }

    /// Puts programs into the program arrays that the object initialises with them.
    ///
    /// # Errors
    /// If the kernel refuses one. Programs that are not among `loaded` are left out.
    pub fn fill_program_arrays(&self, loaded: &[(FuncId, kernel::KernelProgram)]) -> Result<(), Error> {
        for (map, made) in self.object.maps.iter().zip(&self.maps) {
            let Some(made) = made else { continue };
            for (slot, value) in &map.initial {
                let InitialValue::Program(func) = value else { continue };
                if let Some((_, program)) = loaded.iter().find(|(f, _)| f == func) {
                    made.update_fd(&slot.to_ne_bytes(), program.as_fd())?;
                }
            }
        }
        Ok(())
    }
}

/// `struct bpf_func_info` and `struct bpf_line_info`, end to end.
fn records(linked: &LinkedProgram) -> (Vec<u8>, Vec<u8>) {
    let words = |out: &mut Vec<u8>, words: &[u32]| words.iter().for_each(|w| out.extend(w.to_ne_bytes()));
    let mut func_info = Vec::with_capacity(8 * linked.func_info.len());
    for (insn, type_id) in &linked.func_info {
        words(&mut func_info, &[*insn, type_id.0]);
    }
    let mut line_info = Vec::with_capacity(16 * linked.line_info.len());
    for l in &linked.line_info {
        // The kernel keeps 22 bits of the line and 10 of the column.
        let place = l.line << 10 | l.column.min(1023);
        words(&mut line_info, &[l.insn, l.file.0, l.text.0, place]);
    }
    (func_info, line_info)
}
