//! Ring buffers: records that programs hand to user space, read in order from shared memory.
//!
//! The kernel maps the data pages twice in a row, so that a record never wraps for the reader. One reader a
//! map.
//!
//! Source: `kernel/bpf/ringbuf.c` of Linux 6.18.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use millstream_isa::MapType;

use crate::error::{KernelError, Result};
use crate::map::KernelMap;
use crate::sys::last_errno;

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: usize = 8;

/// The reading end of a ring buffer.
#[derive(Debug)]
pub struct RingBuffer {
    map: KernelMap,
    /// One page with the reader's position, writable.
    consumer: MappedPages,
    /// One page with the writers' position, then the data twice.
    producer: MappedPages,
    page: usize,
    size: usize,
}

#[derive(Debug)]
struct MappedPages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: shared memory owned by this value; positions are read and written atomically, records by copy, and
// reading them takes the buffer exclusively.
unsafe impl Send for RingBuffer {}

impl MappedPages {
    fn map(map: &KernelMap, offset: usize, len: usize, protection: i32) -> Result<Self> {
        // SAFETY: a fresh shared mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(there) if base != libc::MAP_FAILED => Ok(MappedPages { base: there, len }),
            _ => Err(KernelError::call("mmap", map.doing("mapping"), last_errno())),
        }
    }

    fn position(&self) -> &AtomicU64 {
        // SAFETY: the first 8 bytes of a page: aligned, mapped for as long as `self`, and used atomically
        // only.
        unsafe { self.base.cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `mmap` gave; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl KernelMap {
    /// Opens the reading end of a ring buffer.
    ///
    /// # Errors
    /// If the map is no ring buffer, or cannot be mapped.
    pub fn ring_buffer(&self) -> Result<RingBuffer> {
        if self.info().map_type != MapType::RINGBUF {
            return Err(KernelError::argument(self.doing("reading records from"), "it is no ring buffer"));
        }
        // SAFETY: asks for no system parameter with a precondition.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let size = self.info().max_entries as usize;
        Ok(RingBuffer {
            consumer: MappedPages::map(self, 0, page, libc::PROT_READ | libc::PROT_WRITE)?,
            producer: MappedPages::map(self, page, page + 2 * size, libc::PROT_READ)?,
            map: self.try_clone()?,
            page,
            size,
        })
    }
}

impl RingBuffer {
    /// Waits until there is a record, or the time is over; returns true if there is one.
    ///
    /// # Errors
    /// What poll(2) refuses. An interruption by a signal counts as the end of the time.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let mut poll = libc::pollfd { fd: self.map.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: one live entry, whose length is passed; no signal mask.
        match unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) } {
            n if n >= 0 => Ok(n > 0),
            _ if last_errno() == libc::EINTR => Ok(false),
            _ => Err(KernelError::call("ppoll", self.map.doing("waiting for"), last_errno())),
        }
    }

    /// Gives `take` every finished record, in order, and frees it.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let mut record = Vec::new();
        let mut at = self.consumer.position().load(Ordering::Relaxed);
        while at < self.producer.position().load(Ordering::Acquire) {
            let offset = self.page + (at as usize & (self.size - 1));
            // SAFETY: inside the mapping, for positions below the writers' hold a header; aligned to 8.
            let len = unsafe { self.producer.base.add(offset).cast::<AtomicU32>().as_ref() };
            let len = len.load(Ordering::Acquire);
            if len & BUSY != 0 {
                break;
            }
            let bytes = ((len & !DISCARDED) as usize).min(self.size);
            if len & DISCARDED == 0 {
                record.resize(bytes, 0);
                // SAFETY: a finished record lies whole in the doubled mapping and is not written before it is
                // freed.
                let data = unsafe { self.producer.base.add(offset + HEADER) };
                // SAFETY: as above; `record` has room for all of it and is no part of the mapping.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), record.as_mut_ptr(), bytes) };
                take(&record);
            }
            at += (bytes + HEADER).next_multiple_of(8) as u64;
            self.consumer.position().store(at, Ordering::Release);
        }
    }
}
