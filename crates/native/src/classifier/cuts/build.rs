//! Trees of cuts: the parts of the key and the bounds by which rules are divided.
//!
//! A node divides a region by one part of the key, at up to [`WAYS`] - 1 bounds that lie between rules
//! (equi-dense cuts, as in EffiCuts of Vamanan, Voskuilen and Vijaykumar, SIGCOMM 2010), or by some of its
//! bits if rules have masks. A leaf has the few remaining rules, in order, and the result if none of them
//! matches.
//!
//! Invariant: of all rules of a tree that match a key, the first one is in the leaf that the key leads to, or
//! in one that follows that leaf.

use rustc_hash::FxHashMap;

use super::boxes::{NodeRegion, RangeConstraint, RuleBoxes};

/// Children of a node.
pub(crate) const WAYS: usize = 8;
/// Rules of a leaf, compared at once.
pub(crate) const LANES: usize = 16;
/// Number of bounds around the best one that are also tried.
const AROUND: usize = 4;
/// Stands for no rule; greater than all rules.
pub(super) const NONE: u32 = u32::MAX;

/// Child of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ChildRef {
    Node(u32),
    Leaf(u32),
}

/// A division: a part of the key, rotated to the right, is compared with ascending bounds.
#[derive(Clone, Debug)]
pub(super) struct CutNode {
    pub(super) part: usize,
    pub(super) rotate: u32,
    pub(super) bounds: Vec<u32>,
    pub(super) children: Vec<ChildRef>,
}

/// A few rules in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct RuleLeaf {
    pub(super) rules: Vec<u32>,
    pub(super) then: LeafSuccessor,
}

/// Successor of a leaf none of whose rules matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LeafSuccessor {
    /// A rule that matches there, or [`NONE`].
    Rule(u32),
    /// Another leaf.
    Leaf(u32),
}

/// A tree's root, its height, whether leaves follow others, and the cost of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutTree {
    pub(super) root: ChildRef,
    pub(super) height: u32,
    pub(super) chained: bool,
    /// Leaves that a search compares with, on average over rules.
    pub(super) leaves: f64,
}

/// Nodes and leaves of some trees.
#[derive(Default)]
pub(super) struct CutForest {
    pub(super) nodes: Vec<CutNode>,
    pub(super) leaves: Vec<RuleLeaf>,
    known: FxHashMap<RuleLeaf, u32>,
    /// State of the current tree: its height, the rules in its leaves, and for each leaf the leaves before
    /// it.
    height: u32,
    placed: u64,
    waits: u64,
    chained: bool,
}

/// Position of a node's cuts, and their result.
struct NodeCut {
    part: usize,
    rotate: u32,
    bounds: Vec<u32>,
    /// Rules of all children.
    placed: usize,
    cost: f64,
}

/// Cost of this many rules in one place, in comparisons beyond those that a leaf does at once.
fn cost(count: usize) -> f64 {
    count as f64 * (1.0 + (count as f64 / LANES as f64).max(1.0).log2())
}

impl CutForest {
    /// Adds a tree of some rules, in order, of at most this height and with at most `spare` additional copies
    /// of rules.
    pub(super) fn add(&mut self, boxes: &RuleBoxes<'_>, rules: &[u32], height: u32, spare: usize) -> CutTree {
        (self.height, self.placed, self.waits, self.chained) = (0, 0, 0, false);
        let root = self.build(boxes, rules, &boxes.everywhere(), (0, height), spare);
        let leaves = self.waits as f64 / self.placed.max(1) as f64;
        CutTree { root, height: self.height, chained: self.chained, leaves }
    }

