//! Coverage of a program by the frames: its basic blocks, as the interpreter runs them.

use std::collections::BTreeSet;

use millstream_interp::MachineState;
use millstream_isa::{Callee, Insn, decode_all};
use millstream_object::Object;
use millstream_programs::MapEntry;

use crate::interpreted::InterpretedProgram;
use crate::variant::walked;

/// A program for the interpreter, and how often its slots have been executed.
pub(crate) struct Coverage<'a> {
    program: InterpretedProgram<'a>,
    /// The first slot of every block that can be reached: the entry leads to it, and the kernel's verifier
    /// came by.
    blocks: BTreeSet<usize>,
    visits: Vec<u64>,
}

impl<'a> Coverage<'a> {
    pub(crate) fn new(object: &'a Object, function: &str) -> Self {
        let program = InterpretedProgram::new(object, function);
        let insns = decode_all(&program.linked.insns).expect("valid");
        let visits = vec![0; program.linked.insns.len()];
        let possible = walked(object, function);
        let blocks = blocks(&insns).into_iter().filter(|slot| possible.contains(slot)).collect();
        Coverage { program, blocks, visits }
    }

    /// A machine with the object's maps, filled with these entries, that counts executed instructions.
    pub(crate) fn machine(&mut self, entries: &[MapEntry]) -> MachineState {
        let mut machine = self.program.machine(entries);
        machine.visits = std::mem::take(&mut self.visits);
        machine
    }

    pub(crate) fn apply(&self, machine: &mut MachineState, entries: &[MapEntry]) {
        self.program.apply(machine, entries);
    }

    pub(crate) fn set_clock(&self, machine: &mut MachineState, now: u64) {
        self.program.set_clock(machine, now);
    }

    /// The verdict, and the frame as the program left it.
    pub(crate) fn run(&self, machine: &mut MachineState, frame: &[u8]) -> (u32, Vec<u8>) {
        self.program.run(machine, frame)
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
        let line = self.program.linked.line_info.iter().take_while(|l| l.insn as usize <= slot).last();
        let file = line.and_then(|l| Some((self.program.object.btf.as_ref()?.str(l.file), l.line)));
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
