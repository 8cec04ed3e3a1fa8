//! Storage of values: slots of equal size, each with a copy per CPU.

/// Gap after each value in the address space.
const GUARD: u64 = 4096;

#[derive(Clone, Debug)]
pub(super) struct Slab {
    bytes: Vec<u8>,
    value_size: usize,
    /// Bytes of a copy in `bytes`.
    padded: usize,
    copies: u32,
    /// Distance of copies in the address space: a power of two.
    stride: u64,
    free: Vec<u32>,
    retired: Vec<u32>,
    slots: u32,
}

impl Slab {
    pub(super) fn new(value_size: u32, copies: u32) -> Slab {
        let value_size = value_size as usize;
        Slab {
            bytes: Vec::new(),
            value_size,
            padded: value_size.next_multiple_of(8),
            copies,
            stride: (value_size as u64 + GUARD).next_power_of_two(),
            free: Vec::new(),
            retired: Vec::new(),
            slots: 0,
        }
    }

    /// Makes slots 0 to `slots - 1` exist.
    pub(super) fn grow(&mut self, slots: u32) {
        self.slots = slots;
        self.bytes.resize(slots as usize * self.copies as usize * self.padded, 0);
    }

    /// A slot that nobody uses.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.grow(self.slots + 1);
            self.slots - 1
        })
    }

    /// Gives a slot back once no address of it is held.
    pub(super) fn retire(&mut self, slot: u32) {
        self.retired.push(slot);
    }

    /// Gives a slot back at once: LRU maps recycle under the feet of whoever holds the address.
    pub(super) fn free_immediately(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(super) fn quiesce(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Offset of a slot's copy in the address space.
    pub(super) fn offset(&self, slot: u32, cpu: u32) -> Option<u64> {
        let copy = if self.copies == 1 { 0 } else { cpu };
        let copy = (copy < self.copies).then_some(copy)?;
        Some((u64::from(slot) * u64::from(self.copies) + u64::from(copy)) * self.stride)
    }

    /// The bytes at an offset of the address space.
    pub(super) fn at(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        let copy = usize::try_from(offset / self.stride).ok()?;
        let within = (offset % self.stride) as usize;
        if within.checked_add(len)? > self.value_size {
            return None;
        }
        let start = copy.checked_mul(self.padded)?.checked_add(within)?;
        self.bytes.get_mut(start..start + len)
    }

    fn range(&self, slot: u32) -> std::ops::Range<usize> {
        let size = self.slot_size();
        slot as usize * size..(slot as usize + 1) * size
    }

    pub(super) fn clear(&mut self, slot: u32) {
        let range = self.range(slot);
        self.bytes[range].fill(0);
    }

    /// Sets the value of one copy, or of all.
    pub(super) fn set(&mut self, slot: u32, value: &[u8], cpu: Option<u32>) {
        let (start, copies) = (self.range(slot).start, self.copies);
        let len = value.len().min(self.value_size);
        for copy in 0..copies {
            if copies == 1 || cpu.is_none_or(|cpu| cpu == copy) {
                let at = start + copy as usize * self.padded;
                self.bytes[at..at + len].copy_from_slice(&value[..len]);
            }
        }
    }

    /// The values of all slots, end to end, each of [`Slab::slot_size`] bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes from one slot to the next in [`Slab::bytes`]: all copies, each padded.
    pub(super) fn slot_size(&self) -> usize {
        self.copies as usize * self.padded
    }

    /// The value; of a per-CPU slot all copies, padded.
    pub(super) fn copies(&self, slot: u32) -> Vec<u8> {
        let range = self.range(slot);
        let bytes = &self.bytes[range];
        if self.copies == 1 { bytes[..self.value_size].to_vec() } else { bytes.to_vec() }
    }

    /// Returns true if a control program's value consists of all copies.
    pub(super) fn is_all_copies(&self, value: &[u8]) -> bool {
        self.copies > 1 && value.len() == self.copies as usize * self.padded
    }

    pub(super) fn set_copies(&mut self, slot: u32, value: &[u8]) {
        let range = self.range(slot);
        self.bytes[range].copy_from_slice(value);
    }
}
