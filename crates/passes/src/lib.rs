//! Static optimization passes over the IR.
