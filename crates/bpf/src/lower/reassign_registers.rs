//! Registers chosen once more, by their price on the machine.
//!
//! The allocator treats all registers of a kind alike, and splits values where that helped it on the way.
//! Here each
//! *web* (writes of a register, with all the reads that they reach) is tried in every register that is free
//! wherever it lives, and takes the one with the shortest machine code: moves between equal registers vanish,
//! the prefix of r5 and r7 to r9 is paid where it costs least, and saved registers that nothing needs any
//! more are not saved.
//!
//! Webs that calls, returns or the function's entry tie to a register stay there. Interference is Chaitin's:
//! a move does not make its two sides interfere, since they hold the same value.

use std::cell::Cell;

use millstream_isa::{AtomicOp, Insn, Operand, Reg, Width};

use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator, successors};
use super::layout::comparison;
use super::register_sets::{effect, live_in, live_out, term_reads};
use crate::jit;

/// Sweeps over all webs.
const ROUNDS: usize = 3;

/// A slot, in bytes of machine code.
const SLOT: u32 = 4;

const CLOBBERED: u16 = 0b11_1111;

/// Gives every web its best register and drops the moves that do nothing then.
pub(super) fn reassign_webs(blocks: &mut [EmittedBlock]) {
    let mut webs = InterferenceGraph::build(blocks);
    for _ in 0..ROUNDS {
        if !webs.sweep(blocks) {
            break;
        }
    }
    webs.apply(blocks);
}

/// The webs that the two register fields of an instruction name; `NONE` where there is no field, or the frame
/// pointer.
#[derive(Clone, Copy)]
struct InsnWebs {
    dst: u32,
    src: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Default)]
struct InterferenceGraph {
    /// Union of definitions; after `resolve`, the web's representative.
    parent: Vec<u32>,
    color: Vec<u8>,
    fixed: Vec<bool>,
    /// Colors that calls in a web's life forbid.
    forbidden: Vec<u16>,
    neighbours: CsrLists<u32>,
    /// Places that name a web: block, and instruction or, past the last, end of the block.
    places: CsrLists<(u32, u32)>,
    /// By block and instruction, the block's end last.
    fields: Vec<Vec<InsnWebs>>,
    /// Registers read without being named, by block: instruction, register, web.
    implied: Vec<Vec<(usize, usize, u32)>>,
    /// Number of webs of each color.
    population: [u32; 10],
    /// Webs whose choice may be another than when they were last looked at.
    stale: Vec<bool>,
}

/// A list for each web, all in one.
#[derive(Default)]
struct CsrLists<X> {
    starts: Vec<u32>,
    items: Vec<X>,
}

impl<X: Copy + Default> CsrLists<X> {
    /// The lists of so many webs, of pairs of web and item in the order in which the items come.
    fn of(webs: usize, pairs: &[(u32, X)]) -> CsrLists<X> {
        let mut starts = vec![0u32; webs + 1];
        for (web, _) in pairs {
            starts[*web as usize + 1] += 1;
        }
        for web in 0..webs {
            starts[web + 1] += starts[web];
        }
        let mut at = starts.clone();
        let mut items = vec![X::default(); pairs.len()];
        for (web, item) in pairs {
            let at = &mut at[*web as usize];
            items[*at as usize] = *item;
            *at += 1;
        }
        CsrLists { starts, items }
    }

    fn get(&self, web: usize) -> &[X] {
        &self.items[self.starts[web] as usize..self.starts[web + 1] as usize]
    }
}

type CurrentWebs = [u32; 10];

impl InterferenceGraph {
    fn build(blocks: &[EmittedBlock]) -> InterferenceGraph {
        let live = live_in(blocks);
        let mut webs = InterferenceGraph::default();
        let entry: Vec<CurrentWebs> = live.iter().map(|&set| webs.fresh_set(set)).collect();
        entry[0].iter().for_each(|&argument| webs.fix(argument));
        let mut out = Vec::with_capacity(blocks.len());
        for (b, block) in blocks.iter().enumerate() {
            let mut now = entry[b];
            webs.implied.push(Vec::new());
            let steps = block.body.iter().enumerate();
            let mut fields: Vec<InsnWebs> = steps.map(|(i, e)| webs.step(b, i, e, &mut now)).collect();
            fields.push(webs.end(block.term, &mut now));
            webs.fields.push(fields);
            for s in successors(block.term) {
                for r in (0..10).filter(|&r| live[s] & 1 << r != 0) {
                    let from = webs.at(&mut now, r);
                    webs.join(from, entry[s][r]);
                }
            }
            out.push(now);
        }
        webs.resolve();
        let mut pairs = Vec::with_capacity(8 * webs.fields.iter().map(Vec::len).sum::<usize>());
        for (b, block) in blocks.iter().enumerate() {
            webs.interfere(b, block, live_out(blocks, &live, b), &out[b], &mut pairs);
        }
        webs.neighbours = CsrLists::of(webs.parent.len(), &pairs);
        webs
    }

