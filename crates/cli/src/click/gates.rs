//! Gates of sources: hand the handlers' settings on to the senders.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_built::handlers;
use millstream_click::Program;
use millstream_native::Engine;
use millstream_native::io::graph::Gate;

use super::io::usual;

/// The gates of a program's sources.
pub(super) struct Gates {
    /// By index of the source.
    all: Vec<Option<Arc<Gate>>>,
    /// Packets of a source without a limit.
    unlimited: u64,
}

impl Gates {
    /// Gates for sources that send so many packets unless they have a limit.
    pub(super) fn new(program: &Program, packets: Option<u64>) -> Gates {
        let gate = |source| program.gates.iter().any(|gate| gate.source == source).then(Arc::default);
        Gates { all: (0..program.sources.len()).map(gate).collect(), unlimited: usual(packets) }
    }

    /// All gates, as the engine takes them.
    pub(super) fn all(&self) -> &[Option<Arc<Gate>>] {
        &self.all
    }

    /// The gate of a source, if it has one.
    pub(super) fn of(&self, source: usize) -> Option<Arc<Gate>> {
        self.all.get(source)?.clone()
    }

    /// Applies settings that handlers have changed.
    pub(super) fn renew(&self, program: &Program, engine: &mut Engine) {
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
