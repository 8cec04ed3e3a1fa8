//! The daemon's configuration: a TOML file, or programs named on the command line.
//!
//! An unknown key is an error, and so is everything that can be seen to be wrong without the kernel: the
//! message names the line and gives advice.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use millstream_bundle::{BundlePolicy, is_bundle};
use millstream_object::Object;
use millstream_specialize::pins::{DEFAULT_PINS, default_pins};
use millstream_specialize::{DetachPolicy, SessionSettings};
use serde::Deserialize;
use toml::Spanned;

use crate::run::{AdoptArg, check_maps};
use crate::xdp::AttachMode;

/// Reasons why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {message}")]
pub(crate) struct ConfigError {
    /// File and line.
    place: String,
    message: String,
    /// Advice to the user.
    pub(crate) help: String,
}

/// Configuration of the daemon.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct DaemonConfig {
    /// Path of its socket; the command line takes precedence.
    pub(crate) socket: Option<PathBuf>,
    /// Address to serve metrics at.
    pub(crate) metrics: Option<SocketAddr>,
    /// Address to serve the page at.
    pub(crate) web: Option<SocketAddr>,
    /// Base URL of an OpenTelemetry collector.
    pub(crate) otlp: Option<String>,
    pub(crate) entries: Vec<ProgramConfig>,
}

/// A program on its interfaces.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ProgramConfig {
    pub(crate) name: String,
    pub(crate) object: PathBuf,
    /// Conditions for the object, if it is a bundle.
    pub(crate) bundles: BundlePolicy,
    /// Name of the program, where the object has several.
    pub(crate) program: Option<String>,
    pub(crate) interfaces: Vec<String>,
    pub(crate) mode: AttachMode,
    pub(crate) egress: bool,
    /// Programs that it may replace.
    pub(crate) adopt: Option<AdoptArg>,
    pub(crate) maps: MapConfig,
    /// File of the profile that sessions begin with, and keep.
    pub(crate) profile: Option<PathBuf>,
    pub(crate) count: bool,
    pub(crate) keep: bool,
    pub(crate) interval: Duration,
    pub(crate) pins: PathBuf,
    /// Modification time of the object: a reload picks up a newer one.
    pub(crate) written: Option<SystemTime>,
}

/// Maps of a program.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MapConfig {
    exclude: Vec<String>,
    /// LRU maps whose lookups need not count as use.
    approximate_lru: Vec<String>,
    twins: bool,
}

impl ProgramConfig {
    /// An entry with defaults.
    fn new(object: PathBuf, interfaces: Vec<String>) -> ProgramConfig {
        let name = interfaces.join("+");
        let written = std::fs::metadata(&object).and_then(|m| m.modified()).ok();
        ProgramConfig {
            pins: default_pins(Path::new(DEFAULT_PINS), &name),
            name,
            object,
            bundles: BundlePolicy::default(),
            program: None,
            interfaces,
            mode: AttachMode::Any,
            egress: false,
            adopt: None,
            maps: MapConfig { exclude: Vec::new(), approximate_lru: Vec::new(), twins: true },
            profile: None,
            count: true,
            keep: false,
            interval: Duration::from_secs(2),
            written,
        }
    }

    /// Settings of the session.
    pub(crate) fn settings(&self, interfaces: &[u32]) -> SessionSettings {
        let mut settings = SessionSettings::new(&self.pins);
        settings.mode = self.mode.into();
        settings.egress = self.egress;
        if let Some(which) = self.adopt {
            (settings.adopt, settings.which) = (interfaces.to_vec(), which.into());
        }
        settings.pace.interval = self.interval;
        settings.twins = self.maps.twins;
        settings.count = self.count;
        settings.exclude.clone_from(&self.maps.exclude);
        settings.approximate = self.maps.approximate_lru.iter().cloned().collect();
        settings
    }

    /// Checks the options about maps against this object.
    pub(crate) fn check_object(&self, object: &Object) -> Result<(), ConfigError> {
        let MapConfig { exclude, approximate_lru, .. } = &self.maps;
        check_maps(object, exclude, approximate_lru).map_err(|(message, help)| ConfigError {
            place: self.object.display().to_string(),
            message,
            help,
        })
    }