    fn fresh(&mut self, color: usize) -> u32 {
        let id = self.parent.len() as u32;
        self.parent.push(id);
        self.color.push(color as u8);
        self.fixed.push(false);
        id
    }

    fn fresh_set(&mut self, set: u16) -> CurrentWebs {
        std::array::from_fn(|r| if set & 1 << r != 0 { self.fresh(r) } else { NONE })
    }

    fn fix(&mut self, id: u32) {
        if id != NONE {
            self.fixed[id as usize] = true;
        }
    }

    /// The web in a register. One that was never written stays where it is.
    fn at(&mut self, now: &mut CurrentWebs, r: usize) -> u32 {
        if now[r] == NONE {
            now[r] = self.fresh(r);
            self.fix(now[r]);
        }
        now[r]
    }

    fn field(&mut self, now: &mut CurrentWebs, r: Reg) -> u32 {
        if r == Reg::R10 { NONE } else { self.at(now, r.index()) }
    }

    fn define(&mut self, now: &mut CurrentWebs, r: usize) -> u32 {
        now[r] = self.fresh(r);
        now[r]
    }

    /// Goes over an instruction: the webs of its fields, and those in registers after it.
    fn step(&mut self, b: usize, i: usize, e: &EmittedInsn, now: &mut CurrentWebs) -> InsnWebs {
        let operand = |o: Operand| if let Operand::Reg(r) = o { r } else { Reg::R10 };
        match e.insn {
            Insn::Alu { dst, src, .. } | Insn::Store { dst, src, .. } => {
                InsnWebs { dst: self.field(now, dst), src: self.field(now, operand(src)) }
            }
            Insn::Atomic { op, dst, src, .. } => {
                let fields = InsnWebs { dst: self.field(now, dst), src: self.field(now, src) };
                if op == AtomicOp::CmpXchg {
                    self.imply(b, i, now, 0);
                    let found = self.define(now, 0);
                    self.fix(found);
                }
                fields
            }
            Insn::StoreRelease { dst, src, .. } => {
                InsnWebs { dst: self.field(now, dst), src: self.field(now, src) }
            }
            Insn::Mov { dst, src, .. } => {
                let src = self.field(now, operand(src));
                InsnWebs { dst: self.define(now, dst.index()), src }
            }
            Insn::MovSx { dst, src, .. }
            | Insn::AddrSpaceCast { dst, src, .. }
            | Insn::Load { dst, src, .. }
            | Insn::LoadAcquire { dst, src, .. } => {
                let src = self.field(now, src);
                InsnWebs { dst: self.define(now, dst.index()), src }
            }
            Insn::LoadImm64 { dst, .. } => InsnWebs { dst: self.define(now, dst.index()), src: NONE },
            Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => {
                InsnWebs { dst: self.field(now, dst), src: NONE }
            }
            Insn::Call(_) | Insn::LegacyLoad { .. } => {
                for r in (0..10).filter(|r| e.args & 1 << r != 0) {
                    self.imply(b, i, now, r);
                }
                now[..6].fill(NONE);
                let result = self.define(now, 0);
                self.fix(result);
                InsnWebs { dst: NONE, src: NONE }
            }
            Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Exit => {
                InsnWebs { dst: NONE, src: NONE }
            }
        }
    }

    fn imply(&mut self, b: usize, i: usize, now: &mut CurrentWebs, r: usize) {
        let web = self.at(now, r);
        self.fix(web);
        self.implied[b].push((i, r, web));
    }

    fn end(&mut self, term: Terminator, now: &mut CurrentWebs) -> InsnWebs {
        match term {
            Terminator::Branch { dst, src, .. } => {
                let src = if let SrcOperand::Reg(r) = src { r } else { Reg::R10 };
                InsnWebs { dst: self.field(now, dst), src: self.field(now, src) }
            }
            Terminator::Return => {
                self.fix(now[0]);
                InsnWebs { dst: NONE, src: NONE }
            }
            Terminator::Jump(_) | Terminator::MayGoto { .. } => InsnWebs { dst: NONE, src: NONE },
        }
    }

    fn root(&mut self, id: u32) -> u32 {
        let mut id = id as usize;
        while self.parent[id] as usize != id {
            self.parent[id] = self.parent[self.parent[id] as usize];
            id = self.parent[id] as usize;
        }
        id as u32
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[b as usize] = a;
        self.fixed[a as usize] |= self.fixed[b as usize];
    }

