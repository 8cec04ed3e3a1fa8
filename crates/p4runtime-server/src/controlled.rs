//! A switch together with the entities that controllers wrote.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use millstream_p4_lower::{ObjectKind, Pipeline};
use millstream_p4_switch::{Switch, SwitchExecutor};
use millstream_p4runtime::entities::{
    BatchOutcome, EntityChange, EntityError, EntityPlace, EntityStore, ErrorKind, undone_batch,
};
use millstream_p4runtime::proto::v1::{
    DigestList, Entity, TableEntry, Update, entity, write_request::Atomicity,
};

use crate::bindings::PipelineBindings;
use crate::digests::DigestQueues;
use crate::driver::SwitchDriver;
use crate::executor::{DynamicExecutor, ExecutorFactory};
use crate::idle::IdleTracker;
use crate::journal::SwitchJournal;
use crate::live_reads::{LiveReader, counter_data};
use crate::packet_headers::ControllerHeaders;
use crate::program::ControlProgram;
use crate::tracer::PacketTracer;
use crate::words::CommandHandles;

/// Entities of one answer, at most.
const MOST_READ: usize = 1 << 21;
/// Port of controllers, if the program has headers for them and no other is set.
const DEFAULT_CPU_PORT: u64 = 255;

/// Settings of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchSettings {
    /// Port at which the program exchanges packets with controllers; by default 255, if it has headers for
    /// them.
    pub cpu_port: Option<u64>,
}

/// A cell of one of the program's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterFigure {
    /// Name of the counter.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A switch with its entities.
pub struct ControlledSwitch {
    pub(crate) program: Arc<ControlProgram>,
    pub(crate) bindings: Arc<PipelineBindings>,
    pub(crate) store: EntityStore,
    pub(crate) switch: Switch<DynamicExecutor>,
    pub(crate) idle: IdleTracker,
    pub(crate) digests: DigestQueues,
    pub(crate) settings: SwitchSettings,
    pub(crate) handles: CommandHandles,
    pub(crate) headers: ControllerHeaders,
    last_group: u32,
    started: Instant,
    /// Copy of the switch for traces, once a packet was traced.
    pub(crate) tracer: Option<PacketTracer>,
}

impl ControlledSwitch {
    /// A switch with the entries that the program states.
    ///
    /// # Errors
    /// If there is no engine for the program, or it refuses the program's entries.
    pub fn new(
        program: Arc<ControlProgram>,
        factory: &ExecutorFactory,
        settings: SwitchSettings,
    ) -> Result<ControlledSwitch, String> {
        let executor = factory(&program.lowered)?;
        let mut switch =
            Switch::new(Arc::clone(&program.lowered), executor).map_err(|error| error.to_string())?;
        let started = Instant::now();
        switch.use_clock(Box::new(move || nanoseconds(started)));
        let info = &program.description.info;
        let mut store = EntityStore::new(Arc::clone(&program.index));
        store.install(&program.description.entries.updates).map_err(|error| error.to_string())?;
        let mut controlled = ControlledSwitch {
            bindings: Arc::new(PipelineBindings::new(info, &program.lowered.pipeline)),
            headers: ControllerHeaders::new(info),
            store,
            switch,
            idle: IdleTracker::default(),
            digests: DigestQueues::default(),
            settings,
            handles: CommandHandles::default(),
            last_group: 0,
            started,
            tracer: None,
            program,
        };
        controlled.install_entries();
        Ok(controlled)
    }

    /// Gives the entries that the program states the keys that controllers know. A table keeps those of the
    /// lowered program if P4Info cannot name one of them.
    fn install_entries(&mut self) {
        let lowered = Arc::clone(&self.program.lowered);
        let bindings = Arc::clone(&self.bindings);
        for (id, bound) in &bindings.tables {
            let Some(spec) = lowered.pipeline.tables.get(bound.number) else { continue };
            if spec.entries.is_empty() || self.store.entry_count(*id) != spec.entries.len() {
                continue;
            }
            let places: Vec<EntityPlace> =
                self.store.entries(*id).map(|(key, _)| EntityPlace::Entry(*id, key.clone())).collect();
            let mut journal = SwitchJournal::default();
            let mut replaced = Ok(());
            for key in self.switch.executor().keys(spec.map) {
                replaced = replaced.and_then(|()| journal.delete(&mut self.switch, spec.map, &key));
            }
            for place in &places {
                replaced = replaced.and_then(|()| self.driver(&mut journal).carry_out(place, true));
            }
            if let Err(error) = replaced {
                tracing::debug!("{}: {error}", spec.name);
                journal.undo_to(&mut self.switch, 0);
            }
        }
    }

