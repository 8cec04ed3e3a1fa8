//! Runs the commands of a file on a switch, and compares the packets that leave with those that are expected.

use std::collections::{BTreeMap, VecDeque};

use millstream_ir::Map;
use millstream_p4_lower::{
    ActionChoice, Architecture, EntryMatch, EntrySpec, KeyMatch, KeySpec, ObjectKind, ObjectSpec, Pipeline,
    TableSpec, meter_layout,
};
use num_bigint::BigUint;

use super::parse::{CounterCheck, ExpectedData, StfCommand, StfEntry, StfLine};
use super::values::StfValue;
use crate::executor::SwitchExecutor;
use crate::switch::{MirrorTarget, MulticastNode, Switch};

/// First difference, or first command that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", line.map_or("end of the test".to_owned(), |line| format!("line {line}")))]
pub struct StfFailure {
    /// Line of the command or expectation; none for packets that nothing expects.
    pub line: Option<usize>,
    /// Difference or reason.
    pub message: String,
}

/// Runs a file's commands.
///
/// # Errors
/// [`StfFailure`]: the first command that failed, or the first difference.
pub fn run_stf<E: SwitchExecutor>(switch: &mut Switch<E>, lines: &[StfLine]) -> Result<(), StfFailure> {
    let mut run = StfRun { switch, expected: BTreeMap::new(), sent: BTreeMap::new(), nodes: Vec::new() };
    for line in lines {
        run.command(line).map_err(|message| StfFailure { line: Some(line.line), message })?;
    }
    run.compare()
}

struct StfRun<'s, E> {
    switch: &'s mut Switch<E>,
    expected: BTreeMap<u64, Vec<(usize, Option<ExpectedData>)>>,
    sent: BTreeMap<u64, VecDeque<Vec<u8>>>,
    nodes: Vec<MulticastNode>,
}

/// Finds the one name that ends with `wanted`, at a dot.
fn find_name<'n>(names: impl Iterator<Item = &'n str>, wanted: &str) -> Result<usize, String> {
    let names: Vec<&str> = names.collect();
    let plain = find_dotted(&names, wanted);
    if plain.is_ok() || !wanted.contains('_') {
        return plain;
    }
    // Names of C code: underscores in place of dots, also in front of a global name.
    let wanted = wanted.trim_start_matches('_');
    let same = |name: &&&str| name.replace('.', "_") == wanted;
    match names.iter().enumerate().find(|(_, name)| same(name)) {
        Some((index, _)) => Ok(index),
        None => plain,
    }
}

fn find_dotted(names: &[&str], wanted: &str) -> Result<usize, String> {
    let wanted = normalized(wanted);
    let mut found = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let name = normalized(name);
        if name == wanted {
            return Ok(index);
        }
        if name.ends_with(&format!(".{wanted}")) {
            found.push(index);
        }
    }
    match found[..] {
        [one] => Ok(one),
        [] => Err(format!("there is no `{wanted}`")),
        _ => Err(format!("`{wanted}` may stand for several names")),
    }
}

/// Writes indexes of stacks as `$N`, and validity as `$valid$`.
fn normalized(name: &str) -> String {
    let name = name.replace('[', "$").replace(']', "");
    match name.strip_suffix(".$valid") {
        Some(header) => format!("{header}.$valid$"),
        None => name,
    }
}

