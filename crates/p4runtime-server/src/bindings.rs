//! Objects of a program by the ids of P4Info.

use millstream_ir::Map;
use millstream_p4_lower::{
    ActionChoice, EntryMatch, EntrySpec, KeyMatch, ObjectKind, ObjectSpec, Pipeline, TableSpec, TableStorage,
};
use millstream_p4runtime::entities::{EntityError, EntryKey, MatchValue};
use millstream_p4runtime::proto::config::v1::{
    P4DataTypeSpec, P4Info, Preamble, p4_bitstring_like_type_spec, p4_data_type_spec,
};
use millstream_p4runtime::proto::v1::{Action, FieldMatch, ValueSetMember, field_match};
use num_bigint::BigUint;
use rustc_hash::{FxHashMap, FxHashSet};

/// Action of a table: its number there, and the place of each of P4Info's parameters.
#[derive(Clone, Debug)]
struct BoundAction {
    number: usize,
    /// Id of each parameter, in the order of the lowered action.
    parameters: Vec<u32>,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct BoundTable {
    /// Number in the pipeline.
    pub(crate) number: usize,
    /// Action profile.
    pub(crate) profile: Option<u32>,
    actions: FxHashMap<u32, BoundAction>,
}

/// Objects by the ids of P4Info.
#[derive(Clone, Debug, Default)]
pub(crate) struct PipelineBindings {
    pub(crate) tables: FxHashMap<u32, BoundTable>,
    /// Counters, meters, registers, value sets, digests: numbers in the pipeline.
    objects: FxHashMap<u32, usize>,
    /// Ids of digests, by number of the object.
    pub(crate) digests: FxHashMap<usize, u32>,
    /// Ids of the fields of value sets.
    value_sets: FxHashMap<u32, Vec<u32>>,
    signed_registers: FxHashSet<u32>,
}

fn identity(preamble: Option<&Preamble>) -> (u32, &str) {
    preamble.map_or((0, ""), |preamble| (preamble.id, preamble.name.as_str()))
}

impl PipelineBindings {
    /// Binds P4Info to the program that it describes, by names. What packets cannot reach has a description,
    /// and no code.
    pub(crate) fn new(info: &P4Info, pipeline: &Pipeline) -> PipelineBindings {
        let mut bindings = PipelineBindings::default();
        for table in &info.tables {
            let (id, name) = identity(table.preamble.as_ref());
            let Some(number) = pipeline.tables.iter().position(|spec| spec.name == name) else { continue };
            let spec = &pipeline.tables[number];
            let references = table.action_refs.iter().filter_map(|reference| {
                let action = info
                    .actions
                    .iter()
                    .find(|action| identity(action.preamble.as_ref()).0 == reference.id)?;
                let name = identity(action.preamble.as_ref()).1;
                let Some(number) = spec.actions.iter().position(|own| own.name == name) else {
                    // The default of a table that names none; it is no action of the lowered table.
                    let nothing = BoundAction { number: spec.actions.len(), parameters: Vec::new() };
                    return (name == "NoAction").then_some((reference.id, nothing));
                };
                let id_of = |name: &str| action.params.iter().find(|param| param.name == name).map(|p| p.id);
                let parameters = spec.actions[number].parameters.iter().map(|own| id_of(&own.name));
                Some((reference.id, BoundAction { number, parameters: parameters.collect::<Option<_>>()? }))
            });
            let bound = BoundTable {
                number,
                profile: (table.implementation_id != 0).then_some(table.implementation_id),
                actions: references.collect(),
            };
            bindings.tables.insert(id, bound);
        }
        bindings.bind_objects(info, pipeline);
        bindings
    }

    fn bind_objects(&mut self, info: &P4Info, pipeline: &Pipeline) {
        let mut bind = |preamble: Option<&Preamble>, is_kind: fn(&ObjectKind) -> bool| {
            let (id, name) = identity(preamble);
            let found =
                pipeline.objects.iter().position(|object| object.name == name && is_kind(&object.kind));
            self.objects.extend(found.map(|number| (id, number)));
        };
        let counters = info.counters.iter().map(|counter| counter.preamble.as_ref());
        counters.for_each(|preamble| bind(preamble, |kind| matches!(kind, ObjectKind::Counter)));
        let meters = info.meters.iter().map(|meter| meter.preamble.as_ref());
        meters.for_each(|preamble| bind(preamble, |kind| matches!(kind, ObjectKind::Meter { .. })));
        let registers = info.registers.iter().map(|register| register.preamble.as_ref());
        registers.for_each(|preamble| bind(preamble, |kind| matches!(kind, ObjectKind::Register { .. })));
        let sets = info.value_sets.iter().map(|set| set.preamble.as_ref());
        sets.for_each(|preamble| bind(preamble, |kind| matches!(kind, ObjectKind::ValueSet { .. })));
        for set in &info.value_sets {
            let fields = set.r#match.iter().map(|field| field.id).collect();
            self.value_sets.insert(identity(set.preamble.as_ref()).0, fields);
        }
        let signed = info.registers.iter().filter(|register| has_sign(register.type_spec.as_ref()));
        self.signed_registers = signed.map(|register| identity(register.preamble.as_ref()).0).collect();
        self.bind_digests(info, pipeline);
    }

    /// Tells if a register holds signed numbers.
    pub(crate) fn is_signed(&self, id: u32) -> bool {
        self.signed_registers.contains(&id)
    }

