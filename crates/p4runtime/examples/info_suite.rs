//! Compares the P4Info of many programs with expected files, as messages.
//!
//! `info_suite PROGRAMS EXPECTED [-I PATH] [--show NAME]`: for each `NAME.p4info.txtpb` and
//! `NAME.entries.txtpb` in EXPECTED, the program is `NAME` in PROGRAMS. Prints how many are equal, and the
//! others by their first difference; `--show` prints P4Info and entries of one program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4runtime::{
    MessageFormat, ProgramDescription, decode_message, describe_program, encode_message,
};
use prost::{Message, Name};

type SuiteResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Files of the machine.
struct FolderLoader;

impl SourceLoader for FolderLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Folders of a comparison.
struct SuiteFolders {
    programs: PathBuf,
    expected: PathBuf,
    options: CompileOptions,
}

fn main() -> SuiteResult<()> {
    let mut options = CompileOptions::default();
    let (mut folders, mut shown) = (Vec::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-I" => options.search_paths.extend(arguments.next()),
            "--show" => shown = arguments.next(),
            _ => folders.push(PathBuf::from(argument)),
        }
    }
    let Ok([programs, expected]) = <[PathBuf; 2]>::try_from(folders) else {
        return Err("info_suite PROGRAMS EXPECTED [-I PATH] [--show NAME]".into());
    };
    let suite = SuiteFolders { programs, expected, options };
    if let Some(name) = shown {
        let description = suite.description(&name)?;
        print!("{}{}", text(&description.info)?, text(&description.entries)?);
        return Ok(());
    }
    print!("{}", suite.compare(".p4info.txtpb", |description| description.info)?);
    print!("{}", suite.compare(".entries.txtpb", |description| description.entries)?);
    Ok(())
}

impl SuiteFolders {
    /// Describes one program.
    fn description(&self, name: &str) -> SuiteResult<ProgramDescription> {
        let path = self.programs.join(name);
        let program = compile(&path.to_string_lossy(), &mut FolderLoader, &self.options);
        Ok(describe_program(&program)?)
    }

    /// Compares one part of the descriptions with the expected files that end in `ending`.
    fn compare<M: Message + Name + Default + PartialEq>(
        &self,
        ending: &str,
        part: fn(ProgramDescription) -> M,
    ) -> SuiteResult<String> {
        let names = names(&self.expected, ending)?;
        let mut differences: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let (mut equal, mut same_text) = (0usize, 0usize);
        for name in &names {
            let bytes = std::fs::read(self.expected.join(format!("{name}{ending}")))?;
            let wanted: M = decode_message(&bytes, MessageFormat::Text)?;
            match self.description(name).map(part) {
                Ok(found) if found == wanted => {
                    equal += 1;
                    same_text += usize::from(text(&found)?.into_bytes() == bytes);
                }
                Ok(found) => {
                    let (kind, detail) = difference(&text(&wanted)?, &text(&found)?);
                    differences.entry(kind).or_default().push(format!("{name}: {detail}"));
                }
                Err(error) => {
                    differences.entry("error".into()).or_default().push(format!("{name}: {error}"));
                }
            }
        }
        let mut report = format!("{equal} of {} *{ending} equal, {same_text} also as text\n", names.len());
        for (kind, list) in differences {
            report.push_str(&format!("{kind}: {}\n", list.len()));
            list.iter().for_each(|line| report.push_str(&format!("  {line}\n")));
        }
        Ok(report)
    }
}

/// Paths below a folder that have an ending, without it.
fn names(folder: &Path, ending: &str) -> SuiteResult<Vec<String>> {
    let mut names = Vec::new();
    for entry in walkdir::WalkDir::new(folder).sort_by_file_name() {
        let entry = entry?;
        let name = entry.path().strip_prefix(folder)?.to_string_lossy().into_owned();
        names.extend(name.strip_suffix(ending).map(str::to_owned));
    }
    Ok(names)
}

fn text<M: Message + Name>(message: &M) -> SuiteResult<String> {
    Ok(String::from_utf8(encode_message(message, MessageFormat::Text)?)?)
}

/// Kind of object and lines of the first difference.
fn difference(wanted: &str, found: &str) -> (String, String) {
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
