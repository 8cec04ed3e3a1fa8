//! Maps: creation and operations on single elements.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use millstream_isa::MapType;

use crate::btf::KernelBtf;
use crate::cpus::possible_cpus;
use crate::error::{KernelError, Result};
use crate::info::{self, MapInfo};
use crate::sys::{self, MapCreate, MapElem, Obj, PlainData, addr, addr_mut};
use crate::types::map_flags;

/// Specification of a map. Plain data; [`KernelMap::create`] makes the map.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapSpec<'a> {
    /// Name for listings; at most 15 bytes of it are kept.
    pub name: &'a str,
    /// Map type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Elements at most (for ring buffers: bytes).
    pub max_entries: u32,
    /// [`map_flags`].
    pub flags: u32,
    /// The template of the inner maps, for maps of maps.
    pub inner: Option<&'a KernelMap>,
    /// NUMA node for the memory; sets the flag.
    pub numa_node: Option<u32>,
    /// BTF with the type ids of key and value.
    pub btf: Option<(&'a KernelBtf, u32, u32)>,
    /// Type-specific extra (number of bloom filter hashes, arena address).
    pub extra: u64,
}

/// Precondition of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpdateMode {
    /// Insert or replace.
    #[default]
    Any,
    /// Insert only; an existing element is `EEXIST`.
    NoExist,
    /// Replace only; a missing element is `ENOENT`.
    Exist,
}

/// A map in the kernel, held by a descriptor.
#[derive(Debug)]
pub struct KernelMap {
    fd: OwnedFd,
    info: MapInfo,
}

impl KernelMap {
    /// Creates a map.
    ///
    /// # Errors
    /// What bpf(2) refuses: too large, a flag that the type does not know, missing capabilities.
    pub fn create(spec: &MapSpec<'_>) -> Result<Self> {
        let mut attr = MapCreate::zeroed();
        attr.map_type = spec.map_type.0;
        attr.key_size = spec.key_size;
        attr.value_size = spec.value_size;
        attr.max_entries = spec.max_entries;
        attr.map_flags = spec.flags;
        attr.map_name = sys::object_name(spec.name);
        attr.map_extra = spec.extra;
        if let Some(inner) = spec.inner {
            attr.inner_map_fd = inner.fd.as_raw_fd() as u32;
        }
        if let Some(node) = spec.numa_node {
            attr.map_flags |= map_flags::NUMA_NODE;
            attr.numa_node = node;
        }
        if let Some((btf, key, value)) = spec.btf {
            attr.btf_fd = btf.as_fd().as_raw_fd() as u32;
            attr.btf_key_type_id = key;
            attr.btf_value_type_id = value;
        }
        let fd = sys::call_fd(sys::MAP_CREATE, &mut attr, || {
            format!(
                "creating map {:?} ({}, key {} B, value {} B, {} entries, flags {:#x})",
                spec.name, spec.map_type, spec.key_size, spec.value_size, spec.max_entries, spec.flags
            )
        })?;
        Self::from_fd(fd)
    }

