//! Data planes by their pins: attaching, changing, detaching.
//!
//! Tables are changed in an order in which a packet never meets an entry that refers to a missing one:
//! targets are written first, and removed last when no entry refers to them. A router's next hops go to the
//! unused half of their table, so that routes change from old ones to new ones one at a time. A firewall's
//! rules are loaded anew and swapped in as a whole, by one link update per interface.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use millstream_kernel::{
    self as kernel, KernelMap, KernelProgram, Link, PinDirError, UpdateMode, check_pin_dir, create_pin_dir,
    interface_index,
};
use millstream_loader::{ObjectLoader, Session};
use millstream_object::Object;
use millstream_programs::{MapEntry, balancer, nat, router, switch};

use super::DataPlane;
use super::config::DataPlaneTables;
use crate::xdp::AttachMode;

const MAPS: &str = "maps";
const LINK: &str = "link_";
/// Next hops of one configuration: half of the table.
const HALF: u32 = router::MAX_NEXT_HOPS as u32 / 2;

/// Reasons why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    /// A pin or a directory of pins.
    #[error("{path}: {source}")]
    Path { path: PathBuf, source: io::Error },
    /// Others could change the pinned objects.
    #[error(transparent)]
    Place(#[from] PinDirError),
    #[error(transparent)]
    Kernel(#[from] kernel::KernelError),
    #[error(transparent)]
    Loader(#[from] millstream_loader::Error),
    #[error(transparent)]
    Program(#[from] millstream_loader::ProgramError),
    #[error(transparent)]
    Object(#[from] millstream_object::ObjectError),
    /// An interface, and the kernel's error.
    #[error("{name}: {source}")]
    Interface { name: String, source: kernel::KernelError },
    #[error("{0}")]
    Unusable(String),
}

impl ControlError {
    fn errno(&self) -> Option<i32> {
        match self {
            ControlError::Kernel(e) | ControlError::Interface { source: e, .. } => e.errno(),
            ControlError::Loader(millstream_loader::Error::Kernel(e)) => e.errno(),
            ControlError::Path { source, .. } => source.raw_os_error(),
            ControlError::Place(e) => e.errno(),
            _ => None,
        }
    }

    pub(super) fn is_permission(&self) -> bool {
        let refused = matches!(self, ControlError::Place(e) if !matches!(e, PinDirError::Io { .. }));
        refused || matches!(self.errno(), Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS))
    }

    /// Returns true if the kernel refused usable input. A missing interface does not count.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            ControlError::Program(_) | ControlError::Loader(millstream_loader::Error::Program { .. }) => true,
            ControlError::Kernel(_)
            | ControlError::Interface { .. }
            | ControlError::Loader(millstream_loader::Error::Kernel(_)) => {
                self.errno().is_some_and(|errno| errno != libc::ENODEV)
            }
            ControlError::Loader(_)
            | ControlError::Path { .. }
            | ControlError::Place(_)
            | ControlError::Object(_)
            | ControlError::Unusable(_) => false,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        match self {
            ControlError::Interface { name, source } if source.errno() == Some(libc::EBUSY) => {
                Some(format!("another program is on {name}, and stays; `ip link show dev {name}` names it"))
            }
            ControlError::Kernel(e) => e.hint().map(|h| h.to_string()),
            ControlError::Place(e) => Some(e.hint()),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, ControlError>;

/// A directory of pins.
#[derive(Clone, Debug)]
pub(super) struct PinDirectory {
    directory: PathBuf,
}

impl PinDirectory {
    pub(super) fn new(directory: PathBuf) -> Self {
        PinDirectory { directory }
    }

    /// Checks that nobody else can change the pinned objects, if there are any.
    pub(super) fn check(&self) -> Result<()> {
        for directory in [&self.directory, &self.directory.join(MAPS)] {
            if directory.symlink_metadata().is_ok() {
                check_pin_dir(directory)?;
            }
        }
        Ok(())
    }

    /// A map of the running data plane.
    pub(super) fn map(&self, name: &str) -> Result<KernelMap> {
        let path = self.directory.join(MAPS).join(name);
        if !path.exists() {
            return Err(ControlError::Unusable(format!("{}: nothing of the kind is up", path.display())));
        }
        Ok(KernelMap::from_pin(&path)?)
    }

    fn link_path(&self, device: &str) -> PathBuf {
        // A BPF file system takes no full stop in names.
        self.directory.join(format!("{LINK}{}", device.replace('.', "_")))
    }

    /// The pinned links, each with its path.
    fn links(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_link = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(LINK));
        entries.map(|e| e.path()).filter(is_link).collect()
    }

    /// Loads, fills, attaches and pins. If a step fails, the previous state is restored.
    pub(super) fn up(&self, plane: DataPlane, tables: &DataPlaneTables, mode: AttachMode) -> Result<()> {
        if self.directory.exists() {
            let directory = self.directory.display();
            return Err(ControlError::Unusable(format!(
                "{directory} exists: something is up; `set` changes it, `down` ends it"
            )));
        }
        if tables.devices.is_empty() {
            return Err(ControlError::Unusable("the configuration names no interface to run on".into()));
        }
        let object = Object::parse(plane.program().name, plane.program().object)?;
        let (session, program) = load(plane, &object, tables)?;
        let mut attached = Vec::new();
        for name in &tables.devices {
            attached.push((name, attach(&program, name, mode)?));
        }
        // From here on there are pins to remove.
        let pinned = self.pin(&object, &session, &attached);
        if pinned.is_err() {
            self.remove();
        }
        pinned
    }

    fn pin(&self, object: &Object, session: &Session<'_>, links: &[(&String, Link)]) -> Result<()> {
        let maps = self.directory.join(MAPS);
        create_pin_dir(&self.directory)?;
        create_pin_dir(&maps)?;
        for map in &object.maps {
            if let (false, Some(made)) = (map.origin.is_global(), session.map_by_name(&map.name)) {
                made.pin(&maps.join(&map.name))?;
            }
        }
        for (device, link) in links {
            link.pin(&self.link_path(device))?;
        }
        Ok(())
    }

    /// Detaches and unpins.
    pub(super) fn down(&self) -> Result<()> {
        if !self.directory.exists() {
            return Err(ControlError::Unusable(format!("{}: nothing is up", self.directory.display())));
        }
        self.remove();
        match self.directory.exists() {
            false => Ok(()),
            true => {
                Err(ControlError::Unusable(format!("{} holds something else, too", self.directory.display())))
            }
        }
    }

    /// Detaches the programs, and removes the pins.
    fn remove(&self) {
        for path in self.links() {
            // A link that only loses its pin is detached some time later, in a work queue (`bpf_link_put` in
            // kernel/bpf/syscall.c); until then packets reach the program.
            let _ = Link::from_pin(&path).and_then(|link| link.detach());
            // The directory stays if a file cannot be removed.
            let _ = std::fs::remove_file(path);
        }
        let maps = self.directory.join(MAPS);
        for entry in std::fs::read_dir(&maps).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        let _ = std::fs::remove_dir(&maps);
        let _ = std::fs::remove_dir(&self.directory);
    }

    /// Changes the tables. Interfaces stay as they are.
    pub(super) fn set(&self, plane: DataPlane, tables: &DataPlaneTables) -> Result<()> {
        match plane {
            DataPlane::Firewall => self.swap(plane, tables),
            DataPlane::Router => self.sync(plane, &rebased(&tables.entries, self.free_half()?)?),
            _ => self.sync(plane, &tables.entries),
        }
    }

    /// Base of the half of the table that no route refers to, for new next hops.
    fn free_half(&self) -> Result<u32> {
        let routes = self.map(router::ROUTES)?.entries()?;
        let upper = |v: &[u8]| v.first_chunk().is_some_and(|c| u32::from_ne_bytes(*c) >= HALF);
        let used = routes.iter().next().is_some_and(|(_, hop)| upper(hop));
        Ok(if used { 0 } else { HALF })
    }

    fn sync(&self, plane: DataPlane, entries: &[MapEntry]) -> Result<()> {
        let mut by_map: Vec<(&str, KernelMap, HashSet<&[u8]>)> = Vec::new();
        for name in configured(plane) {
            by_map.push((name, self.map(name)?, HashSet::new()));
        }
        for entry in entries {
            let found = by_map.iter_mut().find(|(name, ..)| *name == entry.map);
            let (_, map, keys) =
                found.ok_or_else(|| ControlError::Unusable(format!("no table {}", entry.map)))?;
            map.update_all_cpus(&entry.key, &entry.value, UpdateMode::Any)?;
            keys.insert(&entry.key);
        }
        // In `configured`, maps that refer to others come first, and so are cleared first.
        for (name, map, keys) in &by_map {
            forget(name, map, keys)?;
        }
        Ok(())
    }

    /// Loads the program anew with these tables, and replaces the old one.
    fn swap(&self, plane: DataPlane, tables: &DataPlaneTables) -> Result<()> {
        let object = Object::parse(plane.program().name, plane.program().object)?;
        let links: Vec<Link> =
            self.links().iter().map(|p| Link::from_pin(p)).collect::<std::result::Result<_, _>>()?;
        if links.is_empty() {
            return Err(ControlError::Unusable(format!("{}: nothing is up", self.directory.display())));
        }
        let (session, program) = load(plane, &object, tables)?;
        for link in &links {
            link.replace_any(&program)?;
        }
        let maps = self.directory.join(MAPS);
        for map in object.maps.iter().filter(|m| !m.origin.is_global()) {
            let Some(made) = session.map_by_name(&map.name) else { continue };
            let path = maps.join(&map.name);
            if path.exists() {
                std::fs::remove_file(&path)
                    .map_err(|source| ControlError::Path { path: path.clone(), source })?;
            }
            made.pin(&path)?;
        }
        Ok(())
    }
}

fn load<'o>(
    plane: DataPlane,
    object: &'o Object,
    tables: &DataPlaneTables,
) -> Result<(Session<'o>, KernelProgram)> {
    let function = plane.program().function;
    let session = ObjectLoader::new(object).only(function)?.prepare()?;
    fill(&session, &tables.entries)?;
    let found = object.programs.iter().find(|p| p.name == function);
    let found = found.ok_or_else(|| ControlError::Unusable(format!("no program {function}")))?;
    let program = session.load(found.func, &object.link(found.func)?)?;
    Ok((session, program))
}

fn fill(session: &Session<'_>, entries: &[MapEntry]) -> Result<()> {
    let mut last: Option<(&str, &KernelMap)> = None;
    for entry in entries {
        let map = match last {
            Some((name, map)) if name == entry.map => map,
            _ => {
                let map = session.map_by_name(entry.map);
                map.ok_or_else(|| ControlError::Unusable(format!("no table {}", entry.map)))?
            }
        };
        map.update_all_cpus(&entry.key, &entry.value, UpdateMode::Any)?;
        last = Some((entry.map, map));
    }
    Ok(())
}

fn attach(program: &KernelProgram, name: &str, mode: AttachMode) -> Result<Link> {
    let attach = || Link::attach_xdp(program, interface_index(name)?, mode.into());
    attach().map_err(|source| ControlError::Interface { name: name.to_owned(), source })
}

/// The tables that a configuration fills; those that refer to others come first. The remaining tables hold
/// learned entries and counters.
fn configured(plane: DataPlane) -> &'static [&'static str] {
    match plane {
        DataPlane::Router => &[router::ROUTES, router::NEXT_HOPS, router::TX_PORTS],
        DataPlane::Switch => &[switch::PORTS, switch::STATIONS, switch::TX_PORTS],
        DataPlane::Nat => {
            &[nat::PORTS, nat::RULES, nat::EXEMPT, nat::EXTERNALS, nat::SETTINGS, nat::TX_PORTS]
        }
        DataPlane::Balancer => &[
            balancer::VIPS4,
            balancer::VIPS6,
            balancer::VIP_ADDRESSES,
            balancer::QUIC_SERVERS,
            balancer::RINGS,
            balancer::REALS,
            balancer::SETTINGS,
        ],
        // Its tables are replaced as a whole.
        DataPlane::Firewall => &[],
    }
}

/// Removes the entries of a map that are not among `keys`; array elements, which always exist, become zero.
fn forget(name: &str, map: &KernelMap, keys: &HashSet<&[u8]>) -> Result<()> {
    let is_array = map.info().map_type.is_array();
    let zeros = vec![0; map.info().value_size as usize];
    for (key, value) in map.entries()?.iter() {
        let learned =
            name == switch::STATIONS && switch::FdbEntry::decode(key, value).is_some_and(|s| !s.is_static);
        if keys.contains(key) || learned {
            continue;
        }
        if !is_array {
            map.delete(key)?;
        } else if value.iter().any(|b| *b != 0) {
            map.update_all_cpus(key, &zeros, UpdateMode::Any)?;
        }
    }
    Ok(())
}

/// A router's entries with its next hops from `base` on.
fn rebased(entries: &[MapEntry], base: u32) -> Result<Vec<MapEntry>> {
    let moved = |bytes: &[u8]| {
        let index = bytes.first_chunk().map_or(0, |c| u32::from_ne_bytes(*c));
        match index < HALF {
            true => Ok((base + index).to_ne_bytes().to_vec()),
            false => Err(ControlError::Unusable(format!(
                "more than {HALF} next hops cannot be changed under traffic"
            ))),
        }
    };
    let entry = |e: &MapEntry| {
        Ok(match e.map {
            router::NEXT_HOPS => MapEntry { key: moved(&e.key)?, ..e.clone() },
            router::ROUTES => MapEntry { value: moved(&e.value)?, ..e.clone() },
            _ => e.clone(),
        })
    };
    entries.iter().map(entry).collect()
}

/// An interface's name, for tables; its index if it has none here.
pub(super) fn device_name(index: u32) -> String {
    kernel::interface(index).map_or_else(|_| index.to_string(), |i| i.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hops_move_with_their_routes() {
        let word = u32::to_ne_bytes;
        let entries = [
            MapEntry::new(router::NEXT_HOPS, word(1), [1, 2]),
            MapEntry::new(router::ROUTES, [9], word(1)),
            MapEntry::new(router::TX_PORTS, word(1), [7]),
        ];
        let moved = rebased(&entries, HALF).unwrap();
        assert_eq!((&moved[0].key[..], &moved[1].value[..]), (&word(HALF + 1)[..], &word(HALF + 1)[..]));
        assert_eq!(moved[2], entries[2]);
        assert!(rebased(&[MapEntry::new(router::ROUTES, [9], word(HALF))], 0).is_err());
    }
}
