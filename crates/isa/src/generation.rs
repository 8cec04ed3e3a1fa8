//! Generations of the kernel's verifier: the instructions, helpers and map types that it has, and its
//! knowledge of values.
//!
//! A generation stands for all kernels from its own version up to the next generation. Features that kernels
//! in between gained are counted for the next one, so that a program made for a generation is accepted by
//! every kernel that the generation stands for. A [`KernelRange`] names the kernels that a program is made
//! for: a rewrite must be right for the verifier of each generation in it.
//!
//! Source: `kernel/bpf/verifier.c` and `include/uapi/linux/bpf.h` of each version.

use std::fmt;
use std::str::FromStr;

use crate::absint::VerifierRules;
use crate::{AluOp, Insn, Size, SwapKind};

/// A generation of the verifier, named after the first kernel that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum VerifierGeneration {
    /// Linux 5.10, the oldest that is supported.
    V5_10,
    /// Linux 6.1.
    V6_1,
    /// Linux 6.12.
    V6_12,
    /// Linux 6.18.
    V6_18,
    /// Linux 7.2.
    V7_2,
}

/// Facts about one generation that passes and instruction selection ask for.
struct GenerationFeatures {
    version: (u32, u32),
    /// Instruction set version, as clang's `-mcpu` counts.
    isa: u8,
    /// `BPF_ST` into the context (Linux 6.4).
    context_immediates: bool,
    /// Stack bytes that nobody has written may be read by privileged programs (Linux 6.3).
    unwritten_stack: bool,
    /// An unknown scalar keeps its identity in a stack slot (Linux 6.8).
    linked_spills: bool,
    /// Number of the last helper.
    last_helper: u32,
    /// Number of the last map type.
    last_map_type: u32,
    knowledge: VerifierRules,
}

const ALL_TRAITS: [GenerationFeatures; 5] = [
    GenerationFeatures {
        version: (5, 10),
        isa: 3,
        context_immediates: false,
        unwritten_stack: false,
        linked_spills: false,
        last_helper: 155,
        last_map_type: 28,
        knowledge: VerifierRules::LINUX_5_10,
    },
    GenerationFeatures {
        version: (6, 1),
        isa: 3,
        context_immediates: false,
        unwritten_stack: false,
        linked_spills: false,
        last_helper: 209,
        last_map_type: 31,
        knowledge: VerifierRules::LINUX_5_10,
    },
    GenerationFeatures {
        version: (6, 12),
        isa: 4,
        context_immediates: true,
        unwritten_stack: true,
        linked_spills: true,
        last_helper: 211,
        last_map_type: 33,
        knowledge: VerifierRules::LINUX_6_12,
    },
    GenerationFeatures {
        version: (6, 18),
        isa: 4,
        context_immediates: true,
        unwritten_stack: true,
        linked_spills: true,
        last_helper: 211,
        last_map_type: 33,
        knowledge: VerifierRules::LINUX_6_18,
    },
    GenerationFeatures {
        version: (7, 2),
        isa: 4,
        context_immediates: true,
        unwritten_stack: true,
        linked_spills: true,
        last_helper: 211,
        last_map_type: 35,
        knowledge: VerifierRules::LINUX_6_18,
    },
];

impl VerifierGeneration {
    /// All generations, the oldest first.
    pub const ALL: [VerifierGeneration; 5] = [
        VerifierGeneration::V5_10,
        VerifierGeneration::V6_1,
        VerifierGeneration::V6_12,
        VerifierGeneration::V6_18,
        VerifierGeneration::V7_2,
    ];

    /// The oldest kernel that programs are made for.
    pub const OLDEST: VerifierGeneration = VerifierGeneration::V5_10;

    /// The newest generation that is described.
    pub const NEWEST: VerifierGeneration = VerifierGeneration::V7_2;

