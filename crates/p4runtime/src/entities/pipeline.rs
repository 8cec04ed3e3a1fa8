//! P4Info by ids: what each entity may be.

use std::collections::BTreeMap;
use std::ops::Deref;

use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use crate::entities::data::zero_data;
use crate::proto::config::v1::{
    Action, ActionProfile, MatchField, P4DataTypeSpec, P4Info, P4TypeInfo, Preamble, Table, action_profile,
    action_ref, match_field, meter_spec, table,
};
use crate::proto::v1;

/// Reason why P4Info cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PipelineError {
    /// Two objects, fields or parameters have the same id, or one has none.
    #[error("the id {id:#x} of `{name}` is zero or taken")]
    BadId {
        /// Name of the second object.
        name: String,
        /// The id.
        id: u32,
    },
    /// An object refers to another that does not exist.
    #[error("`{name}` refers to the id {id:#x}, which no object has")]
    UnknownId {
        /// Name of the object that refers.
        name: String,
        /// The id.
        id: u32,
    },
    /// A width or size is negative.
    #[error("a width or size of `{name}` is negative")]
    NegativeSize {
        /// Name of the object.
        name: String,
    },
    /// The type of a register is not described, or has too many parts.
    #[error("the type of `{name}` is not described or too large")]
    BadType {
        /// Name of the object.
        name: String,
    },
}

/// Match kinds of fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldKind {
    Exact,
    Lpm,
    Ternary,
    Range,
    Optional,
    Other,
}

/// A field of a key, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct FieldShape {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) kind: FieldKind,
    /// Bits; text has no width.
    pub(crate) width: Option<u32>,
}

/// Fields of a key, or parameters of an action, in the order of P4Info.
#[derive(Clone, Debug)]
pub(crate) struct FieldList {
    list: Vec<FieldShape>,
    places: FxHashMap<u32, usize>,
}

impl FieldList {
    fn new(list: Vec<FieldShape>) -> Result<FieldList, PipelineError> {
        let mut places = FxHashMap::default();
        for (at, field) in list.iter().enumerate() {
            check_id(places.insert(field.id, at).is_none(), field.id, &field.name)?;
        }
        Ok(FieldList { list, places })
    }

    /// Finds the place of a field by its id.
    pub(crate) fn place(&self, id: u32) -> Option<usize> {
        self.places.get(&id).copied()
    }
}

impl Deref for FieldList {
    type Target = [FieldShape];

