//! Sets of rules: those written by hand, those of a store, and the index over both.

use std::sync::{Arc, LazyLock};

use super::index::RuleIndex;
use super::parse::parse;
use super::rule::RewriteRule;
use super::store::RuleStore;

/// Rules with their index, in the order in which they are tried.
#[derive(Clone, Debug)]
pub struct RuleSet {
    rules: Vec<RewriteRule>,
    pub(super) index: RuleIndex,
}

/// The rules written by hand. The files are compiled in and a test reads them, so errors cannot occur.
const FILES: [(&str, &str); 5] = [
    ("arith.rules", include_str!("rules/arith.rules")),
    ("bits.rules", include_str!("rules/bits.rules")),
    ("shift.rules", include_str!("rules/shift.rules")),
    ("bytes.rules", include_str!("rules/bytes.rules")),
    ("compare.rules", include_str!("rules/compare.rules")),
];

impl RuleSet {
    /// The set of these rules. Those beyond 65,536 are left out.
    pub fn new(mut rules: Vec<RewriteRule>) -> RuleSet {
        rules.truncate(1 << 16);
        RuleSet { index: RuleIndex::new(&rules), rules }
    }

    /// The rules written by hand.
    pub fn written() -> Vec<RewriteRule> {
        let read = |(name, text): &(&str, &str)| parse(name, text).expect("the rule files are well formed");
        FILES.iter().flat_map(read).collect()
    }

    /// The rules that are applied unless said otherwise: those written by hand, then the store.
    pub fn shipped() -> Arc<RuleSet> {
        static SHIPPED: LazyLock<Arc<RuleSet>> = LazyLock::new(|| {
            let mut rules = RuleSet::written();
            rules.extend(RuleSet::shipped_store().entries.into_iter().map(|e| e.rule));
            Arc::new(RuleSet::new(rules))
        });
        Arc::clone(&SHIPPED)
    }

    /// The store that comes with this version. It is compiled in, and a test proves its rules.
    pub fn shipped_store() -> RuleStore {
        let store = RuleStore::parse("learned.rules", include_str!("learned.rules"));
        store.expect("the store is well formed")
    }

    /// The rules in order.
    pub fn rules(&self) -> &[RewriteRule] {
        &self.rules
    }
}
