//! Instructions of the machine code that a packet executes: counted in the JIT's own image.
//!
//! A copy of the program is loaded with one record of line information for each BPF instruction. The kernel
//! carries these records through its rewrites (inlined lookups, widened context loads, dead code) and tells
//! where in the image each begins, so that every BPF instruction has its stretch of machine code. The
//! stretches, weighted by the executions of each instruction in our interpreter, and the prologues of
//! functions add up to the instructions that a packet executes.
//!
//! Most stretches are straight. Where one branches inside (an inlined lookup that finds nothing, a division
//! by zero), the shortest and the longest way through it bound the count, with a loop inside taken once. What
//! helpers execute is code of the kernel, not of the image, and is not counted.
//!
//! Only for x86-64; elsewhere there is no count.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use millstream_isa::{Insn, RawInsn, decode_all};
use millstream_kernel::KernelProgram;
use serde::Serialize;

use crate::error::Result;

/// Ways through one stretch are followed no deeper than this; stretches are a few dozen instructions long.
const DEEPEST: usize = 4_096;

/// Machine instructions per packet, at least and at most.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct InsnRange {
    /// By the shortest way through every stretch.
    pub least: f64,
    /// By the longest.
    pub most: f64,
}

/// The fewest and the most instructions from one place to the end of its stretch.
type PathBounds = (u64, u64);

/// A program's machine code, divided by BPF instructions.
#[derive(Debug)]
pub(crate) struct JitImage {
    code: BTreeMap<u64, Instruction>,
    /// Address ranges of the functions; in memory they lie in any order.
    functions: Vec<Range<u64>>,
    /// Slot of each BPF instruction that is still there, and where its code begins.
    places: Vec<(usize, u64)>,
    starts: BTreeSet<u64>,
    /// Slots of `exit`.
    exits: BTreeSet<usize>,
}

impl JitImage {
    /// The image of a program that was loaded from `slots` with the slot number as each instruction's line.
    /// `None` if the kernel does not show it, or it is not of x86-64.
    pub(crate) fn read(program: &KernelProgram, slots: &[u64]) -> Result<Option<JitImage>> {
        if !cfg!(target_arch = "x86_64") {
            return Ok(None);
        }
        let bytes = program.jited_image()?;
        let functions = program.jited_functions()?;
        let lines = program.jited_lines()?;
        let places: Vec<(usize, u64)> = lines.into_iter().map(|(line, at)| (line as usize, at)).collect();
        let len = functions.iter().map(|(_, len)| *len as usize).sum::<usize>();
        if bytes.is_empty()
            || places.is_empty()
            || len != bytes.len()
            || functions.iter().any(|(at, _)| *at == 0)
        {
            return Ok(None);
        }
        let raw: Vec<RawInsn> = slots.iter().map(|s| RawInsn::from_bytes(s.to_ne_bytes())).collect();
        let Ok(insns) = decode_all(&raw) else { return Ok(None) };
        let exits =
            insns.iter().filter(|(_, insn)| matches!(insn, Insn::Exit)).map(|(slot, _)| *slot).collect();
        Ok(Some(JitImage::new(&bytes, &functions, places, exits)))
    }

    fn new(
        bytes: &[u8],
        functions: &[(u64, u32)],
        places: Vec<(usize, u64)>,
        exits: BTreeSet<usize>,
    ) -> JitImage {
        let mut code = BTreeMap::new();
        let mut rest = bytes;
        for &(address, len) in functions {
            let (body, after) = rest.split_at(len as usize);
            rest = after;
            let decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
            code.extend(decoder.into_iter().map(|i| (i.ip(), i)));
        }
        let starts = places.iter().map(|(_, at)| *at).collect();
        let functions = functions.iter().map(|&(at, len)| at..at + u64::from(len)).collect();
        JitImage { code, functions, places, starts, exits }
    }

    /// Instructions in the image, executed or not. Padding behind the last return of a function counts, too.
    pub(crate) fn len(&self) -> usize {
        self.code.len()
    }

    /// Machine instructions executed per packet, given the executions of each slot over all `packets`.
    pub(crate) fn executed(&self, visits: &[u64], packets: usize) -> InsnRange {
        let count = |slot: usize| visits.get(slot).copied().unwrap_or(0);
        let (mut least, mut most) = (0, 0);
        let mut add = |times: u64, bounds: PathBounds| {
            least += times * bounds.0;
            most += times * bounds.1;
        };
        for (i, &(slot, at)) in self.places.iter().enumerate() {
            // Of two instructions at one place the first has no code, such as a jump to the next instruction.
            let empty = self.places.get(i + 1).is_some_and(|(_, next)| *next == at);
            if count(slot) > 0 && !empty {
                add(count(slot), self.stretch(at, self.exits.contains(&slot)));
            }
        }
        for (i, function) in self.functions.iter().enumerate() {
            // A function is entered as often as its first instruction is executed: clang begins none with a
            // loop. The kernel counts the prologue as code of that instruction where it knows of both.
            let own = self.places.iter().filter(|(_, at)| function.contains(at));
            let Some((slot, first)) = own.min_by_key(|(_, at)| *at) else { continue };
            if *first != function.start {
                add(if i == 0 { packets as u64 } else { count(*slot) }, self.stretch(function.start, false));
            }
        }
        let each = |n: u64| n as f64 / packets.max(1) as f64;
        InsnRange { least: each(least), most: each(most) }
    }

