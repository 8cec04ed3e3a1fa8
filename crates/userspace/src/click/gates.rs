//! Gates of sources: hand the handlers' settings on to the senders.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_built::handlers;
use millstream_click::ClickProgram;
use millstream_native::NativeEngine;
use millstream_native_io::graph::SourceGate;

use super::io::default_count;

/// The gates of a program's sources.
pub(super) struct SourceGates {
    /// By index of the source.
    all: Vec<Option<Arc<SourceGate>>>,
    /// Packets of a source without a limit.
    unlimited: u64,
}

impl SourceGates {
    /// Gates for sources that send so many packets unless they have a limit.
    pub(super) fn new(program: &ClickProgram, packets: Option<u64>) -> SourceGates {
        let gate = |source| program.gates.iter().any(|gate| gate.source == source).then(Arc::default);
        SourceGates { all: (0..program.sources.len()).map(gate).collect(), unlimited: default_count(packets) }
    }

    /// All gates, as the engine takes them.
    pub(super) fn all(&self) -> &[Option<Arc<SourceGate>>] {
        &self.all
    }

    /// The gate of a source, if it has one.
    pub(super) fn of(&self, source: usize) -> Option<Arc<SourceGate>> {
        self.all.get(source)?.clone()
    }

    /// Applies settings that handlers have changed.
    pub(super) fn renew(&self, program: &ClickProgram, engine: &mut NativeEngine) {
        for set in &program.gates {
            let Some(gate) = self.all.get(set.source).and_then(Option::as_ref) else { continue };
            let [limit, active, base] =
                [set.limit, set.active, set.base].map(|at| handlers::setting(engine, at));
            let limit = u64::try_from(limit).unwrap_or(self.unlimited);
            gate.until.store(limit.saturating_add(base.max(0) as u64), Ordering::Relaxed);
            gate.paused.store(active == 0, Ordering::Relaxed);
            if let Some(at) = set.rate {
                let rate = u64::try_from(handlers::setting(engine, at)).unwrap_or_default();
                gate.rate.store(rate, Ordering::Relaxed);
            }
        }
    }
}
