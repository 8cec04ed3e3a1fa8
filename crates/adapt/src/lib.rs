//! Run-time specialization of native programs: a running engine gets code for what its tables hold and its
//! packets ask for.
//!
//! [`AdaptSession`] has a thread of low priority. It reads tables from replicas that follow the engine's
//! (`replicas`), profiles sampled packets (`profile`), makes plans (`plans`) that `millstream_specializer` carries
//! out (`program`), compares and times the result on sampled packets (`judge`), and installs what pays
//! (`session`). docs/design/adaptation.md.
//!
//! Architecture Invariant: nothing here touches packets or tables of the engine. It reaches the engine through its
//! [`CodeSlot`](millstream_native::CodeSlot), which ends specialised code when a table is written.

mod judge;
mod plans;
mod profile;
mod program;
mod replicas;
mod run;
mod schedules;
mod session;
mod settings;
mod snapshot;
mod status;
mod watch;

pub use run::EngineAdaptation;
pub use session::{AdaptError, AdaptSession, AdaptStatusReader};
pub use settings::{AdaptMode, AdaptSettings, PacketModel};
pub use status::{
    AdaptState, AdaptStatus, CompilationCounts, LiveGain, TableAdvice, WithdrawalCounts, WithdrawalReason,
};
