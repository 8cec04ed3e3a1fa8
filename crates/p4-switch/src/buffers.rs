//! Memory of packets and their states, used again and again, so that a packet allocates nothing.

/// Buffers that wait for another packet, at most.
const MOST_SPARE: usize = 32;

/// Memory of packets that have left.
#[derive(Debug, Default)]
pub(crate) struct PacketBuffers {
    spare: Vec<Vec<u8>>,
}

impl PacketBuffers {
    /// An empty buffer.
    #[inline]
    pub(crate) fn empty(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// A copy of bytes.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.empty();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Zeros.
    pub(crate) fn zeros(&mut self, size: usize) -> Vec<u8> {
        let mut buffer = self.empty();
        buffer.resize(size, 0);
        buffer
    }

    /// Takes a buffer that nobody uses any more.
    #[inline]
    pub(crate) fn give_back(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MOST_SPARE {
            self.spare.push(buffer);
        }
    }
}
