//! From an object to loadable variants of one of its programs.
//!
//! The object is given two maps more, the guard's state and the profile's sketch, then lifted and prepared once. Each
//! variant is a clone of that module, transformed, cleaned up, lowered and put into a clone of the object. Everything
//! else of the object stays as clang made it.

use std::time::{Duration, Instant};

use cranelift_entity::EntityRef;
use millstream_bpf::lift::LiftError;
use millstream_bpf::lower::{self, LowerError, Strategy};
use millstream_bpf::module::{self, Lifted, lift_object, new_function};
use millstream_ir as ir;
use millstream_object::{self as obj, FuncId, LinkedProgram, MapId, MapOrigin, Object, ObjectError};
use millstream_passes::{PassError, Session, Target};

use crate::guard;
use crate::transform::{self, Contents, Plan, Report, Site, SiteId, Sketch, TransformError};

/// Slots of the sketch for each site.
const SLOTS: u32 = 512;
/// `bpf_ktime_get_ns`.
const KTIME: i32 = 5;
const GUARD_NAME: &str = "ms.guard";
const SKETCH_NAME: &str = "ms.sketch";

/// Why a variant cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// The object has no such program, or several and none was named.
    #[error("{0}")]
    Program(String),
    /// The program is no valid bytecode.
    #[error(transparent)]
    Lift(#[from] LiftError),
    /// A pass has made the IR invalid.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The transform could not do what was planned.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// The result is no BPF.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The result does not fit the object.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// A variant that can be loaded.
#[derive(Debug)]
pub struct Variant {
    /// The program.
    pub linked: LinkedProgram,
    /// What was done.
    pub report: Report,
    /// How long it took.
    pub time: Duration,
}

/// Makes variants of one program.
#[derive(Debug)]
pub struct Compiler {
    object: Object,
    program: FuncId,
    prepared: Lifted,
    usage: ir::usage::Usage,
    sites: Vec<Site>,
    guard: MapId,
    sketch: MapId,
    isa: u8,
}

impl Compiler {
    /// Prepares a program: the one named, or the only one.
    ///
    /// # Errors
    /// If there is no such program, or it cannot be lifted.
    pub fn new(object: &Object, program: Option<&str>) -> Result<Compiler, VariantError> {
        let mut object = object.clone();
        let program = choose(&object, program)?;
        let isa = millstream_opt::isa_version(&object).max(3);
        let guard = add_map(&mut object, GUARD_NAME, obj::MapType::ARRAY, guard::STATE_SIZE, 1, MMAPABLE);
        let sketch = add_map(&mut object, SKETCH_NAME, obj::MapType::PERCPU_ARRAY, 8, 1, 0);
        let mut prepared = lift_object(&object)?;
        let usage = ir::usage::Usage::new(&prepared.module);
        let mut session = Session::new(Target::bpf(isa));
        transform::prepare(&mut prepared.module, &mut session)?;
        let sites = transform::sites(&prepared.module, module::func(program));
        let widest = sites.iter().map(|s| s.key_size).max().unwrap_or(0);
        let (size, entries) = (Sketch::value_size(widest), SLOTS * (sites.len() as u32).max(1));
        let spec = &mut object.maps[sketch.index()].spec;
        (spec.value_size, spec.max_entries) = (size, entries);
        let decl = &mut prepared.module.maps[module::map(sketch)];
        (decl.value_size, decl.max_entries) = (size, entries);
        Ok(Compiler { object, program, prepared, usage, sites, guard, sketch, isa })
    }

    /// The object with the two maps more.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The program.
    pub fn program(&self) -> FuncId {
        self.program
    }

    /// The name of the map that the guard's state takes the place of.
    pub fn guard_name(&self) -> &str {
        &self.object.maps[self.guard.index()].name
    }

    /// Whether a map is one of the two that were added: they belong to one session only.
    pub fn is_own(&self, map: MapId) -> bool {
        map == self.guard || map == self.sketch
    }

    /// The map of the profile.
    pub fn sketch(&self) -> MapId {
        self.sketch
    }

    /// Slots of the profile for each site that is asked for.
    pub fn slots(&self) -> u32 {
        SLOTS
    }

    /// The lookups of the program.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// A map as the module declares it.
    pub fn declaration(&self, map: ir::Map) -> &ir::MapDecl {
        &self.prepared.module.maps[map]
    }

    /// How far a map is read-only to all programs of the object.
    pub fn access(&self, map: ir::Map) -> ir::usage::Access {
        self.usage.of_module(map).access(self.declaration(map))
    }

    /// A variant that writes down the keys of these lookups.
    ///
    /// # Errors
    /// [`VariantError`].
    pub fn instrumented(&self, sites: &[SiteId]) -> Result<Variant, VariantError> {
        let func = module::func(self.program);
        let sketch = Sketch { map: module::map(self.sketch), slots: SLOTS };
        self.variant(|m| transform::instrument(m, func, sites, &sketch).map(|()| Report::default()))
    }

    /// A variant in which a plan is carried out, that says when its first packet comes.
    ///
    /// # Errors
    /// [`VariantError`].
    pub fn specialised(
        &self,
        generation: u32,
        plan: &Plan,
        contents: &dyn Contents,
    ) -> Result<Variant, VariantError> {
        let func = module::func(self.program);
        let guard = module::map(self.guard);
        self.variant(|m| {
            let report = transform::specialize(m, func, plan, contents)?;
            stamp_first_packet(&mut m.funcs[func], guard, crate::guard::first_packet(generation));
            Ok(report)
        })
    }

    /// The guard of a generation, for a plan.
    pub fn guard(&self, generation: u32) -> transform::Guard {
        transform::Guard {
            map: module::map(self.guard),
            offset: guard::TOKEN,
            version: u64::from(generation),
        }
    }

    fn variant(
        &self,
        transform: impl FnOnce(&mut ir::Module) -> Result<Report, TransformError>,
    ) -> Result<Variant, VariantError> {
        let start = Instant::now();
        let mut lifted = self.prepared.clone();
        let func = module::func(self.program);
        let report = transform(&mut lifted.module)?;
        transform::finish(&mut lifted.module, &mut Session::new(Target::bpf(self.isa)))?;
        // One strategy: trying them all takes several times as long, and the original runs meanwhile.
        let code = lower::lower_with(&lifted.module.funcs[func], Strategy::default())?;
        // The other functions stay as they are in the object.
        let mut object = self.object.clone();
        object.replace_function(self.program, new_function(&lifted, &code))?;
        let linked = object.link(self.program)?;
        Ok(Variant { linked, report, time: start.elapsed() })
    }
}

const MMAPABLE: u32 = 1 << 10;

fn choose(object: &Object, name: Option<&str>) -> Result<FuncId, VariantError> {
    let names = || object.programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, object.programs.as_slice()) {
        (Some(name), programs) => {
            let found = programs.iter().find(|p| p.name == name);
            let missing = || format!("the object has no program {name:?}; it has: {}", names());
            found.map(|p| p.func).ok_or_else(|| VariantError::Program(missing()))
        }
        (None, [only]) => Ok(only.func),
        (None, []) => Err(VariantError::Program("the object has no program".into())),
        (None, _) => Err(VariantError::Program(format!("the object has several programs: {}", names()))),
    }
}

