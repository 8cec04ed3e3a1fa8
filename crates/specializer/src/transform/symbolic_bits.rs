//! Numbers bit by bit: each bit is known, or equals a bit of a word that only the packet knows, possibly
//! flipped.
//!
//! Rules mask the words of a packet, change their byte order or xor them before they compare them. That moves
//! and flips bits, so a comparison is a condition on bits of the words themselves.
//!
//! Invariant: a [`BitCondition`] is true exactly where the comparison is, except [`BitCondition::Open`], of
//! which nothing is known.

use std::array;

use millstream_ir::{AluOp, Cond, SwapKind, Value, Width};
use millstream_isa::semantics::eval;
use smallvec::SmallVec;

/// A bit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SymbolicBit {
    /// 0 or 1.
    Known(bool),
    /// This bit of a word.
    Of(BitLiteral),
    /// Anything.
    Open,
}

/// A bit of a word, and its value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct BitLiteral {
    pub(super) word: Value,
    pub(super) at: u8,
    pub(super) is: bool,
}

impl BitLiteral {
    pub(super) fn flipped(self) -> BitLiteral {
        BitLiteral { is: !self.is, ..self }
    }
}

/// A number of 64 bits, the lowest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SymbolicWord([SymbolicBit; 64]);

/// Known bits of words: word, mask of the known bits, their values.
#[derive(Clone, Default, Debug)]
pub(super) struct KnownWordBits(SmallVec<[(Value, u64, u64); 6]>);

impl KnownWordBits {
    /// The value of a bit, if known.
    fn of(&self, word: Value, at: u8) -> Option<bool> {
        let (_, known, is) = self.0.iter().find(|(of, ..)| *of == word)?;
        (known >> at & 1 == 1).then_some(is >> at & 1 == 1)
    }

    /// Tests a literal; `None` if its bit is not known.
    fn holds(&self, literal: BitLiteral) -> Option<bool> {
        self.of(literal.word, literal.at).map(|is| is == literal.is)
    }

    /// These facts, and that a literal holds.
    pub(super) fn with(&self, literal: BitLiteral) -> KnownWordBits {
        let mut facts = self.clone();
        let bit = 1u64 << literal.at;
        let is = if literal.is { bit } else { 0 };
        match facts.0.iter_mut().find(|(of, ..)| *of == literal.word) {
            Some((_, known, before)) => (*known, *before) = (*known | bit, *before & !bit | is),
            None => facts.0.push((literal.word, bit, is)),
        }
        facts
    }
}

impl SymbolicWord {
    pub(super) fn constant(value: u64) -> SymbolicWord {
        SymbolicWord(array::from_fn(|n| SymbolicBit::Known(value >> n & 1 == 1)))
    }

    /// A word of this many bits.
    pub(super) fn word(word: Value, bits: u32) -> SymbolicWord {
        let bit = |n: usize| SymbolicBit::Of(BitLiteral { word, at: n as u8, is: true });
        SymbolicWord(array::from_fn(|n| if (n as u32) < bits { bit(n) } else { SymbolicBit::Known(false) }))
    }

    /// A number of this many bits, all unknown.
    pub(super) fn open(bits: u32) -> SymbolicWord {
        SymbolicWord(array::from_fn(|n| {
            if (n as u32) < bits { SymbolicBit::Open } else { SymbolicBit::Known(false) }
        }))
    }

    pub(super) fn as_constant(&self) -> Option<u64> {
        self.0.iter().enumerate().try_fold(0, |sum, (n, bit)| match bit {
            SymbolicBit::Known(is) => Some(sum | u64::from(*is) << n),
            _ => None,
        })
    }

    /// The lowest bits, zero-extended.
    pub(super) fn lowest(&self, bits: u32) -> SymbolicWord {
        SymbolicWord(array::from_fn(
            |n| if (n as u32) < bits { self.0[n] } else { SymbolicBit::Known(false) },
        ))
    }

