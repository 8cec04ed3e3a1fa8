//! Coverage of a program by the frames: its basic blocks, as the interpreter runs them.

use std::collections::BTreeSet;

use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram};
use millstream_interp::{ContextKind, MachineState, MapConfig, MapId, MapKind};
use millstream_isa::{Callee, Insn, Pseudo, decode_all};
use millstream_object::{LineInfo, Object, RelocKind};
use millstream_programs::MapEntry;

use crate::variant::{walked, with_clock};

/// A program for the interpreter, and how often its slots have been executed.
pub(crate) struct Coverage<'a> {
    object: &'a Object,
    program: DecodedProgram,
    /// The first slot of every block that can be reached: the entry leads to it, and the kernel's verifier
    /// came by.
    blocks: BTreeSet<usize>,
    visits: Vec<u64>,
    lines: Vec<LineInfo>,
    clock: MapId,
}

impl<'a> Coverage<'a> {
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
        let insns = decode_all(&linked.insns).expect("valid");
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
        let visits = vec![0; linked.insns.len()];
        let possible = walked(object, function);
        let blocks = blocks(&insns).into_iter().filter(|slot| possible.contains(slot)).collect();
        Coverage { object, program, blocks, visits, lines: linked.line_info, clock }
    }

    /// A machine with the object's maps, filled with these entries, that counts executed instructions.
    pub(crate) fn machine(&mut self, entries: &[MapEntry]) -> MachineState {
        let mut machine = MachineState::new(ContextKind::Xdp);
        machine.env.cpus = 1;
        machine.visits = std::mem::take(&mut self.visits);
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
        machine.maps.set(self.clock, &[0; 4], &now.to_ne_bytes(), 0).expect("the clock's only entry");
    }

    /// The verdict, and the frame as the program left it.
    pub(crate) fn run(&self, machine: &mut MachineState, frame: &[u8]) -> (u32, Vec<u8>) {
        machine.reset(frame);
        let programs = std::slice::from_ref(&self.program);
        let verdict = BytecodeInterpreter::new(programs).run_context(machine, 0).expect("no fault");
        (verdict as u32, machine.packet.bytes().to_vec())
    }

    /// Takes the counts back from a machine that is done.
    pub(crate) fn collect(&mut self, machine: MachineState) {
        self.visits = machine.visits;
    }

    /// Blocks reached and blocks there are; where in the source those begin that were not reached.
    pub(crate) fn reached(&self) -> (usize, usize, Vec<String>) {
        let missed: Vec<usize> = self.blocks.iter().copied().filter(|&slot| self.visits[slot] == 0).collect();
        let places = missed.iter().map(|&slot| self.place(slot)).collect();
        (self.blocks.len() - missed.len(), self.blocks.len(), places)
    }

    /// Slot, and line of the source.
    fn place(&self, slot: usize) -> String {
        let line = self.lines.iter().take_while(|l| l.insn as usize <= slot).last();
        let file = line.and_then(|l| Some((self.object.btf.as_ref()?.str(l.file), l.line)));
        let (file, line) = file.unwrap_or(("?", 0));
        format!("{slot} ({}:{line})", file.rsplit('/').next().unwrap_or(file))
    }
}

/// The first slots of the blocks that can be reached from slot 0 along jumps and calls.
fn blocks(insns: &[(usize, Insn)]) -> BTreeSet<usize> {
    let index = |slot: usize| insns.binary_search_by_key(&slot, |(at, _)| *at).expect("an instruction");
    let mut starts = BTreeSet::new();
    let mut open = vec![0];
    let mut seen = BTreeSet::new();
    while let Some(start) = open.pop() {
        starts.insert(start);
        let mut slot = start;
        while seen.insert(slot) {
            let (_, insn) = insns[index(slot)];
            let next = slot + insn.slots();
            let target = |off: i64| (next as i64 + off) as usize;
            match insn {
                Insn::Jump { off, .. } => open.push(target(i64::from(off))),
                Insn::Branch { off, .. } | Insn::MayGoto { off } => {
                    open.extend([next, target(i64::from(off))]);
                }
                Insn::Call(Callee::Local(off)) => open.push(target(i64::from(off))),
                _ => {}
            }
            if matches!(insn, Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Exit) {
                break;
            }
            slot = next;
        }
    }
    starts
}
