//! Frames of a memory, each of which has one owner.
//!
//! Invariant: a [`UmemFrame`] is the only one of its place in the memory. It is made when the memory is
//! taken, and again when the kernel returns a place that it was given: so the owner alone uses its bytes. A
//! dropped frame is lost to its memory, no more.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::socket::{FRAME, FrameMemory};

/// A frame, as its owner has it.
#[derive(Debug, PartialEq, Eq)]
pub struct UmemFrame {
    /// Offset of its first byte in its memory.
    offset: u32,
    /// Number of its memory.
    of: u32,
}

impl UmemFrame {
    /// Offset of its first byte in its memory.
    #[inline]
    pub fn offset(&self) -> u32 {
        self.offset
    }
}

/// Free frames of a memory, and the properties of all.
pub(crate) struct UmemFramePool {
    free: Vec<u32>,
    of: u32,
    memory: Arc<dyn FrameMemory>,
}

/// Number of memories so far: each has a number of its own, so that frames of other memories are recognised.
static MEMORIES: AtomicU32 = AtomicU32::new(0);

impl UmemFramePool {
    /// Takes all frames of a memory, none of which has an owner.
    pub(crate) fn new(memory: Arc<dyn FrameMemory>) -> UmemFramePool {
        let count = memory.length().min(u32::MAX as usize) / FRAME;
        // The first frames are taken first.
        let free = (0..count).rev().map(|at| (at * FRAME) as u32).collect();
        UmemFramePool { free, of: MEMORIES.fetch_add(1, Ordering::Relaxed), memory }
    }

    pub(crate) fn memory(&self) -> &dyn FrameMemory {
        &*self.memory
    }

    /// Takes a free frame; the one that was given back last, which caches are likely to hold.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<UmemFrame> {
        self.free.pop().map(|offset| UmemFrame { offset, of: self.of })
    }

    /// Number of free frames.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub(crate) fn give_back(&mut self, frame: UmemFrame) {
        if frame.of == self.of {
            self.free.push(frame.offset);
        }
    }

    /// Makes the frame that has this address, which the kernel returns after [`UmemFramePool::given`].
    #[inline]
    pub(crate) fn returned(&self, address: u64) -> UmemFrame {
        UmemFrame { offset: address as u32 & !(FRAME as u32 - 1), of: self.of }
    }

    /// Gives a frame to the kernel: returns its address, or the frame again if it belongs to another memory
    /// or the bytes at `place` are not all in it.
    #[inline]
    pub(crate) fn given(&self, frame: UmemFrame, place: &Range<u32>) -> Result<u64, UmemFrame> {
        let inside = place.start >= frame.offset
            && place.start <= place.end
            && place.end - frame.offset <= FRAME as u32
            && frame.of == self.of;
        if inside { Ok(u64::from(place.start)) } else { Err(frame) }
    }

    /// The bytes of a frame; none, if it belongs to another memory.
    pub(crate) fn bytes<'f>(&'f self, frame: &'f UmemFrame) -> &'f [u8] {
        if frame.of != self.of {
            return &[];
        }
        // SAFETY: the frame lies in the memory, whose bytes stay; the owner of the frame alone uses them, by
        // the module's invariant.
        unsafe { std::slice::from_raw_parts(self.place(frame), FRAME) }
    }

    /// The bytes of a frame, to be written; none, if it belongs to another memory.
    pub(crate) fn bytes_mut<'f>(&'f self, frame: &'f mut UmemFrame) -> &'f mut [u8] {
        if frame.of != self.of {
            return &mut [];
        }
        // SAFETY: as in `bytes`; there is one `&mut` to the frame.
        unsafe { std::slice::from_raw_parts_mut(self.place(frame), FRAME) }
    }

    fn place(&self, frame: &UmemFrame) -> *mut u8 {
        (self.memory.address() + u64::from(frame.offset)) as *mut u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::AnonymousMemory;

    #[test]
    fn a_frame_is_had_by_one_and_known_by_its_memory() {
        let frames =
            |count: usize| UmemFramePool::new(Arc::new(AnonymousMemory::new(count * FRAME).expect("memory")));
        let (mut own, mut other) = (frames(3), frames(1));
        let mut all: Vec<UmemFrame> = std::iter::from_fn(|| own.take()).collect();
        assert_eq!(all.iter().map(UmemFrame::offset).collect::<Vec<_>>(), [0, 4096, 8192]);
        own.bytes_mut(&mut all[1])[7] = 9;
        assert_eq!((own.bytes(&all[1])[7], own.bytes(&all[2])[7]), (9, 0));
        let foreign = other.take().expect("it is free");
        assert_eq!(own.bytes(&foreign), [0; 0]);
        assert_eq!(own.given(foreign, &(0..60)), Err(other.returned(0)));
        own.give_back(other.returned(0));
        assert_eq!(own.take(), None, "what is of another memory is not taken");
        let last = all.pop().expect("three");
        for outside in [8000..8060, 12_230..12_290] {
            assert_eq!(own.given(own.returned(8192), &outside), Err(own.returned(8192)), "{outside:?}");
        }
        assert_eq!(own.given(last, &(8192..12_288)), Ok(8192));
        assert_eq!(own.returned(8192 + 300).offset(), 8192);
    }
}
