//! Traces: a packet is replayed in the interpreter, with copies of the tables, on the program as it was lowered
//! for a trace. So a trace is the same for all engines, and has the program's own lines.

use std::sync::Arc;

use millstream_ir::Map;
use millstream_p4_lower::{LoweredProgram, Pipeline};
use millstream_p4_switch::{InterpreterExecutor, Switch, SwitchExecutor, TraceEvent};

use crate::executor::DynamicExecutor;

/// A copy of a switch that traces packets.
pub(crate) struct PacketTracer {
    switch: Switch<InterpreterExecutor>,
    /// Maps of the switch that runs, and of the copy.
    maps: Vec<(Map, Map)>,
    /// The control plane wrote nothing since the tables were copied.
    is_current: bool,
}

/// Maps that packets change: registers, counters and meters.
fn arrays(pipeline: &Pipeline) -> Vec<Map> {
    pipeline.objects.iter().filter_map(|object| object.map).collect()
}

impl PacketTracer {
    /// A copy of a switch for `program`, which runs what `traced` was lowered from, too.
    ///
    /// # Errors
    /// If the program's own entries are not accepted.
    pub(crate) fn new(
        program: &LoweredProgram,
        traced: &Arc<LoweredProgram>,
    ) -> Result<PacketTracer, String> {
        let executor = InterpreterExecutor::new(Arc::clone(traced));
        let switch = Switch::new(Arc::clone(traced), executor).map_err(|error| error.to_string())?;
        let marks = traced.pipeline.trace.as_ref().map(|marks| marks.map);
        let copies = traced.module.maps.keys().filter(|map| Some(*map) != marks);
        let maps = program.module.maps.keys().zip(copies).collect();
        Ok(PacketTracer { switch, maps, is_current: false })
    }

    /// Notes that the control plane wrote.
    pub(crate) fn note_write(&mut self) {
        self.is_current = false;
    }

    /// Replays a packet, and gives its events.
    pub(crate) fn replay(
        &mut self,
        switch: &mut Switch<DynamicExecutor>,
        now: u64,
        (port, data): (u64, &[u8]),
    ) -> Vec<TraceEvent> {
        let arrays = arrays(switch.pipeline());
        for (from, to) in &self.maps {
            if !self.is_current || arrays.contains(from) {
                copy_map(switch.executor(), *from, self.switch.executor(), *to);
            }
        }
        self.is_current = true;
        self.switch.mirrors.clone_from(&switch.mirrors);
        self.switch.groups.clone_from(&switch.groups);
        self.switch.use_clock(Box::new(move || now));
        self.switch.start_trace();
        // An error of the packet comes again when it runs.
        if let Err(error) = self.switch.receive(port, data) {
            tracing::debug!("trace: {error}");
        }
        self.switch.events.clear();
        self.switch.take_trace()
    }
}

/// Makes a map equal to another one.
fn copy_map(source: &mut DynamicExecutor, from: Map, target: &mut InterpreterExecutor, to: Map) {
    let keys = source.keys(from);
    for key in target.keys(to) {
        if source.get(from, &key).is_none() {
            // Elements of arrays cannot be removed, and both have the same ones.
            _ = target.delete(to, &key);
        }
    }
    for key in keys {
        if let Some(value) = source.get(from, &key)
            && let Err(error) = target.set(to, &key, &value)
        {
            tracing::debug!("trace: an entry is not copied: {error}");
        }
    }
}
