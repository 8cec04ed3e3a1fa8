//! Compares the P4Info of many programs with expected files, as messages.
//!
//! `info_suite PROGRAMS EXPECTED [-I PATH] [--show NAME]`: for each `NAME.p4info.txtpb` in EXPECTED, the program is
//! `NAME` in PROGRAMS. Prints how many are equal, and the others by their first difference; `--show` prints the P4Info
//! that is made of one program.

use std::collections::BTreeMap;
use std::path::Path;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4runtime::proto::config::v1::P4Info;
use millstream_p4runtime::{MessageFormat, decode_message, encode_message, make_p4_info};

/// Files of the machine.
struct FolderLoader;

impl SourceLoader for FolderLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = CompileOptions::default();
    let (mut folders, mut shown) = (Vec::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-I" => options.search_paths.extend(arguments.next()),
            "--show" => shown = arguments.next(),
            _ => folders.push(argument),
        }
    }
    let [programs, expected] = &folders[..] else {
        return Err("info_suite PROGRAMS EXPECTED [-I PATH] [--show NAME]".into());
    };
    let (programs, expected) = (Path::new(programs), Path::new(expected));
    if let Some(name) = shown {
        let info = described(&programs.join(name), &options)?;
        print!("{}", String::from_utf8_lossy(&encode_message(&info, MessageFormat::Text)?));
        return Ok(());
    }
    print!("{}", compare_all(programs, expected, &options)?);
    Ok(())
}

fn compare_all(
    programs: &Path,
    expected: &Path,
    options: &CompileOptions,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(expected)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".p4info.txtpb").map(str::to_owned));
    }
    names.sort();
    let mut differences: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut equal, mut same_text) = (0usize, 0usize);
    for name in &names {
        let bytes = std::fs::read(expected.join(format!("{name}.p4info.txtpb")))?;
        let wanted: P4Info = decode_message(&bytes, MessageFormat::Text)?;
        match described(&programs.join(name), options) {
            Ok(found) if found == wanted => {
                equal += 1;
                same_text += usize::from(encode_message(&found, MessageFormat::Text)? == bytes);
            }
            Ok(found) => {
                let (kind, detail) = difference(&wanted, &found);
                differences.entry(kind).or_default().push(format!("{name}: {detail}"));
            }
            Err(error) => differences.entry("error".into()).or_default().push(format!("{name}: {error}")),
        }
    }
    let mut report = format!("{equal} of {} equal, {same_text} also as text\n", names.len());
    for (kind, list) in differences {
        report.push_str(&format!("{kind}: {}\n", list.len()));
        list.iter().for_each(|line| report.push_str(&format!("  {line}\n")));
    }
    Ok(report)
}

fn described(path: &Path, options: &CompileOptions) -> Result<P4Info, Box<dyn std::error::Error>> {
    let program = compile(&path.to_string_lossy(), &mut FolderLoader, options);
    Ok(make_p4_info(&program)?)
}

/// Kind of object and lines of the first difference.
fn difference(wanted: &P4Info, found: &P4Info) -> (String, String) {
    let text = |info: &P4Info| {
        let bytes = encode_message(info, MessageFormat::Text).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (wanted, found) = (text(wanted), text(found));
    let mut kind = "";
    let (mut left, mut right) = (wanted.lines(), found.lines());
    loop {
        let (a, b) = (left.next(), right.next());
        if a != b || a.is_none() {
            let line = |line: Option<&str>| line.unwrap_or("nothing").trim().to_owned();
            let kind = if kind.is_empty() { line(a) } else { kind.to_owned() };
            return (kind, format!("expected `{}`, found `{}`", line(a), line(b)));
        }
        if let Some(line) = a.filter(|line| !line.starts_with([' ', '}', '#'])) {
            kind = line.trim_end_matches([' ', '{']);
        }
    }
}
