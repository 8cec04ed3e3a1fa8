//! XDP programs as machine code of this process.
//!
//! The code checks no access: it trusts a program as the kernel does after its verifier. LLVM 19 is loaded when the
//! first program is compiled.
//!
//! ```no_run
//! use millstream::Object;
//! use millstream::native::{NativeOptions, NativeProcessor};
//!
//! let object = Object::parse("router.o", &std::fs::read("router.o")?)?;
//! let mut processor = NativeProcessor::compile(&object, None, &NativeOptions::default())?;
//! let routes = processor.map("routes").expect("a map of the object");
//! routes.update(&[8, 0, 0, 0, 10, 0, 0, 0], &[1, 0, 0, 0], 0, None);
//! for packet in processor.process(&[&[0; 64]], 1)? {
//!     println!("verdict {}, {} bytes", packet.verdict, packet.bytes.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use millstream_native::{NativeEngine, NativeMap, PacketBatch};
use millstream_object::Object;

pub use millstream_native::{NativeError, NativeOptions};

/// A packet that the program has processed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessedPacket {
    /// The program's result, as `enum xdp_action` has it.
    pub verdict: u32,
    /// The packet as the program left it.
    pub bytes: Vec<u8>,
}

/// Reasons why packets could not be processed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessingError {
    /// There is no memory for the packets.
    #[error("no memory for a batch of packets")]
    Memory(#[from] std::io::Error),
    /// A packet is too long for its buffer.
    #[error("packet {index} has {length} bytes, which is too long")]
    TooLong {
        /// Number of the packet, from 0.
        index: usize,
        /// Its bytes.
        length: usize,
    },
}

/// A compiled program with its maps, run by one worker.
pub struct NativeProcessor {
    engine: NativeEngine,
}

impl NativeProcessor {
    /// Compiles a program of an object, the one named or the only one, with those that its tail calls can reach.
    ///
    /// # Errors
    /// If LLVM or the program is missing, or something in it is not supported.
    pub fn compile(
        object: &Object,
        program: Option<&str>,
        options: &NativeOptions,
    ) -> Result<NativeProcessor, NativeError> {
        Ok(NativeProcessor { engine: NativeEngine::of_object(object, program, options)? })
    }

    /// A map of the program, by name.
    pub fn map(&mut self, name: &str) -> Option<&mut NativeMap> {
        self.engine.map(name)
    }

    /// Processes packets that came in by the interface of this index, in batches.
    ///
    /// # Errors
    /// If there is no memory for a batch, or a packet is longer than its buffer: no packet of its batch, and none
    /// behind it, is processed then.
    pub fn process(
        &mut self,
        packets: &[&[u8]],
        ingress: u32,
    ) -> Result<Vec<ProcessedPacket>, ProcessingError> {
        let most = self.engine.batch().max(1) as usize;
        let mut batch = PacketBatch::new(most)?;
        let mut processed = Vec::with_capacity(packets.len());
        for (number, chunk) in packets.chunks(most).enumerate() {
            batch.clear();
            for (at, bytes) in chunk.iter().enumerate() {
                if !batch.push(bytes, ingress) {
                    return Err(ProcessingError::TooLong { index: number * most + at, length: bytes.len() });
                }
            }
            self.engine.run(&mut batch);
            let packet = |at| ProcessedPacket { verdict: batch.verdict(at), bytes: batch.bytes(at).to_vec() };
            processed.extend((0..batch.len()).map(packet));
        }
        Ok(processed)
    }
}