    /// The lowest bits, sign-extended to that width.
    pub(super) fn sign_extended(&self, bits: u32, width: Width) -> SymbolicWord {
        let sign = self.0[bits.clamp(1, 64) as usize - 1];
        SymbolicWord(array::from_fn(|n| if (n as u32) < bits { self.0[n] } else { sign }))
            .lowest(of_width(width))
    }

    pub(super) fn swapped(&self, kind: SwapKind, bits: u32) -> SymbolicWord {
        let mut swapped = [SymbolicBit::Known(false); 64];
        for (n, bit) in self.0.iter().enumerate() {
            let moved = eval::swap(kind, bits, 1 << n);
            if moved != 0 {
                swapped[moved.trailing_zeros() as usize] = *bit;
            }
        }
        SymbolicWord(swapped)
    }

    pub(super) fn alu(op: AluOp, width: Width, a: &SymbolicWord, b: &SymbolicWord) -> SymbolicWord {
        let wide = of_width(width);
        if let (Some(a), Some(b)) = (a.as_constant(), b.as_constant()) {
            return SymbolicWord::constant(eval::alu(op, width, a, b));
        }
        let by = b.as_constant().map(|by| by as usize & (wide as usize - 1));
        let each = |f: fn(SymbolicBit, SymbolicBit) -> SymbolicBit| {
            SymbolicWord(array::from_fn(|n| f(a.0[n], b.0[n])))
        };
        let whole = match (op, by) {
            (AluOp::And, _) => each(and),
            (AluOp::Or, _) => each(or),
            (AluOp::Xor, _) => each(xor),
            (AluOp::Lsh, Some(by)) => {
                SymbolicWord(array::from_fn(|n| if n < by { SymbolicBit::Known(false) } else { a.0[n - by] }))
            }
            (AluOp::Rsh, Some(by)) => {
                let a = a.lowest(wide);
                SymbolicWord(array::from_fn(|n| {
                    a.0.get(n + by).copied().unwrap_or(SymbolicBit::Known(false))
                }))
            }
            (AluOp::Arsh, Some(by)) => {
                let a = a.sign_extended(wide, Width::W64);
                SymbolicWord(array::from_fn(|n| a.0.get(n + by).copied().unwrap_or(a.0[63])))
            }
            // Without a carry, a sum is what either has.
            (AluOp::Add, _) if (0..64).all(|n| is_zero(a.0[n]) || is_zero(b.0[n])) => each(or),
            _ => SymbolicWord::open(64),
        };
        whole.lowest(wide)
    }

    /// The least and the greatest that it can be.
    fn range(&self, facts: &KnownWordBits) -> (u64, u64) {
        let known = |bit: &SymbolicBit| match bit {
            SymbolicBit::Known(is) => Some(*is),
            SymbolicBit::Of(literal) => facts.holds(*literal),
            SymbolicBit::Open => None,
        };
        let sum = |unknown: bool| {
            let is = |(n, bit): (usize, &SymbolicBit)| u64::from(known(bit).unwrap_or(unknown)) << n;
            self.0.iter().enumerate().map(is).fold(0, |sum, bit| sum | bit)
        };
        (sum(false), sum(true))
    }

    /// The word that it equals, and its width in bits.
    fn plain(&self) -> Option<(Value, u32)> {
        let SymbolicBit::Of(BitLiteral { word, at: 0, is: true }) = self.0[0] else { return None };
        let bits = self.0.iter().position(|bit| *bit == SymbolicBit::Known(false)).unwrap_or(64) as u32;
        (*self == SymbolicWord::word(word, bits)).then_some((word, bits))
    }

    /// The condition that it is this constant.
    fn equals(&self, constant: u64) -> BitCondition {
        let mut literals = BitLiterals::new();
        for (n, bit) in self.0.iter().enumerate() {
            let wanted = constant >> n & 1 == 1;
            match bit {
                SymbolicBit::Known(is) if *is == wanted => {}
                SymbolicBit::Known(_) => return BitCondition::Always(false),
                SymbolicBit::Of(literal) if wanted => literals.push(*literal),
                SymbolicBit::Of(literal) => literals.push(literal.flipped()),
                SymbolicBit::Open => return BitCondition::Open,
            }
        }
        literals.sort_unstable();
        literals.dedup();
        if literals.windows(2).any(|pair| pair[0] == pair[1].flipped()) {
            return BitCondition::Always(false);
        }
        if literals.is_empty() { BitCondition::Always(true) } else { BitCondition::All(literals) }
    }

