//! Rules as boxes: the constraints of each on 32-bit parts of the key, and on the words themselves.
//!
//! Trees divide by parts, so that all their bounds have one size: a word of more than 32 bits has two parts.
//! A rule's constraint on a part is the smallest interval around all values that it matches (its hull) and
//! the bits that these values have in common; an interval of 64 bits leaves the lower part open if the upper
//! one is not a single value. Both may be weaker than the rule, never stronger: leaves compare the words.

use millstream_match_tables::{TableRule, TableTest};

/// 32 bits of a word of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyDimension {
    pub(crate) word: usize,
    /// 0, or 32 for the upper half.
    pub(crate) shift: u32,
}

/// Trees know at most this many parts; leaves handle the others.
const MOST_PARTS: usize = 64;

/// The parts of words of these widths; of each word all parts or none.
pub(super) fn parts(widths: &[u64]) -> Vec<KeyDimension> {
    let mut all = Vec::new();
    for (word, &width) in widths.iter().enumerate() {
        let shifts: &[u32] = if width > u64::from(u32::MAX) { &[32, 0] } else { &[0] };
        if all.len() + shifts.len() <= MOST_PARTS {
            all.extend(shifts.iter().map(|&shift| KeyDimension { word, shift }));
        }
    }
    all
}

/// Constraint on a part, or knowledge of it: inclusive bounds, and bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RangeConstraint {
    pub(super) low: u32,
    pub(super) high: u32,
    /// Mask of the known bits; `values` has their values.
    pub(super) bits: u32,
    pub(super) values: u32,
}

/// The bits that all numbers in an interval have in common.
fn common(low: u64, high: u64) -> u64 {
    u64::MAX.checked_shl(64 - (low ^ high).leading_zeros()).unwrap_or(0)
}

impl RangeConstraint {
    fn between(low: u32, high: u32) -> RangeConstraint {
        let bits = common(low.into(), high.into()) as u32;
        RangeConstraint { low, high, bits, values: low & bits }
    }

    /// Values of one part that a test matches.
    fn of(test: TableTest, width: u64, shift: u32) -> RangeConstraint {
        let part = |value: u64| (value >> shift) as u32;
        match test {
            TableTest::Interval(low, high) if shift > 0 || low >> 32 == high >> 32 => {
                RangeConstraint::between(part(low), part(high))
            }
            TableTest::Masked(value, mask) => RangeConstraint {
                low: part(value),
                high: part(value | width & !mask),
                bits: part(mask),
                values: part(value),
            },
            TableTest::Any | TableTest::Interval(..) => RangeConstraint::between(0, part(width)),
        }
    }

    /// Returns true if a number can be in both.
    pub(super) fn meets(&self, other: &RangeConstraint) -> bool {
        self.low <= other.high
            && other.low <= self.high
            && (self.values ^ other.values) & self.bits & other.bits == 0
    }

    /// The part of the span between two bounds, inclusive.
    pub(super) fn within(&self, low: u32, high: u32) -> RangeConstraint {
        let (low, high) = (self.low.max(low), self.high.min(high));
        let common = common(low.into(), high.into()) as u32;
        RangeConstraint { low, high, bits: self.bits | common, values: self.values | low & common }
    }

    /// The part of the span in which some bits have these values.
    pub(super) fn with(&self, bits: u32, values: u32) -> RangeConstraint {
        RangeConstraint { bits: self.bits | bits, values: self.values & !bits | values, ..*self }
    }
}

/// Known spans of all parts at some position of a tree.
pub(super) type NodeRegion = Vec<RangeConstraint>;

/// All rules.
pub(super) struct RuleBoxes<'r> {
    pub(super) rules: &'r [TableRule],
    widths: &'r [u64],
    pub(super) parts: Vec<KeyDimension>,
    /// Spans of each rule, one per part.
    spans: Vec<RangeConstraint>,
    /// True for parts on which some rule has a mask that is not an interval.
    pub(super) masked: Vec<bool>,
}

