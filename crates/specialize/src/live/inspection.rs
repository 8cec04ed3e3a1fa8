//! Inspection of a session: the way in which each lookup is answered, now.

use millstream_isa::MapType;
use millstream_kernel::KernelProgram;
use millstream_object::FuncId;
use millstream_specializer::policy::{KeyTestCandidate, LookupStrategy};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{LookupSite, SiteId};

use super::LiveError;
use super::code_listing::CodeListing;
use super::details::{KeyDetails, LookupDetails, LookupMethod, SessionDetails, SlotDetails, SlotTarget};
use super::guarded_program::GuardedProgram;
use super::key_text::key_text;
use crate::profile;

/// Keys shown for each lookup.
const KEYS: usize = 20;

/// A program, to be described.
pub(super) struct ProgramInspection<'p, 'c>(pub(super) &'p GuardedProgram<'c>);

impl ProgramInspection<'_, '_> {
    /// Describes the way in which each lookup is answered, and the keys, by the last look at the traffic.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn details(&self) -> Result<SessionDetails, LiveError> {
        let profiles = self.last_profiles()?;
        let reached = self.0.programs.compiler.sites().iter().filter(|site| self.0.programs.is_reached(site));
        let lookups = reached.map(|site| {
            let profile = profiles.iter().find(|p| p.site == site.id);
            self.lookup_details(site, profile)
        });
        let linked = self.0.programs.compiler.object().link(self.0.programs.compiler.program());
        let twins = self.0.generations.active.iter().flat_map(|a| a.twins.maps().chain(a.caches.maps()));
        Ok(SessionDetails {
            lookups: lookups.collect(),
            chain: self.slots()?,
            original_slots: linked.map_err(millstream_loader::Error::from)?.insns.len(),
            variant_slots: self.0.generations.active.as_ref().map(|a| a.linked.insns.len()),
            twin_bytes: twins.map(|(_, map)| u64::from(map.info().value_size)).sum(),
        })
    }

    /// Lists the instructions of the original and of the active variant.
    ///
    /// # Errors
    /// If the program cannot be linked.
    pub(super) fn code(&self) -> Result<CodeListing, LiveError> {
        let compiler = self.0.programs.compiler;
        let original = compiler.object().link(compiler.program()).map_err(millstream_loader::Error::from)?;
        let variant = self.0.generations.active.as_ref().map(|active| (active.generation, &active.linked));
        CodeListing::of(compiler.object(), &original, variant)
            .map_err(|error| LiveError::Unsuited(error.to_string()))
    }

    /// Describes the filled slots of program arrays.
    pub(super) fn slots(&self) -> Result<Vec<SlotDetails>, LiveError> {
        let held = self.0.programs.arrays.read()?;
        let details = |(of, slot, id, func): (_, _, _, Option<FuncId>)| {
            let active = self.0.generations.active.as_ref().map(|a| &a.chain);
            let functions = &self.0.programs.compiler.object().functions;
            SlotDetails {
                array: self.0.programs.compiler.declaration(of).name.clone(),
                slot,
                program: match func.and_then(|f| functions.get(f.index())) {
                    Some(function) => function.name.clone(),
                    None => {
                        KernelProgram::from_id(id).map_or_else(|_| id.to_string(), |p| p.name().to_owned())
                    }
                },
                runs: match func {
                    None => SlotTarget::Foreign,
                    Some(func) if active.is_some_and(|c| c.joins(func)) => SlotTarget::Joined,
                    Some(func) if active.is_some_and(|c| c.calls(func)) => SlotTarget::Variant,
                    Some(_) => SlotTarget::Original,
                },
            }
        };
        Ok(held.slots().map(details).collect())
    }

    /// Reads the sketch of the last burst; the profiles for which the variant was made, if there was no burst
    /// since.
    fn last_profiles(&self) -> Result<Vec<SiteProfile>, LiveError> {
        let made_for = || self.0.generations.active.as_ref().map_or_else(Vec::new, |a| a.profiles.clone());
        let (Some(made), Some(sketch)) =
            (&self.0.programs.profiling, self.0.programs.loader.map(self.0.programs.compiler.sketch()))
        else {
            return Ok(made_for());
        };
        let find = |id: &SiteId| self.0.programs.compiler.sites().iter().find(|s| s.id == *id);
        let sites: Vec<&LookupSite> = made.sites.iter().filter_map(find).collect();
        let last = profile::read(sketch, &sites, self.0.programs.compiler.slots())?;
        Ok(if last.iter().any(|p| p.total > 0) { last } else { made_for() })
    }

    fn lookup_details(&self, site: &LookupSite, profile: Option<&SiteProfile>) -> LookupDetails {
        let declaration = self.0.programs.compiler.declaration(site.map);
        let put = self.0.generations.active.as_ref().and_then(|a| a.keys.get(&site.id));
        let (seen, keys) = profile.map_or((0, &[][..]), |p| (p.total, p.keys.as_slice()));
        let counted = keys.iter().map(|(_, n)| n).sum::<u64>().max(1) as f64;
        let tried = self
            .0
            .generations
            .active
            .iter()
            .flat_map(|a| &a.tried)
            .filter(|t| t.site == site.id && t.is_chosen);
        let tests: Vec<&KeyTestCandidate> = tried.collect();
        let in_code = |key: &Vec<u8>| {
            tests.iter().any(|t| !t.passes(key)) || put.is_some_and(|put| put.has_in_code(key))
        };
        let spec = self.0.programs.compiler.spec(site.map);
        let details = |(key, n): &(Vec<u8>, u64)| KeyDetails {
            text: key_text(self.0.programs.compiler.object(), (&declaration.name, spec), key),
            share: *n as f64 / counted,
            in_code: in_code(key),
        };
        let function = self.0.programs.compiler.object().functions.get(site.func.as_u32() as usize);
        LookupDetails {
            program: function.map_or_else(String::new, |f| f.name.clone()),
            map: declaration.name.clone(),
            map_type: MapType(declaration.kind).to_string(),
            source: self.0.programs.compiler.source_line(site),
            how: match put {
                None if tests.is_empty() => LookupMethod::Map,
                None => LookupMethod::Test,
                Some(LookupStrategy::Hot(hot)) => LookupMethod::Hot(hot.len()),
                Some(LookupStrategy::Whole) => LookupMethod::Code,
                Some(LookupStrategy::Twin) => LookupMethod::Twin,
                Some(LookupStrategy::Cached) => LookupMethod::Cache,
            },
            seen,
            answered: match put.is_some_and(|put| put.hot_keys().is_none()) {
                // A cache does so while nobody writes.
                true => 1.0,
                false => {
                    keys.iter().filter(|(k, _)| in_code(k)).map(|(_, n)| *n as f64).sum::<f64>() / counted
                }
            },
            keys: keys.iter().take(KEYS).map(details).collect(),
        }
    }
}
