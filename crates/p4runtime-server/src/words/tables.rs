//! Commands about tables.

use millstream_p4runtime::proto::config::v1::{P4Info, Table, match_field::MatchType};
use millstream_p4runtime::proto::v1::{
    Action, FieldMatch, TableAction, TableEntry, action, entity, field_match, table_action, update,
};

use super::{CommandResult, USAGE, at_least, exactly, number, read, write, write_all};
use crate::controlled::ControlledSwitch;
use crate::names::{find, find_action, id_of, name_of};
use crate::runtime_file::update_of;
use crate::values::{field_match as make_match, match_type, parse_condition, parse_value};

/// Priority of P4Runtime that is highest: the reference switch's 0.
const HIGHEST: i32 = i32::MAX - 1;

/// Kinds of what an entry refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IndirectKind {
    Member,
    Group,
}

fn info_of(switch: &ControlledSwitch) -> std::sync::Arc<crate::program::ControlProgram> {
    std::sync::Arc::clone(switch.program())
}

/// The table of a name; the P4Info is that of the program.
fn table_of<'i>(info: &'i P4Info, name: &str) -> Result<&'i Table, String> {
    find(&info.tables, name)
}

fn needs_priority(table: &Table) -> bool {
    let ordered = [MatchType::Ternary, MatchType::Range, MatchType::Optional];
    table.match_fields.iter().any(|field| ordered.contains(&match_type(field)))
}

/// An action with its arguments.
pub(super) fn action_of(
    own: &millstream_p4runtime::proto::config::v1::Action,
    arguments: &[&str],
) -> Result<Action, String> {
    if own.params.len() != arguments.len() {
        let (name, wanted) = (name_of(own), own.params.len());
        return Err(format!("`{name}` takes {wanted} arguments, not {}", arguments.len()));
    }
    let param = |(param, text): (&millstream_p4runtime::proto::config::v1::action::Param, &&str)| {
        let value = parse_value(text, param.bitwidth.unsigned_abs(), &param.name)?;
        Ok(action::Param { param_id: param.id, value: value.to_bytes_be() })
    };
    let params = own.params.iter().zip(arguments).map(param).collect::<Result<_, String>>()?;
    Ok(Action { action_id: id_of(own), params })
}

/// Conditions in front of `=>`.
fn conditions_of(table: &Table, words: &[&str]) -> Result<Vec<FieldMatch>, String> {
    if words.len() != table.match_fields.len() {
        let wanted = table.match_fields.len();
        return Err(format!("the key of `{}` has {wanted} fields, not {}", name_of(table), words.len()));
    }
    let mut conditions = Vec::new();
    for (field, text) in table.match_fields.iter().zip(words) {
        conditions.extend(make_match(field, parse_condition(text, field)?)?);
    }
    Ok(conditions)
}

/// Parts of a command in front of and behind `=>`, and the priority of P4Runtime.
fn split<'r, 'a>(table: &Table, words: &'r [&'a str]) -> Result<(&'r [&'a str], &'r [&'a str], i32), String> {
    let at = words.iter().position(|word| *word == "=>").ok_or_else(|| USAGE.to_owned())?;
    let (keys, behind) = (&words[..at], &words[at + 1..]);
    if !needs_priority(table) {
        return Ok((keys, behind, 0));
    }
    let (priority, arguments) =
        behind.split_last().ok_or("entries of this table need a priority at the end, 0 is the highest")?;
    let priority: i32 = number(priority)?;
    match (0..HIGHEST).contains(&priority) {
        true => Ok((keys, arguments, HIGHEST - priority)),
        false => Err(format!("the priority {priority} is out of range")),
    }
}

fn insert(switch: &mut ControlledSwitch, entry: TableEntry) -> CommandResult {
    let table = entry.table_id;
    let key = switch.store.key_of(&entry).map_err(|error| error.message)?;
    write(switch, update::Type::Insert, entity::Entity::TableEntry(entry))?;
    let handle = switch.handles.add(table, key);
    Ok(format!("Entry has been added with handle {handle}"))
}

