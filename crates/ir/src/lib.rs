//! The packet IR: SSA, text form, verifier and analyses.
