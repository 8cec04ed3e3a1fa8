//! Many rules as a few trees of wide nodes: data, and a function (`emit::cuts`) that searches all of them
//! side by side.
//!
//! A node is [`WAYS`] - 1 bounds of a part of the key and [`WAYS`] children, a cache line in all; a leaf is
//! up to [`LANES`] rules, compared at once. The number of steps of a search is the height of the tree,
//! whatever the key, so there is no branch to mispredict, and the searches of several trees, and of the next
//! packet, overlap. Of the rules that the trees find, the first one counts.
//!
//! Invariant: the result of a tree for a key is the first of its rules that a linear scan would find.

mod boxes;
mod build;
mod groups;

use cranelift_entity::{EntityRef, PrimaryMap};
use millstream_interp::MapKind;
use millstream_ir::{GlobalData, Map, MapDecl};
use millstream_match_tables::{TableRule, TableTest};

use crate::image::{InitialMapEntry, InitialMapValue};
use boxes::RuleBoxes;
use build::{ChildRef, CutForest, CutNode, CutTree, LeafSuccessor, NONE, RuleLeaf};

pub(crate) use boxes::KeyDimension;
pub(crate) use build::{LANES, WAYS};

/// `BPF_F_RDONLY_PROG`.
const READ_ONLY: u32 = 1 << 7;
/// Leaves begin at cache lines.
const LINE: usize = 64;
/// Bytes of a node.
const NODE: usize = 8 * WAYS;
/// Copies of a rule in a tree: the limit of the average.
const COPIES: usize = 4;
/// Limits of the number of trees and of their height.
const MOST_TREES: usize = 6;
const MOST_HEIGHT: u32 = 10;
/// Candidates for the number of small intervals that may overlap in one place.
const CROWDS: [f64; 4] = [2.0, 4.0, 16.0, 64.0];
/// Relative costs of a step, of the comparisons in a leaf, of predicting whether another leaf follows, and of
/// each doubling of the memory beyond the size of a second-level cache.
const STEP: f64 = 3.0;
const COMPARE: f64 = 6.0;
const GUESS: f64 = 20.0;
const MEMORY: f64 = 10.0;
const CACHED: f64 = 512.0 * 1024.0;

/// Comparison of a word of the key in leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafComparison {
    pub(crate) word: usize,
    /// Width of a number, in bits.
    pub(crate) bits: usize,
    /// Offset of the numbers in a leaf: lower bounds, spans, and masks if there are any.
    pub(crate) offset: usize,
    pub(crate) masked: bool,
}

/// A tree as the search sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchTree {
    /// Offset of a node, or the complement of the offset of a leaf.
    pub(crate) root: i32,
    pub(crate) height: u32,
    /// True if leaves may follow leaves.
    pub(crate) chained: bool,
    /// Leaves that a search compares with, on average over rules.
    pub(crate) leaves: f64,
}

/// Trees of a match table, and their data.
pub(crate) struct CutClassifier {
    pub(crate) widths: Vec<u64>,
    /// Parts of the key that nodes compare, by number.
    pub(crate) parts: Vec<KeyDimension>,
    pub(crate) compared: Vec<LeafComparison>,
    /// Offset in a leaf of the numbers of its rules, and of the result if none matches.
    pub(crate) ranks: usize,
    pub(crate) trees: Vec<SearchTree>,
    /// True if some node divides by bits.
    pub(crate) rotated: bool,
    /// Offset in the data of the results, 32 bits each, by number of the rule.
    pub(crate) results: usize,
    /// The map that holds the data, once it is declared.
    pub(crate) map: Option<Map>,
    bytes: Vec<u8>,
}

/// The form of leaves.
struct LeafLayout {
    compared: Vec<LeafComparison>,
    ranks: usize,
    bytes: usize,
}

