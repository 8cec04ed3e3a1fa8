//! Profiles of lookups as files: the keys that a program looks up most, learnt by one session for the first
//! variant of another.
//!
//! A profile says which keys are worth code. The contents for them come from a snapshot of the maps, as for every
//! variant. So a profile that is wrong, old or forged costs time until the first look at the traffic, and no more.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::profile::SiteProfile;
use crate::transform::LookupSite;
use crate::variant::VariantCompiler;

/// The version of the file.
const SCHEMA: u32 = 1;
/// Keys that are kept of one lookup, the hottest.
const MOST_KEYS: usize = 1024;
/// Lookups that a file may have.
const MOST_LOOKUPS: usize = 4096;

/// A profile of a program's lookups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedProfile {
    schema: u32,
    /// The program that was observed.
    pub program: String,
    /// Time of the observation, in seconds since 1970.
    #[serde(rename = "learnt_at_s")]
    pub learnt_at: u64,
    /// Packets that were observed.
    pub packets: u64,
    /// Its lookups.
    pub lookups: Vec<SavedLookup>,
}

/// A lookup of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedLookup {
    /// Name of the map in the object.
    pub map: String,
    /// Its number among the program's lookups in this map.
    pub number: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Lookups that were counted.
    pub total: u64,
    /// The keys.
    pub keys: Vec<SavedKey>,
}

/// A key of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedKey {
    /// Its bytes, as hexadecimal digits.
    #[serde(with = "hex::serde")]
    pub key: Vec<u8>,
    /// Lookups of it.
    pub lookups: u64,
}

/// Reasons why a text is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is no JSON of this form.
    #[error("it is no profile of lookups: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version of Millstream has written it.
    #[error("a profile of version {0}, not {SCHEMA}")]
    Schema(u32),
    /// It has more lookups than any program.
    #[error("it has {0} lookups, more than {MOST_LOOKUPS}")]
    Lookups(usize),
    /// The numbers of a lookup contradict each other.
    #[error("lookup {number} in map {map:?}: {reason}")]
    Lookup {
        /// Name of the map.
        map: String,
        /// Number of the lookup in it.
        number: u32,
        /// The contradiction.
        reason: &'static str,
    },
}

impl SavedProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn parse(text: &str) -> Result<SavedProfile, ProfileError> {
        let profile: SavedProfile = serde_json::from_str(text)?;
        if profile.schema != SCHEMA {
            return Err(ProfileError::Schema(profile.schema));
        }
        if profile.lookups.len() > MOST_LOOKUPS {
            return Err(ProfileError::Lookups(profile.lookups.len()));
        }
        let mut seen = BTreeSet::new();
        for lookup in &profile.lookups {
            let is_new = seen.insert((lookup.map.as_str(), lookup.number));
            let contradiction = if is_new { lookup.contradiction() } else { Some("it comes twice") };
            if let Some(reason) = contradiction {
                let (map, number) = (lookup.map.clone(), lookup.number);
                return Err(ProfileError::Lookup { map, number, reason });
            }
        }
        Ok(profile)
    }

    /// A profile of lookups that were observed in so many packets, at this time in seconds since 1970.
    pub fn of(
        compiler: &VariantCompiler,
        program: &str,
        profiles: &[SiteProfile],
        (packets, learnt_at): (u64, u64),
    ) -> SavedProfile {
        let named = named(compiler, compiler.sites().iter());
        let lookups = profiles.iter().filter(|profile| profile.total > 0).filter_map(|profile| {
            let ((map, number), site) = named.iter().find(|(_, site)| site.id == profile.site)?;
            let keys = profile.keys.iter().take(MOST_KEYS);
            Some(SavedLookup {
                map: (*map).to_owned(),
                number: *number,
                key_size: site.key_size,
                total: profile.total,
                keys: keys.map(|(key, lookups)| SavedKey { key: key.clone(), lookups: *lookups }).collect(),
            })
        });
        SavedProfile {
            schema: SCHEMA,
            program: program.to_owned(),
            learnt_at,
            packets,
            lookups: lookups.collect(),
        }
    }

    /// The profiles of these lookups of a program, empty for those that the file does not have; how many it has.
    pub fn profiles<'s>(
        &self,
        compiler: &VariantCompiler,
        sites: impl Iterator<Item = &'s LookupSite>,
    ) -> (Vec<SiteProfile>, usize) {
        let wanted: BTreeSet<_> = sites.map(|site| site.id).collect();
        let mut known = 0;
        let mut profiles: Vec<SiteProfile> = named(compiler, compiler.sites().iter())
            .into_iter()
            .filter(|(_, site)| wanted.contains(&site.id))
            .map(|((map, number), site)| {
                let is_it = |lookup: &&SavedLookup| {
                    (lookup.map.as_str(), lookup.number, lookup.key_size) == (map, number, site.key_size)
                };
                let saved = self.lookups.iter().find(is_it);
                known += usize::from(saved.is_some());
                let keys = saved.map_or(&[][..], |lookup| &lookup.keys);
                let mut keys: Vec<_> = keys.iter().map(|key| (key.key.clone(), key.lookups)).collect();
                keys.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                SiteProfile { site: site.id, total: saved.map_or(0, |lookup| lookup.total), keys }
            })
            .collect();
        profiles.sort_by_key(|profile| profile.site);
        (profiles, known)
    }

    /// The file's text.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

