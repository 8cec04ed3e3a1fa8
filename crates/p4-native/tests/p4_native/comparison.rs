//! One program in the interpreter and another engine: the same requests and packets, and all that can be seen
//! of them. The tests of several engines include this file.

use std::sync::Arc;

use millstream_p4_lower::{
    ActionChoice, EntryMatch, EntrySpec, KeyMatch, KeySpec, LoweredProgram, ObjectKind, TableSpec,
};
use millstream_p4_switch::{
    ExecutorError, InterpreterExecutor, MirrorTarget, MulticastNode, SentPacket, Switch, SwitchError,
    SwitchExecutor,
};
use millstream_rng::Rng;
use num_bigint::BigUint;

/// Error numbers of a table that is full: `-ENOSPC` and `-E2BIG`.
const NO_ROOM: [i64; 2] = [-28, -7];
/// Keys of a map that are compared.
const MOST_KEYS: usize = 256;

/// A program in the interpreter and in another engine.
pub(crate) struct Comparison<E> {
    program: Arc<LoweredProgram>,
    interpreter: Switch<InterpreterExecutor>,
    other: Switch<E>,
    random: Rng,
    samples: Vec<Vec<u8>>,
    limits: EngineLimits,
}

/// Limits of an engine that the interpreter does not have.
#[derive(Clone, Copy, Default)]
pub(crate) struct EngineLimits {
    /// Bytes of the shortest packet that is received.
    pub(crate) least: usize,
    /// Bytes of the shortest packet that is sent; the engine drops shorter ones.
    pub(crate) least_sent: usize,
    /// Tables may be full earlier.
    pub(crate) has_less_room: bool,
}

impl EngineLimits {
    /// Packets that the engine can send.
    fn possible(self, mut sent: Vec<SentPacket>) -> Vec<SentPacket> {
        sent.retain(|packet| packet.data.len() >= self.least_sent);
        sent
    }
}

/// Numbers of compared packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComparisonResult {
    pub(crate) packets: usize,
    /// Packets that left.
    pub(crate) answers: usize,
}

impl<E: SwitchExecutor> Comparison<E> {
    /// Compares an engine that runs `other` with the interpreter that runs `program`, which are lowered from the
    /// same source; `samples` are packets to begin with.
    pub(crate) fn new(
        program: &Arc<LoweredProgram>,
        (other, executor): (&Arc<LoweredProgram>, E),
        samples: Vec<Vec<u8>>,
        limits: EngineLimits,
    ) -> Result<Comparison<E>, String> {
        let other = Switch::new(other.clone(), executor).map_err(|error| error.to_string())?;
        let interpreter = Switch::new(program.clone(), InterpreterExecutor::new(program.clone()));
        let interpreter = interpreter.map_err(|error| error.to_string())?;
        Ok(Comparison { program: program.clone(), interpreter, other, random: Rng::new(1), samples, limits })
    }

    /// Sends packets, and changes entries meanwhile.
    pub(crate) fn run(&mut self, packets: usize) -> Result<ComparisonResult, String> {
        let mut result = ComparisonResult { packets: 0, answers: 0 };
        self.replication();
        for round in 0..packets {
            if round % 4 == 0 {
                self.request()?;
            }
            let (port, packet) = (self.random.below(8), self.packet(round));
            let expected = self.interpreter.receive(port, &packet).map(|sent| self.limits.possible(sent));
            if is_out_of_fuel(&expected) {
                break;
            }
            let given = self.other.receive(port, &packet);
            result.packets += 1;
            match &expected {
                Ok(sent) => result.answers += sent.len(),
                Err(SwitchError::Endless) => {}
                Err(error) => return Err(format!("{error} on {packet:02x?}")),
            }
            if given != expected {
                return Err(format!("{packet:02x?} gives {given:02x?}, interpreted {expected:02x?}"));
            }
            let (events, wanted) =
                (std::mem::take(&mut self.other.events), std::mem::take(&mut self.interpreter.events));
            if events != wanted {
                return Err(format!("{packet:02x?} has the events {events:?}, interpreted {wanted:?}"));
            }
        }
        self.compare_maps()?;
        Ok(result)
    }

    /// Sends batches of packets of all sizes, and changes entries between them.
    pub(crate) fn run_batches(&mut self, batches: usize) -> Result<ComparisonResult, String> {
        let mut result = ComparisonResult { packets: 0, answers: 0 };
        for round in 0..batches {
            self.request()?;
            let Some(batch) = self.run_batch(round)? else { break };
            result.packets += batch.packets;
            result.answers += batch.answers;
        }
        self.compare_maps()?;
        Ok(result)
    }

