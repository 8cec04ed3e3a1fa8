//! Actions of entries: direct ones, members and groups of action profiles, and one-shot groups. Source:
//! P4Runtime specification 1.4, sections 9.1.2 and 9.2.

use crate::entities::error::{EntityError, ErrorKind};
use crate::entities::keys::field_value;
use crate::entities::pipeline::{PipelineIndex, ProfileShape, TableShape};
use crate::proto::config::v1::action_ref;
use crate::proto::v1::{
    Action, ActionProfileAction, ActionProfileActionSet, TableAction, action, action_profile_action_set,
    table_action,
};

/// Use of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActionUse {
    Entry,
    Default,
}

impl PipelineIndex {
    /// Reads an action with its arguments, and gives it with canonical arguments in the order of P4Info.
    pub(crate) fn read_action(&self, given: &Action) -> Result<Action, EntityError> {
        let Some(shape) = self.actions.get(&given.action_id) else {
            return Err(EntityError::invalid(format!("no action has the id {:#x}", given.action_id)));
        };
        let wrong = |reason: String| EntityError::invalid(format!("`{}` {reason}", shape.name));
        let mut values: Vec<Option<Vec<u8>>> = vec![None; shape.parameters.len()];
        for param in &given.params {
            let Some(at) = shape.parameters.place(param.param_id) else {
                return Err(wrong(format!("has no parameter with the id {}", param.param_id)));
            };
            let value = field_value(&shape.parameters[at], &param.value)?;
            if values[at].replace(value).is_some() {
                return Err(wrong(format!("has its parameter `{}` twice", shape.parameters[at].name)));
            }
        }
        let mut params = Vec::with_capacity(values.len());
        for (parameter, value) in shape.parameters.iter().zip(values) {
            let value = value.ok_or_else(|| wrong(format!("lacks its parameter `{}`", parameter.name)))?;
            params.push(action::Param { param_id: parameter.id, value });
        }
        Ok(Action { action_id: given.action_id, params })
    }

    /// Reads an action of a table.
    pub(crate) fn read_table_action(
        &self,
        table: &TableShape,
        given: &Action,
        action_use: ActionUse,
    ) -> Result<Action, EntityError> {
        use action_ref::Scope;
        let Some(scope) = table.actions.get(&given.action_id) else {
            let message = format!("`{}` has no action with the id {:#x}", table.name, given.action_id);
            return Err(EntityError::invalid(message));
        };
        match (scope, action_use) {
            (Scope::TableOnly, ActionUse::Default) => Err(EntityError::new(
                ErrorKind::PermissionDenied,
                format!("this action cannot be the default action of `{}`", table.name),
            )),
            (Scope::DefaultOnly, ActionUse::Entry) => Err(EntityError::new(
                ErrorKind::PermissionDenied,
                format!("this action can only be the default action of `{}`", table.name),
            )),
            _ => self.read_action(given),
        }
    }

    /// Reads the action of an entry, whose form follows from the table's action profile.
    pub(crate) fn read_entry_action(
        &self,
        table: &TableShape,
        given: &TableAction,
    ) -> Result<TableAction, EntityError> {
        use table_action::Type;
        let profile = table.profile.and_then(|profile| self.profiles.get(&profile));
        let wrong = || EntityError::invalid(format!("`{}` takes another form of action", table.name));
        let value = match (given.r#type.as_ref(), profile) {
            (Some(Type::Action(action)), None) => {
                Type::Action(self.read_table_action(table, action, ActionUse::Entry)?)
            }
            (Some(Type::ActionProfileMemberId(member)), Some(_)) => Type::ActionProfileMemberId(*member),
            (Some(Type::ActionProfileGroupId(group)), Some(profile)) if profile.has_selector => {
                Type::ActionProfileGroupId(*group)
            }
            (Some(Type::ActionProfileActionSet(set)), Some(profile)) if profile.has_selector => {
                Type::ActionProfileActionSet(self.read_action_set(table, profile, set)?)
            }
            _ => return Err(wrong()),
        };
        Ok(TableAction { r#type: Some(value) })
    }

    fn read_action_set(
        &self,
        table: &TableShape,
        profile: &ProfileShape,
        given: &ActionProfileActionSet,
    ) -> Result<ActionProfileActionSet, EntityError> {
        if given.group_action.is_some() {
            return Err(EntityError::unimplemented("actions of a whole group are not supported"));
        }
        if given.action_selection_mode() != action_profile_action_set::ActionSelectionMode::default()
            || given.size_semantics() != action_profile_action_set::SizeSemantics::default()
        {
            return Err(EntityError::unimplemented("groups have the mode and size of their selector"));
        }
        check_weights(profile, given.action_profile_actions.iter().map(|member| member.weight))?;
        let member = |member: &ActionProfileAction| {
            let action = member.action.as_ref();
            let action = action.ok_or_else(|| EntityError::invalid("a member of the group has no action"))?;
            Ok(ActionProfileAction {
                action: Some(self.read_table_action(table, action, ActionUse::Entry)?),
                weight: member.weight,
                watch_kind: member.watch_kind.clone(),
            })
        };
        let actions = given.action_profile_actions.iter().map(member);
        Ok(ActionProfileActionSet {
            action_profile_actions: actions.collect::<Result<_, EntityError>>()?,
            ..ActionProfileActionSet::default()
        })
    }
}

/// Checks the weights of the members of a group, and its size.
pub(crate) fn check_weights(
    profile: &ProfileShape,
    weights: impl Iterator<Item = i32>,
) -> Result<i64, EntityError> {
    let (mut sum, mut count) = (0i64, 0i64);
    for weight in weights {
        count += 1;
        sum += i64::from(weight);
        let is_right = if profile.has_weights { weight > 0 } else { weight == 0 };
        if !is_right {
            return Err(EntityError::invalid(format!("the weight {weight} is not allowed here")));
        }
        if let Some(most) = profile.max_member_weight.filter(|most| *most > 0 && weight > *most) {
            return Err(EntityError::invalid(format!("the weight {weight} is larger than {most}")));
        }
    }
    let size = if profile.max_member_weight.is_some() { count } else { sum };
    match profile.max_group_size > 0 && size > i64::from(profile.max_group_size) {
        true => Err(EntityError::invalid(format!("a group of `{}` has the size {size}", profile.name))),
        false => Ok(size),
    }
}