    const fn traits(self) -> &'static GenerationFeatures {
        &ALL_TRAITS[self as usize]
    }

    /// Major and minor version of the first kernel of the generation.
    pub const fn version(self) -> (u32, u32) {
        self.traits().version
    }

    /// The generation of a kernel of this version; `None` if it is older than all.
    pub fn of_version(major: u32, minor: u32) -> Option<VerifierGeneration> {
        VerifierGeneration::ALL.into_iter().rfind(|g| g.version() <= (major, minor))
    }

    /// The generation of a kernel by its release, as `uname -r` prints it (`6.1.0-25-amd64`).
    pub fn of_release(release: &str) -> Option<VerifierGeneration> {
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        let mut number = || parts.next()?.parse().ok();
        VerifierGeneration::of_version(number()?, number()?)
    }

    /// The newest instruction set version that the generation has, 1 to 4.
    pub const fn isa(self) -> u8 {
        self.traits().isa
    }

    /// Returns true if a constant may be stored into the context without a register.
    pub const fn stores_context_immediates(self) -> bool {
        self.traits().context_immediates
    }

    /// Returns true if privileged programs may read bytes of the stack that no instruction has written on the
    /// way there.
    pub const fn reads_unwritten_stack(self) -> bool {
        self.traits().unwritten_stack
    }

    /// Returns true if facts that a comparison establishes about a register also hold for the stack slot that
    /// the register was spilled to before.
    pub const fn links_spills(self) -> bool {
        self.traits().linked_spills
    }

    /// Returns true if the generation has a helper, by number.
    pub const fn has_helper(self, id: u32) -> bool {
        id <= self.traits().last_helper
    }

    /// Returns true if the generation has a map type, by number.
    pub const fn has_map_type(self, id: u32) -> bool {
        id <= self.traits().last_map_type
    }

    /// Rules by which the verifier computes results of operations and learns from comparisons.
    pub const fn knowledge(self) -> VerifierRules {
        self.traits().knowledge
    }

    /// The oldest generation that has an instruction.
    pub fn needed_by(insn: Insn) -> VerifierGeneration {
        match insn {
            Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => VerifierGeneration::V6_18,
            Insn::MovSx { .. }
            | Insn::Load { sext: true, .. }
            | Insn::Jump { long: true, .. }
            | Insn::Swap { kind: SwapKind::Swap, .. }
            | Insn::Alu { op: AluOp::SDiv | AluOp::SMod, .. }
            | Insn::MayGoto { .. }
            | Insn::AddrSpaceCast { .. } => VerifierGeneration::V6_12,
            Insn::Atomic { fetch: true, .. } => VerifierGeneration::V6_1,
            // Before Linux 5.12 there is addition only.
            Insn::Atomic { op, size: Size::W | Size::Dw, .. } if op != crate::AtomicOp::Add => {
                VerifierGeneration::V6_1
            }
            _ => VerifierGeneration::OLDEST,
        }
    }
}

impl fmt::Display for VerifierGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "{major}.{minor}")
    }
}

/// Reason why a text names no kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VersionError {
    /// It is no version.
    #[error("`{0}` is no version of Linux, as `6.1` is")]
    NotAVersion(String),
    /// It is older than what programs are made for.
    #[error(
        "Linux {0} is older than {oldest}, the oldest that programs are made for",
        oldest = VerifierGeneration::OLDEST
    )]
    TooOld(String),
}

impl FromStr for VerifierGeneration {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<VerifierGeneration, VersionError> {
        let mut parts = text.split('.');
        let mut number = || parts.next().and_then(|p| p.parse::<u32>().ok());
        let (Some(major), Some(minor)) = (number(), number()) else {
            return Err(VersionError::NotAVersion(text.to_owned()));
        };
        if parts.any(|p| p.is_empty() || !p.bytes().all(|b| b.is_ascii_digit())) {
            return Err(VersionError::NotAVersion(text.to_owned()));
        }
        VerifierGeneration::of_version(major, minor).ok_or_else(|| VersionError::TooOld(text.to_owned()))
    }
}

/// The kernels that a program is made for: all generations from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelRange {
    oldest: VerifierGeneration,
    newest: VerifierGeneration,
}

