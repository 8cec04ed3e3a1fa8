//! Arithmetic on values of any width, as words of 64 bits, least significant first.
//!
//! The bits above the width of a value are zero, also in signed values.

use millstream_ir::{AluOp, Cond, Value};

use crate::emitter::Emitter;
use crate::types::words_of;

/// Mask of the bits of a value's last word.
fn top_mask(width: u32) -> u64 {
    match width % 64 {
        0 if width > 0 => u64::MAX,
        rest => (1u64 << rest) - 1,
    }
}

impl Emitter {
    /// Clears the bits above the width.
    pub(crate) fn masked(&mut self, mut words: Vec<Value>, width: u32) -> Vec<Value> {
        words.truncate(words_of(width));
        if let Some(top) = words.last_mut() {
            *top = self.and(*top, top_mask(width));
        }
        words
    }

    pub(crate) fn zero_words(&mut self, width: u32) -> Vec<Value> {
        let zero = self.constant(0);
        vec![zero; words_of(width)]
    }

    /// All bits are one.
    fn ones(&mut self, width: u32) -> Vec<Value> {
        let ones = self.constant(u64::MAX);
        self.masked(vec![ones; words_of(width)], width)
    }

    /// Bits from `low` on, `width` of them.
    pub(crate) fn bits_from(&mut self, words: &[Value], low: u32, width: u32) -> Vec<Value> {
        let (skip, shift) = ((low / 64) as usize, low % 64);
        let zero = self.constant(0);
        let at = |n: usize| words.get(n).copied();
        let mut result = Vec::new();
        for n in 0..words_of(width) {
            let mut word = at(skip + n).unwrap_or(zero);
            if shift > 0 {
                word = self.alu_with(AluOp::Rsh, word, u64::from(shift));
                if let Some(next) = at(skip + n + 1) {
                    let high = self.alu_with(AluOp::Lsh, next, u64::from(64 - shift));
                    word = self.alu(AluOp::Or, word, high);
                }
            }
            result.push(word);
        }
        self.masked(result, width)
    }

    /// Shifts left by a constant.
    pub(crate) fn shifted_up(&mut self, words: &[Value], by: u32, width: u32) -> Vec<Value> {
        if by >= width {
            return self.zero_words(width);
        }
        let (skip, shift) = ((by / 64) as usize, by % 64);
        let zero = self.constant(0);
        let at = |n: usize| n.checked_sub(skip).and_then(|n| words.get(n)).copied();
        let mut result = Vec::new();
        for n in 0..words_of(width) {
            let mut word = at(n).unwrap_or(zero);
            if shift > 0 {
                word = self.alu_with(AluOp::Lsh, word, u64::from(shift));
                if let Some(below) = n.checked_sub(1).and_then(at) {
                    let low = self.alu_with(AluOp::Rsh, below, u64::from(64 - shift));
                    word = self.alu(AluOp::Or, word, low);
                }
            }
            result.push(word);
        }
        self.masked(result, width)
    }

    /// The highest bit as a truth value.
    pub(crate) fn sign(&mut self, words: &[Value], width: u32) -> Value {
        match width {
            0 => self.truth(false),
            _ => {
                let bit = self.bits_from(words, width - 1, 1);
                self.as_truth(bit[0])
            }
        }
    }

    /// Changes the width; a signed value is extended by its sign.
    pub(crate) fn resized(&mut self, words: &[Value], from: u32, to: u32, is_signed: bool) -> Vec<Value> {
        let zero = self.constant(0);
        let mut result: Vec<Value> = words.to_vec();
        result.resize(words_of(to).max(result.len()), zero);
        if is_signed && to > from {
            let sign = self.sign(words, from);
            let fill = self.value_of_sign(sign);
            let above = self.constant(!top_mask(from));
            let high = self.alu(AluOp::And, fill, above);
            let top = words_of(from) - 1;
            result[top] = self.alu(AluOp::Or, result[top], high);
            for word in &mut result[top + 1..] {
                *word = fill;
            }
        }
        self.masked(result, to)
    }

    /// All ones if the truth value holds, else zero.
    fn value_of_sign(&mut self, truth: Value) -> Value {
        let zero = self.constant(0);
        self.alu(AluOp::Sub, zero, truth)
    }

