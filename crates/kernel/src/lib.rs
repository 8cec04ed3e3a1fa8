//! The kernel side: the only crate that calls bpf(2).
