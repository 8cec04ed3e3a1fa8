//! Native code: XDP programs as machine code in this process, packets in batches.
//!
//! [`NativeEngine`] takes an object, lifts it to the IR, runs the passes for native targets, writes LLVM's IR
//! (`emit`), has LLVM 19 compile it ([`llvm`]) and runs it on [`PacketBatch`]es of packets, with the maps and
//! helpers of `millstream-native-runtime`, which have the kernel's semantics. `millstream-native-io` feeds it.
//!
//! Architecture Invariant: nothing here calls the kernel's BPF. LLVM is reached in `llvm` alone, and loaded
//! when the first engine is made.
//!
//! Architecture Invariant: the code trusts the program as the kernel does *after* its verifier: no access is
//! checked. An object that the verifier has not seen runs like a plug-in of the process.

mod batch_reordering;
mod classifier;
mod crash;
mod emit;
mod engine;
mod error;
mod image;
pub mod llvm;
mod mapped_code;
mod prefetch;
mod program;
pub mod run_stats;
mod templates;
mod traversal_cache;
pub mod worker_stats;

pub use classifier::ClassifierTemplate;
pub use crash::{AltSignalStack, report_crashes};
pub use engine::{
    CodeSlot, CompileTimings, CopiedContents, ExportOptions, InstallError, LlvmIrText, LookupCode,
    NativeEngine, NativeOptions, PacketSampler, ProgramFacts, SampledPacket, StageEngine, StageError,
    StageMemory, TrialTimes, VariantBuilder, VariantCode, VariantOptions, VariantSupport, WorkerState,
};
pub use error::NativeError;
pub use image::table::{ExportTable, LinkedCode};
pub use image::{CodegenCpu, ImageLinkError, ImageLoadError, ImageMapSpec as MapShape, NativeImage};
pub use millstream_native_runtime::fields::DescriptorFieldSet;
pub use millstream_native_runtime::index::HashTemplate;
pub use millstream_native_runtime::lpm::LpmTemplate;
pub use millstream_native_runtime::lpm::template_choice::PrefixStats;
pub use millstream_native_runtime::maps::NativeMap;
pub use millstream_native_runtime::packet::{
    ArrivalMetadata, DescriptorField, DescriptorLayout, LONGEST, LONGEST_FRAGMENTED, LONGEST_OPEN,
    LayoutPolicy, PacketBatch, SentPackets,
};
pub use millstream_native_runtime::region::ExternalMemory;
pub use millstream_native_runtime::table_watch::TableWrites;
pub use millstream_native_runtime::worker::{ClockSource, ProgramEvent, RecordListener, TakeRecord};
pub use millstream_plan::{
    BatchReordering, CompiledSchedule, PrefetchDecision, PrefetchPolicy, Schedule, SchedulePattern,
    TraversalCaching, TraversalReport,
};
pub use templates::TableTemplate;
