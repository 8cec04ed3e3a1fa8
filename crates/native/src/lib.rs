//! Native code: XDP programs as machine code in this process, packets in batches.
//!
//! [`NativeEngine`] takes an object, lifts it to the IR, runs the passes for native targets, writes LLVM's IR
//! (`emit`), has LLVM 19 compile it ([`llvm`]) and runs it on [`PacketBatch`]es of packets, with maps and
//! helpers of its own (`runtime`) that have the kernel's semantics. [`io`] feeds it.
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
mod fields;
mod image;
pub mod io;
pub mod llvm;
mod mapped_code;
mod prefetch;
mod program;
mod runtime;
mod templates;

pub use classifier::ClassifierTemplate;
pub use crash::report_crashes;
pub use engine::{
    CodeSlot, CompileTimings, CopiedContents, ExportOptions, InstallError, LlvmIrText, NativeEngine,
    NativeOptions, PacketSampler, SampledPacket, StageEngine, StageError, StageMemory, TrialTimes,
    VariantBuilder, VariantCode, VariantOptions, VariantSupport,
};
pub use error::NativeError;
pub use fields::DescriptorFieldSet;
pub use image::table::{ExportTable, LinkedCode};
pub use image::{CodegenCpu, ImageLinkError, ImageLoadError, ImageMapSpec as MapShape, NativeImage};
pub use millstream_plan::{
    BatchReordering, CompiledSchedule, PrefetchDecision, PrefetchPolicy, Schedule, SchedulePattern,
};
pub use runtime::index::HashTemplate;
pub use runtime::lpm::LpmTemplate;
pub use runtime::lpm::template_choice::PrefixStats;
pub use runtime::maps::NativeMap;
pub use runtime::packet::{
    ArrivalMetadata, DescriptorField, DescriptorLayout, LONGEST, LONGEST_OPEN, LayoutPolicy, PacketBatch,
    SentPackets,
};
pub use runtime::region::ExternalMemory;
pub use runtime::table_watch::TableWrites;
pub use runtime::worker::{ClockSource, ProgramEvent, RecordListener, TakeRecord};
pub use templates::TableTemplate;