    /// State of the interfaces at the end.
    pub(crate) fn leave(&self) -> DetachPolicy {
        if self.keep { DetachPolicy::Original } else { DetachPolicy::Restored }
    }
}

/// The file's syntax.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfigFile {
    socket: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    web: Option<SocketAddr>,
    otlp: Option<String>,
    pins: Option<PathBuf>,
    /// Folder of the programs' profiles.
    profiles: Option<PathBuf>,
    /// File of the key with which all bundles must be signed.
    store_key: Option<PathBuf>,
    #[serde(default)]
    trust_store: bool,
    #[serde(default)]
    program: Vec<Spanned<ProgramTable>>,
}

/// A `[[program]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ProgramTable {
    name: Option<String>,
    object: PathBuf,
    program: Option<String>,
    interfaces: Vec<String>,
    #[serde(default)]
    mode: Option<AttachMode>,
    #[serde(default)]
    egress: bool,
    adopt: Option<AdoptArg>,
    #[serde(default)]
    exclude: Vec<String>,
    #[serde(default)]
    approximate_lru: Vec<String>,
    shadow_tables: Option<bool>,
    /// Old name of `shadow-tables`.
    twins: Option<bool>,
    count_packets: Option<bool>,
    /// Old name of `count-packets`.
    count: Option<bool>,
    at_exit: Option<AtExit>,
    interval_ms: Option<u64>,
    pin: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AtExit {
    Restore,
    Keep,
}

/// Reads the file, and adds the programs of the command line, each `IFACE[+IFACE...]=OBJECT`.
pub(crate) fn read(file: Option<&Path>, flags: &[String]) -> Result<DaemonConfig, ConfigError> {
    let mut known = ConflictChecker::default();
    let mut config = match file {
        Some(path) => parse(&text(path)?, path, &mut known)?,
        None => DaemonConfig::default(),
    };
    for flag in flags {
        config.entries.push(from_flag(flag, &mut known)?);
    }
    Ok(config)
}

fn text(path: &Path) -> Result<String, ConfigError> {
    crate::bounded_read::text(path).map_err(|e| ConfigError {
        place: path.display().to_string(),
        message: e.to_string(),
        help: "--config names a TOML file; docs/daemon.md has an example".into(),
    })
}

fn parse(text: &str, path: &Path, known: &mut ConflictChecker) -> Result<DaemonConfig, ConfigError> {
    let error = |at: usize, message: String, help: &str| {
        let line = 1 + text.get(..at).map_or(0, |before| before.matches('\n').count());
        let place = format!("{}:{line}", path.display());
        ConfigError { place, message, help: help.to_owned() }
    };
    let file: ConfigFile = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start);
        error(at, e.message().trim().to_owned(), "docs/daemon.md has every key and an example")
    })?;
    // Paths are relative to the file's folder.
    let base = path.parent().unwrap_or(Path::new(""));
    let pins = file.pins.unwrap_or_else(|| DEFAULT_PINS.into());
    if file.trust_store && file.store_key.is_none() {
        return Err(error(
            0,
            "trust-store is set without store-key".to_owned(),
            "name the key's file by `store-key`",
        ));
    }
    let key = file.store_key.map(|key| base.join(key));
    let bundles = BundlePolicy { key, trust: file.trust_store };
    let mut entries = Vec::new();
    for table in file.program {
        let at = table.span().start;
        let mut entry = table.into_inner().entry(base, &pins);
        entry.bundles = bundles.clone();
        let profile = format!("{}.profile", entry.name.replace('/', "_"));
        entry.profile = file.profiles.as_ref().map(|folder| base.join(folder).join(profile));
        known.check(&entry).map_err(|(message, help)| error(at, message, help))?;
        entries.push(entry);
    }
    Ok(DaemonConfig { socket: file.socket, metrics: file.metrics, web: file.web, otlp: file.otlp, entries })
}

