//! Every constructor against plain integers: random programs of all operations on terms, evaluated under
//! random assignments, boundary values among them.

use millstream_isa::semantics::{self, ConcreteDomain};
use millstream_isa::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};
use rustc_hash::FxHashMap;

use super::{Sort, TermId, TermNode, TermPool};
use crate::explore::ExplorerRng;
use crate::term::eval;

const ALU: [AluOp; 14] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::Or,
    AluOp::And,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Mod,
    AluOp::Xor,
    AluOp::Arsh,
    AluOp::SDiv,
    AluOp::SMod,
    AluOp::Add,
];
const COND: [Cond; 11] = [
    Cond::Eq,
    Cond::Gt,
    Cond::Ge,
    Cond::Set,
    Cond::Ne,
    Cond::Sgt,
    Cond::Sge,
    Cond::Lt,
    Cond::Le,
    Cond::Slt,
    Cond::Sle,
];
const BOUNDARIES: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];
/// Assignments under which each term is evaluated.
const WORLDS: usize = 12;

/// A value in all worlds, and the term that should have it.
#[derive(Clone, Copy)]
struct Pair {
    term: TermId,
    values: [u64; WORLDS],
}

struct Bench {
    terms: TermPool,
    rng: ExplorerRng,
    leaves: FxHashMap<TermId, [u64; WORLDS]>,
    known: FxHashMap<TermId, [u64; WORLDS]>,
    numbers: Vec<Pair>,
    truths: Vec<Pair>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut bench = Bench {
            terms: TermPool::new(usize::MAX),
            rng: ExplorerRng::new(seed),
            leaves: FxHashMap::default(),
            known: FxHashMap::default(),
            numbers: Vec::new(),
            truths: Vec::new(),
        };
        for n in 0..4 {
            let bits = [64, 32, 8, 16][n];
            let leaf = bench.terms.var(&format!("x{n}"), Sort::Bits(bits as u8));
            let values = std::array::from_fn(|_| bench.number() & super::mask(bits));
            bench.leaves.insert(leaf, values);
            let term = bench.terms.zero_extend_to(leaf, 64);
            bench.numbers.push(Pair { term, values });
        }
        bench
    }

    fn number(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => self.rng.next(),
            1 => self.rng.next() >> self.rng.below(64),
            _ => BOUNDARIES[self.rng.below(BOUNDARIES.len())],
        }
    }

    /// An existing number: mostly a recent one, sometimes a constant.
    fn operand(&mut self) -> Pair {
        if self.rng.below(3) == 0 {
            let k = self.number();
            return Pair { term: self.terms.constant(64, k), values: [k; WORLDS] };
        }
        let from = self.numbers.len().saturating_sub(8) * self.rng.below(2);
        self.numbers[from + self.rng.below(self.numbers.len() - from)]
    }

    /// Evaluates the term in all worlds.
    fn evaluate(&mut self, t: TermId) -> [u64; WORLDS] {
        for part in crate::sweep::cone(&self.terms, &[t]) {
            if self.known.contains_key(&part) {
                continue;
            }
            let values = match self.leaves.get(&part) {
                Some(values) => *values,
                None => std::array::from_fn(|w| {
                    eval::combine(&self.terms, part, |p| self.known[&p][w]).expect("a meaning of its own")
                }),
            };
            self.known.insert(part, values);
        }
        self.known[&t]
    }

    #[track_caller]
    fn same(&mut self, what: &str, pair: Pair) {
        let got = self.evaluate(pair.term);
        let node = self.terms.node(pair.term).clone();
        assert_eq!(got, pair.values, "{what} became {node:?}");
    }

    fn step(&mut self) {
        let (a, b) = (self.operand(), self.operand());
        let width = [Width::W32, Width::W64][self.rng.below(2)];
        let each = |f: &dyn Fn(usize) -> u64| std::array::from_fn(f);
        match self.rng.below(8) {
            0..=3 => {
                let op = ALU[self.rng.below(ALU.len())];
                let term = semantics::alu(&mut self.terms, op, width, &a.term, &b.term);
                let values =
                    each(&|w| semantics::alu(&mut ConcreteDomain, op, width, &a.values[w], &b.values[w]));
                self.add(format!("{op:?} {width:?}"), Pair { term, values });
            }
            4 => self.unary(a, width),
            5 => {
                let cond = COND[self.rng.below(COND.len())];
                let term = semantics::cond(&mut self.terms, cond, width, &a.term, &b.term);
                let values = each(&|w| {
                    u64::from(semantics::cond(&mut ConcreteDomain, cond, width, &a.values[w], &b.values[w]))
                });
                self.same(&format!("{cond:?} {width:?}"), Pair { term, values });
                self.truths.push(Pair { term, values });
            }
            6 => self.choice(a, b),
            _ => {
                let op = [
                    AtomicOp::Add,
                    AtomicOp::And,
                    AtomicOp::Or,
                    AtomicOp::Xor,
                    AtomicOp::Xchg,
                    AtomicOp::CmpXchg,
                ][self.rng.below(6)];
                let size = [Size::W, Size::Dw][self.rng.below(2)];
                let (low, c) = (self.terms.extract(a.term, size.bits() - 1, 0), self.operand());
                let term = semantics::atomic(&mut self.terms, op, size, &low, &b.term, &c.term);
                let mask = super::mask(size.bits());
                let plain = |w: usize| {
                    semantics::atomic(
                        &mut ConcreteDomain,
                        op,
                        size,
                        &(a.values[w] & mask),
                        &b.values[w],
                        &c.values[w],
                    )
                };
                let memory = self.terms.zero_extend_to(term.memory, 64);
                self.add(
                    format!("{op:?} {size:?}"),
                    Pair { term: memory, values: each(&|w| plain(w).memory) },
                );
                self.add("fetched".into(), Pair { term: term.fetched, values: each(&|w| plain(w).fetched) });
            }
        }
    }

    fn unary(&mut self, a: Pair, width: Width) {
        let each = |f: &dyn Fn(u64) -> u64| a.values.map(f);
        let (name, term, values) = match self.rng.below(4) {
            0 => {
                let term = semantics::neg(&mut self.terms, width, &a.term);
                ("neg", term, each(&|v| semantics::neg(&mut ConcreteDomain, width, &v)))
            }
            1 => {
                let bits = [8, 16, 32][self.rng.below(if width == Width::W64 { 3 } else { 2 })];
                let term = semantics::movsx(&mut self.terms, width, bits, &a.term);
                ("movsx", term, each(&|v| semantics::movsx(&mut ConcreteDomain, width, bits, &v)))
            }
            2 => {
                let kind = [SwapKind::ToLe, SwapKind::ToBe, SwapKind::Swap][self.rng.below(3)];
                let bits = [16, 32, 64][self.rng.below(3)];
                let term = semantics::swap(&mut self.terms, kind, bits, &a.term);
                ("swap", term, each(&|v| semantics::swap(&mut ConcreteDomain, kind, bits, &v)))
            }
            _ => {
                let size = [Size::B, Size::H, Size::W, Size::Dw][self.rng.below(4)];
                let sext = self.rng.below(2) == 0 && size != Size::Dw;
                let low = self.terms.extract(a.term, size.bits() - 1, 0);
                let term = semantics::loaded(&mut self.terms, size, sext, &low);
                let mask = super::mask(size.bits());
                ("loaded", term, each(&|v| semantics::loaded(&mut ConcreteDomain, size, sext, &(v & mask))))
            }
        };
        self.add(format!("{name} {width:?}"), Pair { term, values });
    }

    /// A choice, and the simplification of one of the two under the condition.
    fn choice(&mut self, a: Pair, b: Pair) {
        if self.truths.is_empty() {
            return;
        }
        let c = self.truths[self.rng.below(self.truths.len())];
        let d = self.truths[self.rng.below(self.truths.len())];
        let both = Pair {
            term: self.terms.and(&[c.term, d.term]),
            values: std::array::from_fn(|w| c.values[w] & d.values[w]),
        };
        self.same("and", both);
        let either = Pair {
            term: self.terms.or(&[c.term, d.term]),
            values: std::array::from_fn(|w| c.values[w] | d.values[w]),
        };
        self.same("or", either);
        let chosen = Pair {
            term: self.terms.ite(c.term, a.term, b.term),
            values: std::array::from_fn(|w| if c.values[w] != 0 { a.values[w] } else { b.values[w] }),
        };
        self.add("ite".into(), chosen);
        let term = self.terms.under(chosen.term, d.term);
        let got = self.evaluate(term);
        for (w, got) in got.into_iter().enumerate() {
            assert!(d.values[w] == 0 || got == chosen.values[w], "under an assumption");
        }
    }

    fn add(&mut self, what: String, pair: Pair) {
        self.same(&what, pair);
        self.numbers.push(pair);
    }
}

