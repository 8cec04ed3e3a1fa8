//! Commands as text: the words of the reference switch's command line. Source: `runtime_CLI.py` and
//! `sswitch_CLI.py` of behavioral-model, for names, order of arguments and the meaning of handles.

mod arrays;
mod groups;
mod handles;
mod profiles;
mod tables;

use millstream_p4runtime::entities::EntityError;
use millstream_p4runtime::proto::v1::write_request::Atomicity;
use millstream_p4runtime::proto::v1::{Entity, Update, entity, update};

use crate::controlled::ControlledSwitch;
use crate::handle::SwitchHandle;
use crate::names::name_of;
use crate::runtime_file::update_of;
pub(crate) use handles::CommandHandles;

/// Result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandOutcome {
    /// Text for people, in lines.
    pub text: String,
    /// The command was refused.
    pub failed: bool,
}

/// Result of a command: its text, or the reason of its refusal.
type CommandResult = Result<String, String>;

/// A command: its word, its arguments for the help, and its function.
type CommandRow = (&'static str, &'static str, fn(&mut ControlledSwitch, &[&str]) -> CommandResult);

/// All commands, by word.
const COMMANDS: &[CommandRow] = &[
    ("act_prof_add_member_to_group", "PROFILE MEMBER GROUP", profiles::add_to_group),
    ("act_prof_create_group", "PROFILE", profiles::create_group),
    ("act_prof_create_member", "PROFILE ACTION [ARG]...", profiles::create_member),
    ("act_prof_delete_group", "PROFILE GROUP", profiles::delete_group),
    ("act_prof_delete_member", "PROFILE MEMBER", profiles::delete_member),
    ("act_prof_dump", "PROFILE", profiles::dump),
    ("act_prof_modify_member", "PROFILE ACTION MEMBER [ARG]...", profiles::modify_member),
    ("act_prof_remove_member_from_group", "PROFILE MEMBER GROUP", profiles::remove_from_group),
    ("counter_read", "COUNTER INDEX", arrays::read_counter),
    ("counter_reset", "COUNTER", arrays::reset_counter),
    ("counter_write", "COUNTER INDEX PACKETS BYTES", arrays::write_counter),
    ("mc_dump", "", groups::dump),
    ("mc_mgrp_create", "GROUP", groups::create_group),
    ("mc_mgrp_destroy", "GROUP", groups::destroy_group),
    ("mc_node_associate", "GROUP NODE", groups::associate),
    ("mc_node_create", "RID PORT...", groups::create_node),
    ("mc_node_destroy", "NODE", groups::destroy_node),
    ("mc_node_dissociate", "GROUP NODE", groups::dissociate),
    ("mc_node_update", "NODE PORT...", groups::update_node),
    ("meter_array_set_rates", "METER RATE:BURST RATE:BURST", arrays::set_all_rates),
    ("meter_get_rates", "METER INDEX", arrays::get_rates),
    ("meter_set_rates", "METER INDEX RATE:BURST RATE:BURST", arrays::set_rates),
    ("mirroring_add", "SESSION PORT", groups::add_mirror),
    ("mirroring_add_mc", "SESSION GROUP", groups::add_group_mirror),
    ("mirroring_delete", "SESSION", groups::delete_mirror),
    ("mirroring_get", "SESSION", groups::get_mirror),
    ("register_read", "REGISTER [INDEX]", arrays::read_register),
    ("register_reset", "REGISTER", arrays::reset_register),
    ("register_write", "REGISTER INDEX VALUE", arrays::write_register),
    ("show_actions", "", show_actions),
    ("show_tables", "", tables::show),
    ("table_add", "TABLE ACTION KEY... => [ARG]... [PRIORITY]", tables::add),
    ("table_clear", "TABLE", tables::clear),
    ("table_delete", "TABLE HANDLE", tables::delete),
    ("table_dump", "TABLE", tables::dump),
    ("table_dump_entry", "TABLE HANDLE", tables::dump_entry),
    ("table_indirect_add", "TABLE KEY... => MEMBER [PRIORITY]", tables::add_member),
    ("table_indirect_add_with_group", "TABLE KEY... => GROUP [PRIORITY]", tables::add_group),
    ("table_indirect_delete", "TABLE HANDLE", tables::delete),
    ("table_info", "TABLE", tables::info),
    ("table_modify", "TABLE ACTION HANDLE [ARG]...", tables::modify),
    ("table_num_entries", "TABLE", tables::count),
    ("table_reset_default", "TABLE", tables::reset_default),
    ("table_set_default", "TABLE ACTION [ARG]...", tables::set_default),
    ("table_set_timeout", "TABLE HANDLE MILLISECONDS", tables::set_timeout),
    ("table_show_actions", "TABLE", tables::show_table_actions),
];

