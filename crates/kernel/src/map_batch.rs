//! Whole maps: reading and writing many elements in few system calls.
//!
//! A batch read is no snapshot: elements that are inserted or removed meanwhile may or may not be in it, as
//! with any walk of a live map. No element that stays is missed or given twice by the batch calls; a walk by
//! `next_key`, used where a map type has no batches, may repeat elements if the current key vanishes, so such
//! repeats are dropped.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{ENOTSUPP, KernelError, Result};
use crate::map::{KernelMap, UpdateMode};
use crate::sys::{self, MapBatch, PlainData, addr, addr_mut};

/// Keys and values, each laid end to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchEntries {
    key_len: usize,
    value_len: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    len: usize,
}

impl BatchEntries {
    fn new(key_len: usize, value_len: usize) -> Self {
        BatchEntries { key_len, value_len, ..Self::default() }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in the order in which the kernel gave them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        (0..self.len).map(|i| {
            (
                &self.keys[i * self.key_len..][..self.key_len],
                &self.values[i * self.value_len..][..self.value_len],
            )
        })
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        self.len += 1;
    }
}

/// Elements asked for at once.
const BATCH: usize = 4096;
/// Bytes of values asked for at once, at most.
const BATCH_BYTES: usize = 4 << 20;

impl KernelMap {
    /// Reads all elements: in batches where the map type has them, by walking otherwise.
    ///
    /// # Errors
    /// If the kernel refuses; `EBUSY`, as an error, if the map changes too fast to be walked.
    pub fn entries(&self) -> Result<BatchEntries> {
        match self.entries_by_batch() {
            Err(e) if matches!(e.errno(), Some(libc::EINVAL | ENOTSUPP | libc::EOPNOTSUPP)) => {
                self.entries_by_walk()
            }
            other => other,
        }
    }

    fn entries_by_batch(&self) -> Result<BatchEntries> {
        let (key_len, value_len) = (self.info().key_size as usize, self.value_len()?);
        if key_len == 0 || value_len == 0 {
            return Err(KernelError::call(sys::MAP_LOOKUP_BATCH.name, self.doing("reading"), ENOTSUPP));
        }
        let mut out = BatchEntries::new(key_len, value_len);
        let mut step = BATCH.min(BATCH_BYTES / value_len).min(self.info().max_entries as usize).max(1);
        // The cursor is a key for arrays and tries, a bucket number (4 bytes) for hashes.
        let mut cursor = vec![0u8; key_len.max(4)];
        let mut next = cursor.clone();
        let mut started = false;
        let (mut keys, mut values) = (vec![0; step * key_len], vec![0; step * value_len]);
        loop {
            let mut attr = MapBatch::zeroed();
            attr.map_fd = self.as_fd().as_raw_fd() as u32;
            attr.in_batch = if started { addr(&cursor) } else { 0 };
            attr.out_batch = addr_mut(&mut next);
            attr.keys = addr_mut(&mut keys);
            attr.values = addr_mut(&mut values);
            attr.count = step as u32;
            let result = sys::bpf(sys::MAP_LOOKUP_BATCH, &mut attr);
            match result {
                Ok(_) | Err(libc::ENOENT) => {
                    let count = (attr.count as usize).min(step);
                    out.keys.extend_from_slice(&keys[..count * key_len]);
                    out.values.extend_from_slice(&values[..count * value_len]);
                    out.len += count;
                }
                // One bucket holds more than was asked for: nothing was given, ask for more.
                Err(libc::ENOSPC) if step < self.info().max_entries as usize => {
                    step = (step * 2).min(self.info().max_entries as usize);
                    (keys, values) = (vec![0; step * key_len], vec![0; step * value_len]);
                    continue;
                }
                // A concurrent delete confused the walk of a trie; start again.
                Err(libc::EINTR | libc::EAGAIN) => {
                    (out, started) = (BatchEntries::new(key_len, value_len), false);
                    continue;
                }
                Err(errno) => {
                    return Err(KernelError::call(sys::MAP_LOOKUP_BATCH.name, self.doing("reading"), errno));
                }
            }
            if result.is_err() {
                return Ok(out);
            }
            std::mem::swap(&mut cursor, &mut next);
            started = true;
        }
    }

    fn entries_by_walk(&self) -> Result<BatchEntries> {
        let mut out = BatchEntries::new(self.info().key_size as usize, self.value_len()?);
        let mut seen = HashSet::new();
        let mut value = vec![0; out.value_len];
        let mut key = self.next_key(None)?;
        // Each repeat means that the walk was thrown back to the start; a map that changes faster than it is
        // walked would keep us here for ever.
        let mut repeats = 16 * (self.info().max_entries as usize).max(64);
        while let Some(k) = key {
            if seen.insert(k.clone()) {
                match self.lookup_into(&k, &mut value) {
                    Ok(true) => out.push(&k, &value),
                    Ok(false) => {}
                    Err(e) => return Err(e),
                }
            } else {
                repeats -= 1;
                if repeats == 0 {
                    return Err(KernelError::argument(
                        self.doing("reading"),
                        "it changes faster than it can be read",
                    ));
                }
            }
            key = self.next_key(Some(&k))?;
        }
        Ok(out)
    }

    /// Inserts or replaces many elements: `keys` and `values` are laid end to end, in the sizes of the map.
    ///
    /// # Errors
    /// If sizes do not fit, or the kernel refuses an element. Elements before the refused one have been
    /// written.
    pub fn update_batch(&self, keys: &[u8], values: &[u8]) -> Result<()> {
        let (key_len, value_len) = (self.info().key_size as usize, self.value_len()?);
        let count = keys.len().checked_div(key_len).unwrap_or(0);
        if count * key_len != keys.len() || count * value_len != values.len() {
            return Err(KernelError::argument(
                self.doing("updating"),
                format!("{} bytes of keys and {} of values do not match its sizes", keys.len(), values.len()),
            ));
        }
        if count == 0 {
            return Ok(());
        }
        let mut attr = MapBatch::zeroed();
        attr.map_fd = self.as_fd().as_raw_fd() as u32;
        attr.keys = addr(keys);
        attr.values = addr(values);
        attr.count = count as u32;
        match sys::bpf(sys::MAP_UPDATE_BATCH, &mut attr) {
            Ok(_) => Ok(()),
            Err(libc::EINVAL | ENOTSUPP | libc::EOPNOTSUPP) => {
                let pairs = keys.chunks_exact(key_len).zip(values.chunks_exact(value_len.max(1)));
                pairs.into_iter().try_for_each(|(k, v)| self.update(k, v, UpdateMode::Any))
            }
            Err(errno) => Err(KernelError::call(sys::MAP_UPDATE_BATCH.name, self.doing("updating"), errno)),
        }
    }
}