impl ProgramTable {
    fn entry(self, base: &Path, pins: &Path) -> ProgramConfig {
        let mut entry = ProgramConfig::new(base.join(self.object), self.interfaces);
        entry.name = self.name.unwrap_or(entry.name);
        entry.pins = self.pin.unwrap_or_else(|| default_pins(pins, &entry.name));
        entry.program = self.program;
        entry.mode = self.mode.unwrap_or(entry.mode);
        entry.egress = self.egress;
        entry.adopt = self.adopt;
        let shadow_tables = current(self.shadow_tables, self.twins, ("twins", "shadow-tables"));
        entry.maps = MapConfig {
            exclude: self.exclude,
            approximate_lru: self.approximate_lru,
            twins: shadow_tables.unwrap_or(true),
        };
        let count = current(self.count_packets, self.count, ("count", "count-packets"));
        entry.count = count.unwrap_or(entry.count);
        entry.keep = self.at_exit == Some(AtExit::Keep);
        entry.interval = self.interval_ms.map_or(entry.interval, |ms| Duration::from_millis(ms.max(10)));
        entry
    }
}

/// Value of a key that has an old name, too. The old name works for one release, with a warning.
fn current<T>(new: Option<T>, old: Option<T>, (old_name, new_name): (&str, &str)) -> Option<T> {
    if old.is_some() {
        errln!("{}", crate::renamed::warning(&format!("key {old_name}"), new_name));
    }
    new.or(old)
}

/// A program of the command line.
fn from_flag(flag: &str, known: &mut ConflictChecker) -> Result<ProgramConfig, ConfigError> {
    let error = |(message, help): (String, &str)| ConfigError {
        place: format!("--program {flag}"),
        message,
        help: help.to_owned(),
    };
    let Some((interfaces, object)) = flag.split_once('=') else {
        return Err(error(("it has no `=`".into(), "write IFACE=OBJECT, or IFACE+IFACE=OBJECT")));
    };
    let entry = ProgramConfig::new(object.into(), interfaces.split('+').map(str::to_owned).collect());
    known.check(&entry).map_err(error)?;
    Ok(entry)
}

/// Properties that no two programs may share.
#[derive(Default)]
struct ConflictChecker {
    names: BTreeSet<String>,
    pins: BTreeSet<PathBuf>,
    hooks: BTreeSet<(String, bool)>,
}

