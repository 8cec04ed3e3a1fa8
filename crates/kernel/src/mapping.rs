//! Memory-mapped arrays: values read and written without a system call.
//!
//! Programs write the same memory at any time, so it is never lent as a slice: bytes are copied one by one as
//! volatile accesses, words are lent as atomics.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use millstream_isa::MapType;

use crate::error::{KernelError, Result};
use crate::map::{KernelMap, MapSpec};
use crate::sys::last_errno;
use crate::types::map_flags;

/// The values of an array map, mapped into memory. Element `i` is at `i * stride()`.
#[derive(Debug)]
pub struct ArrayMapping {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    stride: usize,
    writable: bool,
}

// SAFETY: the mapping is plain shared memory, owned by this value, and every access through `&self` is
// volatile or atomic.
unsafe impl Send for ArrayMapping {}
// SAFETY: as above.
unsafe impl Sync for ArrayMapping {}

/// Memory that programs and this process share: an array of one element of `bytes` bytes.
///
/// # Errors
/// If the kernel refuses: an invalid name or size, no memory left.
pub fn shared_memory(name: &str, bytes: usize) -> Result<(KernelMap, ArrayMapping)> {
    let value_size = u32::try_from(bytes).map_err(|_| {
        KernelError::argument(
            format!("making map {name:?}"),
            format!("{bytes} bytes are more than a value has"),
        )
    })?;
    let map = KernelMap::create(&MapSpec {
        name,
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size,
        max_entries: 1,
        flags: map_flags::MMAPABLE,
        ..MapSpec::default()
    })?;
    let memory = map.mmap(true)?;
    Ok((map, memory))
}

impl KernelMap {
    /// Maps the values of an array map that was created with [`map_flags::MMAPABLE`].
    ///
    /// # Errors
    /// If the map is no such array; `EPERM` if it is frozen and `writable` is asked for.
    pub fn mmap(&self, writable: bool) -> Result<ArrayMapping> {
        let info = self.info();
        if info.map_type != MapType::ARRAY || info.flags & map_flags::MMAPABLE == 0 {
            return Err(KernelError::argument(
                self.doing("mapping"),
                "only arrays with BPF_F_MMAPABLE can be mapped",
            ));
        }
        let stride = (info.value_size as usize).next_multiple_of(8);
        let len = stride.saturating_mul(info.max_entries as usize);
        let mapped = len.next_multiple_of(page_size());
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let base = self.map_shared(0, mapped, protection)?;
        Ok(ArrayMapping { base, len, mapped, stride, writable })
    }

    /// Gives an arena its address in processes, which programs need before they are verified, and puts `data`
    /// at its start.
    ///
    /// # Errors
    /// If the map is no arena, a smaller one than the data, or one to which this process may add no pages; if
    /// it cannot be mapped.
    pub fn place_arena(&self, data: &[u8]) -> Result<()> {
        let info = self.info();
        let page = page_size();
        let len = page.saturating_mul(info.max_entries as usize);
        let has_room = data.len() <= len && (data.is_empty() || info.flags & map_flags::SEGV_ON_FAULT == 0);
        if info.map_type != MapType::ARENA || !has_room {
            let data = format!("{} bytes of data", data.len());
            return Err(KernelError::argument(
                self.doing("mapping"),
                format!("it is no arena, or one that {data} cannot be written to"),
            ));
        }
        let base = self.map_shared(info.extra as usize, len, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: the mapping has `len` bytes, no fewer than the data; it is unmapped as it was mapped, and no
        // reference into it was made.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), base.as_ptr(), data.len());
            libc::munmap(base.as_ptr().cast(), len);
        }
        Ok(())
    }

    /// Maps the memory of the map, at an address of the kernel's choice unless `address` is free.
    fn map_shared(&self, address: usize, len: usize, protection: libc::c_int) -> Result<NonNull<u8>> {
        // SAFETY: a fresh shared mapping aliases nothing of ours, nor does it replace anything, since MAP_FIXED is
        // not asked for.
        let base = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                len,
                protection,
                libc::MAP_SHARED,
                self.as_fd().as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(KernelError::call("mmap", self.doing("mapping"), last_errno()));
        }
        NonNull::new(base.cast())
            .ok_or_else(|| KernelError::argument(self.doing("mapping"), "mapped at address zero"))
    }
}

fn page_size() -> usize {
    // SAFETY: asks for no system parameter with a precondition.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl ArrayMapping {
    /// Bytes mapped, without the rest of the last page.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing is mapped; never so for a map of the kernel's.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of its first byte, for passing the memory on to code that reads and writes it as programs do.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns true if it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Bytes from one element to the next: the value size rounded up to 8.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.bounds(offset, out.len(), 1);
        for (i, byte) in out.iter_mut().enumerate() {
            // SAFETY: in bounds by the check above; volatile, since programs write concurrently.
            *byte = unsafe { self.base.as_ptr().add(offset + i).read_volatile() };
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If the range is not inside the mapping, or the mapping is read-only.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable, "write to a read-only mapping");
        self.bounds(offset, bytes.len(), 1);
        // By words where they are aligned, as mappings are: large tables are written this way.
        let (words, rest) = bytes.as_chunks::<8>();
        let words = if offset.is_multiple_of(8) { words } else { &[] };
        for (i, word) in words.iter().enumerate() {
            let at = self.base.as_ptr().wrapping_add(offset + 8 * i).cast::<u64>();
            // SAFETY: in bounds, aligned and writable by the checks above; volatile, since programs read
            // concurrently.
            unsafe { at.write_volatile(u64::from_ne_bytes(*word)) };
        }
        let done = 8 * words.len();
        let rest = if done > 0 { rest } else { bytes };
        for (i, &byte) in rest.iter().enumerate() {
            // SAFETY: in bounds and writable by the checks above; volatile, since programs read concurrently.
            unsafe { self.base.as_ptr().add(offset + done + i).write_volatile(byte) };
        }
    }

    /// The 8 bytes at `offset` as an atomic.
    ///
    /// # Panics
    /// If they are not inside the mapping or not aligned, or the mapping is read-only (an atomic
    /// could write).
    pub fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable, "atomic of a read-only mapping");
        self.bounds(offset, 8, 8);
        // SAFETY: in bounds, aligned, mapped for as long as `self`, and never lent otherwise than atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 4 bytes at `offset` as an atomic.
    ///
    /// # Panics
    /// As for [`ArrayMapping::atomic_u64`].
    pub fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(self.writable, "atomic of a read-only mapping");
        self.bounds(offset, 4, 4);
        // SAFETY: as for `atomic_u64`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn bounds(&self, offset: usize, len: usize, align: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|e| e <= self.len), "{len} bytes at {offset} of a mapping of {}", self.len);
        assert!(offset.is_multiple_of(align), "offset {offset} is not a multiple of {align}");
    }
}

impl Drop for ArrayMapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `mmap` gave; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}
