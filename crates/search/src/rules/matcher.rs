//! Matches rules: finds those that apply to a window, and their right sides there, in one pass over the
//! window, without a search.

use millstream_isa::{Insn, Reg};
use millstream_prove::window::{AddressSpace, EntryFact, WindowStep};

use super::{
    CONSTANT, PeepholeRule, PeepholeRuleSet, RuleInsn, access, imm, insn_of, registers, with_imm, with_insn,
};
use crate::window::InsnWindow;

/// A space and the name of a base in it.
type PointerBase = (AddressSpace, u32);

/// Bindings of a rule's names.
struct PeepholeBindings<'a> {
    rule: &'a PeepholeRule,
    window: &'a InsnWindow,
    regs: [Option<Reg>; 11],
    consts: Vec<Option<u64>>,
    /// Names of values, as pairs of the rule's and the window's.
    names: Vec<(u32, u32)>,
    /// Bases: space and name in the rule and in the window, and the number of bytes by which entry registers
    /// point farther.
    bases: Vec<(PointerBase, PointerBase, i64)>,
    /// Number by which displacements are greater, by base.
    shifts: Vec<(PointerBase, i16)>,
}

impl PeepholeRuleSet {
    /// Right sides of all rules that match a window, with the rules' numbers.
    pub(crate) fn of(&self, window: &InsnWindow) -> Vec<(usize, Vec<WindowStep>)> {
        let like = self.like(&window.steps).iter();
        like.filter_map(|&n| Some((n, self.rules[n].applied(window)?))).collect()
    }
}

impl PeepholeRule {
    /// The right side, if the window is an instance of the left one.
    fn applied(&self, window: &InsnWindow) -> Option<Vec<WindowStep>> {
        let mut b = PeepholeBindings {
            rule: self,
            window,
            regs: [None; 11],
            consts: vec![None; self.consts.len()],
            names: Vec::new(),
            bases: Vec::new(),
            shifts: Vec::new(),
        };
        b.regs[10] = Some(Reg::R10);
        b.knows(10)?;
        let items = self.left.iter().zip(&window.steps);
        items.clone().try_for_each(|(item, step)| b.instruction(item, step))?;
        for n in 0..10 {
            if b.regs[n].is_some() {
                b.knows(n)?;
            }
        }
        b.others()?;
        let mut bases = BaseTracker::new(self);
        for (item, step) in items {
            b.displacement(&bases, item, step)?;
            bases.step(&insn_of(&item.step));
        }
        b.looked_at()?;
        b.right()
    }
}

