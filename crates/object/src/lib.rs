//! libbpf-style ELF objects: reading and writing back.