impl<E: SwitchExecutor> StfRun<'_, E> {
    fn command(&mut self, line: &StfLine) -> Result<(), String> {
        match &line.command {
            StfCommand::Packet(port, data) => {
                let sent = self.switch.receive(*port, data).map_err(|error| error.to_string())?;
                for packet in sent {
                    self.sent.entry(packet.port).or_default().push_back(packet.data);
                }
                Ok(())
            }
            StfCommand::Expect(port, data) => {
                self.expected.entry(*port).or_default().push((line.line, data.clone()));
                Ok(())
            }
            StfCommand::Add(entry) => self.add(entry),
            StfCommand::SetDefault(entry) => {
                let (number, table) = self.table(&entry.table)?;
                let choice = choice(&table, entry)?;
                self.switch.set_default(number, &choice).map_err(|error| error.to_string())
            }
            StfCommand::RemoveAll => self.switch.clear_entries().map_err(|error| error.to_string()),
            StfCommand::CheckCounter(check) => self.check_counter(check),
            StfCommand::Wait => Ok(()),
            StfCommand::Words(words) => self.words(words),
        }
    }

    fn table(&self, name: &str) -> Result<(usize, TableSpec), String> {
        let tables = &self.switch.pipeline().tables;
        let number = find_name(tables.iter().map(|table| table.name.as_str()), name)?;
        Ok((number, tables[number].clone()))
    }

    fn add(&mut self, entry: &StfEntry) -> Result<(), String> {
        let (number, table) = self.table(&entry.table)?;
        let mut matches: Vec<EntryMatch> = table.keys.iter().map(missing).collect();
        for (name, value) in &entry.keys {
            let at = key_position(&table, name)?;
            let swaps = self.switch.pipeline().architecture == Architecture::Filter;
            let value = if swaps { memory_order(&table.keys[at], value) } else { value.clone() };
            matches[at] = condition(&table.keys[at], &value)?;
        }
        let priority = entry.priority.unwrap_or(0);
        let spec = EntrySpec { matches, choice: choice(&table, entry)?, priority, group: None };
        self.switch.set_entry(number, &spec).map_err(|error| error.to_string())
    }

    fn words(&mut self, words: &[String]) -> Result<(), String> {
        let number = |at: usize| -> Result<u64, String> {
            let word = words.get(at).ok_or("a number is missing")?;
            word.parse().map_err(|_| format!("`{word}` is no number"))
        };
        match words[0].to_lowercase().as_str() {
            "mirroring_add" => {
                self.switch.mirrors.insert(number(1)?, MirrorTarget::Port(number(2)?));
            }
            "mirroring_add_mc" => {
                self.switch.mirrors.insert(number(1)?, MirrorTarget::Group(number(2)?));
            }
            "mirroring_delete" => {
                self.switch.mirrors.remove(&number(1)?);
            }
            "mc_mgrp_create" => {
                self.switch.groups.entry(number(1)?).or_default();
            }
            "mc_node_create" => {
                let ports = (2..words.len()).map(number).collect::<Result<_, _>>()?;
                self.nodes.push(MulticastNode { replica: number(1)?, ports });
            }
            "mc_node_associate" => {
                let node = self.nodes.get(number(2)? as usize).cloned().ok_or("there is no such node")?;
                self.switch.groups.entry(number(1)?).or_default().push(node);
            }
            "mirroring_get" => {
                self.switch.mirrors.get(&number(1)?).ok_or("there is no such session")?;
            }
            "register_read" | "counter_read" | "meter_get_rates" => {
                self.element(words.get(1).ok_or("a name is missing")?, number(2)?)?;
            }
            "meter_set_rates" => {
                let name = words.get(1).ok_or("a name is missing")?;
                self.set_rates(name, Some(number(2)?), words.get(3..).unwrap_or_default())?;
            }
            "meter_array_set_rates" => {
                let name = words.get(1).ok_or("a name is missing")?;
                self.set_rates(name, None, words.get(2..).unwrap_or_default())?;
            }
            "register_write" => {
                let name = words.get(1).ok_or("a name is missing")?;
                self.write_register(name, Some(number(2)?), number(3)?)?;
            }
            "register_reset" => self.write_register(words.get(1).ok_or("a name is missing")?, None, 0)?,
            other => return Err(format!("the command `{other}` is not supported")),
        }
        Ok(())
    }

    /// The object of a name with its map.
    fn object(&self, name: &str) -> Result<(ObjectSpec, Map), String> {
        let objects = &self.switch.pipeline().objects;
        let at = find_name(objects.iter().map(|object| object.name.as_str()), name)?;
        let object = objects[at].clone();
        let map = object.map.ok_or_else(|| format!("`{name}` has no elements"))?;
        Ok((object, map))
    }

    /// Bytes of an element of an object.
    fn element(&mut self, name: &str, index: u64) -> Result<Vec<u8>, String> {
        let (_, map) = self.object(name)?;
        let index = u32::try_from(index).map_err(|_| "the index is out of range")?;
        self.switch.executor().get(map, &index.to_le_bytes()).ok_or("the index is out of range".into())
    }

    /// Sets the rates of a meter, or of all: `RATE:BURST` twice, in units per microsecond and units.
    fn set_rates(&mut self, name: &str, index: Option<u64>, rates: &[String]) -> Result<(), String> {
        let (object, map) = self.object(name)?;
        let ObjectKind::Meter { .. } = object.kind else { return Err(format!("`{name}` is no meter")) };
        let [committed, peak] = rates else { return Err("expected two rates".into()) };
        let (committed, peak) = (rate_of(committed)?, rate_of(peak)?);
        let indexes = match index {
            Some(index) => index..index.saturating_add(1),
            None => 0..u64::from(object.size),
        };
        for index in indexes {
            let mut bytes = self.element(name, index)?;
            let mut put = |offset: u32, value: u64| {
                if let Some(part) = bytes.get_mut(offset as usize..offset as usize + 8) {
                    part.copy_from_slice(&value.to_le_bytes());
                }
            };
            put(meter_layout::COMMITTED_RATE, committed.0);
            put(meter_layout::COMMITTED_BURST, committed.1);
            put(meter_layout::COMMITTED_TOKENS, committed.1.saturating_mul(meter_layout::TOKEN_SCALE));
            put(meter_layout::PEAK_RATE, peak.0);
            put(meter_layout::PEAK_BURST, peak.1);
            put(meter_layout::PEAK_TOKENS, peak.1.saturating_mul(meter_layout::TOKEN_SCALE));
            let key = (index as u32).to_le_bytes();
            self.switch.executor().set(map, &key, &bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn write_register(&mut self, name: &str, index: Option<u64>, value: u64) -> Result<(), String> {
        let (object, map) = self.object(name)?;
        let ObjectKind::Register { bits, .. } = object.kind else {
            return Err(format!("`{name}` is no register"));
        };
        if let Some(bits) = bits
            && bits < u64::BITS
            && value >> bits != 0
        {
            return Err(format!("`{name}` has {bits} bits, {value} has more"));
        }
        let indexes = match index {
            Some(index) => index..index.saturating_add(1),
            None => 0..u64::from(object.size),
        };
        for index in indexes {
            let index = u32::try_from(index).map_err(|_| "the index is out of range")?;
            let executor = self.switch.executor();
            let old = executor.get(map, &index.to_le_bytes()).ok_or("the index is out of range")?;
            let mut bytes = vec![0; old.len()];
            for (to, from) in bytes.iter_mut().zip(value.to_le_bytes()) {
                *to = from;
            }
            executor.set(map, &index.to_le_bytes(), &bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn check_counter(&mut self, check: &CounterCheck) -> Result<(), String> {
        let pipeline: &Pipeline = self.switch.pipeline();
        let at = find_name(pipeline.objects.iter().map(|object| object.name.as_str()), &check.name)?;
        let object = pipeline.objects[at].clone();
        let index = check.index.unwrap_or(0);
        let map = object.map.ok_or("direct counters cannot be checked by STF")?;
        let value = self.switch.executor().get(map, &index.to_le_bytes()).ok_or("no such counter")?;
        let from = if check.is_bytes { 8 } else { 0 };
        let word = value.get(from..from + 8).and_then(|bytes| bytes.first_chunk()).ok_or("no counter")?;
        let found = u64::from_le_bytes(*word);
        let holds = match check.comparison.as_str() {
            "==" => found == check.number,
            "!=" => found != check.number,
            "<" => found < check.number,
            "<=" => found <= check.number,
            ">" => found > check.number,
            _ => found >= check.number,
        };
        match holds {
            true => Ok(()),
            false => Err(format!("the counter {} is {found}", object.name)),
        }
    }

    /// Compares what left with what was expected, by port.
    fn compare(mut self) -> Result<(), StfFailure> {
        for (port, list) in &self.expected {
            for (line, data) in list {
                let fail = |message| Err(StfFailure { line: Some(*line), message });
                let Some(packet) = self.sent.get_mut(port).and_then(VecDeque::pop_front) else {
                    let others: Vec<String> = self
                        .sent
                        .iter()
                        .filter(|(_, packets)| !packets.is_empty())
                        .map(|(port, packets)| format!("{port}: {}", hex::encode(&packets[0])))
                        .collect();
                    let others = if others.is_empty() { "none elsewhere".into() } else { others.join(", ") };
                    return fail(format!("no packet left by port {port} ({others})"));
                };
                if let Some(data) = data
                    && !fits(data, &packet)
                {
                    return fail(format!("port {port} sent {}", hex::encode(&packet)));
                }
            }
        }
        for (port, packets) in &self.sent {
            if let Some(packet) = packets.front() {
                let message =
                    format!("port {port} sent a packet that was not expected: {}", hex::encode(packet));
                return Err(StfFailure { line: None, message });
            }
        }
        Ok(())
    }
}

/// Rate in units per second, and burst.
fn rate_of(text: &str) -> Result<(u64, u64), String> {
    let error = || format!("`{text}` is no RATE:BURST");
    let (rate, burst) = text.split_once(':').ok_or_else(error)?;
    let rate: f64 = rate.parse().map_err(|_| error())?;
    let burst = burst.parse().map_err(|_| error())?;
    match rate.is_finite() && rate >= 0.0 {
        true => Ok(((rate * 1e6).round() as u64, burst)),
        false => Err(error()),
    }
}

fn fits(expected: &ExpectedData, packet: &[u8]) -> bool {
    let nibbles: Vec<u8> = packet.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
    let is_long_enough = match expected.is_exact {
        true => nibbles.len() == expected.nibbles.len(),
        false => nibbles.len() >= expected.nibbles.len(),
    };
    is_long_enough
        && expected.nibbles.iter().zip(&nibbles).all(|(wanted, found)| wanted.is_none_or(|w| w == *found))
}

/// Finds an element of a key by its name, by its position (`key.fieldN`), or by its C name (`key.a_b`).
fn key_position(table: &TableSpec, name: &str) -> Result<usize, String> {
    let plain = name.strip_prefix("key.");
    let number = plain.and_then(|name| name.strip_prefix("field")).and_then(|n| n.parse::<usize>().ok());
    let keys = || table.keys.iter().map(|key| key.name.as_str());
    match number.filter(|number| *number < table.keys.len()) {
        Some(number) => Ok(number),
        None => {
            find_name(keys(), name).or_else(|error| plain.map_or(Err(error), |name| find_name(keys(), name)))
        }
    }
}

/// Tests of the eBPF model write prefixes as the little-endian number that has the bytes of the key.
fn memory_order(key: &KeySpec, value: &StfValue) -> StfValue {
    match (key.kind, value) {
        (KeyMatch::Prefix, StfValue::Prefix(value, len)) => {
            let mut bytes = value.to_bytes_le();
            bytes.resize(key.size as usize, 0);
            StfValue::Prefix(BigUint::from_bytes_be(&bytes), *len)
        }
        _ => value.clone(),
    }
}

/// Condition of an element that is not named.
fn missing(key: &KeySpec) -> EntryMatch {
    match key.kind {
        KeyMatch::Exact => EntryMatch::Exact(BigUint::ZERO),
        KeyMatch::Prefix => EntryMatch::Prefix(BigUint::ZERO, 0),
        _ => EntryMatch::Any,
    }
}

fn condition(key: &KeySpec, value: &StfValue) -> Result<EntryMatch, String> {
    let all = (BigUint::from(1u8) << key.bits) - 1u8;
    Ok(match (key.kind, value) {
        (KeyMatch::Exact | KeyMatch::Range | KeyMatch::Optional, StfValue::Number(value)) => {
            EntryMatch::Exact(value.clone())
        }
        (KeyMatch::Prefix, StfValue::Number(value)) => EntryMatch::Prefix(value.clone(), key.bits),
        (KeyMatch::Ternary, StfValue::Number(value)) => EntryMatch::Ternary(value.clone(), all),
        (KeyMatch::Ternary, StfValue::Ternary(value, mask)) => {
            EntryMatch::Ternary(value.clone(), mask.clone())
        }
        (KeyMatch::Ternary | KeyMatch::Prefix, StfValue::Prefix(value, len)) => {
            EntryMatch::Prefix(value.clone(), *len)
        }
        (KeyMatch::Prefix, StfValue::Masked(value, mask, bits)) => {
            let len = mask.count_ones() as u32 + key.bits.saturating_sub(*bits);
            EntryMatch::Prefix(value.clone(), if *bits == 0 { 0 } else { len.min(key.bits) })
        }
        (KeyMatch::Ternary, StfValue::Masked(value, mask, _)) => {
            EntryMatch::Ternary(value.clone(), mask.clone() & all)
        }
        (KeyMatch::Optional, StfValue::Masked(_, mask, _)) if *mask == BigUint::ZERO => EntryMatch::Any,
        (KeyMatch::Range, StfValue::Range(low, high)) => EntryMatch::Range(low.clone(), high.clone()),
        _ => return Err(format!("the key `{}` cannot match this way", key.name)),
    })
}

fn choice(table: &TableSpec, entry: &StfEntry) -> Result<ActionChoice, String> {
    let number = find_name(table.actions.iter().map(|action| action.name.as_str()), &entry.action)?;
    let action = &table.actions[number];
    let mut arguments = vec![None; action.parameters.len()];
    for (name, value) in &entry.arguments {
        let at = find_name(action.parameters.iter().map(|parameter| parameter.name.as_str()), name)?;
        arguments[at] = Some(value.clone());
    }
    if entry.arguments.is_empty() {
        // Tests of the eBPF model leave out arguments: they are zero.
        arguments.fill(Some(BigUint::ZERO));
    }
    let arguments: Option<Vec<BigUint>> = arguments.into_iter().collect();
    match arguments {
        Some(arguments) => Ok(ActionChoice { action: number, arguments }),
        None => Err(format!("an argument of `{}` is missing", action.name)),
    }
}
