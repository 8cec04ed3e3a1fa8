//! The library through C, Python and Go: the same bytes as from Rust, errors as codes and texts, sessions.

mod c;
mod go;
mod python;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use millstream::Object;
use millstream::optimize::ObjectOptimizer;
use millstream_programs::{DataPlaneProgram, FIREWALL, NAT, ROUTER};
use tempfile::TempDir;

/// The library as others find it: header, shared library under its name at run time, pkg-config file.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Installed {
        let folder = TempDir::new().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["lib", "include"] {
            std::fs::create_dir(at(name)).expect("made");
        }
        std::os::unix::fs::symlink(shared_library(), at("lib/libmillstream.so.0")).expect("linked");
        std::os::unix::fs::symlink("libmillstream.so.0", at("lib/libmillstream.so")).expect("linked");
        std::fs::copy(source("include/millstream.h"), at("include/millstream.h")).expect("copied");
        let pc = std::fs::read_to_string(source("millstream.pc.in")).expect("read");
        let prefix = folder.path().display().to_string();
        let pc = pc.replace("@PREFIX@", &prefix).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        std::fs::write(at("lib/millstream.pc"), pc).expect("written");
        Installed { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command that finds the library.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("lib")).env("PKG_CONFIG_PATH", self.path("lib"));
        // Go caches what it compiled under its flags, but not under those of pkg-config.
        command.env("CGO_LDFLAGS", format!("-L{}", self.path("lib").display()));
        command
    }

    /// Writes an object, and what the Rust library makes of it.
    fn objects(&self, program: &DataPlaneProgram) -> (PathBuf, PathBuf) {
        let (object, expected) = (self.path("object.o"), self.path("expected.o"));
        std::fs::write(&object, program.object).expect("written");
        let parsed = Object::parse("object", program.object).expect("an object");
        let optimized = ObjectOptimizer::new().optimize(&parsed).expect("optimized");
        std::fs::write(&expected, optimized.object.write().expect("written")).expect("written");
        (object, expected)
    }
}

/// The shared library, as it was built with this test.
fn shared_library() -> PathBuf {
    let beside = std::env::current_exe().expect("this test").parent().expect("a folder").to_owned();
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libmillstream_c") && name.ends_with(".so")
    };
    let all = std::fs::read_dir(beside).expect("read").map(|entry| entry.expect("an entry").path());
    let age = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).expect("its age");
    all.filter(fits).max_by_key(age).expect("the library is built with its tests")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Runs a command to its end; returns its output.
fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{text}\n{errors}", out.status);
    text.into_owned()
}

/// Returns true if a tool is there; else says that the test is skipped.
fn has(tool: &str, argument: &str) -> bool {
    let there = Command::new(tool).arg(argument).output().is_ok_and(|out| out.status.success());
    if !there {
        eprintln!("skipped: there is no {tool}");
    }
    there
}

/// The data planes that every binding optimizes.
fn programs() -> [&'static DataPlaneProgram; 3] {
    [&ROUTER, &NAT, &FIREWALL]
}
