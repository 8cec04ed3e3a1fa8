//! Members and groups of action profiles. Source: P4Runtime specification 1.4, section 9.2.

use std::ops::ControlFlow;

use rustc_hash::FxHashSet;

use crate::entities::actions::check_weights;
use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::pipeline::ProfileShape;
use crate::entities::state::{EmitEntity, EntityStore, ProfileState, ReadResult, UndoStep, UpdateKind};
use crate::proto::v1::{
    Action, ActionProfileGroup, ActionProfileMember, action_profile_group, entity, table_action,
};

fn exists(what: &str, id: u32) -> EntityError {
    EntityError::new(ErrorKind::AlreadyExists, format!("the {what} {id} exists already"))
}

fn absent(what: &str, id: u32) -> EntityError {
    EntityError::not_found(format!("the {what} {id} does not exist"))
}

fn in_use(what: &str, id: u32) -> EntityError {
    EntityError::new(ErrorKind::FailedPrecondition, format!("the {what} {id} is in use"))
}

fn profile_state(store: &EntityStore, id: u32) -> Result<(&ProfileShape, &ProfileState), EntityError> {
    let found = store.index.profiles.get(&id).zip(store.profiles.get(&id));
    found.ok_or_else(|| EntityError::invalid(format!("no action profile has the id {id:#x}")))
}

/// Checks that the member or group of an entry's action exists, and that one-shot groups are not mixed
/// with others.
pub(crate) fn check_profile_reference(
    store: &EntityStore,
    profile: u32,
    action: &table_action::Type,
) -> Result<(), EntityError> {
    let (shape, state) = profile_state(store, profile)?;
    match action {
        table_action::Type::ActionProfileMemberId(id) if !state.members.contains_key(id) => {
            Err(absent("member", *id))
        }
        table_action::Type::ActionProfileGroupId(id) if !state.groups.contains_key(id) => {
            Err(absent("group", *id))
        }
        table_action::Type::ActionProfileActionSet(_)
            if !state.members.is_empty() || !state.groups.is_empty() =>
        {
            Err(mixed(shape))
        }
        _ => Ok(()),
    }
}

pub(crate) fn write_member(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &ActionProfileMember,
) -> Result<UndoStep, EntityError> {
    let (shape, state) = profile_state(store, given.action_profile_id)?;
    let id = given.member_id;
    if id == 0 {
        return Err(EntityError::invalid("members have ids above zero"));
    }
    let member = match (kind, state.members.contains_key(&id)) {
        (UpdateKind::Insert, true) => return Err(exists("member", id)),
        (UpdateKind::Modify | UpdateKind::Delete, false) => return Err(absent("member", id)),
        (UpdateKind::Delete, true) if state.member_uses.contains_key(&id) => {
            return Err(in_use("member", id));
        }
        (UpdateKind::Delete, true) => None,
        (UpdateKind::Insert, false) if state.one_shots > 0 => return Err(mixed(shape)),
        (UpdateKind::Insert | UpdateKind::Modify, _) => Some(member_action(store, shape, given)?),
    };
    let is_full = shape.size.is_some_and(|size| state.members.len() >= size);
    if kind == UpdateKind::Insert && is_full {
        return Err(EntityError::new(ErrorKind::ResourceExhausted, format!("`{}` is full", shape.name)));
    }
    let before = store.set_member(given.action_profile_id, id, member);
    Ok(UndoStep::Member(given.action_profile_id, id, before))
}

fn member_action(
    store: &EntityStore,
    shape: &ProfileShape,
    given: &ActionProfileMember,
) -> Result<Action, EntityError> {
    let action = given.action.as_ref();
    let action = action.ok_or_else(|| EntityError::invalid("a member needs an action"))?;
    match shape.actions.contains(&action.action_id) {
        true => store.index.read_action(action),
        false => {
            let message =
                format!("no table of `{}` has an action with the id {:#x}", shape.name, action.action_id);
            Err(EntityError::invalid(message))
        }
    }
}

