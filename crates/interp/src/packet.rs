//! The packet and the context that describes it.

/// `sizeof(struct xdp_frame)`: headroom that the kernel keeps to itself.
const XDP_FRAME: usize = 40;
/// `XDP_PACKET_HEADROOM`.
const HEADROOM: usize = 256;
/// Bytes of data and headroom that a page holds besides `struct skb_shared_info`.
const PAGE_USABLE: usize = 4096 - 320;
const ETH_HLEN: usize = 14;

/// A packet in a buffer with room on both sides.
///
/// `meta <= data <= end <= buffer length`; only `meta..end` can be accessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketBuffer {
    buffer: Vec<u8>,
    meta: usize,
    data: usize,
    end: usize,
    /// Room in front of packets that are set from now on; never below [`HEADROOM`].
    headroom: usize,
}

impl PacketBuffer {
    /// A packet with the kernel's headroom before it, and the rest of its page after it.
    pub fn new(bytes: &[u8]) -> PacketBuffer {
        let end = HEADROOM + bytes.len();
        let mut buffer = vec![0; end.max(PAGE_USABLE)];
        buffer[HEADROOM..end].copy_from_slice(bytes);
        PacketBuffer { buffer, meta: HEADROOM, data: HEADROOM, end, headroom: HEADROOM }
    }

    /// Gives packets that are set from now on this much room in front at least, which the program may use.
    pub fn reserve_headroom(&mut self, bytes: usize) {
        self.headroom = bytes.saturating_add(XDP_FRAME);
    }

    /// Replaces the bytes, keeping the allocation. Without reserved headroom this is the packet that
    /// [`PacketBuffer::new`] gives.
    pub fn set(&mut self, bytes: &[u8]) {
        let headroom = self.headroom.max(HEADROOM);
        let end = headroom + bytes.len();
        self.buffer.clear();
        self.buffer.resize(headroom, 0);
        self.buffer.extend_from_slice(bytes);
        self.buffer.resize(end.max(PAGE_USABLE), 0);
        (self.meta, self.data, self.end) = (headroom, headroom, end);
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.data..self.end]
    }

    /// The packet's bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.data..self.end]
    }

    /// The metadata in front of the packet.
    pub fn metadata(&self) -> &[u8] {
        &self.buffer[self.meta..self.data]
    }

    /// Offsets in the buffer of metadata, data and end.
    pub fn bounds(&self) -> (usize, usize, usize) {
        (self.meta, self.data, self.end)
    }

    /// The bytes at an offset in the buffer; `None` outside of metadata and data.
    pub(crate) fn at(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let end = offset.checked_add(len)?;
        if offset < self.meta || end > self.end { None } else { self.buffer.get_mut(offset..end) }
    }

    /// `bpf_xdp_adjust_head`: moves the start by `delta`; `false` where the kernel says `EINVAL`.
    pub(crate) fn adjust_head(&mut self, delta: i32) -> bool {
        let metadata = self.data - self.meta;
        let Some(data) = self.data.checked_add_signed(delta as isize) else { return false };
        if data < XDP_FRAME + metadata || data + ETH_HLEN > self.end {
            return false;
        }
        self.buffer.copy_within(self.meta..self.data, data - metadata);
        (self.meta, self.data) = (data - metadata, data);
        true
    }

    /// `bpf_xdp_adjust_tail`: moves the end by `delta`, zeroing what is new.
    pub(crate) fn adjust_tail(&mut self, delta: i32) -> bool {
        let Some(end) = self.end.checked_add_signed(delta as isize) else { return false };
        if end > self.buffer.len() || end < self.data + ETH_HLEN {
            return false;
        }
        if end > self.end {
            self.buffer[self.end..end].fill(0);
        }
        self.end = end;
        true
    }

    /// `bpf_xdp_adjust_meta`: moves the metadata's start by `delta`; the error is the kernel's errno.
    pub(crate) fn adjust_meta(&mut self, delta: i32) -> Result<(), i64> {
        let meta =
            self.meta.checked_add_signed(delta as isize).filter(|m| *m >= XDP_FRAME && *m <= self.data);
        let meta = meta.ok_or(crate::errno::EINVAL)?;
        let len = self.data - meta;
        if !len.is_multiple_of(4) || len > 255 {
            return Err(crate::errno::EACCES);
        }
        self.meta = meta;
        Ok(())
    }

    /// Makes all room in front of the data accessible, as metadata.
    pub fn expose_headroom(&mut self) {
        self.meta = XDP_FRAME.min(self.data);
    }

    /// Moves start and end; metadata that is behind the new start is no more. `false` if they are not in the
    /// buffer.
    pub(crate) fn set_bounds(&mut self, data: usize, end: usize) -> bool {
        if data < XDP_FRAME || data > end || end > self.buffer.len() {
            return false;
        }
        (self.meta, self.data, self.end) = (self.meta.min(data), data, end);
        true
    }

    /// Inserts `len` zero bytes at offset `at` of the data, moving what is before it into the headroom.
    pub(crate) fn insert(&mut self, at: usize, len: usize) -> bool {
        if at > self.end - self.data || len > self.data {
            return false;
        }
        let data = self.data - len;
        self.buffer.copy_within(self.data..self.data + at, data);
        self.buffer[data + at..data + at + len].fill(0);
        (self.meta, self.data) = (data, data);
        true
    }

    /// Removes `len` bytes at offset `at` of the data.
    pub(crate) fn remove(&mut self, at: usize, len: usize) -> bool {
        if at + len > self.end - self.data {
            return false;
        }
        self.buffer.copy_within(self.data..self.data + at, self.data + len);
        self.data += len;
        self.meta = self.data;
        true
    }

    /// Sets the length of the data, zeroing what is new.
    pub(crate) fn resize(&mut self, len: usize) {
        let end = self.data + len;
        if end > self.buffer.len() {
            self.buffer.resize(end, 0);
        }
        if end > self.end {
            self.buffer[self.end..end].fill(0);
        }
        self.end = end;
    }
}