    fn build(
        &mut self,
        boxes: &RuleBoxes<'_>,
        rules: &[u32],
        region: &NodeRegion,
        (level, most): (u32, u32),
        spare: usize,
    ) -> ChildRef {
        let (rules, otherwise) = left(boxes, rules, region);
        self.height = self.height.max(level);
        let cut = (rules.len() > LANES && level < most).then(|| best(boxes, &rules, region, spare)).flatten();
        let Some(NodeCut { part, rotate, bounds, placed, .. }) = cut else {
            return self.leaf(&rules, otherwise);
        };
        let at = self.nodes.len();
        self.nodes.push(CutNode { part, rotate, bounds: bounds.clone(), children: Vec::new() });
        let spare = spare.saturating_sub(placed.saturating_sub(rules.len()));
        for child in 0..=bounds.len() {
            let mut inside = region.clone();
            inside[part] = side(&region[part], rotate, &bounds, child);
            let met = |rule: &u32| boxes.span(*rule, part).meets(&inside[part]);
            let mut some: Vec<u32> = rules.iter().copied().filter(met).collect();
            let share = spare * some.len() / placed.max(1);
            some.extend((otherwise != NONE).then_some(otherwise));
            let child = self.build(boxes, &some, &inside, (level + 1, most), share);
            self.nodes[at].children.push(child);
        }
        ChildRef::Node(at as u32)
    }

    /// A leaf of the first of these rules; the others are in leaves that follow it.
    fn leaf(&mut self, rules: &[u32], otherwise: u32) -> ChildRef {
        let mut then = LeafSuccessor::Rule(otherwise);
        let mut leaf = None;
        let count = rules.chunks(LANES).len() as u64;
        for (before, some) in rules.chunks(LANES).enumerate().rev() {
            self.placed += some.len() as u64;
            self.waits += some.len() as u64 * (before as u64 + 1);
            let at = self.shared(RuleLeaf { rules: some.to_vec(), then });
            leaf = Some(at);
            then = LeafSuccessor::Leaf(at);
        }
        self.chained |= count > 1;
        ChildRef::Leaf(leaf.unwrap_or_else(|| self.shared(RuleLeaf { rules: Vec::new(), then })))
    }

    fn shared(&mut self, leaf: RuleLeaf) -> u32 {
        let next = self.leaves.len() as u32;
        let at = *self.known.entry(leaf.clone()).or_insert(next);
        if at == next {
            self.leaves.push(leaf);
        }
        at
    }
}

/// The rules that can matter in a region, and the one that all its keys match.
fn left(boxes: &RuleBoxes<'_>, rules: &[u32], region: &NodeRegion) -> (Vec<u32>, u32) {
    /// At most this many rules are compared with each other.
    const MOST_COMPARED: usize = 4 * LANES;
    let end = rules.iter().position(|&rule| boxes.covers(rule, region));
    let (mut rest, otherwise) = match end {
        Some(end) => (rules[..end].to_vec(), rules[end]),
        None => (rules.to_vec(), NONE),
    };
    if rest.len() <= MOST_COMPARED {
        let all = rest.clone();
        let mut at = 0;
        rest.retain(|&rule| {
            at += 1;
            !all[..at - 1].iter().any(|&before| boxes.hides(before, rule, region))
        });
    }
    (rest, otherwise)
}

/// The span of a part on one side of bounds.
fn side(span: &RangeConstraint, rotate: u32, bounds: &[u32], child: usize) -> RangeConstraint {
    let first = child.checked_sub(1).map_or(0, |before| bounds[before]);
    match (rotate, bounds.get(child)) {
        (0, next) => span.within(first, next.map_or(u32::MAX, |next| next - 1)),
        // Bounds divide by the upper bits, which take all values.
        (_, _) => {
            let upper = !(u32::MAX >> (bounds.len() + 1).ilog2());
            span.with(upper.rotate_left(rotate), first.rotate_left(rotate))
        }
    }
}

/// The division with the lowest search cost; `None` if no division pays.
fn best(boxes: &RuleBoxes<'_>, rules: &[u32], region: &NodeRegion, spare: usize) -> Option<NodeCut> {
    let bounds = (0..boxes.parts.len()).filter_map(|part| between(boxes, rules, region, part, spare));
    let bits = (0..boxes.parts.len())
        .filter(|part| boxes.masked[*part])
        .flat_map(|part| by_bits(boxes, rules, region, part));
    bounds
        .chain(bits)
        .filter(|cut| cut.placed <= rules.len() + spare && cut.cost < 0.9 * cost(rules.len()))
        .min_by(|a, b| a.cost.total_cmp(&b.cost))
}

