//! Compiles the protocol's messages and service, and keeps their descriptors for the text format.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["p4/v1/p4runtime.proto"], ["proto"])?;
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(folder.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut config = prost_build::Config::new();
    config.btree_map(["."]).enable_type_names();
    tonic_prost_build::configure().build_transport(false).compile_fds_with_config(descriptors, config)?;
    Ok(())
}
