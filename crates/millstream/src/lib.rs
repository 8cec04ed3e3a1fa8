//! Millstream as a library: optimizes, proves, inspects and specializes BPF programs, and runs them as native code.
//!
//! | module | does |
//! |---|---|
//! | [`optimize`] | makes the programs of an object shorter or faster; needs no kernel |
//! | [`prove`] | proves that the programs of two objects behave alike, or finds a run on which they differ |
//! | [`inspect`] | lists programs, maps and instructions of an object, and shows its IR |
//! | [`specialize`] | specializes a program to its tables and traffic while it runs in the kernel |
//! | [`native`] | compiles an XDP program to machine code of this process, and runs it on packets |
//!
//! All of them start from an [`Object`], which is parsed from bytes. Nothing here reads files or prints.
//!
//! ```
//! use millstream::Object;
//! use millstream::optimize::ObjectOptimizer;
//! use millstream::prove::{EquivalenceProver, ProofVerdict};
//!
//! # let elf = millstream_programs::ROUTER.object;
//! let object = Object::parse("router.o", elf)?;
//! let optimized = ObjectOptimizer::new().optimize(&object)?;
//! assert!(optimized.functions.iter().all(|function| function.after <= function.before));
//!
//! let proofs = EquivalenceProver::without_solver().prove(&object, &optimized.object)?;
//! assert!(!matches!(proofs[0].verdict, ProofVerdict::Differs(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Front ends for Click and P4_16, and the parts below these modules, are crates of their own.
//!
//! Architecture Invariant: no logic. A function here chooses among those of the crates below, by typed options.

pub mod inspect;
pub mod native;
pub mod optimize;
pub mod prove;
pub mod specialize;

pub use millstream_object::{Object, ObjectError};
