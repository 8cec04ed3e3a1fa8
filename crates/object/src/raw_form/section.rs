//! The section that a raw program came from: its file's name often ends with it, with `-` for `/`.
//!
//! K2's extractor named files `OBJECT_SECTION`, and both parts may hold underscores. So every part that
//! begins behind an underscore is held against the sections that loaders know, those that are such a section
//! entirely before those that only begin like one, and of these the longest is taken.

use super::text::ProgramInput;
use crate::kinds::ProgramType;
use crate::section::SectionKind;

/// Prefixes of Cilium's names for its sections of TC programs.
const CILIUM: [&str; 2] = ["from-", "to-"];

/// The name of the section: from the file's name, else from the description, else one that says nothing.
pub(super) fn of(name: &str, input: Option<ProgramInput>) -> String {
    let parts = || name.match_indices('_').map(|(at, _)| &name[at + 1..]);
    let found = parts().chain([name]).find_map(whole).or_else(|| parts().find_map(beginning));
    let described = || match input {
        Some(ProgramInput::Xdp) => Some("xdp".to_owned()),
        Some(ProgramInput::Skb) => Some("tc".to_owned()),
        Some(ProgramInput::Other) | None => None,
    };
    let cilium = || parts().find(|p| CILIUM.iter().any(|c| p.starts_with(c))).map(|_| "tc".to_owned());
    found.or_else(described).or_else(cilium).unwrap_or_else(|| "program".to_owned())
}

fn is_typed(section: &str) -> bool {
    SectionKind::parse(section).program_type != ProgramType::UNSPEC
}

/// End of the part of a section's name that gives the type.
fn end_of_kind(section: &str) -> Option<usize> {
    let ends = section.char_indices().map(|(at, c)| at + c.len_utf8());
    is_typed(section).then(|| ends.into_iter().find(|end| is_typed(&section[..*end])))?
}

/// A section as loaders name it, with or without a target; hooks of control groups that are called after a
/// version of IP (`recvmsg4`) without their `cgroup/`, too.
fn whole(part: &str) -> Option<String> {
    let section = part.replace('-', "/");
    let rest = |s: &str| end_of_kind(s).map(|end| s[end..].to_owned());
    let is_whole = |s: &String| rest(s).is_some_and(|r| r.is_empty() || r.starts_with('/'));
    let hook = format!("cgroup/{section}");
    if is_whole(&section) {
        return Some(section);
    }
    (section.ends_with(['4', '6']) && is_whole(&hook)).then_some(hook)
}

/// A section that begins like one that loaders know: `xdp1`, `xdp_router`. Another word is none: `tcp`.
fn beginning(part: &str) -> Option<String> {
    let section = part.replace('-', "/");
    let next = end_of_kind(&section).and_then(|end| section[end..].chars().next());
    next.is_some_and(|c| !c.is_alphabetic()).then_some(section)
}
