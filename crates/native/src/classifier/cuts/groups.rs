//! Groups of rules that share a tree: those that one part of the key tells apart.
//!
//! A rule that leaves a part open is needed on all sides of a division by that part. So rules with small
//! intervals of a part make a tree of their own, in which few are duplicated (separability, as in EffiCuts,
//! and CutSplit of Li, Li, Li and Xie, INFOCOM 2018), as long as not too many of these intervals overlap.

use super::boxes::RuleBoxes;

/// A tree has at least one in this many of all rules, or all that remain.
const LEAST: usize = 16;

/// Rules by trees, each in order: in none but the last do more than `crowd` small intervals overlap in one
/// place on average.
pub(super) fn groups(boxes: &RuleBoxes<'_>, mut rules: Vec<u32>, crowd: f64, most: usize) -> Vec<Vec<u32>> {
    let least = rules.len() / LEAST;
    let mut all = Vec::new();
    while all.len() + 1 < most && rules.len() > least {
        let parts = 0..boxes.parts.len();
        let some = parts.map(|part| (small(boxes, &rules, part, crowd), part)).max();
        let Some(((count, size), part)) = some.filter(|((count, _), _)| *count > least) else { break };
        if count == rules.len() {
            break;
        }
        let (few, rest) = rules.into_iter().partition(|&rule| log_size(boxes, rule, part) <= size);
        all.push(few);
        rules = rest;
    }
    if !rules.is_empty() {
        all.push(rules);
    }
    all
}

/// Logarithm of the number of values of a part that a rule matches.
fn log_size(boxes: &RuleBoxes<'_>, rule: u32, part: usize) -> u32 {
    let span = boxes.span(rule, part);
    32 - (span.high - span.low).leading_zeros()
}

/// Number of rules with small intervals of a part that can share a tree, and the largest size of these
/// intervals.
fn small(boxes: &RuleBoxes<'_>, rules: &[u32], part: usize, crowd: f64) -> (usize, u32) {
    let mut sizes: Vec<(u32, u32)> = rules.iter().map(|&rule| (log_size(boxes, rule, part), rule)).collect();
    sizes.sort_unstable();
    let mut last = usize::MAX;
    for size in (0..=32).rev() {
        let count = sizes.partition_point(|(of, _)| *of <= size);
        if count < last && crowded(boxes, &sizes[..count], part) <= crowd {
            return (count, size);
        }
        last = count;
    }
    (0, 0)
}

/// Average number of intervals that contain the first number of an interval.
fn crowded(boxes: &RuleBoxes<'_>, rules: &[(u32, u32)], part: usize) -> f64 {
    let spans = || rules.iter().map(|&(_, rule)| boxes.span(rule, part));
    let mut lows: Vec<u32> = spans().map(|span| span.low).collect();
    let mut highs: Vec<u32> = spans().map(|span| span.high).collect();
    lows.sort_unstable();
    highs.sort_unstable();
    let around = |at: u32| lows.partition_point(|low| *low <= at) - highs.partition_point(|high| *high < at);
    lows.iter().map(|&low| around(low) as f64).sum::<f64>() / rules.len().max(1) as f64
}
