//! Interpreters for bytecode and IR over packets, maps and helpers.
