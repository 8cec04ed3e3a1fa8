//! Predicted gain of a plan, from the cost of the lookups that it replaces.
//!
//! The cost of code in front of a lookup is the policy's model. A prediction ranks and is reported beside the
//! measurement; it never decides what is installed.

use millstream_ir::Map;
use millstream_isa::MapType;
use rustc_hash::FxHashMap;

use crate::policy::cost;
use crate::profile::SiteProfile;
use crate::transform::{SitePlan, SpecializationPlan};
use crate::variant::VariantCompiler;

/// Predicts the gain of a plan over the original, in nanoseconds per packet. `packets` were profiled;
/// `lookups` has the cost of lookups.
pub fn gain_ns(
    plan: &SpecializationPlan,
    compiler: &VariantCompiler,
    profiles: &[SiteProfile],
    packets: u64,
    lookups: &FxHashMap<Map, f64>,
) -> f64 {
    let gain = |planned: &SitePlan| {
        let site = compiler.sites().iter().find(|s| s.id == planned.site)?;
        let profile = profiles.iter().find(|p| p.site == planned.site)?;
        let behind = *lookups.get(&site.map)?;
        // Lookups whose keys do not matter are not counted: one a packet.
        let rate = if profile.total == 0 { 1.0 } else { profile.total as f64 / packets.max(1) as f64 };
        let shares: Vec<f64> = profile.shares().collect();
        let kind = MapType(compiler.declaration(site.map).kind);
        let instead = planned.lookup.specialization().cost_ns(kind, &shares, behind);
        Some(rate * (behind - instead))
    };
    plan.sites.iter().filter_map(gain).sum::<f64>() - cost::GUARD
}
