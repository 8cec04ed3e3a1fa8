//! Variants of a session: the active one, and the one that stands by.

use std::collections::BTreeSet;

use millstream_ir::Map;
use millstream_kernel::KernelProgram;
use millstream_object::LinkedProgram;
use millstream_specializer::guard_state::token;
use millstream_specializer::policy::{KeyTestCandidate, StrategyBySite, Tier};
use millstream_specializer::profile::SiteProfile;

use super::deopt_maps::DeoptMaps;
use super::state_machine::SessionState;
use super::tail_calls::TailCallChain;
use crate::caches::EntryCaches;
use crate::inner_maps::InnerMaps;
use crate::shadow_tables::ShadowTables;
use crate::snapshot::Assumptions;

/// A variant on the hook.
#[derive(Debug)]
pub(super) struct LoadedVariant {
    pub(super) generation: u32,
    pub(super) program: KernelProgram,
    pub(super) linked: LinkedProgram,
    pub(super) record: Assumptions,
    pub(super) twins: ShadowTables,
    pub(super) spared: DeoptMaps,
    pub(super) caches: EntryCaches,
    /// The maps inside maps of maps that it names.
    pub(super) insides: InnerMaps,
    /// The programs that it calls.
    pub(super) chain: TailCallChain,
    pub(super) keys: StrategyBySite,
    /// Tests that could precede lookups, and those that do.
    pub(super) tried: Vec<KeyTestCandidate>,
    pub(super) profiles: Vec<SiteProfile>,
    pub(super) tier: Tier,
    /// True if it is large because it has several copies of the code after a lookup.
    pub(super) is_bulky: bool,
    /// True if it is taken back unless live traffic shows it to be faster.
    pub(super) on_trial: bool,
}

impl LoadedVariant {
    /// Value of the guard's token while it may run.
    pub(super) fn token(&self) -> u64 {
        token(self.generation, self.twins.side())
    }
}

/// The variants that may run in place of the original.
#[derive(Debug, Default)]
pub(super) struct Generations {
    pub(super) active: Option<LoadedVariant>,
    /// Variant for writes that the active one cannot follow.
    pub(super) standby: Option<LoadedVariant>,
    /// True if the standby variant handles packets from its slot, in place of the active one.
    pub(super) is_ahead: bool,
    /// True if no standby variant is possible.
    pub(super) alone: bool,
    /// The maps that somebody may write and that were in code, in the last variant that had any.
    pub(super) risked: BTreeSet<Map>,
    /// Number of the last variant that could come onto the hook.
    pub(super) last: u32,
}

impl Generations {
    /// State of the code on the hook, while the guard approves this token.
    pub(super) fn state(&self, approved: Option<u64>) -> SessionState {
        match &self.active {
            None => SessionState::Original,
            Some(_) if self.is_ahead => SessionState::Redirected,
            Some(active) if approved == Some(active.token()) => SessionState::Current,
            Some(_) => SessionState::Stale,
        }
    }

    /// Returns true if the active variant is taken back unless live traffic shows it to be faster.
    pub(super) fn is_on_trial(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.on_trial)
    }

    /// Notes that from now on programs may run that write maps without counting themselves in the caches of
    /// these.
    pub(super) fn open_caches(&mut self) {
        if let Some(active) = &mut self.active {
            active.caches.open();
        }
    }

    /// Notes that nobody comes any more who writes maps without counting himself in their caches.
    pub(super) fn settle_caches(&mut self) {
        if let Some(active) = &mut self.active {
            active.caches.settle();
        }
    }
}