impl LeafLayout {
    fn new(rules: &[TableRule], widths: &[u64]) -> LeafLayout {
        let (mut compared, mut offset) = (Vec::new(), 0);
        for (word, width) in widths.iter().enumerate() {
            let tested = |is: fn(&TableTest) -> bool| rules.iter().any(|rule| is(&rule.tests[word]));
            if !tested(|test| *test != TableTest::Any) {
                continue;
            }
            let masked = tested(|test| matches!(test, TableTest::Masked(..)));
            let bits = width.count_ones().next_power_of_two().max(8) as usize;
            compared.push(LeafComparison { word, bits, offset, masked });
            offset += LANES * bits / 8 * if masked { 3 } else { 2 };
        }
        let ranks = offset.next_multiple_of(4);
        LeafLayout { compared, ranks, bytes: (ranks + 4 * (LANES + 1)).next_multiple_of(LINE) }
    }

    /// A leaf's bytes; `then` is its successor, as a number of a rule or of a place.
    fn leaf(&self, rules: &[TableRule], leaf: &RuleLeaf, then: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        for &LeafComparison { word, bits, offset, masked } in &self.compared {
            let all = u64::MAX >> (64 - bits);
            for lane in 0..LANES {
                // Lanes without a rule always match, and give the number behind all others.
                let test =
                    leaf.rules.get(lane).map_or(TableTest::Any, |&rule| rules[rule as usize].tests[word]);
                let (least, span, mask) = match test {
                    TableTest::Any => (0, all, all),
                    TableTest::Interval(low, high) => (low, high - low, all),
                    TableTest::Masked(value, mask) => (value, 0, mask),
                };
                let numbers = [least, span, mask];
                for (at, number) in numbers[..if masked { 3 } else { 2 }].iter().enumerate() {
                    let start = offset + (at * LANES + lane) * bits / 8;
                    bytes[start..start + bits / 8].copy_from_slice(&number.to_le_bytes()[..bits / 8]);
                }
            }
        }
        for lane in 0..=LANES {
            let rank = leaf.rules.get(lane).copied().unwrap_or(then);
            let start = self.ranks + 4 * lane;
            bytes[start..start + 4].copy_from_slice(&rank.to_le_bytes());
        }
        bytes
    }
}

/// A division's bytes. The number of bounds below the compared value is the index of the child; bounds are
/// stored so that they are ordered as signed numbers.
fn node(node: &CutNode, place: impl Fn(ChildRef) -> i32) -> Vec<u8> {
    let mut bytes = vec![4 * node.part as u8, node.rotate as u8, 0, 0];
    for at in 0..WAYS - 1 {
        let below = node.bounds.get(at).map_or(u32::MAX, |bound| bound - 1);
        bytes.extend_from_slice(&(below ^ 1 << 31).to_le_bytes());
    }
    for at in 0..WAYS {
        let child = node.children.get(at).or(node.children.last());
        bytes.extend_from_slice(&child.map_or(0, |&child| place(child)).to_le_bytes());
    }
    bytes
}

/// Trees of groups of rules, each of the height with the lowest search cost; and that cost.
fn plant(boxes: &RuleBoxes<'_>, groups: &[Vec<u32>], leaf_bytes: usize) -> (CutForest, Vec<CutTree>, f64) {
    let (mut forest, mut trees, mut total) = (CutForest::default(), Vec::new(), 0.0);
    for rules in groups {
        let mut most = MOST_HEIGHT;
        let mut best = None::<(f64, u32)>;
        // Tries lower trees than the best one, until they cost more.
        loop {
            let tree = CutForest::default().add(boxes, rules, most, COPIES * rules.len());
            let cost =
                STEP * f64::from(tree.height) + COMPARE * tree.leaves + GUESS * (tree.leaves - 1.0).min(1.0);
            if best.is_some_and(|(least, _)| cost > least) {
                break;
            }
            best = Some((cost, tree.height));
            let Some(less) = tree.height.checked_sub(1) else { break };
            most = less;
        }
        let Some((cost, height)) = best else { continue };
        trees.push(forest.add(boxes, rules, height, COPIES * rules.len()));
        total += cost;
    }
    let bytes = forest.nodes.len() * NODE + forest.leaves.len() * leaf_bytes;
    let memory = MEMORY * (bytes as f64 / CACHED).max(1.0).log2();
    (forest, trees, total + memory)
}

