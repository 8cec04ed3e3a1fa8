//! Runs the two programs of a proof in the interpreter, on the same packet and the same maps.
//!
//! A difference is reported only if it was seen here. A faulting run proves nothing: the kernel does not
//! accept such a program, or the interpreter does not model part of it.

use millstream_interp::bytecode::{BytecodeInterpreter, DecodedProgram as Code};
use millstream_interp::{
    ContextKind as Kind, Fault, MachineState, MapConfig, MapContents, MapId, MapKeyValue, MapKind,
    RedirectTarget, SideEffect,
};
use millstream_isa::{ByteOrder, Insn, Pseudo};

use crate::program::{ContextLayout, InsnReference, MapSignature, ProofProgram};

/// Instructions that one run may take.
const FUEL: u64 = 1 << 20;
/// Most bytes of all arrays together; beyond that nothing is run.
const MOST_BYTES: u64 = 16 << 20;
/// Verdicts for which the target of a redirect matters: `XDP_REDIRECT`, `TC_ACT_REDIRECT`.
const REDIRECTS: [u32; 2] = [4, 7];
/// Bytes of a context of unknown layout.
const RAW_CONTEXT: usize = 512;

/// Inputs of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReplayInput {
    /// The packet.
    pub(crate) packet: Vec<u8>,
    /// Bytes of the context that are not zero, by offset.
    pub(crate) context: Vec<(usize, u8)>,
    /// Entries of maps, by number of the map in the proof.
    pub(crate) entries: Vec<(usize, MapKeyValue)>,
    /// The clock.
    pub(crate) time: u64,
    /// The state of the random generator.
    pub(crate) seed: u64,
    /// Process that runs the program: thread and group, user and group.
    pub(crate) process: [u64; 2],
}

/// A part of an outcome that can differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ObservableKind {
    Result,
    Length,
    Packet(usize),
    Metadata(usize),
    Context(usize),
    Redirect,
    Events,
    Map(usize),
}

impl ObservableKind {
    /// Returns true if it is the same in both.
    pub(crate) fn same(&self, a: &ReplayOutcome, b: &ReplayOutcome) -> bool {
        match *self {
            ObservableKind::Result => a.result == b.result,
            ObservableKind::Length => a.packet.len() == b.packet.len(),
            ObservableKind::Packet(n) => a.packet.get(n) == b.packet.get(n),
            ObservableKind::Metadata(n) => a.metadata.get(n) == b.metadata.get(n),
            ObservableKind::Context(n) => a.context.get(n) == b.context.get(n),
            ObservableKind::Redirect => a.redirect == b.redirect,
            ObservableKind::Events => a.events == b.events,
            ObservableKind::Map(n) => a.maps.get(n) == b.maps.get(n),
        }
    }
}

/// A run that was stopped after some instructions, or ended before.
pub(crate) struct PartialRun {
    /// Its outcome so far.
    pub(crate) outcome: ReplayOutcome,
    /// Instructions executed.
    pub(crate) executed: u64,
    /// The instruction that would have been next.
    pub(crate) slot: Option<usize>,
}

/// Outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplayOutcome {
    result: u32,
    packet: Vec<u8>,
    metadata: Vec<u8>,
    context: Vec<u8>,
    events: Vec<SideEffect>,
    redirect: Option<RedirectTarget>,
    maps: Vec<MapContents>,
}

/// The first observable in which two runs differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OutcomeDifference {
    pub(crate) place: ObservableKind,
    pub(crate) observable: String,
    pub(crate) first: String,
    pub(crate) second: String,
}

/// Both programs, made ready for the interpreter.
pub(crate) struct ReplayHarness<'a> {
    pub(crate) order: ByteOrder,
    pub(crate) maps: &'a [MapSignature],
    specs: Vec<MapConfig>,
    programs: [Code; 2],
    insns: [&'a [Option<Insn>]; 2],
    kind: Kind,
}

impl<'a> ReplayHarness<'a> {
    /// # Errors
    /// If the interpreter does not model part of the programs, with the reason.
    pub(crate) fn new(
        maps: &'a [MapSignature],
        programs: [&'a ProofProgram; 2],
    ) -> Result<ReplayHarness<'a>, String> {
        let specs: Vec<MapConfig> = maps.iter().map(spec).collect();
        let bytes: u64 = specs.iter().filter(|s| dense(s)).map(size).sum();
        if bytes > MOST_BYTES {
            return Err(format!("the maps take {bytes} bytes"));
        }
        let kind = match programs[0].context {
            ContextLayout::Xdp => Kind::Xdp,
            ContextLayout::Skb => Kind::Skb,
            ContextLayout::Other => Kind::Raw,
        };
        let [a, b] = programs;
        let (programs, insns) = ([code(a)?, code(b)?], [a.insns.as_slice(), b.insns.as_slice()]);
        Ok(ReplayHarness { order: a.order, maps, specs, programs, insns, kind })
    }

