//! Compiles `programs/*/*.bpf.c` for the BPF target into `OUT_DIR`.
//!
//! `MILLSTREAM_CLANG` names the compiler; without it, `clang-19`. Paths in debug information are relative to
//! the repository, so that the same source gives the same object everywhere.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let sources = root.join("programs");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=MILLSTREAM_CLANG");
    for source in bpf_sources(&sources)? {
        compile(&root, &source, &out)?;
    }
    Ok(())
}

/// Every `*.bpf.c` one folder below `programs`.
fn bpf_sources(programs: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in fs::read_dir(programs)? {
        let folder = folder?.path();
        if !folder.is_dir() {
            continue;
        }
        for file in fs::read_dir(folder)? {
            let file = file?.path();
            if file.to_string_lossy().ends_with(".bpf.c") {
                found.push(file);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn compile(root: &Path, source: &Path, out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let clang = env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".into());
    let name =
        source.file_name().ok_or("a source without a name")?.to_string_lossy().replace(".bpf.c", ".bpf.o");
    // The kernel's headers are per architecture, and the BPF target has none of its own.
    let machine = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    let status = Command::new(&clang)
        .current_dir(root)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-fno-strict-aliasing"])
        .args(["-Wall", "-Wextra", "-Werror", "-idirafter", &machine, "-Iprograms/include"])
        .arg(format!("-ffile-prefix-map={}=.", root.display()))
        .arg("-c")
        .arg(source.strip_prefix(root)?)
        .arg("-o")
        .arg(out.join(name))
        .status()
        .map_err(|e| format!("cannot run `{clang}` (install clang-19, or set MILLSTREAM_CLANG): {e}"))?;
    if !status.success() {
        return Err(format!("`{clang}` rejects {}: {status}", source.display()).into());
    }
    Ok(())
}