impl PeepholeBindings<'_> {
    fn bind(&mut self, name: Reg, to: Reg) -> Option<()> {
        match self.regs[name.index()] {
            Some(r) => (r == to).then_some(()),
            None if self.regs.contains(&Some(to)) => None,
            None => {
                self.regs[name.index()] = Some(to);
                Some(())
            }
        }
    }

    fn constant(&mut self, n: usize, value: u64) -> Option<()> {
        match self.consts[n] {
            Some(old) => (old == value).then_some(()),
            None => {
                self.consts[n] = Some(value);
                self.rule.consts[n].contains(value).then_some(())
            }
        }
    }

    /// Binds the registers and constants of an instruction; its form is known to match.
    fn instruction(&mut self, item: &RuleInsn, step: &WindowStep) -> Option<()> {
        registers(&item.step).zip(registers(step)).try_for_each(|(name, to)| self.bind(name, to))?;
        let own = insn_of(step);
        match (item.imm, imm(&insn_of(&item.step))) {
            (Some(expr), _) => self.constant(expr.of, imm(&own)?),
            (None, literal) => (literal == imm(&own)).then_some(()),
        }
    }

    /// Checks that as much is known about a register as the rule requires.
    fn knows(&mut self, n: usize) -> Option<()> {
        let known = self.window.place.entry.regs[self.regs[n]?.index()];
        match (self.rule.regs[n], known) {
            (EntryFact::Nothing, _) => Some(()),
            (EntryFact::Number(_, id), EntryFact::Number(has, _)) if id >= CONSTANT => {
                self.constant((id - CONSTANT) as usize, has.as_constant()?)
            }
            (EntryFact::Number(wants, id), EntryFact::Number(has, own)) => {
                (has.join(&wants) == wants).then_some(())?;
                self.name(id, own)
            }
            (EntryFact::Value(_), EntryFact::Nothing) => None,
            (
                EntryFact::Value(id),
                EntryFact::Number(_, own) | EntryFact::Value(own) | EntryFact::Address(_, own, _),
            ) => self.name(id, own),
            (EntryFact::Address(s, id, at), EntryFact::Address(t, own, there)) => {
                ((s == AddressSpace::Stack) == (t == AddressSpace::Stack)).then_some(())?;
                let (one, two, by) = ((s, id), (t, own), there - at);
                for (a, b, d) in &self.bases {
                    if (*a == one) != (*b == two) || *a == one && *d != by || (a.0 == s) != (b.0 == t) {
                        return None;
                    }
                }
                self.bases.push((one, two, by));
                Some(())
            }
            _ => None,
        }
    }

    /// Binds a name of the rule to a name of the window; two different names of the rule may be bound to one.
    fn name(&mut self, id: u32, own: u32) -> Option<()> {
        self.names.iter().all(|(a, b)| *a != id || *b == own).then(|| self.names.push((id, own)))
    }

    /// Binds registers that only the right side reads: to the first that hold the required values.
    fn others(&mut self) -> Option<()> {
        for n in 0..10 {
            if self.regs[n].is_some() || self.rule.regs[n] == EntryFact::Nothing {
                continue;
            }
            let free: Vec<Reg> =
                (0..10).filter_map(Reg::new).filter(|r| !self.regs.contains(&Some(*r))).collect();
            let found = free.into_iter().find(|&r| {
                self.regs[n] = Some(r);
                let before = (self.consts.clone(), self.names.len(), self.bases.len());
                let fits = self.knows(n).is_some();
                if !fits {
                    self.consts = before.0;
                    self.names.truncate(before.1);
                    self.bases.truncate(before.2);
                }
                fits
            });
            self.regs[n] = found;
            found?;
        }
        Some(())
    }

    fn displacement(&mut self, bases: &BaseTracker, item: &RuleInsn, step: &WindowStep) -> Option<()> {
        let (Some((base, wants, _)), Some((_, has, _))) =
            (access(&insn_of(&item.step)), access(&insn_of(step)))
        else {
            return Some(());
        };
        let by = has.checked_sub(wants)?;
        let Some(base) = bases.regs[base.index()] else { return (by == 0).then_some(()) };
        if base.0 == AddressSpace::Stack && by % 8 != 0 {
            return None;
        }
        match self.shifts.iter().find(|s| s.0 == base) {
            Some((_, shift)) => (*shift == by).then_some(()),
            None => {
                self.shifts.push((base, by));
                Some(())
            }
        }
    }

    /// Checks that only values that the rule preserves are live.
    fn looked_at(&self) -> Option<()> {
        let mut looks = self.rule.looks.iter().zip(self.window.live_outs());
        let enough = |(keeps, live): (&[u64; 11], &millstream_prove::window::LiveOut)| {
            (0..10).all(|n| self.regs[n].is_none_or(|r| live.regs[r.index()] & !keeps[n] == 0))
        };
        (self.rule.looks.len() == self.window.place.exits.len() + 1 && looks.all(enough)).then_some(())
    }

    fn right(&self) -> Option<Vec<WindowStep>> {
        let mut bases = BaseTracker::new(self.rule);
        let mut out = Vec::new();
        for item in &self.rule.right {
            let plain = insn_of(&item.step);
            let mut insn = plain;
            if registers(&item.step).any(|r| self.regs[r.index()].is_none()) {
                return None;
            }
            insn.rename(|r| self.regs[r.index()].unwrap_or(r));
            if let Some(expr) = item.imm {
                insn = with_imm(insn, expr.value(&self.consts)?)?;
            }
            if let Some(base) = access(&plain).and_then(|(base, ..)| bases.regs[base.index()]) {
                let by = self.shifts.iter().find(|s| s.0 == base).map_or(0, |s| s.1);
                match &mut insn {
                    Insn::Load { off, .. } | Insn::Store { off, .. } | Insn::Atomic { off, .. } => {
                        *off = off.checked_add(by)?;
                    }
                    _ => {}
                }
            }
            bases.step(&plain);
            out.push(with_insn(item.step, insn));
        }
        Some(out)
    }
}

/// Base of each register, along one side.
struct BaseTracker {
    regs: [Option<PointerBase>; 11],
}

impl BaseTracker {
    fn new(rule: &PeepholeRule) -> BaseTracker {
        let base =
            |known: EntryFact| if let EntryFact::Address(s, id, _) = known { Some((s, id)) } else { None };
        BaseTracker { regs: rule.regs.map(base) }
    }

    fn step(&mut self, insn: &Insn) {
        use millstream_isa::{AluOp, Operand, Width};
        match *insn {
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
                self.regs[dst.index()] = self.regs[src.index()];
            }
            Insn::Alu { width: Width::W64, op: AluOp::Add | AluOp::Sub, src: Operand::Imm(_), .. } => {}
            other => {
                if let Some(r) = crate::verifier_rules::written(other) {
                    self.regs[r.index()] = None;
                }
            }
        }
    }
}
