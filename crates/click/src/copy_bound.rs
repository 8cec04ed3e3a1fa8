//! Number of copies that packets become. Copies are recorded as the code of elements is generated.
//!
//! Whoever runs the program reserves room for this number. It is an upper bound, since an element may copy a
//! packet to one output or to another.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::ElementPort;

/// Copies at most that are counted.
const MOST: u32 = 1 << 20;

/// To which inputs packets of each input are copied.
#[derive(Debug, Default)]
pub(crate) struct CopyGraph {
    now: Option<ElementPort>,
    copied: FxHashMap<ElementPort, Vec<ElementPort>>,
}

impl CopyGraph {
    /// Generation continues with the code of this input.
    pub(crate) fn at(&mut self, input: ElementPort) {
        self.now = Some(input);
        self.copied.remove(&input);
    }

    /// Packets of the input are copied to another one.
    pub(crate) fn record_copy(&mut self, to: ElementPort) {
        if let Some(now) = self.now {
            self.copied.entry(now).or_default().push(to);
        }
    }

    /// Maximum number of copies that a packet at these inputs becomes, with these connections of outputs.
    /// Paths that lead back are left out.
    pub(crate) fn copy_bound(
        &self,
        outputs: &FxHashMap<ElementPort, Vec<ElementPort>>,
        inputs: impl Iterator<Item = ElementPort>,
    ) -> u32 {
        let mut next: FxHashMap<usize, Vec<ElementPort>> = FxHashMap::default();
        for (from, to) in outputs {
            next.entry(from.element).or_default().extend(to);
        }
        let mut search = CopyBoundSearch {
            flow: self,
            next,
            known: FxHashMap::default(),
            on_the_way: FxHashSet::default(),
        };
        inputs.map(|input| search.copies(input)).max().unwrap_or(0)
    }
}

struct CopyBoundSearch<'f> {
    flow: &'f CopyGraph,
    /// Inputs behind each element.
    next: FxHashMap<usize, Vec<ElementPort>>,
    known: FxHashMap<ElementPort, u32>,
    on_the_way: FxHashSet<ElementPort>,
}

impl CopyBoundSearch<'_> {
    /// Copies that a packet becomes from an input on.
    fn copies(&mut self, from: ElementPort) -> u32 {
        let mut open = vec![(from, false)];
        while let Some((input, done)) = open.pop() {
            let copied = self.flow.copied.get(&input).cloned().unwrap_or_default();
            let behind = self.next.get(&input.element).cloned().unwrap_or_default();
            if !done {
                if self.known.contains_key(&input) || !self.on_the_way.insert(input) {
                    continue;
                }
                open.push((input, true));
                open.extend(copied.iter().chain(&behind).map(|port| (*port, false)));
                continue;
            }
            let of = |port: &ElementPort| self.known.get(port).copied().unwrap_or(0);
            let own = copied.iter().fold(0u32, |sum, port| sum.saturating_add(1).saturating_add(of(port)));
            let on = behind.iter().map(of).max().unwrap_or(0);
            self.known.insert(input, own.saturating_add(on).min(MOST));
            self.on_the_way.remove(&input);
        }
        self.known.get(&from).copied().unwrap_or(0)
    }
}