/// Structure of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ContextKind {
    /// Plain bytes without any meaning here.
    #[default]
    Raw,
    /// `struct xdp_md`.
    Xdp,
    /// `struct __sk_buff`.
    Skb,
}

impl ContextKind {
    /// Bytes of the structure; 0 for [`ContextKind::Raw`].
    pub const fn size(self) -> usize {
        match self {
            ContextKind::Raw => 0,
            ContextKind::Xdp => 24,
            ContextKind::Skb => 192,
        }
    }

    /// Offsets of `data`, `data_end` and `data_meta` in the structure.
    pub(crate) const fn packet_fields(self) -> Option<[usize; 3]> {
        match self {
            ContextKind::Raw => None,
            ContextKind::Xdp => Some([0, 4, 8]),
            ContextKind::Skb => Some([76, 80, 140]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_moves_within_the_headroom() {
        let mut p = PacketBuffer::new(&[1; 60]);
        assert!(p.adjust_head(-216) && !p.adjust_head(-1));
        assert_eq!(p.bytes().len(), 276);
        assert!(p.adjust_head(276 - 14) && !p.adjust_head(1));
    }

    #[test]
    fn tail_grows_zeroed() {
        let mut p = PacketBuffer::new(&[1; 60]);
        assert!(p.adjust_tail(-10) && p.adjust_tail(12));
        assert_eq!(p.bytes()[48..], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(!p.adjust_tail(4096) && !p.adjust_tail(-60));
    }

    #[test]
    fn metadata_travels_with_the_head() {
        let mut p = PacketBuffer::new(&[1; 60]);
        assert_eq!(p.adjust_meta(-6), Err(-13));
        assert_eq!(p.adjust_meta(-4), Ok(()));
        let (meta, ..) = p.bounds();
        p.at(meta, 4).unwrap().copy_from_slice(b"meta");
        assert!(p.adjust_head(-20));
        assert_eq!(p.metadata(), b"meta");
    }
}
