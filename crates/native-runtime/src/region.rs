//! Memory at fixed addresses, which native code accesses by pointer.
//!
//! A region is zero at first, and takes physical memory only where it is touched, so that a map may be
//! declared far larger than it is filled.
//!
//! Invariants: the mapping lives as long as the region and never moves. Rust accesses it only by
//! bounds-checked slices, and never while native code runs: every such access is made by the holder of the
//! one `&mut` to the whole runtime, or inside a helper, while the code that called it waits.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Zeroed memory that does not move.
#[derive(Debug)]
pub struct MemoryRegion {
    base: *mut u8,
    len: usize,
    /// Owner of the memory, unless it is the region's own.
    lent: Option<ExternalMemory>,
}

/// Shared memory: the values of an array map of the kernel's.
#[derive(Clone)]
pub struct ExternalMemory(Arc<dyn millstream_ports::FrameMemory>);

impl ExternalMemory {
    /// All bytes of the memory.
    pub fn new(memory: Arc<dyn millstream_ports::FrameMemory>) -> ExternalMemory {
        ExternalMemory(memory)
    }
}

impl fmt::Debug for ExternalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({:#x}, {} bytes)", self.0.address(), self.0.length())
    }
}

// SAFETY: a mapping is the process's, not a thread's; the module's invariant says who may access it.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; a shared reference permits only reading.
unsafe impl Sync for MemoryRegion {}

// SAFETY: the mapping is that long, begins at a page, and lives as long as the region. If its frames are a
// line's, only the bytes of packets of a batch are accessed, whose frames the worker owns
// (`MemoryRegion::part`).
unsafe impl millstream_ports::FrameMemory for MemoryRegion {
    fn address(&self) -> u64 {
        MemoryRegion::address(self)
    }

    fn length(&self) -> usize {
        self.len
    }
}

/// Addresses of regions that code knows.
#[derive(Debug)]
pub enum AddressAllocator {
    /// Any address: the code is made for the result.
    Anywhere,
    /// Consecutive addresses, so that the same requests give the same addresses in another process.
    Fixed {
        /// Address of the next region.
        next: u64,
    },
}

impl AddressAllocator {
    /// Fixed addresses that no system assigns on its own: far above programs and heaps, far below libraries
    /// and stacks. There are [`AREAS`] areas of them, so that programs may have different ones in one
    /// process.
    pub fn fixed(area: u8) -> AddressAllocator {
        AddressAllocator::Fixed { next: 0x1000_0000_0000 + u64::from(area % AREAS) * AREA }
    }
}

/// Areas of fixed addresses, of 1 TiB each.
pub const AREAS: u8 = 64;
const AREA: u64 = 1 << 40;

/// Fixed regions begin at multiples of this, the size of a large page.
const STEP: u64 = 2 << 20;

impl MemoryRegion {
    /// A region at `place`.
    ///
    /// # Errors
    /// If the system has no memory there.
    pub fn new(len: usize, place: &mut AddressAllocator) -> io::Result<MemoryRegion> {
        let AddressAllocator::Fixed { next } = place else { return MemoryRegion::map(len, 0, 0) };
        let at = *next;
        *next = (at + len as u64 + 1).next_multiple_of(STEP);
        MemoryRegion::map(len, libc::MAP_FIXED_NOREPLACE, at)
    }

