//! Lookups of a program, the way in which each is answered, and the keys: for people who watch.

use serde::{Deserialize, Serialize};

use millstream_kernel::{KernelProgram, MapType};
use millstream_object::FuncId;
use millstream_specializer::policy::{KeyTestCandidate, LookupStrategy};
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{LookupSite, SiteId};

use super::key_text::key_text;
use super::{LiveError, LiveSession};
use crate::profile;

/// Keys shown for each lookup.
const KEYS: usize = 20;

/// A program's lookups, and the cost of the active variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionDetails {
    /// In the order of the program, then those of the programs that its tail calls reach.
    pub lookups: Vec<LookupDetails>,
    /// Filled slots of its program arrays.
    #[serde(default)]
    pub chain: Vec<SlotDetails>,
    /// Slots of the original.
    pub original_slots: usize,
    /// Slots of the variant; missing if none is active.
    pub variant_slots: Option<usize>,
    /// Bytes of its shadow tables and caches.
    #[serde(rename = "shadow_table_bytes")]
    pub twin_bytes: u64,
}

/// A slot of a program array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDetails {
    /// Name of the array in the object.
    pub array: String,
    /// Its number.
    pub slot: u32,
    /// The program in it.
    pub program: String,
    /// Program that the active variant calls in its place.
    #[serde(rename = "target")]
    pub runs: SlotTarget,
}

impl std::fmt::Display for SlotDetails {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}] {} ({})", self.array, self.slot, self.program, self.runs)
    }
}

/// Program that is called in the place of the one in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotTarget {
    /// A variant of it.
    Variant,
    /// A variant of it, inlined where the slot is a constant.
    #[serde(rename = "inlined")]
    Joined,
    /// The program itself.
    Original,
    /// The program itself, which does not belong to the object.
    Foreign,
}

impl std::fmt::Display for SlotTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SlotTarget::Variant => "specialised",
            SlotTarget::Joined => "inlined",
            SlotTarget::Original => "original",
            SlotTarget::Foreign => "foreign",
        })
    }
}

/// A lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookupDetails {
    /// The program that makes it.
    #[serde(default)]
    pub program: String,
    /// Name of the map in the object.
    pub map: String,
    /// The map's type.
    pub map_type: String,
    /// The source line of the lookup, as `FILE:LINE`, if the object says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Way in which it is answered.
    pub how: LookupMethod,
    /// Lookups counted in the last look at the traffic.
    pub seen: u64,
    /// Share of them that code, a shadow table or a cache answers.
    pub answered: f64,
    /// The keys, hottest first.
    pub keys: Vec<KeyDetails>,
}

/// Ways to answer a lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupMethod {
    /// By the map.
    Map,
    /// By code for so many hot keys, else by the map.
    #[serde(rename = "hot_keys")]
    Hot(usize),
    /// By code that holds the whole map.
    #[serde(rename = "inlined")]
    Code,
    /// By a shadow table.
    #[serde(rename = "shadow_table")]
    Twin,
    /// By a cache, else by the map.
    Cache,
    /// By a test of a word of the key if no entry has its value, else by the map.
    #[serde(rename = "key_test")]
    Test,
}

impl std::fmt::Display for LookupMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LookupMethod::Map => f.write_str("map"),
            LookupMethod::Hot(1) => f.write_str("1 hot key"),
            LookupMethod::Hot(n) => write!(f, "{n} hot keys"),
            LookupMethod::Code => f.write_str("inlined table"),
            LookupMethod::Twin => f.write_str("shadow table"),
            LookupMethod::Cache => f.write_str("cache"),
            LookupMethod::Test => f.write_str("key test"),
        }
    }
}

/// A key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyDetails {
    /// Formatted by its type, if the object says it.
    pub text: String,
    /// Share of the lookups.
    pub share: f64,
    /// True if code answers it.
    pub in_code: bool,
}

