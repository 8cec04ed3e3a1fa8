//! Which rules share a tree: those that one part of the key tells apart.
//!
//! A rule that leaves a part open is needed on all sides of what divides by that part. So rules of small intervals of a part make a tree of their own, in which few
//! are needed twice (separability, as in EffiCuts, and CutSplit of Li, Li, Li and Xie, INFOCOM 2018), as long as not too many of these intervals lie in one another.

use super::boxes::Boxes;

/// A tree has this part of the rules that there are at least, or all that are left.
const LEAST: usize = 16;

/// Rules by trees, each in order: in none but the last do more than `crowd` small intervals lie in one place on average.
pub(super) fn groups(boxes: &Boxes<'_>, mut rules: Vec<u32>, crowd: f64, most: usize) -> Vec<Vec<u32>> {
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

/// The logarithm of how many numbers of a part a rule takes.
fn log_size(boxes: &Boxes<'_>, rule: u32, part: usize) -> u32 {
    let span = boxes.span(rule, part);
    32 - (span.high - span.low).leading_zeros()
}

/// How many rules one can have whose intervals of a part are small, and how large these are at most.
fn small(boxes: &Boxes<'_>, rules: &[u32], part: usize, crowd: f64) -> (usize, u32) {
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

/// How many intervals the beginning of one lies in, on average.
fn crowded(boxes: &Boxes<'_>, rules: &[(u32, u32)], part: usize) -> f64 {
    let spans = || rules.iter().map(|&(_, rule)| boxes.span(rule, part));
    let mut lows: Vec<u32> = spans().map(|span| span.low).collect();
    let mut highs: Vec<u32> = spans().map(|span| span.high).collect();
    lows.sort_unstable();
    highs.sort_unstable();
    let around = |at: u32| lows.partition_point(|low| *low <= at) - highs.partition_point(|high| *high < at);
    lows.iter().map(|&low| around(low) as f64).sum::<f64>() / rules.len().max(1) as f64
}
