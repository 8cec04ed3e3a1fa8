//! Division of rules into two sets by one comparison.

use super::rules::{TableRule, TableTest, WordFacts};

/// A comparison of one word that divides keys into two classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RuleSplit {
    /// Below this bound, or not.
    Below(usize, u64),
    /// Without this bit, or with it.
    Bit(usize, u64),
}

/// A split with the number of rules that remain possible on each side.
struct SplitCandidate {
    split: RuleSplit,
    sides: (usize, usize),
}

impl SplitCandidate {
    fn larger(&self) -> usize {
        self.sides.0.max(self.sides.1)
    }

    fn both(&self) -> usize {
        self.sides.0 + self.sides.1
    }
}

/// The split that leaves the fewest rules in the worse case, if it pays: each side gets rid of an eighth of
/// the rules, and no more than `spare` rules are needed on both sides. The second result is how many are.
pub(super) fn best(rules: &[TableRule], known: &[WordFacts], spare: usize) -> Option<(RuleSplit, usize)> {
    let enough = rules.len() - (rules.len() / 8).max(1);
    (0..known.len())
        .flat_map(|word| below(rules, word, &known[word]).into_iter().chain(bits(rules, word)))
        .filter(|c| c.larger() <= enough && c.both() <= rules.len() + spare)
        .min_by_key(|c| (c.larger(), c.both()))
        .map(|c| (c.split, c.both().saturating_sub(rules.len())))
}

/// Splits at the bounds of intervals.
fn below(rules: &[TableRule], word: usize, known: &WordFacts) -> Vec<SplitCandidate> {
    let (mut los, mut his) = (Vec::new(), Vec::new());
    for rule in rules {
        if let TableTest::Interval(lo, hi) = rule.tests[word] {
            los.push(lo);
            his.push(hi);
        }
    }
    los.sort_unstable();
    his.sort_unstable();
    let everywhere = rules.len() - los.len();
    let mut bounds: Vec<u64> =
        los.iter().copied().chain(his.iter().filter_map(|h| h.checked_add(1))).collect();
    bounds.retain(|&b| known.lo < b && b <= known.hi);
    bounds.sort_unstable();
    bounds.dedup();
    let sides = |b| {
        let left = los.partition_point(|&lo| lo < b);
        let right = his.len() - his.partition_point(|&hi| hi < b);
        (everywhere + left, everywhere + right)
    };
    bounds.iter().map(|&b| SplitCandidate { split: RuleSplit::Below(word, b), sides: sides(b) }).collect()
}

/// Splits at the bits that masks name.
fn bits(rules: &[TableRule], word: usize) -> Vec<SplitCandidate> {
    let (mut zeros, mut ones, mut named) = ([0usize; 64], [0usize; 64], 0);
    for rule in rules {
        let (value, mask) = match rule.tests[word] {
            TableTest::Masked(value, mask) => {
                named |= mask;
                (value, mask)
            }
            TableTest::Interval(lo, hi) if lo == hi => (lo, u64::MAX),
            _ => continue,
        };
        for bit in 0..64 {
            if mask >> bit & 1 == 1 {
                let side = if value >> bit & 1 == 1 { &mut ones } else { &mut zeros };
                side[bit] += 1;
            }
        }
    }
    (0..64)
        .filter(|bit| named >> bit & 1 == 1)
        .map(|bit| SplitCandidate {
            split: RuleSplit::Bit(word, 1 << bit),
            sides: (rules.len() - ones[bit], rules.len() - zeros[bit]),
        })
        .collect()
}

impl RuleSplit {
    /// Facts on each side.
    pub(super) fn sides(self, known: &[WordFacts]) -> (Vec<WordFacts>, Vec<WordFacts>) {
        let (mut left, mut right) = (known.to_vec(), known.to_vec());
        match self {
            RuleSplit::Below(word, bound) => {
                left[word].hi = bound - 1;
                right[word].lo = bound;
            }
            RuleSplit::Bit(word, bit) => {
                left[word].bits |= bit;
                right[word].bits |= bit;
                right[word].values |= bit;
            }
        }
        (left, right)
    }
}
