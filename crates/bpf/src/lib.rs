//! Lifting BPF bytecode to the IR and lowering it back.
