//! A folder of files for one test.

use std::path::{Path, PathBuf};

/// A folder that is removed on drop.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// `name` must be unique among tests.
    pub(crate) fn new(name: &str) -> Files {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Files(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