impl<'r> RuleBoxes<'r> {
    pub(super) fn new(rules: &'r [TableRule], widths: &'r [u64]) -> RuleBoxes<'r> {
        let parts = parts(widths);
        let span = |rule: &TableRule, part: &KeyDimension| {
            RangeConstraint::of(rule.tests[part.word], widths[part.word], part.shift)
        };
        let spans = rules.iter().flat_map(|rule| parts.iter().map(move |part| span(rule, part))).collect();
        let is_masked = |part: &KeyDimension| {
            rules.iter().any(|rule| matches!(rule.tests[part.word], TableTest::Masked(..)))
        };
        let masked = parts.iter().map(is_masked).collect();
        RuleBoxes { rules, widths, parts, spans, masked }
    }

    /// Constraint of a rule on a part.
    pub(super) fn span(&self, rule: u32, part: usize) -> &RangeConstraint {
        &self.spans[rule as usize * self.parts.len() + part]
    }

    /// The region of all keys.
    pub(super) fn everywhere(&self) -> NodeRegion {
        let whole =
            |part: &KeyDimension| RangeConstraint::of(TableTest::Any, self.widths[part.word], part.shift);
        self.parts.iter().map(whole).collect()
    }

    /// Bounds and bits of a whole word in a region. `None` for a word without parts, of which nothing is
    /// known.
    fn word(&self, region: &NodeRegion, word: usize) -> Option<(u64, u64, u64, u64)> {
        let mut known = None;
        for (part, span) in self.parts.iter().zip(region).filter(|(part, _)| part.word == word) {
            let (low, high, bits, values) = known.unwrap_or((0, 0, !u64::from(u32::MAX), 0));
            let with = |all: u64, more: u32| all | u64::from(more) << part.shift;
            let bits = if part.shift > 0 { 0 } else { bits };
            known = Some((
                with(low, span.low),
                with(high, span.high),
                with(bits, span.bits),
                with(values, span.values),
            ));
        }
        known
    }

    /// Returns true if a test that matches something in a region matches everything in it.
    fn takes_all(&self, test: TableTest, word: usize, region: &NodeRegion) -> bool {
        let (open, test) = match test {
            TableTest::Any => return true,
            test => (self.word(region, word), test),
        };
        let Some((least, most, bits, values)) = open else { return false };
        let known = |value: u64, mask: u64| mask & !bits == 0 && (value ^ values) & mask == 0;
        match test {
            TableTest::Any => true,
            TableTest::Interval(low, high) => {
                let mask = common(low, high) & self.widths[word];
                let prefix = low & !mask == 0 && high == low | self.widths[word] & !mask;
                low <= least && most <= high || prefix && known(low, mask)
            }
            TableTest::Masked(value, mask) => known(value, mask),
        }
    }

    /// Returns true if a rule matches all keys in a region.
    pub(super) fn covers(&self, rule: u32, region: &NodeRegion) -> bool {
        let tests = self.rules[rule as usize].tests.iter().enumerate();
        tests.into_iter().all(|(word, &test)| self.takes_all(test, word, region))
    }

    /// Returns true if a rule matches all keys in a region that another one matches.
    pub(super) fn hides(&self, rule: u32, other: u32, region: &NodeRegion) -> bool {
        let tests = self.rules[rule as usize].tests.iter().zip(&self.rules[other as usize].tests);
        tests.enumerate().all(|(word, (&test, &other))| {
            includes(test, other, self.widths[word]) || self.takes_all(test, word, region)
        })
    }
}

/// Returns true if a test matches everything that another one matches.
fn includes(test: TableTest, other: TableTest, width: u64) -> bool {
    let (low, high, value, mask) = match other {
        TableTest::Any => (0, width, 0, 0),
        TableTest::Interval(low, high) => (low, high, low, common(low, high)),
        TableTest::Masked(value, mask) => (value, value | width & !mask, value, mask),
    };
    match test {
        TableTest::Any => true,
        TableTest::Interval(from, to) => from <= low && high <= to,
        TableTest::Masked(bits, under) => under & !mask == 0 && (bits ^ value) & under == 0,
    }
}