    pub(crate) fn add_words(&mut self, a: &[Value], b: &[Value], width: u32) -> Vec<Value> {
        let mut carry: Option<Value> = None;
        let mut result = Vec::new();
        for (n, (a, b)) in a.iter().zip(b).enumerate() {
            let sum = self.alu(AluOp::Add, *a, *b);
            let total = carry.map_or(sum, |carry| self.alu(AluOp::Add, sum, carry));
            if n + 1 < words_of(width) {
                let first = self.compare(Cond::Lt, sum, *a);
                let second = self.compare(Cond::Lt, total, sum);
                carry = Some(self.either(first, second));
            }
            result.push(total);
        }
        self.masked(result, width)
    }

    pub(crate) fn subtract_words(&mut self, a: &[Value], b: &[Value], width: u32) -> Vec<Value> {
        let mut borrow: Option<Value> = None;
        let mut result = Vec::new();
        for (n, (a, b)) in a.iter().zip(b).enumerate() {
            let difference = self.alu(AluOp::Sub, *a, *b);
            let total = borrow.map_or(difference, |borrow| self.alu(AluOp::Sub, difference, borrow));
            if n + 1 < words_of(width) {
                let first = self.compare(Cond::Lt, *a, *b);
                let second = borrow.map(|borrow| self.compare(Cond::Lt, difference, borrow));
                borrow = Some(second.map_or(first, |second| self.either(first, second)));
            }
            result.push(total);
        }
        self.masked(result, width)
    }

    pub(crate) fn negated(&mut self, words: &[Value], width: u32) -> Vec<Value> {
        let zero = self.zero_words(width);
        self.subtract_words(&zero, words, width)
    }

    pub(crate) fn complement(&mut self, words: &[Value], width: u32) -> Vec<Value> {
        let ones = self.ones(width);
        self.bitwise(AluOp::Xor, words, &ones)
    }

    pub(crate) fn bitwise(&mut self, op: AluOp, a: &[Value], b: &[Value]) -> Vec<Value> {
        a.iter().zip(b).map(|(a, b)| self.alu(op, *a, *b)).collect()
    }

    /// Multiplies in digits of 32 bits.
    pub(crate) fn multiply_words(&mut self, a: &[Value], b: &[Value], width: u32) -> Vec<Value> {
        if words_of(width) == 1 {
            let product = self.alu(AluOp::Mul, a[0], b[0]);
            return self.masked(vec![product], width);
        }
        let digits = 2 * words_of(width);
        let (a, b) = (self.digits(a), self.digits(b));
        let zero = self.constant(0);
        let mut sum = vec![zero; digits];
        for (i, left) in a.iter().enumerate() {
            let mut carry = zero;
            for (j, right) in b.iter().enumerate().take(digits - i) {
                let product = self.alu(AluOp::Mul, *left, *right);
                let with_sum = self.alu(AluOp::Add, product, sum[i + j]);
                let total = self.alu(AluOp::Add, with_sum, carry);
                sum[i + j] = self.and(total, u64::from(u32::MAX));
                carry = self.alu_with(AluOp::Rsh, total, 32);
            }
        }
        let mut words = Vec::new();
        for pair in sum.chunks(2) {
            let high = self.alu_with(AluOp::Lsh, pair[1], 32);
            words.push(self.alu(AluOp::Or, pair[0], high));
        }
        self.masked(words, width)
    }

    fn digits(&mut self, words: &[Value]) -> Vec<Value> {
        let mut digits = Vec::new();
        for word in words {
            digits.push(self.and(*word, u64::from(u32::MAX)));
            digits.push(self.alu_with(AluOp::Rsh, *word, 32));
        }
        digits
    }

    pub(crate) fn equal_words(&mut self, a: &[Value], b: &[Value]) -> Value {
        let mut result = None;
        for (a, b) in a.iter().zip(b) {
            let equal = self.compare(Cond::Eq, *a, *b);
            result = Some(result.map_or(equal, |before| self.both(before, equal)));
        }
        result.unwrap_or_else(|| self.truth(true))
    }

    /// Tells if `a` is below `b`.
    pub(crate) fn less_words(&mut self, a: &[Value], b: &[Value], width: u32, is_signed: bool) -> Value {
        let (mut a, mut b) = (a.to_vec(), b.to_vec());
        if is_signed && width > 0 {
            let bit = 1u64 << ((width - 1) % 64);
            for words in [&mut a, &mut b] {
                if let Some(top) = words.last_mut() {
                    *top = self.alu_with(AluOp::Xor, *top, bit);
                }
            }
        }
        let mut result = self.truth(false);
        for (a, b) in a.iter().zip(&b) {
            let less = self.compare(Cond::Lt, *a, *b);
            let equal = self.compare(Cond::Eq, *a, *b);
            let kept = self.both(equal, result);
            result = self.either(less, kept);
        }
        result
    }