    /// Runs the first program or the second; [`None`] if it faults. Adds the keys that it looked up in vain.
    pub(crate) fn run(
        &self,
        which: usize,
        scene: &ReplayInput,
        missed: &mut Vec<(usize, Vec<u8>)>,
    ) -> Option<ReplayOutcome> {
        let mut m = self.machine(scene)?;
        m.maps.missed = Some(Vec::new());
        let result = BytecodeInterpreter::new(&self.programs).run_context(&mut m, which).ok()? as u32;
        missed.extend(m.maps.missed.take()?.into_iter().map(|(map, key)| (map.0 as usize, key)));
        Some(self.outcome(m, result))
    }

    /// Runs the first program or the second for so many instructions, or until it ends; [`None`] if it
    /// faults.
    pub(crate) fn stop(&self, which: usize, scene: &ReplayInput, instructions: u64) -> Option<PartialRun> {
        let mut m = self.machine(scene)?;
        m.fuel = instructions.min(FUEL);
        let ended = BytecodeInterpreter::new(&self.programs).run_context(&mut m, which);
        let (result, slot) = match ended {
            Ok(result) => (result as u32, None),
            Err(e) if matches!(e.fault, Fault::Fuel(_)) => (0, Some(e.slot)),
            Err(_) => return None,
        };
        let executed = m.executed;
        Some(PartialRun { outcome: self.outcome(m, result), executed, slot })
    }

    /// Returns true if the layout of the programs' context is unknown.
    pub(crate) fn has_raw_context(&self) -> bool {
        self.kind == Kind::Raw
    }

    /// The instruction at a slot.
    pub(crate) fn insn(&self, which: usize, slot: usize) -> Option<Insn> {
        self.insns[which].get(slot).copied().flatten()
    }

    /// A machine in the state of a scene.
    fn machine(&self, scene: &ReplayInput) -> Option<MachineState> {
        let mut m = MachineState::new(self.kind).with_byte_order(self.order);
        m.fuel = FUEL;
        (m.env.time, m.env.seed) = (scene.time, scene.seed);
        m.env.made_up = Some(scene.seed);
        [m.env.pid_tgid, m.env.uid_gid] = scene.process;
        for (spec, info) in self.specs.iter().zip(self.maps) {
            let id = m.maps.add(*spec, 1).ok()?;
            if let Some(data) = &info.data {
                m.maps.set(id, &[0; 4], data, 0).ok()?;
            }
        }
        for (map, (key, value)) in &scene.entries {
            // Entries that do not fit are left out.
            let _ = m.maps.set(MapId(*map as u32), key, value, 0);
        }
        if self.kind == Kind::Raw {
            m.context_mut().resize(RAW_CONTEXT, 0);
        }
        for (at, byte) in &scene.context {
            if let Some(place) = m.context_mut().get_mut(*at) {
                *place = *byte;
            }
        }
        m.reset(&scene.packet);
        Some(m)
    }

    fn outcome(&self, mut m: MachineState, result: u32) -> ReplayOutcome {
        let redirect = if REDIRECTS.contains(&result) { m.env.redirect } else { None };
        let contents = |(i, map): (usize, &MapSignature)| match map.is_scratch {
            true => MapContents::Entries(Vec::new()),
            false => m.maps.contents(MapId(i as u32)),
        };
        let maps = self.maps.iter().enumerate().map(contents).collect();
        ReplayOutcome {
            result,
            packet: m.packet.bytes().to_vec(),
            metadata: m.packet.metadata().to_vec(),
            context: m.context().to_vec(),
            events: std::mem::take(&mut m.env.events),
            redirect,
            maps,
        }
    }

    /// Runs both; returns their difference, if neither faults and they differ.
    pub(crate) fn compare(
        &self,
        scene: &ReplayInput,
        missed: &mut Vec<(usize, Vec<u8>)>,
    ) -> Option<OutcomeDifference> {
        let a = self.run(0, scene, missed)?;
        let b = self.run(1, scene, missed)?;
        self.difference(&a, &b)
    }

