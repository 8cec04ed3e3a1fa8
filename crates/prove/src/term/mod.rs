//! Terms: bit vectors, truth values, memories and tokens. Each distinct term is stored once.
//!
//! A term is built by the constructors of [`TermPool`] only, and these bring it into a normal form: sums are
//! lists of coefficients, everything that merely moves bits is a concatenation of slices, comparisons of
//! concatenations are comparisons of their pieces, and every term that depends on truth values is a decision
//! diagram over atoms. Two programs that compute the same by different instructions mostly end in the same
//! term, and then no solver is asked.
//!
//! Architecture Invariant: a constructor returns a term that is equal to the requested one under every
//! assignment. Facts that hold on some path only are the business of the executor. The one exception is
//! [`TermPool::is_full`].

mod bits;
mod choice;
pub(crate) mod congruence;
pub(crate) mod eval;
pub(crate) mod facts;
mod memory;
mod quotient;
pub(crate) mod sum;

pub(crate) use choice::{ADDRESS, ENTRY, FOUND, MATCH};
pub(crate) use facts::{Literal, MOST_LITERALS};
pub(crate) use memory::FILLED;

use millstream_isa::ByteOrder;
use millstream_isa::semantics::{Pred, Prim};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use std::time::Instant;

use choice::LiftedOp;

/// A term: an index into [`TermPool`]. Equal indices, equal terms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TermId(u32);

impl TermId {
    /// The index.
    pub(crate) fn index(self) -> u32 {
        self.0
    }

    /// The term of an index that [`TermId::index`] gave.
    pub(crate) fn at(index: u32) -> TermId {
        TermId(index)
    }
}

/// The kind of a term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Sort {
    /// A truth value.
    Bool,
    /// A bit vector of 1 to 64 bits.
    Bits(u8),
    /// Bytes, by object and offset, both 64 bits.
    Memory,
    /// The history of events; only equality counts.
    Token,
}

/// An uninterpreted function or constant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TermSymbol(u32);

impl TermSymbol {
    /// The index.
    pub(crate) fn index(self) -> u32 {
        self.0
    }
}

/// Operation of a term, with its parts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum TermNode {
    /// `true` or `false`.
    Truth(bool),
    /// A bit vector; the bits above its width are zero.
    Const(u64),
    /// A symbol applied to arguments; an uninterpreted constant if there are none.
    App(TermSymbol, Box<[TermId]>),
    /// A primitive operation that none of the others express.
    Prim(Prim, TermId, TermId),
    /// A sum of terms with coefficients, and a constant, modulo 2^width.
    Sum(Box<[(TermId, u64)]>, u64),
    /// Bit vectors side by side, the most significant first.
    Concat(Box<[TermId]>),
    /// The bits from the second number up to the first, both included.
    Extract(TermId, u8, u8),
    /// Sign extension.
    SignExtend(TermId),
    /// A comparison.
    Compare(Pred, TermId, TermId),
    /// The second if the first, an atom, holds, else the third. Atoms stand in order of index from the root
    /// down.
    Ite(TermId, TermId, TermId),
    /// The byte of a memory at an object and an offset.
    Select(TermId, TermId, TermId),
    /// A memory with one byte replaced: memory, object, offset, byte.
    Store(TermId, TermId, TermId, TermId),
}

/// Rules that bring terms into normal form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NormalizationRules {
    /// Operations have a normal form.
    pub(crate) normal: bool,
    /// Operations are carried into choices.
    pub(crate) choices: bool,
    /// Places at offsets that differ by a constant are distinct.
    pub(crate) offsets: bool,
    /// A byte that one of several stores may have written is a choice between them; otherwise it is a plain
    /// read of the memory.
    pub(crate) aliases: bool,
    /// Slices of bits that are never set are zeros at once; but the concatenation of all slices is then no
    /// longer the whole.
    pub(crate) zeros: bool,
    /// Order in which the bytes of memory make a word.
    pub(crate) order: ByteOrder,
}

impl Default for NormalizationRules {
    fn default() -> NormalizationRules {
        NormalizationRules {
            normal: true,
            choices: true,
            offsets: true,
            aliases: true,
            zeros: false,
            order: ByteOrder::Little,
        }
    }
}

/// Terms made between two checks of the deadline.
const LOOKS: usize = 1 << 10;

