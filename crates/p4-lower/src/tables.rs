//! Tables: a lookup gives the entry's value, whose first word says which action runs.

use std::rc::Rc;

use millstream_ir::{AluOp, AtomicOp, Cond, KeyLayout, KeyPiece, Map, Op, Prov, Size, Type, Value};
use millstream_p4::SourceSpan;
use millstream_p4::ast::{DeclarationKind, DeclarationTree, ParameterDirection, ParameterSyntax};
use millstream_p4::expression::CallArgument;

use crate::emitter::Address;
use crate::error::{Lowered, refuse};
use crate::hashes::hash_of;
use crate::lowerer::Lowerer;
use crate::meters::{self, metered_units};
use crate::pipeline::{ENTRY_COUNTER, ENTRY_GROUP, KeyMatch, ObjectKind, TableStorage};
use crate::scope::{Binding, Scope, TableActionParts, TableParts};
use crate::types::{RuntimeType, access_size, words_of};
use crate::values::{Operand, Place, Scalar};

/// Number of parameters that have a direction; they come first.
pub(crate) fn directed(parameters: &[ParameterSyntax]) -> usize {
    parameters.iter().take_while(|p| p.direction != ParameterDirection::Directionless).count()
}

impl<'p> Lowerer<'p> {
    pub(crate) fn apply_table(
        &mut self,
        declaration: &'p DeclarationTree,
        found: Rc<Scope<'p>>,
        arguments: &'p [CallArgument],
        span: SourceSpan,
    ) -> Lowered<Operand> {
        if !arguments.is_empty() {
            return refuse(span, "arguments of a table are not supported");
        }
        self.called(span, |l| l.in_scope(found, |l| l.applied(declaration, span)))
    }

    fn applied(&mut self, declaration: &'p DeclarationTree, span: SourceSpan) -> Lowered<Operand> {
        let name = declaration.name.text.clone();
        let made = self.scope.owner.as_ref().and_then(|owner| owner.tables.borrow().get(&name).copied());
        let table = match made {
            Some(table) => table,
            None => {
                let table = self.make_table(declaration)?;
                if let Some(owner) = &self.scope.owner {
                    owner.tables.borrow_mut().insert(name, table);
                }
                table
            }
        };
        let parts = self.table_parts[table].clone();
        let mut keys = Vec::new();
        for (expression, value_type) in &parts.keys {
            let value = self.scalar(expression, Some(value_type))?;
            keys.push(self.converted(value, value_type));
        }
        let found = match keys.is_empty() {
            true => self.emitter.constant(0),
            false => self.lookup_entry(table, &keys),
        };
        let found = self.selected(table, &parts, found, span)?;
        let (entry, hit) = self.entry_or_default(table, parts.meter, found);
        let action = self.emitter.load(Address::pointer(entry), Size::W);
        let behind = self.emitter.new_block();
        for (number, listed) in parts.actions.iter().enumerate() {
            let is_this = self.emitter.compare_with(Cond::Eq, action, number as u64);
            let other = self.emitter.split(is_this);
            self.run_action(listed, entry, span)?;
            self.emitter.jump(behind);
            self.emitter.enter(other);
        }
        self.emitter.jump(behind);
        self.emitter.enter(behind);
        Ok(Operand::Applied { table, hit, action })
    }

