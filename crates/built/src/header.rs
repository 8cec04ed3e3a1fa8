//! Header of an object file: the part that all files share ([`COMMON`]), and the symbol, maps, ports and
//! handlers of this program.

use std::fmt::Write as _;

use millstream_click::{GraphSink, GraphSource, Handler, HandlerAccess, SummaryInput};
use millstream_native::{LONGEST, MapShape};

use crate::{PayloadKind, ProgramPayload};

/// Interface that all object files share.
pub const COMMON: &str = include_str!("millstream.h");

const _: () = assert!(LONGEST == 3520, "as MILLSTREAM_LONGEST says");

/// The public symbol of a program that is written to a file of this name.
pub fn symbol(stem: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let first = if stem.starts_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
    format!("{first}{}_program", stem.chars().map(word).collect::<String>())
}

/// The header of a program with this symbol.
pub fn header(symbol: &str, payload: &ProgramPayload) -> String {
    let mut out = String::new();
    let name = symbol.to_uppercase();
    let guard = format!("{name}_H");
    let from = match &payload.kind {
        PayloadKind::Click { configuration, .. } => configuration,
        PayloadKind::Native { object } => object,
    };
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "/* Made by `millstream build --emit obj` of {}.\n * Link with -lmillstream_embed -lpthread -ldl -lm. */\n\n",
        comment(from)
    );
    out.push_str(COMMON);
    let _ = write!(
        out,
        "\n#ifndef {guard}\n#define {guard}\n\n#ifdef __cplusplus\nextern \"C\"\n#endif\n\
         extern const struct millstream_program {symbol};\n\n"
    );
    if let PayloadKind::Click { program, .. } = &payload.kind {
        let sources = program.sources.iter().map(|source| match source {
            GraphSource::Device(name) | GraphSource::File(name) => name.clone(),
            GraphSource::Summary(summary) => match &summary.input {
                SummaryInput::File(name) => name.clone(),
                SummaryInput::Text(_) => "lines of the configuration".to_owned(),
            },
            GraphSource::Constant(..) => "one packet, over and over".to_owned(),
            GraphSource::Frames(frames, _) => format!("{} packets, over and over", frames.len()),
        });
        ports(&mut out, "Where packets come from", &format!("{name}_FROM"), sources, 1);
        let targets =
            program.targets.iter().map(|(GraphSink::Device(name) | GraphSink::File(name, _))| name.clone());
        ports(&mut out, "Where packets go", &format!("{name}_TO"), targets, 0);
        let said = |h: &&Handler| {
            !matches!(h.access, HandlerAccess::Text(_) | HandlerAccess::Drops | HandlerAccess::Listing)
        };
        let _ = writeln!(
            out,
            "/* Handlers, beside class, name, config, ports, handlers and drops of each element:"
        );
        for handler in program.handlers.iter().filter(said) {
            let how = match handler.access.access_modes() {
                (true, true) => "read, write",
                (false, true) => "write",
                _ => "read",
            };
            let _ = writeln!(out, " * {how} {}", comment(&format!("{}.{}", handler.element, handler.name)));
        }
        out.push_str(" */\n");
    }
    let _ = writeln!(out, "/* Maps: bytes of keys and values, most entries:");
    for MapShape { name, key_size, value_size, max_entries, .. } in payload.image.maps() {
        let _ = writeln!(out, " * {}: {key_size}, {value_size}, {max_entries}", comment(name));
    }
    let _ = write!(out, " */\n\n#endif /* {guard} */\n");
    out
}

/// Numbers of ports as macros, each with its name.
fn ports(out: &mut String, what: &str, prefix: &str, names: impl Iterator<Item = String>, first: usize) {
    let _ = writeln!(out, "/* {what}. */");
    for (at, name) in names.enumerate() {
        let _ = writeln!(out, "#define {prefix}_{at} {} /* {} */", at + first, comment(&name));
    }
    out.push('\n');
}

/// Text that is safe inside a comment.
fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(['\n', '\r', '\\'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_names_in_c() {
        for (stem, expected) in [("nat", "nat_program"), ("a-b.c", "a_b_c_program"), ("4x", "_4x_program")] {
            assert_eq!(symbol(stem), expected);
        }
        assert_eq!(comment("a*/b /* c\\"), "a* /b / * c ");
    }
}
