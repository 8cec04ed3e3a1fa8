//! Counters, meters and registers with an index. Source: P4Runtime specification 1.4, sections 9.3, 9.4 and
//! 9.7.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::entities::data::read_data;
use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::meters::{check_meter, no_color_counters};
use crate::entities::pipeline::ArrayShape;
use crate::entities::state::{
    CellArray, EmitEntity, EntityStore, ReadResult, UndoStep, UpdateKind, only_modify,
};
use crate::proto::v1::{CounterEntry, Index, MeterEntry, RegisterEntry, entity};

/// Change of an array: what was there before.
enum ArrayChange<T> {
    Whole(CellArray<T>),
    Cell(i64, Option<T>),
}

fn change<T: Clone>(
    arrays: &mut BTreeMap<u32, CellArray<T>>,
    id: u32,
    at: Option<i64>,
    value: T,
) -> ArrayChange<T> {
    let array = arrays.entry(id).or_insert_with(|| CellArray::new(value.clone()));
    match at {
        Some(at) => ArrayChange::Cell(at, array.cells.insert(at, value)),
        None => ArrayChange::Whole(std::mem::replace(array, CellArray::new(value))),
    }
}

fn shape_of<'s, T>(
    shapes: &'s BTreeMap<u32, ArrayShape<T>>,
    id: u32,
    what: &str,
) -> Result<&'s ArrayShape<T>, EntityError> {
    shapes.get(&id).ok_or_else(|| EntityError::invalid(format!("no {what} has the id {id:#x}")))
}

/// Reads an index; none stands for all cells.
fn read_index<T>(shape: &ArrayShape<T>, index: Option<&Index>) -> Result<Option<i64>, EntityError> {
    match index.map(|index| index.index) {
        Some(..0) => Err(EntityError::invalid("an index cannot be negative")),
        Some(at) if at >= shape.size => {
            let message = format!("`{}` has {} cells, and none with the index {at}", shape.name, shape.size);
            Err(EntityError::new(ErrorKind::OutOfRange, message))
        }
        at => Ok(at),
    }
}

/// Visits the cells that a request selects: one, those of one array, or of all arrays.
fn visit_cells<S, T: Clone>(
    shapes: &BTreeMap<u32, ArrayShape<S>>,
    arrays: &BTreeMap<u32, CellArray<T>>,
    (id, index, what): (u32, Option<&Index>, &str),
    visit: &mut dyn FnMut(u32, i64, &T) -> ControlFlow<()>,
) -> ReadResult {
    let mut all = |id: u32, shape: &ArrayShape<S>, at: Option<i64>| {
        let Some(array) = arrays.get(&id) else { return ControlFlow::Continue(()) };
        match at {
            Some(at) => visit(id, at, array.get(at)),
            None => (0..shape.size).try_for_each(|at| visit(id, at, array.get(at))),
        }
    };
    if id == 0 {
        return Ok(shapes.iter().try_for_each(|(id, shape)| all(*id, shape, None)));
    }
    let shape = shape_of(shapes, id, what)?;
    Ok(all(id, shape, read_index(shape, index)?))
}

pub(crate) fn write_counter(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &CounterEntry,
) -> Result<Option<UndoStep>, EntityError> {
    only_modify(kind, "a counter")?;
    let id = given.counter_id;
    let at = read_index(shape_of(&store.index.counters, id, "counter")?, given.index.as_ref())?;
    let Some(data) = given.data else { return Ok(None) };
    Ok(Some(match change(&mut store.counters, id, at, data) {
        ArrayChange::Whole(array) => UndoStep::Counters(id, array),
        ArrayChange::Cell(at, cell) => UndoStep::Counter(id, at, cell),
    }))
}

pub(crate) fn read_counters(
    store: &EntityStore,
    request: &CounterEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let selected = (request.counter_id, request.index.as_ref(), "counter");
    visit_cells(&store.index.counters, &store.counters, selected, &mut |counter_id, index, data| {
        let index = Some(Index { index });
        emit(entity::Entity::CounterEntry(CounterEntry { counter_id, index, data: Some(*data) }))
    })
}

pub(crate) fn write_meter(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &MeterEntry,
) -> Result<UndoStep, EntityError> {
    only_modify(kind, "a meter")?;
    let id = given.meter_id;
    let shape = shape_of(&store.index.meters, id, "meter")?;
    let at = read_index(shape, given.index.as_ref())?;
    if given.counter_data.is_some() {
        return Err(no_color_counters());
    }
    check_meter(shape.cell, given.config.as_ref())?;
    Ok(match change(&mut store.meters, id, at, given.config) {
        ArrayChange::Whole(array) => UndoStep::Meters(id, array),
        ArrayChange::Cell(at, cell) => UndoStep::Meter(id, at, cell),
    })
}

pub(crate) fn read_meters(
    store: &EntityStore,
    request: &MeterEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    if request.counter_data.is_some() {
        return Err(no_color_counters());
    }
    let selected = (request.meter_id, request.index.as_ref(), "meter");
    visit_cells(&store.index.meters, &store.meters, selected, &mut |meter_id, index, config| {
        let index = Some(Index { index });
        let entry = MeterEntry { meter_id, index, config: *config, counter_data: None };
        emit(entity::Entity::MeterEntry(entry))
    })
}

pub(crate) fn write_register(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &RegisterEntry,
) -> Result<UndoStep, EntityError> {
    only_modify(kind, "a register")?;
    let id = given.register_id;
    let shape = shape_of(&store.index.registers, id, "register")?;
    let at = read_index(shape, given.index.as_ref())?;
    let data = given.data.as_ref().ok_or_else(|| EntityError::invalid("the register's value is missing"))?;
    let data = read_data(&shape.cell, data, &store.index.types)?;
    Ok(match change(&mut store.registers, id, at, data) {
        ArrayChange::Whole(array) => UndoStep::Registers(id, array),
        ArrayChange::Cell(at, cell) => UndoStep::Register(id, at, cell),
    })
}

pub(crate) fn read_registers(
    store: &EntityStore,
    request: &RegisterEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let selected = (request.register_id, request.index.as_ref(), "register");
    visit_cells(&store.index.registers, &store.registers, selected, &mut |register_id, index, data| {
        let index = Some(Index { index });
        let entry = RegisterEntry { register_id, index, data: Some(data.clone()) };
        emit(entity::Entity::RegisterEntry(entry))
    })
}
