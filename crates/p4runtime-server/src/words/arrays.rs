//! Commands about counters, meters and registers.

use std::sync::Arc;

use millstream_p4runtime::proto::v1::{
    CounterData, CounterEntry, DirectCounterEntry, Index, MeterConfig, MeterEntry, P4Data, RegisterEntry,
    TableEntry, entity, p4_data, update,
};
use num_bigint::BigUint;

use super::{CommandResult, at_least, exactly, number, read, write};
use crate::controlled::ControlledSwitch;
use crate::names::{find, id_of};
use crate::values::parse_value;

/// Counter that a command names.
enum CounterPlace {
    /// A cell.
    Cell(u32, i64),
    /// Entry of a table.
    Entry(Box<TableEntry>),
}

/// Finds a cell, or the entry whose direct counter is meant: its index is a handle.
fn counter_place(switch: &ControlledSwitch, name: &str, index: &str) -> Result<CounterPlace, String> {
    let program = Arc::clone(switch.program());
    let info = &program.description.info;
    let found = find(&info.counters, name);
    if let Ok(counter) = found {
        return Ok(CounterPlace::Cell(id_of(counter), number(index)?));
    }
    let Ok(direct) = find(&info.direct_counters, name) else { return Err(found.err().unwrap_or_default()) };
    let table = direct.direct_table_id;
    let key = switch.handles.key(table, number(index)?)?;
    let named = switch.store.named(table, &key);
    Ok(CounterPlace::Entry(Box::new(named.ok_or_else(|| format!("no entry has the handle {index}"))?)))
}

pub(super) fn read_counter(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name, index] = exactly(arguments)?;
    let request = match counter_place(switch, name, index)? {
        CounterPlace::Cell(counter_id, index) => entity::Entity::CounterEntry(CounterEntry {
            counter_id,
            index: Some(Index { index }),
            data: None,
        }),
        CounterPlace::Entry(entry) => {
            entity::Entity::DirectCounterEntry(DirectCounterEntry { table_entry: Some(*entry), data: None })
        }
    };
    let data = match read(switch, request)?.into_iter().next() {
        Some(entity::Entity::CounterEntry(entry)) => entry.data,
        Some(entity::Entity::DirectCounterEntry(entry)) => entry.data,
        _ => None,
    };
    let CounterData { byte_count, packet_count } = data.unwrap_or_default();
    Ok(format!("{name}[{index}]= ({byte_count} bytes, {packet_count} packets)"))
}

pub(super) fn write_counter(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name, index, packets, bytes] = exactly(arguments)?;
    let data = Some(CounterData { packet_count: number(packets)?, byte_count: number(bytes)? });
    let entity = match counter_place(switch, name, index)? {
        CounterPlace::Cell(counter_id, index) => {
            entity::Entity::CounterEntry(CounterEntry { counter_id, index: Some(Index { index }), data })
        }
        CounterPlace::Entry(entry) => {
            entity::Entity::DirectCounterEntry(DirectCounterEntry { table_entry: Some(*entry), data })
        }
    };
    write(switch, update::Type::Modify, entity)?;
    Ok(String::new())
}

pub(super) fn reset_counter(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let counter_id = id_of(find(&program.description.info.counters, name)?);
    let entry = CounterEntry { counter_id, index: None, data: Some(CounterData::default()) };
    write(switch, update::Type::Modify, entity::Entity::CounterEntry(entry))?;
    Ok(String::new())
}

/// Rate in units per microsecond, and burst: `RATE:BURST`.
fn rate_of(text: &str) -> Result<(i64, i64), String> {
    let wrong = || format!("`{text}` is no RATE:BURST");
    let (rate, burst) = text.split_once(':').ok_or_else(wrong)?;
    let rate: f64 = rate.parse().map_err(|_| wrong())?;
    let burst = burst.parse().map_err(|_| wrong())?;
    match rate.is_finite() && (0.0..9e12).contains(&rate) {
        true => Ok(((rate * 1e6).round() as i64, burst)),
        false => Err(wrong()),
    }
}

fn config_of(rates: &[&str]) -> Result<MeterConfig, String> {
    let [committed, peak] = exactly(rates)?;
    let ((cir, cburst), (pir, pburst)) = (rate_of(committed)?, rate_of(peak)?);
    Ok(MeterConfig { cir, cburst, pir, pburst, ..MeterConfig::default() })
}