pub(super) fn add(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([table, action], rest) = at_least(arguments)?;
    let program = info_of(switch);
    let info = &program.description.info;
    let table = table_of(info, table)?;
    let (keys, arguments, priority) = split(table, rest)?;
    let action = action_of(find_action(info, table, action)?, arguments)?;
    let entry = TableEntry {
        table_id: id_of(table),
        r#match: conditions_of(table, keys)?,
        action: Some(TableAction { r#type: Some(table_action::Type::Action(action)) }),
        priority,
        ..TableEntry::default()
    };
    insert(switch, entry)
}

fn add_indirect(switch: &mut ControlledSwitch, arguments: &[&str], kind: IndirectKind) -> CommandResult {
    let ([table], rest) = at_least(arguments)?;
    let program = info_of(switch);
    let table = table_of(&program.description.info, table)?;
    let (keys, behind, priority) = split(table, rest)?;
    let [handle] = exactly(behind)?;
    let id = number::<u32>(handle)?.saturating_add(1);
    let kind = match kind {
        IndirectKind::Member => table_action::Type::ActionProfileMemberId(id),
        IndirectKind::Group => table_action::Type::ActionProfileGroupId(id),
    };
    let entry = TableEntry {
        table_id: id_of(table),
        r#match: conditions_of(table, keys)?,
        action: Some(TableAction { r#type: Some(kind) }),
        priority,
        ..TableEntry::default()
    };
    insert(switch, entry)
}

pub(super) fn add_member(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    add_indirect(switch, arguments, IndirectKind::Member)
}

pub(super) fn add_group(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    add_indirect(switch, arguments, IndirectKind::Group)
}

/// The entry of a handle, with its key alone.
fn entry_of(switch: &ControlledSwitch, table: u32, handle: u64) -> Result<TableEntry, String> {
    let key = switch.handles.key(table, handle)?;
    let found = switch.store.entry(table, &key).and_then(|_| switch.store.named(table, &key));
    found.ok_or_else(|| format!("no entry has the handle {handle}"))
}

pub(super) fn modify(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([table, action, handle], arguments) = at_least(arguments)?;
    let program = info_of(switch);
    let info = &program.description.info;
    let table = table_of(info, table)?;
    let mut entry = entry_of(switch, id_of(table), number(handle)?)?;
    let arguments = arguments.strip_prefix(&["=>"]).unwrap_or(arguments);
    let action = action_of(find_action(info, table, action)?, arguments)?;
    entry.action = Some(TableAction { r#type: Some(table_action::Type::Action(action)) });
    write(switch, update::Type::Modify, entity::Entity::TableEntry(entry))?;
    Ok(String::new())
}

pub(super) fn set_timeout(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table, handle, milliseconds] = exactly(arguments)?;
    let program = info_of(switch);
    let table = id_of(table_of(&program.description.info, table)?);
    let mut entry = entry_of(switch, table, number(handle)?)?;
    let milliseconds: i64 = number(milliseconds)?;
    entry.idle_timeout_ns = milliseconds.saturating_mul(1_000_000);
    write(switch, update::Type::Modify, entity::Entity::TableEntry(entry))?;
    Ok(String::new())
}

pub(super) fn delete(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table, handle] = exactly(arguments)?;
    let program = info_of(switch);
    let table = id_of(table_of(&program.description.info, table)?);
    let handle = number(handle)?;
    let entry = entry_of(switch, table, handle)?;
    write(switch, update::Type::Delete, entity::Entity::TableEntry(entry))?;
    switch.handles.remove(table, handle);
    Ok(String::new())
}

pub(super) fn clear(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table] = exactly(arguments)?;
    let program = info_of(switch);
    let table = id_of(table_of(&program.description.info, table)?);
    let named = switch.store.entries(table).filter_map(|(key, _)| switch.store.named(table, key));
    let updates: Vec<_> =
        named.map(|entry| update_of(update::Type::Delete, entity::Entity::TableEntry(entry))).collect();
    write_all(switch, &updates)?;
    Ok(String::new())
}

pub(super) fn set_default(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let ([table, action], arguments) = at_least(arguments)?;
    let program = info_of(switch);
    let info = &program.description.info;
    let table = table_of(info, table)?;
    let arguments = arguments.strip_prefix(&["=>"]).unwrap_or(arguments);
    let action = action_of(find_action(info, table, action)?, arguments)?;
    write_default(switch, id_of(table), Some(action))
}

pub(super) fn reset_default(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table] = exactly(arguments)?;
    let program = info_of(switch);
    let table = id_of(table_of(&program.description.info, table)?);
    write_default(switch, table, None)
}

fn write_default(switch: &mut ControlledSwitch, table_id: u32, action: Option<Action>) -> CommandResult {
    let action = action.map(|action| TableAction { r#type: Some(table_action::Type::Action(action)) });
    let entry = TableEntry { table_id, action, is_default_action: true, ..TableEntry::default() };
    write(switch, update::Type::Modify, entity::Entity::TableEntry(entry))?;
    Ok(String::new())
}

pub(super) fn count(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table] = exactly(arguments)?;
    let program = info_of(switch);
    Ok(switch.store.entry_count(id_of(table_of(&program.description.info, table)?)).to_string())
}

/// Name of a match kind, as the reference switch writes it.
fn kind_text(kind: MatchType) -> &'static str {
    match kind {
        MatchType::Exact => "exact",
        MatchType::Lpm => "lpm",
        MatchType::Ternary => "ternary",
        MatchType::Range => "range",
        MatchType::Optional => "optional",
        MatchType::Unspecified => "other",
    }
}

fn header_line(table: &Table) -> String {
    let fields = table.match_fields.iter();
    let fields: Vec<String> = fields
        .map(|field| format!("{}({}, {})", field.name, kind_text(match_type(field)), field.bitwidth))
        .collect();
    format!("{:30} [size={}, mk={}]", name_of(table), table.size, fields.join(",\t"))
}

pub(super) fn show(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [] = exactly(arguments)?;
    let program = info_of(switch);
    Ok(program.description.info.tables.iter().map(header_line).collect::<Vec<_>>().join("\n"))
}

pub(super) fn show_table_actions(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table] = exactly(arguments)?;
    let program = info_of(switch);
    let info = &program.description.info;
    let table = table_of(info, table)?;
    let own = info
        .actions
        .iter()
        .filter(|action| table.action_refs.iter().any(|reference| reference.id == id_of(*action)));
    let line = |action: &millstream_p4runtime::proto::config::v1::Action| {
        let params: Vec<String> =
            action.params.iter().map(|param| format!("{}({})", param.name, param.bitwidth)).collect();
        format!("{:30} [{}]", name_of(action), params.join(",\t"))
    };
    Ok(own.map(line).collect::<Vec<_>>().join("\n"))
}

pub(super) fn info(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [name] = exactly(arguments)?;
    let program = info_of(switch);
    let line = header_line(table_of(&program.description.info, name)?);
    let actions = show_table_actions(switch, arguments)?;
    Ok(format!("{line}\n{:*<80}\n{actions}", ""))
}

/// Text of a condition, with the digits of the field's width.
fn condition_text(bits: i32, value: Option<&FieldMatch>) -> String {
    use field_match::FieldMatchType::{Exact, Lpm, Optional, Range, Ternary};
    let digits = (bits.unsigned_abs() as usize).div_ceil(8) * 2;
    let padded = |bytes: &[u8]| format!("{:0>digits$}", hex::encode(bytes));
    match value.and_then(|value| value.field_match_type.as_ref()) {
        None => "*".to_owned(),
        Some(Exact(exact)) => padded(&exact.value),
        Some(Optional(one)) => padded(&one.value),
        Some(Lpm(lpm)) => format!("{}/{}", padded(&lpm.value), lpm.prefix_len),
        Some(Ternary(ternary)) => format!("{} &&& {}", padded(&ternary.value), padded(&ternary.mask)),
        Some(Range(range)) => format!("{} -> {}", padded(&range.low), padded(&range.high)),
        Some(_) => "?".to_owned(),
    }
}

pub(super) fn action_text(info: &P4Info, action: Option<&TableAction>) -> String {
    use table_action::Type;
    match action.and_then(|action| action.r#type.as_ref()) {
        Some(Type::Action(action)) => format!("Action entry: {}", plain_action_text(info, action)),
        Some(Type::ActionProfileMemberId(id)) => format!("Index: member({})", id.saturating_sub(1)),
        Some(Type::ActionProfileGroupId(id)) => format!("Index: group({})", id.saturating_sub(1)),
        Some(Type::ActionProfileActionSet(set)) => {
            format!("Index: group of its own, {} members", set.action_profile_actions.len())
        }
        None => "Action entry: none".to_owned(),
    }
}

/// Name and arguments of an action.
pub(super) fn plain_action_text(info: &P4Info, action: &Action) -> String {
    let own = info.actions.iter().find(|own| id_of(*own) == action.action_id);
    let widths = own.map(|own| own.params.iter().map(|param| param.bitwidth).collect::<Vec<_>>());
    let arguments: Vec<String> = action
        .params
        .iter()
        .zip(widths.unwrap_or_default())
        .map(|(param, bits)| {
            format!("{:0>digits$}", hex::encode(&param.value), digits = (bits as usize).div_ceil(8) * 2)
        })
        .collect();
    format!("{} - {}", own.map_or("?", name_of), arguments.join(", "))
}

fn entry_text(info: &P4Info, table: &Table, handle: u64, entry: &TableEntry) -> String {
    let mut lines = vec![format!("Dumping entry {handle:#x}"), "Match key:".to_owned()];
    for field in &table.match_fields {
        let value = entry.r#match.iter().find(|value| value.field_id == field.id);
        let kind = kind_text(match_type(field)).to_uppercase();
        lines.push(format!("* {:20}: {kind:9} {}", field.name, condition_text(field.bitwidth, value)));
    }
    if entry.priority > 0 {
        lines.push(format!("Priority: {}", HIGHEST.saturating_sub(entry.priority)));
    }
    lines.push(action_text(info, entry.action.as_ref()));
    lines.join("\n")
}

/// An entry as a controller reads it.
fn read_entry(switch: &mut ControlledSwitch, entry: TableEntry) -> Result<TableEntry, String> {
    let found = read(switch, entity::Entity::TableEntry(entry))?;
    match found.into_iter().next() {
        Some(entity::Entity::TableEntry(entry)) => Ok(entry),
        _ => Err("the entry is gone".to_owned()),
    }
}

pub(super) fn dump_entry(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table, handle] = exactly(arguments)?;
    let program = info_of(switch);
    let info = &program.description.info;
    let table = table_of(info, table)?;
    let handle = number(handle)?;
    let entry = entry_of(switch, id_of(table), handle)?;
    let entry = read_entry(switch, entry)?;
    Ok(entry_text(info, table, handle, &entry))
}

pub(super) fn dump(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [table] = exactly(arguments)?;
    let program = info_of(switch);
    let info = &program.description.info;
    let table = table_of(info, table)?;
    let id = id_of(table);
    let keys = switch.store.entries(id).map(|(key, _)| key.clone()).collect();
    let mut lines = vec!["==========".to_owned(), "TABLE ENTRIES".to_owned()];
    for (handle, key) in switch.handles.list(id, keys) {
        let Some(mut entry) = switch.store.named(id, &key) else { continue };
        entry.action = switch.store.entry(id, &key).and_then(|state| state.action.cloned());
        lines.push("**********".to_owned());
        lines.push(entry_text(info, table, handle, &entry));
    }
    lines.push("==========".to_owned());
    lines.push("Dumping default entry".to_owned());
    let default = switch.store.default_entry(id).and_then(|state| state.action);
    lines.push(action_text(info, default));
    lines.push("==========".to_owned());
    Ok(lines.join("\n"))
}