    /// Names every web by its representative and notes where it is named.
    fn resolve(&mut self) {
        for id in 0..self.parent.len() as u32 {
            let root = self.root(id) as usize;
            self.fixed[root] |= self.fixed[id as usize];
        }
        for id in 0..self.parent.len() {
            self.parent[id] = self.root(id as u32);
            self.fixed[id] = self.fixed[self.parent[id] as usize];
            if self.parent[id] as usize == id {
                self.population[usize::from(self.color[id])] += 1;
            }
        }
        self.forbidden = vec![0; self.parent.len()];
        self.stale = vec![true; self.parent.len()];
        let mut places = Vec::with_capacity(2 * self.fields.iter().map(Vec::len).sum::<usize>());
        for (b, list) in self.fields.iter_mut().enumerate() {
            for (i, fields) in list.iter_mut().enumerate() {
                for id in [&mut fields.dst, &mut fields.src] {
                    if *id != NONE {
                        *id = self.parent[*id as usize];
                    }
                }
                let place = (b as u32, i as u32);
                let twice = fields.dst == fields.src;
                places.extend((fields.dst != NONE).then_some((fields.dst, place)));
                places.extend((fields.src != NONE && !twice).then_some((fields.src, place)));
            }
        }
        self.places = CsrLists::of(self.parent.len(), &places);
    }

    /// Notes which webs live where others are written, from the end of a block to its start.
    fn interfere(
        &mut self,
        b: usize,
        block: &EmittedBlock,
        live_out: u16,
        out: &CurrentWebs,
        pairs: &mut Vec<(u32, u32)>,
    ) {
        let resolved = |id: u32, parent: &[u32]| if id == NONE { NONE } else { parent[id as usize] };
        let mut live: CurrentWebs =
            std::array::from_fn(
                |r| if live_out & 1 << r != 0 { resolved(out[r], &self.parent) } else { NONE },
            );
        let reads = term_reads(block.term);
        for r in (0..10).filter(|r| reads & 1 << r != 0) {
            live[r] = resolved(out[r], &self.parent);
        }
        for (i, e) in block.body.iter().enumerate().rev() {
            let fields = self.fields[b][i];
            let (reads, writes) = effect(e);
            let moved = matches!(e.insn, Insn::Mov { width: Width::W64, src: Operand::Reg(_), .. });
            let clobbers = match e.insn {
                Insn::Call(_) | Insn::LegacyLoad { .. } => CLOBBERED,
                Insn::Atomic { op: AtomicOp::CmpXchg, .. } => 1,
                _ => 0,
            };
            let written = match e.insn {
                Insn::Atomic { op: AtomicOp::CmpXchg, .. } => NONE,
                Insn::Atomic { fetch: true, .. } => fields.src,
                Insn::Store { .. } | Insn::Atomic { .. } | Insn::StoreRelease { .. } => NONE,
                _ => fields.dst,
            };
            for r in (0..10).filter(|r| writes & 1 << r != 0) {
                live[r] = NONE;
            }
            for other in live.into_iter().filter(|&w| w != NONE) {
                self.forbidden[other as usize] |= clobbers;
                if written != NONE && other != written && !(moved && other == fields.src) {
                    pairs.extend([(other, written), (written, other)]);
                }
            }
            for r in (0..10).filter(|r| reads & 1 << r != 0) {
                live[r] = self.before(b, i, e.insn, r);
            }
        }
    }

    /// The web that an instruction reads in a register.
    fn before(&self, b: usize, i: usize, insn: Insn, r: usize) -> u32 {
        let fields = self.fields[b][i];
        let (dst, src) = registers(insn);
        if src.is_some_and(|s| s.index() == r) {
            return fields.src;
        }
        if dst.is_some_and(|d| d.index() == r) {
            return fields.dst;
        }
        let implied = self.implied[b].iter().find(|x| x.0 == i && x.1 == r);
        implied.map_or(NONE, |x| self.parent[x.2 as usize])
    }

    fn sweep(&mut self, blocks: &[EmittedBlock]) -> bool {
        let mut changed = false;
        for web in 0..self.parent.len() {
            if self.fixed[web] || self.parent[web] as usize != web || self.places.get(web).is_empty() {
                continue;
            }
            if !std::mem::take(&mut self.stale[web]) {
                continue;
            }
            let mut taken = self.forbidden[web];
            for &n in self.neighbours.get(web) {
                taken |= 1 << self.color[n as usize];
            }
            let old = self.color[web];
            self.population[usize::from(old)] -= 1;
            let cost = |c: u8| self.cost(blocks, web, c);
            let best = (0..10u8).filter(|&c| c != old && taken & 1 << c == 0);
            let best = best.map(|c| (cost(c), c)).min().filter(|b| b.0 < cost(old));
            let new = best.map_or(old, |b| b.1);
            self.color[web] = new;
            self.population[usize::from(new)] += 1;
            if new != old {
                changed = true;
                self.changed(web, old, new);
            }
        }
        changed
    }

