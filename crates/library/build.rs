//! Gives the shared library the name that programs ask for at run time: it changes with the C interface.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmillstream.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
