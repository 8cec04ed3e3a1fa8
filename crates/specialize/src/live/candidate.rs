//! Candidates for the hook: variants that are loaded, and neither admitted nor approved.

use std::mem::Discriminant;
use std::time::Duration;

use millstream_ir::KeyPiece;
use millstream_specializer::transform::{LookupPlan, SiteId, SpecializationPlan, TransformReport};

use super::generations::LoadedVariant;
use super::guarded_program::micros;
use crate::report::SessionReport;

/// A variant that could be put onto the hook.
pub(super) struct VariantCandidate {
    pub(super) shape: VariantShape,
    pub(super) plan: SpecializationPlan,
    pub(super) active: LoadedVariant,
    pub(super) making: CompileStats,
    /// True if there would be copies of the code after lookups if there were more time.
    pub(super) is_short: bool,
}

/// Cost of making a variant, and the entries of tables in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompileStats {
    pub(super) compile: Duration,
    pub(super) load: Duration,
    pub(super) entries: u32,
}

impl VariantCandidate {
    /// Report that it stands by.
    pub(super) fn fallback_report(&self) -> SessionReport {
        let (CompileStats { compile, load, .. }, active) = (self.making, &self.active);
        SessionReport::StandsBy {
            generation: active.generation,
            compile_us: micros(compile),
            load_us: micros(load),
            slots: active.linked.insns.len(),
        }
    }
}

/// Properties shared by variants that differ in constants only, or in the number of entries by less than a
/// factor of two.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct VariantShape {
    sites: Vec<(SiteId, Discriminant<LookupPlan>, u32)>,
    fields: usize,
    tests: Vec<(SiteId, KeyPiece, u32)>,
    has_copies: bool,
    /// Number of programs inlined at their calls.
    joined: usize,
}

impl VariantShape {
    pub(super) fn new(plan: &SpecializationPlan, report: &TransformReport) -> VariantShape {
        let entries = |site: SiteId| {
            let found = report.sites.iter().find(|(id, _)| *id == site);
            found.map_or(0, |(_, r)| r.entries.next_power_of_two().ilog2())
        };
        let inner = plan.within.iter().map(|within| &within.plan);
        let sites = plan.sites.iter().chain(inner);
        VariantShape {
            sites: sites.map(|s| (s.site, std::mem::discriminant(&s.lookup), entries(s.site))).collect(),
            fields: plan.fields.len(),
            tests: plan.tests.iter().map(|t| (t.site, t.piece, (t.values.len() + 1).ilog2())).collect(),
            has_copies: report.has_copies(),
            joined: report.joined.len(),
        }
    }
}
