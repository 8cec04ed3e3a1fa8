//! Value sets and digests. Source: P4Runtime specification 1.4, sections 9.6 and 9.8.

use rustc_hash::FxHashSet;

use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::keys::{read_values, write_values};
use crate::entities::state::{EmitEntity, EntityStore, ReadResult, UndoStep, UpdateKind, only_modify};
use crate::proto::v1::{DigestEntry, ValueSetEntry, ValueSetMember, digest_entry, entity};

pub(crate) fn write_value_set(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &ValueSetEntry,
) -> Result<UndoStep, EntityError> {
    only_modify(kind, "a value set")?;
    let id = given.value_set_id;
    let Some(shape) = store.index.value_sets.get(&id) else { return Err(no_value_set(id)) };
    if given.members.len() > shape.size {
        let message = format!("`{}` has room for {} members", shape.name, shape.size);
        return Err(EntityError::new(ErrorKind::ResourceExhausted, message));
    }
    let mut seen = FxHashSet::default();
    let mut members = Vec::with_capacity(given.members.len());
    for member in &given.members {
        let values = read_values(&shape.fields, &member.r#match)?;
        members.push(ValueSetMember { r#match: write_values(&shape.fields, &values) });
        if !seen.insert(values) {
            let message = format!("two members of `{}` are the same", shape.name);
            return Err(EntityError::new(ErrorKind::AlreadyExists, message));
        }
    }
    let before = store.value_sets.insert(id, members).unwrap_or_default();
    Ok(UndoStep::ValueSet(id, before))
}

pub(crate) fn read_value_sets(
    store: &EntityStore,
    request: &ValueSetEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let mut each = |value_set_id: u32, members: &Vec<ValueSetMember>| {
        let members = members.clone();
        emit(entity::Entity::ValueSetEntry(ValueSetEntry { value_set_id, members }))
    };
    match (request.value_set_id, store.value_sets.get(&request.value_set_id)) {
        (0, _) => Ok(store.value_sets.iter().try_for_each(|(id, members)| each(*id, members))),
        (id, Some(members)) => Ok(each(id, members)),
        (id, None) => Err(no_value_set(id)),
    }
}

pub(crate) fn write_digest(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &DigestEntry,
) -> Result<UndoStep, EntityError> {
    let id = given.digest_id;
    let Some(name) = store.index.digests.get(&id) else { return Err(no_digest(id)) };
    match (kind, store.digests.contains_key(&id)) {
        (UpdateKind::Insert, true) => {
            let message = format!("the digest `{name}` is enabled already");
            return Err(EntityError::new(ErrorKind::AlreadyExists, message));
        }
        (UpdateKind::Modify | UpdateKind::Delete, false) => {
            return Err(EntityError::not_found(format!("the digest `{name}` is not enabled")));
        }
        (UpdateKind::Delete, true) => return Ok(UndoStep::Digest(id, store.digests.remove(&id))),
        _ => {}
    }
    let config = given.config.unwrap_or_default();
    let digest_entry::Config { max_timeout_ns, max_list_size, ack_timeout_ns } = config;
    if max_timeout_ns < 0 || max_list_size < 0 || ack_timeout_ns < 0 {
        return Err(EntityError::invalid("times and sizes of a digest cannot be negative"));
    }
    Ok(UndoStep::Digest(id, store.digests.insert(id, config)))
}

pub(crate) fn read_digests(
    store: &EntityStore,
    request: &DigestEntry,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let mut each = |digest_id: u32, config: &digest_entry::Config| {
        emit(entity::Entity::DigestEntry(DigestEntry { digest_id, config: Some(*config) }))
    };
    let id = request.digest_id;
    if id == 0 {
        return Ok(store.digests.iter().try_for_each(|(id, config)| each(*id, config)));
    }
    match (store.index.digests.get(&id), store.digests.get(&id)) {
        (None, _) => Err(no_digest(id)),
        (Some(name), None) => Err(EntityError::not_found(format!("the digest `{name}` is not enabled"))),
        (Some(_), Some(config)) => Ok(each(id, config)),
    }
}

fn no_value_set(id: u32) -> EntityError {
    EntityError::invalid(format!("no value set has the id {id:#x}"))
}

fn no_digest(id: u32) -> EntityError {
    EntityError::invalid(format!("no digest has the id {id:#x}"))
}