impl KernelRange {
    /// Every supported kernel.
    pub const ALL: KernelRange = KernelRange::since(VerifierGeneration::OLDEST);

    /// The kernels of one generation.
    pub const fn only(generation: VerifierGeneration) -> KernelRange {
        KernelRange { oldest: generation, newest: generation }
    }

    /// The kernels of a generation and of all later ones.
    pub const fn since(oldest: VerifierGeneration) -> KernelRange {
        KernelRange { oldest, newest: VerifierGeneration::NEWEST }
    }

    /// The oldest generation of the range.
    pub const fn oldest(self) -> VerifierGeneration {
        self.oldest
    }

    /// The generations of the range, the oldest first.
    pub fn generations(self) -> impl DoubleEndedIterator<Item = VerifierGeneration> {
        VerifierGeneration::ALL.into_iter().filter(move |g| (self.oldest..=self.newest).contains(g))
    }

    /// Returns true if all generations of the range have a property.
    pub fn all(self, has: impl Fn(VerifierGeneration) -> bool) -> bool {
        self.generations().all(has)
    }

    /// Knowledge of values, once for all generations that share it.
    pub fn knowledge(self) -> impl Iterator<Item = VerifierRules> {
        let mut last = None;
        self.generations().map(VerifierGeneration::knowledge).filter(move |k| last.replace(*k) != Some(*k))
    }

    /// Knowledge of values that the verifiers of all generations have: each knows at least as much as the
    /// oldest.
    pub const fn common_knowledge(self) -> VerifierRules {
        self.oldest.knowledge()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_in_order_and_newer_ones_have_more() {
        for (at, generation) in VerifierGeneration::ALL.into_iter().enumerate() {
            assert_eq!(generation as usize, at);
        }
        for pair in VerifierGeneration::ALL.windows(2) {
            let [a, b] = [pair[0].traits(), pair[1].traits()];
            assert!(a.version < b.version && a.isa <= b.isa && a.last_helper <= b.last_helper);
            assert!(a.last_map_type <= b.last_map_type && a.unwritten_stack <= b.unwritten_stack);
            assert!(a.context_immediates <= b.context_immediates && a.linked_spills <= b.linked_spills);
            assert!(a.knowledge.is_within(b.knowledge), "{} {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn kernels_are_named_by_version() {
        let generation = |text: &str| text.parse::<VerifierGeneration>();
        assert_eq!(generation("5.10"), Ok(VerifierGeneration::V5_10));
        assert_eq!(generation("5.15.160"), Ok(VerifierGeneration::V5_10));
        assert_eq!(generation("6.6"), Ok(VerifierGeneration::V6_1));
        assert_eq!(generation("6.12.117"), Ok(VerifierGeneration::V6_12));
        assert_eq!(generation("6.18"), Ok(VerifierGeneration::V6_18));
        assert_eq!(generation("9.0"), Ok(VerifierGeneration::V7_2));
        assert_eq!(generation("5.4"), Err(VersionError::TooOld("5.4".into())));
        for text in ["", "6", "six", "6.x", "6.1.", "6.1.x", "-6.1"] {
            assert_eq!(generation(text), Err(VersionError::NotAVersion(text.into())), "{text}");
        }
        assert_eq!(VerifierGeneration::of_release("6.1.0-25-amd64"), Some(VerifierGeneration::V6_1));
        assert_eq!(VerifierGeneration::of_release("4.19.0"), None);
        assert_eq!(VerifierGeneration::of_release("unknown"), None);
    }

    #[test]
    fn ranges_hold_what_all_of_their_generations_hold() {
        let all = KernelRange::ALL;
        assert!(!all.all(VerifierGeneration::stores_context_immediates));
        assert!(
            KernelRange::since(VerifierGeneration::V6_12).all(VerifierGeneration::stores_context_immediates)
        );
        assert_eq!(all.knowledge().count(), 3);
        assert_eq!(KernelRange::only(VerifierGeneration::V6_1).knowledge().count(), 1);
        assert_eq!(all.common_knowledge(), VerifierRules::LINUX_5_10);
    }
}