/// Runs a command line on the switch, between two packets. An empty line and a comment do nothing.
pub fn run_command(handle: &SwitchHandle, line: &str) -> CommandOutcome {
    let outcome = |result: CommandResult| match result {
        Ok(text) => CommandOutcome { text, failed: false },
        Err(text) => CommandOutcome { text: format!("error: {text}"), failed: true },
    };
    let line = line.split('#').next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let Some((word, arguments)) = words.split_first() else { return outcome(Ok(String::new())) };
    if *word == "help" {
        return outcome(help(arguments));
    }
    let Some((_, usage, run)) = COMMANDS.iter().find(|(name, ..)| name == word) else {
        return outcome(Err(format!("there is no command `{word}`; `help` lists all")));
    };
    let result = handle.control(|switch| run(switch, arguments));
    outcome(match result {
        None => Err("the switch has no program".to_owned()),
        Some(Err(reason)) if reason == USAGE => Err(format!("usage: {word} {usage}")),
        Some(result) => result,
    })
}

/// Reason of a command whose arguments are too few or too many.
const USAGE: &str = "usage";

fn help(arguments: &[&str]) -> CommandResult {
    let row = |(word, usage, _): &CommandRow| format!("{word} {usage}").trim_end().to_owned();
    match arguments.first() {
        None => Ok(COMMANDS.iter().map(row).collect::<Vec<_>>().join("\n")),
        Some(word) => {
            let found = COMMANDS.iter().find(|(name, ..)| name == word);
            found.map(row).ok_or_else(|| format!("there is no command `{word}`"))
        }
    }
}

/// The arguments, if they are as many as the command takes.
fn exactly<'a, const N: usize>(arguments: &[&'a str]) -> Result<[&'a str; N], String> {
    arguments.try_into().map_err(|_| USAGE.to_owned())
}

/// The first arguments, and the rest.
fn at_least<'r, 'a, const N: usize>(
    arguments: &'r [&'a str],
) -> Result<([&'a str; N], &'r [&'a str]), String> {
    arguments.split_first_chunk::<N>().map(|(first, rest)| (*first, rest)).ok_or_else(|| USAGE.to_owned())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number that fits here"))
}

/// Writes one entity.
fn write(switch: &mut ControlledSwitch, kind: update::Type, entity: entity::Entity) -> Result<(), String> {
    write_all(switch, &[update_of(kind, entity)])
}

/// Writes all updates, or none.
fn write_all(switch: &mut ControlledSwitch, updates: &[Update]) -> Result<(), String> {
    let outcome = switch.write(updates, Atomicity::RollbackOnError);
    let aborted = millstream_p4runtime::entities::ErrorKind::Aborted;
    let own = outcome.results.into_iter().filter_map(Result::err);
    own.reduce(|first, next| if first.kind == aborted { next } else { first })
        .map_or(Ok(()), |e| Err(e.message))
}

/// Reads the entities that one request selects.
fn read(switch: &mut ControlledSwitch, entity: entity::Entity) -> Result<Vec<entity::Entity>, String> {
    let found =
        switch.read(&[Entity { entity: Some(entity) }]).map_err(|error: EntityError| error.message)?;
    Ok(found.into_iter().filter_map(|entity| entity.entity).collect())
}

fn show_actions(switch: &mut ControlledSwitch, arguments: &[&str]) -> CommandResult {
    let [] = exactly(arguments)?;
    let program = switch.program();
    let line = |action: &millstream_p4runtime::proto::config::v1::Action| {
        let params: Vec<String> =
            action.params.iter().map(|param| format!("{}({})", param.name, param.bitwidth)).collect();
        format!("{:30} [{}]", name_of(action), params.join(", "))
    };
    Ok(program.description.info.actions.iter().map(line).collect::<Vec<_>>().join("\n"))
}
