//! Fuel: every rewrite has a number, and a driver can stop before any of them or leave single ones out.
//!
//! Numbers are given in the order of asking and do not depend on the answers before, as long as the program
//! up to that point is the same. Bisection finds the least limit at which a result goes wrong; the rewrite to
//! blame is the one before, and [`Fuel::skip`] drops it alone.

use std::collections::BTreeSet;

/// A rewrite: its number and the pass that asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RewriteRecord {
    /// Number, from 0.
    pub number: u64,
    /// The pass.
    pub pass: &'static str,
}

/// Permission to rewrite.
#[derive(Clone, Debug, Default)]
pub struct Fuel {
    limit: Option<u64>,
    skip: BTreeSet<u64>,
    asked: u64,
    granted: u64,
    // First number of each run of rewrites by one pass.
    runs: Vec<RewriteRecord>,
}

impl Fuel {
    /// Fuel for every rewrite.
    pub fn unlimited() -> Fuel {
        Fuel::default()
    }

    /// Fuel for the first `limit` rewrites.
    pub fn limited(limit: u64) -> Fuel {
        Fuel { limit: Some(limit), ..Fuel::default() }
    }

    /// Leaves one rewrite out.
    pub fn skip(mut self, number: u64) -> Fuel {
        self.skip.insert(number);
        self
    }

    /// Asks for one rewrite. On `false` the pass leaves the place as it is.
    pub fn ask(&mut self, pass: &'static str) -> bool {
        let number = self.asked;
        self.asked += 1;
        if self.runs.last().is_none_or(|r| r.pass != pass) {
            self.runs.push(RewriteRecord { number, pass });
        }
        let yes = self.limit.is_none_or(|limit| number < limit) && !self.skip.contains(&number);
        self.granted += u64::from(yes);
        yes
    }

    /// Rewrites asked for.
    pub fn requested(&self) -> u64 {
        self.asked
    }

    /// Rewrites granted.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// The first rewrite of each run of rewrites by one pass, in order.
    pub fn runs(&self) -> &[RewriteRecord] {
        &self.runs
    }

    /// Which pass asked for rewrite `number`.
    pub fn requester(&self, number: u64) -> Option<RewriteRecord> {
        if number >= self.asked {
            return None;
        }
        let at = self.runs.partition_point(|r| r.number <= number);
        self.runs.get(at.checked_sub(1)?).map(|r| RewriteRecord { number, pass: r.pass })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grants_a_prefix_and_skip_drops_one() {
        let mut fuel = Fuel::limited(3).skip(1);
        let answers: Vec<bool> = (0..5).map(|_| fuel.ask("a")).collect();
        assert_eq!(answers, [true, false, true, false, false]);
        assert_eq!((fuel.requested(), fuel.granted()), (5, 2));
    }

    #[test]
    fn blame_names_the_pass_that_asked() {
        let mut fuel = Fuel::unlimited();
        for pass in ["a", "a", "b", "a"] {
            fuel.ask(pass);
        }
        let passes: Vec<_> = (0..5).map(|n| fuel.requester(n).map(|r| r.pass)).collect();
        assert_eq!(passes, [Some("a"), Some("a"), Some("b"), Some("a"), None]);
    }
}
