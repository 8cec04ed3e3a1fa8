//! Commands about action profiles. Handles are ids of P4Runtime less one.

use std::sync::Arc;

use millstream_p4runtime::proto::config::v1::ActionProfile;
use millstream_p4runtime::proto::v1::{
    ActionProfileGroup, ActionProfileMember, action_profile_group, entity, update,
};

use super::tables::{action_of, plain_action_text};
use super::{CommandResult, at_least, exactly, number, read, write};
use crate::controlled::ControlledSwitch;
use crate::names::{find, find_action, id_of};
use crate::program::ControlProgram;

/// A number that the handle has not been given: one above the highest.
fn next_id(ids: impl Iterator<Item = u32>) -> u32 {
    ids.max().unwrap_or(0).saturating_add(1)
}

fn profile_of<'p>(program: &'p ControlProgram, name: &str) -> Result<&'p ActionProfile, String> {
    find(&program.description.info.action_profiles, name)
}

/// Id of a handle.
fn id_of_handle(text: &str) -> Result<u32, String> {
    number::<u32>(text).map(|handle| handle.saturating_add(1))
}

/// A member with an action that one of the profile's tables has.
fn member_of(
    program: &ControlProgram,
    profile: &ActionProfile,
    (id, action): (u32, &str),
    arguments: &[&str],
) -> Result<ActionProfileMember, String> {
    let info = &program.description.info;
    let tables = info.tables.iter().filter(|table| profile.table_ids.contains(&id_of(*table)));
    let mut found = Err(format!("no table of the action profile has an action `{action}`"));
    for table in tables {
        found = found.or_else(|_| find_action(info, table, action));
    }
    let action = action_of(found?, arguments)?;
    Ok(ActionProfileMember { action_profile_id: id_of(profile), member_id: id, action: Some(action) })
}

fn members(switch: &mut ControlledSwitch, profile: u32) -> Result<Vec<ActionProfileMember>, String> {
    let request = ActionProfileMember { action_profile_id: profile, ..ActionProfileMember::default() };
    let found = read(switch, entity::Entity::ActionProfileMember(request))?;
    Ok(found
        .into_iter()
        .filter_map(|entity| match entity {
            entity::Entity::ActionProfileMember(member) => Some(member),
            _ => None,
        })
        .collect())
}

pub(super) fn create_member(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([profile, action], arguments) = at_least(arguments)?;
    let program = Arc::clone(switch.program());
    let profile = profile_of(&program, profile)?;
    let id = next_id(members(switch, id_of(profile))?.iter().map(|member| member.member_id));
    let member = member_of(&program, profile, (id, action), arguments)?;
    write(switch, update::Type::Insert, entity::Entity::ActionProfileMember(member))?;
    Ok(format!("Member has been created with handle {}", id - 1))
}

pub(super) fn modify_member(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([profile, action, handle], arguments) = at_least(arguments)?;
    let program = Arc::clone(switch.program());
    let profile = profile_of(&program, profile)?;
    let member = member_of(&program, profile, (id_of_handle(handle)?, action), arguments)?;
    write(switch, update::Type::Modify, entity::Entity::ActionProfileMember(member))?;
    Ok(String::new())
}

pub(super) fn delete_member(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [profile, handle] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let action_profile_id = id_of(profile_of(&program, profile)?);
    let member = ActionProfileMember { action_profile_id, member_id: id_of_handle(handle)?, action: None };
    write(switch, update::Type::Delete, entity::Entity::ActionProfileMember(member))?;
    Ok(String::new())
}

pub(super) fn create_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [profile] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let profile = profile_of(&program, profile)?;
    let id = next_id(switch.store.groups(id_of(profile)).map(|group| group.group_id));
    let group = ActionProfileGroup {
        action_profile_id: id_of(profile),
        group_id: id,
        max_size: profile.max_group_size,
        ..ActionProfileGroup::default()
    };
    write(switch, update::Type::Insert, entity::Entity::ActionProfileGroup(group))?;
    Ok(format!("Group has been created with handle {}", id - 1))
}

pub(super) fn delete_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [profile, handle] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let action_profile_id = id_of(profile_of(&program, profile)?);
    let group_id = id_of_handle(handle)?;
    let group = ActionProfileGroup { action_profile_id, group_id, ..ActionProfileGroup::default() };
    write(switch, update::Type::Delete, entity::Entity::ActionProfileGroup(group))?;
    Ok(String::new())
}

/// Changes the members of a group.
fn change_group(
    switch: &mut ControlledSwitch,
    arguments: &[&str],
    change: impl FnOnce(&mut Vec<action_profile_group::Member>, u32),
) -> CommandResult {
    let [profile, member, handle] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let profile = id_of(profile_of(&program, profile)?);
    let found = switch.store.group(profile, id_of_handle(handle)?).cloned();
    let mut group = found.ok_or_else(|| format!("no group has the handle {handle}"))?;
    change(&mut group.members, id_of_handle(member)?);
    write(switch, update::Type::Modify, entity::Entity::ActionProfileGroup(group))?;
    Ok(String::new())
}

pub(super) fn add_to_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    change_group(switch, arguments, |members, member_id| {
        members.push(action_profile_group::Member {
            member_id,
            weight: 1,
            ..action_profile_group::Member::default()
        });
    })
}

pub(super) fn remove_from_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    change_group(switch, arguments, |members, id| members.retain(|member| member.member_id != id))
}

pub(super) fn dump(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [profile] = exactly(arguments)?;
    let program = Arc::clone(switch.program());
    let profile = profile_of(&program, profile)?;
    let mut lines = vec!["==========".to_owned(), "MEMBERS".to_owned()];
    for member in members(switch, id_of(profile))? {
        let action = member.action.as_ref();
        let text =
            action.map_or(String::new(), |action| plain_action_text(&program.description.info, action));
        lines.push(format!("{}: {text}", member.member_id.saturating_sub(1)));
    }
    lines.push("==========".to_owned());
    lines.push("GROUPS".to_owned());
    for group in switch.store.groups(id_of(profile)) {
        let ids = group.members.iter().map(|member| member.member_id.saturating_sub(1).to_string());
        lines.push(format!("{}: [{}]", group.group_id.saturating_sub(1), ids.collect::<Vec<_>>().join(", ")));
    }
    Ok(lines.join("\n"))
}
