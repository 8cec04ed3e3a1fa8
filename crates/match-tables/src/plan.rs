//! Which comparison comes when.
//!
//! Steps are made in the order in which they are to lie; each names those that follow it.

use rustc_hash::FxHashMap;

use super::TableForm;
use super::rules::{TableRule, TableTest, WordFacts};
use super::split::{self, RuleSplit};

/// So few rules are tested in order.
const FEW: usize = 2;

/// A comparison of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableComparison {
    /// Less than this.
    Below(u64),
    /// No more than this.
    AtMost(u64),
    /// This or more.
    AtLeast(u64),
    /// Just this.
    Equal(u64),
    /// This bit is set.
    Bit(u64),
    /// Between two bounds, inclusive.
    Within(u64, u64),
    /// This under a mask.
    Masked(u64, u64),
}

/// One step of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableStep {
    /// Compare a word, and go on with the one or the other step.
    Compare {
        /// Its place in the key.
        word: usize,
        /// With what.
        with: TableComparison,
        /// The step where it holds.
        yes: usize,
        /// The step where it does not.
        no: usize,
    },
    /// The match gives this.
    Result(i64),
}

/// All steps, and which is first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TablePlan {
    /// By number.
    pub steps: Vec<TableStep>,
    /// The first one's number.
    pub first: usize,
}

/// The steps that find the first of some rules over words of these widths. At most `spare` times, a rule is
/// copied to both sides of a comparison.
pub fn table_plan(rules: Vec<TableRule>, widths: &[u64], form: TableForm, spare: usize) -> TablePlan {
    let mut tree = DecisionTree { steps: Vec::new(), leaves: FxHashMap::default(), form };
    let known: Vec<WordFacts> = widths.iter().map(|&w| WordFacts::of_width(w)).collect();
    let first = tree.build(&TableRules { rules, otherwise: -1 }, &known, spare);
    TablePlan { steps: tree.steps, first }
}

/// Rules that each demand something, and the result where none is met.
struct TableRules {
    rules: Vec<TableRule>,
    otherwise: i64,
}

impl TableRules {
    /// The rules that remain, with the tests that remain of them, given these facts.
    fn given(&self, known: &[WordFacts]) -> TableRules {
        let mut left = TableRules { rules: Vec::new(), otherwise: self.otherwise };
        for rule in &self.rules {
            let tests: Option<Vec<TableTest>> =
                rule.tests.iter().zip(known).map(|(t, k)| t.given(k)).collect();
            match tests {
                None => {}
                Some(tests) if tests.iter().all(|&t| t == TableTest::Any) => {
                    left.otherwise = rule.result;
                    break;
                }
                Some(tests) => left.rules.push(TableRule { tests, result: rule.result }),
            }
        }
        while left.rules.last().is_some_and(|r| r.result == left.otherwise) {
            left.rules.pop();
        }
        left
    }

    /// The only word that anything is demanded of, if that is always an interval.
    fn single_word(&self) -> Option<usize> {
        let word = self.rules.first()?.tests.iter().position(|&t| t != TableTest::Any)?;
        let only = |r: &TableRule| {
            let others = r.tests.iter().enumerate().all(|(i, &t)| i == word || t == TableTest::Any);
            others && !matches!(r.tests[word], TableTest::Masked(..))
        };
        self.rules.iter().all(only).then_some(word)
    }

