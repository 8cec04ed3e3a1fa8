//! Documentation names only files, folders and headings that there are, and its commands work.

mod blocks;
mod commands;
mod crate_graph;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Files of other projects that are cited.
const ELSEWHERE: [&str; 4] = [
    "samples/bpf/xdp_router_ipv4.bpf.c",
    "src/services/pcn-bridge/src/Bridge_dp.c",
    "samples/xdp_nat_dp_v1_kern.c",
    "katran/lib/bpf/balancer.bpf.c",
];

/// Folders of generated files.
const MADE: [&str; 2] = ["fuzz/corpus", "target/"];

/// Endings by which a word with a slash is taken for the name of a file.
const ENDINGS: [&str; 14] =
    ["c", "click", "csv", "h", "ir", "json", "md", "py", "rs", "service", "sh", "toml", "txt", "o"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files below a folder, relative to the root, without generated ones.
fn walk(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if !["target", ".git", "corpus"].iter().any(|skip| name == *skip) {
                walk(root, &path, files);
            }
        } else {
            files.push(path.strip_prefix(root).unwrap().to_owned());
        }
    }
}

fn all_files() -> Vec<PathBuf> {
    let (root, mut files) = (root(), Vec::new());
    walk(&root, &root, &mut files);
    files
}

/// The targets of links: `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Anchors of headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().chars();
        kept.filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
            .collect()
    };
    headings.map(slug).collect()
}

/// Words that look like a name of a file or folder in the repository.
fn paths<'t>(text: &'t str, top: &'t BTreeSet<String>) -> impl Iterator<Item = &'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    text.split(|c: char| c.is_whitespace() || "`()[]|,;\"'=".contains(c)).filter(move |word| {
        let word = word.trim_end_matches(['.', ':', '?', '!']);
        let Some((first, _)) = word.split_once('/') else { return false };
        if !word.chars().all(is_part) || first.is_empty() || first.starts_with('.') {
            return false;
        }
        let ending = Path::new(word).extension().and_then(|e| e.to_str()).unwrap_or_default();
        // DIR/NAME.o stands for any.
        let is_placeholder =
            word.split('/').any(|p| p.len() > 1 && p.chars().all(|c| c.is_ascii_uppercase()));
        !is_placeholder && (ENDINGS.contains(&ending) || top.contains(first))
    })
}

/// File names in a text that do not exist in the repository.
fn missing(text: &str, document: &Path, files: &[PathBuf]) -> Vec<String> {
    let root = root();
    let folders = files.iter().filter_map(|f| f.components().next().filter(|_| f.components().count() > 1));
    let top: BTreeSet<String> = folders.map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    let beside = root.join(document.parent().unwrap());
    let is_there = |word: &str| {
        ELSEWHERE.contains(&word)
            || MADE.iter().any(|made| word.starts_with(made))
            || [&root, &beside, &root.join("crates")].iter().any(|folder| folder.join(word).exists())
            // A module, named from its crate's folder or within it.
            || (word.ends_with(".rs") && files.iter().any(|file| file.ends_with(word)))
    };
    let words = paths(text, &top).map(|word| word.trim_end_matches(['.', ':', '?', '!', '/']));
    words.filter(|word| !is_there(word)).map(|word| format!("{}: {word}", document.display())).collect()
}

fn documents(files: &[PathBuf]) -> impl Iterator<Item = (&PathBuf, String)> {
    let pages = files.iter().filter(|file| file.extension().is_some_and(|e| e == "md"));
    // The change log mentions files of its time.
    let pages = pages.filter(|file| !file.ends_with("CHANGELOG.md"));
    pages.map(|file| (file, fs::read_to_string(root().join(file)).unwrap()))
}