    /// Notes whose choice a web's new color bears on: its neighbours', those of webs named beside it, and
    /// everybody's where a register has one web or none, before or after: one more or less decides whether it
    /// is saved.
    fn changed(&mut self, web: usize, old: u8, new: u8) {
        if self.population[usize::from(old)] <= 1 || self.population[usize::from(new)] <= 2 {
            self.stale.fill(true);
            return;
        }
        for &n in self.neighbours.get(web) {
            self.stale[n as usize] = true;
        }
        for &(b, i) in self.places.get(web) {
            let fields = self.fields[b as usize][i as usize];
            for other in [fields.dst, fields.src].into_iter().filter(|&w| w != NONE) {
                self.stale[other as usize] = true;
            }
        }
    }

    /// Cost of a web in a register: the instructions that name it, the register's saving, and a preference
    /// for registers that others are likely to use as well.
    fn cost(&self, blocks: &[EmittedBlock], web: usize, color: u8) -> u32 {
        let places = self.places.get(web).iter();
        let bytes: u32 = places.map(|&(b, i)| self.size(blocks, b as usize, i as usize, web, color)).sum();
        let saved = match color {
            6 if self.population[6] == 0 => 2,
            7..=9 if self.population[usize::from(color)] == 0 => 4,
            _ => 0,
        };
        16 * (bytes + saved) + u32::from(color.saturating_sub(4))
    }

    /// The size of an instruction, or of a block's end, with a web in a given register.
    fn size(&self, blocks: &[EmittedBlock], b: usize, i: usize, web: usize, color: u8) -> u32 {
        let insn = match blocks[b].body.get(i) {
            Some(e) => e.insn,
            None => comparison(blocks[b].term),
        };
        let named = |w: u32| if w as usize == web { color } else { self.color[w as usize] };
        let insn = self.renamed(insn, self.fields[b][i], named);
        if is_idle(insn) { 0 } else { jit::body(insn) + SLOT }
    }

    fn renamed(&self, insn: Insn, fields: InsnWebs, color: impl Fn(u32) -> u8) -> Insn {
        let mut insn = insn;
        // Fields are visited in order, the destination first.
        let (has_dst, _) = registers(insn);
        let next = Cell::new(if has_dst.is_some() { fields.dst } else { fields.src });
        insn.rename(|r| {
            let web = next.replace(fields.src);
            if web == NONE { r } else { Reg::new(color(web)).unwrap_or(r) }
        });
        insn
    }

    fn apply(&self, blocks: &mut [EmittedBlock]) {
        for (b, block) in blocks.iter_mut().enumerate() {
            let fields = &self.fields[b];
            for (e, &f) in block.body.iter_mut().zip(fields) {
                e.insn = self.renamed(e.insn, f, |w| self.color[w as usize]);
            }
            let end = fields[block.body.len()];
            if let Terminator::Branch { dst, src, .. } = &mut block.term {
                let named = |web: u32, r: Reg| {
                    if web == NONE { r } else { Reg::new(self.color[web as usize]).unwrap_or(r) }
                };
                *dst = named(end.dst, *dst);
                if let SrcOperand::Reg(r) = src {
                    *r = named(end.src, *r);
                }
            }
            block.body.retain(|e| !is_idle(e.insn));
        }
    }
}

/// The registers that an instruction names as destination and source; the frame pointer among them.
fn registers(insn: Insn) -> (Option<Reg>, Option<Reg>) {
    let operand = |o: Operand| if let Operand::Reg(r) = o { Some(r) } else { None };
    match insn {
        Insn::Alu { dst, src, .. }
        | Insn::Mov { dst, src, .. }
        | Insn::Store { dst, src, .. }
        | Insn::Branch { dst, src, .. } => (Some(dst), operand(src)),
        Insn::MovSx { dst, src, .. }
        | Insn::AddrSpaceCast { dst, src, .. }
        | Insn::Load { dst, src, .. }
        | Insn::Atomic { dst, src, .. }
        | Insn::LoadAcquire { dst, src, .. }
        | Insn::StoreRelease { dst, src, .. } => (Some(dst), Some(src)),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } | Insn::LoadImm64 { dst, .. } => (Some(dst), None),
        Insn::LegacyLoad { .. } | Insn::Call(_) | Insn::Jump { .. } | Insn::MayGoto { .. } | Insn::Exit => {
            (None, None)
        }
    }
}

/// Returns true if it moves a register to itself.
fn is_idle(insn: Insn) -> bool {
    matches!(insn, Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } if dst == src)
}
