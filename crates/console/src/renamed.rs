//! Old names of flags, subcommands and values. Each keeps working for one release, with a warning on standard
//! error.
//!
//! Invariant: the definition of the command line has the new names only, so help, completions and manual
//! pages never show an old one.

use std::ffi::OsString;

/// Flags, as old and new names. An old name belongs to no other subcommand.
pub const FLAGS: [(&str, &str); 7] = [
    ("--agree", "--cross-check"),
    ("--crashes", "--max-crashes"),
    ("--crashes-within", "--crash-window"),
    ("--keep-crashes", "--crash-dir"),
    ("--many", "--burst-updates"),
    ("--updates", "--update-rate"),
    ("--with", "--extend"),
];

/// Data planes, behind whose names a subcommand of `control` stands.
const PLANES: [&str; 5] = ["router", "switch", "firewall", "nat", "balancer"];

/// Returns the command line with new names for old ones, and warns about each. Arguments after `--` stay.
pub fn with_new_names(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let (arguments, warnings) = replace(arguments.into_iter().collect());
    // The process that a supervisor starts has the same flags; the supervisor has already warned.
    let is_supervised = arguments.iter().any(|argument| argument.to_string_lossy().starts_with("--crashed="));
    if !is_supervised {
        for (old, new) in warnings {
            errln!("{}", warning(old, new));
        }
    }
    arguments
}

/// The warning for an old name.
pub fn warning(old: &str, new: &str) -> String {
    format!("millstream: {old} is now {new}; the next release drops the old name")
}

type Renamed = (&'static str, &'static str);

fn replace(mut arguments: Vec<OsString>) -> (Vec<OsString>, Vec<Renamed>) {
    let mut warnings = Vec::new();
    for at in 1..arguments.len() {
        let Some(text) = arguments[at].to_str() else { continue };
        if text == "--" {
            break;
        }
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let follows_plane = arguments[at - 1].to_str().is_some_and(|before| PLANES.contains(&before));
        let found = match FLAGS.iter().find(|(old, _)| *old == name) {
            None if text == "tend" && follows_plane => Some(("tend", "maintain")),
            found => found.copied(),
        };
        if let Some((old, new)) = found {
            let new_argument = value.map_or(new.to_owned(), |value| format!("{new}={value}"));
            arguments[at] = new_argument.into();
            warnings.push((old, new));
        }
    }
    (arguments, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(line: &str) -> (String, usize) {
        let (arguments, warnings) = replace(line.split(' ').map(OsString::from).collect());
        let words: Vec<_> = arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        (words.join(" "), warnings.len())
    }

    #[test]
    fn old_names_become_new_ones() {
        assert_eq!(
            replaced("millstream click x --crashes=3 --crashes-within 60"),
            ("millstream click x --max-crashes=3 --crash-window 60".into(), 2)
        );
        assert_eq!(
            replaced("millstream control switch tend"),
            ("millstream control switch maintain".into(), 1)
        );
    }

    #[test]
    fn operands_and_arguments_after_two_hyphens_stay() {
        for line in ["millstream control switch up tend", "millstream prove a b -- --agree"] {
            assert_eq!(replaced(line), (line.into(), 0));
        }
    }
}
