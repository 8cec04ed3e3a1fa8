//! Two engines with the program and with copies of its tables: the reference, and the one for candidates.
//!
//! Both begin with what the live engine held before its first packet, and follow what control programs write
//! since. What programs themselves write is the replicas' own: from the first packet on it differs from that of
//! the live engine.
//!
//! Invariant: both run the same packets in the same order, with the same clock and seeds. So their contents stay
//! equal as long as the candidates behave as the program does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use millstream_native::{
    ClockSource, CodeSlot, CopiedContents, NativeEngine, NativeError, PacketBatch, SampledPacket,
    VariantBuilder, VariantCode, VariantOptions,
};
use millstream_specializer::profile::SiteProfile;
use millstream_tune::{IoKind, LookupDemand, ProgramDemand};

use crate::profile;
use crate::program::{AdaptableProgram, FormError};
use crate::settings::PacketModel;

/// Entries of tables that programs write, up to which they are compared.
const MOST_COMPARED: usize = 65_536;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Rounds of which the fastest one counts as the program's time.
const DEMAND_ROUNDS: usize = 5;

/// LLVM's passes for code that is not timed.
const QUICK_PASSES: &str = "always-inline";

/// `XDP_REDIRECT`: the verdict with a target.
const REDIRECT: u32 = 4;

/// Result for a packet: verdict and target, or output and number; and the bytes.
pub(crate) type PacketOutput = (u64, u64, Vec<u8>);