    fn deref(&self) -> &[FieldShape] {
        &self.list
    }
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct TableShape {
    pub(crate) name: String,
    pub(crate) fields: FieldList,
    pub(crate) actions: FxHashMap<u32, action_ref::Scope>,
    pub(crate) needs_priority: bool,
    pub(crate) profile: Option<u32>,
    pub(crate) has_counter: bool,
    pub(crate) meter: Option<meter_spec::Type>,
    pub(crate) has_timeout: bool,
    pub(crate) is_const: bool,
    pub(crate) has_const_default: bool,
    /// Most entries; none is no limit.
    pub(crate) size: Option<usize>,
    pub(crate) default_action: Option<v1::Action>,
}

/// An action.
#[derive(Clone, Debug)]
pub(crate) struct ActionShape {
    pub(crate) name: String,
    pub(crate) parameters: FieldList,
}

/// An action profile or selector.
#[derive(Clone, Debug)]
pub(crate) struct ProfileShape {
    pub(crate) name: String,
    pub(crate) has_selector: bool,
    pub(crate) size: Option<usize>,
    pub(crate) max_group_size: i32,
    /// Limit of the members of a group, and of the weight of each, instead of the sum of weights.
    pub(crate) max_member_weight: Option<i32>,
    pub(crate) has_weights: bool,
    /// Actions of its tables.
    pub(crate) actions: FxHashSet<u32>,
}

/// An array of cells.
#[derive(Clone, Debug)]
pub(crate) struct ArrayShape<T> {
    pub(crate) name: String,
    pub(crate) size: i64,
    pub(crate) cell: T,
}

/// A value set.
#[derive(Clone, Debug)]
pub(crate) struct ValueSetShape {
    pub(crate) name: String,
    pub(crate) fields: FieldList,
    pub(crate) size: usize,
}

/// P4Info by ids.
#[derive(Clone, Debug, Default)]
pub struct PipelineIndex {
    pub(crate) tables: BTreeMap<u32, TableShape>,
    pub(crate) actions: FxHashMap<u32, ActionShape>,
    pub(crate) profiles: BTreeMap<u32, ProfileShape>,
    pub(crate) counters: BTreeMap<u32, ArrayShape<()>>,
    pub(crate) meters: BTreeMap<u32, ArrayShape<meter_spec::Type>>,
    pub(crate) registers: BTreeMap<u32, ArrayShape<P4DataTypeSpec>>,
    pub(crate) value_sets: BTreeMap<u32, ValueSetShape>,
    pub(crate) digests: BTreeMap<u32, String>,
    pub(crate) types: P4TypeInfo,
}

impl PipelineIndex {
    /// Reads P4Info.
    ///
    /// # Errors
    /// If ids occur twice or refer to nothing, or sizes are negative.
    pub fn new(info: &P4Info) -> Result<PipelineIndex, PipelineError> {
        let mut index =
            PipelineIndex { types: info.type_info.clone().unwrap_or_default(), ..PipelineIndex::default() };
        for action in &info.actions {
            let (id, name) = identity(action.preamble.as_ref());
            let parameters = action_parameters(action, &name)?;
            let is_new = index.actions.insert(id, ActionShape { name: name.clone(), parameters }).is_none();
            check_id(is_new, id, &name)?;
        }
        for profile in &info.action_profiles {
            let (id, shape) = profile_shape(profile)?;
            let name = shape.name.clone();
            check_id(index.profiles.insert(id, shape).is_none(), id, &name)?;
        }
        for table in &info.tables {
            index.add_table(info, table)?;
        }
        index.add_arrays(info)?;
        for set in &info.value_sets {
            let (id, name) = identity(set.preamble.as_ref());
            let fields = key_fields(&set.r#match, &name)?;
            let shape = ValueSetShape { name: name.clone(), fields, size: array_size(set.size, &name)? };
            check_id(index.value_sets.insert(id, shape).is_none(), id, &name)?;
        }
        for digest in &info.digests {
            let (id, name) = identity(digest.preamble.as_ref());
            check_id(index.digests.insert(id, name.clone()).is_none(), id, &name)?;
        }
        Ok(index)
    }

    fn add_arrays(&mut self, info: &P4Info) -> Result<(), PipelineError> {
        for counter in &info.counters {
            let (id, shape) = array(counter.preamble.as_ref(), counter.size, ())?;
            let name = shape.name.clone();
            check_id(self.counters.insert(id, shape).is_none(), id, &name)?;
        }
        for meter in &info.meters {
            let kind = meter.spec.as_ref().map(|spec| spec.r#type()).unwrap_or_default();
            let (id, shape) = array(meter.preamble.as_ref(), meter.size, kind)?;
            let name = shape.name.clone();
            check_id(self.meters.insert(id, shape).is_none(), id, &name)?;
        }
        for register in &info.registers {
            let spec = register.type_spec.clone().unwrap_or_default();
            let (id, shape) = array(register.preamble.as_ref(), i64::from(register.size), spec)?;
            let name = shape.name.clone();
            if zero_data(&shape.cell, &self.types).is_none() {
                return Err(PipelineError::BadType { name });
            }
            check_id(self.registers.insert(id, shape).is_none(), id, &name)?;
        }
        Ok(())
    }

    fn add_table(&mut self, info: &P4Info, table: &Table) -> Result<(), PipelineError> {
        let (id, name) = identity(table.preamble.as_ref());
        let known = |reference: u32, is_known: bool| match is_known {
            true => Ok(()),
            false => Err(PipelineError::UnknownId { name: name.clone(), id: reference }),
        };
        let mut actions = FxHashMap::default();
        for reference in &table.action_refs {
            known(reference.id, self.actions.contains_key(&reference.id))?;
            actions.insert(reference.id, reference.scope());
        }
        let profile = (table.implementation_id != 0).then_some(table.implementation_id);
        if let Some(profile) = profile {
            known(profile, self.profiles.contains_key(&profile))?;
        }
        if let Some(profile) = profile.and_then(|profile| self.profiles.get_mut(&profile)) {
            profile.actions.extend(actions.keys());
        }
        let counters = info.direct_counters.iter().map(|counter| (counter.preamble.as_ref(), None));
        let kind = |spec: &crate::proto::config::v1::MeterSpec| spec.r#type();
        let meters = info
            .direct_meters
            .iter()
            .map(|meter| (meter.preamble.as_ref(), Some(meter.spec.as_ref().map(kind).unwrap_or_default())));
        let direct: FxHashMap<u32, Option<meter_spec::Type>> =
            counters.chain(meters).map(|(preamble, kind)| (identity(preamble).0, kind)).collect();
        let (mut has_counter, mut meter) = (false, None);
        for resource in &table.direct_resource_ids {
            known(*resource, direct.contains_key(resource))?;
            match direct.get(resource) {
                Some(Some(kind)) => meter = Some(*kind),
                _ => has_counter = true,
            }
        }
        let fields = key_fields(&table.match_fields, &name)?;
        let is_ordered = |field: &FieldShape| {
            matches!(field.kind, FieldKind::Ternary | FieldKind::Range | FieldKind::Optional)
        };
        let shape = TableShape {
            needs_priority: fields.iter().any(is_ordered),
            fields,
            actions,
            profile,
            has_counter,
            meter,
            has_timeout: table.idle_timeout_behavior() == table::IdleTimeoutBehavior::NotifyControl,
            is_const: table.is_const_table,
            has_const_default: table.const_default_action_id != 0,
            size: most(table.size, &name)?,
            default_action: initial_default(table),
            name: name.clone(),
        };
        check_id(self.tables.insert(id, shape).is_none(), id, &name)
    }
}

fn initial_default(table: &Table) -> Option<v1::Action> {
    let call = table.initial_default_action.as_ref()?;
    let param = |argument: &crate::proto::config::v1::table_action_call::Argument| v1::action::Param {
        param_id: argument.param_id,
        value: argument.value.clone(),
    };
    Some(v1::Action { action_id: call.action_id, params: call.arguments.iter().map(param).collect() })
}

fn identity(preamble: Option<&Preamble>) -> (u32, String) {
    preamble.map(|preamble| (preamble.id, preamble.name.clone())).unwrap_or_default()
}

fn check_id(is_new: bool, id: u32, name: &str) -> Result<(), PipelineError> {
    match is_new && id != 0 {
        true => Ok(()),
        false => Err(PipelineError::BadId { name: name.into(), id }),
    }
}

fn negative(name: &str) -> PipelineError {
    PipelineError::NegativeSize { name: name.into() }
}

/// Largest number of entities; zero is no limit.
fn most(size: i64, name: &str) -> Result<Option<usize>, PipelineError> {
    let size = usize::try_from(size).map_err(|_| negative(name))?;
    Ok((size > 0).then_some(size))
}

fn array_size(size: i32, name: &str) -> Result<usize, PipelineError> {
    usize::try_from(size).map_err(|_| negative(name))
}

fn array<T>(preamble: Option<&Preamble>, size: i64, cell: T) -> Result<(u32, ArrayShape<T>), PipelineError> {
    let (id, name) = identity(preamble);
    if size < 0 {
        return Err(negative(&name));
    }
    Ok((id, ArrayShape { name, size, cell }))
}

fn profile_shape(profile: &ActionProfile) -> Result<(u32, ProfileShape), PipelineError> {
    use action_profile::SelectorSizeSemantics;
    let (id, name) = identity(profile.preamble.as_ref());
    let shape = ProfileShape {
        has_selector: profile.with_selector,
        size: most(profile.size, &name)?,
        max_group_size: profile.max_group_size,
        max_member_weight: match &profile.selector_size_semantics {
            Some(SelectorSizeSemantics::SumOfMembers(members)) => Some(members.max_member_weight),
            _ => None,
        },
        has_weights: !profile.weights_disallowed,
        actions: FxHashSet::default(),
        name,
    };
    Ok((id, shape))
}

/// Width of a field. Text has none: controllers see it in place of a number, or as the name of an error or of
/// a member of an enumeration without values.
fn field_width(bitwidth: i32, owner: &str) -> Result<Option<u32>, PipelineError> {
    let width = u32::try_from(bitwidth).map_err(|_| negative(owner))?;
    Ok((width > 0).then_some(width))
}

fn key_fields(fields: &[MatchField], owner: &str) -> Result<FieldList, PipelineError> {
    use match_field::MatchType;
    let shape = |field: &MatchField| {
        let kind = match &field.r#match {
            Some(match_field::Match::MatchType(number)) => match MatchType::try_from(*number) {
                Ok(MatchType::Exact) => FieldKind::Exact,
                Ok(MatchType::Lpm) => FieldKind::Lpm,
                Ok(MatchType::Ternary) => FieldKind::Ternary,
                Ok(MatchType::Range) => FieldKind::Range,
                Ok(MatchType::Optional) => FieldKind::Optional,
                Ok(MatchType::Unspecified) | Err(_) => FieldKind::Other,
            },
            _ => FieldKind::Other,
        };
        let width = field_width(field.bitwidth, owner)?;
        Ok(FieldShape { id: field.id, name: field.name.clone(), kind, width })
    };
    FieldList::new(fields.iter().map(shape).collect::<Result<_, _>>()?)
}

fn action_parameters(action: &Action, owner: &str) -> Result<FieldList, PipelineError> {
    let shape = |param: &crate::proto::config::v1::action::Param| {
        let width = field_width(param.bitwidth, owner)?;
        Ok(FieldShape { id: param.id, name: param.name.clone(), kind: FieldKind::Exact, width })
    };
    FieldList::new(action.params.iter().map(shape).collect::<Result<_, _>>()?)
}
