//! All commands, from the definition of the command line, and possible values of their arguments.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};
use millstream_rng::Rng;

use crate::files::Files;

/// A command that has no subcommands.
pub(crate) struct Leaf {
    /// The words that name it.
    pub(crate) words: Vec<String>,
    /// Definitions of its parent commands and of itself.
    chain: Vec<Command>,
}

/// All commands.
pub(crate) fn all() -> Vec<Leaf> {
    let mut root = millstream_cli::definition();
    root.build();
    let mut leaves = Vec::new();
    descend(&root, Vec::new(), Vec::new(), &mut leaves);
    assert!(leaves.len() > 30, "{} commands", leaves.len());
    leaves
}

fn descend(command: &Command, words: Vec<String>, chain: Vec<Command>, leaves: &mut Vec<Leaf>) {
    let chain: Vec<Command> = chain.into_iter().chain([command.clone()]).collect();
    let below: Vec<&Command> = command.get_subcommands().filter(|c| c.get_name() != "help").collect();
    if below.is_empty() {
        return leaves.push(Leaf { words, chain });
    }
    for sub in below {
        let words = words.iter().cloned().chain([sub.get_name().to_owned()]).collect();
        descend(sub, words, chain.clone(), leaves);
    }
}

impl Leaf {
    /// The required arguments only, each with a value that makes sense.
    pub(crate) fn usable(&self, seed: u64, files: &Files) -> Vec<OsString> {
        self.drawn(&mut Rng::new(seed), files, 0, 100)
    }

    /// Arguments: required ones nearly always, each other one in so many of a hundred cases; so many of a
    /// hundred values make sense.
    pub(crate) fn drawn(&self, rng: &mut Rng, files: &Files, other: u64, usable: u64) -> Vec<OsString> {
        let mut out = Vec::new();
        for (level, command) in self.chain.iter().enumerate() {
            if level > 0 {
                out.push(self.words[level - 1].clone().into());
            }
            for argument in command.get_arguments() {
                let skip = matches!(
                    argument.get_action(),
                    ArgAction::Help | ArgAction::Version | ArgAction::HelpLong | ArgAction::HelpShort
                );
                // Flags of every command belong behind the last word.
                let elsewhere = argument.is_global_set() && level + 1 < self.chain.len();
                let needed = argument.is_required_set();
                let chance = if needed { if usable == 100 { 100 } else { 97 } } else { other };
                if skip || elsewhere || rng.below(100) >= chance {
                    continue;
                }
                append(&mut out, argument, rng, files, usable);
            }
        }
        out
    }
}

fn append(out: &mut Vec<OsString>, argument: &Arg, rng: &mut Rng, files: &Files, usable: u64) {
    let values = argument.get_num_args().unwrap_or_default();
    if !values.takes_values() {
        out.extend(argument.get_long().map(|long| OsString::from(format!("--{long}"))));
        return;
    }
    let many = rng.below(20) == 0 && usable < 100;
    let count = if argument.is_positional() && many { 2 } else { values.min_values().max(1) };
    for _ in 0..count {
        let value = if rng.below(100) < usable { fitting(argument, rng, files) } else { hostile(rng, files) };
        match (argument.get_long(), argument.get_short()) {
            (Some(long), _) => {
                let mut word = OsString::from(format!("--{long}="));
                word.push(value);
                out.push(word);
            }
            (None, Some(short)) => out.extend([OsString::from(format!("-{short}")), value]),
            (None, None) => out.push(value),
        }
    }
}

/// A value of the type that the argument has.
fn fitting(argument: &Arg, rng: &mut Rng, files: &Files) -> OsString {
    let possible = argument.get_possible_values();
    if !possible.is_empty() {
        return pick(rng, &possible).get_name().to_owned().into();
    }
    let kind = argument.get_value_parser().type_id();
    let name =
        argument.get_value_names().and_then(|names| names.first()).map(|n| n.to_string()).unwrap_or_default();
    let is = |kinds: &[TypeId]| kinds.iter().any(|k| kind == *k);
    if is(&[TypeId::of::<PathBuf>()]) || ["FILE", "OBJECT", "CONF"].iter().any(|n| name.contains(n)) {
        return files.drawn(rng);
    }
    if is(&[
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ]) || ["N", "MS", "SECONDS"].contains(&name.as_str())
    {
        return pick(rng, &["1", "2", "3", "7", "100", "1000"]).into();
    }
    if is(&[TypeId::of::<f64>()]) {
        return pick(rng, &["0.1", "1", "2.5"]).into();
    }
    if rng.below(2) == 0 { files.drawn(rng) } else { pick(rng, &TEXTS).into() }
}

/// A useless or excessive value.
fn hostile(rng: &mut Rng, files: &Files) -> OsString {
    match rng.below(4) {
        0 => pick(rng, &NUMBERS).into(),
        1 => pick(rng, &TEXTS).into(),
        2 => strange(rng),
        _ => files.drawn(rng),
    }
}

pub(crate) fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize].clone()
}

const NUMBERS: [&str; 24] = [
    "0",
    "-0",
    "-1",
    "1",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e-308",
    "inf",
    "nan",
    "-inf",
    "0x7fffffff",
    "1.7976931348623157e309",
    "86400",
];

const TEXTS: [&str; 44] = [
    "",
    " ",
    "-",
    "--",
    "/",
    ".",
    "..",
    "=",
    ":",
    ",",
    "a=b",
    "=x",
    "x=",
    "lo",
    "lo+lo",
    "lo=router.o",
    "none",
    "all",
    "builtin:router",
    "builtin:switch:10",
    "builtin:firewall:0",
    "builtin:nat:18446744073709551615",
    "builtin:",
    "builtin:x:y",
    "zipf:1.1",
    "zipf:nan",
    "zipf:-1e308",
    "high",
    "127.0.0.1:0",
    "[::1]:0",
    "redis://127.0.0.1:1",
    "redis://",
    "raw:lo",
    "raw:none",
    "tap:x",
    "xdp:lo",
    "0-63",
    "63-0",
    "batch=0",
    "batch=18446744073709551615",
    "from=0,pattern=groups",
    "passes",
    "MAP=deadbeef:00",
    "%s%n\u{1b}[31m\u{202e}",
];

/// Unexpected text: long, with odd bytes, not UTF-8.
fn strange(rng: &mut Rng) -> OsString {
    use std::os::unix::ffi::OsStringExt as _;
    match rng.below(3) {
        0 => "x".repeat(1 << rng.below(17)).into(),
        1 => OsString::from_vec((0..rng.below(40)).map(|_| 1 + rng.below(255) as u8).collect()),
        _ => {
            let brackets = pick(rng, &["(", "[", "{", "\"", "a::", "=>", "\\"]);
            brackets.repeat(1 << rng.below(14)).into()
        }
    }
}