    /// Sends a batch of packets of all sizes; `None` if the interpreter has no more fuel.
    pub(crate) fn run_batch(&mut self, round: usize) -> Result<Option<ComparisonResult>, String> {
        let count = 1 + self.random.below(100) as usize;
        let packets: Vec<(u64, Vec<u8>)> =
            (0..count).map(|at| (self.random.below(8), self.packet(round * 100 + at))).collect();
        let packets: Vec<(u64, &[u8])> = packets.iter().map(|(port, data)| (*port, &data[..])).collect();
        let expected = self.interpreter.receive_batch(&packets);
        if is_out_of_fuel(&expected) {
            return Ok(None);
        }
        let (given, expected) = (self.other.receive_batch(&packets), expected);
        let (given, expected) =
            (given.map_err(|error| error.to_string())?, expected.map_err(|error| error.to_string())?);
        let expected: Vec<_> = expected.into_iter().map(|sent| self.limits.possible(sent)).collect();
        let answers = expected.iter().map(Vec::len).sum();
        if let Some(at) = (0..count).find(|at| given[*at] != expected[*at]) {
            let (packet, given, expected) = (packets[at], &given[at], &expected[at]);
            return Err(format!("{packet:02x?} gives {given:02x?}, interpreted {expected:02x?}"));
        }
        let (events, wanted) =
            (std::mem::take(&mut self.other.events), std::mem::take(&mut self.interpreter.events));
        if events != wanted {
            return Err(format!("batch {round} has the events {events:?}, interpreted {wanted:?}"));
        }
        Ok(Some(ComparisonResult { packets: count, answers }))
    }

    fn replication(&mut self) {
        let node = |replica, ports: &[u64]| MulticastNode { replica, ports: ports.to_vec() };
        for group in 1..4 {
            let nodes = vec![node(group, &[1, 2]), node(group + 1, &[3])];
            self.other.groups.insert(group, nodes.clone());
            self.interpreter.groups.insert(group, nodes);
        }
        for (session, target) in
            [(1, MirrorTarget::Port(4)), (2, MirrorTarget::Group(1)), (5, MirrorTarget::Port(6))]
        {
            self.other.mirrors.insert(session, target);
            self.interpreter.mirrors.insert(session, target);
        }
    }

    /// A packet that the engine takes: of random bytes, or a changed sample.
    fn packet(&mut self, round: usize) -> Vec<u8> {
        let mut packet = self.random_packet(round);
        packet.resize(packet.len().max(self.limits.least), 0);
        packet
    }

    /// A packet of random bytes, or a sample with some bytes changed, cut or added.
    fn random_packet(&mut self, round: usize) -> Vec<u8> {
        let random = &mut self.random;
        if self.samples.is_empty() || random.below(4) == 0 {
            let small = random.below(3) == 0;
            let byte = |random: &mut Rng| random.next_u64() as u8 & if small { 3 } else { 0xff };
            return (0..round % 200).map(|_| byte(random)).collect();
        }
        let mut packet = self.samples[random.below(self.samples.len() as u64) as usize].clone();
        for _ in 0..random.below(4) {
            let at = random.below(packet.len().max(1) as u64) as usize;
            if let Some(byte) = packet.get_mut(at) {
                *byte = random.next_u64() as u8 & [0xff, 3, 0xf0][random.below(3) as usize];
            }
        }
        match random.below(5) {
            0 => packet.truncate(random.below(packet.len() as u64 + 1) as usize),
            1 => packet.extend((0..random.below(40)).map(|byte| byte as u8)),
            _ => {}
        }
        packet
    }

    /// A number that a field of a packet may have, or any one.
    fn number(&mut self, bits: u32) -> BigUint {
        let whole = (BigUint::from(1u8) << bits) - 1u8;
        let random = &mut self.random;
        let number = match random.below(4) {
            0 => BigUint::from(random.below(4)),
            1 if !self.samples.is_empty() => {
                let sample = &self.samples[random.below(self.samples.len() as u64) as usize];
                let from = random.below(sample.len() as u64 + 1) as usize;
                let bytes = (bits as usize).div_ceil(8).min(sample.len() - from);
                BigUint::from_bytes_be(&sample[from..from + bytes])
            }
            _ => {
                let words: Vec<u32> = (0..bits.div_ceil(32)).map(|_| random.next_u32()).collect();
                BigUint::new(words)
            }
        };
        number & whole
    }

    fn choice(&mut self, table: &TableSpec, is_default: bool) -> Option<ActionChoice> {
        let usable = |action: &millstream_p4_lower::ActionSpec| match is_default {
            true => !action.is_table_only,
            false => !action.is_default_only,
        };
        let numbers: Vec<usize> = (0..table.actions.len()).filter(|at| usable(&table.actions[*at])).collect();
        let action = *numbers.get(self.random.below(numbers.len().max(1) as u64) as usize)?;
        let arguments = table.actions[action].parameters.iter().map(|p| self.number(p.bits)).collect();
        Some(ActionChoice { action, arguments })
    }