    /// The condition that it lies between two constants, these included.
    fn within(&self, first: u64, last: u64) -> BitCondition {
        let (least, most) = self.range(&KnownWordBits::default());
        let (first, last) = (first.max(least), last.min(most));
        if first > last {
            return BitCondition::Always(false);
        }
        if (first, last) == (least, most) {
            return BitCondition::Always(true);
        }
        if first == last {
            return self.equals(first);
        }
        match self.plain() {
            Some((word, bits)) => BitCondition::Within { word, bits, first, last },
            None => BitCondition::Open,
        }
    }
}

fn of_width(width: Width) -> u32 {
    if width == Width::W64 { 64 } else { 32 }
}

fn is_zero(bit: SymbolicBit) -> bool {
    bit == SymbolicBit::Known(false)
}

fn and(a: SymbolicBit, b: SymbolicBit) -> SymbolicBit {
    match (a, b) {
        (SymbolicBit::Known(false), _) | (_, SymbolicBit::Known(false)) => SymbolicBit::Known(false),
        (SymbolicBit::Known(true), bit) | (bit, SymbolicBit::Known(true)) => bit,
        (SymbolicBit::Of(a), SymbolicBit::Of(b)) if a == b => SymbolicBit::Of(a),
        (SymbolicBit::Of(a), SymbolicBit::Of(b)) if a == b.flipped() => SymbolicBit::Known(false),
        _ => SymbolicBit::Open,
    }
}

fn not(bit: SymbolicBit) -> SymbolicBit {
    match bit {
        SymbolicBit::Known(is) => SymbolicBit::Known(!is),
        SymbolicBit::Of(literal) => SymbolicBit::Of(literal.flipped()),
        SymbolicBit::Open => SymbolicBit::Open,
    }
}

fn or(a: SymbolicBit, b: SymbolicBit) -> SymbolicBit {
    not(and(not(a), not(b)))
}

fn xor(a: SymbolicBit, b: SymbolicBit) -> SymbolicBit {
    match (a, b) {
        (SymbolicBit::Known(false), bit) | (bit, SymbolicBit::Known(false)) => bit,
        (SymbolicBit::Known(true), bit) | (bit, SymbolicBit::Known(true)) => not(bit),
        (SymbolicBit::Of(a), SymbolicBit::Of(b)) if a == b => SymbolicBit::Known(false),
        (SymbolicBit::Of(a), SymbolicBit::Of(b)) if a == b.flipped() => SymbolicBit::Known(true),
        _ => SymbolicBit::Open,
    }
}

pub(super) type BitLiterals = SmallVec<[BitLiteral; 8]>;

/// Condition that a comparison puts on words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum BitCondition {
    /// True or false, whatever the words.
    Always(bool),
    /// Conjunction of literals.
    All(BitLiterals),
    /// Disjunction of literals.
    Any(BitLiterals),
    /// The lowest bits of a word, as a number, lie between these. One bound is the least or the greatest
    /// value that they can have.
    Within {
        /// The word.
        word: Value,
        /// Width in bits.
        bits: u32,
        /// The least.
        first: u64,
        /// The greatest.
        last: u64,
    },
    /// Something else.
    Open,
}

