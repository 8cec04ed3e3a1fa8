//! Tables: a lookup gives the entry's value, whose first word says which action runs.

use std::rc::Rc;

use millstream_ir::{AluOp, Cond, KeyLayout, KeyPiece, Map, Op, Prov, Size, Type, Value};
use millstream_p4::SourceSpan;
use millstream_p4::ast::{DeclarationKind, DeclarationTree};
use millstream_p4::expression::CallArgument;

use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::hashes::{HashedBytes, hash_of};
use crate::lowerer::{Lowerer, table_specs};
use crate::meters::{self, metered_units};
use crate::pipeline::{ENTRY_COUNTER, ENTRY_GROUP, KeyMatch, ObjectKind, TableStorage};
use crate::scope::{Binding, Scope, TableActionParts, TableParts};
use crate::tables::table_specs::directed;
use crate::types::{RuntimeType, access_size, words_of};
use crate::values::{Operand, Place, Scalar};

pub(crate) fn apply_table<'p>(
    l: &mut Lowerer<'p>,
    declaration: &'p DeclarationTree,
    found: Rc<Scope<'p>>,
    arguments: &'p [CallArgument],
    span: SourceSpan,
) -> Lowered<Operand> {
    if !arguments.is_empty() {
        return refuse(span, "arguments of a table are not supported");
    }
    l.called(span, |l| l.in_scope(found, |l| applied(l, declaration, span)))
}

fn applied<'p>(l: &mut Lowerer<'p>, declaration: &'p DeclarationTree, span: SourceSpan) -> Lowered<Operand> {
    let name = declaration.name.text.clone();
    let made = l.scope.owner.as_ref().and_then(|owner| owner.tables.borrow().get(&name).copied());
    let table = match made {
        Some(table) => table,
        None => {
            let table = table_specs::make_table(l, declaration)?;
            if let Some(owner) = &l.scope.owner {
                owner.tables.borrow_mut().insert(name, table);
            }
            table
        }
    };
    let parts = l.objects.table_parts[table].clone();
    let mut keys = Vec::new();
    for (expression, value_type) in &parts.keys {
        let value = l.scalar(expression, Some(value_type))?;
        keys.push(l.converted(value, value_type));
    }
    let found = match keys.is_empty() {
        true => l.emitter.constant(0),
        false => lookup_entry(l, table, &keys),
    };
    let found = selected(l, table, &parts, found, span)?;
    let (entry, hit) = entry_or_default(l, table, parts.meter, found);
    let action = l.emitter.load(Address::pointer(entry), Size::W);
    let behind = l.emitter.new_block();
    for (number, listed) in parts.actions.iter().enumerate() {
        let is_this = l.emitter.compare_with(Cond::Eq, action, number as u64);
        let other = l.emitter.split(is_this);
        run_action(l, listed, entry, span)?;
        l.emitter.jump(behind);
        l.emitter.enter(other);
    }
    l.emitter.jump(behind);
    l.emitter.enter(behind);
    Ok(Operand::Applied { table, hit, action })
}

/// The entry's value, or that of the default action; and if an entry was found.
fn entry_or_default(l: &mut Lowerer<'_>, table: usize, meter: Option<usize>, found: Value) -> (Value, Value) {
    let spec = &l.pipeline.tables[table];
    let (default_map, counts) = (spec.default_map, spec.counter.is_some());
    let meter = meter.zip(spec.meter.as_ref().map(|(_, offset)| *offset));
    let e = &mut l.emitter;
    let (hit, miss, run) = (e.new_block(), e.new_block(), e.new_block());
    let entry = e.parameter(run, Type::Any);
    let is_hit = e.parameter(run, Type::I1);
    e.branch_if(found, hit, miss);
    e.enter(hit);
    if counts {
        count_entry(l, found);
    }
    if let Some((number, offset)) = meter {
        measure_entry(l, number, Address::pointer(found).plus(offset));
    }
    let truth = l.emitter.truth(true);
    l.emitter.jump_with(run, &[found, truth]);
    l.emitter.enter(miss);
    let default = l.array_element(default_map, None);
    let e = &mut l.emitter;
    let (there, nowhere) = (e.new_block(), e.new_block());
    e.branch_if(default, there, nowhere);
    e.enter(nowhere);
    e.effect(Op::Unreachable {}, &[]);
    e.enter(there);
    let truth = e.truth(false);
    e.jump_with(run, &[default, truth]);
    e.enter(run);
    (entry, is_hit)
}