    /// Takes a descriptor that is a map's.
    ///
    /// # Errors
    /// If it is not a map's.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let info = info::map_info(fd.as_fd())?;
        Ok(KernelMap { fd, info })
    }

    /// Opens the map with this id.
    ///
    /// # Errors
    /// `ENOENT` if it is gone; `EPERM` without CAP_SYS_ADMIN.
    pub fn from_id(id: u32) -> Result<Self> {
        Self::from_fd(info::open_id(sys::MAP_GET_FD_BY_ID, id, 0, "map")?)
    }

    /// Opens the map pinned at `path`.
    ///
    /// # Errors
    /// If nothing, or something else than a map, is pinned there.
    pub fn from_pin(path: &Path) -> Result<Self> {
        Self::from_fd(get_pinned(path)?)
    }

    /// Pins the map at `path`, below a BPF file system.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM`, or `EINVAL` outside a BPF file system.
    pub fn pin(&self, path: &Path) -> Result<()> {
        pin(self.fd.as_fd(), path)
    }

    /// A second handle on the same map.
    ///
    /// # Errors
    /// `EMFILE`, if the process has too many descriptors.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self.fd.try_clone().map_err(|e| {
            KernelError::call(
                "fcntl(F_DUPFD_CLOEXEC)",
                self.doing("duplicating"),
                e.raw_os_error().unwrap_or(libc::EIO),
            )
        })?;
        Ok(KernelMap { fd, info: self.info.clone() })
    }

    /// The kernel's description of the map when this handle was made; use [`KernelMap::refresh`] for values
    /// that change.
    pub fn info(&self) -> &MapInfo {
        &self.info
    }

    /// Asks the kernel anew.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn refresh(&self) -> Result<MapInfo> {
        info::map_info(self.fd.as_fd())
    }

    /// The kernel's id of the map.
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// Bytes of a value as user space reads and writes it: per-CPU values come all at once.
    ///
    /// # Errors
    /// If the number of CPUs cannot be found out.
    pub fn value_len(&self) -> Result<usize> {
        let size = self.info.value_size as usize;
        if self.info.map_type.is_percpu() {
            Ok(size.next_multiple_of(8).saturating_mul(possible_cpus()?))
        } else {
            Ok(size)
        }
    }

    /// Reads the value of `key`; `None` if there is none. Per-CPU values come one after another, each padded
    /// to 8 bytes.
    ///
    /// # Errors
    /// If the key has the wrong size, or the kernel refuses.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value_len()?];
        Ok(self.lookup_into(key, &mut value)?.then_some(value))
    }

    /// Like [`KernelMap::lookup`], into a buffer of [`KernelMap::value_len`] bytes; returns true if there was
    /// an element.
    ///
    /// # Errors
    /// If the key or value has the wrong size, or the kernel refuses.
    pub fn lookup_into(&self, key: &[u8], value: &mut [u8]) -> Result<bool> {
        self.check("looking up in", key, value.len())?;
        let mut attr = self.element(key);
        attr.__bindgen_anon_1.value = addr_mut(value);
        self.found(sys::MAP_LOOKUP_ELEM, &mut attr, "looking up in")
    }

    /// Inserts or replaces.
    ///
    /// # Errors
    /// A key or value of the wrong size, `E2BIG` or `ENOSPC` if the map is full, `EPERM` if it is frozen.
    pub fn update(&self, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<()> {
        self.check("updating", key, value.len())?;
        let mut attr = self.element(key);
        attr.__bindgen_anon_1.value = addr(value);
        attr.flags = match mode {
            UpdateMode::Any => u64::from(sys::uapi::BPF_ANY),
            UpdateMode::NoExist => u64::from(sys::uapi::BPF_NOEXIST),
            UpdateMode::Exist => u64::from(sys::uapi::BPF_EXIST),
        };
        sys::call(sys::MAP_UPDATE_ELEM, &mut attr, || self.doing("updating")).map(drop)
    }

    /// Writes the same bytes as the value of every CPU; for other maps, [`KernelMap::update`].
    ///
    /// # Errors
    /// As for [`KernelMap::update`].
    pub fn update_all_cpus(&self, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<()> {
        if !self.info.map_type.is_percpu() {
            return self.update(key, value, mode);
        }
        if value.len() != self.info.value_size as usize {
            return Err(KernelError::argument(
                self.doing("updating"),
                format!("value of {} bytes, where the map has {}", value.len(), self.info.value_size),
            ));
        }
        let stride = value.len().next_multiple_of(8);
        let mut all = vec![0; self.value_len()?];
        all.chunks_exact_mut(stride).for_each(|cpu| cpu[..value.len()].copy_from_slice(value));
        self.update(key, &all, mode)
    }

    /// Puts a descriptor (a program's, an inner map's) at `key` of a map that holds such.
    ///
    /// # Errors
    /// `EINVAL` if the object does not fit the map.
    pub fn update_fd(&self, key: &[u8], object: BorrowedFd<'_>) -> Result<()> {
        self.update(key, &object.as_raw_fd().to_ne_bytes(), UpdateMode::Any)
    }

    /// Removes an element; returns true if there was one.
    ///
    /// # Errors
    /// If the kernel refuses: elements of arrays cannot be removed (`EINVAL`).
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.check_key("deleting from", key)?;
        let mut attr = self.element(key);
        self.found(sys::MAP_DELETE_ELEM, &mut attr, "deleting from")
    }

    /// The key after `key` in the kernel's order, or the first; `None` at the end. If `key` is gone, hash
    /// maps start again from the first.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        if let Some(key) = key {
            self.check_key("walking", key)?;
        }
        let mut next = vec![0; self.info.key_size as usize];
        let mut attr = self.element(key.unwrap_or_default());
        attr.__bindgen_anon_1.next_key = addr_mut(&mut next);
        Ok(self.found(sys::MAP_GET_NEXT_KEY, &mut attr, "walking")?.then_some(next))
    }

    /// Reads and removes in one step: hash maps by key, queues and stacks with an empty key.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lookup_and_delete(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value_len()?];
        self.check("taking from", key, value.len())?;
        let mut attr = self.element(key);
        attr.__bindgen_anon_1.value = addr_mut(&mut value);
        Ok(self.found(sys::MAP_LOOKUP_AND_DELETE_ELEM, &mut attr, "taking from")?.then_some(value))
    }

    /// Forbids further writes by user space. Programs may still write, unless the map is read-only to them
    /// too.
    ///
    /// # Errors
    /// `EBUSY` if it is memory-mapped writable or frozen already.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = MapElem::zeroed();
        attr.map_fd = self.fd.as_raw_fd() as u32;
        sys::call(sys::MAP_FREEZE, &mut attr, || self.doing("freezing")).map(drop)
    }

    /// Returns true if user space can no longer write it. The rights of programs are another matter.
    ///
    /// # Errors
    /// If the kernel's description of the descriptor cannot be read.
    pub fn is_frozen(&self) -> Result<bool> {
        let path = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let failed = |e: std::io::Error| {
            KernelError::call("read(fdinfo)", self.doing("describing"), e.raw_os_error().unwrap_or(libc::EIO))
        };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Ok(text.lines().any(|line| line.split_whitespace().eq(["frozen:", "1"])))
    }

    fn element(&self, key: &[u8]) -> MapElem {
        let mut attr = MapElem::zeroed();
        attr.map_fd = self.fd.as_raw_fd() as u32;
        attr.key = addr(key);
        attr
    }

    fn found(&self, command: sys::BpfCommand, attr: &mut MapElem, verb: &str) -> Result<bool> {
        match sys::bpf(command, attr) {
            Ok(_) => Ok(true),
            Err(libc::ENOENT) => Ok(false),
            Err(errno) => Err(KernelError::call(command.name, self.doing(verb), errno)),
        }
    }

    fn check(&self, verb: &str, key: &[u8], value: usize) -> Result<()> {
        self.check_key(verb, key)?;
        let want = self.value_len()?;
        if value == want {
            return Ok(());
        }
        Err(KernelError::argument(
            self.doing(verb),
            format!("value of {value} bytes, where the map has {want}"),
        ))
    }

    /// The kernel reads as many bytes of the key as the map says: a shorter buffer must never reach it.
    pub(crate) fn check_key(&self, verb: &str, key: &[u8]) -> Result<()> {
        let want = self.info.key_size as usize;
        if key.len() == want {
            return Ok(());
        }
        Err(KernelError::argument(
            self.doing(verb),
            format!("key of {} bytes, where the map has {want}", key.len()),
        ))
    }

    pub(crate) fn doing(&self, verb: &str) -> String {
        format!("{verb} map {:?} ({}, id {})", self.info.name, self.info.map_type, self.info.id)
    }
}

impl AsFd for KernelMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Pins any BPF object.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let doing = || format!("pinning at {}", path.display());
    let text = sys::c_string(&path.to_string_lossy(), &doing())?;
    let mut attr = Obj::zeroed();
    attr.pathname = text.as_ptr() as u64;
    attr.bpf_fd = fd.as_raw_fd() as u32;
    sys::call(sys::OBJ_PIN, &mut attr, doing).map(drop)
}

/// Opens any pinned BPF object.
pub(crate) fn get_pinned(path: &Path) -> Result<OwnedFd> {
    let doing = || format!("opening the pin {}", path.display());
    let text = sys::c_string(&path.to_string_lossy(), &doing())?;
    let mut attr = Obj::zeroed();
    attr.pathname = text.as_ptr() as u64;
    sys::call_fd(sys::OBJ_GET, &mut attr, doing)
}