/// Reason why there are no replicas.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaError {
    #[error(transparent)]
    Native(#[from] NativeError),
    #[error(transparent)]
    Form(#[from] FormError),
    #[error("no memory for packets: {0}")]
    Memory(#[from] io::Error),
}

/// The two engines.
pub(crate) struct Replicas {
    reference: NativeEngine,
    candidate: NativeEngine,
    /// The program that records keys, for the reference.
    recorder: Option<VariantCode>,
    batch: PacketBatch,
    model: PacketModel,
    followed: BTreeSet<usize>,
    sketch: usize,
    /// Versions of the live engine's tables that the replicas have.
    versions: Vec<u64>,
    /// Time of the last write of each table, as far as it was written.
    written: BTreeMap<usize, Instant>,
    /// Tables that are not followed any more.
    lost: BTreeSet<usize>,
}

/// Engine that runs a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplicaSide {
    /// The program.
    Reference,
    /// The form that is judged.
    Candidate,
}

impl Replicas {
    /// Compiles both, with these contents.
    pub(crate) fn build(
        builder: &VariantBuilder,
        program: &AdaptableProgram,
        contents: &CopiedContents,
        model: PacketModel,
    ) -> Result<Replicas, ReplicaError> {
        let mut engines = Vec::new();
        // The candidate's own program is not timed.
        for passes in [None, Some(QUICK_PASSES)] {
            let mut engine = builder.build_replica(vec![program.sketch_map()], passes)?;
            for (map, entries) in contents {
                let entries = entries.iter().map(|(key, value)| (&key[..], Some(&value[..])));
                engine.apply_entries(*map, entries);
            }
            engines.push(engine);
        }
        let (Some(candidate), Some(reference)) = (engines.pop(), engines.pop()) else {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
        };
        let size = reference.batch().max(1) as usize;
        let batch = match model {
            PacketModel::Verdicts | PacketModel::OpenVerdicts => PacketBatch::new(size)?,
            PacketModel::Graph => PacketBatch::with_copies(size, (16 * size).max(1024))?,
        };
        let mut replicas = Replicas {
            reference,
            candidate,
            recorder: None,
            batch,
            model,
            followed: program.followed().into_iter().collect(),
            sketch: program.sketch().as_u32() as usize,
            versions: Vec::new(),
            written: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        if !program.sites().is_empty()
            && let Some(builder) = replicas.reference.variant_builder()
        {
            replicas.recorder = Some(builder.compile(program.instrumented()?, &VariantOptions::default())?);
        }
        Ok(replicas)
    }

    /// Takes over what control programs have written.
    pub(crate) fn follow(&mut self, slot: &CodeSlot) {
        let (writes, versions) = slot.take_writes();
        for (map, writes) in writes {
            self.written.insert(map, Instant::now());
            if writes.is_lost {
                self.lost.insert(map);
                continue;
            }
            for engine in [&mut self.reference, &mut self.candidate] {
                let entries = writes.keys.iter().map(|(key, value)| (&key[..], value.as_deref()));
                engine.apply_entries(map, entries);
            }
        }
        self.versions = versions;
    }

    /// Version of a table's contents here.
    pub(crate) fn version(&self, map: usize) -> u64 {
        self.versions.get(map).copied().unwrap_or(0)
    }

    /// Time of the last write of each table.
    pub(crate) fn written(&self) -> &BTreeMap<usize, Instant> {
        &self.written
    }

    /// Tables whose contents are unknown, since too many keys were written at once.
    pub(crate) fn lost(&self) -> &BTreeSet<usize> {
        &self.lost
    }

    /// The engine with the tables.
    pub(crate) fn reference(&mut self) -> &mut NativeEngine {
        &mut self.reference
    }

    /// Compiler of code for the candidate's tables.
    pub(crate) fn candidate_builder(&self) -> Option<&VariantBuilder> {
        self.candidate.variant_builder().map(|builder| &**builder)
    }

    /// Hot keys of these packets.
    pub(crate) fn profile(
        &mut self,
        program: &AdaptableProgram,
        packets: &[SampledPacket],
    ) -> Vec<SiteProfile> {
        let Some(recorder) = self.recorder.take() else { return Vec::new() };
        self.set_clocks();
        profile::clear(program, &mut self.reference);
        for chunk in packets.chunks(self.batch.capacity().max(1)) {
            self.run(ReplicaSide::Reference, Some(&recorder), chunk);
            self.run(ReplicaSide::Candidate, None, chunk);
        }
        self.recorder = Some(recorder);
        profile::read(program, &mut self.reference)
    }

    /// Sets the clocks of both to the present time, at which they stay.
    pub(crate) fn set_clocks(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        self.reference.set_clock(ClockSource::Fixed(now));
        self.candidate.set_clock(ClockSource::Fixed(now));
    }

    /// Number of packets of a batch.
    pub(crate) fn batch_size(&self) -> usize {
        self.batch.capacity().max(1)
    }

    /// Runs packets, at most a batch, by this code or by the program. Returns the time in nanoseconds, without that
    /// of copying packets in.
    pub(crate) fn run(
        &mut self,
        side: ReplicaSide,
        code: Option<&VariantCode>,
        packets: &[SampledPacket],
    ) -> u64 {
        let (engine, batch) = match side {
            ReplicaSide::Reference => (&mut self.reference, &mut self.batch),
            ReplicaSide::Candidate => (&mut self.candidate, &mut self.batch),
        };
        let is_graph = self.model == PacketModel::Graph;
        batch.clear();
        batch.expect(engine.layout());
        for packet in packets {
            match self.model {
                PacketModel::Verdicts => batch.push(&packet.bytes, packet.ingress),
                PacketModel::OpenVerdicts => batch.push_open(&packet.bytes, packet.ingress),
                PacketModel::Graph => batch.push_arrived(&packet.bytes, packet.ingress, packet.arrival),
            };
        }
        let start = Instant::now();
        match (code, is_graph) {
            // The code was made by the builder of this engine, so it is not refused.
            (Some(code), _) => drop(engine.run_variant(code, batch, is_graph)),
            (None, true) => engine.run_graph(batch),
            (None, false) => engine.run(batch),
        }
        let took = start.elapsed().as_nanos() as u64;
        engine.take_events();
        took
    }

    /// Demand of the program for these packets: its time with lines that are in the caches, and its look-ups.
    pub(crate) fn demand(&mut self, packets: &[SampledPacket]) -> ProgramDemand {
        self.set_clocks();
        let size = self.batch_size();
        let mut round = || -> u64 {
            let both = [ReplicaSide::Reference, ReplicaSide::Candidate];
            let [time, _] =
                both.map(|side| packets.chunks(size).map(|chunk| self.run(side, None, chunk)).sum());
            time
        };
        let hot: u64 = (0..DEMAND_ROUNDS).map(|_| round()).min().unwrap_or(0);
        let count = packets.len().max(1);
        let bytes: usize = packets.iter().map(|packet| packet.bytes.len()).sum();
        let tables: Vec<String> =
            self.reference.schedule.tables.iter().map(|decision| decision.table.clone()).collect();
        let lookup = |table: String| {
            let lines = self.reference.lookup_lines(&table)?;
            let map = self.reference.map(&table)?;
            let touched = map.len() as u64 * u64::from(lines) * LINE;
            let bytes = map.lookup_bytes()?.min(touched);
            Some(LookupDemand { table, bytes, lines: f64::from(lines) })
        };
        ProgramDemand {
            compute_ns: hot as f64 / count as f64,
            ahead_ns: None,
            lookups: tables.into_iter().filter_map(lookup).collect(),
            packet_bytes: (bytes / count) as u32,
            io: IoKind::Memory,
        }
    }

    /// Results of the last batch.
    pub(crate) fn outputs(&self) -> Vec<PacketOutput> {
        let batch = &self.batch;
        match self.model {
            PacketModel::Verdicts | PacketModel::OpenVerdicts => (0..batch.len())
                .map(|at| {
                    let verdict = batch.verdict(at);
                    let target = if verdict == REDIRECT { batch.target(at) } else { 0 };
                    (verdict.into(), target.into(), batch.bytes(at).to_vec())
                })
                .collect(),
            PacketModel::Graph => {
                batch.sent().map(|(bytes, output, number)| (output, number as u64, bytes.to_vec())).collect()
            }
        }
    }

    /// Returns true if the tables that programs write are equal in both engines, as far as they are small enough to
    /// be compared.
    pub(crate) fn has_equal_state(&mut self) -> bool {
        let (followed, sketch) = (&self.followed, self.sketch);
        let state = |engine: &mut NativeEngine| {
            let mut all = engine.copy_contents(MOST_COMPARED)?;
            all.retain(|(map, _)| !followed.contains(map) && *map != sketch);
            all.iter_mut().for_each(|(_, entries)| entries.sort_unstable());
            Some(all)
        };
        match (state(&mut self.reference), state(&mut self.candidate)) {
            (Some(reference), Some(candidate)) => reference == candidate,
            _ => true,
        }
    }
}