    fn driver<'c>(&'c mut self, journal: &'c mut SwitchJournal) -> SwitchDriver<'c> {
        SwitchDriver {
            pipeline: &self.program.lowered.pipeline,
            bindings: &self.bindings,
            store: &self.store,
            switch: &mut self.switch,
            journal,
            last_group: &mut self.last_group,
        }
    }

    /// The program.
    pub fn program(&self) -> &Arc<ControlProgram> {
        &self.program
    }

    /// Description of the lowered program.
    pub fn pipeline(&self) -> &Pipeline {
        &self.program.lowered.pipeline
    }

    /// Port at which the program exchanges packets with controllers.
    pub fn cpu_port(&self) -> Option<u64> {
        self.settings.cpu_port.or_else(|| self.headers.is_used().then_some(DEFAULT_CPU_PORT))
    }

    /// Nanoseconds since the switch started.
    pub(crate) fn now(&self) -> u64 {
        nanoseconds(self.started)
    }

    /// Writes a batch. No packet sees a part of it.
    pub fn write(&mut self, updates: &[Update], atomicity: Atomicity) -> BatchOutcome {
        self.idle.set_time(self.now());
        self.note_write();
        match atomicity {
            Atomicity::ContinueOnError => {
                let mut results = Vec::with_capacity(updates.len());
                for update in updates {
                    results.push(self.write_one(update, &mut SwitchJournal::default()).map(|change| {
                        self.watch(change.as_ref().map(EntityChange::place));
                    }));
                }
                BatchOutcome { results }
            }
            Atomicity::RollbackOnError | Atomicity::DataplaneAtomic => self.write_whole(updates),
        }
    }

    /// Writes all updates or none.
    fn write_whole(&mut self, updates: &[Update]) -> BatchOutcome {
        let mut journal = SwitchJournal::default();
        let mut changes: Vec<EntityChange> = Vec::with_capacity(updates.len());
        for (at, update) in updates.iter().enumerate() {
            match self.write_one(update, &mut journal) {
                Ok(change) => changes.extend(change),
                Err(error) => {
                    changes.into_iter().rev().for_each(|change| self.store.revert(change));
                    journal.undo_to(&mut self.switch, 0);
                    return undone_batch(updates.len(), at, &error);
                }
            }
        }
        changes.iter().for_each(|change| self.watch(Some(change.place())));
        BatchOutcome { results: vec![Ok(()); updates.len()] }
    }

    /// Writes one update to the store and the switch, or changes neither.
    fn write_one(
        &mut self,
        update: &Update,
        journal: &mut SwitchJournal,
    ) -> Result<Option<EntityChange>, EntityError> {
        let Some(change) = self.store.change(update)? else { return Ok(None) };
        let mark = journal.mark();
        match self.driver(journal).carry_out(&change.place(), writes_counter(update)) {
            Ok(()) => Ok(Some(change)),
            Err(error) => {
                journal.undo_to(&mut self.switch, mark);
                self.store.revert(change);
                Err(error)
            }
        }
    }

    /// Watches the entry of a change for its timeout.
    fn watch(&mut self, place: Option<EntityPlace>) {
        if let Some(EntityPlace::Entry(table, key)) = place {
            self.idle.update(&self.store, table, &key);
        }
    }