impl BitCondition {
    /// The condition under which two numbers compare as asked.
    pub(super) fn new(cond: Cond, width: Width, a: &SymbolicWord, b: &SymbolicWord) -> BitCondition {
        let wide = of_width(width);
        let (a, b) = (a.lowest(wide), b.lowest(wide));
        if let (Some(a), Some(b)) = (a.as_constant(), b.as_constant()) {
            return BitCondition::Always(eval::cond(cond, width, a, b));
        }
        match cond {
            Cond::Eq => return SymbolicWord::alu(AluOp::Xor, width, &a, &b).equals(0),
            Cond::Ne => return SymbolicWord::alu(AluOp::Xor, width, &a, &b).equals(0).not(),
            Cond::Set => return SymbolicWord::alu(AluOp::And, width, &a, &b).equals(0).not(),
            _ => {}
        }
        let (number, constant, cond) = match (a.as_constant(), b.as_constant()) {
            (_, Some(constant)) => (a, constant, cond),
            (Some(constant), _) => (b, constant, cond.swapped()),
            _ => return BitCondition::Open,
        };
        let is_positive = |constant: u64| constant >> (wide - 1) & 1 == 0;
        let unsigned = is_zero(number.0[wide as usize - 1]) && is_positive(constant);
        let most = u64::MAX >> (64 - wide);
        match cond {
            Cond::Sgt | Cond::Sge | Cond::Slt | Cond::Sle if !unsigned => BitCondition::Open,
            Cond::Gt | Cond::Sgt if constant == most => BitCondition::Always(false),
            Cond::Gt | Cond::Sgt => number.within(constant + 1, most),
            Cond::Ge | Cond::Sge => number.within(constant, most),
            Cond::Lt | Cond::Slt if constant == 0 => BitCondition::Always(false),
            Cond::Lt | Cond::Slt => number.within(0, constant - 1),
            _ => number.within(0, constant),
        }
    }

    /// The opposite.
    pub(super) fn not(self) -> BitCondition {
        let flip = |literals: BitLiterals| literals.into_iter().map(BitLiteral::flipped).collect();
        match self {
            BitCondition::Always(is) => BitCondition::Always(!is),
            BitCondition::All(literals) => BitCondition::Any(flip(literals)),
            BitCondition::Any(literals) => BitCondition::All(flip(literals)),
            // One end is that of the word: comparisons have one constant.
            BitCondition::Within { word, bits, first: 0, last } => {
                SymbolicWord::word(word, bits).within(last + 1, u64::MAX)
            }
            BitCondition::Within { word, bits, first, .. } => {
                SymbolicWord::word(word, bits).within(0, first - 1)
            }
            BitCondition::Open => BitCondition::Open,
        }
    }

    /// Evaluates it under these facts; `None` if they do not decide it.
    pub(super) fn under(&self, facts: &KnownWordBits) -> Option<bool> {
        match self {
            BitCondition::Always(is) => Some(*is),
            BitCondition::All(literals) => {
                let mut all = Some(true);
                for literal in literals {
                    match facts.holds(*literal) {
                        Some(false) => return Some(false),
                        Some(true) => {}
                        None => all = None,
                    }
                }
                all
            }
            BitCondition::Any(literals) => {
                let flipped = literals.iter().map(|literal| literal.flipped()).collect();
                BitCondition::All(flipped).under(facts).map(|is| !is)
            }
            BitCondition::Within { word, bits, first, last } => {
                let (least, most) = SymbolicWord::word(*word, *bits).range(facts);
                match (least, most) {
                    _ if *first <= least && most <= *last => Some(true),
                    _ if most < *first || *last < least => Some(false),
                    _ => None,
                }
            }
            BitCondition::Open => None,
        }
    }