/// All terms of one proof.
#[derive(Clone, Debug, Default)]
pub(crate) struct TermPool {
    nodes: Vec<(TermNode, Sort)>,
    index: FxHashMap<(TermNode, Sort), TermId>,
    symbols: Vec<String>,
    by_name: FxHashMap<String, TermSymbol>,
    /// Cached reads, by memory, object, offset.
    selected: FxHashMap<(TermId, TermId, TermId), TermId>,
    /// Cached choices.
    chosen: FxHashMap<(TermId, TermId, TermId), TermId>,
    /// Cached terms under an assumption.
    restricted: FxHashMap<(TermId, TermId), TermId>,
    /// Leaves of each choice, if they are few.
    leaves: FxHashMap<TermId, Option<Rc<[TermId]>>>,
    /// True if the term depends on an address.
    addresses: FxHashMap<TermId, bool>,
    /// Bits that may be set in a term.
    possible: FxHashMap<TermId, u64>,
    /// Rules that bring terms into normal form.
    forms: NormalizationRules,
    /// Time after which no more terms are made.
    deadline: Option<Instant>,
    /// Most terms.
    limit: usize,
    /// Cached operations on choices.
    lifted: FxHashMap<(LiftedOp, TermId, TermId), TermId>,
}

impl TermPool {
    /// An empty collection of at most `limit` terms, or little more.
    pub(crate) fn new(limit: usize) -> TermPool {
        TermPool { limit, ..TermPool::default() }
    }

    /// The same with only the rules in `forms`.
    pub(crate) fn of(limit: usize, forms: NormalizationRules) -> TermPool {
        TermPool { limit, forms, ..TermPool::default() }
    }

    /// Makes no more terms after this time, as if there were too many.
    pub(crate) fn until(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Rules that bring terms into normal form.
    pub(crate) fn forms(&self) -> NormalizationRules {
        self.forms
    }

    /// Returns true if there are too many terms. From then on constructors return arbitrary terms, so that
    /// loops that would make many more come to an end: check this before using a term.
    pub(crate) fn is_full(&self) -> bool {
        self.nodes.len() > self.limit
    }

    /// Makes room for that many more terms. Terms cached while there was no room are forgotten, for they may
    /// be arbitrary.
    pub(crate) fn allow(&mut self, more: usize) {
        if self.is_full() {
            self.selected.clear();
            self.chosen.clear();
            self.restricted.clear();
            self.leaves.clear();
            self.addresses.clear();
            self.lifted.clear();
        }
        self.limit = self.nodes.len() + more;
    }

    /// Number of distinct terms.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Operation of a term, with its parts.
    pub(crate) fn node(&self, t: TermId) -> &TermNode {
        &self.nodes[t.0 as usize].0
    }

    /// The kind of a term.
    pub(crate) fn sort(&self, t: TermId) -> Sort {
        self.nodes[t.0 as usize].1
    }

    /// The name of a symbol.
    pub(crate) fn name(&self, s: TermSymbol) -> &str {
        &self.symbols[s.0 as usize]
    }

    /// The symbol of this name.
    pub(crate) fn symbol(&mut self, name: &str) -> TermSymbol {
        if let Some(s) = self.by_name.get(name) {
            return *s;
        }
        let s = TermSymbol(self.symbols.len() as u32);
        self.symbols.push(name.to_owned());
        self.by_name.insert(name.to_owned(), s);
        s
    }

    /// Width of a bit vector; 0 for other sorts.
    pub(crate) fn bits(&self, t: TermId) -> u32 {
        match self.sort(t) {
            Sort::Bits(n) => u32::from(n),
            _ => 0,
        }
    }

    fn make(&mut self, node: TermNode, sort: Sort) -> TermId {
        let key = (node, sort);
        if let Some(t) = self.index.get(&key) {
            return *t;
        }
        let t = TermId(self.nodes.len() as u32);
        if self.nodes.len().is_multiple_of(LOOKS)
            && self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
        {
            self.limit = 0;
        }
        self.nodes.push(key.clone());
        self.index.insert(key, t);
        t
    }

    fn vector(&mut self, bits: u32, node: TermNode) -> TermId {
        self.make(node, Sort::Bits(bits as u8))
    }

    /// A symbol applied to arguments.
    pub(crate) fn app(&mut self, name: &str, args: &[TermId], sort: Sort) -> TermId {
        let symbol = self.symbol(name);
        self.make(TermNode::App(symbol, args.into()), sort)
    }

    /// An uninterpreted constant.
    pub(crate) fn var(&mut self, name: &str, sort: Sort) -> TermId {
        self.app(name, &[], sort)
    }

    /// A bit vector; bits above the width are ignored.
    pub(crate) fn constant(&mut self, bits: u32, value: u64) -> TermId {
        self.vector(bits, TermNode::Const(value & mask(bits)))
    }

    /// The value of a constant.
    pub(crate) fn value(&self, t: TermId) -> Option<u64> {
        match self.node(t) {
            TermNode::Const(v) => Some(*v),
            _ => None,
        }
    }

    /// `true` or `false`.
    pub(crate) fn truth(&mut self, b: bool) -> TermId {
        self.make(TermNode::Truth(b), Sort::Bool)
    }

    /// The direct parts of a term.
    pub(crate) fn parts_of(&self, t: TermId) -> Vec<TermId> {
        match self.node(t) {
            TermNode::Truth(_) | TermNode::Const(_) => Vec::new(),
            TermNode::App(_, args) | TermNode::Concat(args) => args.to_vec(),
            TermNode::Prim(_, a, b) | TermNode::Compare(_, a, b) => vec![*a, *b],
            TermNode::Sum(list, _) => list.iter().map(|(t, _)| *t).collect(),
            TermNode::Extract(a, ..) | TermNode::SignExtend(a) => vec![*a],
            TermNode::Ite(a, b, c) | TermNode::Select(a, b, c) => vec![*a, *b, *c],
            TermNode::Store(a, b, c, d) => vec![*a, *b, *c, *d],
        }
    }

    /// Returns true if a number depends on the address of an object and so may point there.
    pub(crate) fn has_address(&mut self, t: TermId) -> bool {
        let mut stack = vec![(t, false)];
        while let Some((t, done)) = stack.pop() {
            if self.addresses.contains_key(&t) {
                continue;
            }
            let (here, parts) = match self.node(t) {
                // The result of a call does not depend on the addresses of its arguments.
                TermNode::App(f, _) => (self.name(*f).starts_with(ADDRESS), Vec::new()),
                _ => (false, self.parts_of(t)),
            };
            if done {
                let below = parts.iter().any(|p| self.addresses.get(p) == Some(&true));
                self.addresses.insert(t, here || below);
            } else {
                stack.push((t, true));
                stack.extend(parts.into_iter().map(|p| (p, false)));
            }
        }
        self.addresses[&t]
    }

    /// Value of a truth value, if it is constant.
    pub(crate) fn known(&self, t: TermId) -> Option<bool> {
        match self.node(t) {
            TermNode::Truth(b) => Some(*b),
            _ => None,
        }
    }
}

impl TermPool {
    /// The same operation over other parts, in normal form.
    pub(crate) fn rebuild(&mut self, t: TermId, image: impl Fn(TermId) -> TermId) -> TermId {
        let (node, sort) = self.nodes[t.0 as usize].clone();
        match node {
            TermNode::Truth(_) | TermNode::Const(_) => t,
            node => self.with_parts(node, sort, image),
        }
    }

