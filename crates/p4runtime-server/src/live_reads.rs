//! Values that packets change, as controllers read them: counters and registers.

use millstream_p4_lower::{ENTRY_COUNTER, ENTRY_REST, ObjectKind, Pipeline};
use millstream_p4_switch::{Switch, SwitchExecutor, entry_key};
use millstream_p4runtime::entities::{EntityStore, canonical_bytes, canonical_signed_bytes};
use millstream_p4runtime::proto::v1::{
    CounterData, DirectCounterEntry, Entity, P4Data, RegisterEntry, TableEntry, entity, p4_data, table_entry,
};
use num_bigint::BigUint;

use crate::bindings::PipelineBindings;
use crate::executor::DynamicExecutor;
use crate::idle::IdleTracker;

/// A counter in a map: packets, then bytes.
pub(crate) fn counter_bytes(counter: CounterData) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&counter.packet_count.to_le_bytes());
    bytes[8..].copy_from_slice(&counter.byte_count.to_le_bytes());
    bytes
}

/// Reads a counter's bytes.
pub(crate) fn counter_data(bytes: &[u8]) -> Option<CounterData> {
    let packets = bytes.first_chunk::<8>()?;
    let count = bytes.get(8..)?.first_chunk::<8>()?;
    Some(CounterData { packet_count: i64::from_le_bytes(*packets), byte_count: i64::from_le_bytes(*count) })
}

/// Number of a register's value in its width, two's complement if it is signed; structures have none.
pub(crate) fn register_number(data: &P4Data, bits: u32, is_signed: bool) -> Option<BigUint> {
    match data.data.as_ref()? {
        p4_data::Data::Bitstring(bytes) => {
            let ones = (BigUint::from(1u8) << bits) - 1u8;
            let is_negative = is_signed && bytes.first().is_some_and(|first| first & 0x80 != 0);
            let number = BigUint::from_bytes_be(bytes);
            let above = (bytes.len() as u64 * 8).min(u64::from(bits));
            let sign = if is_negative { (&ones >> above) << above } else { BigUint::ZERO };
            Some((number | sign) & ones)
        }
        p4_data::Data::EnumValue(bytes) => Some(BigUint::from_bytes_be(bytes)),
        p4_data::Data::Bool(value) => Some(BigUint::from(u8::from(*value))),
        _ => None,
    }
}

/// A register's value as data of the kind that the register has.
fn register_data(kind: &P4Data, bytes: &[u8], (bits, is_signed): (u32, bool)) -> Option<P4Data> {
    let number = BigUint::from_bytes_le(bytes);
    let data = match kind.data.as_ref()? {
        p4_data::Data::Bitstring(_) => p4_data::Data::Bitstring(number_bytes(&number, bits, is_signed)?),
        p4_data::Data::EnumValue(_) => p4_data::Data::EnumValue(number_bytes(&number, bits, false)?),
        p4_data::Data::Bool(_) => p4_data::Data::Bool(number != BigUint::ZERO),
        _ => return None,
    };
    Some(P4Data { data: Some(data) })
}

/// Canonical bytes of a number of `bits` bits.
pub(crate) fn number_bytes(number: &BigUint, bits: u32, is_signed: bool) -> Option<Vec<u8>> {
    if !is_signed {
        return canonical_bytes(&number.to_bytes_be(), bits).ok();
    }
    let whole = u64::from(bits.next_multiple_of(8));
    let is_negative = bits > 0 && number.bit(u64::from(bits) - 1);
    let sign = match is_negative {
        true => ((BigUint::from(1u8) << whole) - 1u8) >> bits << bits,
        false => BigUint::ZERO,
    };
    let mut bytes = vec![0];
    if is_negative {
        bytes.clear();
    }
    bytes.extend((number | sign).to_bytes_be());
    canonical_signed_bytes(&bytes, bits).ok()
}

/// Reader of what packets have changed.
pub(crate) struct LiveReader<'c> {
    pub(crate) pipeline: &'c Pipeline,
    pub(crate) bindings: &'c PipelineBindings,
    pub(crate) store: &'c EntityStore,
    pub(crate) switch: &'c mut Switch<DynamicExecutor>,
    pub(crate) idle: &'c IdleTracker,
}

impl LiveReader<'_> {
    /// Puts the switch's values into an entity that the store gave.
    pub(crate) fn refresh(&mut self, entity: &mut Entity) {
        match entity.entity.as_mut() {
            Some(entity::Entity::CounterEntry(entry)) => {
                let index = entry.index.as_ref().map_or(0, |index| index.index);
                if let Some(data) = self.cell(entry.counter_id, index).and_then(|bytes| counter_data(&bytes))
                {
                    entry.data = Some(data);
                }
            }
            Some(entity::Entity::RegisterEntry(entry)) => self.refresh_register(entry),
            Some(entity::Entity::TableEntry(entry)) => self.refresh_entry(entry),
            Some(entity::Entity::DirectCounterEntry(DirectCounterEntry { table_entry, data })) => {
                if let Some(found) = table_entry.as_ref().and_then(|entry| self.entry_counter(entry)) {
                    *data = Some(found);
                }
            }
            _ => {}
        }
    }

    fn cell(&mut self, id: u32, index: i64) -> Option<Vec<u8>> {
        let (_, map) = self.bindings.object(self.pipeline, id).ok()?;
        self.switch.executor().get(map, &u32::try_from(index).ok()?.to_le_bytes())
    }

    fn refresh_register(&mut self, entry: &mut RegisterEntry) {
        let index = entry.index.as_ref().map_or(0, |index| index.index);
        let Ok((object, _)) = self.bindings.object(self.pipeline, entry.register_id) else { return };
        let ObjectKind::Register { bits: Some(bits), .. } = object.kind else { return };
        let bytes = self.cell(entry.register_id, index);
        let width = (bits, self.bindings.is_signed(entry.register_id));
        let found = bytes.zip(entry.data.as_ref());
        let found = found.and_then(|(bytes, kind)| register_data(kind, &bytes, width));
        if let Some(data) = found {
            entry.data = Some(data);
        }
    }

    fn refresh_entry(&mut self, entry: &mut TableEntry) {
        if entry.counter_data.is_some()
            && let Some(found) = self.entry_counter(entry)
        {
            entry.counter_data = Some(found);
        }
        if entry.time_since_last_hit.is_some()
            && let Ok(key) = self.store.key_of(entry)
        {
            let elapsed_ns = self.idle.elapsed(entry.table_id, &key).unwrap_or(0);
            entry.time_since_last_hit = Some(table_entry::IdleTimeout { elapsed_ns });
        }
    }

    /// Counter of an entry or default action.
    pub(crate) fn entry_counter(&mut self, entry: &TableEntry) -> Option<CounterData> {
        let (bound, spec) = self.bindings.table(self.pipeline, entry.table_id).ok()?;
        let value = match entry.is_default_action {
            true => self.switch.executor().get(spec.default_map, &[0; 4])?,
            false => {
                let key = self.store.key_of(entry).ok()?;
                let key = entry_key(spec, &bound.entry_spec(spec, &key)).ok()?;
                self.switch.executor().get(spec.map, &key)?
            }
        };
        match spec.counter {
            Some(_) => counter_data(value.get(ENTRY_COUNTER as usize..ENTRY_REST as usize)?),
            None => Some(CounterData::default()),
        }
    }
}