/// Runs the direct meter of an entry.
fn measure_entry(l: &mut Lowerer<'_>, number: usize, meter: Address) {
    let counts_bytes = matches!(l.pipeline.objects[number].kind, ObjectKind::Meter { counts_bytes: true });
    let units = metered_units(l, counts_bytes);
    let color = meters::run_meter(&mut l.emitter, meter, units, None);
    if let Some(place) = l.objects.colors.get(&number) {
        l.emitter.store(place.address, Size::W, color);
    }
}

/// The member of the entry's group that a hash chooses, in place of an entry that has a group; null if
/// the group is empty.
fn selected<'p>(
    l: &mut Lowerer<'p>,
    table: usize,
    parts: &TableParts<'p>,
    found: Value,
    span: SourceSpan,
) -> Lowered<Value> {
    let Some(selector) = l.pipeline.tables[table].selector.clone() else { return Ok(found) };
    let object = l.pipeline.objects.iter().find(|object| object.name == selector.name);
    let algorithm = match object.map(|object| &object.kind) {
        Some(ObjectKind::ActionSelector { algorithm }) => algorithm.clone(),
        _ => return refuse(span, "this is no selector"),
    };
    let mut keys = Vec::new();
    for key in &parts.selectors {
        keys.push(l.scalar(key, None)?);
    }
    let whole = RuntimeType::tuple(keys.iter().map(|key| key.value_type.clone()));
    let place = l.emitter.variable(whole);
    for (key, to) in keys.iter().zip(place.fields()) {
        l.emitter.store_scalar(&to, key);
    }
    let hash = hash_of(l, &algorithm, &Operand::Memory(place), HashedBytes::Packed, span)?;
    let behind = l.emitter.new_block();
    let entry = l.emitter.parameter(behind, Type::Any);
    let (hit, grouped, counted) = (l.emitter.new_block(), l.emitter.new_block(), l.emitter.new_block());
    let missed = l.emitter.new_block();
    l.emitter.branch_if(found, hit, missed);
    l.emitter.enter(hit);
    let group = l.emitter.load(Address::pointer(found).plus(ENTRY_GROUP), Size::W);
    let plain = l.emitter.new_block();
    l.emitter.branch_if(group, grouped, plain);
    l.emitter.enter(plain);
    l.emitter.jump_with(behind, &[found]);
    l.emitter.enter(grouped);
    let size = word_lookup(l, selector.group_map, &[group]);
    l.emitter.branch_if(size, counted, missed);
    l.emitter.enter(counted);
    let size = l.emitter.load(Address::pointer(size), Size::W);
    let op = Op::Alu { op: AluOp::Mod, width: millstream_ir::Width::W64 };
    let index = l.emitter.value(op, &[hash.words[0], size], Type::I64);
    let member = word_lookup(l, selector.member_map, &[group, index]);
    l.emitter.jump_with(behind, &[member]);
    l.emitter.enter(missed);
    let none = l.emitter.constant(0);
    l.emitter.jump_with(behind, &[none]);
    l.emitter.enter(behind);
    Ok(entry)
}

/// Looks up a key of 32-bit words.
fn word_lookup(l: &mut Lowerer<'_>, map: Map, words: &[Value]) -> Value {
    let key: KeyLayout = (0..words.len()).map(|n| KeyPiece { offset: 4 * n as u16, size: Size::W }).collect();
    l.emitter.value(Op::MapLookup { map, key }, words, Type::Ptr(Prov::MapValueOrNull(map)))
}

/// Counts a packet in an entry.
fn count_entry(l: &mut Lowerer<'_>, entry: Value) {
    let length = l.packet_bytes();
    l.count(entry, ENTRY_COUNTER as i32, length);
}