impl ConflictChecker {
    /// Checks one more program; returns the error and advice.
    fn check(&mut self, entry: &ProgramConfig) -> Result<(), (String, &'static str)> {
        if entry.interfaces.is_empty() || entry.interfaces.iter().any(String::is_empty) {
            return Err(("it has no interface".into(), "`ip link` lists the interfaces"));
        }
        if !entry.object.is_file() && !is_bundle(&entry.object) {
            let object = entry.object.display();
            return Err((
                format!("there is no file {object}"),
                "name the object file that the program was compiled to",
            ));
        }
        for interface in &entry.interfaces {
            if !self.hooks.insert((interface.clone(), entry.egress)) {
                return Err((
                    format!("interface {interface} has a program already"),
                    "one program an interface and direction; interfaces of one program stand in one list",
                ));
            }
        }
        if !self.names.insert(entry.name.clone()) {
            return Err((format!("there is a program {:?} already", entry.name), "give it another `name`"));
        }
        if !self.pins.insert(entry.pins.clone()) {
            let pins = entry.pins.display();
            return Err((format!("another program has {pins}"), "each needs a `pin` directory of its own"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that exists.
    const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

    fn parsed(text: &str) -> Result<DaemonConfig, ConfigError> {
        parse(
            &text.replace("OBJECT", OBJECT),
            Path::new("/etc/millstream.toml"),
            &mut ConflictChecker::default(),
        )
    }

    #[test]
    fn a_configuration_is_read() {
        let config = parsed(
            "socket = '/run/x.sock'\nmetrics = '127.0.0.1:9464'\nprofiles = 'learnt'\n\
             [[program]]\nname = 'edge'\nobject = 'OBJECT'\n\
             interfaces = ['eth0', 'eth1.7']\nmode = 'native'\nadopt = 'same'\nexclude = ['stats']\n\
             approximate-lru = ['sessions']\nat-exit = 'keep'\n\
             interval-ms = 500\nshadow-tables = false\n[[program]]\nobject = 'OBJECT'\ninterfaces = ['eth1']\n",
        )
        .unwrap();
        assert_eq!(config.metrics, Some("127.0.0.1:9464".parse().unwrap()));
        let [edge, other] = config.entries.as_slice() else { panic!("two: {config:?}") };
        assert_eq!(
            (edge.name.as_str(), edge.interfaces.len(), edge.leave()),
            ("edge", 2, DetachPolicy::Original)
        );
        let settings = edge.settings(&[4, 5]);
        assert_eq!((settings.adopt, settings.exclude), (vec![4, 5], vec!["stats".to_owned()]));
        assert_eq!(settings.approximate, BTreeSet::from(["sessions".to_owned()]));
        assert_eq!((settings.pace.interval, settings.twins), (Duration::from_millis(500), false));
        assert_eq!((other.name.as_str(), other.leave(), other.adopt), ("eth1", DetachPolicy::Restored, None));
        assert_ne!(edge.pins, other.pins);
        assert_eq!(edge.profile, Some("/etc/learnt/edge.profile".into()));
    }

    #[test]
    fn old_keys_work_for_one_release() {
        let config = parsed(
            "[[program]]\nobject = 'OBJECT'\ninterfaces = ['eth0']\ntwins = false\ncount = false\n\
             [[program]]\nobject = 'OBJECT'\ninterfaces = ['eth1']\ntwins = false\nshadow-tables = true\n",
        )
        .unwrap();
        let [old, both] = config.entries.as_slice() else { panic!("two: {config:?}") };
        assert_eq!((old.maps.twins, old.count, both.maps.twins, both.count), (false, false, true, true));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let start = "[[program]]\nobject = 'OBJECT'\ninterfaces = ['a']\n";
        let cases = [
            ("metrics = 5".to_owned(), 1, "socket address"),
            ("\nsocet = 'x'".to_owned(), 2, "socet"),
            ("[[program]]\ninterfaces = ['a']".to_owned(), 1, "object"),
            ("[[program]]\nobject = 'OBJECT'\ninterfaces = []".to_owned(), 1, "no interface"),
            ("\n[[program]]\nobject = '/nothing.o'\ninterfaces = ['a']".to_owned(), 2, "/nothing.o"),
            (format!("{start}mode = 'fast'"), 4, "fast"),
            (format!("{start}[[program]]\nobject = 'OBJECT'\ninterfaces = ['b', 'a']"), 4, "interface a"),
            (format!("{start}name = 'x'\n{}name = 'x'", start.replace("'a'", "'c'")), 5, "\"x\""),
            (format!("{start}pin = '/p'\n{}pin = '/p'", start.replace("'a'", "'c'")), 5, "/p"),
        ];
        for (text, line, word) in cases {
            let error = parsed(&text).unwrap_err();
            let place = format!("/etc/millstream.toml:{line}");
            assert!(error.place == place && error.message.contains(word), "{text}: {error}");
            assert!(!error.help.is_empty());
        }
    }

    #[test]
    fn programs_of_the_command_line() {
        let flags = |flags: &[String]| read(None, flags).map(|c| c.entries);
        let entries = flags(&[format!("eth0+eth1={OBJECT}"), format!("eth2={OBJECT}")]).unwrap();
        assert_eq!(entries[0].interfaces, ["eth0", "eth1"]);
        assert_eq!(entries[1].name, "eth2");
        for wrong in ["eth0", "=x", "eth0=/nothing.o"] {
            assert!(flags(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        let twice = flags(&[format!("eth0={OBJECT}"), format!("eth0={OBJECT}")]).unwrap_err();
        assert!(twice.to_string().contains("interface eth0"), "{twice}");
    }
}
