//! Compiles the shim against the DPDK that pkg-config knows, if feature `dpdk` is on.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    shim::build()?;
    Ok(())
}

#[cfg(feature = "dpdk")]
mod shim {
    use std::error::Error;
    use std::process::Command;

    const SOURCE: &str = "shim.c";
    /// Libraries that the shim calls; drivers are plug-ins, which the first of them loads.
    const LIBRARIES: [&str; 4] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool"];

    pub(super) fn build() -> Result<(), Box<dyn Error>> {
        println!("cargo::rerun-if-changed={SOURCE}");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        let mut compiler = cc::Build::new();
        compiler.file(SOURCE).warnings(true);
        for flag in pkg_config("--cflags")?.split_whitespace() {
            // Warnings in DPDK's headers are not ours.
            match flag.strip_prefix("-I") {
                Some(folder) => compiler.flag("-isystem").flag(folder),
                None => compiler.flag(flag),
            };
        }
        compiler.compile("millstream_dpdk");
        for folder in pkg_config("--libs-only-L")?.split_whitespace().filter_map(|f| f.strip_prefix("-L")) {
            println!("cargo::rustc-link-search=native={folder}");
        }
        for library in LIBRARIES {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        Ok(())
    }

    fn pkg_config(what: &str) -> Result<String, Box<dyn Error>> {
        let run = Command::new("pkg-config").args([what, "libdpdk >= 22.11"]).output();
        let advice = "feature `dpdk` needs DPDK 22.11 with headers: install libdpdk-dev and pkg-config, \
            or build without the feature";
        let done = run.map_err(|e| format!("pkg-config cannot be run ({e}): {advice}"))?;
        match done.status.success() {
            true => Ok(String::from_utf8(done.stdout)?),
            false => Err(format!("{}\n{advice}", String::from_utf8_lossy(&done.stderr).trim()).into()),
        }
    }
}
