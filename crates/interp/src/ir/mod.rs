//! Runs functions of the IR on a [`MachineState`].
//!
//! Memory, maps and helpers are the machine's, arithmetic is [`millstream_isa::semantics`], so that a
//! function and the bytecode it was lifted from, or was lowered to, can be compared on equal machines.
//!
//! Behaviour that BPF leaves open is fixed here so that runs can be repeated: undefined words are a constant
//! that no program would use on purpose, stack objects and bytes of keys and values that no piece covers are
//! zero.

mod packets;
mod run;
mod table;

use millstream_ir::{Block, Extern, Func, Inst, Linkage, Map, Module};
use rustc_hash::FxHashMap;

use crate::{Fault, MachineState, MapConfig, MapId, MapKind};
use run::IrRun;

pub use table::match_table;

/// Runs the functions of a module that has been linked to a machine's maps.
#[derive(Clone, Debug)]
pub struct IrInterpreter<'m> {
    module: &'m Module,
    maps: FxHashMap<Map, MapId>,
    programs: Vec<Func>,
    /// Addresses and values of variables, BTF ids of kernel functions, by symbol.
    pub externs: FxHashMap<Extern, i64>,
}

/// A fault with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{func}: {block}: `{text}`: {fault}")]
pub struct IrError {
    /// Name of the function.
    pub func: String,
    /// The block.
    pub block: Block,
    /// The instruction.
    pub inst: Inst,
    /// The instruction's text.
    pub text: String,
    /// The fault.
    pub fault: Fault,
}

impl<'m> IrInterpreter<'m> {
    /// Adds the module's maps to the machine, empty, and links the module to them. A map of a type that is
    /// not modelled is left out: using it is a [`Fault::MapKind`].
    pub fn new(module: &'m Module, machine: &mut MachineState) -> IrInterpreter<'m> {
        let mut maps = FxHashMap::default();
        for (map, decl) in &module.maps {
            let Some(kind) = MapKind::from_number(decl.kind) else { continue };
            let spec = MapConfig {
                kind,
                key_size: decl.key_size,
                value_size: decl.value_size,
                max_entries: decl.max_entries,
                flags: decl.flags,
            };
            let cpus = machine.env.cpus;
            if let Ok(id) = machine.maps.add(spec, cpus) {
                maps.insert(map, id);
            }
        }
        IrInterpreter::with_maps(module, maps)
    }

    /// Links a module to maps that a machine already has.
    pub fn with_maps(module: &'m Module, maps: FxHashMap<Map, MapId>) -> IrInterpreter<'m> {
        let is_program = |f: &&Func| matches!(module.funcs[**f].linkage, Linkage::Program { .. });
        let all: Vec<Func> = module.funcs.keys().collect();
        let programs = all.iter().filter(is_program).copied().collect();
        IrInterpreter { module, maps, programs, externs: FxHashMap::default() }
    }

    /// The machine's map for a map of the module.
    pub fn map(&self, map: Map) -> Option<MapId> {
        self.maps.get(&map).copied()
    }

    /// The functions that values of program arrays stand for, by index: the module's programs in order.
    pub fn programs(&self) -> &[Func] {
        &self.programs
    }

    /// Runs a function and gives its result; 0 if it has none.
    ///
    /// # Errors
    /// The fault and where it happened.
    pub fn run(&self, machine: &mut MachineState, func: Func, args: &[u64]) -> Result<u64, IrError> {
        machine.tail_calls = 0;
        let mut run = IrRun::new(self, machine, func);
        run.function(machine, func, args).map_err(|fault| self.located(&run, fault))
    }

    /// Runs a function on the machine's context.
    ///
    /// # Errors
    /// The fault and where it happened.
    pub fn run_context(&self, machine: &mut MachineState, func: Func) -> Result<u64, IrError> {
        let context = machine.context_address();
        self.run(machine, func, &[context])
    }

    fn located(&self, run: &IrRun<'_>, fault: Fault) -> IrError {
        let (func, block, inst) = run.place();
        let func = &self.module.funcs[func];
        let text = match func.insts.is_valid(inst) {
            true => millstream_ir::text::print_inst(func, inst),
            false => String::new(),
        };
        IrError { func: func.name.clone(), block, inst, text, fault }
    }

    fn linked_map(&self, map: Map) -> Result<MapId, Fault> {
        let kind = self.module.maps.get(map).map_or(0, |decl| decl.kind);
        self.map(map).ok_or(Fault::MapKind(kind))
    }
}