    /// The intervals, ascending, into which the rules divide a word, by first value; adjacent results differ.
    fn segments(&self, word: usize, known: &WordFacts) -> Vec<(u64, i64)> {
        let mut cuts = vec![known.lo];
        for rule in &self.rules {
            if let TableTest::Interval(lo, hi) = rule.tests[word] {
                cuts.push(lo);
                cuts.extend(hi.checked_add(1).filter(|&next| next <= known.hi));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        // From the last rule to the first, each overwrites the intervals that it covers.
        let mut results = vec![self.otherwise; cuts.len()];
        for rule in self.rules.iter().rev() {
            let (lo, hi) = match rule.tests[word] {
                TableTest::Interval(lo, hi) => (lo, hi),
                TableTest::Any | TableTest::Masked(..) => (known.lo, known.hi),
            };
            let from = cuts.partition_point(|&c| c < lo);
            let to = cuts.partition_point(|&c| c <= hi);
            results[from..to].fill(rule.result);
        }
        let mut segments: Vec<(u64, i64)> = cuts.into_iter().zip(results).collect();
        segments.dedup_by_key(|s| s.1);
        segments
    }
}

/// The tree under construction.
struct DecisionTree {
    steps: Vec<TableStep>,
    /// One step a result.
    leaves: FxHashMap<i64, usize>,
    form: TableForm,
}

impl DecisionTree {
    /// A step that is to be said yet.
    fn step(&mut self) -> usize {
        self.steps.push(TableStep::Result(-1));
        self.steps.len() - 1
    }

    fn leaf(&mut self, result: i64) -> usize {
        if let Some(&leaf) = self.leaves.get(&result) {
            return leaf;
        }
        self.steps.push(TableStep::Result(result));
        self.leaves.insert(result, self.steps.len() - 1);
        self.steps.len() - 1
    }

    /// The step that decides among the rules; `spare` more rules may be copied.
    fn build(&mut self, rules: &TableRules, known: &[WordFacts], spare: usize) -> usize {
        let rules = rules.given(known);
        if rules.rules.is_empty() {
            return self.leaf(rules.otherwise);
        }
        if self.form == TableForm::InOrder {
            return self.in_order(rules, known, spare);
        }
        if let Some(word) = rules.single_word() {
            return self.search(word, &rules.segments(word, &known[word]));
        }
        if rules.rules.len() > FEW
            && let Some((split, copies)) = split::best(&rules.rules, known, spare)
        {
            return self.divide(split, &rules, known, spare - copies);
        }
        self.in_order(rules, known, spare)
    }

    /// Each side may copy as many as its part of the rules.
    fn divide(&mut self, split: RuleSplit, rules: &TableRules, known: &[WordFacts], spare: usize) -> usize {
        let step = self.step();
        let (left, right) = split.sides(known);
        let (below, above) = (rules.given(&left), rules.given(&right));
        let all = (below.rules.len() + above.rules.len()).max(1);
        let no = self.build(&above, &right, spare * above.rules.len() / all);
        let yes = self.build(&below, &left, spare * below.rules.len() / all);
        match split {
            RuleSplit::Below(word, bound) => self.compare(step, word, TableComparison::Below(bound), yes, no),
            RuleSplit::Bit(word, bit) => self.compare(step, word, TableComparison::Bit(bit), no, yes),
        }
        step
    }

    /// A balanced search for the segment that a word lies in.
    fn search(&mut self, word: usize, segments: &[(u64, i64)]) -> usize {
        match *segments {
            [] => self.leaf(-1),
            [(_, result)] => self.leaf(result),
            [(_, outside), (lo, inside), (next, also)] if outside == also => {
                let step = self.step();
                let no = self.leaf(outside);
                let yes = self.leaf(inside);
                self.within(step, word, (lo, next - 1), None, yes, no);
                step
            }
            _ => {
                let step = self.step();
                let (left, right) = segments.split_at(segments.len() / 2);
                let no = self.search(word, right);
                let yes = self.search(word, left);
                self.compare(step, word, TableComparison::Below(right[0].0), yes, no);
                step
            }
        }
    }

    /// Tests of the first rules in order, then what decides among the others.
    fn in_order(&mut self, mut rules: TableRules, known: &[WordFacts], spare: usize) -> usize {
        let all = rules.rules.len();
        let count = if all <= FEW || self.form == TableForm::InOrder { all } else { (all / 8).max(1) };
        let others = rules.rules.split_off(count);
        let starts: Vec<usize> = rules.rules.iter().map(|_| self.step()).collect();
        let tail = self.build(&TableRules { rules: others, otherwise: rules.otherwise }, known, spare);
        for (i, rule) in rules.rules.iter().enumerate() {
            let no = starts.get(i + 1).copied().unwrap_or(tail);
            self.all(starts[i], rule, known, no);
        }
        starts[0]
    }

    /// Goes to the rule's result if all its tests hold, at the first that fails to `no`.
    fn all(&mut self, start: usize, rule: &TableRule, known: &[WordFacts], no: usize) {
        let tests: Vec<(usize, TableTest)> =
            rule.tests.iter().copied().enumerate().filter(|(_, t)| *t != TableTest::Any).collect();
        let mut step = start;
        for (i, &(word, test)) in tests.iter().enumerate() {
            let yes = if i + 1 == tests.len() { self.leaf(rule.result) } else { self.step() };
            match test {
                TableTest::Interval(lo, hi) => self.within(step, word, (lo, hi), Some(&known[word]), yes, no),
                TableTest::Masked(value, mask) => self.masked(step, word, (value, mask), yes, no),
                TableTest::Any => {}
            }
            step = yes;
        }
    }

    /// Branches on whether a word lies in an interval.
    fn within(
        &mut self,
        step: usize,
        word: usize,
        (lo, hi): (u64, u64),
        known: Option<&WordFacts>,
        yes: usize,
        no: usize,
    ) {
        let with = if lo == hi {
            TableComparison::Equal(lo)
        } else if known.is_some_and(|k| k.lo == lo) {
            TableComparison::AtMost(hi)
        } else if known.is_some_and(|k| k.hi == hi) {
            TableComparison::AtLeast(lo)
        } else {
            TableComparison::Within(lo, hi)
        };
        self.compare(step, word, with, yes, no);
    }

    fn masked(&mut self, step: usize, word: usize, (value, mask): (u64, u64), yes: usize, no: usize) {
        match mask.is_power_of_two() {
            true if value == 0 => self.compare(step, word, TableComparison::Bit(mask), no, yes),
            true => self.compare(step, word, TableComparison::Bit(mask), yes, no),
            false => self.compare(step, word, TableComparison::Masked(value, mask), yes, no),
        }
    }

    fn compare(&mut self, step: usize, word: usize, with: TableComparison, yes: usize, no: usize) {
        self.steps[step] = TableStep::Compare { word, with, yes, no };
    }
}
