//! Storage of map values: slots of equal size at fixed addresses.
//!
//! A slot is a header (for hash tables: mark and key), then a copy of the value for each worker in per-CPU
//! maps. Replacing the value of a hash or trie entry takes another slot, as in the kernel: whoever holds the
//! old address keeps the old bytes until [`ValueStorage::quiesce`], which the engine calls between batches,
//! or with several workers until all of them have begun another batch.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::region::{AddressAllocator, ExternalMemory, MemoryRegion};
use super::worker_epochs::WorkerEpochs;

/// Slots beyond the declared capacity, for values that were removed or replaced in the current batches. If
/// there are more, the oldest is reused at once, as the kernel's preallocated tables always do.
const SPARE: u32 = 4096;
/// The same if several workers use the table: as many as they may replace while one of them is preempted in
/// the middle of a batch. They cost memory only if they are needed.
const SPARE_SHARED: u32 = 1 << 18;

/// Spare slots for values that this many workers replace.
pub(crate) fn spare(workers: u32) -> u32 {
    if workers > 1 { SPARE_SHARED } else { SPARE }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Slots of at least this many bytes, together, are not in the caches, and each of their lines is a wait for
/// memory.
const UNCACHED: usize = 4 << 20;

/// Slots of at least this many bytes, a large page, should lie in such pages.
const LARGE: usize = 2 << 20;

/// The distance of slots of this many bytes that are looked up one by one: no slot spans two lines, if that
/// takes at most a third more memory and caches do not hold them anyway.
fn apart(stride: usize, entries: u32) -> usize {
    let whole = stride.next_power_of_two();
    let fits = whole <= LINE && 3 * whole <= 4 * stride;
    if fits && stride.saturating_mul(entries as usize) >= UNCACHED { whole } else { stride }
}

/// The slots of a map.
#[derive(Debug)]
pub(crate) struct ValueStorage {
    region: MemoryRegion,
    header: usize,
    value_size: usize,
    copies: usize,
    stride: usize,
    slots: u32,
    fresh: u32,
    free: Vec<u32>,
    /// Slots that were left, and the times.
    retired: VecDeque<(u64, u32)>,
    /// With several workers: the times at which these began their batches.
    epochs: Option<Arc<WorkerEpochs>>,
}

impl ValueStorage {
    /// `max_entries` slots, and these spare ones if values are replaced by others.
    pub(crate) fn new(
        header: usize,
        value_size: u32,
        copies: u32,
        max_entries: u32,
        spare: u32,
        place: &mut AddressAllocator,
    ) -> io::Result<ValueStorage> {
        let (value_size, copies) = (value_size as usize, copies.max(1) as usize);
        let stride = header.next_multiple_of(8) + copies * value_size.next_multiple_of(8).max(8);
        let stride = if header > 0 { apart(stride, max_entries) } else { stride };
        let slots = max_entries.saturating_add(spare);
        let len = stride.checked_mul(slots as usize);
        let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let region = MemoryRegion::new(len, place)?;
        // Slots are taken in order, so that memory is used from the beginning on.
        if stride.saturating_mul(max_entries as usize) >= LARGE {
            region.prefer_large_pages(len);
        }
        Ok(ValueStorage {
            region,
            header: header.next_multiple_of(8),
            value_size,
            copies,
            stride,
            slots,
            fresh: 0,
            free: Vec::new(),
            retired: VecDeque::new(),
            epochs: None,
        })
    }

    /// As many slots as there are entries, in shared memory; `None` if that is too short.
    pub(crate) fn over(value_size: u32, max_entries: u32, lent: &ExternalMemory) -> Option<ValueStorage> {
        let (value_size, region) = (value_size as usize, MemoryRegion::of(lent));
        let stride = value_size.next_multiple_of(8).max(8);
        let fits = stride.checked_mul(max_entries as usize).is_some_and(|len| len <= region.len());
        fits.then_some(ValueStorage {
            region,
            header: 0,
            value_size,
            copies: 1,
            stride,
            slots: max_entries,
            fresh: 0,
            free: Vec::new(),
            retired: VecDeque::new(),
            epochs: None,
        })
    }

    /// Prepares it for several workers that hold addresses of values.
    pub(crate) fn share(&mut self, epochs: &Arc<WorkerEpochs>) {
        self.epochs = Some(Arc::clone(epochs));
    }

    /// Distance between the copies of two workers; 0 if there is only one.
    pub(crate) fn own(&self) -> u64 {
        if self.copies == 1 { 0 } else { self.value_size.next_multiple_of(8).max(8) as u64 }
    }

    /// Address of slot 0.
    pub(crate) fn base(&self) -> u64 {
        self.region.address()
    }

    /// Distance between slots.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Offset of the values in a slot.
    pub(crate) fn header(&self) -> usize {
        self.header
    }

    /// Address of this worker's copy of a slot's value.
    pub(crate) fn address(&self, slot: u32, worker: u32) -> u64 {
        self.region.address() + self.at(slot, worker) as u64
    }

    fn at(&self, slot: u32, worker: u32) -> usize {
        let copy = if self.copies == 1 { 0 } else { worker as usize };
        slot as usize * self.stride + self.header + copy * self.value_size.next_multiple_of(8).max(8)
    }

    /// A free slot; `None` if all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(epochs) = &self.epochs {
            let oldest = epochs.oldest();
            while let Some((_, slot)) = self.retired.pop_front_if(|(left, _)| *left < oldest) {
                self.free.push(slot);
            }
        }
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.fresh < self.slots {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        self.retired.pop_front().map(|(_, slot)| slot)
    }

    /// Upper bound of all slots that were ever used.
    pub(crate) fn used(&self) -> u32 {
        self.fresh
    }

    /// Frees a slot once nobody holds an address of it.
    pub(crate) fn retire(&mut self, slot: u32) {
        let left = self.epochs.as_ref().map_or(0, |epochs| epochs.leave());
        self.retired.push_back((left, slot));
    }

    /// Frees a slot at once, unless other workers may hold its address.
    pub(crate) fn retire_now(&mut self, slot: u32) {
        if self.epochs.is_some() { self.retire(slot) } else { self.free.push(slot) }
    }

    /// Records that the only worker holds no address of a value any more.
    pub(crate) fn quiesce(&mut self) {
        if self.epochs.is_none() {
            self.free.extend(self.retired.drain(..).map(|(_, slot)| slot));
        }
    }

    /// The header of a slot.
    pub(crate) fn head(&self, slot: u32) -> &[u8] {
        let start = slot as usize * self.stride;
        &self.region.bytes()[start..start + self.header]
    }

    /// The header of a slot, mutably.
    pub(crate) fn head_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.stride;
        let header = self.header;
        &mut self.region.bytes_mut()[start..start + header]
    }

    /// Zeroes all copies of a slot's value.
    pub(crate) fn clear(&mut self, slot: u32) {
        let start = slot as usize * self.stride;
        let range = start + self.header..start + self.stride;
        self.region.bytes_mut()[range].fill(0);
    }

    /// Sets one copy of the value, or all of them.
    pub(crate) fn set(&mut self, slot: u32, value: &[u8], worker: Option<u32>) {
        let len = value.len().min(self.value_size);
        for copy in 0..self.copies as u32 {
            if self.copies == 1 || worker.is_none_or(|w| w == copy) {
                let at = self.at(slot, copy);
                self.region.bytes_mut()[at..at + len].copy_from_slice(&value[..len]);
            }
        }
    }

    /// One copy of the value.
    pub(crate) fn get(&self, slot: u32, worker: u32) -> &[u8] {
        let at = self.at(slot, worker);
        &self.region.bytes()[at..at + self.value_size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_large_tables_lie_in_one_line_where_that_is_cheap() {
        let large = 1 << 20;
        for (bytes, entries, expected) in [
            (24, large, 32),
            (24, 1024, 24),
            (32, large, 32),
            (40, large, 40),
            (48, large, 64),
            (72, large, 72),
        ] {
            assert_eq!(apart(bytes, entries), expected, "{bytes} bytes, {entries} entries");
        }
        let values = ValueStorage::new(16, 8, 1, large, 0, &mut AddressAllocator::Anywhere).unwrap();
        assert_eq!((values.stride(), values.header(), values.own()), (32, 16, 0));
        let array = ValueStorage::new(0, 24, 1, large, 0, &mut AddressAllocator::Anywhere).unwrap();
        assert_eq!(array.stride(), 24, "of arrays neighbours are read, too");
    }

    #[test]
    fn many_slots_are_to_lie_in_large_pages() {
        // Checks the request; the system may not have such pages.
        let asked = |values: &ValueStorage| {
            let maps = std::fs::read_to_string("/proc/self/smaps").expect("this process's mappings");
            let mut mappings = maps.lines().skip_while(|line| {
                let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
                let ends = ends.map(|(from, to)| [from, to].map(|end| u64::from_str_radix(end, 16)));
                !matches!(ends, Some([Ok(from), Ok(to)]) if (from..to).contains(&values.base()))
            });
            let flags = mappings.find_map(|line| line.strip_prefix("VmFlags:")).expect("flags");
            flags.split_whitespace().any(|flag| flag == "hg")
        };
        let slots =
            |entries| ValueStorage::new(0, 64, 1, entries, 0, &mut AddressAllocator::Anywhere).unwrap();
        assert!(asked(&slots(1 << 15)) && !asked(&slots(1 << 14)));
    }

    #[test]
    fn what_a_worker_holds_is_not_used_again_while_another_goes_on() {
        let workers = 2;
        let epochs = Arc::new(WorkerEpochs::new(workers));
        let mut values =
            ValueStorage::new(0, 8, 1, 4, spare(workers), &mut AddressAllocator::Anywhere).unwrap();
        values.share(&epochs);
        let held = values.take().expect("room");
        epochs.begin(0);
        values.retire(held);
        for _ in 0..100_000 {
            epochs.begin(1);
            let slot = values.take().expect("room");
            assert_ne!(slot, held, "the first worker has not ended its batch");
            values.retire(slot);
            epochs.end(1);
        }
        epochs.end(0);
        let mut again = (0..values.used()).map(|_| values.take().expect("all are free"));
        assert!(again.any(|slot| slot == held));
    }
}