impl SavedLookup {
    fn contradiction(&self) -> Option<&'static str> {
        let counted = self.keys.iter().try_fold(0u64, |sum, key| sum.checked_add(key.lookups));
        let different: BTreeSet<&[u8]> = self.keys.iter().map(|key| key.key.as_slice()).collect();
        if self.keys.len() > MOST_KEYS {
            Some("it has more keys than are kept")
        } else if self.keys.iter().any(|key| key.key.len() as u64 != u64::from(self.key_size)) {
            Some("a key has another length than its keys have")
        } else if different.len() != self.keys.len() {
            Some("a key comes twice")
        } else if counted.is_none_or(|counted| counted > self.total) {
            Some("its keys were looked up more often than it was counted")
        } else {
            None
        }
    }
}

/// Lookups by the name of their map and their number in it, which stay the same when other code changes.
fn named<'c>(
    compiler: &'c VariantCompiler,
    sites: impl Iterator<Item = &'c LookupSite>,
) -> Vec<((&'c str, u32), &'c LookupSite)> {
    let mut numbers = BTreeMap::new();
    sites
        .map(|site| {
            let map = compiler.declaration(site.map).name.as_str();
            let number = numbers.entry(map).and_modify(|number| *number += 1).or_insert(0);
            ((map, *number), site)
        })
        .collect()
}

/// Share of the lookups seen `now` whose keys were expected; `None` if there was no lookup of an expected kind.
pub fn fit(expected: &[SiteProfile], now: &[SiteProfile]) -> Option<f64> {
    let mut seen = (0.0, 0.0);
    for then in expected.iter().filter(|then| !then.keys.is_empty()) {
        let Some(now) = now.iter().find(|now| now.site == then.site && now.total > 0) else { continue };
        let share = now.share(then.keys.iter().map(|(key, _)| key.as_slice()));
        seen = (seen.0 + now.total as f64 * share, seen.1 + now.total as f64);
    }
    (seen.1 > 0.0).then(|| seen.0 / seen.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::SiteId;

    fn profile(lookups: &str) -> String {
        format!(r#"{{"schema":1,"program":"p","learnt_at_s":7,"packets":9,"lookups":[{lookups}]}}"#)
    }

    fn reason(text: &str) -> String {
        SavedProfile::parse(text).expect_err("it is refused").to_string()
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let text = r#"{"map":"m","number":1,"key_size":2,"total":5,"keys":[{"key":"0a0b","lookups":4}]}"#;
        let read = SavedProfile::parse(&profile(text)).expect("a profile");
        assert_eq!(read.lookups[0].keys, [SavedKey { key: vec![10, 11], lookups: 4 }]);
        assert_eq!(SavedProfile::parse(&read.text()).expect("a profile"), read);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let lookup = |keys: &str| {
            profile(&format!(r#"{{"map":"m","number":0,"key_size":1,"total":5,"keys":[{keys}]}}"#))
        };
        assert!(SavedProfile::parse(&lookup(r#"{"key":"00","lookups":5}"#)).is_ok());
        assert!(reason(&lookup(r#"{"key":"0000","lookups":5}"#)).contains("another length"));
        assert!(reason(&lookup(r#"{"key":"00","lookups":6}"#)).contains("more often"));
        let twice = r#"{"key":"00","lookups":1},{"key":"00","lookups":1}"#;
        assert!(reason(&lookup(twice)).contains("a key comes twice"));
        let overflow = format!(r#"{{"key":"00","lookups":{0}}},{{"key":"01","lookups":{0}}}"#, u64::MAX);
        assert!(reason(&lookup(&overflow)).contains("more often"));
        assert!(reason(&lookup(r#"{"key":"0g","lookups":1}"#)).contains("no profile"));
        let one = r#"{"map":"m","number":0,"key_size":1,"total":5,"keys":[]}"#;
        assert!(reason(&profile(&format!("{one},{one}"))).contains("it comes twice"));
        assert!(reason(&profile("").replace(":1,", ":2,")).contains("version 2"));
        assert!(reason("{}").contains("no profile"));
    }

    #[test]
    fn the_fit_is_the_share_of_expected_keys() {
        let site = |id, keys: &[(u8, u64)]| SiteProfile {
            site: SiteId(id),
            total: keys.iter().map(|(_, n)| n).sum(),
            keys: keys.iter().map(|(key, n)| (vec![*key], *n)).collect(),
        };
        let expected = [site(0, &[(1, 10), (2, 5)]), site(1, &[])];
        assert_eq!(fit(&expected, &[site(0, &[(1, 3), (9, 1)]), site(1, &[(7, 100)])]), Some(0.75));
        assert_eq!(fit(&expected, &[site(0, &[]), site(1, &[(7, 100)])]), None);
    }
}