    /// The ways from here to where the code of another instruction begins; to the return, for an `exit`,
    /// which may share its code with another.
    fn stretch(&self, at: u64, is_exit: bool) -> PathBounds {
        self.ways(at, is_exit, &mut BTreeMap::new(), 0)
    }

    fn ways(
        &self,
        at: u64,
        through: bool,
        known: &mut BTreeMap<u64, Option<PathBounds>>,
        depth: usize,
    ) -> PathBounds {
        let is_end = !through && depth > 0 && self.starts.contains(&at);
        let Some(insn) = self.code.get(&at).filter(|_| !is_end && depth < DEEPEST) else { return (0, 0) };
        match known.get(&at) {
            Some(Some(bounds)) => return *bounds,
            // On the way already: a loop.
            Some(None) => return (0, 0),
            None => {}
        }
        known.insert(at, None);
        let mut on = |to: u64| self.ways(to, through, known, depth + 1);
        let rest = match insn.flow_control() {
            FlowControl::Return
            | FlowControl::IndirectBranch
            | FlowControl::Interrupt
            | FlowControl::Exception => (0, 0),
            FlowControl::UnconditionalBranch => on(insn.near_branch_target()),
            FlowControl::ConditionalBranch => {
                let (next, taken) = (on(insn.next_ip()), on(insn.near_branch_target()));
                (next.0.min(taken.0), next.1.max(taken.1))
            }
            _ => on(insn.next_ip()),
        };
        let bounds = (rest.0 + 1, rest.1 + 1);
        known.insert(at, Some(bounds));
        bounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0xffff_ffff_c000_1000;

    /// An image of these bytes, divided at these offsets: slot, offset.
    fn image(bytes: &[u8], places: &[(usize, u64)], exits: &[usize]) -> JitImage {
        let places = places.iter().map(|(slot, offset)| (*slot, AT + offset)).collect();
        JitImage::new(bytes, &[(AT, bytes.len() as u32)], places, exits.iter().copied().collect())
    }

    #[test]
    fn straight_code_is_counted_by_visits() {
        // push rbp; mov rbp, rsp | mov eax, 1; add rax, rdi | leave; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0xb8, 1, 0, 0, 0, 0x48, 0x01, 0xf8, 0xc9, 0xc3];
        let image = image(&code, &[(0, 4), (1, 12)], &[1]);
        assert_eq!(image.len(), 6);
        assert_eq!(image.executed(&[2, 2], 2), InsnRange { least: 6.0, most: 6.0 });
        assert_eq!(
            image.executed(&[20, 2], 2),
            InsnRange { least: 24.0, most: 24.0 },
            "a loop of the program"
        );
    }

    #[test]
    fn a_prologue_is_counted_once() {
        let code = [0x55, 0x48, 0x89, 0xe5, 0xb8, 1, 0, 0, 0, 0xc9, 0xc3];
        let image = image(&code, &[(0, 0), (1, 9)], &[1]);
        assert_eq!(image.executed(&[3, 3], 3), InsnRange { least: 5.0, most: 5.0 });
    }

    /// The second function lies before the first in memory, and is not called.
    #[test]
    fn prologues_of_functions_that_are_not_called_do_not_count() {
        // push rbp; mov rbp, rsp | mov eax, 1; leave; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0xb8, 1, 0, 0, 0, 0xc9, 0xc3];
        let both = [code, code].concat();
        let len = code.len() as u32;
        let places = vec![(0, AT + 0x104), (1, AT + 0x109), (2, AT + 4), (3, AT + 9)];
        let image = JitImage::new(&both, &[(AT + 0x100, len), (AT, len)], places, [1, 3].into());
        assert_eq!(image.executed(&[1, 1, 0, 0], 1), InsnRange { least: 5.0, most: 5.0 });
    }

    #[test]
    fn a_branch_inside_an_instruction_gives_bounds() {
        // nop | test rax, rax; je +3; add rax, 8 | ret
        let code = [0x90, 0x48, 0x85, 0xc0, 0x74, 0x04, 0x48, 0x83, 0xc0, 0x08, 0xc3];
        let image = image(&code, &[(0, 1), (1, 10)], &[1]);
        assert_eq!(image.executed(&[1, 1], 1), InsnRange { least: 4.0, most: 5.0 });
    }

    #[test]
    fn a_second_exit_shares_the_first_ones_code_and_a_jump_to_the_next_has_none() {
        // nop | leave; ret | (nothing) | jmp to leave
        let code = [0x90, 0xc9, 0xc3, 0xeb, 0xfc];
        let image = image(&code, &[(0, 1), (1, 3), (2, 3)], &[0, 2]);
        assert_eq!(image.executed(&[0, 1, 1], 1), InsnRange { least: 4.0, most: 4.0 });
    }
}
