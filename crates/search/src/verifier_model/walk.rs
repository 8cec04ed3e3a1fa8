//! The walk over all paths, with the states that end them early.

use std::collections::BTreeSet;
use std::rc::Rc;

use millstream_isa::absint::Scalar;
use millstream_isa::generation::VerifierGeneration;
use millstream_isa::helpers::{HelperEffects, id as helper_id};
use millstream_isa::{Callee, Insn, Reg};
use millstream_object::{FuncId, Object, ProgramType, RelocKind};
use rustc_hash::FxHashMap;

use super::branch;
use super::calls::call;
use super::code::{SCRATCH, WalkLine, WalkedFunction, helper_of, is_static};
use super::frame::{StackSlot, VerifierFrame, is_slot_covered};
use super::liveness::SlotLiveness;
use super::precision::{FRAMES, FrameCrossing, HistoryStep, PrecisionNeeds};
use super::register::{PointerTarget, StateComparison, VerifierPointer, VerifierRegister, is_within};
use super::rules::WalkRules;
use super::step::{NameSource, ProgramFacts, StepEffect, step};

/// Jumps and instructions after which a state is kept, outside of loops and in them.
const SPACING: [(u64, u64); 2] = [(2, 8), (20, 100)];
/// Steps that are remembered between two kept states.
const MOST_RECORDS: u32 = 40;
/// Instructions beyond which the rounds of an iterator make an estimate uncertain: where its states become equal
/// is modelled only roughly.
const MOST_WITH_ITERATORS: u64 = 1_000;
/// Paths that wait at most (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`): the verifier rejects a program with more.
const MOST_PENDING: usize = 8_192;
/// Misses, for each hit, after which a kept state is given up.
const MISSES: u32 = 3;

/// A path, and the last state that was kept on it.
#[derive(Clone)]
struct VerifierPath {
    frames: Vec<VerifierFrame>,
    parent: Option<usize>,
    history: Vec<HistoryStep>,
    /// Steps that the verifier remembers, and true if the present one is among them.
    records: u32,
    recorded: bool,
}

/// A kept state.
struct KeptState {
    frames: Vec<VerifierFrame>,
    parent: Option<usize>,
    /// Steps since the parent.
    history: Vec<HistoryStep>,
    /// Unfinished paths from it.
    branches: u32,
    /// All of its numbers and those of its parents count.
    precise: bool,
    hits: u32,
    misses: u32,
}

/// Location of a kept state: the functions on the path and the lines in them.
type PrunePoint = Vec<(u32, usize)>;

/// Place in a state that kept an older state from covering a newer one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum StateDifference {
    /// A register.
    Register(u8),
    /// A slot of eight bytes, from the frame's upper end.
    Slot(u8),
}

/// Walks one program.
pub(super) struct ModelWalker<'a> {
    facts: ProgramFacts<'a>,
    functions: FxHashMap<u32, Option<Rc<WalkedFunction>>>,
    /// Stack slots that may still be read, by function.
    slots: FxHashMap<u32, SlotLiveness>,
    /// Functions that are verified by themselves.
    pub(super) apart: BTreeSet<u32>,
    kept: Vec<KeptState>,
    at: FxHashMap<PrunePoint, Vec<usize>>,
    pending: Vec<VerifierPath>,
    pub(super) instructions: u64,
    jumps: u64,
    /// Numbers of instructions and jumps when the last state was kept.
    last: (u64, u64),
    names: NameSource,
    uncertain: bool,
    /// True if the program walks over an iterator.
    iterates: bool,
    /// The walk ends where it meets what it does not model.
    pub(super) must_be_certain: bool,
    /// Comparisons that failed, by function, line and place.
    pub(super) misses: FxHashMap<(u32, usize, StateDifference), u64>,
    most: u64,
}