impl CutClassifier {
    /// Trees of rules over words of these widths; `None` if they would take more than two gibibytes.
    pub(crate) fn new(rules: &[TableRule], widths: &[u64]) -> Option<CutClassifier> {
        let boxes = RuleBoxes::new(rules, widths);
        let form = LeafLayout::new(rules, widths);
        let all = || (0..rules.len() as u32).collect::<Vec<u32>>();
        let mut tried = vec![vec![all()]];
        let mut found = plant(&boxes, &tried[0], form.bytes);
        for crowd in CROWDS {
            let groups = groups::groups(&boxes, all(), crowd, MOST_TREES);
            if !tried.contains(&groups) {
                let other = plant(&boxes, &groups, form.bytes);
                if other.2 < found.2 {
                    found = other;
                }
                tried.push(groups);
            }
        }
        let (forest, trees, _) = found;
        let leaves = (forest.nodes.len() * NODE).next_multiple_of(LINE);
        let results = leaves + forest.leaves.len() * form.bytes;
        i32::try_from(results + 4 * rules.len() + 4).ok()?;
        let place = |child: ChildRef| match child {
            ChildRef::Node(node) => node as i32 * NODE as i32,
            ChildRef::Leaf(leaf) => !((leaves + leaf as usize * form.bytes) as i32),
        };
        let mut bytes: Vec<u8> = forest.nodes.iter().flat_map(|one| node(one, place)).collect();
        bytes.resize(leaves, 0);
        for leaf in &forest.leaves {
            let then = match leaf.then {
                LeafSuccessor::Rule(NONE) => rules.len() as u32,
                LeafSuccessor::Rule(rule) => rule,
                LeafSuccessor::Leaf(next) => place(ChildRef::Leaf(next)) as u32,
            };
            bytes.extend(form.leaf(rules, leaf, then));
        }
        bytes.extend(rules.iter().map(|rule| rule.result as i32).chain([-1]).flat_map(i32::to_le_bytes));
        let search = |&CutTree { root, height, chained, leaves }: &CutTree| SearchTree {
            root: place(root),
            height,
            chained,
            leaves,
        };
        Some(CutClassifier {
            widths: widths.to_vec(),
            trees: trees.iter().map(search).collect(),
            rotated: forest.nodes.iter().any(|node| node.rotate > 0),
            parts: boxes.parts,
            compared: form.compared,
            ranks: form.ranks,
            results,
            map: None,
            bytes,
        })
    }

    /// Leaves that the search compares with in the worst tree, on average over its rules.
    pub(super) fn leaves(&self) -> f64 {
        self.trees.iter().map(|tree| tree.leaves).fold(0.0, f64::max)
    }

    /// Heights of the trees.
    pub(super) fn heights(&self) -> Vec<u32> {
        self.trees.iter().map(|tree| tree.height).collect()
    }

    /// Declares the map of the data, unless it exists.
    pub(super) fn declare(
        &mut self,
        name: &str,
        maps: &mut PrimaryMap<Map, MapDecl>,
        initial: &mut Vec<InitialMapEntry>,
    ) {
        if self.map.is_some() {
            return;
        }
        let map = maps.push(MapDecl {
            name: format!("{name}.cuts"),
            kind: MapKind::Array as u32,
            key_size: 4,
            value_size: self.bytes.len() as u32,
            max_entries: 1,
            flags: READ_ONLY,
            global: Some(GlobalData::Rodata),
            inner: None,
        });
        let value = InitialMapValue::Bytes(std::mem::take(&mut self.bytes));
        initial.push(InitialMapEntry { map: map.index(), key: vec![0; 4], value });
        self.map = Some(map);
    }
}
