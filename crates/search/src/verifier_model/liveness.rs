//! Stack slots that may still be read, as far as the walk has seen reads.
//!
//! The verifier marks slots at the instructions that read them when it visits these, and propagates the marks
//! backwards whenever a path ends.
//!
//! Source: `kernel/bpf/liveness.c`, Linux 6.18.

use millstream_isa::Insn;

use super::code::WalkLine;

/// Slots that an instruction accesses, one bit each.
#[derive(Clone, Copy, Default)]
struct LineAccess {
    reads: u64,
    /// Slots that every visit overwrote; [`None`] before the first visit.
    writes: Option<u64>,
    /// Slots that may be read at the line or behind it.
    live: u64,
}

/// Slots of one function's frame.
pub(super) struct SlotLiveness {
    lines: Vec<LineAccess>,
    next: Vec<[Option<u32>; 2]>,
    previous: Vec<Vec<u32>>,
    /// Lines whose accesses changed since the last update.
    changed: Vec<u32>,
}

impl SlotLiveness {
    pub(super) fn new(lines: &[WalkLine]) -> SlotLiveness {
        let target = |line: &WalkLine| line.target.map(|t| t as u32);
        let after = |n: usize| u32::try_from(n + 1).ok().filter(|_| n + 1 < lines.len());
        let next = lines.iter().enumerate().map(|(n, line)| match line.insn {
            Insn::Exit => [None, None],
            Insn::Jump { .. } => [target(line), None],
            _ => [after(n), target(line)],
        });
        let next: Vec<[Option<u32>; 2]> = next.collect();
        let mut previous = vec![Vec::new(); lines.len()];
        for (n, to) in (0u32..).zip(&next) {
            for to in to.iter().flatten() {
                previous.get_mut(*to as usize).into_iter().for_each(|p: &mut Vec<u32>| p.push(n));
            }
        }
        SlotLiveness { lines: vec![LineAccess::default(); lines.len()], next, previous, changed: Vec::new() }
    }

    /// Marks slots that a line reads.
    pub(super) fn read(&mut self, line: usize, slots: u64) {
        let Some(access) = self.lines.get_mut(line) else { return };
        if slots & !access.reads != 0 {
            access.reads |= slots;
            self.changed.push(line as u32);
        }
    }

    /// Marks a visit of a line that overwrites slots.
    pub(super) fn visit(&mut self, line: usize, overwritten: u64) {
        let Some(access) = self.lines.get_mut(line) else { return };
        let writes = access.writes.map_or(overwritten, |w| w & overwritten);
        if access.writes.unwrap_or_default() != writes {
            self.changed.push(line as u32);
        }
        access.writes = Some(writes);
    }

    /// Propagates the marks backwards.
    pub(super) fn update(&mut self) {
        while let Some(n) = self.changed.pop() {
            let live = |to: &u32| self.lines.get(*to as usize).map_or(0, |l| l.live);
            let after = self
                .next
                .get(n as usize)
                .map_or(0, |next| next.iter().flatten().map(live).fold(0, |a, b| a | b));
            let Some(access) = self.lines.get_mut(n as usize) else { continue };
            let before = access.reads | after & !access.writes.unwrap_or_default();
            if before != access.live {
                access.live = before;
                self.changed.extend(self.previous.get(n as usize).into_iter().flatten());
            }
        }
    }

    /// Slots that may be read at a line or behind it.
    pub(super) fn before(&self, line: usize) -> u64 {
        self.lines.get(line).map_or(0, |l| l.live)
    }
}