    fn difference(&self, a: &ReplayOutcome, b: &ReplayOutcome) -> Option<OutcomeDifference> {
        let at = |place: ObservableKind, observable: &str, first: String, second: String| {
            Some(OutcomeDifference { place, observable: observable.to_owned(), first, second })
        };
        if a.result != b.result {
            return at(ObservableKind::Result, "result", a.result.to_string(), b.result.to_string());
        }
        if a.packet.len() != b.packet.len() {
            return at(
                ObservableKind::Length,
                "packet length",
                a.packet.len().to_string(),
                b.packet.len().to_string(),
            );
        }
        let place: [fn(usize) -> ObservableKind; 3] =
            [ObservableKind::Packet, ObservableKind::Metadata, ObservableKind::Context];
        for (place, (name, x, y)) in place.into_iter().zip([
            ("packet", &a.packet, &b.packet),
            ("metadata", &a.metadata, &b.metadata),
            ("context", &a.context, &b.context),
        ]) {
            if x != y {
                let n = x.iter().zip(y).take_while(|(x, y)| x == y).count();
                let byte = |v: &[u8]| v.get(n).map_or("nothing".to_owned(), |b| format!("{b:#04x}"));
                return at(place(n), &format!("{name}, byte {n}"), byte(x), byte(y));
            }
        }
        if a.redirect != b.redirect {
            return at(
                ObservableKind::Redirect,
                "redirection",
                format!("{:?}", a.redirect),
                format!("{:?}", b.redirect),
            );
        }
        if a.events != b.events {
            return at(
                ObservableKind::Events,
                "events",
                format!("{:?}", a.events),
                format!("{:?}", b.events),
            );
        }
        let n = a.maps.iter().zip(&b.maps).position(|(x, y)| x != y)?;
        let [here, there] = a.maps[n].difference(&b.maps[n]).map(|entry| shown(entry.as_ref()));
        at(ObservableKind::Map(n), &format!("map {:?}", self.maps[n].name), here, there)
    }
}

fn shown(entry: Option<&MapKeyValue>) -> String {
    entry.map_or("no such entry".to_owned(), |(k, v)| format!("{} -> {}", hex::encode(k), hex::encode(v)))
}

fn spec(map: &MapSignature) -> MapConfig {
    // A map without entries for those that are not modelled: a program that uses one faults.
    let kind = MapKind::from_number(map.number).unwrap_or(MapKind::PerfEventArray);
    // A loader gives a size to those that have none.
    let max_entries = if map.max_entries == 0 { 64 } else { map.max_entries };
    // Scenes may set what programs may not write.
    let flags = map.flags & !RDONLY_PROG;
    MapConfig { kind, key_size: map.key_size, value_size: map.value_size, max_entries, flags }
}

/// `BPF_F_RDONLY_PROG`
const RDONLY_PROG: u32 = 1 << 7;

fn dense(spec: &MapConfig) -> bool {
    use MapKind::{Array, ArrayOfMaps, Cpumap, Devmap, PercpuArray, ProgArray, Xskmap};
    matches!(spec.kind, Array | PercpuArray | ProgArray | Devmap | Cpumap | Xskmap | ArrayOfMaps)
}

fn size(spec: &MapConfig) -> u64 {
    u64::from(spec.max_entries) * u64::from(spec.key_size + spec.value_size)
}

/// The program with its constants substituted.
fn code(p: &ProofProgram) -> Result<Code, String> {
    let mut insns: Vec<Insn> = Vec::new();
    for (slot, insn) in p.insns.iter().enumerate() {
        let Some(insn) = insn else { continue };
        let mut insn = *insn;
        match (&mut insn, p.targets.get(&slot)) {
            (Insn::LoadImm64 { pseudo, imm, .. }, Some(InsnReference::Map(m))) => {
                (*pseudo, *imm) = (Pseudo::None, MachineState::map_address(MapId(*m)));
            }
            (Insn::LoadImm64 { pseudo, imm, .. }, Some(InsnReference::Value(m, offset))) => {
                (*pseudo, *imm) = (Pseudo::None, MachineState::value_address_of(MapId(*m), *offset));
            }
            (_, Some(InsnReference::Extern(name))) => return Err(format!("{name} is the kernel's")),
            _ => {}
        }
        insns.push(insn);
    }
    Ok(Code::from_insns(&insns))
}