#[test]
fn terms_are_what_the_instructions_compute() {
    for seed in 0..600 {
        let mut bench = Bench::new(seed);
        for _ in 0..60 {
            bench.step();
            // Terms on top of huge choices take long and show nothing new.
            if bench.terms.len() > 6000 {
                break;
            }
        }
    }
}

/// Stores and loads at places that may coincide, against a table.
#[test]
fn memories_are_what_was_stored() {
    for seed in 0..400 {
        let mut bench = Bench::new(seed);
        let start = bench.terms.var("memory", Sort::Memory);
        let mut memory = start;
        // The known bytes in each world, by object and offset.
        let mut tables: [FxHashMap<(u64, u64), u64>; WORLDS] = Default::default();
        for _ in 0..12 {
            let (object, base) = (bench.numbers[2], bench.numbers[3 * bench.rng.below(2)]);
            let by = bench.rng.below(3) as u64;
            let k = bench.terms.constant(64, by);
            let offset = semantics::alu(&mut bench.terms, AluOp::Add, Width::W64, &base.term, &k);
            let value = bench.operand();
            let byte = bench.terms.extract(value.term, 7, 0);
            memory = bench.terms.store(memory, object.term, offset, byte);
            for (w, table) in tables.iter_mut().enumerate() {
                table.insert((object.values[w], base.values[w].wrapping_add(by)), value.values[w] & 0xff);
            }
            let read = bench.terms.select(memory, object.term, offset);
            let values = std::array::from_fn(|w| value.values[w] & 0xff);
            bench.same("the byte just stored", Pair { term: read, values });
        }
        for base in [bench.numbers[0], bench.numbers[3]] {
            let read = bench.terms.select(memory, bench.numbers[2].term, base.term);
            // Bytes that nobody stored are the first memory's.
            for part in crate::sweep::cone(&bench.terms, &[read]) {
                if matches!(bench.terms.node(part), TermNode::Select(..)) {
                    bench.leaves.insert(part, [0; WORLDS]);
                }
                if part == start {
                    bench.leaves.insert(part, [0; WORLDS]);
                }
            }
            let values = std::array::from_fn(|w| {
                *tables[w].get(&(bench.numbers[2].values[w], base.values[w])).unwrap_or(&0)
            });
            bench.same("a byte of all that was stored", Pair { term: read, values });
        }
    }
}

