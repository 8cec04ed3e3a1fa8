//! Limits of the variants that are made, as learnt from those that were refused or did not pay.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millstream_specializer::transform::{CodeBudget, SiteId};
use millstream_specializer::variant::VariantCompiler;

/// Time without caches, or without copies of the code after lookups, after some did not pay.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// Limits of variants.
#[derive(Debug)]
pub(super) struct CompileLimits {
    /// True if the kernel has refused inlined programs.
    pub(super) apart: bool,
    /// Instructions in copies of the code after lookups, at most: as many as the kernel takes.
    pub(super) room: usize,
    /// Sites that get no twins: twins cannot answer lookups of their form, or none are wanted.
    pub(super) unfit: BTreeSet<SiteId>,
    /// Time at which caches were given up because they did not pay.
    pub(super) uncached: Option<Instant>,
    /// Time at which copies of the code after lookups, one for each value, were given up because they did not
    /// pay.
    pub(super) uncopied: Option<Instant>,
    /// True if such copies are made even if packets wait and the copies are long: a variant without any did
    /// not pay.
    pub(super) is_patient: bool,
}

impl CompileLimits {
    /// Limits before anything was made, with or without `twins`.
    pub(super) fn new(compiler: &VariantCompiler, twins: bool) -> CompileLimits {
        let mut limits = CompileLimits {
            apart: false,
            room: 0,
            unfit: BTreeSet::new(),
            uncached: None,
            uncopied: None,
            is_patient: false,
        };
        limits.restart(compiler, twins);
        limits
    }

    /// Forgets the kernel's limits, and findings about lookups by number: another compiler makes the variants.
    pub(super) fn restart(&mut self, compiler: &VariantCompiler, twins: bool) {
        (self.apart, self.room) = (false, CodeBudget::default().code);
        let all = || compiler.sites().iter().map(|s| s.id).collect();
        self.unfit = if twins { BTreeSet::new() } else { all() };
    }

    /// Gives up the parts of a variant that did not pay and that may have cost more than they gained; returns
    /// true if there are any.
    pub(super) fn give_up(&mut self, caches: bool, copies: bool) -> bool {
        if caches {
            self.uncached = Some(Instant::now());
        } else if copies {
            self.uncopied = Some(Instant::now());
        }
        caches || copies
    }

    /// Returns true if something that was given up because it did not pay may be tried again from now on.
    pub(super) fn may_try_again(&mut self) -> bool {
        let over = |since: &mut Instant| since.elapsed() >= GIVEN_UP;
        let tries = [self.uncached.take_if(over), self.uncopied.take_if(over)];
        tries.iter().any(Option::is_some)
    }
}