    /// Reads the entities that requests select, with the values that packets gave them.
    ///
    /// # Errors
    /// If a request is malformed, the one entity that it names does not exist, or there are too many for one
    /// answer.
    pub fn read(&mut self, requests: &[Entity]) -> Result<Vec<Entity>, EntityError> {
        self.idle.set_time(self.now());
        let mut found = Vec::new();
        let mut reader = LiveReader {
            pipeline: &self.program.lowered.pipeline,
            bindings: &self.bindings,
            store: &self.store,
            switch: &mut self.switch,
            idle: &self.idle,
        };
        for request in requests {
            let mut is_full = false;
            self.store.read(request, &mut |mut entity| {
                is_full = found.len() >= MOST_READ;
                if is_full {
                    return ControlFlow::Break(());
                }
                reader.refresh(&mut entity);
                found.push(entity);
                ControlFlow::Continue(())
            })?;
            if is_full {
                let message = format!("the answer has more than {MOST_READ} entities; ask for parts");
                return Err(EntityError::new(ErrorKind::ResourceExhausted, message));
            }
        }
        Ok(found)
    }

    /// Puts the values that packets gave an entity into it.
    pub(crate) fn refresh(&mut self, entity: &mut Entity) {
        let mut reader = LiveReader {
            pipeline: &self.program.lowered.pipeline,
            bindings: &self.bindings,
            store: &self.store,
            switch: &mut self.switch,
            idle: &self.idle,
        };
        reader.refresh(entity);
    }

    /// Takes the lists of digests that are due.
    pub(crate) fn take_digests(&mut self) -> Vec<DigestList> {
        let now = self.now();
        self.digests.take_due(&self.store, &self.program.description.info, now)
    }

    /// Looks for entries that no packet has hit for their timeout.
    pub(crate) fn take_idle_entries(&mut self) -> Vec<TableEntry> {
        if self.idle.is_empty() {
            return Vec::new();
        }
        let now = self.now();
        let mut idle = std::mem::take(&mut self.idle);
        idle.set_time(now);
        let nothing = IdleTracker::default();
        let mut reader = LiveReader {
            pipeline: &self.program.lowered.pipeline,
            bindings: &self.bindings,
            store: &self.store,
            switch: &mut self.switch,
            idle: &nothing,
        };
        let found = idle.look(&self.store, |entry| reader.entry_counter(entry).map(|data| data.packet_count));
        self.idle = idle;
        found
    }

    /// Cells of the program's counters that are not zero, at most `most`.
    pub fn counter_figures(&mut self, most: usize) -> Vec<CounterFigure> {
        let lowered = Arc::clone(&self.program.lowered);
        let mut figures = Vec::new();
        for object in &lowered.pipeline.objects {
            let (ObjectKind::Counter, Some(map)) = (&object.kind, object.map) else { continue };
            for index in 0..object.size {
                let bytes = self.switch.executor().get(map, &index.to_le_bytes());
                let Some(data) = bytes.and_then(|bytes| counter_data(&bytes)) else { continue };
                let (packets, bytes) = (data.packet_count as u64, data.byte_count as u64);
                if packets == 0 && bytes == 0 {
                    continue;
                }
                if figures.len() == most {
                    return figures;
                }
                figures.push(CounterFigure { name: object.name.clone(), index, packets, bytes });
            }
        }
        figures
    }

    /// Names of tables, and how many entries each has.
    pub fn table_sizes(&self) -> Vec<(String, u64)> {
        let pipeline = &self.program.lowered.pipeline;
        let tables = self.bindings.tables.iter().filter_map(|(id, bound)| {
            let spec = pipeline.tables.get(bound.number)?;
            Some((spec.name.clone(), self.store.entry_count(*id) as u64))
        });
        let mut sizes: Vec<_> = tables.collect();
        sizes.sort();
        sizes
    }

    /// Digests that were lost because controllers did not take them.
    pub fn lost_digests(&self) -> u64 {
        self.digests.lost
    }
}

/// Tells if an update sets a direct counter.
fn writes_counter(update: &Update) -> bool {
    match update.entity.as_ref().and_then(|entity| entity.entity.as_ref()) {
        Some(entity::Entity::TableEntry(entry)) => entry.counter_data.is_some(),
        Some(entity::Entity::DirectCounterEntry(_)) => true,
        _ => false,
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
