//! How long machine instructions take.

use std::sync::LazyLock;

/// Parts of the machine that instructions wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Adders and the like.
    Alu,
    /// Shifters and branches.
    Shift,
    /// The multiplier.
    Mul,
    /// The divider.
    Div,
    /// Ports for loads.
    Load,
    /// Ports for stores.
    Store,
    /// Everything: what follows waits.
    All,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $unit:ident $uops:literal $latency:literal $each:literal;)*) => {
        /// Kinds of instructions, as the machine sees them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// The name in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }

            const fn built_in(self) -> Timing {
                match self {
                    $(Kind::$kind => Timing { unit: Unit::$unit, uops: $uops, latency: $latency, each: $each },)*
                }
            }
        }
    };
}

kinds! {
    /// Addition, logic, sign extension, swap of 32 bits.
    Alu "alu" Alu 1 1000 200;
    /// Shift by a constant.
    Shift "shift" Shift 1 1000 500;
    /// Shift by a register.
    ShiftBy "shift-by" Shift 1 1000 500;
    /// Multiplication.
    Mul "mul" Mul 1 3000 1000;
    /// Division or remainder, 32 bits.
    Div32 "div32" Div 10 16000 7000;
    /// Division or remainder, 64 bits.
    Div64 "div64" Div 10 16000 7000;
    /// A copy of a register: renamed.
    Move "move" Alu 1 0 0;
    /// A constant.
    Constant "constant" Alu 1 1000 200;
    /// Swap of 16 bits: a rotation and an extension.
    Swap16 "swap16" Shift 2 2000 500;
    /// Swap of 64 bits.
    Swap64 "swap64" Shift 2 2000 500;
    /// Load.
    Load "load" Load 1 5000 333;
    /// Store.
    Store "store" Store 2 1000 500;
    /// A load of what was just stored, all of it by one store.
    Forward "forward" Load 1 5000 333;
    /// A load of what was just stored, in pieces.
    Stall "stall" Load 1 14000 333;
    /// Atomic operation without a result.
    Atomic "atomic" All 4 18000 18000;
    /// Atomic operation with a result.
    Fetch "fetch" All 8 20000 20000;
    /// Comparison and branch.
    Branch "branch" Shift 1 1000 500;
    /// Jump.
    Jump "jump" Shift 1 1000 1000;
    /// Entry and exit.
    Frame "frame" All 8 10000 0;
    /// A call of a helper or kernel function of which nothing else is known.
    Call "call" All 20 20000 20000;
    /// A call of a function of the same program.
    Local "local" All 10 5000 5000;
    /// A tail call.
    Tail "tail" All 20 20000 20000;
    /// A lookup in a map of which nothing else is known.
    Lookup "lookup" All 40 30000 30000;
}

/// How long one kind takes. Times are in thousandths of a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// What it waits for.
    pub unit: Unit,
    /// Operations of the machine.
    pub uops: u32,
    /// From operands to result.
    pub latency: u32,
    /// From one to the next, independent one.
    pub each: u32,
}

/// How long each kind takes on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    timings: Vec<Timing>,
}

impl Table {
    /// The table of the machine that this was calibrated on.
    pub fn built_in() -> &'static Table {
        static TABLE: LazyLock<Table> =
            LazyLock::new(|| Table { timings: Kind::ALL.iter().map(|k| k.built_in()).collect() });
        &TABLE
    }

    /// How long a kind takes.
    pub fn timing(&self, kind: Kind) -> Timing {
        self.timings[kind as usize]
    }
}