    pub(crate) fn select_words(&mut self, truth: Value, yes: &[Value], no: &[Value]) -> Vec<Value> {
        yes.iter().zip(no).map(|(yes, no)| self.select(truth, *yes, *no)).collect()
    }

    /// Joins two values, `high` in the upper bits.
    pub(crate) fn joined(&mut self, high: (&[Value], u32), low: (&[Value], u32)) -> Vec<Value> {
        let width = high.1 + low.1;
        let upper = self.resized(high.0, high.1, width, false);
        let upper = self.shifted_up(&upper, low.1, width);
        let lower = self.resized(low.0, low.1, width, false);
        self.bitwise(AluOp::Or, &upper, &lower)
    }

    /// Adds or subtracts, and stops at the ends of the range.
    pub(crate) fn saturating(
        &mut self,
        is_sum: bool,
        operands: (&[Value], &[Value]),
        width: u32,
        is_signed: bool,
    ) -> Vec<Value> {
        let wide = width + 1;
        let a = self.resized(operands.0, width, wide, is_signed);
        let b = self.resized(operands.1, width, wide, is_signed);
        let exact = match is_sum {
            true => self.add_words(&a, &b, wide),
            false => self.subtract_words(&a, &b, wide),
        };
        let top = self.sign(&exact, wide);
        let cut = self.resized(&exact, wide, width, false);
        if !is_signed {
            let limit = if is_sum { self.ones(width) } else { self.zero_words(width) };
            return self.select_words(top, &limit, &cut);
        }
        let below = self.sign(&cut, width);
        let overflows = self.compare(Cond::Ne, top, below);
        let (one, ones) = (self.constant(1), self.ones(width));
        let mut unit = self.zero_words(width);
        unit[0] = one;
        let least = self.shifted_up(&unit, width - 1, width);
        let most = self.bitwise(AluOp::Xor, &ones, &least);
        let limit = self.select_words(top, &least, &most);
        self.select_words(overflows, &limit, &cut)
    }

    /// Shifts by an amount that is not known: each bit of the amount selects a shift by a power of two.
    pub(crate) fn shifted_by(
        &mut self,
        words: &[Value],
        amount: &[Value],
        format: (u32, bool),
        is_left: bool,
    ) -> Vec<Value> {
        let (width, is_signed) = format;
        let fills = is_signed && !is_left;
        let mut result = words.to_vec();
        let steps = u32::BITS - width.saturating_sub(1).leading_zeros();
        for step in 0..steps {
            let by = 1u32 << step;
            let shifted = match is_left {
                true => self.shifted_up(&result, by, width),
                false => self.shifted_down(&result, by, width, fills),
            };
            let bit = self.alu_with(AluOp::Rsh, amount[0], u64::from(step));
            let bit = self.and(bit, 1);
            result = self.select_words(bit, &shifted, &result);
        }
        let mut is_far = None;
        for (n, word) in amount.iter().enumerate() {
            let limit = if n == 0 { 1u64 << steps } else { 1 };
            let beyond = self.compare_with(Cond::Ge, *word, limit);
            is_far = Some(is_far.map_or(beyond, |before| self.either(before, beyond)));
        }
        let none = self.filled(words, width, fills);
        match is_far {
            Some(is_far) => self.select_words(is_far, &none, &result),
            None => result,
        }
    }

    /// Shifts right by a constant.
    pub(crate) fn shifted_down(&mut self, words: &[Value], by: u32, width: u32, fills: bool) -> Vec<Value> {
        if by >= width {
            return self.filled(words, width, fills);
        }
        let cut = self.bits_from(words, by, width - by);
        self.resized(&cut, width - by, width, fills)
    }

    /// Copies of the sign, or zeros.
    fn filled(&mut self, words: &[Value], width: u32, fills: bool) -> Vec<Value> {
        if !fills {
            return self.zero_words(width);
        }
        let sign = self.sign(words, width);
        let (ones, zeros) = (self.ones(width), self.zero_words(width));
        self.select_words(sign, &ones, &zeros)
    }
}
