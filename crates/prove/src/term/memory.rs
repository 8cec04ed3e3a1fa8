//! Memories: bytes by object and offset.

use millstream_isa::ByteOrder;
use millstream_isa::semantics::Pred;

use super::{Sort, TermId, TermNode, TermPool, sum};

/// Prefix of the names of memories in which a call has left some bytes in a row. Arguments: the call, the
/// memory before it, object, offset and number of the bytes.
pub(crate) const FILLED: &str = "filled ";

impl TermPool {
    /// Bytes in the order of memory as one word.
    pub(crate) fn word(&mut self, bytes: &[TermId]) -> TermId {
        match self.forms.order {
            ByteOrder::Little => {
                let highest_first: Vec<TermId> = bytes.iter().rev().copied().collect();
                self.concat(&highest_first)
            }
            ByteOrder::Big => self.concat(bytes),
        }
    }

    /// The byte of a word of `size` bytes that stands at an offset in memory.
    pub(crate) fn byte_of(&mut self, word: TermId, size: u32, at: u32) -> TermId {
        let low = self.forms.order.shift(size, at, 1);
        self.extract(word, low + 7, low)
    }

    /// Decides if two places are the same: [`None`] if that depends on the assignment.
    fn same_place(&mut self, a: (TermId, TermId), b: (TermId, TermId)) -> Option<bool> {
        let objects = self.same_object(a.0, b.0);
        let offsets = match self.forms.offsets {
            true => sum::distance(self, a.1, b.1).map(|d| d == 0),
            false => (a.1 == b.1).then_some(true),
        };
        match (objects, offsets) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        }
    }

    fn same_object(&mut self, a: TermId, b: TermId) -> Option<bool> {
        let same = self.equal(a, b);
        self.known(same)
    }

    /// The byte of a memory at an object and offset.
    pub(crate) fn select(&mut self, memory: TermId, object: TermId, offset: TermId) -> TermId {
        let key = (memory, object, offset);
        if let Some(t) = self.selected.get(&key) {
            return *t;
        }
        if self.is_full() {
            return self.make(TermNode::Select(memory, object, offset), Sort::Bits(8));
        }
        // Walks down the chain of stores elsewhere, without recursion.
        let mut at = memory;
        let found = loop {
            match *self.node(at) {
                TermNode::Store(below, o, f, byte) => match self.same_place((o, f), (object, offset)) {
                    Some(true) => break byte,
                    Some(false) => at = below,
                    None if !self.forms.aliases => {
                        break self.make(TermNode::Select(at, object, offset), Sort::Bits(8));
                    }
                    None => {
                        let here = self.place_equal((o, f), (object, offset));
                        let deeper = self.select(below, object, offset);
                        break self.ite(here, byte, deeper);
                    }
                },
                TermNode::Ite(c, a, b) => {
                    let (a, b) = (self.select(a, object, offset), self.select(b, object, offset));
                    break self.ite(c, a, b);
                }
                _ => match self.beside(at, object, offset) {
                    Some(below) => at = below,
                    None => break self.make(TermNode::Select(at, object, offset), Sort::Bits(8)),
                },
            }
        };
        self.selected.insert(key, found);
        found
    }

    /// The memory before a call left bytes in it, if this place is none of them.
    fn beside(&mut self, memory: TermId, object: TermId, offset: TermId) -> Option<TermId> {
        let TermNode::App(f, args) = self.node(memory) else { return None };
        if !self.name(*f).starts_with(FILLED) {
            return None;
        }
        let [_, below, o, first, count] = args[..] else { return None };
        let apart = self.same_object(o, object) == Some(false)
            || self.forms.offsets
                && sum::distance(self, offset, first)
                    .is_some_and(|d| self.value(count).is_some_and(|n| d >= n));
        apart.then_some(below)
    }

    fn place_equal(&mut self, a: (TermId, TermId), b: (TermId, TermId)) -> TermId {
        let objects = self.equal(a.0, b.0);
        let offsets = match self.forms.offsets {
            true => self.equal(a.1, b.1),
            false => self.make(TermNode::Compare(Pred::Eq, a.1, b.1), Sort::Bool),
        };
        self.and(&[objects, offsets])
    }

    /// A memory with one byte replaced. Stores at places that are certainly distinct have a canonical order.
    pub(crate) fn store(&mut self, memory: TermId, object: TermId, offset: TermId, byte: TermId) -> TermId {
        if let TermNode::Store(below, o, f, value) = *self.node(memory)
            && !self.is_full()
        {
            match self.same_place((o, f), (object, offset)) {
                Some(true) => return self.store(below, object, offset, byte),
                Some(false) if (o, f) > (object, offset) => {
                    let inner = self.store(below, object, offset, byte);
                    return self.make(TermNode::Store(inner, o, f, value), Sort::Memory);
                }
                _ => {}
            }
        }
        // A store of the byte that is there already changes nothing.
        if self.select(memory, object, offset) == byte {
            return memory;
        }
        self.make(TermNode::Store(memory, object, offset, byte), Sort::Memory)
    }

    /// Merges a choice between two memories that differ by a few stores on top of one base: one memory with
    /// choices of bytes.
    pub(super) fn decide_memory(&mut self, x: TermId, a: TermId, b: TermId) -> Option<TermId> {
        if self.is_full() {
            return None;
        }
        let base = self.common_base(a, b)?;
        let mut places = self.places_above(a, base);
        places.extend(self.places_above(b, base));
        places.sort_unstable();
        places.dedup();
        // If places may coincide, the order of stores counts: those are left alone.
        for (i, p) in places.iter().enumerate() {
            for q in &places[i + 1..] {
                if self.same_place(*p, *q) != Some(false) {
                    return None;
                }
            }
        }
        let mut out = base;
        for (o, f) in places {
            let (high, low) = (self.select(a, o, f), self.select(b, o, f));
            let byte = self.ite(x, high, low);
            out = self.store(out, o, f, byte);
        }
        Some(out)
    }

    /// The memory that both are built on by stores alone.
    fn common_base(&self, a: TermId, b: TermId) -> Option<TermId> {
        let (x, y) = (self.base(a), self.base(b));
        (x == y).then_some(x)
    }

    pub(super) fn base(&self, mut t: TermId) -> TermId {
        while let TermNode::Store(below, ..) = self.node(t) {
            t = *below;
        }
        t
    }

    pub(super) fn places_above(&self, mut t: TermId, base: TermId) -> Vec<(TermId, TermId)> {
        let mut out = Vec::new();
        while t != base {
            let TermNode::Store(below, o, f, _) = *self.node(t) else { break };
            out.push((o, f));
            t = below;
        }
        out
    }
}