fn write_rates(
    switch: &mut ControlledSwitch,
    name: &str,
    index: Option<i64>,
    rates: &[&str],
) -> CommandResult {
    let program = Arc::clone(switch.program());
    let meter_id = id_of(find(&program.description.info.meters, name)?);
    let index = index.map(|index| Index { index });
    let entry = MeterEntry { meter_id, index, config: Some(config_of(rates)?), counter_data: None };
    write(switch, update::Type::Modify, entity::Entity::MeterEntry(entry))?;
    Ok(String::new())
}

pub(super) fn set_rates(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([name, index], rates) = at_least(arguments)?;
    write_rates(switch, name, Some(number(index)?), rates)
}

pub(super) fn set_all_rates(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([name], rates) = at_least(arguments)?;
    write_rates(switch, name, None, rates)
}

pub(super) fn get_rates(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name, index] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let meter_id = id_of(find(&program.description.info.meters, name)?);
    let index = Some(Index { index: number(index)? });
    let request = MeterEntry { meter_id, index, ..MeterEntry::default() };
    let config = match read(switch, entity::Entity::MeterEntry(request))?.into_iter().next() {
        Some(entity::Entity::MeterEntry(entry)) => entry.config,
        _ => None,
    };
    let Some(MeterConfig { cir, cburst, pir, pburst, .. }) = config else {
        return Ok("no rates are set".to_owned());
    };
    let rate = |rate: i64| rate as f64 / 1e6;
    Ok(format!(
        "0: info rate = {}, burst size = {cburst}\n1: info rate = {}, burst size = {pburst}",
        rate(cir),
        rate(pir)
    ))
}

/// Id of a register.
fn register_id(switch: &ControlledSwitch, name: &str) -> Result<u32, String> {
    find(&switch.program().description.info.registers, name).map(id_of)
}

/// Text of a register's value.
fn data_text(data: Option<&P4Data>) -> String {
    match data.and_then(|data| data.data.as_ref()) {
        Some(p4_data::Data::Bitstring(bytes) | p4_data::Data::EnumValue(bytes)) => {
            BigUint::from_bytes_be(bytes).to_string()
        }
        Some(p4_data::Data::Bool(value)) => u8::from(*value).to_string(),
        _ => "?".to_owned(),
    }
}

pub(super) fn read_register(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([name], rest) = at_least(arguments)?;
    let index = match rest {
        [] => None,
        [index] => Some(Index { index: number(index)? }),
        _ => return Err(super::USAGE.to_owned()),
    };
    let register_id = register_id(switch, name)?;
    let found =
        read(switch, entity::Entity::RegisterEntry(RegisterEntry { register_id, index, data: None }))?;
    let values = found.iter().map(|entity| match entity {
        entity::Entity::RegisterEntry(entry) => data_text(entry.data.as_ref()),
        _ => String::new(),
    });
    let values: Vec<String> = values.collect();
    Ok(match index {
        Some(Index { index }) => format!("{name}[{index}]= {}", values.join(", ")),
        None => format!("{name}= {}", values.join(", ")),
    })
}

/// A value of the kind that a register has.
fn register_value(switch: &ControlledSwitch, id: u32, text: &str) -> Result<P4Data, String> {
    let value = parse_value(text, 0, "the register")?;
    let kind = switch.store.register_cell(id, 0).and_then(|data| data.data.as_ref());
    let bytes = value.to_bytes_be();
    let data = match kind {
        Some(p4_data::Data::Bool(_)) => p4_data::Data::Bool(value != BigUint::ZERO),
        Some(p4_data::Data::EnumValue(_)) => p4_data::Data::EnumValue(bytes),
        Some(p4_data::Data::Bitstring(_)) => p4_data::Data::Bitstring(bytes),
        _ => return Err("registers of structures are not supported".to_owned()),
    };
    Ok(P4Data { data: Some(data) })
}

fn set_register(
    switch: &mut ControlledSwitch,
    register_id: u32,
    index: Option<i64>,
    value: &str,
) -> CommandResult {
    let data = Some(register_value(switch, register_id, value)?);
    let index = index.map(|index| Index { index });
    let entry = RegisterEntry { register_id, index, data };
    write(switch, update::Type::Modify, entity::Entity::RegisterEntry(entry))?;
    Ok(String::new())
}

pub(super) fn write_register(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name, index, value] = exactly(arguments)?;
    let id = register_id(switch, name)?;
    set_register(switch, id, Some(number(index)?), value)
}

pub(super) fn reset_register(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name] = exactly(arguments)?;
    let id = register_id(switch, name)?;
    set_register(switch, id, None, "0")
}
