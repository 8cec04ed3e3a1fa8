//! Checks every `.p4` file below a folder, and says how many are accepted.
//!
//! `suite FOLDER [-I PATH] [-D NAME[=VALUE]] [--accepted | --rejected | --all]`: the last flags choose whose
//! names and diagnostics are printed.

use std::path::Path;
use std::time::Instant;

use millstream_p4::{CompileOptions, CompiledProgram, SourceLoader, compile};

/// Files of the machine.
struct FolderLoader;

impl SourceLoader for FolderLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Which programs are printed.
#[derive(Default)]
struct SuiteReport {
    accepted: bool,
    rejected: bool,
}

fn main() {
    let mut options = CompileOptions::default();
    let mut report = SuiteReport::default();
    let mut folders = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-I" => options.search_paths.extend(arguments.next()),
            "-D" => options.definitions.extend(arguments.next().map(|text| definition(&text))),
            "--accepted" => report.accepted = true,
            "--rejected" => report.rejected = true,
            "--all" => (report.accepted, report.rejected) = (true, true),
            _ => folders.push(argument),
        }
    }
    for folder in folders {
        print!("{}", check_folder(Path::new(&folder), &options, &report));
    }
}

fn definition(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    (name.to_owned(), value.to_owned())
}

fn check_folder(folder: &Path, options: &CompileOptions, report: &SuiteReport) -> String {
    let start = Instant::now();
    let files = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().filter_map(Result::ok);
    let (mut accepted, mut total) = (0usize, 0usize);
    let mut text = String::new();
    for file in files.filter(|file| file.path().extension().is_some_and(|e| e == "p4")) {
        let path = file.path().to_string_lossy();
        let program = compile(&path, &mut FolderLoader, options);
        total += 1;
        accepted += usize::from(program.is_accepted());
        let prints = if program.is_accepted() { report.accepted } else { report.rejected };
        if prints {
            text.push_str(&described(&path, &program));
        }
    }
    text + &format!("{}: {accepted} of {total} accepted, {:.2?}\n", folder.display(), start.elapsed())
}

fn described(path: &str, program: &CompiledProgram) -> String {
    let verdict = if program.is_accepted() { "accepted" } else { "rejected" };
    let lines =
        program.diagnostics.iter().map(|diagnostic| format!("  {}\n", diagnostic.render(&program.sources)));
    format!("{path}: {verdict}\n") + &lines.collect::<String>()
}