    /// Literals that hold wherever the condition does.
    pub(super) fn literals(&self) -> BitLiterals {
        match self {
            BitCondition::All(literals) => literals.clone(),
            BitCondition::Any(literals) if literals.len() == 1 => literals.clone(),
            BitCondition::Within { word, bits, first, last } => {
                // Above the highest bit in which the ends differ, all numbers between them are alike.
                let differing = 64 - (first ^ last).leading_zeros();
                let literal = |at: u32| BitLiteral { word: *word, at: at as u8, is: first >> at & 1 == 1 };
                (differing..*bits).map(literal).collect()
            }
            _ => BitLiterals::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;

    use super::*;

    /// Numbers by a simple rule.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 20 ^ *state << 7
    }

    /// The value of a number for a given word; `None` if a bit is open.
    fn value(bits: &SymbolicWord, word: u64) -> Option<u64> {
        bits.0.iter().enumerate().try_fold(0, |sum, (n, bit)| match bit {
            SymbolicBit::Known(is) => Some(sum | u64::from(*is) << n),
            SymbolicBit::Of(literal) => {
                Some(sum | u64::from((word >> literal.at & 1 == 1) == literal.is) << n)
            }
            SymbolicBit::Open => None,
        })
    }

    /// The facts that fix the lowest bits of a word.
    fn facts(word: Value, is: u64, bits: u8) -> KnownWordBits {
        (0..bits).fold(KnownWordBits::default(), |facts, at| {
            facts.with(BitLiteral { word, at, is: is >> at & 1 == 1 })
        })
    }

    #[test]
    fn numbers_and_conditions_are_what_they_compute() {
        let word = Value::new(3);
        let mut state = 1;
        let (mut decided, mut open) = (0, 0);
        for _ in 0..3_000 {
            let size = [8, 16, 32, 64][next(&mut state) as usize % 4];
            let width = [Width::W32, Width::W64][next(&mut state) as usize % 2];
            let held = next(&mut state) & u64::MAX >> (64 - size);
            let (mut bits, mut number) = (SymbolicWord::word(word, size), held);
            for _ in 0..3 {
                let constant = next(&mut state) >> (next(&mut state) % 64);
                let ops =
                    [AluOp::And, AluOp::Or, AluOp::Xor, AluOp::Lsh, AluOp::Rsh, AluOp::Arsh, AluOp::Add];
                let op = ops[next(&mut state) as usize % ops.len()];
                bits = SymbolicWord::alu(op, width, &bits, &SymbolicWord::constant(constant));
                number = eval::alu(op, width, number, constant);
                let order = [16, 32, 64][next(&mut state) as usize % 3];
                if next(&mut state).is_multiple_of(3) {
                    bits = bits.swapped(SwapKind::ToBe, order);
                    number = eval::swap(SwapKind::ToBe, order, number);
                } else if next(&mut state).is_multiple_of(3) {
                    bits = bits.sign_extended(order.min(32), width);
                    number = eval::movsx(width, order.min(32), number);
                }
            }
            let Some(computed) = value(&bits, held) else { continue };
            assert_eq!(computed, number);
            let constant =
                [number, number.wrapping_add(1), next(&mut state) >> 40][next(&mut state) as usize % 3];
            for cond in Cond::ALL {
                for (a, b, is) in [
                    (&bits, &SymbolicWord::constant(constant), eval::cond(cond, width, number, constant)),
                    (&SymbolicWord::constant(constant), &bits, eval::cond(cond, width, constant, number)),
                ] {
                    let condition = BitCondition::new(cond, width, a, b);
                    let all = facts(word, held, 64);
                    if condition == BitCondition::Open {
                        open += 1;
                        continue;
                    }
                    decided += 1;
                    assert_eq!(condition.under(&all), Some(is), "{condition:?} of {number} and {constant}");
                    assert_eq!(condition.clone().not().under(&all), Some(!is), "not {condition:?}");
                    let some = condition.under(&facts(word, held, next(&mut state) as u8 % 64));
                    assert!(some.is_none_or(|some| some == is));
                    assert!(!is || condition.literals().iter().all(|l| all.holds(*l) == Some(true)));
                }
            }
        }
        assert!(decided > 10_000 && open > 100, "{decided} and {open}");
    }

    #[test]
    fn what_differs_behind_a_mask_is_a_prefix() {
        let word = Value::new(0);
        let differs = SymbolicWord::alu(
            AluOp::Xor,
            Width::W32,
            &SymbolicWord::word(word, 32),
            &SymbolicWord::constant(0x0201_a8c0),
        );
        let masked =
            SymbolicWord::alu(AluOp::And, Width::W32, &differs, &SymbolicWord::constant(0x00ff_ffff));
        let BitCondition::All(literals) =
            BitCondition::new(Cond::Eq, Width::W32, &masked, &SymbolicWord::constant(0))
        else {
            panic!("{masked:?}")
        };
        assert_eq!(literals.len(), 24);
        assert!(literals.iter().all(|l| l.at < 24 && l.is == (0x01_a8c0 >> l.at & 1 == 1)));
    }
}