/// Bounds of a part: divides the fullest interval where that leaves the fewest rules, again and again.
fn between(
    boxes: &RuleBoxes<'_>,
    rules: &[u32],
    region: &NodeRegion,
    part: usize,
    spare: usize,
) -> Option<NodeCut> {
    let here = &region[part];
    let spans = || rules.iter().map(|&rule| boxes.span(rule, part));
    let mut lows: Vec<u32> = spans().map(|span| span.low).collect();
    let mut highs: Vec<u32> = spans().map(|span| span.high).collect();
    let ends = highs.iter().filter_map(|high| high.checked_add(1));
    let mut bounds: Vec<u32> = lows.iter().copied().chain(ends).collect();
    bounds.retain(|bound| here.low < *bound && *bound <= here.high);
    bounds.sort_unstable();
    bounds.dedup();
    lows.sort_unstable();
    highs.sort_unstable();
    let count = |from: u32, to: u32| {
        lows.partition_point(|low| *low <= to) - highs.partition_point(|high| *high < from)
    };
    // Intervals by their first number: the number of rules in each, and the bounds in it.
    let mut intervals = vec![(here.low, here.high, rules.len(), 0..bounds.len(), true)];
    let mut placed = rules.len();
    while intervals.len() < WAYS {
        let open = |(_, interval): &(usize, &(u32, u32, usize, std::ops::Range<usize>, bool))| interval.4;
        let Some((at, (low, high, full, inside, _))) =
            intervals.iter().cloned().enumerate().filter(|(at, i)| open(&(*at, i))).max_by_key(|(_, i)| i.2)
        else {
            break;
        };
        intervals[at].4 = false;
        if full <= LANES || inside.is_empty() {
            continue;
        }
        let sides = |bound: u32| (count(low, bound - 1), count(bound, high));
        let more = |bound: &u32| {
            let (left, right) = sides(*bound);
            left >= right
        };
        let middle = inside.start + bounds[inside.clone()].partition_point(|bound| !more(bound));
        let near = middle.saturating_sub(AROUND).max(inside.start)..(middle + AROUND).min(inside.end);
        let worth = |&chosen: &usize| {
            let (left, right) = sides(bounds[chosen]);
            cost(left) + cost(right)
        };
        let Some(chosen) = near.min_by(|a, b| worth(a).total_cmp(&worth(b))) else { continue };
        let (left, right) = sides(bounds[chosen]);
        if left.max(right) >= full || placed + left + right - full > rules.len() + spare {
            continue;
        }
        placed = placed + left + right - full;
        intervals[at] = (low, bounds[chosen] - 1, left, inside.start..chosen, true);
        intervals.insert(at + 1, (bounds[chosen], high, right, chosen + 1..inside.end, true));
    }
    let cost = intervals.iter().map(|interval| cost(interval.2)).sum();
    let bounds: Vec<u32> = intervals[1..].iter().map(|interval| interval.0).collect();
    (!bounds.is_empty()).then_some(NodeCut { part, rotate: 0, bounds, placed, cost })
}

/// Divisions by one bit of a part, or by two or three adjacent ones.
fn by_bits<'b>(
    boxes: &'b RuleBoxes<'_>,
    rules: &'b [u32],
    region: &'b NodeRegion,
    part: usize,
) -> impl Iterator<Item = NodeCut> + 'b {
    let here = region[part];
    let named = rules.iter().fold(0, |all, &rule| all | boxes.span(rule, part).bits) & !here.bits;
    let divided = move |(top, width): (u32, u32)| {
        // A rotation by zero is no division by bits.
        let rotate = (top + 1) % 32;
        let upper = (!(u32::MAX >> width)).rotate_left(rotate);
        if rotate == 0 || named >> top & 1 == 0 {
            return None;
        }
        let mut counts = [0; WAYS];
        for &rule in rules {
            let span = boxes.span(rule, part);
            let index = |bits: u32| (bits & upper).rotate_right(rotate) >> (32 - width);
            let (bits, value) = (index(span.bits), index(span.values));
            for (child, count) in counts[..1 << width].iter_mut().enumerate() {
                *count += usize::from((child as u32 ^ value) & bits == 0);
            }
        }
        let counts = &counts[..1 << width];
        let bounds = (1..1u32 << width).map(|child| child << (32 - width)).collect();
        let cost = counts.iter().map(|count| cost(*count)).sum();
        Some(NodeCut { part, rotate, bounds, placed: counts.iter().sum(), cost })
    };
    (0..32).flat_map(|top| (1..=WAYS.ilog2()).map(move |width| (top, width))).filter_map(divided)
}