    /// A region below 2 GiB: its addresses fit in the 32-bit fields of `struct xdp_md`.
    ///
    /// # Errors
    /// If there is no memory so low, or on a processor where that cannot be requested.
    pub fn low(len: usize) -> io::Result<MemoryRegion> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no low memory on this processor"));
        }
        #[cfg(target_arch = "x86_64")]
        const LOW: libc::c_int = libc::MAP_32BIT;
        #[cfg(not(target_arch = "x86_64"))]
        const LOW: libc::c_int = 0;
        MemoryRegion::map(len, LOW, 0)
    }

    fn map(len: usize, flags: libc::c_int, at: u64) -> io::Result<MemoryRegion> {
        let len = len.max(1);
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let hint = at as *mut libc::c_void;
        // SAFETY: a new anonymous mapping touches no memory that exists, and replaces no mapping that is
        // there.
        let base = unsafe { libc::mmap(hint, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let region = MemoryRegion { base: base.cast(), len, lent: None };
        // A kernel that does not know the flag takes the address as a hint.
        match at == 0 || region.address() == at {
            true => Ok(region),
            false => Err(io::Error::new(io::ErrorKind::AddrInUse, "the address is not free")),
        }
    }

    /// Shared memory, which others write at any time: reads give arbitrary bytes, one after the other.
    pub(crate) fn of(lent: &ExternalMemory) -> MemoryRegion {
        let (base, len) = (lent.0.address() as *mut u8, lent.0.length());
        MemoryRegion { base, len, lent: Some(lent.clone()) }
    }

    /// Address of its first byte.
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if this address below 4 GiB is one of its bytes.
    #[inline]
    pub(crate) fn holds(&self, address: u32) -> bool {
        u64::from(address).checked_sub(self.address()).is_some_and(|at| at < self.len as u64)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long and readable; nothing writes meanwhile, by the module's invariant.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// The bytes, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and writable; nothing else accesses them meanwhile, by the module's
        // invariant.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// This many bytes from an offset on; empty if they are not all in it. Others may own the other bytes
    /// meanwhile.
    pub(crate) fn part(&self, from: usize, len: usize) -> &[u8] {
        if from > self.len || len > self.len - from {
            return &[];
        }
        // SAFETY: these bytes are in the mapping; nothing writes them meanwhile, by the module's invariant.
        unsafe { std::slice::from_raw_parts(self.base.add(from), len) }
    }

    /// The 64-bit word number `at`.
    pub(crate) fn word(&self, at: usize) -> u64 {
        let bytes = &self.bytes()[8 * at..8 * at + 8];
        u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Sets the 64-bit word number `at`.
    pub(crate) fn set_word(&mut self, at: usize, value: u64) {
        self.bytes_mut()[8 * at..8 * at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// The 32-bit word number `at`.
    pub(crate) fn half(&self, at: usize) -> u32 {
        let bytes = &self.bytes()[4 * at..4 * at + 4];
        u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Sets the 32-bit word number `at`.
    pub(crate) fn set_half(&mut self, at: usize, value: u32) {
        self.bytes_mut()[4 * at..4 * at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    /// The 16-bit word number `at`.
    pub(crate) fn quarter(&self, at: usize) -> u16 {
        let bytes = &self.bytes()[2 * at..2 * at + 2];
        u16::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Sets the 16-bit word number `at`.
    pub(crate) fn set_quarter(&mut self, at: usize, value: u16) {
        self.bytes_mut()[2 * at..2 * at + 2].copy_from_slice(&value.to_ne_bytes());
    }

    /// Asks for large pages for the first `len` bytes, most of which will be used. The system may refuse.
    pub fn prefer_large_pages(&self, len: usize) {
        // SAFETY: advice on our own mapping, which changes none of its contents.
        unsafe { libc::madvise(self.base.cast(), len.min(self.len), libc::MADV_HUGEPAGE) };
    }
}

/// A value in a region of its own: at a fixed address, which code may know.
#[derive(Debug)]
pub struct FixedAddressBox<T> {
    region: MemoryRegion,
    value: PhantomData<T>,
}

impl<T> FixedAddressBox<T> {
    /// Puts a value at `place`.
    ///
    /// # Errors
    /// If the system has no memory there.
    pub fn new(value: T, place: &mut AddressAllocator) -> io::Result<FixedAddressBox<T>> {
        let region = MemoryRegion::new(size_of::<T>(), place)?;
        // SAFETY: the region is that long, begins at a page, and holds nothing yet.
        unsafe { region.base.cast::<T>().write(value) };
        Ok(FixedAddressBox { region, value: PhantomData })
    }

    /// Address of the value.
    pub fn address(&self) -> u64 {
        self.region.address()
    }
}

impl<T> Deref for FixedAddressBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value was written by `new`; native code changes it only by helpers, by the module's
        // invariant.
        unsafe { &*self.region.base.cast::<T>() }
    }
}

impl<T> DerefMut for FixedAddressBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; there is one `&mut` to the region.
        unsafe { &mut *self.region.base.cast::<T>() }
    }
}

impl<T> Drop for FixedAddressBox<T> {
    fn drop(&mut self) {
        // SAFETY: the value was written by `new`, and is not used any more.
        unsafe { self.region.base.cast::<T>().drop_in_place() };
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.lent.is_some() {
            return;
        }
        // SAFETY: our own mapping, not lent, of that length; nobody has a slice of it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zero_stay_and_may_lie_low() {
        let mut r = MemoryRegion::new(10 << 30, &mut AddressAllocator::Anywhere)
            .expect("untouched memory costs nothing");
        assert_eq!((r.word(1 << 20), r.bytes().len()), (0, 10 << 30));
        r.set_word(5, 7);
        assert_eq!((r.word(5), r.bytes()[40]), (7, 7));
        let place = || AddressAllocator::Fixed { next: 0x2000_0000_0000 };
        let mut fixed = place();
        let (a, b) =
            (MemoryRegion::new(5, &mut fixed).unwrap(), FixedAddressBox::new(vec![7], &mut fixed).unwrap());
        assert_eq!((a.address(), b.address(), b.len()), (0x2000_0000_0000, 0x2000_0020_0000, 1));
        assert!(MemoryRegion::new(5, &mut place()).is_err(), "what is taken is not replaced");
        let low = MemoryRegion::low(1 << 20).unwrap();
        assert!(low.address() + low.len as u64 <= 1 << 31);
    }
}