fn lookup_entry(l: &mut Lowerer<'_>, table: usize, values: &[Scalar]) -> Value {
    let spec = &l.pipeline.tables[table];
    let (map, storage, keys) = (spec.map, spec.storage, spec.keys.clone());
    let bits = 8 * spec.key_size.saturating_sub(4);
    let mut pieces: Vec<(KeyPiece, Value)> = Vec::new();
    if storage == TableStorage::Prefix {
        let length = l.emitter.constant(u64::from(bits));
        pieces.push((KeyPiece { offset: 0, size: Size::W }, length));
    }
    for (key, value) in keys.iter().zip(values) {
        match storage {
            TableStorage::Hash => {
                let size = access_size(key.bits);
                for (n, word) in value.words.iter().enumerate() {
                    pieces.push((KeyPiece { offset: (key.offset + 8 * n as u32) as u16, size }, *word));
                }
            }
            _ => {
                let shift = match key.kind == KeyMatch::Prefix && storage == TableStorage::Prefix {
                    true => 8 * key.size - key.bits,
                    false => 0,
                };
                let wide = 8 * key.size;
                let words = l.emitter.resized(&value.words, key.bits, wide, false);
                let words = l.emitter.shifted_up(&words, shift, wide);
                packed_pieces(l, &words, key.offset, key.size, &mut pieces);
            }
        }
    }
    pieces.sort_by_key(|(piece, _)| piece.offset);
    let key: KeyLayout = pieces.iter().map(|(piece, _)| *piece).collect();
    let values: Vec<Value> = pieces.into_iter().map(|(_, value)| value).collect();
    l.emitter.value(Op::MapLookup { map, key }, &values, Type::Ptr(Prov::MapValueOrNull(map)))
}

/// Pieces of a number in packet order.
fn packed_pieces(
    l: &mut Lowerer<'_>,
    words: &[Value],
    offset: u32,
    bytes: u32,
    pieces: &mut Vec<(KeyPiece, Value)>,
) {
    let mut left = bytes;
    while left > 0 {
        let size = match left % 8 {
            0 => Size::Dw,
            1 => Size::B,
            2 | 3 => Size::H,
            _ => Size::W,
        };
        left -= size.bytes();
        let part = l.emitter.bits_from(words, 8 * left, 8 * size.bytes())[0];
        let part = l.emitter.swapped(part, size);
        let at = offset + bytes - left - size.bytes();
        pieces.push((KeyPiece { offset: at as u16, size }, part));
    }
}

fn run_action<'p>(
    l: &mut Lowerer<'p>,
    listed: &TableActionParts<'p>,
    entry: Value,
    span: SourceSpan,
) -> Lowered<()> {
    let DeclarationKind::Action(parameters, body) = &listed.declaration.kind else {
        return refuse(span, "this is no action");
    };
    let found = match listed.is_global {
        true => l.root.clone(),
        false => match l.scope.find(&listed.declaration.name.text) {
            Some((Binding::Action(_), found)) => found,
            _ => return refuse(span, "this action cannot be seen here"),
        },
    };
    let scope = Scope::new(Some(found));
    let split = directed(parameters).max(listed.bound.len()).min(parameters.len());
    let copies = l.bind_parameters(&parameters[..split], listed.bound, &scope, false, span)?;
    for (parameter, value_type, offset) in &listed.parameters {
        let place = Place::new(Address::pointer(entry).plus(*offset), value_type.clone());
        scope.bind(parameter.name.text.clone(), Binding::Variable(place));
    }
    l.inlined(scope, copies, None, span, |l| l.block(body)).map(|_| ())
}

/// Tests if values are in a value set.
pub(crate) fn value_set_has(
    l: &mut Lowerer<'_>,
    number: usize,
    values: &[Scalar],
    span: SourceSpan,
) -> Lowered<Value> {
    let Some(map) = l.pipeline.objects[number].map else { return refuse(span, "no value set") };
    let mut offset = 0u32;
    let (mut key, mut words) = (KeyLayout::new(), Vec::new());
    for value in values {
        let size = access_size(value.width());
        offset = offset.next_multiple_of(size.bytes());
        for word in &value.words[..words_of(value.width())] {
            key.push(KeyPiece { offset: offset as u16, size });
            words.push(*word);
            offset += size.bytes();
        }
    }
    if offset != l.module.maps[map].key_size {
        return refuse(span, "the values do not fit the value set");
    }
    let found = l.emitter.value(Op::MapLookup { map, key }, &words, Type::Ptr(Prov::MapValueOrNull(map)));
    Ok(l.emitter.compare_with(Cond::Ne, found, 0))
}