    /// A term of another collection, over parts of this one.
    pub(crate) fn copy(&mut self, from: &TermPool, t: TermId, image: impl Fn(TermId) -> TermId) -> TermId {
        let (node, sort) = from.nodes[t.0 as usize].clone();
        match node {
            TermNode::App(f, args) => {
                let f = self.symbol(from.name(f));
                self.with_parts(TermNode::App(f, args), sort, image)
            }
            node => self.with_parts(node, sort, image),
        }
    }

    fn with_parts(&mut self, node: TermNode, sort: Sort, image: impl Fn(TermId) -> TermId) -> TermId {
        let bits = match sort {
            Sort::Bits(n) => u32::from(n),
            _ => 0,
        };
        match node {
            TermNode::Truth(_) | TermNode::Const(_) => self.make(node, sort),
            TermNode::App(f, args) => {
                let args: Box<[TermId]> = args.iter().map(|a| image(*a)).collect();
                self.make(TermNode::App(f, args), sort)
            }
            TermNode::Prim(op, a, b) => {
                let (a, b) = (image(a), image(b));
                millstream_isa::semantics::Domain::prim(self, op, bits, &a, &b)
            }
            TermNode::Sum(list, k) => {
                let mut sum = self.constant(bits, k);
                for (t, c) in &list {
                    sum = sum::sum(self, bits, sum, image(*t), *c);
                }
                sum
            }
            TermNode::Concat(list) => {
                let list: Vec<TermId> = list.iter().map(|p| image(*p)).collect();
                self.concat(&list)
            }
            TermNode::Extract(a, hi, lo) => self.extract(image(a), u32::from(hi), u32::from(lo)),
            TermNode::SignExtend(a) => self.sign_extend_to(image(a), bits),
            TermNode::Compare(Pred::Eq, a, b) => self.equal(image(a), image(b)),
            TermNode::Compare(p, a, b) => self.compare_terms(p, image(a), image(b)),
            TermNode::Ite(c, a, b) => self.ite(image(c), image(a), image(b)),
            TermNode::Select(m, o, f) => self.select(image(m), image(o), image(f)),
            TermNode::Store(m, o, f, b) => self.store(image(m), image(o), image(f), image(b)),
        }
    }
}

/// The low `bits` bits set.
pub(crate) const fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// The value of a vector of `bits` bits in two's complement.
pub(crate) const fn signed(bits: u32, a: u64) -> i64 {
    (a << (64 - bits)) as i64 >> (64 - bits)
}

#[cfg(test)]
mod tests;