    fn condition(&mut self, key: &KeySpec) -> EntryMatch {
        let value = self.number(key.bits);
        match key.kind {
            KeyMatch::Exact => EntryMatch::Exact(value),
            KeyMatch::Prefix => {
                let len = self.random.below(u64::from(key.bits) + 1) as u32;
                EntryMatch::Prefix(value, len)
            }
            KeyMatch::Ternary => {
                let mask = self.number(key.bits);
                EntryMatch::Ternary(value & &mask, mask)
            }
            KeyMatch::Optional if self.random.below(2) == 0 => EntryMatch::Any,
            KeyMatch::Optional => EntryMatch::Exact(value),
            KeyMatch::Range => {
                let other = self.number(key.bits);
                let (low, high) = if value <= other { (value, other) } else { (other, value) };
                EntryMatch::Range(low, high)
            }
        }
    }

    /// Changes something by the control plane.
    pub(crate) fn request(&mut self) -> Result<(), String> {
        let program = self.program.clone();
        for number in 0..program.pipeline.tables.len() {
            let table = &program.pipeline.tables[number];
            let Some(choice) = self.choice(table, false) else { continue };
            let matches = table.keys.iter().map(|key| self.condition(key)).collect();
            let group = match &table.selector {
                Some(_) if self.random.below(2) == 0 => Some(1 + self.random.below(2) as u32),
                _ => None,
            };
            let priority = self.random.below(4) as u32;
            let entry = EntrySpec { matches, choice, priority, group };
            let what = format!("{}: {entry:?}", table.name);
            match self.random.below(12) {
                0 => {
                    self.both(&what, |s| s.delete_entry(number, &entry), |s| s.delete_entry(number, &entry))?
                }
                1 => {
                    let Some(choice) = self.choice(table, true) else { continue };
                    self.both(&what, |s| s.set_default(number, &choice), |s| s.set_default(number, &choice))?;
                }
                2 if table.selector.is_some() => {
                    let count = self.random.below(4);
                    let members: Vec<_> = (0..count).filter_map(|_| self.choice(table, false)).collect();
                    let group = 1 + self.random.below(2) as u32;
                    self.both(
                        &what,
                        |s| s.set_group(number, group, &members),
                        |s| s.set_group(number, group, &members),
                    )?;
                }
                _ => self.both(&what, |s| s.set_entry(number, &entry), |s| s.set_entry(number, &entry))?,
            }
        }
        for (number, object) in program.pipeline.objects.iter().enumerate() {
            let ObjectKind::ValueSet { bits } = &object.kind else { continue };
            let count = self.random.below(4);
            let members: Vec<Vec<BigUint>> =
                (0..count).map(|_| bits.iter().map(|bits| self.number(*bits)).collect()).collect();
            self.both(
                &object.name,
                |s| s.set_value_set(number, &members),
                |s| s.set_value_set(number, &members),
            )?;
        }
        Ok(())
    }

    fn both(
        &mut self,
        what: &str,
        other: impl FnOnce(&mut Switch<E>) -> Result<(), SwitchError>,
        interpreted: impl FnOnce(&mut Switch<InterpreterExecutor>) -> Result<(), SwitchError>,
    ) -> Result<(), String> {
        let given = other(&mut self.other);
        // Without room in one, neither has the entry.
        if self.limits.has_less_room
            && matches!(given, Err(SwitchError::Executor(ExecutorError::Map(error))) if NO_ROOM.contains(&error))
        {
            return Ok(());
        }
        let expected = interpreted(&mut self.interpreter);
        match given == expected {
            true => Ok(()),
            false => Err(format!("{what}: {given:?}, interpreted {expected:?}")),
        }
    }

    /// Compares entries with their counters, registers, meters and counters.
    pub(crate) fn compare_maps(&mut self) -> Result<(), String> {
        for (map, spec) in &self.program.module.maps {
            let (other, interpreter) = (self.other.executor(), self.interpreter.executor());
            let (mut keys, mut expected) = (other.keys(map), interpreter.keys(map));
            keys.sort();
            expected.sort();
            if keys != expected {
                return Err(format!("{}: the keys differ: {keys:02x?}, {expected:02x?}", spec.name));
            }
            for key in keys.iter().take(MOST_KEYS) {
                let (value, expected) = (other.get(map, key), interpreter.get(map, key));
                if value != expected {
                    let name = &spec.name;
                    return Err(format!("{name} at {key:02x?}: {value:02x?}, interpreted {expected:02x?}"));
                }
            }
        }
        Ok(())
    }
}

/// The interpreter stops endless loops of programs, native code does not.
fn is_out_of_fuel<T>(result: &Result<T, SwitchError>) -> bool {
    matches!(result, Err(SwitchError::Executor(ExecutorError::Fault(text))) if text.contains("instructions executed"))
}