fn add_map(
    object: &mut Object,
    name: &str,
    map_type: obj::MapType,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> MapId {
    object.maps.push(obj::Map {
        name: name.into(),
        section: ".maps".into(),
        origin: MapOrigin::Btf,
        spec: obj::MapSpec { map_type, key_size: 4, value_size, max_entries, flags, ..Default::default() },
        inner: None,
        initial: Vec::new(),
        data: None,
        variables: Vec::new(),
    });
    MapId(object.maps.len() as u32 - 1)
}

/// Writes the time to a place of the guard's state if there is none: a load and a branch that is never taken again.
fn stamp_first_packet(func: &mut ir::Function, guard: ir::Map, offset: u32) {
    use ir::{Block, BlockCall, Cond, MemFlags, Op, Prov, Size, Type, Width};
    let entry = func.entry();
    let body = std::mem::take(&mut func.blocks[entry].insts);
    let rest: Block = func.add_block();
    func.blocks[rest].insts = body;
    let stamp = func.add_block();
    // The layout decides what falls through: entry, rest, ..., stamp.
    func.layout.retain(|&b| b != rest);
    func.layout.insert(1, rest);
    let place = Op::MapValueAddr { map: guard, offset };
    let flags = MemFlags { core: None, volatile: true };
    let mut at = func.at_end(entry);
    let address = at.value(place, [], Type::Ptr(Prov::MapValue(guard)));
    let load = Op::Load { size: Size::Dw, sext: false, offset: 0, flags };
    let time = at.value(load, [address], Type::I64);
    let zero = at.iconst(0);
    let branch = Op::Branch { cond: Cond::Eq, width: Width::W64 };
    at.effect(branch, [time, zero], [BlockCall::new(stamp), BlockCall::new(rest)]);
    let mut at = func.at_end(stamp);
    let now = at.value(Op::Helper { id: KTIME }, [], Type::I64);
    at.effect(Op::Store { size: Size::Dw, offset: 0, flags }, [address, now], []);
    at.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
}

/// The object's number of a map of the module.
pub(crate) fn object_map(map: ir::Map) -> MapId {
    MapId(map.index() as u32)
}
