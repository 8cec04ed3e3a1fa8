//! `--share NAME=MAP`: an array of the program that is an array of the kernel.
//!
//! An array with `BPF_F_MMAPABLE` lies in memory that this process can map, too. So there is one array:
//! writes of programs in the kernel, other processes and this one are visible to the others at once, by whole
//! single accesses and atomic operations, as between CPUs. The kernel shares the memory of no other maps. A
//! copy would be stale, and writes to both could not be merged: such maps are refused.

use std::path::Path;
use std::sync::Arc;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_isa::MapType;
use millstream_kernel::{KernelMap, map_flags};
use millstream_native::ExternalMemory;
use millstream_object::Object;
use millstream_ports::ArrayMapMemory;

/// The shared arrays of an object.
pub(super) fn open(object: &Object, shares: &[String]) -> Result<Vec<(String, ExternalMemory)>> {
    shares.iter().map(|share| one(object, share).wrap_err_with(|| format!("--share {share}"))).collect()
}

fn one(object: &Object, share: &str) -> Result<(String, ExternalMemory)> {
    let (name, place) = share.split_once('=').ok_or_else(|| miette!("this is not NAME=PATH or NAME=id:N"))?;
    let declared = object.maps.iter().find(|map| map.name == name).ok_or_else(|| {
        let names: Vec<&str> = object.maps.iter().map(|map| map.name.as_str()).collect();
        miette!("the object has no map {name:?}; there are {}", names.join(", "))
    })?;
    let map = match place.strip_prefix("id:") {
        Some(id) => KernelMap::from_id(id.parse().map_err(|_| miette!("{id:?} is no id of a map"))?),
        None => KernelMap::from_pin(Path::new(place)),
    };
    let map = map.into_diagnostic()?;
    let info = map.info();
    if declared.spec.map_type != MapType::ARRAY || info.map_type != MapType::ARRAY {
        return Err(miette!(
            help = "the kernel shares the memory of arrays only, and a copy would be out of date: `--map` \
                fills a map from a dump",
            "only arrays can be shared, and map {name:?} is of type {}, the kernel's of type {}",
            declared.spec.map_type,
            info.map_type
        ));
    }
    if info.flags & map_flags::MMAPABLE == 0 {
        return Err(miette!(
            help = "`__uint(map_flags, BPF_F_MMAPABLE)` in its declaration, or `bpftool map create ... flags 0x400`",
            "the kernel's map was not made with BPF_F_MMAPABLE, so its memory cannot be shared"
        ));
    }
    let (wanted, found) =
        ((declared.spec.value_size, declared.spec.max_entries), (info.value_size, info.max_entries));
    if wanted != found {
        return Err(miette!(
            "map {name:?} has {} entries of {} bytes, the kernel's has {} of {}",
            wanted.1,
            wanted.0,
            found.1,
            found.0
        ));
    }
    let mapping = map.mmap(true).into_diagnostic()?;
    let values = ArrayMapMemory::new(mapping).map_err(|_| miette!("the kernel's map cannot be written"))?;
    Ok((name.to_owned(), ExternalMemory::new(Arc::new(values))))
}
