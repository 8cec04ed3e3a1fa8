//! The cost of code, and the comparison of two costs.

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::str::FromStr;

/// Objective of an optimization.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OptimizationGoal {
    /// Fewest slots, at whatever price in cycles.
    Size,
    /// Shorter, but never slower by prediction.
    #[default]
    Balanced,
    /// Fewest predicted cycles, at whatever price in slots.
    Latency,
    /// Fewest instructions of the verifier; code is made as under `balanced`.
    Verify,
}

impl OptimizationGoal {
    /// All goals.
    pub const ALL: [OptimizationGoal; 4] = [
        OptimizationGoal::Size,
        OptimizationGoal::Balanced,
        OptimizationGoal::Latency,
        OptimizationGoal::Verify,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            OptimizationGoal::Size => "size",
            OptimizationGoal::Balanced => "balanced",
            OptimizationGoal::Latency => "latency",
            OptimizationGoal::Verify => "verify",
        }
    }

    /// Returns true if `new` may take the place of `old`, and is worth it.
    ///
    /// `size`: fewer slots; with as many, fewer cycles; then fewer bytes. `latency`: fewer cycles; then fewer
    /// bytes; then fewer slots. Under `balanced` it is no total order, since cycles are traded for length in
    /// neither direction: `new` must be no worse in cycles and in [`CodeCost::length`], and better in one of
    /// the two.
    pub fn improves(self, new: CodeCost, old: CodeCost) -> bool {
        match self {
            OptimizationGoal::Balanced | OptimizationGoal::Verify => {
                let (cycles, length) = (new.cycles.cmp(&old.cycles), new.length().cmp(&old.length()));
                cycles.is_le() && length.is_le() && (cycles.is_lt() || length.is_lt())
            }
            _ => self.rank(new, old) < self.rank(old, old),
        }
    }

    /// Which of two candidates to prefer in place of an original of cost `base`: less is better. A total
    /// preorder.
    ///
    /// Under `balanced`, candidates slower than the original come after all others, then those longer in
    /// slots or bytes after those that are not; among the rest the shorter by [`CodeCost::length`], then the
    /// faster.
    pub fn compare(self, a: CodeCost, b: CodeCost, base: CodeCost) -> Ordering {
        self.rank(a, base).cmp(&self.rank(b, base))
    }

    /// A cost as [`compare`](Self::compare) sees it: less is better.
    pub fn rank(self, cost: CodeCost, base: CodeCost) -> [u64; 5] {
        let CodeCost { slots, jited, cycles } = cost;
        let (slots, jited) = (u64::from(slots), u64::from(jited));
        match self {
            OptimizationGoal::Size => [slots, cycles, jited, 0, 0],
            OptimizationGoal::Latency => [cycles, jited, slots, 0, 0],
            OptimizationGoal::Balanced | OptimizationGoal::Verify => {
                let slower = cycles.saturating_sub(base.cycles);
                let longer =
                    slots.saturating_sub(base.slots.into()) + jited.saturating_sub(base.jited.into());
                [slower, longer, cost.length(), cycles, slots]
            }
        }
    }

    /// One number for searches that walk through worse candidates, in about bytes; less is better. What
    /// counts second counts a thousandth of it, so that in the end [`OptimizationGoal::improves`] has to be
    /// asked.
    pub fn energy(self, cost: CodeCost) -> f64 {
        let CodeCost { slots, jited, cycles } = cost;
        let (slots, jited, cycles) = (f64::from(slots), f64::from(jited), cycles as f64 / 1000.0);
        match self {
            OptimizationGoal::Size => 8.0 * slots + cycles / 1024.0 + jited / 1_048_576.0,
            OptimizationGoal::Balanced | OptimizationGoal::Verify => cost.length() as f64 + 8.0 * cycles,
            OptimizationGoal::Latency => 8.0 * cycles + jited / 1024.0 + slots / 1_048_576.0,
        }
    }
}

impl fmt::Display for OptimizationGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No goal has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no goal `{0}`: there are size, balanced, latency and verify")]
pub struct UnknownGoal(pub String);

impl FromStr for OptimizationGoal {
    type Err = UnknownGoal;

    fn from_str(name: &str) -> Result<OptimizationGoal, UnknownGoal> {
        OptimizationGoal::ALL.into_iter().find(|g| g.name() == name).ok_or_else(|| UnknownGoal(name.into()))
    }
}

/// Cost of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CodeCost {
    /// Slots of eight bytes; `ld_imm64` is two.
    pub slots: u32,
    /// Bytes of x86-64 code that the kernel's JIT makes of it, as [`jited_bytes`](crate::jit::jited_bytes)
    /// counts.
    pub jited: u32,
    /// Predicted thousandths of a cycle for one run, blocks weighted by how often they run.
    pub cycles: u64,
}

impl CodeCost {
    /// Bytes and slots as one length: a slot saved is worth four bytes, for programs are compared by both.
    pub fn length(self) -> u64 {
        u64::from(self.jited) + 4 * u64::from(self.slots)
    }

    /// Both together.
    pub fn plus(self, other: CodeCost) -> CodeCost {
        CodeCost {
            slots: self.slots + other.slots,
            jited: self.jited + other.jited,
            cycles: self.cycles + other.cycles,
        }
    }

    /// The best of some candidates in place of an original of cost `base`; the first of equals.
    pub fn best<T>(
        goal: OptimizationGoal,
        base: CodeCost,
        candidates: impl IntoIterator<Item = (CodeCost, T)>,
    ) -> Option<(CodeCost, T)> {
        let candidates = candidates.into_iter().enumerate();
        candidates.max_by_key(|(n, (c, _))| (Reverse(goal.rank(*c, base)), Reverse(*n))).map(|(_, c)| c)
    }
}

impl fmt::Display for CodeCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenths) = (self.cycles / 1000, self.cycles % 1000 / 100);
        write!(f, "{} slots, {} bytes, {whole}.{tenths} cycles", self.slots, self.jited)
    }
}
