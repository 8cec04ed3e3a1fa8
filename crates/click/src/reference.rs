//! Description of all classes, as a page of the documentation: the function of each, and the treatment of
//! each of its arguments.

use std::fmt::Write as _;

use crate::class::{ElementClass, ElementLibrary};
use crate::keyword::ArgumentSpec;

/// Text in front of the classes.
const BEGINNING: &str = "\
# Classes and their arguments

Made from the classes themselves (`MILLSTREAM_BLESS=1 cargo test -p millstream-click-elements reference` \
writes it). An argument is *implemented*, or it makes *no difference* here, for a reason,
or configurations that give it are *refused*, for a reason. Any other argument is an error. What is in front \
of the first colon of a heading is the name of a class; `0/1-2` are numbers of inputs and of outputs. \
Remarks on what elements do are
in [click.md](click.md#elements).
";

/// The page about a library, in Markdown.
pub fn reference(library: &ElementLibrary) -> String {
    let mut all: Vec<&'static ElementClass> = library.all().collect();
    all.sort_by_key(|class| class.name);
    let mut out = BEGINNING.to_owned();
    let mut done: Vec<&str> = Vec::new();
    for class in &all {
        if done.contains(&class.name) {
            continue;
        }
        let alike = all.iter().filter(|other| is_like(class, other));
        let names: Vec<&str> = alike.map(|other| other.name).collect();
        // Writing to a string does not fail.
        let _ = section(&mut out, class, &names);
        done.extend(names);
    }
    out
}

/// Returns true if two classes have the same description.
fn is_like(one: &ElementClass, other: &ElementClass) -> bool {
    one.about == other.about && one.ports == other.ports && lines(one) == lines(other)
}

/// The argument of each line, and its treatment.
fn lines(class: &ElementClass) -> Vec<(String, String)> {
    let line = |argument: &ArgumentSpec| {
        let by = if argument.positional { ", also by position" } else { "" };
        (format!("{}{by}", argument.name), argument.to_string())
    };
    let rest = class.rest.as_ref().map(|rest| (format!("{}, by position", rest.name), rest.to_string()));
    class.arguments.iter().map(line).chain(rest).collect()
}

fn section(out: &mut String, class: &ElementClass, names: &[&str]) -> std::fmt::Result {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    writeln!(out, "\n## {}: {}\n\n{}", names.join(", "), class.ports, class.about)?;
    let lines = lines(class);
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n| argument | what becomes of it |\n|---|---|")?;
    for (argument, fate) in lines {
        writeln!(out, "| {argument} | {} |", fate.replace('|', "\\|"))?;
    }
    Ok(())
}