#[test]
fn files_that_documentation_names_are_there() {
    let files = all_files();
    let faults: Vec<String> =
        documents(&files).flat_map(|(file, text)| missing(&text, file, &files)).collect();
    assert!(documents(&files).count() > 15);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn links_of_documentation_lead_somewhere() {
    let files = all_files();
    let mut faults = Vec::new();
    for (file, text) in documents(&files) {
        for target in links(&text).filter(|target| !target.contains("://")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = match path {
                "" => root().join(file),
                path => root().join(file.parent().unwrap()).join(path),
            };
            let has_anchor = |text: String| anchor.is_empty() || anchors(&text).contains(anchor);
            let is_there =
                to.is_dir() || fs::read(&to).is_ok_and(|b| has_anchor(String::from_utf8_lossy(&b).into()));
            if !is_there {
                faults.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pages_that_the_help_names_are_there() {
    let files = all_files();
    let is_source = |f: &PathBuf| f.components().any(|c| c.as_os_str() == "src");
    let sources = files
        .iter()
        .filter(|f| is_source(f) && f.starts_with("crates") && f.extension().is_some_and(|e| e == "rs"));
    let mut faults = Vec::new();
    for file in sources {
        let text = String::from_utf8_lossy(&fs::read(root().join(file)).unwrap()).into_owned();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        for rest in text.split("docs/").skip(1) {
            let name = rest.split(|c| !is_part(c)).next().unwrap_or_default().trim_end_matches('.');
            if name.ends_with(".md") && !root().join("docs").join(name).exists() {
                faults.push(format!("{}: docs/{name}", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_file_that_is_not_there_is_found() {
    let files = all_files();
    let of = |text: &str| missing(text, Path::new("docs/x.md"), &files);
    assert_eq!(
        of("`millstream click conf/none.click --io raw`, docs/none.md."),
        ["docs/x.md: conf/none.click", "docs/x.md: docs/none.md"]
    );
    assert_eq!(of("docs/click.md, and/or, click.md, in.pcap, DIR/x.o, crates/cli/src/lib.rs"), [""; 0]);
}

/// Modules that may name the standard streams: the one that writes to them without panicking, dumps for
/// developers of passes, and output of tests.
const WRITERS: [&str; 6] = [
    "crates/built/src/printing.rs",
    "crates/built/src/tables.rs",
    "crates/checks/src/bin/checks.rs",
    "crates/console/src/output.rs",
    "crates/opt/src/compile.rs",
    "crates/kernel/src/testing.rs",
];

/// Macros of the standard library panic if nobody reads: `clippy.toml` forbids the streams, this test the
/// macros, in all crates.
#[test]
fn only_one_module_writes_to_the_standard_streams() {
    let calls = ["println!(", "print!(", "eprintln!(", "eprint!(", "dbg!(", "io::stdout()", "io::stderr()"];
    let calls = calls.map(|call| (call, call.len()));
    let is_source = |f: &PathBuf| {
        f.components().nth(2).is_some_and(|c| c.as_os_str() == "src")
            && f.starts_with("crates")
            && f.extension().is_some_and(|e| e == "rs")
            && !f.ends_with("tests.rs")
            && !WRITERS.iter().any(|writer| f == Path::new(writer))
    };
    let (mut faults, mut count) = (Vec::new(), 0);
    for file in all_files().into_iter().filter(is_source) {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        count += 1;
        for (number, line) in
            text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            let is_call = |(call, length): &(&str, usize)| {
                // `writeln!` and our own `outln!` end alike.
                let is_word = |at: usize| {
                    !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                        && at + length <= line.len()
                };
                line.match_indices(call).any(|(at, _)| is_word(at))
            };
            if calls.iter().any(is_call) {
                faults.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(count > 300, "{count} files");
    assert!(faults.is_empty(), "write by `out!`, `outln!` and `errln!`:\n{}", faults.join("\n"));
}

#[test]
fn the_picture_of_the_demo_is_that_of_the_kept_run() {
    let script = root().join("scripts/demo-picture");
    let status = std::process::Command::new(script).arg("--check").status().expect("python3");
    assert!(status.success(), "make it again: scripts/demo-picture");
}
