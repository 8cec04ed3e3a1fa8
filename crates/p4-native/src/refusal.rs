//! Reasons why a program needs a switch.

/// Room in front of packets in the buffers of a [`millstream_native::PacketBatch`], which deparsers may use.
pub(crate) const MOST_HEADROOM: u32 = 256;

/// Reason why a program cannot run batches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchRefusal {
    /// The architecture is not v1model.
    #[error("its architecture is not v1model")]
    Architecture,
    /// The state of a packet is too large.
    #[error("the state of a packet has {bytes} bytes, more than {most}")]
    State {
        /// Bytes of the state.
        bytes: u32,
        /// Largest state.
        most: u32,
    },
    /// The deparser may need more room than there is in front of a packet.
    #[error("the headers of a packet may grow by {bytes} bytes, more than {MOST_HEADROOM}")]
    Headroom {
        /// Bytes that the deparser may need.
        bytes: u32,
    },
    /// The program asks for something that a switch does between its functions.
    #[error("the program {what}")]
    Request {
        /// Description of the request.
        what: &'static str,
    },
}
