//! A program in the interpreter, with the maps of its object and a clock that the test sets.

use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind, MachineState, MapConfig, MapId, MapKind};
use millstream_isa::Pseudo;
use millstream_object::{LinkedProgram, Object, RelocKind};
use millstream_programs::MapEntry;

use crate::variant::with_clock;

/// A program of an object for the interpreter.
pub(crate) struct InterpretedProgram<'a> {
    pub(crate) object: &'a Object,
    pub(crate) linked: LinkedProgram,
    program: DecodedProgram,
    clock: MapId,
}

impl<'a> InterpretedProgram<'a> {
    pub(crate) fn new(object: &'a Object, function: &str) -> Self {
        let (mut linked, clock_at) = with_clock(object, function);
        // Relocated constants are marked with their final kind.
        for reloc in &linked.relocs {
            linked.insns[reloc.insn as usize].src = match reloc.kind {
                RelocKind::Map(_) => 1,
                RelocKind::MapValue { .. } => 2,
                _ => panic!("no data plane has a {reloc:?}"),
            };
        }
        let mut program = DecodedProgram::new(&linked.insns).expect("valid");
        let clock = MapId(object.maps.len() as u32);
        program.link(|slot, _: Pseudo, _| {
            if Some(slot) == clock_at {
                return Some(MachineState::value_address_of(clock, 0));
            }
            let reloc = linked.relocs.iter().find(|r| r.insn as usize == slot)?;
            match reloc.kind {
                RelocKind::Map(map) => Some(MachineState::map_address(MapId(map.0))),
                RelocKind::MapValue { map, offset } => {
                    Some(MachineState::value_address_of(MapId(map.0), offset))
                }
                _ => None,
            }
        });
        InterpretedProgram { object, linked, program, clock }
    }

    /// A machine of the object's byte order with the object's maps, filled with these entries.
    pub(crate) fn machine(&self, entries: &[MapEntry]) -> MachineState {
        let mut machine = MachineState::new(ContextKind::Xdp).with_byte_order(self.object.byte_order());
        machine.env.cpus = 1;
        for map in &self.object.maps {
            let s = &map.spec;
            let kind = MapKind::from_number(s.map_type.0).expect("a kind that is modelled");
            let spec = MapConfig {
                kind,
                key_size: s.key_size,
                value_size: s.value_size,
                max_entries: s.max_entries,
                flags: s.flags,
            };
            machine.maps.add(spec, 1).expect("room");
        }
        let clock = MapConfig { kind: MapKind::Array, key_size: 4, value_size: 8, max_entries: 1, flags: 0 };
        machine.maps.add(clock, 1).expect("room");
        for (i, map) in self.object.maps.iter().enumerate() {
            if let Some(data) = &map.data {
                machine.maps.set(MapId(i as u32), &[0; 4], data, 0).expect("global data");
            }
        }
        self.apply(&mut machine, entries);
        machine.set_context_field(12, crate::variant::INGRESS);
        machine
    }

    pub(crate) fn apply(&self, machine: &mut MachineState, entries: &[MapEntry]) {
        for entry in entries {
            let map = self.object.maps.iter().position(|m| m.name == entry.map).expect("the object's map");
            machine.maps.set(MapId(map as u32), &entry.key, &entry.value, 0).expect("written");
        }
    }

    pub(crate) fn set_clock(&self, machine: &mut MachineState, now: u64) {
        let now = self.object.byte_order().bytes_of_u64(now);
        machine.maps.set(self.clock, &[0; 4], &now, 0).expect("the clock's only entry");
    }

    /// The verdict, and the frame as the program left it.
    pub(crate) fn run(&self, machine: &mut MachineState, frame: &[u8]) -> (u32, Vec<u8>) {
        machine.reset(frame);
        let programs = std::slice::from_ref(&self.program);
        let verdict = BytecodeInterpreter::new(programs).run_context(machine, 0).expect("no fault");
        (verdict as u32, machine.packet.bytes().to_vec())
    }
}
