//! Runs every file under `filetests/` of the repository.
//!
//! `MILLSTREAM_BLESS=1` writes expectations; `MILLSTREAM_FILETEST=TEXT` runs only files whose path contains
//! the text.

use std::path::Path;

use millstream_filetests::{FiletestOptions, find_files, run_file};

#[test]
fn all_files_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests");
    let options = FiletestOptions { bless: std::env::var_os("MILLSTREAM_BLESS").is_some_and(|v| v == "1") };
    let filter = std::env::var("MILLSTREAM_FILETEST").unwrap_or_default();
    let mut files = find_files(&root).expect("the directory of file tests can be read");
    files.retain(|path| path.to_string_lossy().contains(&filter));
    assert!(!files.is_empty(), "no file test matches `{filter}`");
    let failures: Vec<String> = files
        .iter()
        .filter_map(|path| run_file(path, options).err().map(|e| format!("{}: {e}", path.display())))
        .collect();
    assert!(failures.is_empty(), "{} of {} failed\n\n{}", failures.len(), files.len(), failures.join("\n\n"));
}
