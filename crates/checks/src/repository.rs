//! Files of the repository, and its packages.
//!
//! Invariant: paths are relative to the root and use `/`; a file's order is that of its path, so figures do
//! not depend on the order in which the file system lists files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use walkdir::{DirEntry, WalkDir};

use crate::error::CheckError;
use crate::facts::test_lines;
use crate::files::{MarkdownPage, RustFile};
use crate::modules::ModuleTree;

/// Folders that are made, not kept. Hidden ones are left out, too.
const MADE_FOLDERS: [&str; 2] = ["target", "corpus"];

/// A package: a crate of the workspace, or the fuzz targets.
pub(crate) struct SourcePackage {
    /// Name of its folder.
    pub(crate) name: String,
    /// Module trees of its library, executables, examples and build script.
    pub(crate) trees: Vec<ModuleTree>,
}

/// Sources and pages of a repository.
pub struct SourceRepository {
    pub(crate) files: Vec<RustFile>,
    pub(crate) pages: Vec<MarkdownPage>,
    pub(crate) packages: Vec<SourcePackage>,
}

impl SourceRepository {
    /// Reads all Rust and Markdown files below a folder.
    ///
    /// # Errors
    /// If a file cannot be read, or is no valid Rust.
    pub fn read(root: &Path) -> Result<SourceRepository, CheckError> {
        let is_kept = |entry: &DirEntry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0
                || !(name.starts_with('.')
                    || entry.file_type().is_dir() && MADE_FOLDERS.contains(&name.as_ref()))
        };
        let mut texts = Vec::new();
        for entry in WalkDir::new(root).into_iter().filter_entry(is_kept) {
            let entry = entry.map_err(|error| CheckError::File {
                path: error.path().unwrap_or(root).display().to_string(),
                source: error.into(),
            })?;
            let path = entry.path();
            let ending = path.extension().unwrap_or_default();
            if entry.file_type().is_file() && (ending == "rs" || ending == "md") {
                let file = |source| CheckError::File { path: path.display().to_string(), source };
                let text = fs::read_to_string(path).map_err(file)?;
                let relative = path.strip_prefix(root).unwrap_or(path);
                texts.push((relative.to_string_lossy().replace('\\', "/"), text));
            }
        }
        SourceRepository::of_texts(texts)
    }

    /// Makes a repository of paths and texts.
    pub(crate) fn of_texts(mut texts: Vec<(String, String)>) -> Result<SourceRepository, CheckError> {
        texts.sort();
        let (mut files, mut pages) = (Vec::new(), Vec::new());
        for (path, text) in texts {
            if path.ends_with(".md") {
                pages.push(MarkdownPage { path, text });
                continue;
            }
            let syntax = syn::parse_file(&text).map_err(|error| CheckError::Syntax {
                path: path.clone(),
                line: error.span().start().line,
                message: error.to_string(),
            })?;
            let test_lines = test_lines(&syntax);
            files.push(RustFile { is_test: is_test_path(&path), path, text, syntax, test_lines });
        }
        let packages = packages(&mut files);
        Ok(SourceRepository { files, pages, packages })
    }

    /// Returns the number of Rust files.
    pub fn rust_files(&self) -> usize {
        self.files.len()
    }

    /// Returns the number of packages.
    pub fn package_count(&self) -> usize {
        self.packages.len()
    }
}

/// Splits a path into the folder of its package and the path within it.
fn package_path(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("crates/") {
        Some(rest) => rest.split_once('/'),
        None => path.strip_prefix("fuzz/").map(|rest| ("fuzz", rest)),
    }
}

fn is_test_path(path: &str) -> bool {
    package_path(path).is_some_and(|(_, rest)| rest.starts_with("tests/") || rest.starts_with("benches/"))
}

/// Reports whether cargo takes a file for the root of a target, by its path within the package.
fn is_root(path: &str) -> bool {
    if ["src/lib.rs", "src/main.rs", "build.rs"].contains(&path) {
        return true;
    }
    ["src/bin/", "examples/", "fuzz_targets/"].iter().any(|folder| {
        let name = path.strip_prefix(folder).unwrap_or_default();
        name.ends_with(".rs")
            && (!name.contains('/') || name.ends_with("/main.rs") && name.matches('/').count() == 1)
    })
}

/// Builds the module trees, and marks files that only test modules reach.
fn packages(files: &mut [RustFile]) -> Vec<SourcePackage> {
    let mut found: BTreeMap<String, Vec<ModuleTree>> = BTreeMap::new();
    for root in 0..files.len() {
        if let Some((package, rest)) = package_path(&files[root].path)
            && is_root(rest)
        {
            found.entry(package.to_owned()).or_default().push(ModuleTree::build(package, root, files));
        }
    }
    let trees = || found.values().flatten();
    let reached: Vec<bool> = (0..files.len()).map(|file| trees().any(|tree| tree.has_file(file))).collect();
    let in_tests: Vec<usize> = trees().flat_map(|tree| tree.test_files.iter().copied()).collect();
    for file in in_tests {
        files[file].is_test |= !reached[file];
    }
    found.into_iter().map(|(name, trees)| SourcePackage { name, trees }).collect()
}

/// Makes a repository of small texts, for tests.
#[cfg(test)]
pub(crate) fn sample(texts: &[(&str, &str)]) -> SourceRepository {
    let texts = texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    SourceRepository::of_texts(texts).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_told_from_source() {
        let repository = sample(&[
            ("crates/a/src/lib.rs", "mod used;\n#[cfg(test)]\nmod checked;\n#[cfg(not(test))]\nmod other;\n"),
            ("crates/a/src/used.rs", "fn f() {}\n#[cfg(all(test, unix))]\nmod tests {\n}\nfn g() {}\n"),
            ("crates/a/src/checked.rs", "mod deeper;\n"),
            ("crates/a/src/checked/deeper.rs", "fn f() {}\n"),
            ("crates/a/src/other.rs", "#[test]\nfn t() {}\n"),
            ("crates/a/tests/t.rs", "fn f() {}\n"),
        ]);
        let tests: Vec<&str> =
            repository.files.iter().filter(|file| file.is_test).map(|file| file.path.as_str()).collect();
        assert_eq!(
            tests,
            ["crates/a/src/checked.rs", "crates/a/src/checked/deeper.rs", "crates/a/tests/t.rs"]
        );
        let file = |path: &str| repository.files.iter().find(|file| file.path == path).unwrap();
        let used = file("crates/a/src/used.rs");
        assert_eq!((1..=5).filter(|line| used.is_test_line(*line)).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(file("crates/a/src/other.rs").is_test_line(2));
    }

    #[test]
    fn folders_that_are_made_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["crates/a/src/lib.rs", "target/x.rs", ".git/x.rs", "a.md", "a.txt"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let repository = SourceRepository::read(folder.path()).unwrap();
        assert_eq!((repository.rust_files(), repository.pages.len(), repository.package_count()), (1, 1, 1));
    }

    #[test]
    fn a_syntax_error_has_its_place() {
        let error =
            SourceRepository::of_texts(vec![("crates/a/src/lib.rs".into(), "fn f() {}\nfn {}\n".into())]);
        assert!(error.err().unwrap().to_string().starts_with("crates/a/src/lib.rs:2: "));
    }
}