/// The value of a term of one variable.
fn at(terms: &TermPool, t: TermId, x: TermId, value: u64) -> u64 {
    if t == x {
        return value;
    }
    eval::combine(terms, t, |part| at(terms, part, x, value)).expect("a term of the variable alone")
}

/// Returns true if a term contains a quotient.
fn divides(terms: &TermPool, t: TermId) -> bool {
    let here = matches!(terms.node(t), TermNode::Prim(semantics::Prim::UDiv, ..));
    here || terms.parts_of(t).into_iter().any(|part| divides(terms, part))
}

#[test]
fn upper_bits_of_a_product_are_a_quotient_only_where_they_always_are() {
    use semantics::{Domain, Prim};
    const BITS: u32 = 7;
    let mut taken = 0;
    for factor in 1..200u64 {
        for lo in 1..14 {
            let mut terms = TermPool::new(1 << 16);
            let x = terms.var("x", Sort::Bits(BITS as u8));
            let wide = terms.zero_extend_to(x, 16);
            let c = terms.constant(16, factor);
            let product = terms.prim(Prim::Mul, 16, &wide, &c);
            let upper = terms.extract(product, 15, lo);
            taken += usize::from(divides(&terms, upper));
            for hi in [lo, 13, 15] {
                let slice = terms.extract(product, hi.max(lo), lo);
                for value in 0..=super::mask(BITS) {
                    let says = ((value * factor) & 0xffff) >> lo & super::mask(hi.max(lo) - lo + 1);
                    assert_eq!(at(&terms, slice, x, value), says, "{value} * {factor} >> {lo}");
                }
            }
        }
    }
    assert!(taken > 100, "{taken}");
    // Two ways to divide.
    let mut terms = TermPool::new(1 << 16);
    let x = terms.var("x", Sort::Bits(BITS as u8));
    for (by, factor, lo) in [(5, 205, 10), (7, 147, 10), (10, 205, 11)] {
        let wide = terms.zero_extend_to(x, 32);
        let [c, d] = [factor, by].map(|k| terms.constant(32, k));
        let product = terms.prim(Prim::Mul, 32, &wide, &c);
        let (upper, divided) = (terms.extract(product, 31, lo), terms.prim(Prim::UDiv, 32, &wide, &d));
        assert_eq!(terms.zero_extend_to(upper, 32), divided, "by {by}");
    }
}
