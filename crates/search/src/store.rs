//! Results by canonical form, so that the same window elsewhere is free.
//!
//! The canonical form of a window gives registers new names in the order in which they appear, counts offsets
//! in the frame from the window's own lowest place, and keeps only the facts and live values about registers
//! that appear. A replacement from the store is checked like any candidate, including the proof: a wrong
//! entry costs time and nothing else.

use std::collections::BTreeMap;

use millstream_isa::{Insn, Reg};
use millstream_prove::window::{AddressSpace, EntryFact, WindowStep};
use rustc_hash::FxHashMap;

use crate::verifier_rules::{named, written};
use crate::window::InsnWindow;

/// A window up to names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CanonicalWindow(String);

/// The names of a window's registers in its form, and the distance by which its frame is moved.
#[derive(Clone, Debug)]
pub(crate) struct RegisterRenaming {
    to: [Option<Reg>; 11],
    frame: i16,
}

/// Result for a form: a better sequence, or none, and the effort of the search.
#[derive(Clone, Debug)]
pub(crate) struct WindowResult {
    pub(crate) better: Option<Vec<WindowStep>>,
    pub(crate) effort: u8,
}

/// The store, with counts of its look-ups and hits.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResultStore {
    forms: FxHashMap<CanonicalWindow, WindowResult>,
    pub(crate) asked: u64,
    pub(crate) hits: u64,
}

impl ResultStore {
    /// Result for a form, if it was searched with at least this effort.
    pub(crate) fn get(&mut self, form: &CanonicalWindow, effort: u8) -> Option<WindowResult> {
        self.asked += 1;
        let entry = self.forms.get(form).filter(|e| e.better.is_some() || e.effort >= effort).cloned();
        self.hits += u64::from(entry.is_some());
        entry
    }

    /// Stores a result.
    pub(crate) fn put(&mut self, form: CanonicalWindow, entry: WindowResult) {
        let old = self.forms.get(&form);
        if old.is_none_or(|o| entry.better.is_some() || o.better.is_none() && o.effort < entry.effort) {
            self.forms.insert(form, entry);
        }
    }
}

impl RegisterRenaming {
    /// The form of a window.
    pub(crate) fn of(window: &InsnWindow) -> (CanonicalWindow, RegisterRenaming) {
        let mut order: Vec<Reg> = Vec::new();
        for insn in window.insns() {
            for r in named(insn).into_iter().chain(written(insn)) {
                if !order.contains(&r) {
                    order.push(r);
                }
            }
        }
        let mut naming = RegisterRenaming { to: [None; 11], frame: 0 };
        naming.to[10] = Some(Reg::R10);
        let mut next = 0;
        for r in order.iter().filter(|r| **r != Reg::R10) {
            naming.to[r.index()] = Reg::new(next);
            next += 1;
        }
        // Spare registers get the names after these.
        for n in 0..10 {
            if naming.to[n].is_none() {
                naming.to[n] = Reg::new(next);
                next += 1;
            }
        }
        let touched = window.accesses.iter().filter(|t| t.0 == AddressSpace::Stack).flat_map(|t| &t.2);
        let low = touched.min().copied().unwrap_or(-8);
        naming.frame = (-low.div_euclid(8) * 8) as i16;
        let form = naming.text(window, &order);
        (CanonicalWindow(form), naming)
    }

    fn text(&self, window: &InsnWindow, order: &[Reg]) -> String {
        use std::fmt::Write as _;
        let mut out = String::new();
        for step in &window.steps {
            let _ = write!(out, "{:?};", self.rename(*step, true));
        }
        let mut names: BTreeMap<u32, usize> = BTreeMap::new();
        for r in order {
            let known = match window.place.entry.regs[r.index()] {
                EntryFact::Nothing => "-".to_owned(),
                EntryFact::Number(s, n) => {
                    let next = names.len();
                    format!("{:?}#{}", s, names.entry(n).or_insert(next))
                }
                EntryFact::Address(AddressSpace::Stack, _, at) => {
                    format!("f{}", at + i64::from(self.frame) * i64::from(*r != Reg::R10))
                }
                EntryFact::Address(s, n, at) => {
                    let next = names.len();
                    format!("{s:?}{at}#{}", names.entry(n).or_insert(next))
                }
                EntryFact::Value(n) => {
                    let next = names.len();
                    format!("v#{}", names.entry(n).or_insert(next))
                }
            };
            let _ = write!(out, "{}={known}:", self.name(*r).number());
            for live in window.live_outs() {
                let _ = write!(out, "{:x},", live.regs[r.index()]);
            }
        }
        for live in window.live_outs() {
            let _ = write!(out, "|");
            live.stack.iter().for_each(|at| {
                let _ = write!(out, "{},", at + self.frame);
            });
        }
        let _ = write!(
            out,
            "|{:?}",
            window.place.entry.bytes.iter().map(|(a, b)| (a + self.frame, b)).collect::<Vec<_>>()
        );
        let spare = (0..6).filter(|n| window.live(*n) == 0 && !order.iter().any(|r| r.index() == *n)).count();
        let saved: Vec<u8> = order.iter().filter(|r| r.index() > 5).map(|r| self.name(*r).number()).collect();
        let _ = write!(out, "|{}{saved:?}", spare.min(2));
        out
    }

    fn name(&self, r: Reg) -> Reg {
        self.to[r.index()].unwrap_or(r)
    }

    /// A step in the form's names, or converted back.
    pub(crate) fn rename(&self, step: WindowStep, to_form: bool) -> WindowStep {
        let name = |r: Reg| match to_form {
            true => self.name(r),
            false => (0..11).find(|n| self.to[*n] == Some(r)).and_then(|n| Reg::new(n as u8)).unwrap_or(r),
        };
        let by = if to_form { self.frame } else { -self.frame };
        let moved = |mut insn: Insn| {
            insn.rename(name);
            match &mut insn {
                Insn::Load { src: Reg::R10, off, .. } | Insn::Store { dst: Reg::R10, off, .. } => *off += by,
                Insn::Branch { off, .. } => *off = 0,
                _ => {}
            }
            insn
        };
        match step {
            WindowStep::Do(insn) => WindowStep::Do(moved(insn)),
            WindowStep::Exit(n, insn) => WindowStep::Exit(n, moved(insn)),
            WindowStep::Opaque(n, insn) => WindowStep::Opaque(n, moved(insn)),
        }
    }
}
