//! Reasons why code cannot be linked ahead of time, or an image not run.

/// Reason why object code cannot be made an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageLinkError {
    /// Images are made for x86-64 only.
    #[error("programs are compiled ahead of time on x86-64 only")]
    Machine,
    /// The object file is not one that LLVM would write.
    #[error("the object file with the machine code is malformed")]
    Malformed,
    /// A relocation of a kind that our code does not use.
    #[error("relocation {kind} of `{symbol}` cannot be resolved ahead of time")]
    Relocation {
        /// Its number in the ABI.
        kind: u32,
        /// Its symbol.
        symbol: String,
    },
    /// A symbol that is missing in the code, or in this process.
    #[error("there is no `{0}`")]
    Missing(String),
}

/// Reason why an image cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum ImageLoadError {
    /// The processor lacks features that the code needs.
    #[error("the program was built for a processor with {}; build it for another one (`--cpu`)", .0.join(", "))]
    Processor(Vec<String>),
    /// It was made by another release.
    #[error("the program was built for another runtime (form {0})")]
    Version(u64),
    /// It calls a function that this runtime does not have.
    #[error("the program calls `{0}`, which this runtime lacks")]
    Import(String),
    /// No memory for code or maps at their addresses.
    #[error("no memory for code and maps: {0}")]
    Memory(#[from] std::io::Error),
}