    /// The entry's value, or that of the default action; and if an entry was found.
    fn entry_or_default(&mut self, table: usize, meter: Option<usize>, found: Value) -> (Value, Value) {
        let spec = &self.pipeline.tables[table];
        let (default_map, counts) = (spec.default_map, spec.counter.is_some());
        let meter = meter.zip(spec.meter.as_ref().map(|(_, offset)| *offset));
        let e = &mut self.emitter;
        let (hit, miss, run) = (e.new_block(), e.new_block(), e.new_block());
        let entry = e.parameter(run, Type::Any);
        let is_hit = e.parameter(run, Type::I1);
        e.branch_if(found, hit, miss);
        e.enter(hit);
        if counts {
            self.count_entry(found);
        }
        if let Some((number, offset)) = meter {
            self.measure_entry(number, Address::pointer(found).plus(offset));
        }
        let truth = self.emitter.truth(true);
        self.emitter.jump_with(run, &[found, truth]);
        self.emitter.enter(miss);
        let default = self.array_element(default_map, None);
        let e = &mut self.emitter;
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
    fn measure_entry(&mut self, number: usize, meter: Address) {
        let counts_bytes =
            matches!(self.pipeline.objects[number].kind, ObjectKind::Meter { counts_bytes: true });
        let units = metered_units(self, counts_bytes);
        let color = meters::run_meter(&mut self.emitter, meter, units, None);
        if let Some(place) = self.colors.get(&number) {
            self.emitter.store(place.address, Size::W, color);
        }
    }

    /// The member of the entry's group that a hash chooses, in place of an entry that has a group; null if
    /// the group is empty.
    fn selected(
        &mut self,
        table: usize,
        parts: &TableParts<'p>,
        found: Value,
        span: SourceSpan,
    ) -> Lowered<Value> {
        let Some(selector) = self.pipeline.tables[table].selector.clone() else { return Ok(found) };
        let object = self.pipeline.objects.iter().find(|object| object.name == selector.name);
        let algorithm = match object.map(|object| &object.kind) {
            Some(ObjectKind::ActionSelector { algorithm }) => algorithm.clone(),
            _ => return refuse(span, "this is no selector"),
        };
        let mut keys = Vec::new();
        for key in &parts.selectors {
            keys.push(self.scalar(key, None)?);
        }
        let whole = RuntimeType::tuple(keys.iter().map(|key| key.value_type.clone()));
        let place = self.emitter.variable(whole);
        for (key, to) in keys.iter().zip(place.fields()) {
            self.emitter.store_scalar(&to, key);
        }
        let hash = hash_of(self, &algorithm, &Operand::Memory(place), false, span)?;
        let behind = self.emitter.new_block();
        let entry = self.emitter.parameter(behind, Type::Any);
        let (hit, grouped, counted) =
            (self.emitter.new_block(), self.emitter.new_block(), self.emitter.new_block());
        let missed = self.emitter.new_block();
        self.emitter.branch_if(found, hit, missed);
        self.emitter.enter(hit);
        let group = self.emitter.load(Address::pointer(found).plus(ENTRY_GROUP), Size::W);
        let plain = self.emitter.new_block();
        self.emitter.branch_if(group, grouped, plain);
        self.emitter.enter(plain);
        self.emitter.jump_with(behind, &[found]);
        self.emitter.enter(grouped);
        let size = self.word_lookup(selector.group_map, &[group]);
        self.emitter.branch_if(size, counted, missed);
        self.emitter.enter(counted);
        let size = self.emitter.load(Address::pointer(size), Size::W);
        let op = Op::Alu { op: AluOp::Mod, width: millstream_ir::Width::W64 };
        let index = self.emitter.value(op, &[hash.words[0], size], Type::I64);
        let member = self.word_lookup(selector.member_map, &[group, index]);
        self.emitter.jump_with(behind, &[member]);
        self.emitter.enter(missed);
        let none = self.emitter.constant(0);
        self.emitter.jump_with(behind, &[none]);
        self.emitter.enter(behind);
        Ok(entry)
    }

    /// Looks up a key of 32-bit words.
    fn word_lookup(&mut self, map: Map, words: &[Value]) -> Value {
        let key: KeyLayout =
            (0..words.len()).map(|n| KeyPiece { offset: 4 * n as u16, size: Size::W }).collect();
        self.emitter.value(Op::MapLookup { map, key }, words, Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Looks up an element of an array; its index is 0 if none is given.
    pub(crate) fn array_element(&mut self, map: Map, index: Option<Value>) -> Value {
        let index = index.unwrap_or_else(|| self.emitter.constant(0));
        let key: KeyLayout = std::iter::once(KeyPiece { offset: 0, size: Size::W }).collect();
        self.emitter.value(Op::MapLookup { map, key }, &[index], Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Counts a packet in an entry.
    fn count_entry(&mut self, entry: Value) {
        let length = self.packet_bytes();
        self.count(entry, ENTRY_COUNTER as i32, length);
    }

    /// Adds a packet and its bytes to a counter.
    pub(crate) fn count(&mut self, base: Value, offset: i32, bytes: Value) {
        let one = self.emitter.constant(1);
        let add = |offset| Op::Atomic { op: AtomicOp::Add, size: Size::Dw, offset };
        self.emitter.effect(add(offset), &[base, one]);
        self.emitter.effect(add(offset + 8), &[base, bytes]);
    }

    /// Bytes of the packet as it came.
    pub(crate) fn packet_bytes(&mut self) -> Value {
        match &self.packet {
            Some(packet) => {
                let (data, end) = (packet.data, packet.end);
                self.emitter.alu(AluOp::Sub, end, data)
            }
            None => self.emitter.constant(0),
        }
    }

    fn lookup_entry(&mut self, table: usize, values: &[Scalar]) -> Value {
        let spec = &self.pipeline.tables[table];
        let (map, storage, keys) = (spec.map, spec.storage, spec.keys.clone());
        let bits = 8 * spec.key_size.saturating_sub(4);
        let mut pieces: Vec<(KeyPiece, Value)> = Vec::new();
        if storage == TableStorage::Prefix {
            let length = self.emitter.constant(u64::from(bits));
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
                    let words = self.emitter.resized(&value.words, key.bits, wide, false);
                    let words = self.emitter.shifted_up(&words, shift, wide);
                    self.packed_pieces(&words, key.offset, key.size, &mut pieces);
                }
            }
        }
        pieces.sort_by_key(|(piece, _)| piece.offset);
        let key: KeyLayout = pieces.iter().map(|(piece, _)| *piece).collect();
        let values: Vec<Value> = pieces.into_iter().map(|(_, value)| value).collect();
        self.emitter.value(Op::MapLookup { map, key }, &values, Type::Ptr(Prov::MapValueOrNull(map)))
    }

    /// Pieces of a number in packet order.
    fn packed_pieces(
        &mut self,
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
            let part = self.emitter.bits_from(words, 8 * left, 8 * size.bytes())[0];
            let part = self.emitter.swapped(part, size);
            let at = offset + bytes - left - size.bytes();
            pieces.push((KeyPiece { offset: at as u16, size }, part));
        }
    }

    fn run_action(&mut self, listed: &TableActionParts<'p>, entry: Value, span: SourceSpan) -> Lowered<()> {
        let DeclarationKind::Action(parameters, body) = &listed.declaration.kind else {
            return refuse(span, "this is no action");
        };
        let found = match listed.is_global {
            true => self.root.clone(),
            false => match self.scope.find(&listed.declaration.name.text) {
                Some((Binding::Action(_), found)) => found,
                _ => return refuse(span, "this action cannot be seen here"),
            },
        };
        let scope = Scope::new(Some(found));
        let split = directed(parameters).max(listed.bound.len()).min(parameters.len());
        let copies = self.bind_parameters(&parameters[..split], listed.bound, &scope, false, span)?;
        for (parameter, value_type, offset) in &listed.parameters {
            let place = Place::new(Address::pointer(entry).plus(*offset), value_type.clone());
            scope.bind(parameter.name.text.clone(), Binding::Variable(place));
        }
        self.inlined(scope, copies, None, span, |l| l.block(body)).map(|_| ())
    }

    /// Tests if values are in a value set.
    pub(crate) fn value_set_has(
        &mut self,
        number: usize,
        values: &[Scalar],
        span: SourceSpan,
    ) -> Lowered<Value> {
        let Some(map) = self.pipeline.objects[number].map else { return refuse(span, "no value set") };
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
        if offset != self.module.maps[map].key_size {
            return refuse(span, "the values do not fit the value set");
        }
        let found =
            self.emitter.value(Op::MapLookup { map, key }, &words, Type::Ptr(Prov::MapValueOrNull(map)));
        Ok(self.emitter.compare_with(Cond::Ne, found, 0))
    }
}