impl<'a> ModelWalker<'a> {
    pub(super) fn new(
        object: &'a Object,
        program: FuncId,
        generation: VerifierGeneration,
        most: u64,
    ) -> ModelWalker<'a> {
        let section = object.programs.iter().find(|p| p.func == program).map(|p| &p.kind);
        let kind = section.map_or(ProgramType::UNSPEC, |k| k.program_type);
        let typed = [ProgramType::TRACING, ProgramType::LSM, ProgramType::STRUCT_OPS, ProgramType::EXT];
        let facts = ProgramFacts {
            object,
            kind,
            typed_context: typed.contains(&kind) || section.is_some_and(|k| k.attach_btf),
            rules: WalkRules::of(generation),
        };
        ModelWalker {
            facts,
            functions: FxHashMap::default(),
            slots: FxHashMap::default(),
            apart: BTreeSet::new(),
            kept: Vec::new(),
            at: FxHashMap::default(),
            pending: Vec::new(),
            instructions: 0,
            jumps: 0,
            last: (0, 0),
            names: NameSource::default(),
            uncertain: false,
            iterates: false,
            must_be_certain: false,
            misses: FxHashMap::default(),
            most,
        }
    }

    /// Returns true if the walk met something that it does not model, or was not complete.
    pub(super) fn is_uncertain(&self) -> bool {
        self.uncertain || self.iterates && self.instructions > MOST_WITH_ITERATORS
    }

    /// Returns true if the walk goes no further.
    pub(super) fn has_given_up(&self) -> bool {
        self.instructions > self.most || self.must_be_certain && self.is_uncertain()
    }

    fn function(&mut self, func: u32) -> Option<Rc<WalkedFunction>> {
        if let Some(known) = self.functions.get(&func) {
            return known.clone();
        }
        let made = WalkedFunction::new(self.facts.object, func).map(Rc::new);
        self.slots.extend(made.iter().map(|f| (func, SlotLiveness::new(&f.lines))));
        self.functions.insert(func, made.clone());
        made
    }

    /// Walks a function from its entry: an entry program, or a function that is verified by itself.
    pub(super) fn walk(&mut self, func: u32, program: bool) {
        let mut frame = VerifierFrame::new(func);
        if program {
            frame.set(Reg::R1, VerifierRegister::pointer(VerifierPointer::to(PointerTarget::Context), 0));
        } else {
            SCRATCH[1..].iter().for_each(|r| frame.set(*r, VerifierRegister::number(Scalar::UNKNOWN)));
        }
        frame.set(Reg::R10, VerifierRegister::pointer(VerifierPointer::to(PointerTarget::Stack(0)), 0));
        self.kept.clear();
        self.at.clear();
        self.pending.push(VerifierPath {
            frames: vec![frame],
            parent: None,
            history: Vec::new(),
            records: 0,
            recorded: false,
        });
        while let Some(mut path) = self.pending.pop() {
            self.follow(&mut path);
            self.slots.values_mut().for_each(SlotLiveness::update);
            self.end(path.parent);
            if self.has_given_up() {
                self.uncertain = true;
                self.pending.clear();
                return;
            }
        }
    }

    /// Walks a path to its end.
    fn follow(&mut self, path: &mut VerifierPath) {
        loop {
            let Some((func, at)) = path.frames.last().map(|f| (f.func, f.line)) else { return };
            let Some(function) = self.function(func) else {
                self.uncertain = true;
                return;
            };
            let Some(line) = function.lines.get(at).copied() else {
                self.uncertain = true;
                return;
            };
            self.instructions += 1;
            if self.has_given_up() {
                return;
            }
            if line.prune && self.is_visited(path, &line) {
                return;
            }
            path.records += u32::from(line.jump_point);
            path.recorded = line.jump_point;
            let jump = matches!(
                line.insn,
                Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Call(_) | Insn::Exit
            );
            self.jumps += u64::from(jump);
            if !self.advance(path, &line, func, at) {
                return;
            }
        }
    }

    /// Takes a path over one line; false if it ends there.
    fn advance(&mut self, path: &mut VerifierPath, line: &WalkLine, func: u32, at: usize) -> bool {
        match (line.insn, line.reloc) {
            (Insn::Exit, _) => self.leave(path, func, at),
            (Insn::Jump { .. }, _) => {
                self.go(path, line.target);
                true
            }
            (Insn::Branch { .. }, _) => self.branch(path, line, func, at),
            (Insn::MayGoto { .. }, _) => {
                self.fork(path, at + 1);
                self.go(path, line.target);
                true
            }
            (Insn::Call(_), Some(RelocKind::Call(to))) if is_static(self.facts.object, to) => {
                self.record(path, func, at, StepEffect::default(), 0, FrameCrossing::Enter);
                self.enter(path, to.0, at + 1)
            }
            (Insn::Call(_), reloc) if line.checkpoint => self.call_back(path, line, func, at, reloc),
            (Insn::Call(_), Some(RelocKind::Call(to))) => {
                self.apart.insert(to.0);
                self.plain(path, line, func, at)
            }
            _ => self.plain(path, line, func, at),
        }
    }

    fn plain(&mut self, path: &mut VerifierPath, line: &WalkLine, func: u32, at: usize) -> bool {
        let effect = match line.insn {
            Insn::Call(callee) => call(&self.facts, &mut path.frames, line, callee, &mut self.names),
            _ => step(&self.facts, &mut path.frames, line, &mut self.names),
        };
        self.mark_slots(path, func, at, &effect);
        if effect.precise != 0 || effect.precise_slot.is_some() {
            let needs = PrecisionNeeds::registers(path.frames.len() - 1, effect.precise);
            self.mark_chain(needs.and_slot(effect.precise_slot), path);
        }
        self.record(path, func, at, effect, 0, FrameCrossing::None);
        self.go(path, Some(at + 1));
        true
    }

    /// Marks the slots that an instruction read and overwrote; those of callers at their calls.
    fn mark_slots(&mut self, path: &VerifierPath, func: u32, at: usize, effect: &StepEffect) {
        let own = path.frames.len().saturating_sub(1);
        for &(frame, slots) in effect.reads.iter().filter(|(_, slots)| *slots != 0) {
            let Some(read) = path.frames.get(usize::from(frame)) else { continue };
            let line = if usize::from(frame) == own { at } else { read.line.saturating_sub(1) };
            if let Some(liveness) = self.slots.get_mut(&read.func) {
                liveness.read(line, slots);
            }
        }
        let overwritten = effect.overwritten.filter(|(frame, _)| usize::from(*frame) == own);
        if let Some(liveness) = self.slots.get_mut(&func) {
            liveness.visit(at, overwritten.map_or(0, |(_, slot)| 1 << slot));
        }
    }

    fn go(&mut self, path: &mut VerifierPath, line: Option<usize>) {
        if let Some(frame) = path.frames.last_mut() {
            frame.line = line.unwrap_or(usize::MAX);
        }
    }

    fn record(
        &mut self,
        path: &mut VerifierPath,
        func: u32,
        at: usize,
        effect: StepEffect,
        linked: u16,
        crossing: FrameCrossing,
    ) {
        let remembered = effect.slot.is_some() || linked.count_ones() > 1;
        path.records += u32::from(remembered && !path.recorded);
        let frame = path.frames.len().saturating_sub(1) as u8;
        path.history.push(HistoryStep { frame, func, line: at as u32, slot: effect.slot, linked, crossing });
    }

    /// Queues the path once more, at another line.
    fn fork(&mut self, path: &VerifierPath, line: usize) {
        let mut frames = path.frames.clone();
        if let Some(frame) = frames.last_mut() {
            frame.line = line;
        }
        self.queue(path, frames);
    }

    fn queue(&mut self, path: &VerifierPath, frames: Vec<VerifierFrame>) {
        if let Some(kept) = path.parent.and_then(|n| self.kept.get_mut(n)) {
            kept.branches += 1;
        }
        let history = path.history.clone();
        let (parent, records, recorded) = (path.parent, path.records, path.recorded);
        self.pending.push(VerifierPath { frames, parent, history, records, recorded });
        self.check_pending();
    }

    /// Ends the walk where the verifier rejects the program for the paths that wait.
    fn check_pending(&mut self) {
        if self.pending.len() > MOST_PENDING {
            self.most = 0;
        }
    }

    fn branch(&mut self, path: &mut VerifierPath, line: &WalkLine, func: u32, at: usize) -> bool {
        let sides = branch::sides(&self.facts.rules, &path.frames, &line.insn);
        if sides.precise != 0 {
            let needs = PrecisionNeeds::registers(path.frames.len() - 1, sides.precise);
            self.mark_chain(needs, path);
        }
        self.record(path, func, at, StepEffect::default(), sides.linked, FrameCrossing::None);
        match (sides.taken, sides.other) {
            (Some(mut taken), Some(other)) => {
                if let Some(frame) = taken.last_mut() {
                    frame.line = line.target.unwrap_or(usize::MAX);
                }
                self.queue(path, taken);
                path.frames = other;
                self.go(path, Some(at + 1));
            }
            (Some(taken), None) => {
                path.frames = taken;
                self.go(path, line.target);
            }
            (None, Some(other)) => {
                path.frames = other;
                self.go(path, Some(at + 1));
            }
            (None, None) => return false,
        }
        true
    }

    /// Enters a function with the caller's arguments; the caller goes on at a line.
    fn enter(&mut self, path: &mut VerifierPath, to: u32, back: usize) -> bool {
        let depth = path.frames.len();
        let Some(caller) = path.frames.last_mut().filter(|_| depth < FRAMES) else {
            self.uncertain = true;
            return false;
        };
        let mut frame = VerifierFrame::new(to);
        frame.regs[1..6].copy_from_slice(&caller.regs[1..6]);
        let own = VerifierPointer::to(PointerTarget::Stack(depth as u8));
        frame.set(Reg::R10, VerifierRegister::pointer(own, 0));
        SCRATCH.iter().for_each(|r| caller.set(*r, VerifierRegister::UNINIT));
        caller.line = back;
        path.frames.push(frame);
        true
    }

    fn leave(&mut self, path: &mut VerifierPath, func: u32, at: usize) -> bool {
        if path.frames.len() < 2 {
            if self.checks_result() {
                self.mark_chain(PrecisionNeeds::registers(0, 1), path);
            }
            return false;
        }
        self.record(path, func, at, StepEffect::default(), 0, FrameCrossing::Leave);
        let Some(done) = path.frames.pop() else { return false };
        let Some(caller) = path.frames.last_mut() else { return false };
        SCRATCH.iter().for_each(|r| caller.set(*r, VerifierRegister::UNINIT));
        let Some(arguments) = done.outer else {
            caller.set(Reg::R0, done.get(Reg::R0));
            return true;
        };
        if !self.facts.rules.repeats_callbacks {
            caller.set(Reg::R0, VerifierRegister::number(Scalar::UNKNOWN));
            return true;
        }
        // A callback: the kernel calls it again with the same arguments, or goes on.
        caller.line = caller.line.saturating_sub(1);
        caller.regs[1..6].copy_from_slice(arguments.as_slice());
        self.widen(path);
        true
    }

    /// Returns true if the result of the program must be in a range.
    fn checks_result(&self) -> bool {
        use ProgramType as P;
        let unchecked = [P::XDP, P::SCHED_CLS, P::SCHED_ACT, P::SOCKET_FILTER, P::KPROBE, P::TRACEPOINT];
        let others =
            [P::RAW_TRACEPOINT, P::PERF_EVENT, P::SK_SKB, P::SK_MSG, P::LWT_IN, P::LWT_OUT, P::LWT_XMIT];
        !unchecked.contains(&self.facts.kind) && !others.contains(&self.facts.kind)
    }

    /// A call that runs a function of the program any number of times, or a round of an iterator.
    fn call_back(
        &mut self,
        path: &mut VerifierPath,
        line: &WalkLine,
        func: u32,
        at: usize,
        reloc: Option<RelocKind>,
    ) -> bool {
        if let Some(RelocKind::Extern(_)) = reloc {
            self.iterates = true;
            // The queued path has another element; this one is done.
            self.plain(path, line, func, at);
            let element =
                VerifierRegister::pointer(VerifierPointer::to(PointerTarget::Object), self.names.next());
            let mut frames = path.frames.clone();
            if let Some(frame) = frames.last_mut() {
                frame.set(Reg::R0, element);
            }
            self.queue(path, frames);
            if let Some(frame) = path.frames.last_mut() {
                frame.set(Reg::R0, VerifierRegister::number(Scalar::constant(0)));
            }
            return true;
        }
        let Some(frame) = path.frames.last() else { return false };
        let target = |r: &VerifierRegister| match r.as_pointer().map(|p| p.target) {
            Some(PointerTarget::Function(f)) => Some(f),
            _ => None,
        };
        let Some(callback) = frame.regs[1..6].iter().find_map(target) else {
            self.uncertain = true;
            return self.plain(path, line, func, at);
        };
        let args = callback_arguments(line.insn, &frame.regs);
        let outer = std::array::from_fn(|n| frame.regs[n + 1]);
        if path.frames.len() < FRAMES {
            let mut inner = path.clone();
            self.record(&mut inner, func, at, StepEffect::default(), 0, FrameCrossing::Enter);
            self.enter(&mut inner, callback, at + 1);
            if let Some(frame) = inner.frames.last_mut() {
                frame.regs[1..6].copy_from_slice(&args);
                frame.outer = Some(Box::new(outer));
            }
            if !self.facts.rules.repeats_callbacks {
                *path = inner;
                return true;
            }
            if let Some(kept) = path.parent.and_then(|n| self.kept.get_mut(n)) {
                kept.branches += 1;
            }
            self.pending.push(inner);
            self.check_pending();
        }
        self.plain(path, line, func, at)
    }

    /// Forgets numbers that changed since the last state at this place (`widen_imprecise_scalars`).
    fn widen(&mut self, path: &mut VerifierPath) {
        let place = place_of(&path.frames);
        let mut at = path.parent;
        while let Some(n) = at {
            let Some(kept) = self.kept.get(n) else { return };
            if place_of(&kept.frames) != place {
                at = kept.parent;
                continue;
            }
            for (old, new) in kept.frames.iter().zip(&mut path.frames) {
                for (a, b) in old.regs.iter().zip(&mut new.regs) {
                    widen_number(a, b);
                }
                for (a, b) in old.stack.iter().zip(Rc::make_mut(&mut new.stack)) {
                    if let (StackSlot::Spill(a, 8, _), StackSlot::Spill(b, 8, _)) = (a, b) {
                        widen_number(a, b);
                    }
                }
            }
            return;
        }
    }

    /// Marks the numbers on which others depend as precise, back along the path.
    fn mark_chain(&mut self, mut needs: PrecisionNeeds, path: &VerifierPath) {
        self.mark_along(&mut needs, &path.history);
        let mut parent = path.parent;
        while let Some(n) = parent.filter(|_| !needs.is_empty()) {
            let Some(kept) = self.kept.get_mut(n) else { return };
            parent = kept.parent;
            if needs.all {
                if std::mem::replace(&mut kept.precise, true) {
                    return;
                }
                kept.frames.iter_mut().for_each(VerifierFrame::mark_all);
                continue;
            }
            needs.mark(&mut kept.frames);
            let history = std::mem::take(&mut kept.history);
            self.mark_along(&mut needs, &history);
            if let Some(kept) = self.kept.get_mut(n) {
                kept.history = history;
            }
        }
    }

    fn mark_along(&mut self, needs: &mut PrecisionNeeds, history: &[HistoryStep]) {
        for step in history.iter().rev() {
            if needs.is_empty() || needs.all {
                return;
            }
            if let Some(function) = self.function(step.func) {
                needs.before(&self.facts.rules, step, &function);
            }
        }
    }

    /// Returns true if a kept state covers this one; if not, this one may be kept (`is_state_visited`).
    fn is_visited(&mut self, path: &mut VerifierPath, line: &WalkLine) -> bool {
        let place = place_of(&path.frames);
        let lives: Vec<Rc<WalkedFunction>> = place.iter().filter_map(|(f, _)| self.function(*f)).collect();
        let rules = self.facts.rules;
        let checkpoint = line.checkpoint && (rules.repeats_callbacks || helper_of(line.insn).is_none());
        let force = checkpoint || rules.bounds_history && path.records > MOST_RECORDS;
        let jumps = self.jumps - self.last.1;
        let instructions = self.instructions - self.last.0;
        let mut keep = force || jumps >= SPACING[0].0 && instructions >= SPACING[0].1;
        let mut known = self.at.get_mut(&place).map(std::mem::take).unwrap_or_default();
        let mut lost = BTreeSet::new();
        let mut hit = None;
        for &n in known.iter().rev() {
            let Some(state) = self.kept.get_mut(n) else { continue };
            if state.branches > 0 {
                if checkpoint && self.covers(n, &path.frames, &lives, true).is_ok() {
                    hit = Some(n);
                    break;
                }
                if !force && jumps < SPACING[1].0 && instructions < SPACING[1].1 {
                    keep = false;
                }
            } else {
                match self.covers(n, &path.frames, &lives, false) {
                    Ok(()) => {
                        hit = Some(n);
                        break;
                    }
                    Err((depth, difference)) => {
                        let (func, line) = place[depth];
                        *self.misses.entry((func, line, difference)).or_default() += 1;
                    }
                }
            }
            let Some(state) = self.kept.get_mut(n) else { continue };
            if keep {
                state.misses += 1;
                let patience = if checkpoint && state.branches > 0 { 64 } else { MISSES };
                if state.misses > state.hits * patience + patience {
                    lost.insert(n);
                }
            }
        }
        if let Some(list) = self.at.get_mut(&place) {
            known.retain(|n| !lost.contains(n));
            *list = known;
        }
        if let Some(n) = hit {
            let Some(state) = self.kept.get_mut(n) else { return true };
            state.hits += 1;
            let needs = PrecisionNeeds::of(&state.frames);
            self.mark_chain(needs, path);
            return true;
        }
        if keep {
            self.keep(place, path);
        }
        false
    }

    fn keep(&mut self, place: PrunePoint, path: &mut VerifierPath) {
        self.last = (self.instructions, self.jumps);
        self.at.entry(place).or_default().push(self.kept.len());
        path.records = 0;
        let history = std::mem::take(&mut path.history);
        let mut frames = path.frames.clone();
        frames.iter_mut().for_each(|f| f.change(|v| v.precise, |v| v.precise = false));
        self.kept.push(KeptState {
            frames,
            parent: path.parent,
            history,
            branches: 1,
            precise: false,
            hits: 0,
            misses: 0,
        });
        path.parent = Some(self.kept.len() - 1);
    }

    /// Compares a kept state with a new one; in place of coverage, the frame and the first difference.
    fn covers(
        &self,
        kept: usize,
        new: &[VerifierFrame],
        functions: &[Rc<WalkedFunction>],
        whole: bool,
    ) -> Result<(), (usize, StateDifference)> {
        let Some(state) = self.kept.get(kept) else { return Ok(()) };
        let mut comparison = StateComparison::new(&self.facts.rules, whole);
        let innermost = new.len() - 1;
        for (depth, ((old, new), function)) in state.frames.iter().zip(new).zip(functions).enumerate() {
            let line = if depth == innermost { new.line } else { new.line.saturating_sub(1) };
            let live = function.live.get(line).copied().unwrap_or_default();
            for n in (0..10usize).filter(|n| live >> n & 1 == 1) {
                if !comparison.is_covered(&old.regs[n], &new.regs[n]) {
                    return Err((depth, StateDifference::Register(n as u8)));
                }
            }
            let slots = self.slots.get(&new.func).map_or(0, |s| s.before(line));
            for (n, slot) in old.stack.iter().enumerate().filter(|(n, _)| slots >> n & 1 == 1) {
                if !is_slot_covered(&mut comparison, slot, new.stack.get(n)) {
                    return Err((depth, StateDifference::Slot(n as u8)));
                }
            }
        }
        Ok(())
    }

    /// Ends a path that began at a kept state.
    fn end(&mut self, parent: Option<usize>) {
        let mut at = parent;
        while let Some(state) = at.and_then(|n| self.kept.get_mut(n)) {
            state.branches = state.branches.saturating_sub(1);
            if state.branches > 0 {
                return;
            }
            at = state.parent;
        }
    }
}

