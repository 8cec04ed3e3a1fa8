//! Values of a map that lie in its twin: each once, compared by the bytes that programs read.
//!
//! A value keeps its place; the next value gets the next place. When no place is left, the map has no twin; a
//! twin made later starts with the values of that time.

use millstream_ir::usage::AccessRange;
use rustc_hash::FxHashMap;

/// Values of this size are in the cells.
pub(super) const SMALL: u32 = 4;
/// Bytes of all values of a twin, at most.
const ROOM: u32 = 2 << 20;
/// Limit on the values of a twin: their numbers must differ from other contents of cells.
const MOST: u32 = 1 << 14;
/// Larger values have no twin.
pub const MOST_BYTES: u32 = 2048;

/// The values.
#[derive(Clone, Debug)]
pub(super) struct ValuePool {
    /// Bytes of each.
    pub(super) size: usize,
    /// The bytes that programs read.
    read: Vec<AccessRange>,
    numbers: FxHashMap<Vec<u8>, u16>,
    /// By number; bytes that are not read are zero.
    pub(super) held: Vec<Vec<u8>>,
    /// Number of those that have been reported as changed.
    pub(super) told: usize,
}

/// From one value to the next.
pub(super) fn stride(value_size: u32) -> u32 {
    value_size.next_multiple_of(8)
}

/// Values for which there is room, a power of two.
pub(super) fn places(value_size: u32) -> u32 {
    let most = (ROOM / stride(value_size.max(1))).clamp(1, MOST);
    1 << most.ilog2()
}

/// Bytes in front of the cells of a twin.
pub(super) fn values_bytes(value_size: u32) -> u32 {
    if value_size == SMALL { 0 } else { places(value_size) * stride(value_size) }
}

impl ValuePool {
    /// Room for values of this size; `None` if they are in the cells.
    pub(super) fn of(size: u32, read: &[AccessRange]) -> Option<ValuePool> {
        (size != SMALL).then(|| ValuePool {
            size: size as usize,
            read: read.to_vec(),
            numbers: FxHashMap::default(),
            held: Vec::new(),
            told: 0,
        })
    }

    /// The number of a value; `None` if there is no room for it.
    pub(super) fn number(&mut self, value: &[u8]) -> Option<u16> {
        if value.len() != self.size || self.size > MOST_BYTES as usize {
            return None;
        }
        let mut seen = vec![0; value.len()];
        for range in &self.read {
            let (start, end) = (range.start as usize, (range.end as usize).min(value.len()));
            if let (Some(to), Some(from)) = (seen.get_mut(start..end), value.get(start..end)) {
                to.copy_from_slice(from);
            }
        }
        if let Some(&number) = self.numbers.get(&seen) {
            return Some(number);
        }
        let number =
            u16::try_from(self.held.len()).ok().filter(|n| u32::from(*n) < places(self.size as u32))?;
        self.numbers.insert(seen.clone(), number);
        self.held.push(seen);
        Some(number)
    }
}