pub(crate) fn write_group(
    store: &mut EntityStore,
    kind: UpdateKind,
    given: &ActionProfileGroup,
) -> Result<UndoStep, EntityError> {
    let (shape, state) = profile_state(store, given.action_profile_id)?;
    if !shape.has_selector {
        return Err(EntityError::invalid(format!("`{}` has no selector, and so no groups", shape.name)));
    }
    let id = given.group_id;
    if id == 0 {
        return Err(EntityError::invalid("groups have ids above zero"));
    }
    let group = match (kind, state.groups.get(&id)) {
        (UpdateKind::Insert, Some(_)) => return Err(exists("group", id)),
        (UpdateKind::Modify | UpdateKind::Delete, None) => return Err(absent("group", id)),
        (UpdateKind::Delete, Some(_)) if state.group_uses.contains_key(&id) => {
            return Err(in_use("group", id));
        }
        (UpdateKind::Delete, Some(_)) => None,
        (UpdateKind::Insert, None) if state.one_shots > 0 => return Err(mixed(shape)),
        (UpdateKind::Modify, Some(existing)) if existing.max_size != given.max_size => {
            return Err(EntityError::invalid("the largest size of a group cannot change"));
        }
        (UpdateKind::Insert | UpdateKind::Modify, _) => {
            check_group(shape, state, given)?;
            Some(given.clone())
        }
    };
    let before = store.set_group(given.action_profile_id, id, group);
    Ok(UndoStep::Group(given.action_profile_id, id, before))
}

pub(crate) fn read_members(
    store: &EntityStore,
    request: &ActionProfileMember,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let mut each = |profile: u32, id: u32, action: &Action| {
        let action = Some(action.clone());
        let member = ActionProfileMember { action_profile_id: profile, member_id: id, action };
        emit(entity::Entity::ActionProfileMember(member))
    };
    visit_profiles(store, request.action_profile_id, &mut |profile, state| {
        if request.member_id == 0 {
            return Ok(state.members.iter().try_for_each(|(id, action)| each(profile, *id, action)));
        }
        let id = request.member_id;
        state.members.get(&id).map(|action| each(profile, id, action)).ok_or_else(|| absent("member", id))
    })
}

pub(crate) fn read_groups(
    store: &EntityStore,
    request: &ActionProfileGroup,
    emit: &mut EmitEntity<'_>,
) -> ReadResult {
    let mut each = |group: &ActionProfileGroup| emit(entity::Entity::ActionProfileGroup(group.clone()));
    visit_profiles(store, request.action_profile_id, &mut |_, state| {
        if request.group_id == 0 {
            return Ok(state.groups.values().try_for_each(&mut each));
        }
        let id = request.group_id;
        state.groups.get(&id).map(&mut each).ok_or_else(|| absent("group", id))
    })
}

/// Visits one action profile, or all; then ids of members and groups select nothing.
fn visit_profiles(
    store: &EntityStore,
    id: u32,
    visit: &mut dyn FnMut(u32, &ProfileState) -> ReadResult,
) -> ReadResult {
    if id != 0 {
        return visit(id, profile_state(store, id)?.1);
    }
    for (id, state) in &store.profiles {
        match visit(*id, state) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Ok(ControlFlow::Continue(())) => {}
            result => return result,
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn mixed(shape: &ProfileShape) -> EntityError {
    let message = format!("`{}` has either groups of entries, or members and groups of its own", shape.name);
    EntityError::invalid(message)
}

fn check_group(
    shape: &ProfileShape,
    state: &ProfileState,
    given: &ActionProfileGroup,
) -> Result<(), EntityError> {
    let is_allowed = match shape.max_group_size {
        0 => given.max_size >= 0,
        most => (1..=most).contains(&given.max_size),
    };
    if !is_allowed {
        return Err(EntityError::invalid(format!("a group cannot have the largest size {}", given.max_size)));
    }
    let mut seen = FxHashSet::default();
    for member in &given.members {
        let action_profile_group::Member { member_id, .. } = member;
        if !state.members.contains_key(member_id) {
            return Err(absent("member", *member_id));
        }
        if !seen.insert(*member_id) {
            return Err(EntityError::invalid(format!("the member {member_id} is in the group twice")));
        }
    }
    let size = check_weights(shape, given.members.iter().map(|member| member.weight))?;
    match given.max_size > 0 && size > i64::from(given.max_size) {
        true => {
            let message = format!("the group has the size {size} and at most {}", given.max_size);
            Err(EntityError::new(ErrorKind::ResourceExhausted, message))
        }
        false => Ok(()),
    }
}