    /// Binds digests: those of objects by name, those of calls by their order. A digest that is sent at
    /// several places has several numbers, and the last description stands for those that are left over.
    fn bind_digests(&mut self, info: &P4Info, pipeline: &Pipeline) {
        let is_digest = |object: &&ObjectSpec| matches!(object.kind, ObjectKind::Digest { .. });
        let ids: Vec<(u32, &str)> =
            info.digests.iter().map(|digest| identity(digest.preamble.as_ref())).collect();
        let mut in_order = ids.iter().filter(|(_, name)| !pipeline.objects.iter().any(|o| o.name == *name));
        let mut last = ids.last().map(|(id, _)| *id);
        for (number, object) in pipeline.objects.iter().enumerate().filter(|(_, object)| is_digest(object)) {
            let named = ids.iter().find(|(_, name)| *name == object.name).map(|(id, _)| *id);
            let id = named.or_else(|| in_order.next().map(|(id, _)| *id)).or(last);
            last = id.or(last);
            self.digests.extend(id.map(|id| (number, id)));
        }
    }

    /// Finds a table and its description.
    pub(crate) fn table<'p>(
        &self,
        pipeline: &'p Pipeline,
        id: u32,
    ) -> Result<(&BoundTable, &'p TableSpec), EntityError> {
        let found = self.tables.get(&id).and_then(|table| Some((table, pipeline.tables.get(table.number)?)));
        found.ok_or_else(|| EntityError::unimplemented("no packet can reach this table"))
    }

    /// Finds an object with cells: its description and map.
    pub(crate) fn object<'p>(
        &self,
        pipeline: &'p Pipeline,
        id: u32,
    ) -> Result<(&'p ObjectSpec, Map), EntityError> {
        let found = self.objects.get(&id).and_then(|number| pipeline.objects.get(*number));
        let found = found.and_then(|object| Some((object, object.map?)));
        found.ok_or_else(|| EntityError::unimplemented("no packet can reach this object"))
    }

    /// Scalars of a member of a value set.
    pub(crate) fn set_member(&self, id: u32, member: &ValueSetMember) -> Result<Vec<BigUint>, EntityError> {
        let fields = self.value_sets.get(&id).map_or(&[][..], |fields| fields);
        let value = |field: &u32| {
            let found = member.r#match.iter().find(|given| given.field_id == *field);
            exact_value(found)
                .ok_or_else(|| EntityError::unimplemented("members of value sets are exact values"))
        };
        fields.iter().map(value).collect()
    }
}

fn has_sign(spec: Option<&P4DataTypeSpec>) -> bool {
    let spec = spec.and_then(|spec| spec.type_spec.as_ref());
    let Some(p4_data_type_spec::TypeSpec::Bitstring(bits)) = spec else { return false };
    matches!(bits.type_spec, Some(p4_bitstring_like_type_spec::TypeSpec::Int(_)))
}

fn exact_value(given: Option<&FieldMatch>) -> Option<BigUint> {
    match given?.field_match_type.as_ref()? {
        field_match::FieldMatchType::Exact(exact) => Some(BigUint::from_bytes_be(&exact.value)),
        _ => None,
    }
}

impl BoundTable {
    /// An action with arguments, in the lowered program's order.
    pub(crate) fn choice(&self, action: &Action) -> Result<ActionChoice, EntityError> {
        let Some(bound) = self.actions.get(&action.action_id) else {
            return Err(EntityError::unimplemented("no packet can reach this action"));
        };
        let argument = |id: &u32| {
            let given = action.params.iter().find(|param| param.param_id == *id);
            given.map_or(BigUint::ZERO, |param| BigUint::from_bytes_be(&param.value))
        };
        Ok(ActionChoice { action: bound.number, arguments: bound.parameters.iter().map(argument).collect() })
    }

    /// The entry of a key, whose action is filled in later.
    pub(crate) fn entry_spec(&self, table: &TableSpec, key: &EntryKey) -> EntrySpec {
        let matches: Vec<EntryMatch> = key
            .values
            .iter()
            .zip(&table.keys)
            .map(|(value, spec)| match value {
                MatchValue::Any => EntryMatch::Any,
                MatchValue::Exact(value) | MatchValue::Optional(value) => {
                    EntryMatch::Exact(BigUint::from_bytes_be(value))
                }
                MatchValue::Prefix(value, len) => EntryMatch::Prefix(BigUint::from_bytes_be(value), *len),
                MatchValue::Masked(value, mask) if spec.kind == KeyMatch::Ternary => {
                    EntryMatch::Ternary(BigUint::from_bytes_be(value), BigUint::from_bytes_be(mask))
                }
                MatchValue::Masked(value, _) => EntryMatch::Exact(BigUint::from_bytes_be(value)),
                MatchValue::Range(low, high) => {
                    EntryMatch::Range(BigUint::from_bytes_be(low), BigUint::from_bytes_be(high))
                }
            })
            .collect();
        let priority = match (table.storage, key.priority) {
            // Of entries without priorities the one with the longest prefixes wins.
            (TableStorage::Priority, 0) => prefix_bits(&key.values),
            (_, priority) => priority.unsigned_abs(),
        };
        EntrySpec { matches, choice: ActionChoice::default(), priority, group: None }
    }
}

fn prefix_bits(values: &[MatchValue]) -> u32 {
    values.iter().map(|value| if let MatchValue::Prefix(_, len) = value { *len } else { 0 }).sum()
}