impl LiveSession<'_> {
    /// Describes the way in which each lookup is answered, and the keys, by the last look at the traffic.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn details(&self) -> Result<SessionDetails, LiveError> {
        let profiles = self.last_profiles()?;
        let reached = self.compiler.sites().iter().filter(|site| self.is_reached(site));
        let lookups = reached.map(|site| {
            let profile = profiles.iter().find(|p| p.site == site.id);
            self.lookup_details(site, profile)
        });
        let linked = self.compiler.object().link(self.compiler.program());
        let twins = self.active.iter().flat_map(|a| a.twins.maps().chain(a.caches.maps()));
        Ok(SessionDetails {
            lookups: lookups.collect(),
            chain: self.slots()?,
            original_slots: linked.map_err(millstream_loader::Error::from)?.insns.len(),
            variant_slots: self.active.as_ref().map(|a| a.linked.insns.len()),
            twin_bytes: twins.map(|(_, map)| u64::from(map.info().value_size)).sum(),
        })
    }

    /// Describes the filled slots of program arrays.
    pub(super) fn slots(&self) -> Result<Vec<SlotDetails>, LiveError> {
        let held = self.links.read()?;
        let details = |(of, slot, id, func): (_, _, _, Option<FuncId>)| {
            let active = self.active.as_ref().map(|a| &a.chain);
            let functions = &self.compiler.object().functions;
            SlotDetails {
                array: self.compiler.declaration(of).name.clone(),
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
        let made_for = || self.active.as_ref().map_or_else(Vec::new, |a| a.profiles.clone());
        let (Some(made), Some(sketch)) = (&self.instrumented, self.session.map(self.compiler.sketch()))
        else {
            return Ok(made_for());
        };
        let find = |id: &SiteId| self.compiler.sites().iter().find(|s| s.id == *id);
        let sites: Vec<&LookupSite> = made.sites.iter().filter_map(find).collect();
        let last = profile::read(sketch, &sites, self.compiler.slots())?;
        Ok(if last.iter().any(|p| p.total > 0) { last } else { made_for() })
    }

    fn lookup_details(&self, site: &LookupSite, profile: Option<&SiteProfile>) -> LookupDetails {
        let declaration = self.compiler.declaration(site.map);
        let put = self.active.as_ref().and_then(|a| a.keys.get(&site.id));
        let (seen, keys) = profile.map_or((0, &[][..]), |p| (p.total, p.keys.as_slice()));
        let counted = keys.iter().map(|(_, n)| n).sum::<u64>().max(1) as f64;
        let tried = self.active.iter().flat_map(|a| &a.tried).filter(|t| t.site == site.id && t.is_chosen);
        let tests: Vec<&KeyTestCandidate> = tried.collect();
        let in_code = |key: &Vec<u8>| match put {
            _ if tests.iter().any(|t| !t.passes(key)) => true,
            Some(LookupStrategy::Hot(hot)) => hot.contains(key),
            Some(LookupStrategy::Whole) => true,
            _ => false,
        };
        let spec = self.compiler.spec(site.map);
        let details = |(key, n): &(Vec<u8>, u64)| KeyDetails {
            text: key_text(self.compiler.object(), (&declaration.name, spec), key),
            share: *n as f64 / counted,
            in_code: in_code(key),
        };
        let function = self.compiler.object().functions.get(site.func.as_u32() as usize);
        LookupDetails {
            program: function.map_or_else(String::new, |f| f.name.clone()),
            map: declaration.name.clone(),
            map_type: MapType(declaration.kind).to_string(),
            source: self.compiler.source_line(site),
            how: match put {
                None if tests.is_empty() => LookupMethod::Map,
                None => LookupMethod::Test,
                Some(LookupStrategy::Hot(hot)) => LookupMethod::Hot(hot.len()),
                Some(LookupStrategy::Whole) => LookupMethod::Code,
                Some(LookupStrategy::Twin) => LookupMethod::Twin,
                Some(LookupStrategy::Cached) => LookupMethod::Cache,
            },
            seen,
            answered: match put {
                // A cache does so while nobody writes.
                Some(LookupStrategy::Whole | LookupStrategy::Twin | LookupStrategy::Cached) => 1.0,
                Some(LookupStrategy::Hot(_)) | None => {
                    keys.iter().filter(|(k, _)| in_code(k)).map(|(_, n)| *n as f64).sum::<f64>() / counted
                }
            },
            keys: keys.iter().take(KEYS).map(details).collect(),
        }
    }
}