fn place_of(frames: &[VerifierFrame]) -> PrunePoint {
    frames.iter().map(|f| (f.func, f.line)).collect()
}

fn widen_number(old: &VerifierRegister, new: &mut VerifierRegister) {
    let changed = old.is_number() && new.is_number() && !is_within(&new.scalar(), &old.scalar());
    if changed && !old.precise {
        *new = VerifierRegister::number(Scalar::UNKNOWN);
    }
}

/// The arguments of a callback.
fn callback_arguments(insn: Insn, regs: &[VerifierRegister; 11]) -> [VerifierRegister; 5] {
    let object = || VerifierRegister::pointer(VerifierPointer::to(PointerTarget::Object), 0);
    let none = VerifierRegister::UNINIT;
    let asynchronous = helper_of(insn).is_none_or(|h| !h.effects.contains(HelperEffects::CALLBACK));
    match insn {
        Insn::Call(Callee::Helper(helper_id::LOOP)) => {
            [VerifierRegister::number(Scalar::UNKNOWN), regs[3], none, none, none]
        }
        Insn::Call(Callee::Helper(helper_id::FOR_EACH_MAP_ELEM)) => {
            let value = match regs[1].as_pointer().map(|p| p.target) {
                Some(PointerTarget::Map(m)) => {
                    VerifierRegister::pointer(VerifierPointer::to(PointerTarget::MapValue(m)), 0)
                }
                _ => object(),
            };
            [regs[1], object(), value, regs[3], none]
        }
        _ if asynchronous => [object(), object(), object(), none, none],
        _ => [object(), object(), regs[4], none, none],
    }
}
