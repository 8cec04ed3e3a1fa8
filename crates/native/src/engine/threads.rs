//! Engines and their workers may move between threads.
#![allow(unsafe_code)]

use super::{NativeEngine, StageEngine, VariantCode, WorkerState};

// SAFETY: an engine owns everything it points to (maps, workers, code), and shares none of it: no other code
// has the same linker, since the compiler that made both is gone. LLVM's handles are used by one thread at a
// time, whichever that is.
unsafe impl Send for NativeEngine {}

// SAFETY: as for `NativeEngine`.
unsafe impl Send for StageEngine {}

// SAFETY: by shared reference an engine gives out addresses of code, and maps under their locks
// (`runtime::sharing`). LLVM's handles are used when it is made and when it is dropped.
unsafe impl Sync for NativeEngine {}

// SAFETY: a worker's pointers are used only by the thread that has the lane: they point to packets of its
// batch. Between batches they point to nothing.
unsafe impl Send for WorkerState {}

// SAFETY: as for `NativeEngine`: the linker that holds its code is its own, and unloads it once, on the thread that
// drops the last reference. By shared reference only addresses of code are read.
unsafe impl Send for VariantCode {}

// SAFETY: see above.
unsafe impl Sync for VariantCode {}
